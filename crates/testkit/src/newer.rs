//! util-linux's `fallocate` as of 2.42, the first with `--write-zeroes`.
//!
//! If the distribution has an older one, the packages of Debian's unstable suite are unpacked into
//! a directory ([`lab`]) and the program is run by their own loader, so that neither apt nor the C
//! library of the machine changes.

use std::process::Command;

use crate::command::text;
use crate::debian::Apt;
use crate::lab::{self, Recipe, Result, foreign};
use crate::requires::Requirement;

const SUITE: &str = "sid";
const PACKAGES: [&str; 2] = ["util-linux", "libc6"];
const PROGRAM: &str = "usr/bin/fallocate";

/// Fetches it, unless that was done before: some 15 MB, most of it package lists.
pub fn prepare() -> Result<()> {
    recipe().prepare(|directory| {
        let lists = directory.join("apt");
        let apt = Apt::new(lists.clone(), &[SUITE])?;
        let root = directory.join("root");
        apt.unpack(&PACKAGES.map(String::from), SUITE, &root)?;
        std::fs::remove_dir_all(lists)?;

        let help = text(foreign(&root, PROGRAM)?.arg("--help"))?;
        if !help.contains("--write-zeroes") {
            return Err("this fallocate has no --write-zeroes".into());
        }
        Ok(())
    })
}

/// For [`require!`](crate::require): it was prepared.
pub fn requirement() -> Requirement {
    Requirement::new(
        "fallocate of util-linux 2.42 (oracles prepare)",
        recipe().is_ready(),
    )
}

/// The program, fetched first where need be. Messages are in English and begin with
/// `fallocate:`, as those of an installed one.
///
/// # Panics
/// When it cannot be fetched.
#[track_caller]
pub fn fallocate() -> Command {
    prepare()
        .and_then(|()| foreign(&recipe().directory.join("root"), PROGRAM))
        .unwrap_or_else(|error| panic!("newer fallocate: {error}"))
}

fn recipe() -> Recipe {
    Recipe {
        directory: lab::directory().join("newer"),
        version: "1: util-linux libc6",
    }
}
