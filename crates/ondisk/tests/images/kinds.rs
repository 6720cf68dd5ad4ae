//! The file systems that mke2fs makes, filled alike.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use crate::image::{Image, shown};

/// A file system as mke2fs makes it: mebibytes and options of mkfs.ext4.
pub type Kind = (u64, &'static [&'static str]);

pub const DEFAULTS: Kind = (128, &["-b", "4096", "-O", "orphan_file"]);
pub const BLOCKS_1K: Kind = (64, &["-b", "1024", "-O", "orphan_file"]);
pub const BLOCKS_2K: Kind = (64, &["-b", "2048"]);
pub const BLOCKS_64K: Kind = (600, &["-b", "65536"]);
pub const SHORT_DESCRIPTORS: Kind = (64, &["-b", "1024", "-O", "^64bit"]);
pub const GDT_CSUM: Kind = (64, &["-b", "1024", "-O", "^metadata_csum,uninit_bg"]);
pub const NO_SUMS: Kind = (
    64,
    &["-b", "1024", "-O", "^metadata_csum,^uninit_bg,^64bit"],
);
pub const STORED_SEED: Kind = (64, &["-b", "1024", "-O", "metadata_csum_seed"]);
pub const SMALL_INODES: Kind = (64, &["-b", "1024", "-I", "128"]);
pub const LARGE_INODES: Kind = (64, &["-b", "1024", "-I", "512", "-O", "ea_inode,large_dir"]);
pub const BLOCK_MAPS: Kind = (64, &["-b", "1024", "-O", "^extent,^64bit"]);
pub const META_BG: Kind = (300, &["-b", "1024", "-O", "meta_bg,^resize_inode"]);
pub const SPARSE_SUPER2: Kind = (128, &["-b", "1024", "-O", "sparse_super2"]);
pub const BIGALLOC: Kind = (256, &["-b", "4096", "-O", "bigalloc", "-C", "65536"]);

const NAMES: usize = 2400;

/// The fragmented file, its bytes as they should be, and the step between its pieces.
pub fn fragmented(block_bytes: usize) -> Vec<u8> {
    let blocks = if block_bytes < 4096 { 1500 } else { 800 };
    let blocks = if block_bytes > 4096 { 40 } else { blocks };
    let mut bytes = vec![0; 2 * blocks * block_bytes];
    for block in 0..blocks {
        let at = 2 * block * block_bytes;
        bytes[at..at + block_bytes].fill(block as u8 | 1);
    }
    bytes
}

/// Makes a file system with some of every structure.
pub fn make((mebibytes, arguments): Kind) -> Image {
    let image = Image::mkfs(mebibytes, arguments);
    let superblock = image.superblock();
    let block_bytes = superblock.layout().block_bytes() as usize;
    let source = image.beside("source");
    let file = File::create(&source).unwrap();
    let bytes = fragmented(block_bytes);
    file.set_len(bytes.len() as u64).unwrap();
    for (index, piece) in bytes.chunks(block_bytes).enumerate().step_by(2) {
        file.write_all_at(piece, (index * block_bytes) as u64)
            .unwrap();
    }
    let plain = image.beside("plain");
    fs::write(&plain, "0123456789abcdef".repeat(9000)).unwrap();
    let large = image.beside("large");
    fs::write(&large, "v".repeat(block_bytes / 2)).unwrap();
    let huge = image.beside("huge");
    fs::write(&huge, "w".repeat(block_bytes * 3 + 7)).unwrap();

    let mut script = vec![
        format!("write {} fragmented", shown(&source)),
        format!("write {} plain", shown(&plain)),
        "write /dev/null reserved".into(),
        "symlink short target".into(),
        format!("symlink long {}", "t/".repeat(100)),
        "mknod pipe p".into(),
        "mknod block b 8 1".into(),
        "mknod character c 300 60000".into(),
        "ea_set plain user.one 1".into(),
        "ea_set plain security.label some-label".into(),
        format!("ea_set -f {} plain user.large", shown(&large)),
        "ea_set plain user.middle-sized mmmmmmmmmmmmmmmmmmmmmmmmmmmmmm".into(),
        "mkdir full".into(),
        "mkdir empty".into(),
        "cd full".into(),
    ];
    script.extend((0..NAMES).map(|number| format!("mknod a-name-of-some-length-{number:040} p")));
    script.push("cd /".into());
    use extant_ondisk::ext4::{Incompat, RoCompat};
    let features = superblock.features();
    if features.incompat.contains(Incompat::EXTENTS) {
        let last = (40 << 20) / block_bytes;
        script.push(format!("fallocate reserved 3 {last}"));
    }
    if features.incompat.contains(Incompat::EA_INODE) {
        script.push(format!("ea_set -f {} plain user.huge", shown(&huge)));
    }
    let is_bigalloc = features.ro_compat.contains(RoCompat::BIGALLOC);
    if is_bigalloc {
        script.retain(|line| !line.starts_with("fallocate"));
    }
    image.change(&script);
    image.repair(&["-D"]);
    image
}
