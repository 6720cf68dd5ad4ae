//! The engine's hot paths, one at a time and a given number of times, for `cargo xtask
//! instructions`, on a file system that mke2fs has made.

use std::error::Error;
use std::fs::{self, File};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use extant_blockdev::MemoryDevice;
use extant_ext4::{Assign, Filesystem, NewKind, NewNode, Node, Options};
use extant_space::{ByteRange, FallocateMode, Result, SpaceFile};
use extant_testkit::hot_paths::run_named;

/// A name, and work done a given number of times on a fresh file system; returns a value that
/// depends on it.
type Path = (&'static str, fn(&Filesystem, u64) -> Result<u64>);

const PATHS: [Path; 6] = [
    ("extend a file by 8 KiB", extend),
    ("append 4 KiB", append),
    ("overwrite 4 KiB", overwrite),
    ("read 4 KiB", read),
    ("look up a name among 1,000", look_up),
    ("create a file and remove it", create_and_remove),
];

const SIZE: u64 = 256 << 20;
const BLOCK: usize = 4096;

fn main() -> ExitCode {
    run_named(&PATHS, |work, count| {
        filesystem().and_then(|filesystem| Ok(work(&filesystem, count)?))
    })
}

/// A file system in memory, always the same.
fn filesystem() -> std::result::Result<Filesystem, Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("image");
    File::create_new(&path)?.set_len(SIZE)?;
    let made = Command::new("mke2fs")
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("E2FSPROGS_FAKE_TIME", "1700000000")
        .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-N", "4096"])
        .args(["-U", "6c6f7265-6d20-6970-7375-6d20646f6c6f"])
        .args(["-E", "hash_seed=72206974-2061-6d65-742c-20636f6e7365"])
        .arg(&path)
        .status()?;
    if !made.success() {
        return Err("mke2fs failed".into());
    }
    let device = MemoryDevice::from_bytes(&fs::read(&path)?);
    let options = Options {
        assign: Assign::Off,
        // No periodic commit occurs during the count.
        commit_interval: Duration::from_secs(3600),
        ..Options::default()
    };
    Ok(Filesystem::open(Arc::new(device), options)?)
}

fn create(parent: &Node, name: &str) -> Result<Node> {
    let new = NewNode {
        kind: NewKind::Regular,
        permissions: 0o644,
        uid: 0,
        gid: 0,
        umask: 0,
    };
    parent.create(name.as_bytes(), &new)
}

fn extend(filesystem: &Filesystem, count: u64) -> Result<u64> {
    let file = create(&filesystem.root()?, "file")?.file()?;
    for number in 0..count {
        let start = number % 128 * 8192;
        file.fallocate(FallocateMode::Allocate, ByteRange::new(start, start + 8192))?;
        if number % 128 == 127 {
            file.resize(0)?;
        }
    }
    file.size()
}

fn append(filesystem: &Filesystem, count: u64) -> Result<u64> {
    let file = create(&filesystem.root()?, "file")?.file()?;
    for number in 0..count {
        file.write_at(&[1; BLOCK], number * BLOCK as u64)?;
    }
    file.size()
}

fn overwrite(filesystem: &Filesystem, count: u64) -> Result<u64> {
    let file = create(&filesystem.root()?, "file")?.file()?;
    file.write_at(&[1; 64 * BLOCK], 0)?;
    for number in 0..count {
        file.write_at(&[2; BLOCK], number % 64 * BLOCK as u64)?;
    }
    file.size()
}

fn read(filesystem: &Filesystem, count: u64) -> Result<u64> {
    let file = create(&filesystem.root()?, "file")?.file()?;
    file.write_at(&[1; 64 * BLOCK], 0)?;
    let mut buffer = [0; BLOCK];
    let mut sum = 0;
    for number in 0..count {
        file.read_at(&mut buffer, number % 64 * BLOCK as u64)?;
        sum += u64::from(buffer[0]);
    }
    Ok(sum)
}

fn look_up(filesystem: &Filesystem, count: u64) -> Result<u64> {
    let root = filesystem.root()?;
    for number in 0..1000 {
        create(&root, &format!("a name {number}"))?;
    }
    let mut sum = 0;
    for number in 0..count {
        let name = format!("a name {}", number % 1000);
        sum += u64::from(root.lookup(name.as_bytes())?.number().0);
    }
    Ok(sum)
}

fn create_and_remove(filesystem: &Filesystem, count: u64) -> Result<u64> {
    let root = filesystem.root()?;
    let mut sum = 0;
    for _ in 0..count {
        sum += u64::from(create(&root, "file")?.number().0);
        root.unlink(b"file")?;
    }
    Ok(sum)
}
