//! The files of the tree, read once.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// A file of the tree.
pub struct File {
    /// From the root of the tree, with `/`.
    pub path: String,
    /// Its text; `None` when it is not UTF-8, as pictures are not.
    pub text: Option<String>,
}

/// Every file that is committed or about to be, in the order of their paths.
pub struct Tree {
    files: Vec<File>,
}

impl Tree {
    /// Reads the tree at `root`.
    pub fn read(root: &Path) -> Result<Self> {
        let paths = match listed_by_git(root) {
            Some(paths) => paths,
            None => walked(root)?,
        };
        let mut files = Vec::new();
        for path in paths {
            // Git lists links to directories and files that were just deleted.
            if !root.join(&path).is_file() {
                continue;
            }
            let bytes =
                fs::read(root.join(&path)).with_context(|| format!("{}", path.display()))?;
            files.push(File {
                path: path.to_string_lossy().into_owned(),
                text: String::from_utf8(bytes).ok(),
            });
        }
        Ok(Self { files })
    }

    /// The paths and texts of files whose name ends in `suffix`.
    pub fn texts(&self, suffix: &str) -> impl Iterator<Item = (&str, &str)> {
        let chosen = self
            .files
            .iter()
            .filter(move |file| file.path.ends_with(suffix));
        chosen.filter_map(|file| Some((file.path.as_str(), file.text.as_deref()?)))
    }

    /// Whether the path of some file ends with the components of `end`.
    pub fn has_end(&self, end: &str) -> bool {
        let inside = format!("/{end}");
        let mut paths = self.files.iter().map(|file| &file.path);
        paths.any(|path| path == end || path.ends_with(&inside))
    }

    /// Whether there is a file or a directory at `path`.
    pub fn has(&self, path: &str) -> bool {
        let directory = format!("{path}/");
        path.is_empty()
            || self
                .files
                .iter()
                .any(|file| file.path == path || file.path.starts_with(&directory))
    }

    /// A made-up tree.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Self {
        let files = files.iter().map(|(path, text)| File {
            path: (*path).into(),
            text: Some((*text).into()),
        });
        Self {
            files: files.collect(),
        }
    }
}

/// `None` where there is no git or no repository, as in an unpacked archive.
fn listed_by_git(root: &Path) -> Option<BTreeSet<PathBuf>> {
    let mut git = Command::new("git");
    git.args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]);
    let output = git.current_dir(root).output().ok()?;
    let paths = output.stdout.split(|byte| *byte == 0);
    let paths: BTreeSet<_> = paths
        .filter(|path| !path.is_empty())
        .map(|path| PathBuf::from(OsStr::from_bytes(path)))
        .collect();
    (output.status.success() && !paths.is_empty()).then_some(paths)
}

/// Every file outside `target` and `.git`.
fn walked(root: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    let mut directories = vec![PathBuf::new()];
    while let Some(directory) = directories.pop() {
        let shown = root.join(&directory);
        let entries = fs::read_dir(&shown).with_context(|| format!("{}", shown.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("{}", shown.display()))?;
            let path = directory.join(entry.file_name());
            let skipped = path == Path::new("target") || entry.file_name() == ".git";
            if entry.file_type()?.is_dir() {
                if !skipped {
                    directories.push(path);
                }
            } else if !skipped {
                found.insert(path);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walk_leaves_out_build_artefacts() {
        let root = std::env::temp_dir().join(format!("extant-tidy-{}", std::process::id()));
        for directory in ["target", "src/target", ".git"] {
            fs::create_dir_all(root.join(directory)).unwrap();
            fs::write(root.join(directory).join("file"), "x").unwrap();
        }
        let found = walked(&root).unwrap();
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(found, BTreeSet::from([PathBuf::from("src/target/file")]));
    }

    #[test]
    fn tree_has_directories_of_its_files() {
        let tree = Tree::of(&[("docs/a.md", "")]);
        assert!(tree.has("docs/a.md") && tree.has("docs") && tree.has(""));
        assert!(!tree.has("doc") && !tree.has("a.md"));
    }
}
