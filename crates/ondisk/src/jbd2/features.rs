//! The feature sets of the journal's superblock, under the names that dumpe2fs uses.

use std::fmt;

use extant_space::{Error, ErrorKind, Result};

use crate::feature_set::feature_set;

feature_set! {
    /// `s_feature_compat`: may be ignored.
    JournalCompat 'C' {
        CHECKSUM = 0x1, "journal_checksum";
    }

    /// `s_feature_incompat`: an implementation that does not know one must not replay the journal.
    JournalIncompat 'I' {
        REVOKE = 0x1, "journal_incompat_revoke";
        BIT64 = 0x2, "journal_64bit";
        ASYNC_COMMIT = 0x4, "journal_async_commit";
        CSUM_V2 = 0x8, "journal_checksum_v2";
        CSUM_V3 = 0x10, "journal_checksum_v3";
        FAST_COMMIT = 0x20, "fast_commit";
    }

    /// `s_feature_ro_compat`: none exists.
    JournalRoCompat 'R' {}
}

/// All features of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct JournalFeatures {
    /// May be ignored.
    pub compat: JournalCompat,
    /// Must be known.
    pub incompat: JournalIncompat,
    /// Must be known to write.
    pub ro_compat: JournalRoCompat,
}

impl JournalFeatures {
    const KNOWN: JournalIncompat = JournalIncompat::REVOKE
        .union(JournalIncompat::BIT64)
        .union(JournalIncompat::ASYNC_COMMIT)
        .union(JournalIncompat::CSUM_V2)
        .union(JournalIncompat::CSUM_V3)
        .union(JournalIncompat::FAST_COMMIT);

    /// Refuses unknown features that may not be ignored. There is no journal that is only read, so
    /// that features of both sets count.
    ///
    /// # Errors
    /// `Unsupported`, with the names.
    pub fn check(&self) -> Result<()> {
        let foreign = self.incompat.difference(Self::KNOWN).names();
        let foreign: Vec<_> = foreign.chain(self.ro_compat.names()).collect();
        if foreign.is_empty() {
            return Ok(());
        }
        let word = if foreign.len() == 1 {
            "feature"
        } else {
            "features"
        };
        Err(Error::new(ErrorKind::Unsupported).detail(format!(
            "journal superblock: unsupported {word} {}",
            foreign.join(", ")
        )))
    }
}

impl fmt::Display for JournalFeatures {
    /// The names, with spaces between.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.compat.names().chain(self.incompat.names());
        let names: Vec<_> = names.chain(self.ro_compat.names()).collect();
        f.write_str(&names.join(" "))
    }
}
