//! INIT: the kernel offers capabilities, the server chooses.
//!
//! [`Capabilities`] lists those that the server wants. None of them is required.

use bitflags::bitflags;
use extant_space::{Error, ErrorKind, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::Body;
use crate::operations::Export;
use crate::options::WriteCache;

/// The protocol version, and the newest minor version that is implemented.
const MAJOR: u32 = 7;
const MINOR: u32 = 45;
/// The oldest minor version whose structures are implemented: Linux 5.4.
const MINOR_MIN: u32 = 31;

/// Maximum data of a write and of a reply, in bytes.
pub(crate) const DATA_LENGTH_MAX: u32 = 1 << 20;
/// Maximum number of background requests in flight: read-ahead, write-back, asynchronous direct
/// I/O.
pub(crate) const BACKGROUND_MAX: u16 = 64;
/// The kernel throttles writers from this number of background requests on.
const CONGESTION_THRESHOLD: u16 = 48;
/// Maximum pages of a request if the kernel does not negotiate them.
const DEFAULT_PAGES: u32 = 32;

/// The body of `INIT`.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct InitIn {
    pub major: u32,
    pub minor: u32,
    pub max_readahead: u32,
    pub flags: u32,
}

/// Follows [`InitIn`] if the flags contain `INIT_EXT`.
#[derive(Clone, Copy, Debug, Default, FromBytes)]
#[repr(C)]
pub(crate) struct InitExtension {
    pub flags2: u32,
    pub unused: [u32; 11],
}

/// The reply to `INIT`.
#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct InitOut {
    pub major: u32,
    pub minor: u32,
    pub max_readahead: u32,
    pub flags: u32,
    pub max_background: u16,
    pub congestion_threshold: u16,
    pub max_write: u32,
    pub time_gran: u32,
    pub max_pages: u16,
    pub map_alignment: u16,
    pub flags2: u32,
    pub max_stack_depth: u32,
    pub unused: [u32; 6],
}

bitflags! {
    /// Capabilities of kernel and server. The upper half is in `flags2`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Capabilities: u64 {
        /// Concurrent reads of a file.
        const ASYNC_READ = 1 << 0;
        /// `open` truncates, atomically.
        const ATOMIC_O_TRUNC = 1 << 3;
        /// `.` and `..` can be looked up, also in forgotten nodes.
        const EXPORT_SUPPORT = 1 << 4;
        /// Writes of more than a page.
        const BIG_WRITES = 1 << 5;
        /// The server applies the umask, because a default access list replaces it.
        const DONT_MASK = 1 << 6;
        /// ioctl on directories.
        const HAS_IOCTL_DIR = 1 << 11;
        /// Directory listings return attributes. Without `READDIRPLUS_AUTO`, which returns those
        /// of the first names only: each of the others then costs a LOOKUP.
        const DO_READDIRPLUS = 1 << 13;
        /// The requests of one direct I/O are sent concurrently.
        const ASYNC_DIO = 1 << 15;
        /// Writes end in the cache.
        const WRITEBACK_CACHE = 1 << 16;
        /// Concurrent lookups and listings of a directory.
        const PARALLEL_DIROPS = 1 << 18;
        /// The kernel checks access control lists and caches them.
        const POSIX_ACL = 1 << 20;
        /// An aborted connection is distinguishable from an unmounted one.
        const ABORT_ERROR = 1 << 21;
        /// Requests of more than 128 KiB.
        const MAX_PAGES = 1 << 22;
        /// Targets of symbolic links are cached.
        const CACHE_SYMLINKS = 1 << 23;
        /// The cache of a file is dropped only on the server's notification: no other program
        /// changes it.
        const EXPLICIT_INVAL_DATA = 1 << 25;
        /// Privileges are dropped by the server, and only if the request requires it.
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        /// SETXATTR carries whether a new access list drops the set-group-ID bit.
        const SETXATTR_EXT = 1 << 29;
        /// `flags2` is valid.
        const INIT_EXT = 1 << 30;
        /// Files opened with `DIRECT_IO` can be mapped.
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        /// Requests arrive through io_uring.
        const OVER_IO_URING = 1 << 41;
    }
}

/// The server's preferences.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Preferences {
    pub write_cache: WriteCache,
    pub export: Export,
    /// The server offers queues of io_uring.
    pub over_io_uring: bool,
}

/// Features that the kernel offers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub init: InitIn,
    pub capabilities: Capabilities,
}

/// The negotiated connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Agreement {
    pub capabilities: Capabilities,
    pub reply: InitOut,
}

impl Agreement {
    /// Requests arrive through io_uring, and wait until every queue has an entry.
    pub fn is_over_io_uring(&self) -> bool {
        self.capabilities.contains(Capabilities::OVER_IO_URING)
    }
}

impl Offer {
    /// Reads the body of `INIT`.
    pub fn read(mut body: Body<'_>) -> Result<Self, super::Malformed> {
        let init: InitIn = body.take()?;
        let mut bits = u64::from(init.flags);
        if bits & Capabilities::INIT_EXT.bits() != 0 {
            let extension: InitExtension = body.take()?;
            bits |= u64::from(extension.flags2) << 32;
        }
        Ok(Self {
            init,
            capabilities: Capabilities::from_bits_retain(bits),
        })
    }
}

impl Preferences {
    /// The preferences that the kernel offers.
    ///
    /// # Errors
    /// `Unsupported` if the kernel's protocol is too old, or has another major version.
    pub fn agree(self, offer: &Offer) -> Result<Agreement> {
        let InitIn { major, minor, .. } = offer.init;
        if major != MAJOR || minor < MINOR_MIN {
            return Err(Error::new(ErrorKind::Unsupported)
                .detail(format!("the kernel speaks FUSE {major}.{minor}"))
                .advice(format!(
                    "{MAJOR}.{MINOR_MIN} (Linux 5.4) or newer is needed"
                )));
        }
        let capabilities = self.capabilities() & offer.capabilities;
        let bits = capabilities.bits();
        let page_size = rustix::param::page_size() as u32;
        let max_pages = if capabilities.contains(Capabilities::MAX_PAGES) {
            (DATA_LENGTH_MAX / page_size).max(1)
        } else {
            DEFAULT_PAGES
        };
        let reply = InitOut {
            major: MAJOR,
            minor: MINOR.min(minor),
            max_readahead: offer.init.max_readahead,
            flags: bits as u32,
            max_background: BACKGROUND_MAX,
            congestion_threshold: CONGESTION_THRESHOLD,
            max_write: DATA_LENGTH_MAX.min(max_pages * page_size),
            time_gran: 1,
            max_pages: max_pages as u16,
            flags2: (bits >> 32) as u32,
            ..InitOut::default()
        };
        Ok(Agreement {
            capabilities,
            reply,
        })
    }

    fn capabilities(self) -> Capabilities {
        let mut wanted = Capabilities::all();
        if self.write_cache == WriteCache::Through {
            wanted -= Capabilities::WRITEBACK_CACHE;
            // The kernel does not wait for the write-back of mappings, which would extend the file
            // again.
            wanted -= Capabilities::ATOMIC_O_TRUNC;
        }
        if self.export == Export::No {
            wanted -= Capabilities::EXPORT_SUPPORT;
        }
        if !self.over_io_uring {
            wanted -= Capabilities::OVER_IO_URING;
        }
        wanted
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    fn offer(major: u32, minor: u32, bits: u64) -> Offer {
        let mut words = vec![major, minor, 131_072, bits as u32, (bits >> 32) as u32];
        words.extend([0; 11]);
        Offer::read(Body::new(words.as_bytes())).unwrap()
    }

    const PREFERENCES: Preferences = Preferences {
        write_cache: WriteCache::Back,
        export: Export::ByNumber,
        over_io_uring: true,
    };

    #[test]
    fn agreement_has_only_the_options_of_both_sides() {
        let mine = Capabilities::all().bits();
        let agreed = PREFERENCES.agree(&offer(7, 45, u64::MAX)).unwrap();
        assert_eq!(agreed.capabilities.bits(), mine);
        assert_eq!(agreed.reply.flags, mine as u32);
        assert_eq!(agreed.reply.flags2, (mine >> 32) as u32);
        assert_eq!(agreed.reply.max_write, 1 << 20);
        assert_eq!(agreed.reply.max_pages, 256);

        let preferences = Preferences {
            write_cache: WriteCache::Through,
            export: Export::No,
            over_io_uring: false,
        };
        let agreed = preferences
            .agree(&offer(7, 45, u64::MAX))
            .unwrap()
            .capabilities;
        let without = Capabilities::WRITEBACK_CACHE
            | Capabilities::ATOMIC_O_TRUNC
            | Capabilities::EXPORT_SUPPORT
            | Capabilities::OVER_IO_URING;
        assert_eq!(agreed, Capabilities::all() - without);
    }

    #[test]
    fn old_kernel_without_upper_half_gets_small_requests() {
        let words: [u32; 4] = [7, 31, 131_072, 1];
        let offer = Offer::read(Body::new(words.as_bytes())).unwrap();
        let agreed = PREFERENCES.agree(&offer).unwrap();
        assert_eq!(agreed.capabilities, Capabilities::ASYNC_READ);
        assert_eq!(agreed.reply.minor, 31);
        assert_eq!(agreed.reply.max_write, 128 << 10);
    }

    #[test]
    fn unknown_protocol_is_refused_with_its_version() {
        for (major, minor) in [(7, 30), (8, 0), (6, 99)] {
            let error = PREFERENCES
                .agree(&offer(major, minor, u64::MAX))
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains(&format!("{major}.{minor}")));
        }
        assert!(Offer::read(Body::new(&[7; 15])).is_err());
    }
}
