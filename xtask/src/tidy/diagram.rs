//! The layer diagram of docs/design.md, generated from the table that the layer check uses.

use std::fmt::Write;
use std::fs;

use anyhow::{Context, Result};

use super::Finding;
use super::layers::{self, Layer};
use super::tree::Tree;
use crate::workspace::Workspace;

const PAGE: &str = "docs/design.md";
const BEGIN: &str = "<!-- layers -->\n";
const END: &str = "<!-- end of layers -->";

/// Compares the diagram in the page with the table.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let page = tree.texts(PAGE).next();
    let shown = page.and_then(|(_, text)| Some(&text[place(text)?]));
    if shown == Some(diagram(layers::LAYERS).as_str()) {
        return Vec::new();
    }
    let message = "the layer diagram is not that of the table; run cargo xtask tidy --write";
    vec![Finding::new(PAGE, message)]
}

/// Writes the diagram into the page.
pub fn write(workspace: &Workspace) -> Result<()> {
    let path = workspace.root().join(PAGE);
    let mut text = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
    let place = place(&text).with_context(|| format!("{PAGE} has no marks of the diagram"))?;
    text.replace_range(place, &diagram(layers::LAYERS));
    fs::write(&path, text).with_context(|| format!("{}", path.display()))
}

/// The bytes between the marks.
fn place(text: &str) -> Option<std::ops::Range<usize>> {
    let start = text.find(BEGIN)? + BEGIN.len();
    let end = start + text[start..].find(END)?;
    Some(start..end)
}

/// The crates of the product as a Mermaid graph, arrows from a crate to those it depends on.
fn diagram(layers: &[Layer]) -> String {
    let mut text = String::from("```mermaid\ngraph TD\n");
    for layer in layers.iter().rev().filter(|layer| layer.is_product) {
        let user = short(layer.package);
        for arrow in layer.arrows {
            writeln!(text, "  {user} --> {}", short(arrow)).expect("a string takes any text");
        }
    }
    text.push_str("```\n");
    text
}

fn short(package: &str) -> &str {
    package.strip_prefix("extant-").unwrap_or("cli")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn diagram_has_an_arrow_for_each_entry_of_the_table() {
        let text = diagram(layers::LAYERS);
        assert!(text.contains("  hostfs --> provision\n"), "{text}");
        assert!(text.contains("  cli --> libvirt\n"), "{text}");
        assert!(!text.contains("testkit"), "{text}");
    }

    #[test]
    fn page_that_differs_from_the_table_is_found() {
        let good = format!("a\n{BEGIN}{}{END}\n", diagram(layers::LAYERS));
        assert_eq!(check(&Tree::of(&[(PAGE, &good)])), []);
        for bad in [good.replace("hostfs", "hostess"), String::from("none")] {
            assert_eq!(check(&Tree::of(&[(PAGE, &bad)])).len(), 1, "{bad}");
        }
    }
}
