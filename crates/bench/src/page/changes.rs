//! The comparison with older results.

use extant_page::Table;
use maud::{Markup, html};

use super::verdict;
use crate::compare::{Change, Comparison, MARGIN, RESAMPLES, SAMPLES_MIN, Verdict};
use crate::metrics::{Better, better};
use crate::saved::SavedReport;
use crate::table::number;

pub(super) fn html(comparisons: &[Comparison<'_>]) -> Markup {
    let run = |result: &SavedReport| format!("{}, {}", result.date, result.commit.short());
    html! {
        h2 { "Compared with older results" }
        p {
            "Samples of two runs cannot be paired. For each figure the ratio of the new median to the old one \
             has a 95% bootstrap interval (percentiles of " (RESAMPLES) " resamples of both). It is a regression or an \
             improvement if the whole interval is at least " (MARGIN * 100.0) " % from 1, in the direction that its unit \
             calls worse or better. Fewer than " (SAMPLES_MIN) " samples are not evaluated. The interval knows the noise \
             within each run, not what changes from day to day: of many figures with three samples some differ by \
             chance. Repeat both runs before you trust a single finding. Peers have their rows because their changes \
             show those of the machine."
        }
        @if comparisons.is_empty() { p { "No bench of this page has an older result." } }
        @for comparison in comparisons {
            h3 { (comparison.new.bench) }
            p.note { "Old: " (run(comparison.old)) ". New: " (run(comparison.new)) "." }
            @for warning in &comparison.warnings { p.bad { "Note: " (warning) } }
            (table(comparison))
            @for (goal, before, now) in &comparison.goals {
                p { "Goal " code { (goal) } ": was " (verdict(*before)) ", is " (verdict(*now)) }
            }
            p.note {
                (comparison.with(Verdict::Level).count()) " figures are level, "
                (comparison.with(Verdict::NotEvaluated).count()) " are not evaluated, "
                (comparison.unmatched) " are in one of the results only."
            }
        }
    }
}

fn table(comparison: &Comparison<'_>) -> Markup {
    let is_shown =
        |change: &&Change<'_>| !matches!(change.verdict, Verdict::Level | Verdict::NotEvaluated);
    let rows: Vec<_> = comparison
        .changes
        .iter()
        .filter(is_shown)
        .map(row)
        .collect();
    if rows.is_empty() {
        return html! { p { "No figure differs beyond the noise." } };
    }
    let heading = [
        "figure", "unit", "", "old", "spread", "new", "spread", "ratio", "interval", "",
    ];
    let table = Table {
        caption: format!(
            "{}: figures that differ beyond the noise",
            comparison.new.bench
        ),
        heading: heading.map(str::to_owned).to_vec(),
        rows,
    };
    table.html()
}

fn row(change: &Change<'_>) -> Vec<Markup> {
    let good = match better(&change.new.unit) {
        Some(Better::Higher) => "more is better",
        Some(Better::Lower) => "less is better",
        None => "no direction",
    };
    let ratio = change.ratio.map_or_else(|| "-".to_owned(), number);
    let interval = change.interval;
    let interval = interval.map_or_else(
        || "-".to_owned(),
        |(low, high)| format!("{}..{}", number(low), number(high)),
    );
    let class = match change.verdict {
        Verdict::Regression => "bad",
        Verdict::Improvement => "good",
        _ => "open",
    };
    vec![
        html! { (change.new.name) },
        html! { (change.new.unit) },
        html! { (good) },
        html! { (number(change.old.median())) },
        html! { (change.old.spread()) },
        html! { (number(change.new.median())) },
        html! { (change.new.spread()) },
        html! { (ratio) },
        html! { (interval) },
        html! { span class=(class) { (change.verdict.to_string()) } },
    ]
}
