//! qcow2: an image as a disk, beside the contents that it should have.
//!
//! A new image of any options, requests of a guest, images opened again and resized: each read
//! returns what was written, and the check finds nothing. Then bytes of the file change, after
//! which every request has a result and stays inside the file. Or the file is the input itself.

use std::ops::ControlFlow;
use std::sync::Arc;

use arbitrary::{Arbitrary, Unstructured};
use extant_blockdev::{Device, Persistence, Speed, ZeroedSpace, Zeroing};
use extant_hostfs::Pace;
use extant_image::device::{DeviceOptions, ImageAccess, ImageDevice};
use extant_image::format::{Compression, Version};
use extant_image::{
    Format, ImageFile, ImageOptions, Layer, NewImage, Preallocation, Qcow2Options, ResizeOptions,
    check, rebuild_refcounts, repair_leaks, resize,
};
use extant_space::{ByteRange, CancelToken, Control, Error, ErrorKind, Result, Silent};

use crate::input::{list, parse};
use crate::memory_file::MemoryFile;

/// Largest file.
const FILE: u64 = 16 << 20;
/// Largest disk of a new image.
const DISK: u64 = 512 << 10;
const SECTOR: u64 = 512;
/// Most of one request.
const REQUEST: u64 = 96 << 10;

#[derive(Arbitrary, Debug)]
struct New {
    cluster_bits: u8,
    refcount_order: u8,
    sectors: u16,
    old_version: bool,
    lazy_refcounts: bool,
    zstd: bool,
    preallocation: u8,
}

impl New {
    fn options(&self) -> ImageOptions {
        let bytes = (u64::from(self.sectors) * SECTOR) % DISK + SECTOR;
        let version = if self.old_version {
            Version::V2
        } else {
            Version::V3
        };
        let (is_new, compression) = (!self.old_version, [Compression::Zlib, Compression::Zstd]);
        ImageOptions {
            preallocation: Preallocation::ALL[usize::from(self.preallocation) % 4],
            qcow2: Qcow2Options {
                cluster_bytes: 1 << (9 + self.cluster_bits % 9),
                refcount_bits: if is_new {
                    1 << (self.refcount_order % 7)
                } else {
                    16
                },
                version,
                lazy_refcounts: is_new && self.lazy_refcounts,
                compression: compression[usize::from(is_new && self.zstd)],
                ..Qcow2Options::default()
            },
            ..ImageOptions::new(Format::Qcow2, bytes)
        }
    }
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Step {
    Write {
        sector: u16,
        sectors: u8,
        fua: bool,
    },
    Read {
        sector: u16,
        sectors: u8,
    },
    Zero {
        sector: u16,
        sectors: u16,
        space: u8,
        fast: bool,
    },
    Discard {
        sector: u16,
        sectors: u16,
    },
    Assign {
        sector: u16,
        sectors: u16,
    },
    Flush,
    Reopen,
    Resize {
        sectors: u16,
    },
    Repair,
}

/// A change of the file.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Change {
    /// Of the first 16 clusters, where the metadata is.
    cluster: u8,
    offset: u16,
    value: Value,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Value {
    Byte(u8),
    Word(u32),
    Entry { cluster: u16, flags: u8 },
    Copy { cluster: u8, offset: u16 },
}

#[derive(Debug)]
struct Input {
    new: New,
    steps: Vec<Step>,
    changes: Vec<Change>,
    later: Vec<Step>,
}

impl<'a> Arbitrary<'a> for Input {
    fn arbitrary(from: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        Ok(Self {
            new: from.arbitrary()?,
            steps: list(from, 24)?,
            changes: list(from, 8)?,
            later: list(from, 16)?,
        })
    }
}

pub(crate) fn target(data: &[u8]) {
    match data.split_first() {
        Some((0, bytes)) => raw(bytes),
        Some((_, data)) => {
            if let Some(input) = parse::<Input>(data) {
                structured(&input);
            }
        }
        None => {}
    }
}

fn silent<T>(work: impl FnOnce(Control<'_>) -> T) -> T {
    work(Control::new(&CancelToken::new(), &Silent))
}

/// The input is the start of the file.
fn raw(bytes: &[u8]) {
    let file = MemoryFile::new(FILE);
    extant_space::SpaceFile::write_at(&*file, bytes, 0).expect("it is short");
    examine(&file);
    let steps = [
        Step::Read {
            sector: 0,
            sectors: 9,
        },
        Step::Write {
            sector: 3,
            sectors: 5,
            fua: true,
        },
        Step::Zero {
            sector: 1,
            sectors: 700,
            space: 0,
            fast: false,
        },
        Step::Discard {
            sector: 0,
            sectors: 99,
        },
        Step::Flush,
    ];
    run_unchecked(&file, &steps);
}

fn structured(input: &Input) {
    let options = input.new.options();
    let Ok(new) = NewImage::new(&options) else {
        return;
    };
    let file = MemoryFile::new(FILE);
    match silent(|control| new.provision(&*file, &Pace::default(), control)) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NoSpace => return,
        Err(error) => panic!("a new image: {error}"),
    }
    let mut shadow = vec![0; options.disk_bytes() as usize];
    run_checked(&file, &mut shadow, &input.steps);
    if input.changes.is_empty() {
        return;
    }
    for change in &input.changes {
        damage(&file, 1 << (9 + input.new.cluster_bits % 9), *change);
    }
    examine(&file);
    run_unchecked(&file, &input.later);
}

fn open(file: &Arc<MemoryFile>, access: ImageAccess) -> Result<ImageDevice> {
    let options = DeviceOptions {
        format: Some(Format::Qcow2),
        access,
        ..DeviceOptions::default()
    };
    ImageDevice::open_store(file.clone(), &options)
}

/// A range inside a disk, of at least one sector.
fn range(sector: u16, sectors: u64, disk: u64) -> ByteRange {
    let all = (disk / SECTOR).max(1);
    let start = u64::from(sector) % all;
    let count = sectors.clamp(1, all - start);
    ByteRange::new(start * SECTOR, (start + count) * SECTOR)
}

fn fill(range: ByteRange, seed: usize) -> Vec<u8> {
    (range.start()..range.end())
        .map(|at| (at / SECTOR) as u8 ^ (seed as u8).wrapping_mul(37) | 1)
        .collect()
}

fn zeroing(space: u8, fast: bool) -> Zeroing {
    Zeroing {
        space: [
            ZeroedSpace::MayUnmap,
            ZeroedSpace::Allocated,
            ZeroedSpace::Written,
        ][usize::from(space) % 3],
        speed: if fast { Speed::OnlyIfFast } else { Speed::Any },
        ..Zeroing::ANY
    }
}

fn is_refused(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Unsupported)
}

/// Runs requests on a valid image, beside its contents.
fn run_checked(file: &Arc<MemoryFile>, shadow: &mut Vec<u8>, steps: &[Step]) {
    let reopen = || open(file, ImageAccess::ReadWrite).expect("a valid image opens");
    let mut image = reopen();
    for (number, step) in steps.iter().enumerate() {
        let disk = shadow.len() as u64;
        let done = match *step {
            Step::Write {
                sector,
                sectors,
                fua,
            } => {
                let range = range(sector, sectors.into(), disk);
                let bytes = fill(range, number);
                let persistence = if fua {
                    Persistence::Fua
                } else {
                    Persistence::Cached
                };
                let done = image.write_at(&bytes, range.start(), persistence);
                if done.is_ok() {
                    shadow[range.start() as usize..range.end() as usize].copy_from_slice(&bytes);
                }
                done
            }
            Step::Read { sector, sectors } => {
                let range = range(sector, sectors.into(), disk);
                let mut bytes = vec![0xEE; range.len() as usize];
                let done = image.read_at(&mut bytes, range.start());
                assert!(bytes == shadow[range.start() as usize..range.end() as usize]);
                done
            }
            Step::Zero {
                sector,
                sectors,
                space,
                fast,
            } => {
                let range = range(sector, sectors.into(), disk);
                let done = image.write_zeroes(range, zeroing(space, fast));
                if done.is_ok() {
                    shadow[range.start() as usize..range.end() as usize].fill(0);
                }
                done
            }
            Step::Discard { sector, sectors } => {
                let range = range(sector, sectors.into(), disk);
                let done = image.discard(range);
                // Whole clusters read as zeros afterwards, or keep their data.
                let inside = range.start() as usize..range.end() as usize;
                let mut bytes = vec![0xEE; inside.len()];
                image
                    .read_at(&mut bytes, range.start())
                    .expect("a valid image");
                for (new, old) in bytes.chunks(512).zip(shadow[inside.clone()].chunks(512)) {
                    assert!(new == old || new.iter().all(|&byte| byte == 0));
                }
                shadow[inside].copy_from_slice(&bytes);
                done
            }
            Step::Assign { sector, sectors } => {
                image.assign(range(sector, sectors.into(), disk)).map(drop)
            }
            Step::Flush => image.flush(),
            Step::Reopen | Step::Repair => {
                drop(image);
                image = reopen();
                Ok(())
            }
            Step::Resize { sectors } => {
                image.flush().expect("memory");
                drop(image);
                let bytes = (u64::from(sectors) * SECTOR) % DISK + SECTOR;
                let done = resize_to(file, bytes);
                image = reopen();
                if done.is_ok() {
                    shadow.resize(bytes as usize, 0);
                }
                done
            }
        };
        if let Err(error) = done {
            assert!(is_refused(&error), "{step:?}: {error}");
            if error.kind() == ErrorKind::NoSpace {
                // Any part of the request may have been done.
                return;
            }
        }
        assert_eq!(image.geometry().size, shadow.len() as u64);
    }
    let mut bytes = vec![0xEE; shadow.len()];
    image.read_at(&mut bytes, 0).expect("a valid image");
    let differs = bytes.iter().zip(&*shadow).position(|(a, b)| a != b);
    assert_eq!(differs, None, "the first byte that differs");
    image.flush().expect("memory");
    drop(image);
    let report = silent(|control| check(file.clone(), 4, control)).expect("a valid image");
    assert!(report.is_clean(), "{:?}", report.findings);
}

fn resize_to(file: &Arc<MemoryFile>, bytes: u64) -> Result<()> {
    let options = ResizeOptions {
        preallocation: Some(Preallocation::Off),
        may_shrink: true,
    };
    let target = ImageFile::held(file.clone());
    silent(|control| resize(&target, Format::Qcow2, bytes, &options, control)).map(drop)
}

fn damage(file: &Arc<MemoryFile>, cluster_bytes: u64, change: Change) {
    let size = file.geometry().size;
    let place = |cluster: u8, offset: u16, length: u64| {
        let at = u64::from(cluster % 16) * cluster_bytes + u64::from(offset) % cluster_bytes;
        at.min(size.saturating_sub(length))
    };
    let bytes = match change.value {
        Value::Byte(byte) => vec![byte],
        Value::Word(word) => word.to_be_bytes().to_vec(),
        Value::Entry { cluster, flags } => {
            let entry = u64::from(cluster) * cluster_bytes;
            let flags = u64::from(flags & 0xC0) << 56 | u64::from(flags & 1);
            (entry | flags).to_be_bytes().to_vec()
        }
        Value::Copy { cluster, offset } => {
            let mut bytes = vec![0; 8.min(size) as usize];
            let from = place(cluster, offset & !7, 8);
            let read = Device::read_at(&**file, &mut bytes, from);
            read.expect("inside the file");
            bytes
        }
    };
    let offset = match change.value {
        Value::Byte(_) => change.offset,
        Value::Word(_) => change.offset & !3,
        Value::Entry { .. } | Value::Copy { .. } => change.offset & !7,
    };
    let length = bytes.len() as u64;
    if size >= length {
        file.put(place(change.cluster, offset, length), &bytes);
    }
}

/// Runs every query on a file with anything in it.
fn examine(file: &Arc<MemoryFile>) {
    let _ = silent(|control| check(file.clone(), 4, control));
    let Ok(layer) = Layer::open(file.clone(), Format::Qcow2) else {
        return;
    };
    let bytes = layer.virtual_bytes();
    let (mut at, mut seen) = (0, 0);
    let _ = layer.for_each_extent(ByteRange::new(0, bytes), &mut |extent| {
        assert_eq!(extent.guest.start(), at);
        at = extent.guest.end();
        seen += 1;
        Ok(if seen < 5000 {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        })
    });
    let mut buffer = [0; 5000];
    for offset in [0, bytes / 2, bytes.saturating_sub(3000)] {
        let _ = layer.read_at(&mut buffer, offset);
    }
    let _ = layer.info();
}

/// Runs requests on an image with anything in it: results do not matter.
fn run_unchecked(file: &Arc<MemoryFile>, steps: &[Step]) {
    let mut image = open(file, ImageAccess::ReadWrite)
        .or_else(|_| open(file, ImageAccess::ReadOnly))
        .ok();
    for (number, step) in steps.iter().enumerate() {
        if let Step::Reopen | Step::Resize { .. } | Step::Repair = step {
            image = None;
        }
        match step {
            Step::Resize { sectors } => {
                let _ = resize_to(file, u64::from(*sectors) * SECTOR);
            }
            Step::Repair => {
                let _ = silent(|control| repair_leaks(file.clone(), control));
                let _ = silent(|control| rebuild_refcounts(file.clone(), control));
            }
            _ => {}
        }
        if image.is_none() {
            image = open(file, ImageAccess::ReadWrite).ok();
        }
        let Some(image) = &image else {
            continue;
        };
        let disk = image.geometry().size;
        if disk == 0 {
            continue;
        }
        let _ = match *step {
            Step::Write {
                sector, sectors, ..
            } => {
                let range = range(sector, sectors.into(), disk);
                image.write_at(&fill(range, number), range.start(), Persistence::Cached)
            }
            Step::Read { sector, sectors } => {
                let range = range(sector, sectors.into(), disk);
                image.read_at(
                    &mut vec![0; range.len().min(REQUEST) as usize],
                    range.start(),
                )
            }
            Step::Zero {
                sector,
                sectors,
                space,
                fast,
            } => image.write_zeroes(range(sector, sectors.into(), disk), zeroing(space, fast)),
            Step::Discard { sector, sectors } => image.discard(range(sector, sectors.into(), disk)),
            Step::Assign { sector, sectors } => {
                image.assign(range(sector, sectors.into(), disk)).map(drop)
            }
            Step::Flush => image.flush(),
            Step::Reopen | Step::Resize { .. } | Step::Repair => Ok(()),
        };
    }
}
