//! `cargo xtask dist`: everything that users get, in parts.

use anyhow::Result;

use crate::dist::{self, Build};
use crate::workspace::Workspace;
use crate::{oci, packages, static_program, wheel};

/// How the parts are made.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Of the packages and the wheel.
    pub build: Build,
    /// Whether packages are then installed, used and removed in clean systems.
    pub check: bool,
}

/// A part's name and work.
type Part = (&'static str, fn(&Workspace, Options) -> Result<()>);

const PARTS: [Part; 5] = [
    ("files", |workspace, _| dist::files(workspace)),
    ("static", |workspace, _| static_program::write(workspace)),
    ("image", |workspace, _| oci::write(workspace)),
    ("packages", |workspace, options| {
        packages::write(workspace, options.build)?;
        if options.check {
            packages::check::run(workspace, options.build)?;
        }
        Ok(())
    }),
    ("wheel", |workspace, options| {
        let library = dist::build_library(workspace, options.build)?;
        wheel::write(workspace, &library)
    }),
];

/// The names of the parts, in their order.
pub fn names() -> impl Iterator<Item = &'static str> {
    PARTS.iter().map(|(name, _)| *name)
}

/// Makes the named parts, or all.
pub fn run(workspace: &Workspace, only: &[String], options: Options) -> Result<()> {
    let is_wanted = |(name, _): &&Part| only.is_empty() || only.iter().any(|part| part == name);
    PARTS
        .iter()
        .filter(is_wanted)
        .try_for_each(|(_, make)| make(workspace, options))
}
