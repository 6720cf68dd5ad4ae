//! The section of a bench: method, machine, tables with their charts, notes, commands, samples.

use anyhow::Result;
use extant_page::Table;
use maud::{Markup, html};

use super::chart::{self, PANELS_MAX};
use super::columns;
use super::{inline, markdown};
use crate::document;
use crate::metrics::{Better, better};
use crate::saved::{Figure, SavedReport, SavedTable};
use crate::table::number;

pub(super) fn html(result: &SavedReport) -> Result<Markup> {
    let bench = &*result.bench;
    let method = document::methods().remove(bench);
    let traps = document::traps(bench);
    let tables: Result<Vec<_>> = (1..)
        .zip(&result.tables)
        .map(|(number, table)| with_chart(result, number, table))
        .collect();
    let quick = if result.quick { " --quick" } else { "" };
    Ok(html! {
        section {
            h2 id=(bench) { (bench) ": " (result.title) }
            @if let Some(method) = method {
                p { (inline(&method.what)) ". Peers: " (inline(&method.peers)) "." }
            }
            dl {
                dt { "run" }
                dd { code { "cargo run --release -p extant-bench -- " (bench) (quick) } }
                dt { "date" } dd { (result.date) }
                dt { "commit" } dd { (result.commit.short()) }
                dt { "machine" } dd { (result.machine.comparable_line()) "; load at the start " (result.machine.load) }
            }
            @for table in tables? { (table) }
            @for note in &result.notes { p.note { (note) } }
            @if !traps.is_empty() {
                details {
                    summary { "Traps of this measurement" }
                    @for trap in traps { (markdown(trap)) }
                }
            }
            (commands(&result.figures))
            details {
                summary { "All " (result.figures.len()) " figures with their samples" }
                (figures(bench, &result.figures).html())
            }
        }
    })
}

fn with_chart(result: &SavedReport, place: usize, table: &SavedTable) -> Result<Markup> {
    let title = format!("{}, table {place}: {}", result.bench, table.heading[0]);
    let cells = |row: &Vec<String>| row.iter().map(|cell| html! { (cell) }).collect();
    let html_table = Table {
        caption: title.clone(),
        heading: table.heading.clone(),
        rows: table.rows.iter().map(cells).collect(),
    };
    let names: Vec<_> = table.rows.iter().map(|row| row[0].clone()).collect();
    let panels = columns::panels(table, &result.figures);
    let charts: Result<Vec<_>> = panels
        .chunks(PANELS_MAX)
        .map(|panels| {
            let shown: Vec<_> = panels.iter().map(|panel| &*panel.title).collect();
            let description = format!(
                "The figures of the table above: {}. Lines are the least and the greatest sample.",
                shown.join("; ")
            );
            chart::svg(&title, &description, &names, panels)
        })
        .collect();
    Ok(html! {
        (html_table.html())
        @for chart in charts? { (extant_page::picture(&chart)) }
    })
}

/// Each command once, with the names of its figures.
fn commands(figures: &[Figure]) -> Markup {
    let mut commands: Vec<(&str, Vec<&str>)> = Vec::new();
    for Figure { name, command, .. } in figures.iter().filter(|it| !it.command.is_empty()) {
        match commands.iter_mut().find(|(known, _)| known == command) {
            Some((_, names)) if names.contains(&&**name) => {}
            Some((_, names)) => names.push(name),
            None => commands.push((command, vec![name])),
        }
    }
    html! {
        @if !commands.is_empty() {
            details {
                summary { (commands.len()) " commands" }
                @for (command, names) in commands {
                    p.note { (names.join("; ")) }
                    pre { (command) }
                }
            }
        }
    }
}

fn figures(bench: &str, figures: &[Figure]) -> Table {
    let rows = figures.iter().map(|figure| {
        let samples: Vec<_> = figure
            .samples
            .iter()
            .map(|&sample| number(sample))
            .collect();
        let good = match better(&figure.unit) {
            Some(Better::Higher) => "more is better",
            Some(Better::Lower) => "less is better",
            None => "",
        };
        vec![
            html! { (figure.name) },
            html! { (figure.unit) },
            html! { (number(figure.median())) },
            html! { (figure.spread()) },
            html! { (good) },
            html! { (samples.join(" ")) },
        ]
    });
    let heading = ["figure", "unit", "median", "spread", "", "samples"];
    Table {
        caption: format!("{bench}: figures"),
        heading: heading.map(str::to_owned).to_vec(),
        rows: rows.collect(),
    }
}
