//! The symbols of libextant that Debian's package promises, generated from the version script.
//!
//! Each line has a function, its node, and the version of the package that had it first. A line is
//! only ever added: dpkg-gensymbols fails for a library without it, and this rule for a script
//! without it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;

use anyhow::{Context, Result};

use super::Finding;
use super::tree::Tree;
use crate::workspace::Workspace;

const SCRIPT: &str = "crates/capi/libextant.map";
const LIST: &str = "packaging/debian/libextant0.symbols";
const HEAD: &str = "libextant.so.0 libextant0 #MINVER#\n";

/// Compares the list with the version script.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let text = |path: &str| tree.texts(path).next().map(|(_, text)| text);
    let (Some(script), Some(list)) = (text(SCRIPT), text(LIST)) else {
        return Vec::new();
    };
    let symbols = symbols(script);
    let gone = lines(list).filter(|(symbol, _)| !symbols.contains(&(*symbol).to_owned()));
    let mut findings: Vec<_> = gone
        .map(|(symbol, version)| {
            let message = format!(
                "has no {symbol}, which {LIST} promises since {version}: programs need it; before \
                 the first release with it, delete the line"
            );
            Finding::new(SCRIPT, message)
        })
        .collect();
    if list != written(script, list) {
        let message = format!("is not that of {SCRIPT}; run cargo xtask tidy --write");
        findings.push(Finding::new(LIST, message));
    }
    findings
}

/// Adds what is new in the version script to the list.
pub fn write(workspace: &Workspace) -> Result<()> {
    let read = |path: &str| {
        fs::read_to_string(workspace.root().join(path)).with_context(|| path.to_owned())
    };
    let text = written(&read(SCRIPT)?, &read(LIST)?);
    fs::write(workspace.root().join(LIST), text).context(LIST)
}

/// The list with every symbol of the script: those of the list with their versions, others with
/// that of the workspace. What the script has no more stays, at the end.
fn written(script: &str, list: &str) -> String {
    let mut known: BTreeMap<&str, &str> = lines(list).collect();
    let mut text = HEAD.to_owned();
    let mut add = |symbol: &str, version: &str| {
        writeln!(text, " {symbol} {version}").expect("a string takes any text");
    };
    for symbol in symbols(script) {
        let version = known.remove(symbol.as_str());
        add(&symbol, version.unwrap_or(env!("CARGO_PKG_VERSION")));
    }
    for (symbol, version) in known {
        add(symbol, version);
    }
    text
}

/// The symbols of a list, with their versions.
fn lines(list: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = list.lines().filter_map(|line| line.strip_prefix(' '));
    lines.filter_map(|line| line.split_once(' '))
}

/// The symbols of a version script, as `name@node`; the linker makes one of each node too.
fn symbols(script: &str) -> Vec<String> {
    let (mut found, mut node) = (Vec::new(), "");
    for line in script.lines().map(str::trim) {
        if let Some(name) = line.strip_suffix(" {") {
            node = name;
            found.push(format!("{node}@{node}"));
        } else if let Some(name) = line.strip_suffix(';')
            && name.starts_with("extant_")
        {
            found.push(format!("{name}@{node}"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: &str = "/*\n * About a version.\n */\nV_1 {\n    global:\n        extant_a;\n        extant_b;\n    \
                         local:\n        *;\n};\n\nV_2 {\n    global:\n        extant_c;\n} V_1;\n";

    fn found(script: &str, list: &str) -> Vec<String> {
        let findings = check(&Tree::of(&[(SCRIPT, script), (LIST, list)]));
        findings.iter().map(Finding::to_string).collect()
    }

    #[test]
    fn list_keeps_versions_and_gets_new_symbols_with_that_of_the_workspace() {
        let own = env!("CARGO_PKG_VERSION");
        let list = format!("{HEAD} V_1@V_1 0.0.1\n extant_a@V_1 0.0.1\n extant_b@V_1 0.0.2\n");
        let expected = format!("{list} V_2@V_2 {own}\n extant_c@V_2 {own}\n");
        assert_eq!(written(NODES, &list), expected);
        assert_eq!(found(NODES, &expected), [""; 0]);
        let missing = found(NODES, &list);
        assert_eq!(missing.len(), 1, "{missing:?}");
        assert!(missing[0].starts_with(LIST), "{missing:?}");
    }

    #[test]
    fn promised_function_that_the_script_lost_or_moved_is_found() {
        let list = written(NODES, HEAD);
        let lost = found(&NODES.replace("        extant_b;\n", ""), &list);
        assert!(lost[0].starts_with(SCRIPT), "{lost:?}");
        assert!(lost[0].contains("has no extant_b@V_1"), "{lost:?}");
        let moved = NODES.replace("        extant_b;\n", "");
        let moved = moved.replace("extant_c;", "extant_b;\n        extant_c;");
        assert!(found(&moved, &list)[0].contains("has no extant_b@V_1"));
    }

    #[test]
    fn pattern_instead_of_symbols_is_found() {
        let list = format!("{HEAD} (symver|optional)V_1 0.1.0\n");
        assert!(!found(NODES, &list).is_empty());
    }

    #[test]
    fn list_of_the_package_is_that_of_the_script() {
        let workspace = Workspace::find().unwrap();
        let tree = Tree::read(workspace.root()).unwrap();
        assert!(tree.has(SCRIPT) && tree.has(LIST));
        assert_eq!(check(&tree), []);
    }
}
