//! Allocation for several threads that write into a sparse file.
//!
//! Each thread would allocate its own ranges in the order of their arrival, which makes many
//! extents. So the first data of a stride allocates the whole stride, and zeros are punched
//! afterwards. A source of zeros allocates nothing.

use extant_space::{ByteRange, ErrorKind, FallocateMode, Result, SpaceFile};
use parking_lot::Mutex;

/// A part of the file that is allocated at once.
pub(super) struct Stride {
    /// Its range in the file; `None`: already allocated.
    range: Option<ByteRange>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    is_allocated: bool,
    /// Zeros that were found before.
    zeros: Vec<ByteRange>,
}

impl Stride {
    /// Bytes of one, at most: half of the largest extent of ext4.
    pub(super) const BYTES: u64 = 64 << 20;

    pub(super) fn new(range: Option<ByteRange>) -> Self {
        Self {
            range,
            state: Mutex::default(),
        }
    }

    /// Data will be written to it.
    pub(super) fn allocate(&self, file: &dyn SpaceFile) -> Result<()> {
        let Some(range) = self.range else {
            return Ok(());
        };
        let mut state = self.state.lock();
        if state.is_allocated {
            return Ok(());
        }
        match file.fallocate(FallocateMode::AllocateKeepSize, range) {
            Ok(()) => {}
            // It may fit without the zeros, or the file system may have no such call: each piece on
            // its own, then.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::NoSpace | ErrorKind::QuotaExceeded | ErrorKind::Unsupported
                ) =>
            {
                punch(file, range)?;
            }
            Err(error) => return Err(error),
        }
        state.is_allocated = true;
        std::mem::take(&mut state.zeros)
            .into_iter()
            .try_for_each(|zeros| punch(file, zeros))
    }

    /// Zeros that are left out.
    pub(super) fn leave_out(&self, file: &dyn SpaceFile, zeros: ByteRange) -> Result<()> {
        if self.range.is_none() {
            return Ok(());
        }
        let mut state = self.state.lock();
        if state.is_allocated {
            return punch(file, zeros);
        }
        state.zeros.push(zeros);
        Ok(())
    }
}

fn punch(file: &dyn SpaceFile, range: ByteRange) -> Result<()> {
    match file.fallocate(FallocateMode::PunchHole, range) {
        // It takes space, and is zeros.
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(()),
        done => done,
    }
}
