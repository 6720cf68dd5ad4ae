//! Rules for Rust files: header, name, place among the modules, imports, length, `unsafe`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::Finding;
use super::code::{code_only, line_of, test_modules, words};
use super::tree::Tree;

/// Names that say nothing about the content.
const EMPTY_NAMES: [&str; 4] = ["util", "utils", "misc", "helpers"];
/// Crates whose files at the border to the system, or to C, may hold `unsafe`.
const UNSAFE_CRATES: [&str; 7] = [
    "crates/sys/",
    "crates/ublk/",
    "crates/fuse/",
    "crates/hostfs/",
    "crates/capi/",
    "crates/bench/",
    "crates/rbd/",
];
/// A longer file gets a warning, and one longer than the second limit is an error.
const LINES_LONG: usize = 600;
const LINES_MAX: usize = 900;

/// Checks every Rust file.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let files = tree.texts(".rs");
    let mut findings: Vec<Finding> = files.flat_map(|(path, text)| in_file(path, text)).collect();
    findings.extend(strays(tree));
    findings
}

fn in_file(path: &str, text: &str) -> Vec<Finding> {
    let code = code_only(text);
    let rules = [
        header(path, text),
        name(path),
        glob_import(path, &code),
        length(path, text),
        forbid(path, &code),
        unsafe_word(path, &code),
    ];
    rules.into_iter().flatten().collect()
}

/// Files that grow too long.
pub fn warnings(tree: &Tree) -> Vec<Finding> {
    let long = tree.texts(".rs").filter_map(|(path, text)| {
        let lines = text.lines().count();
        let message = format!("{lines} lines; could it be two files?");
        (lines > LINES_LONG).then(|| Finding::new(path, message))
    });
    long.collect()
}

fn header(path: &str, text: &str) -> Option<Finding> {
    let message = "does not start with `//!`: what is it for?";
    (!text.starts_with("//!")).then(|| Finding::at_line(path, 1, message))
}

fn name(path: &str) -> Option<Finding> {
    let mut parts = path.trim_end_matches(".rs").split('/');
    let empty = parts.find(|part| EMPTY_NAMES.contains(part))?;
    let message = format!("`{empty}` says nothing about what is inside");
    Some(Finding::new(path, message))
}

fn glob_import(path: &str, code: &str) -> Option<Finding> {
    let stem = Path::new(path).file_stem()?.to_str()?;
    let is_test_file = stem == "tests" || stem.ends_with("_tests") || path.contains("/tests/");
    if is_test_file {
        return None;
    }
    let for_tests = test_modules(code);
    let mut globs = code.match_indices("super::*").map(|(at, _)| at);
    let glob = globs.find(|at| !for_tests.iter().any(|range| range.contains(at)))?;
    let message = "`use super::*` outside a test module";
    Some(Finding::at_line(path, line_of(code, glob), message))
}

/// Files that no other one names as its module: they are not compiled.
fn strays(tree: &Tree) -> Vec<Finding> {
    let modules: BTreeSet<PathBuf> = tree
        .texts(".rs")
        .flat_map(|(path, text)| modules_of(Path::new(path), text))
        .collect();
    let paths = tree.texts(".rs").map(|(path, _)| Path::new(path));
    let strays = paths.filter(|path| !is_root(path) && !modules.contains(*path));
    let message = "no file names it as a module";
    strays
        .map(|path| Finding::new(path.to_string_lossy(), message))
        .collect()
}

/// Cargo finds it by itself, or by a line of a manifest.
fn is_root(path: &Path) -> bool {
    let is_named_so = |name: &str| path.file_name().is_some_and(|file| file == name);
    let directory = path.parent().and_then(Path::file_name);
    let is_in = |name: &str| directory.is_some_and(|directory| directory == name);
    let is_in_src = path.iter().any(|part| part == "src");
    ["lib.rs", "main.rs", "build.rs"]
        .into_iter()
        .any(is_named_so)
        || is_in("bin")
        || (!is_in_src && ["tests", "benches", "examples"].into_iter().any(is_in))
}

/// Paths of the files that `text` declares as modules.
fn modules_of(path: &Path, text: &str) -> Vec<PathBuf> {
    let directory = path.parent().unwrap_or(Path::new(""));
    let has_own_directory = !is_root(path) && !path.ends_with("mod.rs");
    let below = if has_own_directory {
        path.with_extension("")
    } else {
        directory.to_owned()
    };
    let mut found = Vec::new();
    for line in text.lines() {
        let line = line.trim();
        if let Some(quoted) = line.strip_prefix("#[path = \"") {
            let name = quoted.split('"').next().unwrap_or_default();
            found.push(directory.join(name));
        }
        let declared = line
            .strip_suffix(';')
            .and_then(|line| line.rsplit_once("mod "));
        if let Some((_, name)) = declared {
            found.push(below.join(format!("{name}.rs")));
            found.push(below.join(name).join("mod.rs"));
        }
    }
    found
}

fn length(path: &str, text: &str) -> Option<Finding> {
    let lines = text.lines().count();
    let message = format!("{lines} lines, more than {LINES_MAX}");
    (lines > LINES_MAX).then(|| Finding::new(path, message))
}

/// The root of a library or program forbids `unsafe`, unless its crate makes system calls.
fn forbid(path: &str, code: &str) -> Option<Finding> {
    let (before, after) = path.split_once("src/")?;
    let is_root = matches!(
        after.split('/').collect::<Vec<_>>()[..],
        ["lib.rs" | "main.rs"] | ["bin", _] | ["bin", _, "main.rs"]
    );
    let is_forbidden = code.contains("#![forbid(unsafe_code)]");
    let message = "lacks `#![forbid(unsafe_code)]`";
    (is_root && !UNSAFE_CRATES.contains(&before) && !is_forbidden)
        .then(|| Finding::at_line(path, 1, message))
}

fn unsafe_word(path: &str, code: &str) -> Option<Finding> {
    let has_calls = path
        .trim_end_matches(".rs")
        .split(['/', '_'])
        .any(|part| part == "sys");
    if has_calls
        && UNSAFE_CRATES
            .iter()
            .any(|directory| path.starts_with(directory))
    {
        return None;
    }
    let (at, _) = words(code).find(|(_, word)| *word == "unsafe")?;
    let message = "`unsafe` outside the files `sys` of a few crates";
    Some(Finding::at_line(path, line_of(code, at), message))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "//! A file.\n";

    fn findings(path: &str, text: &str) -> Vec<String> {
        let found = in_file(path, text);
        found.iter().map(Finding::to_string).collect()
    }

    /// Asserts one finding at `path` that contains `part`.
    fn assert_found(path: &str, text: &str, part: &str) {
        let found = findings(path, text);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with(path) && found[0].contains(part),
            "{found:?}"
        );
    }

    #[test]
    fn missing_header_is_found() {
        assert_found("crates/a/src/b.rs", "use std::fs;\n", "does not start");
        assert_eq!(findings("crates/a/src/b.rs", GOOD), [""; 0]);
    }

    #[test]
    fn empty_name_of_file_or_directory_is_found() {
        assert_found("crates/a/src/util.rs", GOOD, "`util`");
        assert_found("crates/a/src/misc/b.rs", GOOD, "`misc`");
        assert_eq!(findings("crates/a/src/utility.rs", GOOD), [""; 0]);
    }

    #[test]
    fn file_that_no_module_names_is_found() {
        let root = "//! It.\n#![forbid(unsafe_code)]\nmod a;\npub(crate) mod b;\n";
        let tree = [
            ("x/src/lib.rs", root),
            (
                "x/src/a.rs",
                "//! A.\n#[cfg(test)]\nmod tests;\n// mod gone;\n",
            ),
            ("x/src/a/tests.rs", GOOD),
            ("x/src/a/b.rs", GOOD),
            ("x/src/b/mod.rs", "//! B.\nmod c;\nmod d {\n}\n"),
            ("x/src/b/c.rs", GOOD),
            ("x/src/b/d.rs", GOOD),
            (
                "x/tests/t.rs",
                "//! T.\nmod u;\n#[path = \"v/w.rs\"]\nmod w;\n",
            ),
            ("x/tests/u/mod.rs", GOOD),
            ("x/tests/v/w.rs", GOOD),
            ("x/tests/v/z.rs", GOOD),
        ];
        let found = check(&Tree::of(&tree));
        let places: Vec<&str> = found.iter().map(|found| found.place.as_str()).collect();
        assert_eq!(places, ["x/src/a/b.rs", "x/src/b/d.rs", "x/tests/v/z.rs"]);
    }

    #[test]
    fn glob_import_is_found_outside_tests_only() {
        let text = format!("{GOOD}\nuse super::*;\n");
        assert_found("crates/a/src/b.rs", &text, "b.rs:3: `use super::*`");
        assert_eq!(findings("crates/a/src/b/tests.rs", &text), [""; 0]);
        let text = format!("{GOOD}#[cfg(test)]\nmod tests {{\n    use super::*;\n}}\n");
        assert_eq!(findings("crates/a/src/b.rs", &text), [""; 0]);
        let text = format!("{text}mod other {{\n    use super::*;\n}}\n");
        assert_found("crates/a/src/b.rs", &text, "b.rs:7");
    }

    #[test]
    fn long_file_is_warned_of_and_longer_is_found() {
        let lines = |count: usize| GOOD.repeat(count);
        let warned = |count| warnings(&Tree::of(&[("a/b.rs", &lines(count))])).len();
        assert_eq!((warned(LINES_LONG), warned(LINES_LONG + 1)), (0, 1));
        assert_eq!(findings("a/b.rs", &lines(LINES_MAX)), [""; 0]);
        assert_found("a/b.rs", &lines(LINES_MAX + 1), "901 lines");
    }

    #[test]
    fn root_without_forbid_is_found() {
        for path in [
            "crates/space/src/lib.rs",
            "xtask/src/main.rs",
            "crates/cli/src/bin/x.rs",
        ] {
            assert_found(path, GOOD, "lacks `#![forbid(unsafe_code)]`");
            assert_found(
                path,
                &format!("{GOOD}// #![forbid(unsafe_code)]\n"),
                "lacks",
            );
            assert_eq!(
                findings(path, &format!("{GOOD}#![forbid(unsafe_code)]\n")),
                [""; 0]
            );
        }
        assert_eq!(findings("crates/hostfs/src/lib.rs", GOOD), [""; 0]);
        assert_eq!(findings("crates/space/src/size.rs", GOOD), [""; 0]);
    }

    #[test]
    fn unsafe_is_found_outside_system_call_files() {
        let text = format!("{GOOD}\nfn f() {{ unsafe {{ g() }} }}\n");
        for path in [
            "crates/hostfs/src/plan.rs",
            "crates/hostfs/src/system.rs",
            "crates/pool/src/sys.rs",
            "crates/hostfs/tests/plan.rs",
        ] {
            assert_found(path, &text, ":3: `unsafe` outside");
        }
        for path in [
            "hostfs/src/sys.rs",
            "hostfs/src/sys/ring.rs",
            "hostfs/src/ring_sys.rs",
        ] {
            assert_eq!(findings(&format!("crates/{path}"), &text), [""; 0]);
        }
    }

    #[test]
    fn unsafe_in_comment_text_or_longer_word_is_not_found() {
        let text = format!("{GOOD}// unsafe\nfn f() {{ unsafe_g(\"unsafe\") }}\n");
        assert_eq!(findings("crates/hostfs/src/plan.rs", &text), [""; 0]);
    }
}
