//! Journals: those of debugfs are read and written again, ours are replayed by e2fsck.

use extant_ondisk::ext4::{Incompat, InodeNumber, PhysicalBlock};
use extant_ondisk::jbd2::commit::{Commit, TransactionSum};
use extant_ondisk::jbd2::descriptor::{self, DescriptorWriter};
use extant_ondisk::jbd2::format::Checksums;
use extant_ondisk::jbd2::revoke::{self, RevokeWriter};
use extant_ondisk::jbd2::{
    BlockType, Format, Header, JournalBlock, JournalCompat, JournalIncompat, JournalSuperblock,
    Sequence, escape, unescape,
};
use extant_testkit::{oracle, require};

use crate::image::{Image, e2fsprogs, shown};
use crate::walk::Walk;

/// A journal inside an image.
pub struct Journal<'a> {
    image: &'a Image,
    /// Locations of its blocks, in bytes of the image.
    places: Vec<u64>,
    pub superblock: JournalSuperblock,
}

/// The writer of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Author {
    /// debugfs, which puts a UUID somewhere behind the tags.
    Debugfs,
    /// Linux and we.
    Others,
}

/// One transaction as read.
#[derive(Debug, Default)]
pub struct Transaction {
    pub copies: Vec<(PhysicalBlock, Vec<u8>)>,
    pub revoked: Vec<PhysicalBlock>,
}

impl<'a> Journal<'a> {
    pub fn open(image: &'a Image) -> Self {
        let mut walk = Walk::new(image);
        let (inode, _) = walk.inode(InodeNumber::JOURNAL);
        let map = walk.map(InodeNumber::JOURNAL, &inode);
        let layout = *walk.superblock.layout();
        let places: Vec<_> = map
            .values()
            .map(|piece| layout.bytes_of(piece.physical).start())
            .collect();
        let superblock = image.read(places[0], JournalSuperblock::BYTES);
        let superblock = JournalSuperblock::parse(&superblock).unwrap();
        assert_eq!(superblock.format().block_bytes, layout.block_bytes());
        assert_eq!(superblock.blocks() as usize, places.len());
        Self {
            image,
            places,
            superblock,
        }
    }

    pub fn read(&self, block: u32) -> Vec<u8> {
        let bytes = self.superblock.format().block_bytes as usize;
        self.image.read(self.places[block as usize], bytes)
    }

    pub fn write(&self, block: u32, bytes: &[u8]) {
        self.image.write(self.places[block as usize], bytes);
    }

    pub fn write_superblock(&self) {
        self.image.write(self.places[0], self.superblock.as_bytes());
    }

    /// All committed transactions, validated and written again to the same bytes.
    pub fn transactions(&self, author: Author) -> Vec<Transaction> {
        let format = self.superblock.format();
        let log = self.superblock.log();
        let Some(JournalBlock(mut at)) = self.superblock.start() else {
            return Vec::new();
        };
        let mut next = || {
            let block = self.read(at);
            at = if at + 1 == log.end { log.start } else { at + 1 };
            block
        };
        let mut sequence = self.superblock.sequence();
        let (mut done, mut open) = (Vec::new(), Transaction::default());
        let mut sum = TransactionSum::new();
        loop {
            let block = next();
            let Some(header) = Header::read(&block).filter(|header| header.sequence == sequence)
            else {
                return done;
            };
            match header.kind {
                BlockType::Descriptor => {
                    sum.add(&block);
                    let mut again = vec![0xA5; block.len()];
                    let mut writer = DescriptorWriter::new(&mut again, sequence, format);
                    let mut tags_end = 12 + 16;
                    for tag in descriptor::tags(&block, format).unwrap() {
                        let tag = tag.unwrap();
                        let mut copy = next();
                        sum.add(&copy);
                        tags_end += format.tag_bytes();
                        tag.verify(&copy, sequence, format).unwrap();
                        writer.push(tag.block, &copy, tag.escaped);
                        unescape(&mut copy, tag.escaped);
                        open.copies.push((tag.block, copy));
                    }
                    writer.finish();
                    let end = match author {
                        Author::Debugfs => tags_end,
                        Author::Others => block.len(),
                    };
                    assert!(
                        again[..end] == block[..end],
                        "descriptor block written again"
                    );
                }
                BlockType::Revoke => {
                    let mut again = vec![0xA5; block.len()];
                    let mut writer = RevokeWriter::new(&mut again, sequence, format);
                    for revoked in revoke::revoked(&block, format).unwrap() {
                        writer.push(revoked);
                        open.revoked.push(revoked);
                    }
                    writer.finish();
                    assert!(again == block, "revoke block written again");
                }
                BlockType::Commit => {
                    let commit = Commit::parse(&block, format).unwrap();
                    let expected = (format.checksums == Checksums::Transaction).then_some(sum);
                    // debugfs takes revoke blocks for copies; recovery does not.
                    if author != Author::Debugfs || open.revoked.is_empty() {
                        assert_eq!(commit.transaction_sum, expected);
                    }
                    let mut again = vec![0xA5; block.len()];
                    commit.write(&mut again, format);
                    assert!(again == block, "commit block written again");
                    done.push(std::mem::take(&mut open));
                    sum = TransactionSum::new();
                    sequence = sequence.next();
                }
                other => panic!("{other:?} in the log"),
            }
        }
    }
}

/// Options of mkfs.ext4, those of debugfs's `journal_open`, and the resulting checksums.
const JOURNALS: [(&[&str], &str, Checksums); 8] = [
    (
        &["-b", "1024", "-O", "^metadata_csum,^64bit"],
        "",
        Checksums::None,
    ),
    (
        &["-b", "4096", "-O", "^metadata_csum,64bit"],
        "",
        Checksums::None,
    ),
    (
        &["-b", "1024", "-O", "^metadata_csum,^64bit"],
        "-c -v 2",
        Checksums::Transaction,
    ),
    (
        &["-b", "4096", "-O", "^metadata_csum,64bit"],
        "-c -v 2",
        Checksums::Transaction,
    ),
    (
        &["-b", "1024", "-O", "metadata_csum,^64bit"],
        "-c -v 2",
        Checksums::V2,
    ),
    (
        &["-b", "4096", "-O", "metadata_csum,64bit"],
        "-c -v 2",
        Checksums::V2,
    ),
    (
        &["-b", "1024", "-O", "metadata_csum,^64bit"],
        "-c -v 3",
        Checksums::V3,
    ),
    (
        &["-b", "4096", "-O", "metadata_csum,64bit"],
        "-c -v 3",
        Checksums::V3,
    ),
];

/// Blocks to be written: the first needs an escape.
fn blocks(block_bytes: u32) -> Vec<Vec<u8>> {
    let mut blocks: Vec<_> = (1..=3)
        .map(|byte| vec![byte; block_bytes as usize])
        .collect();
    blocks[0][..4].copy_from_slice(&[0xC0, 0x3B, 0x39, 0x98]);
    blocks
}

/// Three unused blocks.
const TARGETS: [u64; 3] = [12_001, 12_003, 12_005];

#[test]
fn journals_of_debugfs_are_read_and_written_again() {
    require!(e2fsprogs());
    for (options, open, checksums) in JOURNALS {
        let image = Image::mkfs(64, options);
        let contents = blocks(image.superblock().layout().block_bytes());
        let file = image.beside("blocks");
        std::fs::write(&file, contents.concat()).unwrap();
        let [one, two, three] = TARGETS;
        image.change(&[
            format!("journal_open {open}"),
            format!("journal_write -b {one},{two},{three} {}", shown(&file)),
            format!("journal_write -b {one} -r {two},{three} {}", shown(&file)),
            "journal_close".into(),
        ]);
        let journal = Journal::open(&image);
        assert_eq!(
            journal.superblock.format().checksums,
            checksums,
            "{options:?}"
        );
        let mut dumpe2fs = extant_testkit::command::tool("dumpe2fs");
        let text = extant_testkit::command::text(dumpe2fs.arg("-h").arg(image.path())).unwrap();
        let said = text
            .lines()
            .find_map(|line| line.strip_prefix("Journal features:"));
        let said: Vec<_> = said.unwrap().split_whitespace().collect();
        assert_eq!(journal.superblock.features().to_string(), said.join(" "));

        let transactions = journal.transactions(Author::Debugfs);
        assert_eq!(transactions.len(), 2, "{options:?} {open}");
        let expected = TARGETS.map(PhysicalBlock).into_iter().zip(contents);
        let expected: Vec<_> = expected.collect();
        assert!(transactions[0].copies == expected, "{options:?} {open}");
        assert!(transactions[1].copies == expected[..1]);
        assert_eq!(
            transactions[1].revoked,
            [PhysicalBlock(two), PhysicalBlock(three)]
        );
        assert!(transactions[0].revoked.is_empty());
    }
}

/// Writes transactions into the log, from its last block on and round its end.
struct Log<'a> {
    journal: &'a Journal<'a>,
    at: u32,
    sequence: Sequence,
    sum: TransactionSum,
}

impl Log<'_> {
    fn put(&mut self, block: &[u8]) {
        self.journal.write(self.at, block);
        let log = self.journal.superblock.log();
        self.at = if self.at + 1 == log.end {
            log.start
        } else {
            self.at + 1
        };
    }

    fn format(&self) -> Format {
        *self.journal.superblock.format()
    }

    fn copies(&mut self, blocks: &[(u64, &[u8])]) {
        let format = self.format();
        let mut descriptor = vec![0; format.block_bytes as usize];
        let mut writer = DescriptorWriter::new(&mut descriptor, self.sequence, &format);
        let mut copies = Vec::new();
        for (target, block) in blocks {
            let mut copy = block.to_vec();
            let escaped = escape(&mut copy);
            writer.push(PhysicalBlock(*target), &copy, escaped);
            copies.push(copy);
        }
        writer.finish();
        for block in std::iter::once(descriptor).chain(copies) {
            self.sum.add(&block);
            self.put(&block);
        }
    }

    fn revoke(&mut self, blocks: &[u64]) {
        let format = self.format();
        let mut block = vec![0; format.block_bytes as usize];
        let mut writer = RevokeWriter::new(&mut block, self.sequence, &format);
        for &revoked in blocks {
            writer.push(PhysicalBlock(revoked));
        }
        writer.finish();
        self.put(&block);
    }

    fn commit(&mut self) {
        let format = self.format();
        let has_sum = format.checksums == Checksums::Transaction;
        let commit = Commit {
            sequence: self.sequence,
            seconds: 1_700_000_000,
            nanoseconds: 5,
            transaction_sum: has_sum.then_some(self.sum),
        };
        let mut block = vec![0; format.block_bytes as usize];
        commit.write(&mut block, &format);
        self.put(&block);
        self.sequence = self.sequence.next();
        self.sum = TransactionSum::new();
    }
}

#[test]
fn journals_of_ours_are_replayed_by_e2fsck() {
    require!(e2fsprogs());
    for (options, _, checksums) in JOURNALS {
        let image = Image::mkfs(64, options);
        let mut superblock = image.superblock();
        let is_64bit = superblock.features().incompat.contains(Incompat::BIT64);
        let contents = blocks(superblock.layout().block_bytes());
        let mut journal = Journal::open(&image);
        let last = journal.superblock.log().end - 1;
        journal
            .superblock
            .edit(|raw| {
                let mut incompat = JournalIncompat::REVOKE;
                incompat.set(JournalIncompat::BIT64, is_64bit);
                incompat.set(JournalIncompat::CSUM_V2, checksums == Checksums::V2);
                incompat.set(JournalIncompat::CSUM_V3, checksums == Checksums::V3);
                raw.s_feature_incompat.set(incompat.bits());
                let compat = match checksums {
                    Checksums::Transaction => JournalCompat::CHECKSUM,
                    _ => JournalCompat::empty(),
                };
                raw.s_feature_compat.set(compat.bits());
                raw.s_checksum_type = match checksums {
                    Checksums::V2 | Checksums::V3 => 4,
                    _ => 0,
                };
            })
            .unwrap();
        assert_eq!(journal.superblock.format().checksums, checksums);
        // The number wraps as well.
        let first = Sequence(u32::MAX);
        journal
            .superblock
            .set_start(Some(JournalBlock(last)), first);
        journal.write_superblock();

        let [one, two, three] = TARGETS;
        let mut log = Log {
            journal: &journal,
            at: last,
            sequence: first,
            sum: TransactionSum::new(),
        };
        log.copies(&[(one, &contents[0]), (two, &contents[1])]);
        log.commit();
        log.revoke(&[two]);
        log.copies(&[(three, &contents[2])]);
        log.commit();
        // Never committed.
        log.copies(&[(one, &contents[2])]);

        assert_eq!(journal.transactions(Author::Others).len(), 2);
        superblock
            .edit(|raw| {
                let features = Incompat::from_bits_retain(raw.s_feature_incompat.get());
                let features = features | Incompat::RECOVER;
                raw.s_feature_incompat.set(features.bits());
            })
            .unwrap();
        image.write(1024, superblock.as_bytes());

        image.repair(&[]);
        let layout = superblock.layout();
        let read = |block| image.block(layout, PhysicalBlock(block));
        assert!(
            read(one) == contents[0],
            "{options:?}: an escaped copy is restored"
        );
        assert!(
            read(two).iter().all(|&byte| byte == 0),
            "{options:?}: revoked"
        );
        assert!(read(three) == contents[2], "{options:?}");
        oracle::assert_e2fsck_clean(&image.path());
        assert!(
            !image
                .superblock()
                .features()
                .incompat
                .contains(Incompat::RECOVER)
        );
    }
}

#[test]
fn journal_with_a_block_changed_is_refused_here_and_by_e2fsck() {
    require!(e2fsprogs());
    let image = Image::mkfs(64, &["-b", "1024", "-O", "metadata_csum"]);
    let file = image.beside("blocks");
    std::fs::write(&file, blocks(1024).concat()).unwrap();
    image.change(&[
        "journal_open -c -v 3".into(),
        format!("journal_write -b {} {}", TARGETS[1], shown(&file)),
        "journal_close".into(),
    ]);
    let journal = Journal::open(&image);
    let block = journal.read(1);
    let tag = descriptor::tags(&block, journal.superblock.format())
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    let mut copy = journal.read(2);
    let sequence = Header::read(&block).unwrap().sequence;
    tag.verify(&copy, sequence, journal.superblock.format())
        .unwrap();
    copy[700] ^= 1;
    let error = tag.verify(&copy, sequence, journal.superblock.format());
    assert!(
        error
            .unwrap_err()
            .to_string()
            .starts_with("copy of block 12003")
    );
    journal.write(2, &copy);
    image.repair(&[]);
    let target = image.block(image.superblock().layout(), PhysicalBlock(TARGETS[1]));
    assert!(
        target.iter().all(|&byte| byte == 0),
        "e2fsck did not replay it"
    );
}
