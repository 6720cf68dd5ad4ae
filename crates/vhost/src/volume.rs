//! A device as guests see it: features and configuration space of a virtio block device.
//!
//! The geometry of the device is queried when it is needed, so that a device may be resized while
//! it is served.
//!
//! Format: virtio 1.2, 5.2.4 "Device configuration layout".

use std::sync::Arc;

use extant_blockdev::{Access, Device, DiscardPolicy, Features, SECTOR_BYTES, ZeroedSpace};
use virtio_bindings::virtio_blk as blk;
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{Immutable, IntoBytes};

/// Longest serial number (`VIRTIO_BLK_ID_BYTES`).
pub(crate) const SERIAL_BYTES: usize = blk::VIRTIO_BLK_ID_BYTES as usize;
/// Most ranges of one discard or write zeroes.
pub(crate) const RANGES_MAX: usize = 64;
/// Most bytes of one of these ranges: it runs as a whole, and others wait for it at shutdown.
pub(crate) const RANGE_BYTES_MAX: u64 = 2 << 30;
/// Parts of a request's data. With header and status it fits into a queue of 128, the default of
/// virtual machine monitors.
const SEGMENTS_MAX: u32 = 126;

/// A device to be served, and what clients may do with it.
#[derive(Clone)]
pub struct Volume {
    name: String,
    device: Arc<dyn Device>,
    is_read_only: bool,
    discard: DiscardPolicy,
    serial: Vec<u8>,
    queues: u16,
}

impl Volume {
    /// `device` under a name, which events carry. Its first 20 bytes are the serial number that the
    /// guest reads.
    pub fn new(name: impl Into<String>, device: Arc<dyn Device>, access: Access) -> Self {
        let name = name.into();
        Self {
            serial: shortened(&name),
            name,
            is_read_only: access.is_read_only(&device.geometry()),
            device,
            discard: DiscardPolicy::default(),
            queues: 4,
        }
    }

    /// The same with another discard policy; the default is `Unmap`.
    #[must_use]
    pub fn with_discard_policy(self, discard: DiscardPolicy) -> Self {
        Self { discard, ..self }
    }

    /// The same with another serial number, of which the first 20 bytes are used.
    #[must_use]
    pub fn with_serial(self, serial: &str) -> Self {
        Self {
            serial: shortened(serial),
            ..self
        }
    }

    /// The same with room for another number of queues, at least one; the default is 4. The guest
    /// uses as many as its monitor sets up.
    #[must_use]
    pub fn with_queues(self, queues: u16) -> Self {
        Self {
            queues: queues.max(1),
            ..self
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device behind it.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    pub(crate) fn queues(&self) -> u16 {
        self.queues
    }

    pub(crate) fn serial(&self) -> &[u8] {
        &self.serial
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    pub(crate) fn offers_discard(&self) -> bool {
        !self.is_read_only() && self.discard.offers_discard(&self.device.geometry())
    }

    /// The space after a write zeroes whose unmap flag is `may_unmap`.
    pub(crate) fn zeroed_space(&self, may_unmap: bool) -> ZeroedSpace {
        self.discard.zeroed_space(may_unmap)
    }

    /// Feature bits of virtio.
    pub(crate) fn features(&self) -> u64 {
        let mut bits = vec![
            VIRTIO_F_VERSION_1,
            VIRTIO_RING_F_EVENT_IDX,
            VIRTIO_RING_F_INDIRECT_DESC,
            blk::VIRTIO_BLK_F_SEG_MAX,
            blk::VIRTIO_BLK_F_BLK_SIZE,
            blk::VIRTIO_BLK_F_TOPOLOGY,
            blk::VIRTIO_BLK_F_FLUSH,
        ];
        if self.queues > 1 {
            bits.push(blk::VIRTIO_BLK_F_MQ);
        }
        if self.is_read_only() {
            bits.push(blk::VIRTIO_BLK_F_RO);
        } else {
            bits.push(blk::VIRTIO_BLK_F_WRITE_ZEROES);
        }
        if self.offers_discard() {
            bits.push(blk::VIRTIO_BLK_F_DISCARD);
        }
        bits.into_iter().fold(0, |all, bit| all | 1 << bit)
    }

    /// The configuration space.
    pub(crate) fn config(&self) -> Vec<u8> {
        let geometry = self.device.geometry();
        let block = u64::from(geometry.logical_block).max(SECTOR_BYTES);
        let physical = u64::from(geometry.physical_block).max(block);
        let sectors = |bytes: u64| U32::new((bytes.min(RANGE_BYTES_MAX) / SECTOR_BYTES) as u32);
        let config = Config {
            capacity: U64::new(geometry.whole_sectors()),
            seg_max: U32::new(SEGMENTS_MAX),
            blk_size: U32::new(block as u32),
            physical_block_exp: (physical / block).ilog2() as u8,
            min_io_size: U16::new(u16::try_from(physical / block).unwrap_or(u16::MAX)),
            num_queues: U16::new(self.queues),
            max_discard_sectors: sectors(u64::MAX),
            max_discard_seg: U32::new(RANGES_MAX as u32),
            discard_sector_alignment: sectors(geometry.limits.discard.granularity.max(block)),
            max_write_zeroes_sectors: sectors(u64::MAX),
            max_write_zeroes_seg: U32::new(RANGES_MAX as u32),
            write_zeroes_may_unmap: u8::from(
                geometry.features.contains(Features::WRITE_ZEROES_UNMAP)
                    && self.zeroed_space(true) == ZeroedSpace::MayUnmap,
            ),
            ..Config::default()
        };
        config.as_bytes().to_vec()
    }

    /// Bytes that guests can address.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.device.geometry().whole_sectors() * SECTOR_BYTES
    }
}

fn shortened(text: &str) -> Vec<u8> {
    text.bytes().take(SERIAL_BYTES).collect()
}

/// `struct virtio_blk_config`.
#[derive(Clone, Copy, Default, IntoBytes, Immutable)]
#[repr(C)]
struct Config {
    capacity: U64,
    size_max: U32,
    seg_max: U32,
    cylinders: U16,
    heads: u8,
    sectors: u8,
    blk_size: U32,
    physical_block_exp: u8,
    alignment_offset: u8,
    min_io_size: U16,
    opt_io_size: U32,
    writeback: u8,
    unused0: u8,
    num_queues: U16,
    max_discard_sectors: U32,
    max_discard_seg: U32,
    discard_sector_alignment: U32,
    max_write_zeroes_sectors: U32,
    max_write_zeroes_seg: U32,
    write_zeroes_may_unmap: u8,
    unused1: [u8; 3],
}

const _: () = assert!(size_of::<Config>() == 60);

#[cfg(test)]
mod tests {
    use super::*;
    use extant_blockdev::MemoryDevice;

    fn has(volume: &Volume, bit: u32) -> bool {
        volume.features() & 1 << bit != 0
    }

    #[test]
    fn read_only_volume_offers_no_changes() {
        let device = Arc::new(MemoryDevice::new(1 << 20));
        let volume = Volume::new("v", device.clone(), Access::ReadWrite);
        assert!(has(&volume, blk::VIRTIO_BLK_F_WRITE_ZEROES));
        assert!(has(&volume, blk::VIRTIO_BLK_F_DISCARD));
        assert!(!has(&volume, blk::VIRTIO_BLK_F_RO));
        let kept = volume.with_discard_policy(DiscardPolicy::Ignore);
        assert!(has(&kept, blk::VIRTIO_BLK_F_WRITE_ZEROES));
        assert!(!has(&kept, blk::VIRTIO_BLK_F_DISCARD));
        assert_eq!(kept.config()[56], 0, "may not unmap");
        let fixed = Volume::new("v", device, Access::ReadOnly);
        assert!(has(&fixed, blk::VIRTIO_BLK_F_RO));
        assert!(!has(&fixed, blk::VIRTIO_BLK_F_WRITE_ZEROES));
        assert!(!has(&fixed, blk::VIRTIO_BLK_F_DISCARD));
    }

    #[test]
    fn serial_is_the_start_of_the_name_unless_given() {
        let device = Arc::new(MemoryDevice::new(1 << 20));
        let volume = Volume::new("a-name-of-more-than-twenty", device, Access::ReadWrite);
        assert_eq!(volume.serial(), b"a-name-of-more-than-");
        assert_eq!(volume.with_serial("s1").serial(), b"s1");
    }
}
