//! Hidden names: `.extant-IDENTIFIER-NAME`, with the identifier of a pool's definition.
//!
//! Machines that share a pool have a definition each, so their unfinished images never have the
//! same name. The names are those of jobs (`12.copy`), and two of this storage:
//!
//! - `replaced.12`: the volume that job 12 replaces. Its name is in its metadata: it gets it back
//!   if the new one has not got it.
//! - `removed.0f3a...`: a removed volume, on its way.

/// Images whose names begin so belong to a pool, and are no volumes.
const PREFIX: &str = ".extant-";
const REPLACED: &str = "replaced.";
const REMOVED: &str = "removed.";
const IDENTIFIER_LENGTH: usize = 32;

/// The parts of a hidden name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::storage) struct HiddenName<'n> {
    /// That of the definition.
    pub(in crate::storage) identifier: &'n str,
    /// Inside the pool.
    pub(in crate::storage) inner: &'n str,
}

impl<'n> HiddenName<'n> {
    pub(in crate::storage) fn parse(image: &'n str) -> Option<Self> {
        let rest = image.strip_prefix(PREFIX)?;
        let (identifier, inner) = rest.split_once('-')?;
        let is_identifier = identifier.len() == IDENTIFIER_LENGTH
            && identifier.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_identifier.then_some(Self { identifier, inner })
    }
}

/// The image with the unfinished file `inner`.
pub(in crate::storage) fn hidden(identifier: &str, inner: &str) -> String {
    format!("{PREFIX}{identifier}-{inner}")
}

/// The name of the volume that an unfinished file replaces.
pub(in crate::storage) fn replaced_by(work: &str) -> String {
    let number = work.split('.').next().unwrap_or(work);
    format!("{REPLACED}{number}")
}

pub(in crate::storage) fn is_replaced(inner: &str) -> bool {
    inner.starts_with(REPLACED)
}

/// A name for a removed volume.
pub(in crate::storage) fn removed(random: u64) -> String {
    format!("{REMOVED}{random:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{JobId, copy_name, job_of};

    #[test]
    fn hidden_names_come_back_and_belong_to_their_jobs() {
        let identifier = "0123456789abcdef0123456789abcdef";
        let name = hidden(identifier, "12.copy");
        let parsed = HiddenName::parse(&name).unwrap();
        assert_eq!((parsed.identifier, parsed.inner), (identifier, "12.copy"));
        let replaced = replaced_by(&copy_name(JobId(12)));
        assert!(is_replaced(&replaced), "{replaced}");
        // They outlive the job, which is complete without them.
        assert_eq!((job_of(&replaced), job_of(&removed(7))), (None, None));
        for other in ["web", ".web.extant-partial", ".extant-12-a", ".extant-"] {
            assert_eq!(HiddenName::parse(other), None, "{other}");
        }
    }
}
