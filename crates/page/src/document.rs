//! The skeleton of a page, and the elements that pages share.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::tone;

/// Nothing is loaded and nothing is run, whatever a name or a note contains.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";
const STYLE: &str = include_str!("style.css");

/// A page without its body.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    /// In the title bar.
    pub title: &'a str,
    /// The program that made it, with its version.
    pub generator: &'a str,
}

impl Page<'_> {
    /// The document, with `body` as the content of its `main` element.
    pub fn document(&self, body: &Markup) -> String {
        let document = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta http-equiv="Content-Security-Policy" content=(POLICY);
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="generator" content=(self.generator);
                    title { (self.title) }
                    style { (PreEscaped(tone::style_sheet())) (PreEscaped(STYLE)) }
                }
                body { main { (body) } }
            }
        };
        document.into_string()
    }
}

/// A table of figures: the first column names the rows, the others are to the right.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Its name, for readers who do not see it.
    pub caption: String,
    /// Names of the columns.
    pub heading: Vec<String>,
    /// Cells, as many in each row as in the heading.
    pub rows: Vec<Vec<Markup>>,
}

impl Table {
    /// As HTML, in a box that scrolls where the page is narrow.
    pub fn html(&self) -> Markup {
        html! {
            div.scroll role="region" aria-label=(self.caption) tabindex="0" {
                table {
                    caption { (self.caption) }
                    thead { tr { @for name in &self.heading { th scope="col" { (name) } } } }
                    tbody {
                        @for row in &self.rows {
                            tr {
                                @for (column, cell) in row.iter().enumerate() {
                                    @if column == 0 { th scope="row" { (cell) } }
                                    // Columns without a name hold words.
                                    @else if self.heading[column].is_empty() { td.words { (cell) } }
                                    @else { td { (cell) } }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// An SVG element with its own `title`. Only markup of this program may be passed.
pub fn picture(svg: &str) -> Markup {
    html! { figure.scroll { (PreEscaped(svg)) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_wherever_it_is() {
        let evil = "</style><script>alert(\"1\")</script>";
        let page = Page {
            title: evil,
            generator: evil,
        };
        let table = Table {
            caption: evil.to_owned(),
            heading: vec![evil.to_owned()],
            rows: vec![vec![html! { (evil) }]],
        };
        let text = page.document(&table.html());
        assert!(!text.contains("<script"), "{text}");
        assert_eq!(text.matches("&lt;script&gt;").count(), 6);
    }

    #[test]
    fn table_names_its_columns_and_rows() {
        let table = Table {
            caption: "c".to_owned(),
            heading: vec!["method".to_owned(), "s".to_owned(), String::new()],
            rows: vec![["dd", "1.5", "warm"].map(|cell| html! { (cell) }).to_vec()],
        };
        let text = table.html().into_string();
        for part in [
            "<caption>c</caption>",
            "<th scope=\"col\">s</th>",
            "<th scope=\"row\">dd</th><td>1.5</td><td class=\"words\">warm</td>",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }
}
