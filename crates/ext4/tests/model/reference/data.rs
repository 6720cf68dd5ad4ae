//! Data of the reference.

use extant_ext4::InodeFlags;
use extant_space::{ByteRange, ErrorKind, ExtentState, FallocateMode};

use super::{Body, FileData, Id, Reference, Result};
use crate::operation::{Data, Outcome, Place, Tooth};
use crate::tree::{Content, push_state};

/// Effect of a change on existing data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Changing {
    /// It stays: append-only files accept that.
    Growing,
    Inside,
}

impl Reference {
    pub(super) fn write(&mut self, place: &Place, offset: u64, bytes: &[u8]) -> Result<()> {
        let size = self.file(place)?.1.size;
        let change = if offset < size {
            Changing::Inside
        } else {
            Changing::Growing
        };
        self.change_file(place, change, |file| file.write(offset, bytes))
    }

    pub(super) fn resize(&mut self, place: &Place, size: u64) -> Result<()> {
        self.change_file(place, Changing::Inside, |file| file.resize(size))
    }

    pub(super) fn fallocate(
        &mut self,
        place: &Place,
        mode: FallocateMode,
        range: ByteRange,
    ) -> Result<()> {
        self.file(place)?;
        if range.is_empty() {
            return Err(ErrorKind::InvalidArgument);
        }
        let change = match mode {
            FallocateMode::Allocate | FallocateMode::AllocateKeepSize => Changing::Growing,
            _ => Changing::Inside,
        };
        self.change_file(place, change, |file| file.fallocate(mode, range))
    }

    pub(super) fn comb(
        &mut self,
        place: &Place,
        first: u64,
        count: u64,
        tooth: Tooth,
    ) -> Result<()> {
        (0..count).try_for_each(|number| {
            let (offset, range) = tooth_at(first, number, self.format.block_bytes);
            match tooth {
                Tooth::Written(seed) => {
                    let length = range.len() as usize;
                    self.write(place, offset, &Data { length, seed }.bytes())
                }
                Tooth::Punched => self.fallocate(place, FallocateMode::PunchHole, range),
            }
        })
    }

    pub(super) fn read(&self, place: &Place, offset: u64, length: usize) -> Result<Outcome> {
        let (_, file) = self.file(place)?;
        Ok(Outcome::Bytes(file.read(offset, length)))
    }

    pub(super) fn extents(&self, place: &Place, range: ByteRange) -> Result<Outcome> {
        let (_, file) = self.file(place)?;
        Ok(Outcome::States(clip_states(&file.content().states, range)))
    }

    /// The regular file at a place.
    pub fn file(&self, place: &Place) -> Result<(Id, &FileData)> {
        let id = self.find(place)?;
        match &self.object(id).body {
            Body::Regular(file) => Ok((id, file)),
            Body::Directory(_) => Err(ErrorKind::IsDirectory),
            _ => Err(ErrorKind::WrongType),
        }
    }

    /// Adopts the state found in a file.
    pub fn adopt(&mut self, place: &Place, content: &Content) {
        let format = self.format;
        let id = self.find(place).expect("a file that is there");
        let object = self.object_mut(id);
        object.modified = None;
        object.body = Body::Regular(FileData::from_content(content, format));
    }

    /// From now on any time of the last change is right.
    #[allow(dead_code, reason = "the kernel test needs it")]
    pub fn forget_modified(&mut self, place: &Place) {
        if let Ok(id) = self.find(place) {
            self.object_mut(id).modified = None;
        }
    }

    fn change_file(
        &mut self,
        place: &Place,
        changing: Changing,
        change: impl FnOnce(&mut FileData) -> Result<()>,
    ) -> Result<()> {
        let (id, _) = self.file(place)?;
        let object = self.object_mut(id);
        match changing {
            Changing::Inside => object.check_mutable()?,
            Changing::Growing if object.flags.contains(InodeFlags::IMMUTABLE) => {
                return Err(ErrorKind::Immutable);
            }
            Changing::Growing => {}
        }
        if let Body::Regular(file) = &mut object.body {
            change(file)?;
        }
        object.modified = None;
        Ok(())
    }
}

/// Position of one allocated block of a comb.
pub fn tooth_at(first: u64, number: u64, block_bytes: u32) -> (u64, ByteRange) {
    let bytes = u64::from(block_bytes);
    let offset = (first + 2 * number) * bytes;
    (offset, ByteRange::new(offset, offset + bytes))
}

/// The states in a range, clipped to it.
pub fn clip_states(
    states: &[(ByteRange, ExtentState)],
    range: ByteRange,
) -> Vec<(ByteRange, ExtentState)> {
    let mut clipped = Vec::new();
    for (part, state) in states {
        if let Some(part) = part.intersection(range) {
            push_state(&mut clipped, part, *state);
        }
    }
    clipped
}
