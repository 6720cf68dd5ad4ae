//! The layer check inside crates: imports between top-level modules point down.
//!
//! Every crate with modules declares its layers in the documentation of its `lib.rs`: a line
//! `//! Module layers, lowest first:` followed by a numbered list, whose items name modules in
//! backticks before a colon. Every top-level module is in exactly one item. A module may import
//! from modules of lower items; modules of one item may import each other without a cycle.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::code::{code_only, test_modules, words};
use super::tree::Tree;

const HEADING: &str = "//! Module layers, lowest first:";

/// Checks every crate that has modules.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let roots = tree.texts("src/lib.rs").chain(tree.texts("src/main.rs"));
    roots
        .flat_map(|(path, text)| check_crate(tree, path, text))
        .collect()
}

fn check_crate(tree: &Tree, root: &str, text: &str) -> Vec<Finding> {
    let layers = declared_layers(text);
    let code = production_code(text);
    let modules = declared_modules(&code);
    let mut findings = Vec::new();
    for module in modules
        .iter()
        .filter(|module| !layers.contains_key(module.as_str()))
    {
        findings.push(Finding::new(
            root,
            format!("module {module} is in no layer"),
        ));
    }
    for name in layers.keys().filter(|name| !modules.contains(**name)) {
        findings.push(Finding::new(
            root,
            format!("the layers name {name}, which is no module"),
        ));
    }

    let exports = exports(&code, &modules);
    let directory = root.rsplit_once('/').map_or("", |(directory, _)| directory);
    let mut graph: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (path, text) in tree.texts(".rs") {
        let Some(inner) = path
            .strip_prefix(directory)
            .and_then(|path| path.strip_prefix('/'))
        else {
            continue;
        };
        let own = inner.split(['/', '.']).next().unwrap_or_default();
        let Some(own) = modules.get(own) else {
            continue;
        };
        for name in imports(&production_code(text), depth(inner)) {
            let Some(used) = modules.get(&name).or_else(|| exports.get(&name).copied()) else {
                continue;
            };
            if used == own {
                continue;
            }
            graph.entry(own).or_default().insert(used);
            if layers.get(used.as_str()) > layers.get(own.as_str()) {
                let message = format!("{own} imports {used}, which is a higher layer");
                findings.push(Finding::new(path, message));
            }
        }
    }
    findings.extend(cycles(&graph).map(|modules| {
        Finding::new(
            root,
            format!("modules import each other: {}", modules.join(", ")),
        )
    }));
    findings
}

/// Modules with the number of their layer.
fn declared_layers(text: &str) -> BTreeMap<&str, usize> {
    let list = text.lines().skip_while(|line| *line != HEADING).skip(1);
    let mut layers = BTreeMap::new();
    let mut layer = 0;
    let mut has_names = false;
    let lines = list.map_while(|line| line.strip_prefix("//!"));
    for line in lines
        .skip_while(|line| line.is_empty())
        .take_while(|line| !line.is_empty())
    {
        let mut line = line.trim_start();
        let item = line
            .split_once(". ")
            .filter(|(number, _)| number.parse::<usize>().is_ok());
        if let Some((_, item)) = item {
            line = item;
            layer += 1;
            has_names = true;
        }
        // The names extend to the colon, over several lines if necessary.
        if has_names {
            let names = match line.split_once("`:") {
                Some((names, _)) => {
                    has_names = false;
                    names
                }
                None => line,
            };
            let names = names.split(['`', ',', ' ']).filter(|name| !name.is_empty());
            layers.extend(names.map(|name| (name, layer)));
        }
    }
    layers
}

/// Code that is compiled outside tests.
fn production_code(text: &str) -> String {
    let code = code_only(text);
    let mut production = String::with_capacity(code.len());
    let mut at = 0;
    for range in test_modules(&code) {
        if range.start >= at {
            production.push_str(&code[at..range.start]);
            at = range.end;
        }
    }
    production.push_str(&code[at..]);
    production
}

/// Names after `mod`, also of modules for tests: their files are found and left out by this.
fn declared_modules(code: &str) -> BTreeSet<String> {
    let mut modules = BTreeSet::new();
    let mut words = words(code).peekable();
    while let Some((at, word)) = words.next() {
        let preceded_by_test = code[..at].trim_end().ends_with("#[cfg(test)]");
        if word == "mod"
            && !preceded_by_test
            && let Some((_, name)) = words.peek()
        {
            modules.insert((*name).to_owned());
        }
    }
    modules
}

/// Re-exports of the crate's root, with the module of each.
fn exports<'a>(code: &str, modules: &'a BTreeSet<String>) -> BTreeMap<String, &'a String> {
    let mut found = BTreeMap::new();
    for (at, _) in code.match_indices("use ") {
        let Some(statement) = code[at + 4..].split(';').next() else {
            continue;
        };
        let path = statement.strip_prefix("crate::").unwrap_or(statement);
        let mut names = words(path).map(|(_, name)| name);
        if let Some(module) = names.next().and_then(|first| modules.get(first)) {
            found.extend(names.map(|name| (name.to_owned(), module)));
        }
    }
    found
}

/// How many modules a file is below the crate's root.
fn depth(inner: &str) -> usize {
    let directories = inner.matches('/').count();
    directories + usize::from(!inner.ends_with("/mod.rs"))
}

/// First names of paths that begin at the crate's root, as `crate::` or as enough `super::`.
fn imports(code: &str, depth: usize) -> Vec<String> {
    let from_root = "super::".repeat(depth);
    let mut found = Vec::new();
    for prefix in ["crate::", &from_root] {
        for (at, _) in code.match_indices(prefix) {
            let before = &code[..at];
            let is_longer = before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
            if !is_longer {
                found.extend(first_names(&code[at + prefix.len()..]));
            }
        }
    }
    found
}

/// The first name of a path, or of each path in braces.
fn first_names(path: &str) -> Vec<String> {
    let first = |text: &str| words(text).next().map(|(_, name)| name.to_owned());
    let Some(group) = path.strip_prefix('{') else {
        return first(path).into_iter().collect();
    };
    let (mut names, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            ',' | '}' if depth == 0 => {
                names.extend(first(&group[start..at]));
                start = at + 1;
                if c == '}' {
                    break;
                }
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    names
}

/// Groups of modules that reach each other.
fn cycles<'a>(
    graph: &BTreeMap<&'a str, BTreeSet<&'a str>>,
) -> impl Iterator<Item = Vec<&'a str>> + use<'a> {
    let reach = |from: &'a str| {
        let mut reached = BTreeSet::new();
        let mut next = vec![from];
        while let Some(module) = next.pop() {
            for used in graph.get(module).into_iter().flatten() {
                if reached.insert(*used) {
                    next.push(used);
                }
            }
        }
        reached
    };
    let reached: BTreeMap<_, _> = graph
        .keys()
        .map(|module| (*module, reach(module)))
        .collect();
    let mut groups = BTreeSet::new();
    for (module, others) in &reached {
        let back = |other: &&&str| reached.get(**other).is_some_and(|set| set.contains(module));
        let group: Vec<_> = others.iter().filter(back).copied().collect();
        if !group.is_empty() {
            groups.insert(group);
        }
    }
    groups.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "//! A crate.\n//!\n//! Module layers, lowest first:\n//!\n\
        //! 1. `low`: what\n//!    `high` is built on\n//! 2. `high`,\n//!    `beside`: \
        the rest\n\n\
        mod beside;\nmod high;\nmod low;\npub use high::{Top, Other as Second};\n";

    fn messages(files: &[(&str, &str)]) -> Vec<String> {
        let mut all = vec![("crates/a/src/lib.rs", ROOT)];
        all.extend(files);
        check(&Tree::of(&all))
            .iter()
            .map(Finding::to_string)
            .collect()
    }

    #[test]
    fn imports_down_and_aside_and_in_tests_are_allowed() {
        let found = messages(&[
            (
                "crates/a/src/high.rs",
                "use crate::low::X; use crate::beside;",
            ),
            (
                "crates/a/src/high/part.rs",
                "use super::super::low; use super::low;",
            ),
            (
                "crates/a/src/low.rs",
                "// crate::high\n#[cfg(test)]\nmod tests { use crate::high; }",
            ),
            ("crates/a/src/tests.rs", "use crate::{high, low};"),
            ("crates/b/src/low.rs", "use crate::high;"),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn import_up_is_found_in_each_notation() {
        for import in [
            "use crate::high::Top;",
            "use super::high;",
            "use crate::{low::{a, b}, high::c};",
            "use crate::Top;",
            "use crate::Second;",
            "fn f() -> crate::high::Top {}",
        ] {
            let found = messages(&[("crates/a/src/low.rs", import)]);
            let expected = "crates/a/src/low.rs: low imports high, which is a higher layer";
            assert_eq!(found, [expected], "{import}");
        }
    }

    #[test]
    fn cycle_in_a_layer_is_found() {
        let found = messages(&[
            ("crates/a/src/high.rs", "use crate::beside;"),
            ("crates/a/src/beside/mod.rs", "use super::high;"),
        ]);
        let expected = "crates/a/src/lib.rs: modules import each other: beside, high";
        assert_eq!(found, [expected]);
    }

    #[test]
    fn module_outside_the_list_and_name_of_no_module_are_found() {
        let root = ROOT.replace("mod beside;", "mod new;");
        let found = check(&Tree::of(&[("crates/a/src/lib.rs", &root)]));
        let found: Vec<_> = found.iter().map(Finding::to_string).collect();
        assert_eq!(
            found,
            [
                "crates/a/src/lib.rs: module new is in no layer",
                "crates/a/src/lib.rs: the layers name beside, which is no module",
            ]
        );
    }
}
