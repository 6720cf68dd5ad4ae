//! The guest's bytes.

use std::ops::ControlFlow;

use extant_space::{ByteRange, Error, ErrorKind, Result, SpaceFile};

use super::{Kind, Layer};
use crate::format::{CompressedPlace, Mapping};
use crate::qcow2::Qcow2;

impl Layer {
    /// Reads the guest's bytes at `offset` into all of `buffer`; zeros follow the end of the disk.
    ///
    /// # Errors
    /// `Corrupt` for tables and compressed clusters that cannot be, `InvalidArgument` where a file
    /// is needed that was not given; and errors of reading.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let asked = ByteRange::at(offset, buffer.len() as u64)
            .ok_or_else(|| Error::new(ErrorKind::InvalidArgument))?;
        let disk = ByteRange::new(0, self.virtual_bytes);
        let inside = asked.intersection(disk).map_or(0, ByteRange::len) as usize;
        let (buffer, behind) = buffer.split_at_mut(inside);
        behind.fill(0);
        match &self.kind {
            Kind::Raw(file) => fill(&**file, buffer, offset),
            Kind::Qcow2(qcow2) => {
                qcow2.for_each_run(ByteRange::new(offset, offset + inside as u64), &mut |run| {
                    let start = (run.guest.start() - offset) as usize;
                    let part = &mut buffer[start..][..run.guest.len() as usize];
                    match run.mapping {
                        Mapping::Zero(_) => part.fill(0),
                        Mapping::Data(place) => fill(&**self.data()?, part, place)?,
                        Mapping::Compressed(place) => {
                            expand_part(qcow2, place, part, run.guest.start())?;
                        }
                        Mapping::Unallocated => self.read_below(part, run.guest.start())?,
                    }
                    Ok(ControlFlow::Continue(()))
                })
            }
        }
    }

    fn read_below(&self, part: &mut [u8], offset: u64) -> Result<()> {
        let has_name = self
            .header()
            .is_some_and(|header| header.backing_file.is_some());
        match &self.backing {
            Some(backing) => backing.read_at(part, offset),
            None if has_name => self.check_complete(),
            None => {
                part.fill(0);
                Ok(())
            }
        }
    }
}

/// Reads a file that may end early: zeros follow.
fn fill(file: &dyn SpaceFile, buffer: &mut [u8], offset: u64) -> Result<()> {
    let got = file.read_at(buffer, offset)?;
    buffer[got..].fill(0);
    Ok(())
}

/// The part of a compressed cluster that begins at `guest_offset`.
fn expand_part(
    qcow2: &Qcow2,
    place: CompressedPlace,
    part: &mut [u8],
    guest_offset: u64,
) -> Result<()> {
    let cluster_bytes = qcow2.header.geometry.cluster_bytes();
    let start = guest_offset / cluster_bytes * cluster_bytes;
    if part.len() as u64 == cluster_bytes {
        return qcow2.expand(place, start, part);
    }
    let mut cluster = vec![0; cluster_bytes as usize];
    qcow2.expand(place, start, &mut cluster)?;
    let skip = (guest_offset - start) as usize;
    part.copy_from_slice(&cluster[skip..][..part.len()]);
    Ok(())
}
