//! The newer fallocate runs, and fails as an installed one.

use std::fs;

use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::{newer, oracle, require, requires};

#[test]
fn newer_fallocate_allocates_and_knows_write_zeroes() {
    require!(
        newer::requirement(),
        requires::tool("filefrag"),
        Filesystem::Ext4.requirement()
    );
    let scratch = Scratch::new(Filesystem::Ext4, 64 << 20);
    let file = scratch.path().join("f");

    let output = newer::fallocate()
        .args(["-l", "1MiB"])
        .arg(&file)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(oracle::allocated_bytes(&file), 1 << 20);
    assert!(!oracle::filefrag(&file).is_extant());

    // No loop device takes write zeroes, so far; the test only checks that the option is known.
    let output = newer::fallocate()
        .args(["-w", "-l", "1MiB"])
        .arg(&file)
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    let refused = message.starts_with("fallocate: ") && message.contains("not supported");
    assert!(refused || output.status.success(), "{output:?}");
    assert_eq!(oracle::filefrag(&file).is_extant(), output.status.success());
}

#[test]
fn newer_fallocate_ends_with_1_without_a_file() {
    require!(newer::requirement());
    let output = newer::fallocate().args(["-l", "1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(fs::exists(newer::fallocate().get_program()).unwrap());
}
