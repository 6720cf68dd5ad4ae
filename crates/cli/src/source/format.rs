//! Formats of served files: given by the option or by the name, never by the contents.
//!
//! A client that writes to a raw image controls its first bytes. If they were trusted, it could
//! make its disk a qcow2 image whose backing file is any file of this machine, and read that the
//! next time. So the contents are only used to refuse: a file that looks like an image of another
//! format is served neither as that nor, without --format raw, as raw, because a client would find
//! the image's tables instead of its disk.

use std::path::Path;

use extant_blockdev::Device;
use extant_image::Format;
use extant_image::detect::{self, HEAD_BYTES};
use extant_space::{Error, ErrorKind, Result};

use crate::image_format::ImageFormat;

/// Format of `path` by the option or the extension, if either determines it.
pub(super) fn said(option: Option<ImageFormat>, path: &Path) -> Option<Format> {
    match (option, Format::of_name(path)) {
        (Some(format), _) => Some(format.into()),
        (None, Format::Qcow2) => Some(Format::Qcow2),
        (None, Format::Raw) => None,
    }
}

/// Refuses a device that looks like an image of another format than raw.
pub(super) fn refuse_other_than_raw(device: &dyn Device, path: &Path) -> Result<()> {
    let geometry = device.geometry();
    let block = u64::from(geometry.logical_block);
    let length = geometry
        .size
        .min((HEAD_BYTES as u64).next_multiple_of(block));
    let mut head = vec![0; length as usize];
    device.read_at(&mut head, 0)?;
    match detect::of_both(path, detect::of_contents(&head)) {
        None => Ok(()),
        Some(kind) => Err(Error::new(ErrorKind::Unsupported)
            .detail(format!("it looks like {}, but its name has another suffix", kind.described()))
            .advice("say --format qcow2 if you know who made it, convert it (qemu-img convert) if it is another, or say \
                     --format raw to serve its bytes as they are")),
    }
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
}
