//! Byte access to files on a device with blocks.
//!
//! Partial device blocks are read and written through a buffer. A block of the device never belongs
//! to two files, because it is at most as large as one of the file system; the inode's lock
//! serialises two writers of one file.

use extant_blockdev::{Device, Persistence};
use extant_space::Result;

/// Bytes of the buffer.
const WINDOW: usize = 1 << 20;

/// Fills `into` from `offset`.
pub(crate) fn read(device: &dyn Device, offset: u64, into: &mut [u8]) -> Result<()> {
    let unit = u64::from(device.geometry().logical_block);
    if is_whole(unit, offset, into.len()) {
        return device.read_at(into, offset);
    }
    let mut buffer = Vec::new();
    let mut at = offset;
    for part in into.chunks_mut(WINDOW) {
        let (start, end) = around(unit, at, part.len());
        buffer.resize((end - start) as usize, 0);
        device.read_at(&mut buffer, start)?;
        part.copy_from_slice(&buffer[(at - start) as usize..][..part.len()]);
        at += part.len() as u64;
    }
    Ok(())
}

/// Writes `from` at `offset`; other bytes in the same device blocks are kept.
pub(crate) fn write(device: &dyn Device, offset: u64, from: &[u8]) -> Result<()> {
    let unit = u64::from(device.geometry().logical_block);
    if is_whole(unit, offset, from.len()) {
        return device.write_at(from, offset, Persistence::Cached);
    }
    let mut buffer = Vec::new();
    let mut at = offset;
    for part in from.chunks(WINDOW) {
        let (start, end) = around(unit, at, part.len());
        let (skip, size) = ((at - start) as usize, (end - start) as usize);
        buffer.resize(size, 0);
        let edge = unit as usize;
        if skip > 0 {
            device.read_at(&mut buffer[..edge], start)?;
        }
        if skip + part.len() < size && (skip == 0 || size > edge) {
            device.read_at(&mut buffer[size - edge..], end - unit)?;
        }
        buffer[skip..skip + part.len()].copy_from_slice(part);
        device.write_at(&buffer, start, Persistence::Cached)?;
        at += part.len() as u64;
    }
    Ok(())
}

fn is_whole(unit: u64, offset: u64, length: usize) -> bool {
    offset.is_multiple_of(unit) && (length as u64).is_multiple_of(unit)
}

/// The whole blocks around `length` bytes at `offset`.
fn around(unit: u64, offset: u64, length: usize) -> (u64, u64) {
    let end = offset + length as u64;
    (offset / unit * unit, end.next_multiple_of(unit))
}

#[cfg(test)]
mod tests {
    use extant_blockdev::{MemoryDevice, MemoryOptions};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bytes_of_any_place_are_read_and_written_alone(
            steps in prop::collection::vec((0usize..20_000, 1usize..9_000), 1..20),
        ) {
            let device = MemoryDevice::with_options(MemoryOptions {
                logical_block: 4096,
                ..MemoryOptions::new(32_768)
            });
            let mut model = vec![0u8; 32_768];
            for (value, (offset, length)) in (1..).zip(steps) {
                let data = vec![value; length];
                write(&device, offset as u64, &data).unwrap();
                model[offset..offset + length].copy_from_slice(&data);
                let mut all = vec![0; model.len() - offset];
                read(&device, offset as u64, &mut all).unwrap();
                prop_assert_eq!(&all, &model[offset..]);
                device.read_at(&mut model.clone(), 0).unwrap();
            }
            let mut all = vec![0; model.len()];
            device.read_at(&mut all, 0).unwrap();
            prop_assert_eq!(all, model);
        }
    }
}
