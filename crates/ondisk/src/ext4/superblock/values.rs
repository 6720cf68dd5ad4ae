//! Values of single fields of the superblock.

use bitflags::bitflags;
use zerocopy::IntoBytes;

use super::RawSuperblock;
use crate::ext4::{InodeNumber, PhysicalBlock};
use crate::narrow::low32;

bitflags! {
    /// `s_state`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct State: u16 {
        /// Unmounted cleanly.
        const VALID = 1;
        /// Errors were found and not repaired.
        const ERRORS = 2;
        /// Orphans are being cleared.
        const ORPHANS = 4;
        /// A fast commit is being replayed.
        const FAST_COMMIT_REPLAY = 0x20;
        const _ = !0;
    }

    /// `s_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SuperblockFlags: u32 {
        /// Names are hashed as signed bytes.
        const SIGNED_HASH = 1;
        /// Names are hashed as unsigned bytes.
        const UNSIGNED_HASH = 2;
        /// Development code may be tried on it.
        const TEST_FILESYS = 4;
        const _ = !0;
    }
}

/// `s_errors`: reaction to corrupt metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorPolicy {
    /// Continue; also the meaning of other values.
    Continue,
    /// Write nothing more.
    ReadOnly,
    /// Stop the system; for a library the same as [`ReadOnly`](Self::ReadOnly).
    Panic,
}

impl ErrorPolicy {
    pub(super) fn from_raw(value: u16) -> Self {
        match value {
            2 => Self::ReadOnly,
            3 => Self::Panic,
            _ => Self::Continue,
        }
    }
}

/// Location of the journal of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalPlace {
    /// In a file of the file system.
    Inode(InodeNumber),
    /// On an external device.
    Device {
        /// Its number when it was last seen.
        device: u32,
        /// Its UUID.
        uuid: [u8; 16],
    },
}

impl JournalPlace {
    pub(super) fn of(raw: &RawSuperblock) -> Self {
        match InodeNumber::new(raw.s_journal_inum.get()) {
            Some(number) => Self::Inode(number),
            None => Self::Device {
                device: raw.s_journal_dev.get(),
                uuid: raw.s_journal_uuid,
            },
        }
    }
}

/// `i_block` and the size of the journal's inode, kept if `s_jnl_backup_type` is set.
pub(super) fn journal_backup(raw: &RawSuperblock) -> Option<([u8; 60], u64)> {
    const BLOCKS: u8 = 1;
    if raw.s_jnl_backup_type > BLOCKS || raw.s_jnl_blocks[0].get() == 0 {
        return None;
    }
    let (map, size) = raw.s_jnl_blocks.split_at(15);
    let map = map.as_bytes().try_into().expect("15 words");
    Some((
        map,
        u64::from(size[0].get()) << 32 | u64::from(size[1].get()),
    ))
}

/// An error as the superblock remembers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedError {
    /// Seconds since 1970, of which 40 bits are kept.
    pub time_seconds: u64,
    /// The inode it is about.
    pub inode: Option<InodeNumber>,
    /// The block it is about; 0 for none.
    pub block: PhysicalBlock,
    /// The function that found it, of which 32 bytes are kept.
    pub function: String,
    /// The line where it was found.
    pub line: u32,
    /// The kind, as ext4 numbers them: 1 unknown, 2 EIO, 3 ENOMEM, 4 EFSBADCRC, 5 EFSCORRUPTED ...
    pub code: u8,
}

impl RecordedError {
    pub(super) fn first(raw: &RawSuperblock) -> Option<Self> {
        let time_seconds = seconds(raw.s_first_error_time.get(), raw.s_first_error_time_hi);
        (time_seconds != 0).then(|| Self {
            time_seconds,
            inode: InodeNumber::new(raw.s_first_error_ino.get()),
            block: PhysicalBlock(raw.s_first_error_block.get()),
            function: String::from_utf8_lossy(until_zero(&raw.s_first_error_func)).into_owned(),
            line: raw.s_first_error_line.get(),
            code: raw.s_first_error_errcode,
        })
    }

    pub(super) fn last(raw: &RawSuperblock) -> Option<Self> {
        let time_seconds = seconds(raw.s_last_error_time.get(), raw.s_last_error_time_hi);
        (time_seconds != 0).then(|| Self {
            time_seconds,
            inode: InodeNumber::new(raw.s_last_error_ino.get()),
            block: PhysicalBlock(raw.s_last_error_block.get()),
            function: String::from_utf8_lossy(until_zero(&raw.s_last_error_func)).into_owned(),
            line: raw.s_last_error_line.get(),
            code: raw.s_last_error_errcode,
        })
    }

    pub(super) fn store(&self, raw: &mut RawSuperblock) {
        let (low, high) = (
            low32(self.time_seconds),
            (self.time_seconds >> 32 & 0xFF) as u8,
        );
        let inode = self.inode.map_or(0, |number| number.0);
        let mut function = [0; 32];
        let kept = self.function.len().min(function.len());
        function[..kept].copy_from_slice(&self.function.as_bytes()[..kept]);
        if Self::first(raw).is_none() {
            raw.s_first_error_time.set(low);
            raw.s_first_error_time_hi = high;
            raw.s_first_error_ino.set(inode);
            raw.s_first_error_block.set(self.block.0);
            raw.s_first_error_func = function;
            raw.s_first_error_line.set(self.line);
            raw.s_first_error_errcode = self.code;
        }
        raw.s_last_error_time.set(low);
        raw.s_last_error_time_hi = high;
        raw.s_last_error_ino.set(inode);
        raw.s_last_error_block.set(self.block.0);
        raw.s_last_error_func = function;
        raw.s_last_error_line.set(self.line);
        raw.s_last_error_errcode = self.code;
        raw.s_error_count
            .set(raw.s_error_count.get().saturating_add(1));
        raw.s_state.set(raw.s_state.get() | State::ERRORS.bits());
    }
}

fn seconds(low: u32, high: u8) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

pub(super) fn until_zero(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|&byte| byte == 0);
    &bytes[..end.unwrap_or(bytes.len())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ext4::superblock::fixture;

    #[test]
    fn first_error_stays_and_last_is_replaced() {
        let error = |time_seconds, line| RecordedError {
            time_seconds,
            inode: InodeNumber::new(12),
            block: PhysicalBlock(1 << 33),
            function: "a_function_with_a_name_of_more_than_32_bytes".into(),
            line,
            code: 5,
        };
        let mut superblock = fixture();
        assert_eq!(superblock.recorded_errors(), (None, None));
        superblock.record_error(&error(1 << 33, 1));
        superblock.record_error(&error((1 << 33) + 5, 2));
        let (first, last) = superblock.recorded_errors();
        let (first, last) = (first.unwrap(), last.unwrap());
        assert_eq!((first.line, first.time_seconds), (1, 1 << 33));
        assert_eq!((last.line, last.time_seconds), (2, (1 << 33) + 5));
        assert_eq!(last.function.len(), 32);
        assert_eq!(superblock.raw().s_error_count.get(), 2);
        assert_eq!(superblock.state(), State::VALID | State::ERRORS);
    }

    #[test]
    fn fixture_matches_the_options_of_mke2fs() {
        let superblock = fixture();
        assert_eq!(superblock.volume_name(), b"fixture");
        assert_eq!(
            superblock.journal(),
            Some(JournalPlace::Inode(InodeNumber(8)))
        );
        assert_eq!(superblock.orphan_file(), Some(InodeNumber(12)));
        assert_eq!(superblock.last_orphan(), None);
        assert_eq!(superblock.error_policy(), ErrorPolicy::Continue);
        assert_eq!(superblock.extra_isize_for_new_inodes(), 32);
        let (_, journal_bytes) = superblock.journal_backup().unwrap();
        assert_eq!(journal_bytes % 4096, 0);
        assert!(journal_bytes > 0);
    }
}
