//! Holes and unwritten parts of an existing file become written; its data is preserved.

use std::time::Instant;

use extant_space::{ByteRange, Error, ErrorKind, FallocateMode, LayerStates, Remedy, Result};
use serde::Serialize;

use crate::plan::Plan;
use crate::provisioner::Provisioner;
use crate::verify::{Contents, Verified};

/// Unshared in one request, which copies the data.
const UNSHARE_BYTES: u64 = 64 << 20;

/// Treatment of extents shared with other files (reflinks).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shared {
    /// The file is refused: its next overwrite would allocate.
    #[default]
    Refuse,
    /// The parts get space of their own (`FALLOC_FL_UNSHARE_RANGE`), data preserved.
    Unshare,
}

/// Result of [`Provisioner::materialize`].
#[derive(Clone, Debug, Serialize)]
pub struct MaterializeReport {
    /// The bytes that are extant now.
    pub range: ByteRange,
    /// Bytes of it that were written before.
    pub already_written_bytes: u64,
    /// Bytes of zeros written, by the file system or by us.
    pub zeroed_bytes: u64,
    /// Bytes that were written in the file, and are now in the layers below as well.
    pub zeroed_below_bytes: u64,
    /// Bytes that got space of their own.
    pub unshared_bytes: u64,
    /// The way taken; `None` when nothing was missing.
    pub plan: Option<Plan>,
    /// How the result was verified.
    pub verified: Verified,
    /// The space of the range in the layers below the file, from the top down; none for layers
    /// without a map.
    pub layers: Vec<LayerStates>,
    /// Time taken, seconds.
    pub elapsed_seconds: f64,
}

impl Provisioner<'_> {
    /// Makes the holes and unwritten parts of the range written, which is cut at the end of the
    /// file; data stays. Durable and verified on return.
    ///
    /// # Errors
    /// `CopyOnWrite` if written space would not stay in place or is shared with other files,
    /// `NoSpace` with the missing bytes, both before any change. After `Cancelled` or an error of
    /// the device the data is unchanged, and running again does the rest.
    pub fn materialize(&self, shared: Shared) -> Result<MaterializeReport> {
        let started = Instant::now();
        let whole = ByteRange::new(0, self.file.size()?);
        let range = self.range.intersection(whole).unwrap_or_default();
        let target = Provisioner { range, ..*self };
        target.pace.check(target.file, target.control.progress)?;
        target.file.check_written_stays()?;
        let before = target.survey()?;
        let unshared_bytes = match (before.shared_bytes, shared) {
            (0, _) => 0,
            (bytes, Shared::Unshare) => {
                target.unshare()?;
                bytes
            }
            (bytes, Shared::Refuse) => {
                return Err(Error::new(ErrorKind::CopyOnWrite)
                    .detail(format!(
                        "{bytes} bytes are shared with other files (reflinks): their next overwrite would allocate"
                    ))
                    .remedy(Remedy::Unshare));
            }
        };
        target.check_space(before.hole_bytes)?;
        let made = target.make_written()?;
        let verified = target.verify_written(Contents::Any)?;
        Ok(MaterializeReport {
            range,
            already_written_bytes: made.already_written_bytes,
            zeroed_bytes: made.zeroed_bytes,
            zeroed_below_bytes: made.zeroed_below_bytes,
            unshared_bytes,
            plan: made.plan,
            verified,
            layers: LayerStates::of(self.file, range)?,
            elapsed_seconds: started.elapsed().as_secs_f64(),
        })
    }

    fn unshare(&self) -> Result<()> {
        for chunk in self.range.chunks(UNSHARE_BYTES) {
            self.check_stop()?;
            self.file
                .fallocate(FallocateMode::UnshareRange, chunk)
                .map_err(|error| match error.kind() {
                    ErrorKind::Unsupported => error
                        .with_kind(ErrorKind::CopyOnWrite)
                        .detail("this file system cannot unshare; copy the file instead"),
                    _ => error,
                })?;
        }
        Ok(())
    }
}
