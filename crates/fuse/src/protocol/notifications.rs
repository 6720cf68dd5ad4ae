//! Unsolicited messages of the server to the kernel.

use zerocopy::{Immutable, IntoBytes};

use super::ReplyHeader;

/// The code of [`InvalidateInode`].
const NOTIFY_INVAL_INODE: i32 = 2;

/// The kernel's attributes of a file, and perhaps its data, are stale.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct InvalidateInode {
    header: ReplyHeader,
    ino: u64,
    off: i64,
    len: i64,
}

impl InvalidateInode {
    /// Invalidates attributes.
    pub fn attributes(node: u64) -> Self {
        Self::new(node, -1, 0)
    }

    /// Invalidates attributes, and `length` bytes of data from `offset` on; `None`: to the end.
    pub fn data(node: u64, offset: u64, length: Option<u64>) -> Self {
        let offset = i64::try_from(offset).unwrap_or(i64::MAX);
        // The kernel adds the two without a check for overflow.
        let length = length.map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
        match length.map(|bytes| bytes.min(i64::MAX - offset)) {
            // In the structure 0 means to the end.
            Some(0) => Self::attributes(node),
            length => Self::new(node, offset, length.unwrap_or(0)),
        }
    }

    fn new(ino: u64, off: i64, len: i64) -> Self {
        Self {
            header: ReplyHeader {
                len: size_of::<Self>() as u32,
                error: NOTIFY_INVAL_INODE,
                unique: 0,
            },
            ino,
            off,
            len,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalidation_of_nothing_keeps_the_data_and_of_the_rest_has_length_0() {
        let parts = |notification: InvalidateInode| (notification.off, notification.len);
        assert_eq!(parts(InvalidateInode::data(7, 4096, Some(0))), (-1, 0));
        assert_eq!(parts(InvalidateInode::data(7, 4096, Some(1))), (4096, 1));
        assert_eq!(parts(InvalidateInode::data(7, 4096, None)), (4096, 0));
        assert_eq!(
            parts(InvalidateInode::data(7, 4096, Some(u64::MAX))),
            (4096, i64::MAX - 4096)
        );
        assert_eq!(size_of::<InvalidateInode>(), 40);
    }
}
