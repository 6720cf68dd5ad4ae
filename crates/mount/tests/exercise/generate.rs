//! Random steps. They know the model, so that most of them find something to do.

use extant_space::FallocateMode;
use fastrand::Rng;

use crate::companion::{ASYNC, CLOSE_FIRST, DIRECT, SYNC};
use crate::model::{Model, Seek};
use crate::operation::{Fallocate, Operation, Read, Resize, Sync, Write};

const PAGE: u64 = 4096;
/// Parts of a vectored read or write.
const PARTS_MAX: usize = 9;
/// Parts of an asynchronous one.
const SUBMITTED_MAX: usize = 32;

/// Makes steps for the files of a worker.
pub struct Generator {
    rng: Rng,
    /// Most bytes of a file.
    reach: u64,
}

impl Generator {
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let reach = [1 << 16, 1 << 18, 1 << 20, 3 << 20][rng.usize(0..4)];
        Self { rng, reach }
    }

    /// Most bytes that a file ever has, kept space included.
    pub fn reach(&self) -> u64 {
        self.reach
    }

    pub fn next(&mut self, files: &[Model]) -> Operation {
        let file = self.rng.usize(0..files.len());
        let model = &files[file];
        let seed = self.rng.u64(..);
        match self.rng.u32(0..1000) {
            0..200 => {
                let (offset, length) = self.range(model);
                let (way, offset, length) = self.reading(model, offset, length);
                Operation::Read {
                    file,
                    way,
                    offset,
                    length,
                }
            }
            200..500 => {
                let (offset, length) = self.range(model);
                let (way, offset, length) = self.writing(model, offset, length);
                Operation::Write {
                    file,
                    way,
                    offset,
                    length,
                    seed,
                }
            }
            500..580 => match self.rng.u32(0..20) {
                0 => Operation::Resize {
                    file,
                    way: Resize::Open,
                    size: 0,
                },
                _ => Operation::Resize {
                    file,
                    way: Resize::Descriptor,
                    size: self.offset(model),
                },
            },
            580..800 => self.fallocate(file, model),
            800..840 => Operation::Seek {
                file,
                what: *self.pick(&[Seek::Data, Seek::Hole]),
                offset: self.offset(model),
            },
            840..870 => self.copy(files, file),
            870..910 => Operation::Sync {
                file,
                what: match self.rng.u32(0..20) {
                    0 => Sync::FileSystem,
                    1..10 => Sync::Data,
                    _ => Sync::All,
                },
            },
            910..925 => Operation::Close { file },
            925..930 => Operation::KeepMapping { file },
            930..935 => Operation::SetSync {
                file,
                is_set: self.rng.bool(),
            },
            935..950 => Operation::DropMapping { file },
            950..965 => Operation::Forget { file },
            965..985 => Operation::Map { file },
            _ => Operation::Compare { file },
        }
    }

    fn reading(&mut self, model: &Model, offset: u64, length: u64) -> (Read, u64, usize) {
        let way = match self.rng.u32(0..10) {
            0..4 => Read::Cached,
            4..5 => Read::Direct,
            5..6 => Read::Submitted(self.rng.usize(1..=SUBMITTED_MAX)),
            6..7 => Read::Vectored(self.rng.usize(2..=PARTS_MAX)),
            _ => Read::Mapped(self.rng.u32(..) & (CLOSE_FIRST | DIRECT)),
        };
        match (way, inside(model, offset, length)) {
            (Read::Mapped(_), Some((offset, length))) => (way, offset, length as usize),
            (Read::Mapped(_), None) => (Read::Cached, offset, length as usize),
            _ => (way, offset, length as usize),
        }
    }

    fn writing(&mut self, model: &Model, offset: u64, length: u64) -> (Write, u64, usize) {
        let way = match self.rng.u32(0..20) {
            0..8 => Write::Cached,
            8..9 => Write::Direct,
            9..11 => Write::Submitted(self.rng.usize(1..=SUBMITTED_MAX)),
            11..12 => Write::Append,
            12..14 => Write::Vectored(self.rng.usize(2..=PARTS_MAX)),
            _ => Write::Mapped(self.rng.u32(..) & (SYNC | ASYNC | CLOSE_FIRST | DIRECT)),
        };
        match (way, inside(model, offset, length)) {
            (Write::Append, _) => {
                let length = length.min(self.reach - model.size());
                (way, model.size(), length as usize)
            }
            (Write::Mapped(_), Some((offset, length))) => {
                // Not both kinds of msync.
                let way = match way {
                    Write::Mapped(bits) if bits & SYNC != 0 => Write::Mapped(bits & !ASYNC),
                    way => way,
                };
                (way, offset, length as usize)
            }
            (Write::Mapped(_), None) => (Write::Cached, offset, length as usize),
            _ => (way, offset, length as usize),
        }
    }

    fn fallocate(&mut self, file: usize, model: &Model) -> Operation {
        use FallocateMode as Mode;
        let mode = *self.pick(&Mode::ALL);
        let by_system_call = matches!(
            mode,
            Mode::Allocate
                | Mode::AllocateKeepSize
                | Mode::PunchHole
                | Mode::ZeroRange
                | Mode::ZeroRangeKeepSize
        );
        let way = if by_system_call && self.rng.u32(0..3) > 0 {
            Fallocate::SystemCall
        } else {
            Fallocate::ControlCall
        };
        let (mut offset, mut length) = self.range(model);
        let moves = matches!(mode, Mode::CollapseRange | Mode::InsertRange);
        if moves && self.rng.u32(0..12) > 0 {
            let block = model.block_bytes();
            offset = offset.min(model.size()) / block * block;
            length = length.next_multiple_of(block).max(block);
        }
        if mode == Mode::InsertRange && model.size() + length > self.reach {
            // It would grow too long.
            return Operation::Compare { file };
        }
        Operation::Fallocate {
            file,
            way,
            mode,
            offset,
            length,
        }
    }

    fn copy(&mut self, files: &[Model], from: usize) -> Operation {
        let to = self.rng.usize(0..files.len());
        let (from_offset, length) = self.range(&files[from]);
        let (to_offset, _) = self.range(&files[to]);
        let mut length = length.min(self.reach - to_offset);
        if from == to {
            // Ranges that overlap are refused; and appended data is not copied once more.
            let left = files[from].size().saturating_sub(from_offset);
            length = length.min(from_offset.abs_diff(to_offset)).min(left);
        }
        Operation::Copy {
            from,
            from_offset,
            to,
            to_offset,
            length,
        }
    }

    /// Some bytes, inside the reach; now and then none.
    fn range(&mut self, model: &Model) -> (u64, u64) {
        let mut offset = self.offset(model);
        let mut length = match self.rng.u32(0..40) {
            0 => 0,
            1..10 => self.rng.u64(1..200),
            10..28 => self.rng.u64(1..3 * PAGE),
            28..38 => self.rng.u64(1..20 * PAGE),
            _ => self.rng.u64(1..self.reach / 2),
        };
        if self.rng.u32(0..10) < 4 {
            let unit = model.block_bytes();
            offset = offset / unit * unit;
            length = length.next_multiple_of(unit);
        }
        (offset, length.min(self.reach - offset))
    }

    /// Somewhere in a file, at its end, behind it.
    fn offset(&mut self, model: &Model) -> u64 {
        let size = model.size();
        let offset = match self.rng.u32(0..20) {
            0..11 => self.rng.u64(0..=size),
            11..13 => size,
            13..15 => size.saturating_sub(self.rng.u64(0..PAGE)),
            15..18 => size + self.rng.u64(0..4 * PAGE),
            _ => self.rng.u64(0..self.reach),
        };
        let offset = match self.rng.u32(0..10) {
            // Around the edges of pages.
            0..2 => (offset / PAGE * PAGE + PAGE).saturating_sub(self.rng.u64(0..3)),
            _ => offset,
        };
        offset.min(self.reach)
    }

    fn pick<'t, T>(&mut self, among: &'t [T]) -> &'t T {
        &among[self.rng.usize(0..among.len())]
    }
}

/// The part of a range that a mapping may touch, if there is one.
fn inside(model: &Model, offset: u64, length: u64) -> Option<(u64, u64)> {
    let length = length.min(model.size().saturating_sub(offset));
    (length > 0).then_some((offset, length))
}
