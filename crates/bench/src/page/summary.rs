//! The summary: counts, a chart and a table of all goals, a table of the runs.

use anyhow::Result;
use extant_page::{BAD, GOOD, Table};
use maud::{Markup, html};

use super::chart;
use super::columns::{Bar, Panel};
use super::{Contents, inline, verdict};
use crate::compare::Verdict;
use crate::document;
use crate::goal::Comparison;
use crate::saved::{SavedGoal, SavedReport};

pub(super) fn html(contents: &Contents<'_>) -> Result<Markup> {
    let results = contents.results;
    let count = |met: Option<bool>| {
        let counts = results
            .iter()
            .map(|result| result.goals_that_are(met).count());
        counts.sum::<usize>()
    };
    let (met, missed, open) = (count(Some(true)), count(Some(false)), count(None));
    let regressions = contents.comparisons.map(|comparisons| {
        let counts = comparisons
            .iter()
            .map(|it| it.with(Verdict::Regression).count());
        counts.sum::<usize>()
    });
    let (names, panel) = distances(results);
    Ok(html! {
        p.lead {
            "What Extant and its peers do in the same runs on the same machine. Goals compare medians; \
             ranges are the least and the greatest sample."
        }
        ul.tiles {
            li { strong { (results.len()) } "benches" }
            li { strong.good { (met) } "goals met" }
            li { strong.bad[missed > 0] { (missed) } "missed" }
            li { strong { (open) } "not evaluated" }
            @if let Some(count) = regressions {
                li { strong.bad[count > 0] { (count) } "regressions" }
            }
        }
        @if results.iter().any(|result| result.quick) {
            p.bad { "Runs with --quick: small and few samples, which settle nothing." }
        }
        @if !names.is_empty() {
            (extant_page::picture(&chart::svg(
                "Results of all goals",
                "Each value relative to its bound: bars that reach the line meet their goal.",
                &names,
                &[panel],
            )?))
        }
        h2 { "Goals" }
        (goals(results).html())
        h2 { "Runs" }
        (runs(results).html())
        @if !contents.missing.is_empty() {
            p.note { "Not on this page:" }
            ul { @for (bench, why) in contents.missing { li { code { (bench) } ": " (why) } } }
        }
    })
}

/// How far each value is on the good side of its bound; values and bounds of 0 have no ratio.
fn distances(results: &[SavedReport]) -> (Vec<String>, Panel) {
    /// Far beyond a goal there is nothing more to see.
    const MOST: f64 = 4.0;
    let mut names = Vec::new();
    let mut rows = Vec::new();
    for result in results {
        for goal in &result.goals {
            let Some(value) = goal.value.filter(|value| value * goal.goal > 0.0) else {
                continue;
            };
            let distance = match goal.comparison {
                Comparison::AtLeast => value / goal.goal,
                Comparison::AtMost => goal.goal / value,
            };
            names.push(format!("{}: {}", result.bench, goal.name));
            let tone = match goal.met {
                Some(true) => Some(GOOD),
                Some(false) => Some(BAD),
                None => None,
            };
            rows.push(vec![Some(Bar {
                value: distance.min(MOST),
                range: None,
                tone,
            })]);
        }
    }
    let panel = Panel {
        title: format!(
            "value / bound (of upper bounds: bound / value), at most {MOST}; met from 1 on"
        ),
        series: vec!["distance".to_owned()],
        rows,
        mark: Some(1.0),
    };
    (names, panel)
}

fn goals(results: &[SavedReport]) -> Table {
    let meanings: Vec<_> = document::goals().collect();
    let meaning = |bench: &str, goal: &SavedGoal| {
        let mut known = meanings.iter();
        let known = known.find(|known| known.key[0] == bench && known.key[1] == goal.name);
        known.map_or("", |known| &known.meaning)
    };
    let row = |result: &SavedReport, goal: &SavedGoal| {
        let bench = &result.bench;
        vec![
            html! { a href={ "#" (bench) } { (bench) } ": " (goal.name) },
            html! { (goal.wanted()) },
            html! { (goal.found()) },
            html! { (verdict(goal.met)) @if let Some(why) = &goal.why { ": " (why) } },
            inline(meaning(bench, goal)),
        ]
    };
    let rows = results.iter().flat_map(|result| {
        let goals = result.goals.iter();
        goals.map(move |goal| row(result, goal))
    });
    Table {
        caption: "Without a unit: ratio to the peer".to_owned(),
        heading: ["goal", "wanted", "found", "", ""]
            .map(str::to_owned)
            .to_vec(),
        rows: rows.collect(),
    }
}

fn runs(results: &[SavedReport]) -> Table {
    let rows = results.iter().map(|result| {
        let of = |met| result.goals_that_are(met).count().to_string();
        vec![
            html! { a href={ "#" (result.bench) } { (result.bench) } },
            html! { (result.title) },
            html! { (result.date) },
            html! { code { (result.commit.short()) } },
            html! { (result.machine.load) },
            html! { (of(Some(true))) },
            html! { (of(Some(false))) },
            html! { (of(None)) },
        ]
    });
    let heading = [
        "bench",
        "",
        "date",
        "commit",
        "load",
        "met",
        "missed",
        "not evaluated",
    ];
    Table {
        caption: "Runs; load is that of the machine at the start".to_owned(),
        heading: heading.map(str::to_owned).to_vec(),
        rows: rows.collect(),
    }
}
