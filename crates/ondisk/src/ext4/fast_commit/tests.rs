//! Commits written, read back, torn, and spoilt in every way that is refused.

use extant_space::ErrorKind;
use zerocopy::IntoBytes;

use super::*;
use crate::ext4::extent::{ExtentKind, LeafEntry};
use crate::ext4::superblock::fixture;
use crate::ext4::{InodeNumber, Layout, LogicalBlock, PhysicalBlock};
use crate::jbd2::Sequence;

const TRANSACTION: Sequence = Sequence(77);
const BLOCK_BYTES: u32 = 1024;

fn layout() -> Layout {
    *fixture().layout()
}

fn extent(logical: u32, physical: u64, blocks: u16) -> Change<'static> {
    Change::AddRange {
        inode: InodeNumber(13),
        extent: LeafEntry {
            logical: LogicalBlock(logical),
            physical: PhysicalBlock(physical),
            blocks,
            kind: ExtentKind::Unwritten,
        },
    }
}

fn cut(start: u32, blocks: u32) -> Change<'static> {
    Change::DelRange {
        inode: InodeNumber(13),
        start: LogicalBlock(start),
        blocks,
    }
}

fn named(change: NameChange, inode: u32, name: &[u8]) -> Change<'_> {
    Change::Name {
        change,
        parent: InodeNumber(2),
        inode: InodeNumber(inode),
        name,
    }
}

const INODE: Change<'_> = Change::Inode {
    inode: InodeNumber(13),
    bytes: &[9; 160],
};

fn changes() -> Vec<Change<'static>> {
    let all = [
        named(NameChange::Create, 13, b"new"),
        INODE,
        extent(5, 900, 10),
        cut(15, u32::MAX - 14),
        named(NameChange::Link, 13, &[b'x'; 255]),
        named(NameChange::Unlink, 13, b"new"),
    ];
    // Enough for several blocks.
    all.iter().cycle().take(40).copied().collect()
}

fn written(position: Position) -> Vec<u8> {
    let mut writer = CommitWriter::new(BLOCK_BYTES, TRANSACTION, position);
    for change in changes() {
        writer.push(&change);
    }
    let blocks = writer.blocks();
    let bytes = writer.finish();
    assert_eq!(bytes.len(), blocks * BLOCK_BYTES as usize);
    bytes
}

/// The changes of a commit and the verdict of its tail, which is the last record.
fn read(bytes: &[u8], transaction: Sequence) -> (Vec<Change<'_>>, Option<Verdict>) {
    let (mut changes, mut verdict, mut sum) = (Vec::new(), None, CommitSum::new());
    for block in bytes.chunks(BLOCK_BYTES as usize) {
        for record in records(block, &layout()) {
            let Ok(record) = record else {
                return (changes, None);
            };
            assert_eq!(verdict, None, "a tail ends its block");
            verdict = sum.take(&record, transaction);
            changes.extend(record.change(&layout()).unwrap());
        }
    }
    (changes, verdict)
}

#[test]
fn commit_over_several_blocks_reads_back() {
    for position in [Position::First, Position::Later] {
        let bytes = written(position);
        assert!(bytes.len() > 3 * BLOCK_BYTES as usize);
        assert_eq!(read(&bytes, TRANSACTION), (changes(), Some(Verdict::Whole)));
        let first = records(&bytes, &layout()).next().unwrap().unwrap();
        let expected = (position == Position::First).then_some(TRANSACTION);
        assert_eq!(first.head().unwrap(), expected);
    }
}

#[test]
fn commit_of_another_transaction_is_torn() {
    let bytes = written(Position::Later);
    assert_eq!(read(&bytes, Sequence(78)).1, Some(Verdict::Torn));
}

#[test]
fn every_changed_byte_up_to_the_sum_is_found() {
    let bytes = written(Position::First);
    let (block, last) = (BLOCK_BYTES as usize, bytes.len() - BLOCK_BYTES as usize);
    let tail = records(&bytes[last..], &layout())
        .map(|record| record.unwrap())
        .take_while(|record| record.tag() != Tag::Tail)
        .map(|record| record.value().len() + 4)
        .sum::<usize>();
    let end = last + tail + 12;
    for at in (0..end).filter(|at| at % 7 == 0 || *at >= last + tail) {
        let mut torn = bytes.clone();
        torn[at] ^= 0x10;
        let mut sum = CommitSum::new();
        let verdict = torn
            .chunks(block)
            .flat_map(|block| records(block, &layout()))
            .map_while(|record| record.ok())
            .find_map(|record| sum.take(&record, TRANSACTION));
        assert_ne!(verdict, Some(Verdict::Whole), "byte {at}");
    }
}

#[test]
fn record_that_leaves_no_room_for_padding_begins_the_next_block() {
    for fill in 970..1024_usize {
        let mut writer = CommitWriter::new(BLOCK_BYTES, TRANSACTION, Position::Later);
        let mut rest = fill;
        while rest > 300 {
            writer.push(&named(NameChange::Link, 13, &[b'x'; 188]));
            rest -= 200;
        }
        let name = vec![b'y'; rest.clamp(13, 255) - 12];
        writer.push(&named(NameChange::Link, 13, &name));
        let expected = writer.blocks();
        let bytes = writer.finish();
        assert_eq!(bytes.len(), expected * 1024, "{fill}");
        assert_eq!(read(&bytes, TRANSACTION).1, Some(Verdict::Whole), "{fill}");
    }
}

#[test]
fn empty_commit_is_a_head_and_a_tail() {
    let bytes = CommitWriter::new(BLOCK_BYTES, TRANSACTION, Position::First).finish();
    assert_eq!(bytes[..4], [9, 0, 8, 0]);
    assert_eq!(bytes[12..14], [8, 0]);
    assert_eq!(read(&bytes, TRANSACTION), (vec![], Some(Verdict::Whole)));
}

#[test]
fn head_with_features_is_unsupported() {
    let mut bytes = written(Position::First);
    bytes[4] = 2;
    let first = records(&bytes, &layout()).next().unwrap().unwrap();
    let error = first.head().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(error.to_string(), "fast commit: fc_features is 0x2");
}

fn record(tag: u16, value: &[u8]) -> Vec<u8> {
    let header = RawTagLength {
        fc_tag: tag.into(),
        fc_len: (value.len() as u16).into(),
    };
    [header.as_bytes(), value].concat()
}

#[test]
fn each_impossible_record_is_named() {
    let cases: [(Vec<u8>, &str); 9] = [
        (record(0, &[]), "fc_tag is 0"),
        (record(10, &[]), "fc_tag is 10"),
        (vec![7, 0, 1, 0], "fc_len is 1, 0 bytes are left"),
        (record(1, &[0; 15]), "fc_len is 15, outside 16 to 16"),
        (record(2, &[0; 13]), "fc_len is 13, outside 12 to 12"),
        (record(3, &[0; 8]), "fc_len is 8, outside 9 to 263"),
        (record(6, &[0; 131]), "fc_len is 131, outside 132 to 260"),
        (record(8, &[0; 7]), "fc_len is 7, outside 8 to 11"),
        (record(9, &[0; 9]), "fc_len is 9, outside 8 to 8"),
    ];
    for (bytes, problem) in cases {
        let mut records = records(&bytes, &layout());
        let error = records.next().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(
            error.to_string(),
            format!("fast commit: record at byte 0: {problem}")
        );
        assert!(records.next().is_none());
    }
}

#[test]
fn each_impossible_change_is_named() {
    let layout = layout();
    let long = LogicalBlock(u32::MAX);
    assert_eq!(long.0, u32::MAX);
    let cases = [
        (
            extent(u32::MAX, 900, 1),
            "AddRange: 1 blocks from 4294967295 of a file",
        ),
        (
            extent(0, layout.blocks() - 9, 10),
            "AddRange: 10 blocks from 131063, outside the file system",
        ),
        (cut(7, 0), "DelRange: 0 blocks from 7 of a file"),
        (
            cut(7, u32::MAX),
            "DelRange: 4294967295 blocks from 7 of a file",
        ),
        (
            named(NameChange::Create, 13, b".."),
            "Creat: \"..\" is no name",
        ),
        (
            named(NameChange::Link, 13, b"a/b"),
            "Link: \"a/b\" is no name",
        ),
        (
            named(NameChange::Unlink, 32_769, b"a"),
            "Unlink: names inode 32769, of 32768",
        ),
        (
            named(NameChange::Unlink, 0, b"a"),
            "Unlink: names inode 0, of 32768",
        ),
    ];
    for (change, problem) in cases {
        let mut writer = CommitWriter::new(BLOCK_BYTES, TRANSACTION, Position::Later);
        writer.push(&change);
        let bytes = writer.finish();
        let record = records(&bytes, &layout).next().unwrap().unwrap();
        let error = record.change(&layout).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(error.to_string(), format!("fast commit {problem}"));
    }
}
