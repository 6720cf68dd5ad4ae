//! Descriptor, revoke and commit blocks in all layouts, written, read back and spoilt.

use extant_space::{Corruption, ErrorKind};

use super::*;
use crate::jbd2::commit::{Commit, TransactionSum};
use crate::jbd2::revoke::{RevokeWriter, revoked};
use crate::jbd2::{escape, unescape};

const SEQUENCE: Sequence = Sequence(0x0102_0304);

fn formats() -> Vec<Format> {
    let mut formats = Vec::new();
    for checksums in [
        Checksums::None,
        Checksums::Transaction,
        Checksums::V2,
        Checksums::V3,
    ] {
        for block_numbers in [BlockNumbers::Bits32, BlockNumbers::Bits64] {
            formats.push(Format {
                block_bytes: 1024,
                checksums,
                block_numbers,
                uuid: *b"0123456789abcdef",
            });
        }
    }
    formats
}

/// The highest number of a block that fits.
fn last_block(format: &Format) -> PhysicalBlock {
    match format.block_numbers {
        BlockNumbers::Bits32 => PhysicalBlock(u32::MAX.into()),
        BlockNumbers::Bits64 => PhysicalBlock(u64::MAX),
    }
}

/// A copy that needs an escape and one that does not.
fn copies() -> [Vec<u8>; 2] {
    let mut magic = vec![3; 1024];
    magic[..4].copy_from_slice(&crate::jbd2::header::MAGIC.to_be_bytes());
    [magic, vec![5; 1024]]
}

/// A descriptor block of both, escaped, and their copies.
fn descriptor(format: &Format) -> (Vec<u8>, [Vec<u8>; 2]) {
    let mut copies = copies();
    let mut block = vec![0xAA; 1024];
    let mut writer = DescriptorWriter::new(&mut block, SEQUENCE, format);
    for (copy, original) in copies
        .iter_mut()
        .zip([PhysicalBlock(7), last_block(format)])
    {
        let escaped = escape(copy);
        writer.push(original, copy, escaped);
    }
    writer.finish();
    (block, copies)
}

#[test]
fn tags_of_all_layouts_read_back_with_their_copies() {
    for format in formats() {
        let (block, mut escaped) = descriptor(&format);
        let tags: Vec<_> = tags(&block, &format)
            .unwrap()
            .map(|tag| tag.unwrap())
            .collect();
        let blocks: Vec<_> = tags.iter().map(|tag| tag.block).collect();
        assert_eq!(
            blocks,
            [PhysicalBlock(7), last_block(&format)],
            "{format:?}"
        );
        for ((tag, copy), original) in tags.iter().zip(&mut escaped).zip(copies()) {
            tag.verify(copy, SEQUENCE, &format).unwrap();
            unescape(copy, tag.escaped);
            assert_eq!(*copy, original);
        }
    }
}

#[test]
fn tags_have_the_bytes_of_the_specification() {
    use BlockNumbers::{Bits32, Bits64};
    use Checksums::{None, Transaction, V2, V3};
    for (checksums, block_numbers, bytes) in [
        (None, Bits32, 8),
        (None, Bits64, 12),
        (Transaction, Bits32, 8),
        (Transaction, Bits64, 12),
        (V2, Bits32, 10),
        (V2, Bits64, 14),
        (V3, Bits32, 16),
        (V3, Bits64, 16),
    ] {
        let format = Format {
            checksums,
            block_numbers,
            ..formats()[0]
        };
        assert_eq!(format.tag_bytes(), bytes, "{format:?}");
        let (block, _) = descriptor(&format);
        // After the first tag there is a UUID of zeros, after that the second tag, the last.
        assert_eq!(block[12 + bytes..28 + bytes], [0; 16], "{format:?}");
        let flags = 28 + bytes + 6;
        let expected = [0, (FLAG_SAME_UUID | FLAG_LAST) as u8];
        assert_eq!(block[flags..flags + 2], expected);
    }
}

#[test]
fn full_block_holds_its_capacity_and_tags_end_with_it() {
    for format in formats() {
        let copy = vec![1; 1024];
        let mut block = vec![0; 1024];
        let mut writer = DescriptorWriter::new(&mut block, SEQUENCE, &format);
        let mut count = 0;
        while !writer.is_full() {
            writer.push(PhysicalBlock(count), &copy, Escaped::No);
            count += 1;
        }
        writer.finish();
        assert_eq!(
            count as usize,
            DescriptorWriter::capacity(&format),
            "{format:?}"
        );
        let tags = tags(&block, &format).unwrap();
        let tags: Result<Vec<_>> = tags.collect();
        assert_eq!(tags.unwrap().len(), count as usize);
    }
}

#[test]
fn copy_changed_or_of_another_transaction_is_refused() {
    for format in formats() {
        let (block, mut copies) = descriptor(&format);
        let tag = tags(&block, &format).unwrap().next().unwrap().unwrap();
        let other = tag.verify(&copies[0], SEQUENCE.next(), &format);
        copies[0][1000] ^= 1;
        let changed = tag.verify(&copies[0], SEQUENCE, &format);
        if format.seed().is_none() {
            other.unwrap();
            changed.unwrap();
            continue;
        }
        for error in [other.unwrap_err(), changed.unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            let line = error.to_string();
            assert!(
                line.starts_with("copy of block 7 in transaction 1690"),
                "{line}"
            );
        }
    }
}

#[test]
fn changed_byte_of_a_descriptor_is_found() {
    for format in formats()
        .into_iter()
        .filter(|format| format.seed().is_some())
    {
        let (mut block, _) = descriptor(&format);
        block[600] ^= 1;
        let error = tags(&block, &format).unwrap_err();
        assert_eq!(
            error.corruption(),
            Some(&Corruption::checksum("descriptor block"))
        );
    }
}

#[test]
fn uuid_without_room_is_refused() {
    let format = formats()[0];
    let mut block = vec![0; 1024];
    let header = Header {
        kind: BlockType::Descriptor,
        sequence: SEQUENCE,
    };
    block[..12].copy_from_slice(header.encode().as_bytes());
    // Tags that each have a UUID: 24 bytes, of which 42 fit; the next has 4 bytes.
    assert_eq!(tags(&block, &format).unwrap().count(), 42);
    // One without, and the last has 20 bytes.
    block[12 + 7] = FLAG_SAME_UUID as u8;
    let last = tags(&block, &format).unwrap().last().unwrap();
    assert_eq!(
        last.unwrap_err().to_string(),
        "descriptor block: tag at byte 1004: no room for its UUID"
    );
}

#[test]
fn block_of_another_type_is_refused() {
    for format in formats() {
        let (descriptor, _) = descriptor(&format);
        let line = revoked(&descriptor, &format).err().unwrap().to_string();
        assert_eq!(line, "revoke block: no header of one");
        let line = Commit::parse(&descriptor, &format).unwrap_err().to_string();
        assert_eq!(line, "commit block: no header of one");
        let line = tags(&[0; 1024], &format).unwrap_err().to_string();
        assert_eq!(line, "descriptor block: no header of one");
    }
}

#[test]
fn revoked_blocks_of_all_layouts_read_back() {
    for format in formats() {
        let mut block = vec![0xAA; 1024];
        let mut writer = RevokeWriter::new(&mut block, SEQUENCE, &format);
        let mut expected = vec![last_block(&format)];
        writer.push(expected[0]);
        while !writer.is_full() {
            let next = PhysicalBlock(expected.len() as u64);
            writer.push(next);
            expected.push(next);
        }
        writer.finish();
        assert_eq!(expected.len(), RevokeWriter::capacity(&format));
        let found: Vec<_> = revoked(&block, &format).unwrap().collect();
        assert_eq!(found, expected, "{format:?}");

        for (count, name) in [(15_u32, "15"), (1025, "1025")] {
            block[12..16].copy_from_slice(&count.to_be_bytes());
            tail::seal(&mut block, &format);
            let end = format.contents_end();
            let line = revoked(&block, &format).err().unwrap().to_string();
            assert_eq!(
                line,
                format!("revoke block: r_count is {name}, outside 16 to {end}")
            );
        }
        if format.seed().is_some() {
            block[100] ^= 1;
            let error = revoked(&block, &format).err().unwrap();
            assert_eq!(
                error.corruption(),
                Some(&Corruption::checksum("revoke block"))
            );
        }
    }
}

#[test]
fn commit_of_all_layouts_reads_back() {
    for format in formats() {
        let mut sum = TransactionSum::new();
        sum.add(b"123456789");
        let commit = Commit {
            sequence: SEQUENCE,
            seconds: 1 << 40,
            nanoseconds: 999_999_999,
            transaction_sum: (format.checksums == Checksums::Transaction).then_some(sum),
        };
        let mut block = vec![0xAA; 1024];
        commit.write(&mut block, &format);
        assert_eq!(
            Commit::parse(&block, &format).unwrap(),
            commit,
            "{format:?}"
        );
        if format.seed().is_some() {
            block[1023] ^= 1;
            let error = Commit::parse(&block, &format).unwrap_err();
            assert_eq!(
                error.corruption(),
                Some(&Corruption::checksum("commit block"))
            );
        }
    }
}
