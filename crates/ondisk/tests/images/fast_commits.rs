//! Fast commits of the kernel.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;

use extant_ondisk::ext4::fast_commit::{
    Change, CommitSum, CommitWriter, NameChange, Position, Tag, Verdict, records,
};
use extant_testkit::require;
use extant_testkit::scratch::{Filesystem, Scratch};

use crate::image::e2fsprogs;
use crate::journal::{Author, Journal};
use crate::kernel::{SIZE_BYTES, copy};

/// Runs the operations eligible for the kernel's fast commits, with a sync after each.
fn use_files(scratch: &Scratch) {
    fs::create_dir(scratch.path().join("directory")).unwrap();
    let one = scratch.path().join("one");
    fs::write(&one, "x").unwrap();
    // A full commit, after which only fast ones follow.
    let one = OpenOptions::new().write(true).open(one).unwrap();
    one.sync_all().unwrap();
    fs::write(scratch.path().join("two"), "x").unwrap();
    one.sync_all().unwrap();
    for number in 0..60 {
        one.write_all_at(&[7; 4096], number * 12_288).unwrap();
        one.sync_all().unwrap();
    }
    one.set_len(100_000).unwrap();
    one.sync_all().unwrap();
    let new = scratch.path().join("directory/new");
    let mut file = File::create(&new).unwrap();
    file.write_all(b"hello").unwrap();
    file.sync_all().unwrap();
    // To the kernel, a new name and the end of an old one.
    fs::rename(&new, scratch.path().join("directory/renamed")).unwrap();
    file.write_all(b"again").unwrap();
    file.sync_all().unwrap();
}

#[test]
fn fast_commits_of_the_kernel_are_read_and_written_again() {
    require!(e2fsprogs(), Filesystem::Ext4FastCommit.requirement());
    // Nothing but a sync commits.
    let scratch = Scratch::builder(Filesystem::Ext4FastCommit, SIZE_BYTES)
        .mount_options("commit=300")
        .build();
    use_files(&scratch);
    let image = copy(&scratch);
    let layout = *image.superblock().layout();
    let journal = Journal::open(&image);
    assert!(journal.superblock.has_fast_commits());
    let blocks = journal.superblock.fast_commits();
    let blocks: Vec<_> = blocks.map(|block| journal.read(block)).collect();
    let first = records(&blocks[0], &layout).next().unwrap().unwrap();
    let transaction = first.head().unwrap().unwrap();
    // The kernel may have committed all of it since.
    let full = journal.transactions(Author::Others).len();
    let next = (0..full).fold(journal.superblock.sequence(), |next, _| next.next());
    assert!(!transaction.is_after(next));
    let (mut sum, mut whole, mut all) = (CommitSum::new(), 0, Vec::new());
    let (mut changes, mut bytes) = (Vec::new(), Vec::new());
    for block in &blocks {
        bytes.extend_from_slice(block);
        let mut verdict = None;
        for record in records(block, &layout).map_while(|record| record.ok()) {
            if let Some(head) = record.head().unwrap() {
                assert_eq!(head, transaction);
            }
            changes.extend(record.change(&layout).unwrap());
            verdict = sum.take(&record, transaction);
            if record.tag() == Tag::Tail {
                break;
            }
        }
        match verdict {
            None => continue,
            Some(Verdict::Torn) => break,
            Some(Verdict::Whole) => whole += 1,
        }
        let position = match whole {
            1 => Position::First,
            _ => Position::Later,
        };
        let mut writer = CommitWriter::new(layout.block_bytes(), transaction, position);
        changes.iter().for_each(|change| writer.push(change));
        assert!(
            writer.finish() == bytes,
            "fast commit {whole} written again"
        );
        all.append(&mut changes);
        bytes.clear();
    }
    eprintln!("{whole} fast commits of {} changes", all.len());
    assert!(whole >= 10);
    let has = |wanted: fn(&Change<'_>) -> bool| all.iter().any(wanted);
    assert!(has(|change| matches!(change, Change::AddRange { .. })));
    assert!(has(|change| matches!(change, Change::DelRange { .. })));
    assert!(has(
        |change| matches!(change, Change::Inode { bytes, .. } if bytes.len() == 160)
    ));
    for (wanted, expected) in [
        (NameChange::Create, &b"new"[..]),
        (NameChange::Link, b"renamed"),
        (NameChange::Unlink, b"new"),
    ] {
        let is_there = all.iter().any(|change| {
            matches!(change, Change::Name { change, name, .. } if *change == wanted && *name == expected)
        });
        assert!(is_there, "{wanted:?}");
    }
}
