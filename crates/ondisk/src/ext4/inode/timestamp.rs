//! Times: 32 bits of seconds, and where there is room two more, with nanoseconds.
//!
//! The older field is signed, so times begin in December 1901. The low two bits of the extra word
//! are added to the seconds from 2^32 up, and the others are nanoseconds: times end in May 2446.

use crate::narrow::low32;
use core::mem::offset_of;

use zerocopy::little_endian::U32;

use super::{Inode, RawInode};

/// A time of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    /// Seconds since 1970, without leap seconds.
    pub seconds: i64,
    /// Nanoseconds after that, below 10^9.
    pub nanoseconds: u32,
}

impl Timestamp {
    /// The earliest time that can be stored.
    pub const MIN: Self = Self {
        seconds: i32::MIN as i64,
        nanoseconds: 0,
    };
    /// The latest time that can be stored with an extra word.
    pub const MAX: Self = Self {
        seconds: (3 << 32) + i32::MAX as i64,
        nanoseconds: 0,
    };
    /// The latest time that can be stored without.
    pub const MAX_SHORT: Self = Self {
        seconds: i32::MAX as i64,
        nanoseconds: 0,
    };

    fn decode(word: U32, extra: Option<U32>) -> Self {
        let extra = extra.map_or(0, U32::get);
        Self {
            seconds: i64::from(word.get().cast_signed()) + (i64::from(extra & 3) << 32),
            // A disk may say anything; a time must stay one.
            nanoseconds: (extra >> 2).min(999_999_999),
        }
    }

    /// The words; a time out of range becomes the nearest valid one. As in Linux, the first and the
    /// last second have no nanoseconds.
    fn encode(self, has_extra: bool) -> (u32, u32) {
        if !has_extra {
            let time = self.clamp(Self::MIN, Self::MAX_SHORT);
            return (low32(time.seconds.cast_unsigned()), 0);
        }
        let mut time = self.clamp(Self::MIN, Self::MAX);
        if time.seconds == Self::MIN.seconds {
            time.nanoseconds = 0;
        }
        let word = low32(time.seconds.cast_unsigned());
        let epoch = (time.seconds - i64::from(word.cast_signed())) >> 32;
        (word, time.nanoseconds << 2 | low32(epoch.cast_unsigned()))
    }
}

/// Kind of a file's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeField {
    /// Last read.
    Access,
    /// Last change of the inode.
    Change,
    /// Last change of the data.
    Modification,
    /// Time of creation; only where there is room.
    Creation,
}

impl TimeField {
    fn extra_offset(self) -> usize {
        match self {
            Self::Access => offset_of!(RawInode, i_atime_extra),
            Self::Change => offset_of!(RawInode, i_ctime_extra),
            Self::Modification => offset_of!(RawInode, i_mtime_extra),
            Self::Creation => offset_of!(RawInode, i_crtime_extra),
        }
    }
}

impl Inode {
    /// A time; `None` only for a creation time that the inode has no room for.
    pub fn time(&self, field: TimeField) -> Option<Timestamp> {
        let raw = &self.raw;
        let (word, extra) = match field {
            TimeField::Access => (raw.i_atime, raw.i_atime_extra),
            TimeField::Change => (raw.i_ctime, raw.i_ctime_extra),
            TimeField::Modification => (raw.i_mtime, raw.i_mtime_extra),
            TimeField::Creation if !self.has(offset_of!(RawInode, i_crtime), 4) => return None,
            TimeField::Creation => (raw.i_crtime, raw.i_crtime_extra),
        };
        let has_extra = self.has(field.extra_offset(), 4);
        Some(Timestamp::decode(word, has_extra.then_some(extra)))
    }

    /// Sets a time, as near as it can be stored. A creation time without room is dropped.
    pub fn set_time(&mut self, field: TimeField, time: Timestamp) {
        let has_extra = self.has(field.extra_offset(), 4);
        let has_creation = self.has(offset_of!(RawInode, i_crtime), 4);
        let raw = &mut self.raw;
        let (word, extra) = match field {
            TimeField::Access => (&mut raw.i_atime, &mut raw.i_atime_extra),
            TimeField::Change => (&mut raw.i_ctime, &mut raw.i_ctime_extra),
            TimeField::Modification => (&mut raw.i_mtime, &mut raw.i_mtime_extra),
            TimeField::Creation if !has_creation => return,
            TimeField::Creation => (&mut raw.i_crtime, &mut raw.i_crtime_extra),
        };
        let (low, high) = time.encode(has_extra);
        word.set(low);
        if has_extra {
            extra.set(high);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64, nanoseconds: u32) -> Timestamp {
        Timestamp {
            seconds,
            nanoseconds,
        }
    }

    #[test]
    fn seconds_at_the_edges_of_each_epoch_come_back() {
        // Pairs from the kernel's table of epochs.
        for (seconds, word, epoch) in [
            (-0x8000_0000, 0x8000_0000, 0),
            (-1, 0xFFFF_FFFF, 0),
            (0x7FFF_FFFF, 0x7FFF_FFFF, 0),
            (0x8000_0000, 0x8000_0000, 1),
            (0x1_7FFF_FFFF, 0x7FFF_FFFF, 1),
            (0x2_0000_0000, 0x0000_0000, 2),
            (0x3_7FFF_FFFF, 0x7FFF_FFFF, 3),
        ] {
            let is_limit = [Timestamp::MIN.seconds, Timestamp::MAX.seconds].contains(&seconds);
            let nanoseconds = if is_limit { 0 } else { 5 };
            let (low, extra) = at(seconds, 5).encode(true);
            let found = (low, extra & 3, extra >> 2);
            assert_eq!(found, (word, epoch, nanoseconds), "{seconds}");
            let time = Timestamp::decode(low.into(), Some(extra.into()));
            assert_eq!(time, at(seconds, nanoseconds));
        }
    }

    #[test]
    fn times_outside_become_the_nearest() {
        let (word, extra) = at(i64::MAX, 1).encode(true);
        assert_eq!(
            Timestamp::decode(word.into(), Some(extra.into())),
            Timestamp::MAX
        );
        for seconds in [Timestamp::MIN.seconds, Timestamp::MAX.seconds] {
            let (word, extra) = at(seconds, 7).encode(true);
            assert_eq!(
                Timestamp::decode(word.into(), Some(extra.into())),
                at(seconds, 0)
            );
        }
        let (word, extra) = at(1 << 31, 7).encode(false);
        assert_eq!((word, extra), (0x7FFF_FFFF, 0));
        let (word, _) = at(i64::MIN, 0).encode(false);
        assert_eq!(Timestamp::decode(word.into(), None), Timestamp::MIN);
    }

    #[test]
    fn nonsense_nanoseconds_stay_below_a_second() {
        let time = Timestamp::decode(0.into(), Some(u32::MAX.into()));
        assert_eq!(time.nanoseconds, 999_999_999);
    }

    #[test]
    fn time_without_room_for_an_extra_word_keeps_seconds() {
        let mut short = Inode::zeroed(0);
        short.set_time(TimeField::Modification, at(77, 5));
        short.set_time(TimeField::Creation, at(77, 5));
        assert_eq!(short.time(TimeField::Modification), Some(at(77, 0)));
        assert_eq!(short.time(TimeField::Creation), None);
        let mut long = Inode::zeroed(Inode::EXTRA_BYTES);
        long.set_time(TimeField::Creation, at(77, 5));
        assert_eq!(long.time(TimeField::Creation), Some(at(77, 5)));
    }
}
