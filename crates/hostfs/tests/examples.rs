//! The programs in `examples`.

use std::fs;

use extant_testkit::command::{example, text};
use extant_testkit::require;
use extant_testkit::scratch::{Filesystem, Scratch};

#[test]
fn create_with_progress_creates_a_written_file() {
    require!(Filesystem::Ext4.requirement());
    let scratch = Scratch::new(Filesystem::Ext4, 400 << 20);
    let path = scratch.path().join("demo.raw");
    let shown = text(example("create_with_progress").arg(&path)).unwrap();
    assert!(shown.contains("256 MiB written in "), "{shown}");
    let shown = text(example("who_pays_for_the_next_write").arg(&path)).unwrap();
    assert!(
        shown.starts_with("256 MiB cost nothing but the write\n"),
        "{shown}"
    );
}

#[test]
fn preallocate_log_adds_a_segment_and_keeps_the_first() {
    require!(Filesystem::Ext4.requirement());
    let scratch = Scratch::new(Filesystem::Ext4, 256 << 20);
    let path = scratch.path().join("segment.log");
    for segments in 1..=2 {
        text(example("preallocate_log").arg(&path)).unwrap();
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes.len(), segments * (64 << 20));
        for segment in 0..segments {
            assert!(bytes[segment * (64 << 20)..].starts_with(b"record"));
        }
    }
}
