//! A device as it will be once its journal is replayed.

use std::ops::ControlFlow;
use std::sync::Arc;

use extant_blockdev::{Device, Features, Geometry, Operation, RangeStatus, Request};
use extant_jbd2::Overlay;
use extant_ondisk::ext4::PhysicalBlock;
use extant_space::{ByteRange, LayerRange, LayerVisitor, Result};

/// Reads blocks from the journal if it has them, otherwise from the device; read-only.
pub(crate) struct RecoveredDevice {
    device: Arc<dyn Device>,
    overlay: Overlay,
    block_bytes: u32,
}

impl RecoveredDevice {
    pub(crate) fn new(device: Arc<dyn Device>, overlay: Overlay, block_bytes: u32) -> Self {
        Self {
            device,
            overlay,
            block_bytes,
        }
    }

    /// Overlays the journal's blocks on the bytes read from the device.
    fn lay_over(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let size = u64::from(self.block_bytes);
        let end = offset + into.len() as u64;
        let mut block = vec![0; self.block_bytes as usize];
        for number in offset / size..end.div_ceil(size) {
            if !self.overlay.read(PhysicalBlock(number), &mut block)? {
                continue;
            }
            let start = number * size;
            let (from, to) = (start.max(offset), (start + size).min(end));
            let part = &block[(from - start) as usize..(to - start) as usize];
            into[(from - offset) as usize..(to - offset) as usize].copy_from_slice(part);
        }
        Ok(())
    }
}

impl Device for RecoveredDevice {
    fn geometry(&self) -> Geometry {
        let mut geometry = self.device.geometry();
        geometry.features |= Features::READ_ONLY;
        geometry
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        let geometry = self.geometry();
        for request in requests {
            let done = geometry.admit(&request.operation).and_then(|()| {
                if let Operation::Read { offset, into } = &mut request.operation {
                    let mut at = *offset;
                    for part in into {
                        self.device.read_at(part, at)?;
                        self.lay_over(at, part)?;
                        at += part.len() as u64;
                    }
                }
                Ok(())
            });
            request.complete(done);
        }
    }

    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()> {
        // The journal may have data where the device has a hole.
        let _ = visit(range, RangeStatus::Data);
        Ok(())
    }

    fn visit_layers(
        &self,
        at: LayerRange,
        visit: &mut LayerVisitor<'_>,
    ) -> Result<ControlFlow<()>> {
        self.device.visit_layers(at, visit)
    }
}
