//! The interface of the shared library: the header, the version script and the symbols are one
//! list.

use std::collections::BTreeMap;

use extant_testkit::command::{must, tool};
use extant_testkit::{require, requires};

use crate::library::{SONAME, link, root};

/// Functions and the version in which each came.
type Interface = BTreeMap<String, String>;

/// Those of `libextant.map`.
fn listed() -> Interface {
    let script = std::fs::read_to_string(root().join("libextant.map")).unwrap();
    let (mut found, mut node) = (Interface::new(), String::new());
    for line in script.lines().map(str::trim) {
        if let Some(name) = line.strip_suffix(" {") {
            node = name.to_owned();
        } else if let Some(name) = line.strip_suffix(';')
            && name.starts_with("extant_")
        {
            let before = found.insert(name.to_owned(), node.clone());
            assert_eq!(before, None, "{name} is listed twice");
        }
    }
    found
}

/// The functions that the header declares or has inline.
fn declared() -> Vec<String> {
    let header = std::fs::read_to_string(root().join("include/extant.h")).unwrap();
    let code: String = header
        .split("/*")
        .map(|part| part.split_once("*/").map_or(part, |(_, code)| code))
        .collect();
    let calls = code.match_indices('(').filter_map(|(at, _)| {
        let before = &code[..at];
        let begin = before.rfind(|c: char| !c.is_ascii_alphanumeric() && c != '_')? + 1;
        before[begin..]
            .starts_with("extant_")
            .then(|| before[begin..].to_owned())
    });
    let mut names: Vec<String> = calls.collect();
    names.sort();
    // Inline functions call others.
    names.dedup();
    names
}

#[test]
fn header_declares_the_functions_of_the_version_script() {
    let listed: Vec<String> = listed().into_keys().collect();
    assert_eq!(declared(), listed);
}

#[test]
fn shared_library_has_the_functions_of_the_version_script_at_their_versions_and_no_others() {
    require!(requires::tool("cc"), requires::tool("objdump"));
    let place = tempfile::tempdir().unwrap();
    let library = link(place.path());
    let output = must(tool("objdump").arg("-T").arg(&library));
    let mut found = Interface::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        // Imports, and the names of the versions.
        if let [.., section, _, version, name] = words[..]
            && words[1].starts_with('g')
            && section != "*UND*"
            && section != "*ABS*"
        {
            found.insert(name.to_owned(), version.to_owned());
        }
    }
    assert_eq!(found, listed());
    let dynamic = must(tool("objdump").arg("-p").arg(&library));
    let dynamic = String::from_utf8(dynamic.stdout).unwrap();
    assert!(
        dynamic
            .lines()
            .any(|line| line.split_whitespace().eq(["SONAME", SONAME])),
        "{dynamic}"
    );
}
