//! The number of a device, kept in `i_block` of its node.
//!
//! Two forms: 8 bits each of major and minor in the first word, or, where those are too few,
//! zero there and 12 and 20 bits in the second.

use super::{FileType, Inode};

/// Device number of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceNumber {
    /// The driver: 12 bits.
    pub major: u32,
    /// The device among the driver's: 20 bits.
    pub minor: u32,
}

impl Inode {
    /// The device of a device node; `None` for other files.
    pub fn device(&self) -> Option<DeviceNumber> {
        let kind = self.mode().file_type()?;
        if !matches!(kind, FileType::BlockDevice | FileType::CharacterDevice) {
            return None;
        }
        let word = |at: usize| {
            let bytes = self.raw.i_block[at..at + 4].try_into().expect("4 bytes");
            u32::from_le_bytes(bytes)
        };
        let (short, long) = (word(0), word(4));
        Some(match short {
            0 => DeviceNumber {
                major: long >> 8 & 0xFFF,
                minor: long & 0xFF | long >> 12 & 0xF_FF00,
            },
            short => DeviceNumber {
                major: short >> 8 & 0xFF,
                minor: short & 0xFF,
            },
        })
    }

    /// Makes `i_block` stand for `device`.
    ///
    /// # Panics
    /// When major has more than 12 bits or minor more than 20.
    pub fn set_device(&mut self, device: DeviceNumber) {
        let DeviceNumber { major, minor } = device;
        assert!(major < 1 << 12 && minor < 1 << 20, "device {major}:{minor}");
        let (short, long) = if major < 256 && minor < 256 {
            (major << 8 | minor, 0)
        } else {
            (0, minor & 0xFF | major << 8 | (minor & !0xFF) << 12)
        };
        let area = &mut self.raw.i_block;
        area.fill(0);
        area[..4].copy_from_slice(&short.to_le_bytes());
        area[4..8].copy_from_slice(&long.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ext4::inode::Mode;

    #[test]
    fn device_numbers_of_both_forms_come_back() {
        let mut node = Inode::zeroed(0);
        for (major, minor) in [
            (8, 1),
            (255, 255),
            (256, 0),
            (7, 256),
            (0xFFF, 0xF_FFFF),
            (0, 0),
        ] {
            node.set_mode(Mode::new(FileType::BlockDevice, 0o600));
            let device = DeviceNumber { major, minor };
            node.set_device(device);
            assert_eq!(node.device(), Some(device));
        }
        node.set_mode(Mode::new(FileType::Regular, 0o600));
        assert_eq!(node.device(), None);
    }
}
