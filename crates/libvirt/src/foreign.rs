//! Elements that mean nothing to us, kept as they were written.
//!
//! They are a small document of their own, `<kept>`, with the unknown children of the root and of
//! `<target>`, and the root's namespaces.

use std::fmt::Write;

use extant_pool::ForeignElements;
use extant_space::Result;
use roxmltree::Node;

use crate::document::{invalid, parse};
use crate::writer::escape;

/// Longest that is kept: it has to fit an extended attribute on every file system.
const BYTES_MAX: usize = 3 << 10;

/// Elements to be written.
#[derive(Default)]
pub(crate) struct Out {
    /// Attributes for the root: ` xmlns:a='b'`.
    pub(crate) namespaces: String,
    /// Elements right below the root.
    pub(crate) root: Vec<String>,
    /// Elements below `<target>`.
    pub(crate) target: Vec<String>,
}

/// The unknown elements of a document; `None`: none.
pub(crate) fn unknown_elements(
    text: &str,
    root: Node<'_, '_>,
    known: &[&str],
    known_in_target: &[&str],
) -> Result<Option<ForeignElements>> {
    let unknown = |node: Node<'_, '_>, known: &[&str]| -> String {
        let elements = node.children().filter(Node::is_element);
        let unknown = elements.filter(|child| {
            child.tag_name().namespace().is_some() || !known.contains(&child.tag_name().name())
        });
        unknown.map(|child| &text[child.range()]).collect()
    };
    let in_root = unknown(root, known);
    let targets = root.children().filter(|child| child.has_tag_name("target"));
    let mut namespaces = namespaces(root);
    let mut in_target = String::new();
    for target in targets {
        // Those of the root are among them.
        namespaces = self::namespaces(target);
        in_target += &unknown(target, known_in_target);
    }
    if in_root.is_empty() && in_target.is_empty() {
        return Ok(None);
    }
    if root.default_namespace().is_some() {
        return Err(invalid("a default namespace is not known"));
    }
    let kept =
        format!("<kept{namespaces}><root>{in_root}</root><target>{in_target}</target></kept>");
    if kept.len() > BYTES_MAX {
        return Err(invalid(format!(
            "more than {BYTES_MAX} bytes of elements that are not known"
        )));
    }
    // It is read again when the description is written.
    parse(&kept, "kept")?;
    Ok(Some(ForeignElements::new(kept)))
}

/// The elements to be written with a description.
pub(crate) fn to_write(foreign: Option<&ForeignElements>) -> Result<Out> {
    let Some(foreign) = foreign else {
        return Ok(Out::default());
    };
    let text = foreign.as_str();
    let document = parse(text, "kept")?;
    let root = document.root_element();
    let inside = |name: &str| -> Vec<String> {
        let places = root.children().filter(|child| child.has_tag_name(name));
        let elements = places.flat_map(|place| place.children().filter(Node::is_element));
        elements
            .map(|element| text[element.range()].to_owned())
            .collect()
    };
    Ok(Out {
        namespaces: namespaces(root),
        root: inside("root"),
        target: inside("target"),
    })
}

fn namespaces(root: Node<'_, '_>) -> String {
    let mut out = String::new();
    for namespace in root.namespaces() {
        // That of XML itself is always there.
        if let Some(name) = namespace.name().filter(|name| *name != "xml") {
            let _ = write!(out, " xmlns:{name}='{}'", escape(namespace.uri()));
        }
    }
    out
}
