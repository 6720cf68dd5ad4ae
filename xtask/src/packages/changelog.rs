//! The maintainer and the date of packages, and the changelog that Debian's tools require.
//!
//! The maintainer is `DEBFULLNAME <DEBEMAIL>`, as for Debian's tools, or the author of the last
//! commit. The date is that of the last commit ([`reproducible::epoch`]).

use std::env;
use std::process::Command;

use anyhow::Result;

use crate::workspace::Workspace;
use crate::{reproducible, step};

/// Maintainer and date.
pub struct Changelog {
    pub maintainer: String,
    /// Seconds since 1970.
    epoch: String,
}

impl Changelog {
    /// That of the last commit.
    pub fn of(workspace: &Workspace) -> Result<Self> {
        let maintainer = match (env::var("DEBFULLNAME"), env::var("DEBEMAIL")) {
            (Ok(name), Ok(address)) => format!("{name} <{address}>"),
            _ => {
                let mut git = Command::new("git");
                git.args(["log", "-1", "--format=%an <%ae>"]);
                let author = step::output(git.current_dir(workspace.root()))?;
                author.trim().to_owned()
            }
        };
        let epoch = reproducible::epoch(workspace)?;
        Ok(Self { maintainer, epoch })
    }

    /// The date in a format of date(1).
    pub fn date(&self, format: &str) -> Result<String> {
        let mut date = Command::new("date");
        date.args(["--utc", "--date", &format!("@{}", self.epoch), format]);
        Ok(step::output(date.env("LC_ALL", "C"))?.trim().to_owned())
    }

    /// `debian/changelog`; the changes themselves are in CHANGELOG.md, which is packaged as well.
    pub fn debian(&self, version: &str) -> Result<String> {
        let maintainer = &self.maintainer;
        let date = self.date("+%a, %d %b %Y %H:%M:%S %z")?;
        Ok(format!(
            "extant ({version}-1) unstable; urgency=medium\n\n  \
             * Version {version}; changelog.gz lists its changes.\n\n \
             -- {maintainer}  {date}\n"
        ))
    }
}
