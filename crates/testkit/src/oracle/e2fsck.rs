//! `e2fsck`: whether an ext2, ext3 or ext4 file system is consistent.

use std::path::Path;

use crate::command::{self, tool};

/// The verdict of `e2fsck -fn`.
#[derive(Clone, Debug)]
pub struct E2fsck {
    /// Nothing to repair.
    pub is_clean: bool,
    /// The command, its status and all it printed.
    pub report: String,
}

/// Checks the file system on `device`, a node or a file, without changing it. It must not be
/// mounted, or mounted and frozen or synced: state that is only in memory is not checked.
///
/// # Panics
/// When e2fsck cannot be run, or ends in another way than with a verdict.
#[track_caller]
pub fn e2fsck(device: &Path) -> E2fsck {
    let mut command = tool("e2fsck");
    command.args(["-f", "-n"]).arg(device);
    let output = command::run_any_status(&mut command).unwrap_or_else(|error| panic!("{error}"));
    let report = format!(
        "`{}`: {}",
        command::line(&command),
        command::describe(&output)
    );
    match output.status.code() {
        Some(0) => E2fsck {
            is_clean: true,
            report,
        },
        // 4: errors left uncorrected, as always with -n. 8 with it: so bad that it gave up.
        Some(code) if code & 4 != 0 => E2fsck {
            is_clean: false,
            report,
        },
        _ => panic!("{report}"),
    }
}

/// Checks as [`e2fsck`] does.
///
/// # Panics
/// With the report when it is not clean.
#[track_caller]
pub fn assert_e2fsck_clean(device: &Path) {
    let verdict = e2fsck(device);
    assert!(verdict.is_clean, "{}", verdict.report);
}
