//! The measured tree.

use extant_testkit::command::{text, tool};
use serde::Serialize;

use crate::product;

/// The commit, and whether the tree differs from it.
#[derive(Clone, Debug, Serialize)]
pub struct Commit {
    /// Its full name; `None` outside a repository.
    pub id: Option<String>,
    /// The tree holds changes that are not committed.
    pub dirty: bool,
}

impl Commit {
    /// The one checked out now.
    pub fn current() -> Self {
        let git = |words: &[&str]| {
            let mut command = tool("git");
            command.arg("-C").arg(product::root()).args(words);
            text(&mut command).ok()
        };
        Self {
            id: git(&["rev-parse", "HEAD"]).map(|id| id.trim().to_owned()),
            dirty: git(&["status", "--porcelain"]).is_some_and(|changes| !changes.is_empty()),
        }
    }

    /// In short, for the printed report.
    pub fn short(&self) -> String {
        let id = match &self.id {
            Some(id) => id.chars().take(10).collect(),
            None => "no commit".to_owned(),
        };
        if self.dirty { id + " and changes" } else { id }
    }
}

/// Now, in UTC, to the second.
pub fn now() -> String {
    let date = text(tool("date").args(["--utc", "+%FT%TZ"]));
    date.map_or_else(|_| String::new(), |date| date.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_form_reports_changes() {
        let id = Some("0123456789abcdef".to_owned());
        let clean = Commit { id, dirty: false };
        assert_eq!(clean.short(), "0123456789");
        let dirty = Commit {
            dirty: true,
            ..clean
        };
        assert_eq!(dirty.short(), "0123456789 and changes");
    }
}
