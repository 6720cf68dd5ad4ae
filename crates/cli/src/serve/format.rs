//! What a file is: its user says so, by the option or by its name, and its contents never do.
//!
//! Who writes to a raw image decides what its first bytes are. Were they believed, a client could make its disk a qcow2 image
//! whose backing file is any file of this machine, and read that the next time. So the contents are looked at only to
//! refuse: what looks like an image of another format is served neither as that nor, unless told to, as raw, in which
//! a client would find the image's tables instead of its disk.

use std::path::Path;

use extant_blockdev::Device;
use extant_image::Format;
use extant_space::{Error, ErrorKind, Result};

use crate::create::ImageFormat;

/// What `path` is served as, if anybody has said so: with the option, or by the end of its name.
pub(super) fn said(option: Option<ImageFormat>, path: &Path) -> Option<Format> {
    match (option, Format::of_name(path)) {
        (Some(format), _) => Some(format.into()),
        (None, Format::Qcow2) => Some(Format::Qcow2),
        (None, Format::Raw) => None,
    }
}

/// Bytes looked at.
const HEAD: usize = 4096;

/// Name, place and first bytes of formats that hold the blocks of a disk elsewhere than where they are read.
const SIGNATURES: [(&str, usize, &[u8]); 9] = [
    ("qcow2", 0, b"QFI\xfb"),
    ("QED", 0, b"QED\0"),
    ("VMDK", 0, b"KDMV"),
    ("VMDK", 0, b"COWD"),
    ("VMDK", 0, b"# Disk DescriptorFile"),
    ("VHDX", 0, b"vhdxfile"),
    ("VHD", 0, b"conectix"),
    ("VDI", 64, &[0x7f, 0x10, 0xda, 0xbe]),
    ("Parallels", 0, b"Witho"),
];

/// Refuses a device that looks like an image of another format than raw.
pub(super) fn refuse_other_than_raw(device: &dyn Device) -> Result<()> {
    let geometry = device.geometry();
    let block = u64::from(geometry.logical_block);
    let length = geometry.size.min((HEAD as u64).next_multiple_of(block));
    let mut head = vec![0; length as usize];
    device.read_at(&mut head, 0)?;
    match looks_like(&head) {
        None => Ok(()),
        Some(name) => Err(Error::new(ErrorKind::Unsupported)
            .detail(format!("it looks like a {name} image, which its name does not say"))
            .advice("say --format qcow2 if you know who made it, convert it (qemu-img convert) if it is another, or say \
                     --format raw to serve its bytes as they are")),
    }
}

fn looks_like(head: &[u8]) -> Option<&'static str> {
    let found = SIGNATURES
        .iter()
        .find(|(_, at, bytes)| head.get(*at..).is_some_and(|rest| rest.starts_with(bytes)));
    found.map(|(name, ..)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_counts_before_the_name_and_the_name_says_qcow2_or_nothing() {
        let qcow2 = Path::new("/a/vm.qcow2");
        assert_eq!(said(None, qcow2), Some(Format::Qcow2));
        assert_eq!(said(Some(ImageFormat::Raw), qcow2), Some(Format::Raw));
        assert_eq!(said(None, Path::new("qcow2")), None);
        assert_eq!(said(None, Path::new("vm.raw")), None);
    }

    #[test]
    fn formats_are_known_by_their_first_bytes_and_short_files_by_nothing() {
        assert_eq!(looks_like(b"QFI\xfb\0\0\0\x03"), Some("qcow2"));
        let mut vdi = [0; 512];
        vdi[64..68].copy_from_slice(&0xbeda_107f_u32.to_le_bytes());
        assert_eq!(looks_like(&vdi), Some("VDI"));
        assert_eq!(looks_like(&vdi[..66]), None);
        assert_eq!(looks_like(b""), None);
        assert_eq!(looks_like(&[0; 4096]), None);
    }
}
