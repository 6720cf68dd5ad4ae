//! The page of `extant-bench report`: results of benches as one HTML file with charts.
//!
//! A summary of benches and goals, the comparison with older results if there is one, then a
//! section for each bench. Texts about methods come from docs/benchmarks.md
//! ([`document`]).

mod changes;
mod chart;
mod columns;
mod section;
mod summary;

use anyhow::Result;
use extant_page::Page;
use maud::{Markup, PreEscaped, html};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::compare::Comparison;
use crate::document;
use crate::saved::SavedReport;

/// Everything that the page shows.
pub struct Contents<'a> {
    /// One result for each bench.
    pub results: &'a [SavedReport],
    /// Benches without a result, and why.
    pub missing: &'a [(&'static str, String)],
    /// With older results, if they were given.
    pub comparisons: Option<&'a [Comparison<'a>]>,
}

impl Contents<'_> {
    /// The document.
    pub fn document(&self) -> Result<String> {
        let sections: Result<Vec<_>> = self.results.iter().map(section::html).collect();
        let body = html! {
            h1 { "Extant: measurements" }
            (summary::html(self)?)
            @if let Some(comparisons) = self.comparisons { (changes::html(comparisons)) }
            h2 { "How it is measured" }
            (markdown(document::rules()))
            @for section in sections? { (section) }
        };
        let page = Page {
            title: "Extant: measurements",
            generator: concat!("extant-bench ", env!("CARGO_PKG_VERSION")),
        };
        Ok(page.document(&body))
    }
}

/// A verdict as a word with a sign, so that it does not depend on its colour.
fn verdict(met: Option<bool>) -> Markup {
    match met {
        Some(true) => html! { span.good { "✓ met" } },
        Some(false) => html! { span.bad { "✗ missed" } },
        None => html! { span.open { "– not evaluated" } },
    }
}

/// Markdown of the documentation as HTML. Links keep their text only: the page stands alone.
fn markdown(text: &str) -> Markup {
    let is_link = |event: &Event<'_>| {
        matches!(
            event,
            Event::Start(Tag::Link { .. }) | Event::End(TagEnd::Link)
        )
    };
    let events = Parser::new_ext(text, Options::empty()).filter(|event| !is_link(event));
    let mut html = String::new();
    pulldown_cmark::html::push_html(&mut html, events);
    PreEscaped(html)
}

/// The same inside a sentence or a cell.
fn inline(text: &str) -> Markup {
    let PreEscaped(html) = markdown(text);
    let html = html.trim();
    let inner = html
        .strip_prefix("<p>")
        .and_then(|html| html.strip_suffix("</p>"));
    PreEscaped(inner.unwrap_or(html).to_owned())
}

#[cfg(test)]
mod tests;
