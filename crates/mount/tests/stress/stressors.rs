//! The file system stressors of stress-ng, which verify their results.
//!
//! Those that the kernel's ext4 passes, but for some:
//! - `file-ioctl` compares `FIOQSIZE` with the size of a file; for FUSE the kernel answers with its
//!   last known block count;
//! - `fanotify`, `io` (which calls `sync(2)`), `bind-mount` and `binderfs` reach for all file
//!   systems of the machine;
//! - those that do not touch their directory.

use extant_testkit::command::{run, tool};
use extant_testkit::fuse_rings;
use extant_testkit::oracle::assert_e2fsck_clean;
use extant_testkit::{require, requires};

use crate::factor;
use crate::server::{Ground, Served, can_mount};

const STRESSORS: [&str; 44] = [
    "access",
    "aio",
    "chattr",
    "chdir",
    "chmod",
    "chown",
    "copy-file",
    "dentry",
    "dir",
    "dirdeep",
    "dirmany",
    "dnotify",
    "dup",
    "fallocate",
    "fcntl",
    "fiemap",
    "filename",
    "flock",
    "fpunch",
    "fsize",
    "fstat",
    "getdent",
    "handle",
    "hdd",
    "inode-flags",
    "inotify",
    "lease",
    "locka",
    "lockf",
    "lockofd",
    "mknod",
    "mmap",
    "mmapmany",
    "msync",
    "open",
    "readahead",
    "rename",
    "revio",
    "seek",
    "sendfile",
    "splice",
    "touch",
    "utime",
    "xattr",
];
/// These make thousands of names before they check the time.
const LONG_STRESSORS: [&str; 3] = ["link", "symlink", "mmapfork"];

/// Maximum of operations of a stressor, times the factor.
const OPERATIONS: u32 = 30;
/// Its instances share a directory, which the first to end removes under another that starts.
const ALONE: &str = "fcntl";
const SECONDS: u32 = 1;

fn stress(options: &str) {
    require!(can_mount(), requires::tool("stress-ng"));
    let ground = Ground::new(512);
    let served = Served::new(&ground.image, &ground.place, options);
    let factor = factor();
    let long: &[&str] = match factor {
        1 => &[],
        _ => &LONG_STRESSORS,
    };
    let mut failures = Vec::new();
    for name in STRESSORS.iter().chain(long) {
        let instances = if *name == ALONE { 1 } else { 2 };
        let result = run(tool("stress-ng")
            .current_dir(served.path())
            .args(["--verify", "--quiet", "--temp-path", "."])
            .args([format!("--{name}"), instances.to_string()])
            .args([format!("--{name}-ops"), (OPERATIONS * factor).to_string()])
            .args(["--timeout".to_owned(), (SECONDS * factor).to_string()]));
        failures.extend(result.err().map(|failure| failure.to_string()));
    }
    assert!(failures.is_empty(), "{options}: {}", failures.join("\n"));
    served.end();
    assert_e2fsck_clean(&ground.image);
}

#[test]
fn stressors_find_nothing_with_a_writeback_cache() {
    stress("writeback");
}

#[test]
fn stressors_find_nothing_without_a_writeback_cache() {
    stress(&format!("no_writeback,{}", fuse_rings::option()));
}
