//! The metrics of one part: for each case the rate of every peer, and the ratios.
//!
//! Every unit is a rate: our rate over a peer's is the speed-up. A goal is the minimum over the
//! cases; a note names the case.

use anyhow::{Context as _, Result};

use super::environment::Peer;
use crate::bench::Outcome;
use crate::table::{Table, number, spread};

/// A part's cases and peers.
pub(super) struct RateTable {
    /// Heading of the table.
    pub(super) title: &'static str,
    pub(super) unit: &'static str,
    pub(super) peers: Vec<Peer>,
    pub(super) cases: Vec<String>,
}

impl RateTable {
    /// Notes the rate of a peer.
    pub(super) fn record(&self, outcome: &mut Outcome, peer: Peer, case: &str, rate: f64) {
        let name = self.name(peer, case);
        outcome.metrics.record(&name, self.unit, "", rate);
    }

    /// The median of a peer's rate.
    pub(super) fn median(&self, outcome: &Outcome, peer: Peer, case: &str) -> Result<f64> {
        let metric = outcome.metrics.of(&self.name(peer, case), self.unit)?;
        Ok(metric.median())
    }

    /// Ours over another's, on the same transport, in one case.
    pub(super) fn ratio(&self, outcome: &Outcome, peer: Peer, case: &str) -> Result<f64> {
        let (ours, theirs) = (self.name(peer.rival(), case), self.name(peer, case));
        outcome.metrics.ratio(&ours, &theirs, self.unit)
    }

    /// The least of them over all cases becomes the value of `goal`.
    pub(super) fn evaluate(
        &self,
        outcome: &mut Outcome,
        goal: &'static str,
        peer: Peer,
    ) -> Result<()> {
        let ratios = self.cases.iter().map(|case| {
            let ratio = self.ratio(outcome, peer, case)?;
            Ok((ratio, case))
        });
        let ratios = ratios.collect::<Result<Vec<_>>>()?;
        let least = ratios.iter().min_by(|a, b| a.0.total_cmp(&b.0));
        let &(least, case) = least.context("a part without cases")?;
        outcome.goals.insert(goal, least.into());
        let note = format!("{goal}: the least is {}, {case}", self.title);
        outcome.notes.push(note);
        Ok(())
    }

    /// Adds the table: a row for each case.
    pub(super) fn print(&self, outcome: &mut Outcome) -> Result<()> {
        let first = format!("{}, {}", self.title, self.unit);
        let peers: Vec<_> = self.peers.iter().map(ToString::to_string).collect();
        let others = || self.peers.iter().filter(|peer| !peer.is_extant());
        let over: Vec<_> = others().map(|peer| format!("/ {peer}")).collect();
        let mut heading = vec![first.as_str()];
        for peer in &peers {
            heading.extend([peer.as_str(), "spread"]);
        }
        heading.extend(over.iter().map(String::as_str));
        let mut table = Table::new(&heading);
        for case in &self.cases {
            let mut row = vec![case.clone()];
            for &peer in &self.peers {
                let metric = outcome.metrics.of(&self.name(peer, case), self.unit)?;
                row.extend([number(metric.median()), spread(Some(metric))]);
            }
            for &peer in others() {
                row.push(number(self.ratio(outcome, peer, case)?));
            }
            table.row(row);
        }
        outcome.tables.push(table);
        Ok(())
    }

    fn name(&self, peer: Peer, case: &str) -> String {
        format!("{}, {case}, {peer}", self.title)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::goal::Value;

    #[test]
    fn goal_is_the_worst_case_and_the_note_names_it() {
        let rates = RateTable {
            title: "files",
            unit: "files/s",
            peers: vec![Peer::Extant, Peer::Fuse2fs],
            cases: vec!["create".to_owned(), "unlink".to_owned()],
        };
        let mut outcome = Outcome::default();
        for (peer, case, rate) in [
            (Peer::Extant, "create", 30.0),
            (Peer::Fuse2fs, "create", 10.0),
            (Peer::Extant, "unlink", 30.0),
            (Peer::Fuse2fs, "unlink", 20.0),
        ] {
            rates.record(&mut outcome, peer, case, rate);
        }
        rates.evaluate(&mut outcome, "goal", Peer::Fuse2fs).unwrap();
        assert_eq!(outcome.goals["goal"], Value::Measured(1.5));
        assert_eq!(outcome.notes, ["goal: the least is files, unlink"]);
        rates.print(&mut outcome).unwrap();
        let table = outcome.tables[0].to_string();
        assert!(table.contains("3.00") && table.contains("1.50"), "{table}");
        assert!(rates.evaluate(&mut outcome, "goal", Peer::Floor).is_err());
    }
}
