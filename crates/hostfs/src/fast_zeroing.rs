//! Whether a disk zeroes without being sent zeros, so that `FALLOC_FL_WRITE_ZEROES` works on the
//! file system above, and why not.
//!
//! The kernel (6.17 and newer) offers the mode on disks whose driver reports write zeroes that
//! unmap: NVMe with DEAC whose deallocated blocks read as zeros, and SCSI with LBPRZ and a WRITE
//! SAME that unmaps. The limit in the queue of the disk decides; the rest is read for the reason.

use std::fs;
use std::io;
use std::path::Path;

use extant_sys::nvme::{DeallocatedReads, Namespace};
use extant_sys::scsi::ScsiDisk;
use extant_sys::stack::{DeviceKind, StackDevice};
use serde::Serialize;

use crate::disk::DiskLimits;

/// Fast zeroing of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FastZeroing {
    /// The kernel zeroes by the device, and the space is written.
    pub is_supported: bool,
    /// Why, or why not.
    pub reasons: Vec<String>,
    /// Of an NVMe namespace, if it could be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvme: Option<Namespace>,
    /// Of a SCSI disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scsi: Option<ScsiDisk>,
    /// Of a virtio-blk disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub virtio: Option<VirtioBlk>,
}

/// Negotiated features of a virtio-blk disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct VirtioBlk {
    /// `VIRTIO_BLK_F_DISCARD`.
    pub has_discard: bool,
    /// `VIRTIO_BLK_F_WRITE_ZEROES`.
    pub has_write_zeroes: bool,
}

impl VirtioBlk {
    /// From the text of sysfs: a character for each bit, from bit 0.
    fn parse(features: &str) -> Self {
        let has = |bit: usize| features.as_bytes().get(bit) == Some(&b'1');
        Self {
            has_discard: has(13),
            has_write_zeroes: has(14),
        }
    }

    fn of(sysfs: &Path) -> Option<Self> {
        let device = sysfs.join("device");
        let driver = fs::read_link(device.join("driver")).ok()?;
        if driver.file_name()? != "virtio_blk" {
            return None;
        }
        let features = fs::read_to_string(device.join("features")).ok()?;
        Some(Self::parse(&features))
    }
}

impl FastZeroing {
    /// Of `device`, which has `limits` and the directory `sysfs`.
    pub(crate) fn of(device: &StackDevice, limits: &DiskLimits, sysfs: &Path) -> Self {
        let is_nvme = limits.name.starts_with("nvme");
        let nvme = is_nvme.then(|| Namespace::identify(Path::new(&device.name)));
        let scsi = ScsiDisk::of(sysfs);
        let virtio = VirtioBlk::of(sysfs);
        let maximum = limits.write_zeroes_unmap_max_bytes;
        let is_supported = maximum.is_some_and(|bytes| bytes > 0);
        let mut reasons = Vec::new();
        if maximum.is_none() {
            reasons.push(
                "the kernel is older than 6.17, which has no write zeroes that unmap".to_owned(),
            );
        }
        if limits.write_zeroes_max_bytes == 0 {
            reasons.push("the disk has no write zeroes (write_zeroes_max_bytes is 0)".to_owned());
        }
        let in_hardware = limits.write_zeroes_unmap_max_hw_bytes;
        if maximum == Some(0) && in_hardware.is_some_and(|bytes| bytes > 0) {
            reasons.push(
                "it is turned off (write_zeroes_unmap_max_bytes in the queue is 0)".to_owned(),
            );
        }
        let said = match (&nvme, &scsi, &virtio) {
            (Some(answer), ..) => of_nvme(answer),
            (None, Some(disk), _) => of_scsi(disk),
            (None, None, Some(disk)) => of_virtio(*disk),
            (None, None, None) => of_others(&device.kind, is_supported),
        };
        reasons.extend(said);
        Self {
            is_supported,
            reasons,
            nvme: nvme.and_then(Result::ok),
            scsi,
            virtio,
        }
    }
}

fn of_nvme(answer: &io::Result<Namespace>) -> Vec<String> {
    let namespace = match answer {
        Ok(namespace) => namespace,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return vec!["NVMe: DLFEAT cannot be read here, which needs root".to_owned()];
        }
        Err(error) => return vec![format!("NVMe: DLFEAT cannot be read: {error}")],
    };
    let dlfeat = namespace.dlfeat;
    let reads = match namespace.deallocated_reads {
        DeallocatedReads::Zeros => "deallocated blocks read as zeros",
        DeallocatedReads::Ones => "deallocated blocks read as 0xFF",
        DeallocatedReads::NotReported | DeallocatedReads::Reserved => {
            "what deallocated blocks read as is not reported"
        }
    };
    let deac = if namespace.has_deac {
        "Write Zeroes may deallocate (DEAC)"
    } else {
        "Write Zeroes does not deallocate (no DEAC)"
    };
    vec![
        format!("NVMe: {reads} (DLFEAT {dlfeat:#04x})"),
        format!("NVMe: {deac}"),
    ]
}

fn of_scsi(disk: &ScsiDisk) -> Vec<String> {
    let mut reasons = Vec::new();
    match disk.provisioning {
        None => reasons.push(
            "SCSI: the disk has no page B2, so unmapped blocks may read as anything".to_owned(),
        ),
        Some(found) => {
            reasons.push(if found.lbprz {
                "SCSI: unmapped blocks read as zeros (LBPRZ)".to_owned()
            } else {
                "SCSI: unmapped blocks may read as anything (no LBPRZ)".to_owned()
            });
            reasons.push(if found.lbpws || found.lbpws10 {
                "SCSI: WRITE SAME unmaps (LBPWS)".to_owned()
            } else {
                "SCSI: WRITE SAME does not unmap (no LBPWS)".to_owned()
            });
        }
    }
    if let Some(limits) = disk.limits {
        let wsnz = if limits.wsnz { ", WSNZ" } else { "" };
        reasons.push(format!(
            "SCSI: UNMAP of up to {} blocks in {} ranges{wsnz}",
            limits.unmap_blocks_max, limits.unmap_descriptors_max
        ));
    }
    let modes = [
        ("discards", &disk.provisioning_mode),
        ("zeroes", &disk.zeroing_mode),
    ];
    for (verb, mode) in modes {
        if let Some(mode) = mode {
            reasons.push(format!("SCSI: the kernel {verb} by {mode}"));
        }
    }
    reasons
}

fn of_virtio(disk: VirtioBlk) -> Vec<String> {
    let reason = if disk.has_write_zeroes {
        "virtio: VIRTIO_BLK_F_WRITE_ZEROES is negotiated, but the driver reports no write zeroes \
         that unmap"
    } else {
        "virtio: the host offers no VIRTIO_BLK_F_WRITE_ZEROES"
    };
    vec![reason.to_owned()]
}

fn of_others(kind: &DeviceKind, is_supported: bool) -> Vec<String> {
    let reason = match kind {
        _ if is_supported => "the driver reports write zeroes that unmap",
        DeviceKind::Loop => {
            "a loop device zeroes its file by metadata, which leaves the space there unwritten"
        }
        DeviceKind::Mapper { .. } | DeviceKind::Array { .. } => {
            "not all members report write zeroes that unmap"
        }
        _ => "the driver reports no write zeroes that unmap",
    };
    vec![reason.to_owned()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_of_virtio_are_bits_from_the_left() {
        // Of a virtio-blk disk of QEMU with discard=unmap.
        let features = "0010101001111110000000000000110010000000100000000000000000000000\n";
        let disk = VirtioBlk::parse(features);
        assert!(disk.has_write_zeroes && disk.has_discard);
        let with = |bits: &str| VirtioBlk::parse(&format!("0000000000000{bits}"));
        assert!(with("10").has_discard && !with("10").has_write_zeroes);
        assert!(with("01").has_write_zeroes && !with("01").has_discard);
        assert!(!VirtioBlk::parse("").has_discard);
    }

    #[test]
    fn reasons_of_a_namespace_name_what_is_missing() {
        let namespace = |deallocated_reads, has_deac| {
            Ok(Namespace {
                dlfeat: 0x02,
                deallocated_reads,
                has_deac,
            })
        };
        let said = of_nvme(&namespace(DeallocatedReads::Ones, false)).join("; ");
        assert!(said.contains("0xFF (DLFEAT 0x02)"), "{said}");
        assert!(said.contains("no DEAC"), "{said}");
        let said = of_nvme(&namespace(DeallocatedReads::Zeros, true)).join("; ");
        assert!(
            said.contains("read as zeros") && said.contains("(DEAC)"),
            "{said}"
        );
        let denied = of_nvme(&Err(io::ErrorKind::PermissionDenied.into()));
        assert!(denied[0].contains("root"), "{denied:?}");
    }

    #[test]
    fn reasons_of_a_scsi_disk_name_what_is_missing() {
        let said = of_scsi(&ScsiDisk::default()).join("; ");
        assert!(said.contains("no page B2"), "{said}");
        let provisioning = extant_sys::scsi::Provisioning {
            lbpu: true,
            lbpws: false,
            lbpws10: false,
            lbprz: false,
        };
        let said = of_scsi(&ScsiDisk {
            provisioning: Some(provisioning),
            zeroing_mode: Some("write".to_owned()),
            ..ScsiDisk::default()
        });
        let said = said.join("; ");
        for word in ["no LBPRZ", "no LBPWS", "zeroes by write"] {
            assert!(said.contains(word), "{said}");
        }
    }
}
