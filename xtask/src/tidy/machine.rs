//! No file may know the machine it was written on.
//!
//! The path of a home directory or the name of a mirror works in one place and fails
//! in a fresh clone elsewhere.

use super::Finding;
use super::tree::Tree;

/// Absolute directories of machines on which people work. Taken apart, because this file is in
/// the tree as well.
const DIRECTORIES: [&str; 2] = [concat!("/wo", "rk/"), concat!("/ro", "ot/")];
/// Programs that run inside the guest, where paths are the guest's own.
const GUEST_DIRECTORY: &str = "crates/testkit/src/guest/";
/// Hosts of registries: which one serves is the machine's own setting.
const HOSTS: [&str; 4] = [
    concat!("deb.debian", ".org"),
    concat!("index.crates", ".io"),
    concat!("static.crates", ".io"),
    concat!("rust-lang/crates.io", "-index"),
];
/// Where the name of the registry is part of the format.
const NAMES_REGISTRY: [&str; 2] = ["Cargo.lock", "deny.toml"];

/// Checks every file that is text.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts("") {
        for (number, line) in (1..).zip(text.lines()) {
            let directory = DIRECTORIES
                .into_iter()
                .find(|directory| has_directory(line, directory));
            if let Some(directory) = directory.filter(|_| !path.starts_with(GUEST_DIRECTORY)) {
                let message = format!("`{directory}` exists on some machines only");
                findings.push(Finding::at_line(path, number, message));
            }
            let host = HOSTS.into_iter().find(|host| line.contains(host));
            if let Some(host) = host.filter(|_| !NAMES_REGISTRY.contains(&path)) {
                let message = format!("`{host}`: which mirror serves is the machine's own setting");
                findings.push(Finding::at_line(path, number, message));
            }
        }
    }
    findings
}

/// Whether the line holds `directory` at the start of a path, not inside one.
fn has_directory(line: &str, directory: &str) -> bool {
    let is_inside = |c: char| c.is_alphanumeric() || "._-*}])>".contains(c);
    line.match_indices(directory)
        .any(|(at, _)| !line[..at].ends_with(is_inside))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<String> {
        let found = check(&Tree::of(&[(path, text)]));
        found.iter().map(Finding::to_string).collect()
    }

    #[test]
    fn directory_of_a_machine_is_found_with_its_line() {
        for directory in DIRECTORIES {
            for text in [
                format!("a\ncd {directory}x"),
                format!("\nlet p = \"{directory}x\";"),
            ] {
                let found = findings("docs/a.md", &text);
                assert_eq!(found.len(), 1, "{text}");
                assert!(found[0].starts_with("docs/a.md:2: "), "{found:?}");
            }
        }
    }

    #[test]
    fn directory_of_the_same_name_inside_a_path_is_fine() {
        for directory in DIRECTORIES {
            for before in ["..", "a", "$LAB", "${LAB}", "*"] {
                assert_eq!(
                    findings("a.sh", &format!("cd {before}{directory}x")),
                    [""; 0]
                );
            }
        }
    }

    #[test]
    fn scripts_of_the_guest_have_paths_of_their_own_and_no_registry() {
        let path = format!("{GUEST_DIRECTORY}init.sh");
        assert_eq!(findings(&path, &format!("cd {}x", DIRECTORIES[1])), [""; 0]);
        assert_eq!(findings(&path, HOSTS[0]).len(), 1);
    }

    #[test]
    fn registry_host_is_found_outside_files_that_name_the_registry() {
        for host in HOSTS {
            let text = format!("see https://{host}/x");
            assert_eq!(findings("README.md", &text).len(), 1, "{host}");
            assert_eq!(findings("deny.toml", &text), [""; 0]);
        }
    }
}
