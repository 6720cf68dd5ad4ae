//! Makes an ext4 image, writes a file into it and reads it, without root and without a mount.
//!
//!     cargo run -p extant-ext4 --example ext4_file -- /tmp/disk.img
//!
//! `mke2fs` of e2fsprogs makes the file system; the rest is the engine.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use extant_blockdev::{HostDevice, HostOptions};
use extant_ext4::{Filesystem, NewKind, NewNode, Options};
use extant_space::{ByteRange, FallocateMode, Result, SpaceFile, SyncMode};

const TEXT: &[u8] = b"a record\n";

fn main() {
    let Some(path) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: ext4_file IMAGE");
        std::process::exit(2);
    };
    if let Err(error) = make(&path)
        .and_then(|()| write(&path))
        .and_then(|()| read(&path))
    {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

/// Makes the image, which must not exist.
fn make(path: &Path) -> Result<()> {
    std::fs::File::create_new(path)?.set_len(64 << 20)?;
    let status = Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4"])
        .arg(path)
        .status()?;
    assert!(status.success(), "mke2fs failed");
    Ok(())
}

fn open(path: &Path) -> Result<Filesystem> {
    let device = HostDevice::open(path, &HostOptions::default())?;
    Filesystem::open(Arc::new(device), Options::default())
}

fn write(path: &Path) -> Result<()> {
    let filesystem = open(path)?;
    let new = NewNode {
        kind: NewKind::Regular,
        permissions: 0o644,
        uid: 0,
        gid: 0,
        umask: 0,
    };
    let file = filesystem.root()?.create(b"log", &new)?.file()?;
    // Written space: the records will change no metadata.
    file.fallocate(FallocateMode::WriteZeroes, ByteRange::new(0, 1 << 20))?;
    file.write_at(TEXT, 0)?;
    file.sync(SyncMode::All)?;
    filesystem.close()
}

fn read(path: &Path) -> Result<()> {
    let filesystem = open(path)?;
    let file = filesystem.root()?.lookup(b"log")?.file()?;
    let mut text = vec![0; TEXT.len()];
    file.read_at(&mut text, 0)?;
    println!(
        "/log has {} bytes and begins with {:?}",
        file.size()?,
        String::from_utf8_lossy(&text)
    );
    filesystem.close()
}
