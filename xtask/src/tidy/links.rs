//! Rules for documents: links lead somewhere, and every document is linked.
//!
//! Comments in Rust files count too where they name a document by its path
//! from the root, as module headers do, and source files that documents name
//! in code, by the end of their path.

use super::Finding;
use super::tree::Tree;

/// A link in a document.
struct Link<'a> {
    line: usize,
    target: &'a str,
}

/// Checks every document, and the comments that name one.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut linked = Vec::new();
    for (path, text) in tree.texts(".md") {
        for Link { line, target } in links(text) {
            let Some(target) = file_of(target) else {
                continue;
            };
            match resolve(path, target) {
                Some(found) if tree.has(&found) => {
                    if found != path {
                        linked.push(found);
                    }
                }
                _ => findings.push(Finding::at_line(path, line, format!("no file {target}"))),
            }
        }
        if path.starts_with("docs/") {
            findings.extend(missing_sources(tree, path, text));
        }
    }
    for (path, _) in tree.texts(".md") {
        if path.starts_with("docs/") && !linked.iter().any(|target| target == path) {
            findings.push(Finding::new(path, "no other document links here"));
        }
    }
    for (path, text) in tree.texts(".rs") {
        findings.extend(comments_naming_nothing(tree, path, text));
    }
    findings
}

fn missing_sources(tree: &Tree, path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for code in line.split('`').skip(1).step_by(2) {
            let is_name = code.len() > ".rs".len() && !code.contains(['*', '{', ' ']);
            if is_name && code.ends_with(".rs") && !tree.has_end(code) {
                findings.push(Finding::at_line(path, number, format!("no file {code}")));
            }
        }
    }
    findings
}

/// Links in both notations, and those of HTML; none in code.
fn links(text: &str) -> Vec<Link<'_>> {
    let mut found = Vec::new();
    let mut fence = None;
    for (line, words) in (1..).zip(text.lines()) {
        let start = words.trim_start();
        let mark = ["```", "~~~"]
            .into_iter()
            .find(|mark| start.starts_with(mark));
        match (fence, mark) {
            (None, Some(_)) => fence = mark,
            (Some(open), Some(mark)) if open == mark => fence = None,
            (Some(_), _) => {}
            (None, None) => {
                let targets = targets(words).into_iter();
                found.extend(targets.map(|target| Link { line, target }));
            }
        }
    }
    found
}

/// The targets of the links on one line.
fn targets(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (opening, closing) in [("](", ')'), ("src=\"", '"'), ("href=\"", '"')] {
        for (at, _) in line.match_indices(opening) {
            let is_code = line[..at].matches('`').count() % 2 == 1;
            let target = line[at + opening.len()..].split(closing).next();
            if !is_code {
                // A title may follow the target.
                found.extend(target.and_then(|target| target.split_whitespace().next()));
            }
        }
    }
    if line.starts_with('[') {
        let definition = line.split_once("]: ").map(|(_, target)| target.trim());
        found.extend(definition);
    }
    found
}

/// The part of a target that names a file; `None` for places elsewhere and in the same document.
fn file_of(target: &str) -> Option<&str> {
    let target = target.trim_start_matches('<').trim_end_matches('>');
    let file = target.split(['#', '?']).next()?;
    let is_elsewhere = target.contains("://") || target.starts_with("mailto:");
    (!is_elsewhere && !file.is_empty()).then_some(file)
}

/// The path from the root of the link `target` in `from`; `None` outside the tree.
fn resolve(from: &str, target: &str) -> Option<String> {
    let mut parts: Vec<_> = match target.strip_prefix('/') {
        Some(_) => Vec::new(),
        None => from.split('/').rev().skip(1).collect::<Vec<_>>(),
    };
    parts.reverse();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

fn comments_naming_nothing(tree: &Tree, path: &str, text: &str) -> Vec<Finding> {
    let is_path = |c: char| c.is_alphanumeric() || "/_.-".contains(c);
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if !line.trim_start().starts_with("//") {
            continue;
        }
        for word in line.split(|c| !is_path(c)) {
            let word = word.trim_end_matches('.');
            if word.starts_with("docs/") && word.ends_with(".md") && !tree.has(word) {
                findings.push(Finding::at_line(path, number, format!("no file {word}")));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let found = check(&Tree::of(files));
        found.iter().map(Finding::to_string).collect()
    }

    #[test]
    fn link_to_nothing_is_found_in_each_notation() {
        for link in [
            "see [x](no.md)",
            "see ![x](no.md \"title\")",
            "[a](docs) [x](no.md#part)",
            "[x]: no.md",
            "<img src=\"no.md\">",
        ] {
            let found = findings(&[("README.md", &format!("\n{link}")), ("docs/a.txt", "")]);
            assert_eq!(found, ["README.md:2: no file no.md"], "{link}");
        }
    }

    #[test]
    fn link_is_taken_from_the_directory_of_its_document() {
        let with = |text: &str| {
            let files = [
                ("README.md", "[a](docs/a.md)"),
                ("docs/a.md", text),
                ("docs/x.svg", ""),
            ];
            findings(&files)
        };
        assert_eq!(
            with("[x](x.svg) [r](../README.md) [d](../docs/) [a](/docs/a.md)"),
            [""; 0]
        );
        assert_eq!(with("[x](docs/x.svg)").len(), 1);
        assert_eq!(with("[x](../../README.md)").len(), 1, "outside the tree");
    }

    #[test]
    fn links_elsewhere_and_in_code_are_not_followed() {
        let text = "[a](https://x.org/no.md) [b](#part) `[c](no.md)`\n```\n[d](no.md)\n```\n";
        assert_eq!(findings(&[("README.md", text)]), [""; 0]);
    }

    #[test]
    fn link_after_code_is_followed() {
        let text = "```sh\nx\n```\n`a` [d](no.md)\n";
        assert_eq!(
            findings(&[("README.md", text)]),
            ["README.md:4: no file no.md"]
        );
    }

    #[test]
    fn document_without_link_from_another_is_found() {
        let files = [("README.md", ""), ("docs/formats/a.md", "[me](a.md)")];
        assert_eq!(
            findings(&files),
            ["docs/formats/a.md: no other document links here"]
        );
    }

    #[test]
    fn comment_naming_no_document_is_found() {
        let text = "//! Format: docs/no.md, \"Bits\".\nlet path = \"docs/no.md\";\n";
        assert_eq!(findings(&[("a.rs", text)]), ["a.rs:1: no file docs/no.md"]);
    }

    #[test]
    fn source_file_that_a_document_names_must_exist() {
        let text = "\n`a.rs`, `src/a.rs`, `b.rs`, `b/a.rs`, `*.rs`, `.rs`\n";
        assert_eq!(
            findings(&[
                ("README.md", "[x](docs/x.md)"),
                ("docs/x.md", text),
                ("crates/c/src/a.rs", "")
            ]),
            ["docs/x.md:2: no file b.rs", "docs/x.md:2: no file b/a.rs"]
        );
    }
}
