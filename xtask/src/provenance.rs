//! Where a result comes from: commit, date, machine.

use std::path::Path;
use std::process::Command;
use std::thread;

use anyhow::{Result, ensure};

use crate::step;
use crate::workspace::Workspace;

/// The end of a commit's name after changes.
const DIRTY: &str = "-dirty";

/// Variables by which git takes another repository than that of its directory.
const PLACE_VARIABLES: [&str; 6] = [
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_WORK_TREE",
];

/// The commit of the sources, with `-dirty` after changes.
pub fn commit(workspace: &Workspace) -> Result<String> {
    let mut git = git(workspace.root());
    git.args([
        "describe",
        "--always",
        "--dirty",
        "--exclude=*",
        "--abbrev=10",
    ]);
    let commit = step::output(&mut git)?;
    Ok(commit.trim().to_owned())
}

/// Git in the repository of a directory. A hook and `git rebase --exec` name another one in the
/// environment.
fn git(directory: &Path) -> Command {
    let mut git = Command::new("git");
    for variable in PLACE_VARIABLES {
        git.env_remove(variable);
    }
    git.current_dir(directory);
    git
}

/// The day, in UTC.
pub fn today() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%d").to_string()
}

/// The number of processors.
pub fn processors() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Refuses a commit whose sources are not in the history of `root`: one with changes, and one that
/// HEAD does not come from.
pub fn check(root: &Path, commit: &str) -> Result<()> {
    ensure!(
        !commit.ends_with(DIRTY),
        "a result of {commit}, of sources with changes: commit them, and run it again"
    );
    let mut git = git(root);
    git.args(["merge-base", "--is-ancestor", commit, "HEAD"]);
    // Git also fails, with a message, for a commit that it does not have.
    let is_ancestor = git.output()?.status.success();
    ensure!(
        is_ancestor,
        "a result of {commit}, which is no ancestor of HEAD: run it again"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_commits_in_the_history_of_head_are_accepted() {
        let place = tempfile::tempdir().unwrap();
        let git = |words: &str| {
            let mut git = git(place.path());
            git.args(["-c", "user.name=a", "-c", "user.email=a@example.org"]);
            git.args(words.split(' '));
            step::output(&mut git).unwrap().trim().to_owned()
        };
        git("init --quiet");
        git("commit --quiet --allow-empty --message=first");
        let first = git("rev-parse --short=10 HEAD");
        git("commit --quiet --allow-empty --message=other");
        let other = git("rev-parse --short=10 HEAD");
        git("reset --quiet --hard HEAD^");
        git("commit --quiet --allow-empty --message=second");
        let second = git("rev-parse --short=10 HEAD");

        let check = |commit: &str| check(place.path(), commit);
        check(&first).unwrap();
        check(&second).unwrap();
        for (commit, reason) in [
            (format!("{second}-dirty"), "of sources with changes"),
            (other, "no ancestor of HEAD"),
            ("0123456789".to_owned(), "no ancestor of HEAD"),
        ] {
            let error = check(&commit).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
