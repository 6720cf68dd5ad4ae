//! A device whose changes stay in memory.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use extant_blockdev::{Device, Features, Geometry, Limits, Operation, RangeStatus, Request};
use extant_space::{ByteRange, Error, ErrorKind, Result};

use crate::sync::lock;

/// Bytes that are kept together, at least.
const UNIT_BYTES: u64 = 1024;

/// Reads return the data written here, otherwise that of the device below, which is never written.
/// Takes as much memory as is written.
pub(crate) struct ShadowDevice {
    below: Arc<dyn Device>,
    geometry: Geometry,
    unit: u64,
    written: Mutex<HashMap<u64, Box<[u8]>>>,
}

impl ShadowDevice {
    pub(crate) fn new(below: Arc<dyn Device>) -> Self {
        let geometry = Geometry {
            limits: Limits::NONE,
            features: Features::empty(),
            ..below.geometry()
        };
        Self {
            unit: UNIT_BYTES.max(geometry.logical_block.into()),
            below,
            geometry,
            written: Mutex::default(),
        }
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.below.read_at(into, offset)?;
        let written = lock(&self.written);
        for part in self.parts(offset, into.len()) {
            if let Some(bytes) = written.get(&part.unit) {
                into[part.outer].copy_from_slice(&bytes[part.inner]);
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<()> {
        let mut written = lock(&self.written);
        for part in self.parts(offset, from.len()) {
            let start = part.unit * self.unit;
            // The last one may be shorter.
            let length = self.unit.min(self.geometry.size - start) as usize;
            let bytes = match written.entry(part.unit) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => {
                    let mut bytes = vec![0; length];
                    if part.inner.len() < length {
                        self.below.read_at(&mut bytes, start)?;
                    }
                    entry.insert(bytes.into())
                }
            };
            bytes[part.inner].copy_from_slice(&from[part.outer]);
        }
        Ok(())
    }

    fn parts(&self, offset: u64, length: usize) -> impl Iterator<Item = Part> + use<> {
        let (unit, end) = (self.unit, offset + length as u64);
        (offset / unit..end.div_ceil(unit)).map(move |number| {
            let start = number * unit;
            let (from, to) = (start.max(offset), (start + unit).min(end));
            Part {
                unit: number,
                outer: (from - offset) as usize..(to - offset) as usize,
                inner: (from - start) as usize..(to - start) as usize,
            }
        })
    }

    fn run_one(&self, operation: &mut Operation<'_>) -> Result<()> {
        self.geometry.admit(operation)?;
        match operation {
            Operation::Read { offset, into } => {
                let mut at = *offset;
                for part in into {
                    self.read(at, part)?;
                    at += part.len() as u64;
                }
                Ok(())
            }
            Operation::Write { offset, from, .. } => {
                let mut at = *offset;
                for part in from {
                    self.write(at, part)?;
                    at += part.len() as u64;
                }
                Ok(())
            }
            Operation::Flush | Operation::Discard(_) => Ok(()),
            Operation::WriteZeroes(..) | Operation::Assign(_) => {
                Err(Error::new(ErrorKind::Unsupported))
            }
        }
    }
}

/// Contents of one unit.
struct Part {
    unit: u64,
    /// Its bytes of the request.
    outer: std::ops::Range<usize>,
    /// Its bytes of the unit.
    inner: std::ops::Range<usize>,
}

impl Device for ShadowDevice {
    fn geometry(&self) -> Geometry {
        self.geometry.clone()
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        for request in requests {
            let done = self.run_one(&mut request.operation);
            request.complete(done);
        }
    }

    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()> {
        // There may be data here where the device below has a hole.
        let _ = visit(range, RangeStatus::Data);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use extant_blockdev::{MemoryDevice, MemoryOptions, Persistence};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn shadow_reads_its_writes_and_the_device_below_is_unchanged(
            steps in prop::collection::vec((0u64..19, 1u64..9), 1..12),
        ) {
            // 19 blocks of 512 bytes: the last unit is half a one.
            let below = MemoryDevice::with_options(MemoryOptions {
                logical_block: 512,
                ..MemoryOptions::new(19 * 512)
            });
            below.write_at(&[0xEE; 19 * 512], 0, Persistence::Cached).unwrap();
            let below = Arc::new(below);
            let shadow = ShadowDevice::new(below.clone());
            let mut model = vec![0xEE; 19 * 512];
            for (value, (start, blocks)) in (1..).zip(steps) {
                let (start, end) = (start * 512, ((start + blocks) * 512).min(19 * 512));
                let data = vec![value; (end - start) as usize];
                shadow.write_at(&data, start, Persistence::Cached).unwrap();
                model[start as usize..end as usize].fill(value);
                let mut seen = vec![0; (19 * 512 - start) as usize];
                shadow.read_at(&mut seen, start).unwrap();
                prop_assert_eq!(&seen, &model[start as usize..]);
            }
            prop_assert_eq!(below.to_vec(), vec![0xEE; 19 * 512]);
        }
    }
}
