//! File-system images and disks with ext4: opening and closing them for a command.
//!
//! A reader opens read-only: nothing is written, and the contents of the journal are seen as if it
//! were replayed. A writer excludes all others: a disk is claimed, a file is locked, and refused
//! while a loop device or another process may write to it.
//!
//! Errors name the place as `IMAGE:/path`.

pub mod names;
pub mod walk;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::ValueEnum;
use extant_blockdev::{Device, HostAccess, HostOptions};
use extant_ext4::{
    Access, Assign, DeviceZeroes, Filesystem, FollowLast, Node, Options, Replay, Reserve,
};
use extant_image::detect::{self, HEAD_BYTES};
use extant_image::hold;
use extant_space::{Error, ErrorKind, MapSummary, Result};
use rustix::process::{getegid, geteuid};

use crate::print;

/// Whether new space is given its place on the device below at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum AssignMode {
    /// No
    Off,
    /// If the device below supports it
    #[default]
    Try,
    /// Yes, and a refusal of the device is an error
    Require,
}

impl From<AssignMode> for Assign {
    fn from(mode: AssignMode) -> Self {
        match mode {
            AssignMode::Off => Self::Off,
            AssignMode::Try => Self::Try,
            AssignMode::Require => Self::Require,
        }
    }
}

/// How zeros written to a file reach the layers below the image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ZeroesMode {
    /// By metadata: allocated below, perhaps unwritten
    Metadata,
    /// Through every layer: written below as well
    #[default]
    Through,
}

impl From<ZeroesMode> for DeviceZeroes {
    fn from(mode: ZeroesMode) -> Self {
        match mode {
            ZeroesMode::Metadata => Self::Allocated,
            ZeroesMode::Through => Self::Written,
        }
    }
}

/// Treatment of the device below an image that is changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceBelow {
    /// Of new space.
    pub assign: AssignMode,
    /// Of zeros.
    pub zeroes: ZeroesMode,
}

/// Whether journals are passed over.
static NOLOAD: AtomicBool = AtomicBool::new(false);

/// Has all images of this process opened without their journals (`fs --noload`), which is for
/// looking alone.
pub fn pass_over_journals() {
    NOLOAD.store(true, Ordering::Relaxed);
}

/// Whether journals are passed over.
pub fn passes_over_journals() -> bool {
    NOLOAD.load(Ordering::Relaxed)
}

/// An ext4 file system in a file or on a disk, open.
pub struct Image {
    path: PathBuf,
    filesystem: Filesystem,
}

impl Image {
    /// Opens it for looking. A mounted file system is read as stored on the disk, and a line on
    /// stderr reports that.
    pub fn look(path: &Path) -> Result<Self> {
        let device = Self::look_at_device(path)?;
        let options = Options {
            access: Access::ReadOnly,
            ..Options::default()
        };
        Self::open(path, device, options)
    }

    /// The device alone, for looking.
    pub fn look_at_device(path: &Path) -> Result<Arc<dyn Device>> {
        if let Some(place) = hold::mounted_at(path) {
            print::note(format_args!(
                "extant: {}: mounted at {}; data not yet written to the disk is not visible",
                names::shown_path(path),
                names::shown_path(Path::new(&place.to_string()))
            ));
        }
        let options = host_options(HostAccess::ReadOnly);
        Ok(hold::open_device(path, &options)?.into_device())
    }

    /// The device alone, for long use: no other process changes it meanwhile, nor reads it if it is
    /// written here.
    pub fn hold_device(path: &Path, options: &HostOptions) -> Result<Arc<dyn Device>> {
        Ok(hold::hold_device(path, options)?.into_device())
    }

    /// Opens it for changes, and excludes all other users.
    pub fn change(path: &Path, below: SpaceBelow) -> Result<Self> {
        let device = Self::hold_device(path, &host_options(HostAccess::ReadWrite))?;
        let options = Options {
            assign: below.assign.into(),
            zeroes: below.zeroes.into(),
            // A process that may change the image has the rights of root in it.
            reserve: Reserve::Take,
            ..Options::default()
        };
        Self::open(path, device, options)
    }

    /// Opens it for a long read: no other process changes it meanwhile.
    pub fn hold_still(path: &Path) -> Result<Self> {
        let device = Self::hold_device(path, &host_options(HostAccess::ReadOnly))?;
        let options = Options {
            access: Access::ReadOnly,
            ..Options::default()
        };
        Self::open(path, device, options)
    }

    fn open(path: &Path, device: Arc<dyn Device>, options: Options) -> Result<Self> {
        refuse_without_ext4(&*device).map_err(|error| error.at(path))?;
        let options = Options {
            replay: if passes_over_journals() {
                Replay::Off
            } else {
                Replay::On
            },
            ..options
        };
        let filesystem = Filesystem::open(device, options).map_err(|error| error.at(path))?;
        Ok(Self {
            path: path.to_path_buf(),
            filesystem,
        })
    }

    /// The file system.
    pub fn filesystem(&self) -> &Filesystem {
        &self.filesystem
    }

    /// The image itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `IMAGE:/inner`, as errors name it.
    pub fn place(&self, inner: &[u8]) -> PathBuf {
        let mut place = self.path.as_os_str().to_owned();
        place.push(":");
        if inner.first() != Some(&b'/') {
            place.push("/");
        }
        place.push(OsStr::from_bytes(inner));
        PathBuf::from(place)
    }

    /// Whether an error names a place inside the file system.
    pub fn is_inside(&self, error: &Error) -> bool {
        let path = error.path().map(|path| path.as_os_str().as_bytes());
        let inner = path.and_then(|path| path.strip_prefix(self.path.as_os_str().as_bytes()));
        inner.is_some_and(|inner| inner.starts_with(b":"))
    }

    /// Resolves a path inside the file system.
    pub fn resolve(&self, inner: &Path, last: FollowLast) -> Result<Node> {
        let bytes = inner.as_os_str().as_bytes();
        self.filesystem
            .resolve(bytes, last)
            .map_err(|error| error.at(self.place(bytes)))
    }

    /// The directory that a path inside is in, and its last name.
    pub fn resolve_parent<'p>(&self, inner: &'p Path) -> Result<(Node, &'p [u8])> {
        let bytes = inner.as_os_str().as_bytes();
        self.filesystem
            .resolve_parent(bytes)
            .map_err(|error| error.at(self.place(bytes)))
    }

    /// User and group of a new file without a given owner: those of the caller if the root
    /// directory is theirs, as in an image made by a user, otherwise root.
    pub fn owner_of_new(&self) -> Result<(u32, u32)> {
        let user = geteuid().as_raw();
        let root = self
            .filesystem
            .root()
            .map_err(|error| error.at(&self.path))?;
        Ok(if user != 0 && root.attributes().uid == user {
            (user, getegid().as_raw())
        } else {
            (0, 0)
        })
    }

    /// The empty summary that scores files of this file system, by its groups.
    pub fn summary(&self) -> MapSummary {
        let superblock = self.filesystem.superblock();
        let layout = superblock.layout();
        let groups = u64::from(layout.groups_per_flex());
        let run_blocks = u64::from(layout.blocks_per_group()).saturating_mul(groups);
        MapSummary::new(layout.block_bytes().into(), run_blocks)
    }

    /// Closes it after `result`, whose error comes first. Everything is durable when this succeeds.
    pub fn finish<T>(self, result: Result<T>) -> Result<T> {
        let Self { path, filesystem } = self;
        let closed = filesystem.close().map_err(|error| error.at(path));
        let value = result?;
        closed?;
        Ok(value)
    }
}

/// Offset and length of the superblock, and the offset of its magic number.
const SUPERBLOCK: (u64, u64, usize) = (1024, 1024, 0x38);
const MAGIC: [u8; 2] = 0xef53_u16.to_le_bytes();

/// Refuses a device without ext4, and names the format it has instead.
///
/// # Errors
/// `Unsupported`; and those of reading.
pub fn refuse_without_ext4(device: &dyn Device) -> Result<()> {
    let none = |what: String| {
        let error = Error::new(ErrorKind::Unsupported);
        Err(error.detail(format!("not an ext4 file system: {what}")))
    };
    let geometry = device.geometry();
    let (start, length, magic) = SUPERBLOCK;
    if geometry.size < start + length {
        return none("too small".to_owned());
    }
    let block = u64::from(geometry.logical_block);
    let head = (HEAD_BYTES as u64)
        .next_multiple_of(block)
        .min(geometry.size);
    let mut head = vec![0; head as usize];
    device.read_at(&mut head, 0)?;
    if head[start as usize + magic..].starts_with(&MAGIC) {
        return Ok(());
    }
    match detect::of_contents(&head) {
        Some(kind) => none(format!("it looks like {}", kind.described())),
        None => none("no superblock at byte 1024".to_owned()),
    }
}

fn host_options(access: HostAccess) -> HostOptions {
    HostOptions {
        access,
        ..HostOptions::default()
    }
}

/// Opens an image for changes, runs `work` on it and closes it even after an error.
pub fn changing<T>(
    path: &Path,
    below: SpaceBelow,
    work: impl FnOnce(&Image) -> Result<T>,
) -> Result<T> {
    let image = Image::change(path, below)?;
    let result = work(&image);
    image.finish(result)
}

/// The bytes of a path as one.
pub fn path_of(bytes: Vec<u8>) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes))
}

/// Passes on errors of a place inside an image.
pub trait At<T> {
    /// Names the place, unless a more exact one is known.
    fn at_inner(self, image: &Image, inner: &[u8]) -> Result<T>;
}

impl<T> At<T> for Result<T> {
    fn at_inner(self, image: &Image, inner: &[u8]) -> Result<T> {
        self.map_err(|error: Error| error.at(image.place(inner)))
    }
}
