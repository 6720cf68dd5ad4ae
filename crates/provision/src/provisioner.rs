//! A range of a file to allocate or write, with the parameters of the work.

use std::ops::ControlFlow;

use extant_space::{ByteRange, Control, Extent, Result, SpaceFile};

use crate::pace::Pace;

/// Extents of a map between two checks for a cancel.
const CHECK_INTERVAL_EXTENTS: u64 = 1024;

/// Gives space to a range of a file.
#[derive(Clone, Copy)]
pub struct Provisioner<'a> {
    /// The file. The caller excludes other writers.
    pub file: &'a dyn SpaceFile,
    /// The bytes that get space. Bytes inside a file that keeps its size.
    pub range: ByteRange,
    /// How the disk is used.
    pub pace: &'a Pace,
    /// Cancellation and progress.
    pub control: Control<'a>,
    /// Called between requests; its error ends the work. [`no_guard`] for none.
    pub guard: &'a dyn Fn() -> Result<()>,
}

/// A guard that never ends the work.
pub fn no_guard() -> Result<()> {
    Ok(())
}

impl<'a> Provisioner<'a> {
    /// For `range` of `file`, at the full speed of the disk.
    pub fn new(file: &'a dyn SpaceFile, range: ByteRange, control: Control<'a>) -> Self {
        Self {
            file,
            range,
            pace: &Pace::Full,
            control,
            guard: &no_guard,
        }
    }

    /// The same at `pace`.
    pub fn at_pace(self, pace: &'a Pace) -> Self {
        Self { pace, ..self }
    }

    /// The same, under `guard`.
    pub fn guarded(self, guard: &'a dyn Fn() -> Result<()>) -> Self {
        Self { guard, ..self }
    }

    /// Fails when the operation was cancelled, or when the guard ends it.
    pub(crate) fn check_stop(&self) -> Result<()> {
        self.control.cancel.check()?;
        (self.guard)()
    }

    /// Visits the extents of the range in order, with holes, until `visit` breaks or the operation
    /// is stopped. `visit` may change the file.
    pub(crate) fn for_each_extent(
        &self,
        visit: &mut dyn FnMut(Extent) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        self.check_stop()?;
        let mut seen = 0;
        self.file.walk_extents(self.range, &mut |extent| {
            seen += 1;
            if seen % CHECK_INTERVAL_EXTENTS == 0 {
                self.check_stop()?;
            }
            visit(extent)
        })
    }
}

#[cfg(test)]
mod tests {
    use extant_space::{CancelToken, Error, ErrorKind, Preallocation, Silent};

    use super::*;
    use crate::new_file::NewFile;
    use crate::test_file::TestFile;
    use crate::verify::Contents;

    #[test]
    fn guard_ends_every_step_before_it_changes_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [1; 8192]).unwrap();
        let open = TestFile::open(file.path());
        let cancel = CancelToken::new();
        let guard = || Err(Error::new(ErrorKind::InUse));
        let control = Control::new(&cancel, &Silent);
        let target = Provisioner::new(&open, ByteRange::new(0, 8192), control).guarded(&guard);
        let new = NewFile {
            size_bytes: 8192,
            preallocation: Preallocation::Full,
            contents: None,
            before_contents: &no_guard,
            resumed_bytes: 8192,
            is_synced_later: false,
        };
        let steps: [(&str, Result<()>); 8] = [
            ("survey", target.survey().map(drop)),
            ("allocate", target.allocate().map(drop)),
            ("make written", target.make_written().map(drop)),
            (
                "materialize",
                target.materialize(Default::default()).map(drop),
            ),
            ("overwrite", target.overwrite()),
            ("new file", target.provision_new(&new).map(drop)),
            ("sync", target.sync()),
            ("samples", target.verify_written(Contents::Zeros).map(drop)),
        ];
        for (name, result) in steps {
            let kind = result.map_err(|error| error.kind());
            assert_eq!(kind, Err(ErrorKind::InUse), "{name}");
        }
        assert_eq!(std::fs::read(file.path()).unwrap(), [1; 8192]);
    }

    #[test]
    fn overwrite_zeroes_the_extents_mapped_as_written() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [1; 10_000]).unwrap();
        let open = TestFile::open(file.path());
        let cancel = CancelToken::new();
        let range = ByteRange::new(100, 9000);
        let target = Provisioner::new(&open, range, Control::new(&cancel, &Silent));
        target.overwrite().unwrap();
        let bytes = std::fs::read(file.path()).unwrap();
        assert!(bytes[100..9000].iter().all(|&byte| byte == 0));
        assert!(
            bytes[..100]
                .iter()
                .chain(&bytes[9000..])
                .all(|&byte| byte == 1)
        );
    }
}
