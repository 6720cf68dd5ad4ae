//! The feature sets of the superblock, under the names that mke2fs and dumpe2fs use.
//!
//! Unknown features: an `incompat` feature forbids opening, an `ro_compat` one writing, a `compat`
//! one only repairs. [`Features::check`] applies these rules to the list of an implementation.

use std::fmt;

use extant_space::{Error, ErrorKind, Result};

use crate::feature_set::feature_set;

feature_set! {
    /// `s_feature_compat`: may be ignored.
    Compat 'C' {
        DIR_PREALLOC = 0x1, "dir_prealloc";
        IMAGIC_INODES = 0x2, "imagic_inodes";
        HAS_JOURNAL = 0x4, "has_journal";
        EXT_ATTR = 0x8, "ext_attr";
        RESIZE_INODE = 0x10, "resize_inode";
        DIR_INDEX = 0x20, "dir_index";
        LAZY_BG = 0x40, "lazy_bg";
        EXCLUDE_BITMAP = 0x100, "snapshot_bitmap";
        SPARSE_SUPER2 = 0x200, "sparse_super2";
        FAST_COMMIT = 0x400, "fast_commit";
        STABLE_INODES = 0x800, "stable_inodes";
        ORPHAN_FILE = 0x1000, "orphan_file";
    }

    /// `s_feature_incompat`: an implementation that does not know one must not open the file
    /// system.
    Incompat 'I' {
        COMPRESSION = 0x1, "compression";
        FILETYPE = 0x2, "filetype";
        RECOVER = 0x4, "needs_recovery";
        JOURNAL_DEV = 0x8, "journal_dev";
        META_BG = 0x10, "meta_bg";
        EXTENTS = 0x40, "extent";
        BIT64 = 0x80, "64bit";
        MMP = 0x100, "mmp";
        FLEX_BG = 0x200, "flex_bg";
        EA_INODE = 0x400, "ea_inode";
        DIRDATA = 0x1000, "dirdata";
        CSUM_SEED = 0x2000, "metadata_csum_seed";
        LARGEDIR = 0x4000, "large_dir";
        INLINE_DATA = 0x8000, "inline_data";
        ENCRYPT = 0x10000, "encrypt";
        CASEFOLD = 0x20000, "casefold";
    }

    /// `s_feature_ro_compat`: an implementation that does not know one must not write.
    RoCompat 'R' {
        SPARSE_SUPER = 0x1, "sparse_super";
        LARGE_FILE = 0x2, "large_file";
        HUGE_FILE = 0x8, "huge_file";
        GDT_CSUM = 0x10, "uninit_bg";
        DIR_NLINK = 0x20, "dir_nlink";
        EXTRA_ISIZE = 0x40, "extra_isize";
        HAS_SNAPSHOT = 0x80, "snapshot";
        QUOTA = 0x100, "quota";
        BIGALLOC = 0x200, "bigalloc";
        METADATA_CSUM = 0x400, "metadata_csum";
        REPLICA = 0x800, "replica";
        READONLY = 0x1000, "read-only";
        PROJECT = 0x2000, "project";
        SHARED_BLOCKS = 0x4000, "shared_blocks";
        VERITY = 0x8000, "verity";
        ORPHAN_PRESENT = 0x10000, "orphan_present";
    }
}

/// Access for which a file system is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing is written, not even the journal.
    ReadOnly,
    /// Everything.
    ReadWrite,
}

/// All features of a file system, or all that an implementation supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Features {
    /// May be ignored.
    pub compat: Compat,
    /// Must be known to open.
    pub incompat: Incompat,
    /// Must be known to write.
    pub ro_compat: RoCompat,
}

impl Features {
    /// Features whose structures this crate reads and writes in full.
    ///
    /// An engine supports a part of them: its behaviour beyond the format is its own.
    pub const UNDERSTOOD: Self = Self {
        compat: Compat::HAS_JOURNAL
            .union(Compat::EXT_ATTR)
            .union(Compat::RESIZE_INODE)
            .union(Compat::DIR_INDEX)
            .union(Compat::SPARSE_SUPER2)
            .union(Compat::FAST_COMMIT)
            .union(Compat::STABLE_INODES)
            .union(Compat::ORPHAN_FILE),
        incompat: Incompat::FILETYPE
            .union(Incompat::RECOVER)
            .union(Incompat::META_BG)
            .union(Incompat::EXTENTS)
            .union(Incompat::BIT64)
            .union(Incompat::FLEX_BG)
            .union(Incompat::EA_INODE)
            .union(Incompat::CSUM_SEED)
            .union(Incompat::LARGEDIR),
        ro_compat: RoCompat::SPARSE_SUPER
            .union(RoCompat::LARGE_FILE)
            .union(RoCompat::HUGE_FILE)
            .union(RoCompat::GDT_CSUM)
            .union(RoCompat::DIR_NLINK)
            .union(RoCompat::EXTRA_ISIZE)
            .union(RoCompat::METADATA_CSUM)
            .union(RoCompat::ORPHAN_PRESENT),
    };

    /// Refuses features outside of `supported` that may not be ignored for `access`.
    ///
    /// # Errors
    /// `Unsupported`, with the names.
    pub fn check(&self, supported: &Self, access: Access) -> Result<()> {
        let foreign: Vec<_> = self
            .incompat
            .difference(supported.incompat)
            .names()
            .collect();
        if !foreign.is_empty() {
            return Err(refusal(&foreign));
        }
        let foreign: Vec<_> = self
            .ro_compat
            .difference(supported.ro_compat)
            .names()
            .collect();
        if access == Access::ReadWrite && !foreign.is_empty() {
            return Err(refusal(&foreign).advice("open it read-only"));
        }
        Ok(())
    }

    /// Whether all metadata carries checksums (crc32c).
    pub fn has_metadata_checksums(&self) -> bool {
        self.ro_compat.contains(RoCompat::METADATA_CSUM)
    }

    /// Whether descriptors carry a checksum of either kind, and with it flags of uninitialized
    /// parts.
    pub fn has_group_checksums(&self) -> bool {
        self.ro_compat
            .intersects(RoCompat::METADATA_CSUM.union(RoCompat::GDT_CSUM))
    }
}

fn refusal(names: &[String]) -> Error {
    let word = if names.len() == 1 {
        "feature"
    } else {
        "features"
    };
    Error::new(ErrorKind::Unsupported).detail(format!(
        "superblock: unsupported {word} {}",
        names.join(", ")
    ))
}

impl fmt::Display for Features {
    /// The names in dumpe2fs's order, with spaces between.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self
            .compat
            .names()
            .chain(self.incompat.names())
            .chain(self.ro_compat.names());
        for (index, name) in names.enumerate() {
            let gap = if index == 0 { "" } else { " " };
            write!(f, "{gap}{name}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(incompat: Incompat, ro_compat: RoCompat) -> Features {
        Features {
            compat: Compat::from_bits_retain(1 << 30),
            incompat,
            ro_compat,
        }
    }

    #[test]
    fn unknown_incompat_feature_is_refused_by_bit_for_any_access() {
        let features = with(Incompat::from_bits_retain(1 << 21), RoCompat::empty());
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let error = features.check(&Features::UNDERSTOOD, access).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert_eq!(
                error.to_string(),
                "superblock: unsupported feature FEATURE_I21"
            );
        }
    }

    #[test]
    fn unsupported_ro_compat_features_are_refused_by_name_for_writing_only() {
        let features = with(
            Incompat::EXTENTS,
            RoCompat::BIGALLOC | RoCompat::VERITY | RoCompat::SPARSE_SUPER,
        );
        features
            .check(&Features::UNDERSTOOD, Access::ReadOnly)
            .unwrap();
        let error = features
            .check(&Features::UNDERSTOOD, Access::ReadWrite)
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "superblock: unsupported features bigalloc, verity; open it read-only"
        );
    }

    #[test]
    fn unknown_compat_feature_is_shown_and_not_refused() {
        let features = with(Incompat::BIT64, RoCompat::HUGE_FILE);
        features
            .check(&Features::UNDERSTOOD, Access::ReadWrite)
            .unwrap();
        assert_eq!(features.to_string(), "FEATURE_C30 64bit huge_file");
    }
}
