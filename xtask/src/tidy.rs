//! `cargo xtask tidy`: the house rules that a program can check.
//!
//! Each rule is a function from the text of the tree to findings, so that each
//! is tested on a small made-up tree that breaks it. Which rules there are and
//! why: CONTRIBUTING.md, "House rules".

mod code;
mod diagram;
mod language;
mod layers;
mod links;
mod machine;
mod modules;
mod sources;
mod symbols;
mod tree;

use std::fmt;

use anyhow::{Result, bail};

use crate::step;
use crate::workspace::Workspace;
use tree::Tree;

/// One breach of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    /// A path, with a line after a colon where there is one; or an arrow between crates.
    place: String,
    message: String,
}

impl Finding {
    fn new(place: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            place: place.into(),
            message: message.into(),
        }
    }

    fn at_line(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self::new(format!("{path}:{line}"), message)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

/// Writes what is generated: the layer diagram, and the symbols of Debian's package of libextant.
pub fn write(workspace: &Workspace) -> Result<()> {
    diagram::write(workspace)?;
    symbols::write(workspace)
}

/// Checks the format, the layers, the files and the documents; shows all there is to mend.
pub fn run(workspace: &Workspace) -> Result<()> {
    step::heading("format");
    let format = step::run(&mut workspace.cargo(&["fmt", "--all", "--check"]));

    step::heading("layers and house rules");
    let metadata = workspace.metadata()?;
    let mut findings = layers::check(&metadata)?;
    findings.extend(layers::unused(&metadata)?);
    let tree = Tree::read(workspace.root())?;
    for warning in sources::warnings(&tree) {
        eprintln!("warning: {warning}");
    }
    for rule in [
        sources::check,
        machine::check,
        links::check,
        modules::check,
        diagram::check,
        symbols::check,
        language::check,
    ] {
        findings.extend(rule(&tree));
    }
    for finding in &findings {
        eprintln!("error: {finding}");
    }
    let broken = match findings.len() {
        0 => return format,
        1 => "a house rule is broken".to_owned(),
        count => format!("house rules are broken in {count} places"),
    };
    match format {
        Ok(()) => bail!(broken),
        Err(error) => bail!("{error:#}; {broken}"),
    }
}
