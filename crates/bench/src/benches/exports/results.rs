//! The goals: the worst cases of the samples, and the tables.

use anyhow::Result;

use super::driver::Waiting;
use super::front::Front;
use super::job::{Job, Order};
use super::samples::{CPU, PLACES, RATE, kernel_name, name, noop_name};
use crate::bench::Outcome;
use crate::benches::images::image::{Kind, Side};
use crate::goal::Goal;
use crate::metrics::Metrics;
use crate::table::{self, Table, number, spread};

/// Random requests by vhost-user over those of qemu-storage-daemon: the least of all cases.
const VHOST: Goal = Goal::at_least("vhost-over-qemu", 1.0, "");
/// Processor time of our server for such a request, over that of its: the most.
const VHOST_CPU: Goal = Goal::at_most("vhost-cpu-over-qemu", 1.0, "");
/// Requests of 1 MiB, likewise: the least.
const VHOST_IN_ORDER: Goal = Goal::at_least("vhost-in-order-over-qemu", 1.0, "");
/// Writes to thin qcow2 images from depth 16: the least.
const ALLOCATING: Goal = Goal::at_least("allocating-over-qemu", 5.0, "");
/// Our vhost-user over our NBD, at depth 64, with a sleeping client: the least.
const VHOST_OVER_NBD: Goal = Goal::at_least("vhost-over-nbd", 1.6, "");
/// Random requests to our FUSE file over those to QEMU's: the least.
const FUSE: Goal = Goal::at_least("fuse-over-qemu", 1.5, "");

/// Random requests to our ublk disk over those to the kernel's NBD disk of qemu-nbd: the least.
pub(super) const UBLK: Goal = Goal::at_least("ublk-over-nbd", 3.0, "");

pub(super) const GOALS: &[Goal] = &[
    VHOST,
    VHOST_CPU,
    VHOST_IN_ORDER,
    ALLOCATING,
    VHOST_OVER_NBD,
    FUSE,
    UBLK,
];

/// A case of goals: a cell of the tables.
#[derive(Clone, Copy)]
struct Case {
    place: &'static str,
    kind: Kind,
    job: Job,
    front: Front,
}

impl Case {
    fn all() -> Vec<Self> {
        let mut cases = Vec::new();
        for front in Front::ALL {
            for place in PLACES {
                for kind in Kind::ALL {
                    for job in Job::samples(kind).into_iter().flatten() {
                        cases.push(Self {
                            place,
                            kind,
                            job,
                            front,
                        });
                    }
                }
            }
        }
        cases
    }

    fn name(self, side: Side) -> String {
        name(self.place, self.kind, self.job, self.front, side)
    }

    fn label(self) -> String {
        let Self {
            place, kind, job, ..
        } = self;
        format!("{place}, {kind}, {job}")
    }

    fn is_random(self) -> bool {
        self.job.order == Order::Random
    }

    /// Ours over theirs, if both were measured.
    fn over_qemu(self, metrics: &Metrics, unit: &str) -> Option<f64> {
        let [ours, theirs] = Side::BOTH.map(|side| self.name(side));
        metrics.ratio(&ours, &theirs, unit).ok()
    }

    /// The ratio that a goal compares in this case.
    fn ratio(self, goal: &Goal, metrics: &Metrics) -> Option<f64> {
        let is_vhost = matches!(self.front, Front::Vhost(_));
        let is_allocating = self.kind == Kind::qcow2("off") && self.job.depth >= 16;
        let (is_case, unit) = match goal.name {
            _ if goal.name == VHOST.name => (is_vhost && self.is_random(), RATE),
            _ if goal.name == VHOST_CPU.name => (is_vhost && self.is_random(), CPU),
            _ if goal.name == VHOST_IN_ORDER.name => (is_vhost && !self.is_random(), RATE),
            _ if goal.name == ALLOCATING.name => (is_vhost && is_allocating, RATE),
            _ if goal.name == FUSE.name => (self.front == Front::Fuse && self.is_random(), RATE),
            _ if goal.name == VHOST_OVER_NBD.name => return self.over_nbd(metrics),
            // Its cases are of the guest.
            _ => return None,
        };
        is_case.then(|| self.over_qemu(metrics, unit))?
    }

    fn over_nbd(self, metrics: &Metrics) -> Option<f64> {
        let is_case = self.front == Front::Vhost(Waiting::Sleeping) && self.job.depth == 64;
        let nbd = Self {
            front: Front::Nbd,
            ..self
        };
        let [vhost, nbd] = [self, nbd].map(|case| case.name(Side::Extant));
        is_case.then(|| metrics.ratio(&vhost, &nbd, RATE).ok())?
    }
}

/// Evaluates the goals of which cases were measured, and adds the tables.
pub(super) fn evaluate(outcome: &mut Outcome) -> Result<()> {
    let cases = Case::all();
    for goal in GOALS {
        let ratios: Vec<_> = cases
            .iter()
            .filter_map(|case| Some((case.ratio(goal, &outcome.metrics)?, case)))
            .collect();
        let is_met = |ratio: f64| goal.evaluate(Some(&ratio.into())).met == Some(true);
        let reached = ratios.iter().filter(|(ratio, _)| is_met(*ratio)).count();
        let worst = ratios.iter().min_by(|a, b| {
            let order = a.0.total_cmp(&b.0);
            if is_met(f64::INFINITY) {
                order
            } else {
                order.reverse()
            }
        });
        if let Some((ratio, case)) = worst {
            outcome.goals.insert(goal.name, (*ratio).into());
            outcome.notes.push(format!(
                "{}: reached in {reached} of {} cases; the worst is {}, {}",
                goal.name,
                ratios.len(),
                case.front,
                case.label()
            ));
        }
    }
    for front in Front::ALL {
        let of_front = cases.iter().filter(|case| case.front == front);
        outcome
            .tables
            .extend(table(front, of_front, &outcome.metrics)?);
    }
    outcome.tables.extend(limits(&cases, &outcome.metrics));
    Ok(())
}

/// One front end; `None` if nothing of it was measured.
fn table<'a>(
    front: Front,
    cases: impl Iterator<Item = &'a Case>,
    metrics: &Metrics,
) -> Result<Option<Table>> {
    let heading = front.to_string();
    let mut table = Table::new(&[
        &heading,
        "extant/s",
        "spread",
        "qemu/s",
        "spread",
        "/ qemu",
        "extant us CPU",
        "qemu us CPU",
    ]);
    let mut is_empty = true;
    for case in cases {
        let [ours, theirs] = Side::BOTH.map(|side| case.name(side));
        let rate = |name: &str| metrics.get(name, RATE);
        let cpu = |name: &str| table::median(metrics.get(name, CPU));
        if rate(&ours).is_none() && rate(&theirs).is_none() {
            continue;
        }
        is_empty = false;
        table.row(vec![
            case.label(),
            table::median(rate(&ours)),
            spread(rate(&ours)),
            table::median(rate(&theirs)),
            spread(rate(&theirs)),
            case.over_qemu(metrics, RATE)
                .map_or_else(String::new, number),
            cpu(&ours),
            cpu(&theirs),
        ]);
    }
    Ok((!is_empty).then_some(table))
}

/// The transport's floor, and the file without a server.
fn limits(cases: &[Case], metrics: &Metrics) -> Option<Table> {
    let mut table = Table::new(&["limits", "requests/s", "spread", "us CPU"]);
    let mut names: Vec<String> = Vec::new();
    for case in cases {
        let noop = Waiting::BOTH.map(|waiting| noop_name(case.job, waiting));
        names.extend(noop);
        names.push(kernel_name(case.place, case.kind, case.job));
    }
    let mut seen: Vec<String> = Vec::new();
    for name in names {
        let rate = metrics.get(&name, RATE);
        if rate.is_none() || seen.contains(&name) {
            continue;
        }
        let cpu = table::median(metrics.get(&name, CPU));
        table.row(vec![name.clone(), table::median(rate), spread(rate), cpu]);
        seen.push(name);
    }
    (!seen.is_empty()).then_some(table)
}

#[cfg(test)]
mod tests {
    use super::super::job::Direction;
    use super::*;

    #[test]
    fn goals_are_the_worst_of_the_cases_that_were_measured() {
        let mut outcome = Outcome::default();
        let job = Job::random(Direction::Write, 64);
        for (kind, rate, cpu) in [
            (Kind::raw("full"), 2.0, 0.5),
            (Kind::qcow2("off"), 1.5, 3.0),
        ] {
            for waiting in Waiting::BOTH {
                for (side, rate, cpu) in [(Side::Extant, rate, cpu), (Side::Qemu, 1.0, 1.0)] {
                    let name = name("memory", kind, job, Front::Vhost(waiting), side);
                    outcome.metrics.record(&name, RATE, "", rate);
                    outcome.metrics.record(&name, CPU, "", cpu);
                }
            }
        }
        let nbd = name("memory", Kind::raw("full"), job, Front::Nbd, Side::Extant);
        outcome.metrics.record(&nbd, RATE, "", 1.0);
        evaluate(&mut outcome).unwrap();
        let goals = outcome.goals.iter();
        let goals: Vec<_> = goals.map(|(&name, value)| (name, value.clone())).collect();
        assert_eq!(
            goals,
            [
                (ALLOCATING.name, 1.5.into()),
                (VHOST_CPU.name, 3.0.into()),
                (VHOST_OVER_NBD.name, 2.0.into()),
                (VHOST.name, 1.5.into()),
            ]
        );
        let note = "vhost-cpu-over-qemu: reached in 2 of 4 cases; the worst is vhost, polling \
            client, memory, qcow2 off, write, depth 64";
        assert!(
            outcome.notes.iter().any(|said| said == note),
            "{:?}",
            outcome.notes
        );
        assert_eq!(outcome.tables.len(), 3, "two clients, and NBD");
    }
}
