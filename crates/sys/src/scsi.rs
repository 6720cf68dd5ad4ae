//! Properties of a SCSI disk that concern unmapped blocks: the vital product data pages B0 and B2,
//! which the kernel has read and shows in sysfs.
//!
//! Format: SBC-4, "Block Limits VPD page" and "Logical Block Provisioning VPD page".

use std::fs;
use std::path::Path;

use serde::Serialize;

/// Properties of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ScsiDisk {
    /// Page B2; `None` if the disk has none.
    pub provisioning: Option<Provisioning>,
    /// Page B0.
    pub limits: Option<BlockLimits>,
    /// How the kernel discards: `unmap`, `writesame_16`, `disabled`, ...
    pub provisioning_mode: Option<String>,
    /// How the kernel writes zeroes: `writesame_16_unmap`, `writesame`, `write`, ...
    pub zeroing_mode: Option<String>,
}

/// Logical Block Provisioning (page B2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Provisioning {
    /// LBPU: UNMAP is supported.
    pub lbpu: bool,
    /// LBPWS: WRITE SAME (16) unmaps.
    pub lbpws: bool,
    /// LBPWS10: WRITE SAME (10) unmaps.
    pub lbpws10: bool,
    /// LBPRZ: unmapped blocks read as zeros.
    pub lbprz: bool,
}

/// Block Limits (page B0).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BlockLimits {
    /// WSNZ: WRITE SAME of zero blocks, meaning up to the end, is not supported.
    pub wsnz: bool,
    /// Most blocks of one UNMAP.
    pub unmap_blocks_max: u32,
    /// Most ranges of one UNMAP.
    pub unmap_descriptors_max: u32,
    /// Unit in which UNMAP works best, blocks.
    pub unmap_granularity_blocks: u32,
    /// Most blocks of one WRITE SAME; 0: not reported.
    pub write_same_blocks_max: u64,
}

impl ScsiDisk {
    /// The disk with the sysfs directory `directory`; `None` for one of another kind.
    pub fn of(directory: &Path) -> Option<Self> {
        let device = directory.join("device");
        let scsi = fs::read_dir(device.join("scsi_disk")).ok()?;
        let scsi = scsi.flatten().next()?.path();
        let word = |name| {
            let text = fs::read_to_string(scsi.join(name)).ok()?;
            Some(text.trim().to_owned())
        };
        let page = |name| fs::read(device.join(name)).ok();
        Some(Self {
            provisioning: page("vpd_pgb2").and_then(|page| Provisioning::parse(&page)),
            limits: page("vpd_pgb0").and_then(|page| BlockLimits::parse(&page)),
            provisioning_mode: word("provisioning_mode"),
            zeroing_mode: word("zeroing_mode"),
        })
    }
}

impl Provisioning {
    fn parse(page: &[u8]) -> Option<Self> {
        if page.get(1) != Some(&0xB2) {
            return None;
        }
        let flags = page.get(5)?;
        Some(Self {
            lbpu: flags & 0x80 != 0,
            lbpws: flags & 0x40 != 0,
            lbpws10: flags & 0x20 != 0,
            // Bits 4 to 2, of which xx1b says zeros.
            lbprz: flags & 0x04 != 0,
        })
    }
}

impl BlockLimits {
    fn parse(page: &[u8]) -> Option<Self> {
        if page.get(1) != Some(&0xB0) {
            return None;
        }
        // Old disks have a page of 16 bytes.
        let number = |at: usize| {
            let bytes = page.get(at..at + 4).unwrap_or(&[0; 4]);
            u32::from_be_bytes(bytes.try_into().expect("four bytes"))
        };
        Some(Self {
            wsnz: page.get(4)? & 1 != 0,
            unmap_blocks_max: number(20),
            unmap_descriptors_max: number(24),
            unmap_granularity_blocks: number(28),
            write_same_blocks_max: u64::from(number(36)) << 32 | u64::from(number(40)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the kernel's scsi_debug with lbpu=1 lbpws=1 lbprz=1.
    const B0: [u8; 64] = {
        let mut page = [0; 64];
        (page[1], page[3], page[7], page[9], page[14]) = (0xB0, 0x3C, 0x01, 0x02, 0x04);
        (page[20], page[21], page[22], page[23]) = (0xFF, 0xFF, 0xFF, 0xFF);
        (page[26], page[31]) = (0x01, 0x01);
        (page[42], page[43]) = (0xFF, 0xFF);
        page
    };
    const B2: [u8; 8] = [0x00, 0xB2, 0x00, 0x04, 0x00, 0xC4, 0x00, 0x00];

    #[test]
    fn pages_of_an_emulated_disk_have_limits_and_zeros() {
        let limits = BlockLimits::parse(&B0).unwrap();
        assert!(!limits.wsnz);
        assert_eq!(limits.unmap_blocks_max, u32::MAX);
        assert_eq!(limits.unmap_descriptors_max, 256);
        assert_eq!(limits.unmap_granularity_blocks, 1);
        assert_eq!(limits.write_same_blocks_max, 0xFFFF);
        let provisioning = Provisioning::parse(&B2).unwrap();
        let wanted = Provisioning {
            lbpu: true,
            lbpws: true,
            lbpws10: false,
            lbprz: true,
        };
        assert_eq!(provisioning, wanted);
        let mut page = B0;
        page[4] = 0x01;
        assert!(BlockLimits::parse(&page).unwrap().wsnz);
    }

    #[test]
    fn lbprz_is_the_lowest_of_its_three_bits() {
        for (flags, zeros) in [(0x04, true), (0x1C, true), (0x08, false), (0x18, false)] {
            let page = [0, 0xB2, 0, 4, 0, flags, 0, 0];
            assert_eq!(
                Provisioning::parse(&page).unwrap().lbprz,
                zeros,
                "{flags:#x}"
            );
        }
    }

    #[test]
    fn short_and_other_pages_are_no_properties() {
        assert_eq!(Provisioning::parse(&B2[..5]), None);
        assert_eq!(Provisioning::parse(&B0), None);
        assert_eq!(BlockLimits::parse(&B2), None);
        assert_eq!(BlockLimits::parse(&[]), None);
        let old = BlockLimits::parse(&B0[..16]).unwrap();
        assert_eq!((old.unmap_blocks_max, old.wsnz), (0, false));
    }

    #[test]
    fn disk_is_read_from_sysfs() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(ScsiDisk::of(directory.path()), None);
        let scsi = directory.path().join("device/scsi_disk/0:0:0:0");
        fs::create_dir_all(&scsi).unwrap();
        fs::write(scsi.join("provisioning_mode"), "unmap\n").unwrap();
        fs::write(directory.path().join("device/vpd_pgb2"), B2).unwrap();
        let disk = ScsiDisk::of(directory.path()).unwrap();
        assert_eq!(disk.provisioning_mode.as_deref(), Some("unmap"));
        assert!(disk.provisioning.unwrap().lbpu);
        assert_eq!((disk.limits, disk.zeroing_mode), (None, None));
    }
}
