//! The kernel as a target of operations.
//!
//! Every place is opened name by name, without following anything, to a descriptor that only stands
//! for it; later steps use that descriptor.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use extant_ext4::{FileType, InodeFlags, RenameMode, Timestamp, XattrMode};
use extant_space::{ByteRange, ExtentState, FallocateMode, SyncMode};
use extant_testkit::oracle::filefrag;
use rustix::fs as sys;
use rustix::fs::{AtFlags, FallocateFlags, IFlags, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;

use crate::operation::{
    Change, Data, HANDLES, Made, Name, Operation, Outcome, Owner, Path, Place, Tooth,
};
use crate::reference::tooth_at;
use crate::tree::{Content, Seen, Tree, USER_FLAGS, push_state, settle_first_paths};

type Result<T> = std::result::Result<T, Errno>;

/// Mode bits that `mkdir` ignores.
const HIGH_BITS: u32 = 0o6000;

/// A mounted file system.
pub struct System {
    root: PathBuf,
    block_bytes: u32,
    handles: [Option<OwnedFd>; HANDLES],
}

impl System {
    pub fn new(root: &std::path::Path, block_bytes: u32) -> Self {
        rustix::process::umask(Mode::empty());
        Self {
            root: root.to_owned(),
            block_bytes,
            handles: Default::default(),
        }
    }

    /// Does one step.
    pub fn apply(&mut self, operation: &Operation) -> Outcome {
        match self.try_apply(operation) {
            Ok(outcome) => outcome,
            Err(errno) => Outcome::Errno(errno.raw_os_error()),
        }
    }

    fn try_apply(&mut self, operation: &Operation) -> Result<Outcome> {
        match operation {
            Operation::Create(name, made, owner) => self.create(name, *made, *owner)?,
            Operation::CreateUnnamed(near, owner, handle) => {
                let flags = OFlags::TMPFILE | OFlags::RDWR;
                let mode = Mode::from_raw_mode(owner.permissions.into());
                let new = sys::openat(self.find(near)?, ".", flags, mode)?;
                self.handles[*handle] = Some(new);
            }
            Operation::Link(place, name) => {
                let from = self.find(place)?;
                let to = self.find(&name.directory)?;
                sys::linkat(from, "", to, name.name.as_slice(), AtFlags::EMPTY_PATH)?;
            }
            Operation::Unlink(name) => self.unlink(name, AtFlags::empty())?,
            Operation::RemoveDirectory(name) => self.unlink(name, AtFlags::REMOVEDIR)?,
            Operation::Rename(from, to, mode) => {
                let flags = match mode {
                    RenameMode::Replace => RenameFlags::empty(),
                    RenameMode::NoReplace => RenameFlags::NOREPLACE,
                    RenameMode::Exchange => RenameFlags::EXCHANGE,
                    RenameMode::Whiteout { .. } => RenameFlags::WHITEOUT,
                };
                let (old, new) = (self.find(&from.directory)?, self.find(&to.directory)?);
                sys::renameat_with(old, from.name.as_slice(), new, to.name.as_slice(), flags)?;
            }
            Operation::Open(place, handle) => self.handles[*handle] = Some(self.find(place)?),
            Operation::Close(handle) => self.handles[*handle] = None,
            Operation::Write(place, offset, data) => {
                self.write(&self.find(place)?, *offset, *data)?;
            }
            Operation::Read(place, offset, length) => {
                let file = File::from(open(&self.find(place)?, OFlags::RDONLY)?);
                let mut bytes = vec![0; *length];
                let read = read_full(&file, &mut bytes, *offset)?;
                bytes.truncate(read);
                return Ok(Outcome::Bytes(bytes));
            }
            Operation::Resize(place, size) => {
                sys::ftruncate(open_to_change(&self.find(place)?)?, *size)?;
            }
            Operation::Fallocate(place, mode, range) => {
                fallocate(&self.find(place)?, *mode, *range)?;
            }
            Operation::Comb(place, first, count, tooth) => {
                for number in 0..*count {
                    let (offset, range) = tooth_at(*first, number, self.block_bytes);
                    let file = self.find(place)?;
                    match tooth {
                        Tooth::Written(seed) => {
                            let length = range.len() as usize;
                            let data = Data {
                                length,
                                seed: *seed,
                            };
                            self.write(&file, offset, data)?;
                        }
                        Tooth::Punched => fallocate(&file, FallocateMode::PunchHole, range)?,
                    }
                }
            }
            Operation::Extents(place, range) => {
                let file = self.find(place)?;
                if stat(&file)?.st_mode & 0o170_000 == 0o040_000 {
                    return Err(Errno::ISDIR);
                }
                let all = states(&file);
                return Ok(Outcome::States(crate::reference::clip_states(&all, *range)));
            }
            Operation::SetAttributes(place, change) => {
                set_attributes(&self.find(place)?, change)?;
            }
            Operation::SetXattr(place, name, value, mode) => {
                let flags = match mode {
                    XattrMode::Set => XattrFlags::empty(),
                    XattrMode::Create => XattrFlags::CREATE,
                    XattrMode::Replace => XattrFlags::REPLACE,
                };
                let file = self.find(place)?;
                sys::setxattr(path_of(&file), name.as_str(), &value.bytes(), flags)?;
            }
            Operation::RemoveXattr(place, name) => {
                sys::removexattr(path_of(&self.find(place)?), name.as_str())?;
            }
            Operation::SyncFile(place, mode) => {
                let file = self.find(place)?;
                // Others cannot be synced by themselves.
                if has_flags(&file)? {
                    let file = open(&file, OFlags::RDONLY)?;
                    match mode {
                        SyncMode::Data => sys::fdatasync(file)?,
                        SyncMode::All => sys::fsync(file)?,
                    }
                }
            }
            Operation::Sync => self.sync()?,
            // Mounting is done elsewhere, and listings have no cookies here.
            Operation::Reopen | Operation::Crash => self.handles = Default::default(),
            Operation::ListStart(..) | Operation::ListNext(..) => {}
        }
        Ok(Outcome::Done)
    }

    /// Makes everything durable.
    pub fn sync(&self) -> Result<()> {
        sys::syncfs(File::open(&self.root).expect("the root"))
    }

    fn create(&self, name: &Name, made: Made, owner: Owner) -> Result<()> {
        let directory = self.find(&name.directory)?;
        let bytes = name.name.as_slice();
        let mode = Mode::from_raw_mode(owner.permissions.into());
        let node = |file_type, device| sys::mknodat(&directory, bytes, file_type, mode, device);
        match made {
            Made::Regular => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
                sys::openat(&directory, bytes, flags, mode)?;
            }
            Made::Directory => {
                sys::mkdirat(&directory, bytes, mode)?;
                // Which makes no use of all bits, but hands down one.
                let new = sys::openat(&directory, bytes, OFlags::PATH, Mode::empty())?;
                let mode = stat(&new)?.st_mode & 0o7777;
                let mode = u32::from(owner.permissions) & HIGH_BITS | mode;
                sys::chmod(path_of(&new), Mode::from_raw_mode(mode))?;
            }
            Made::Link { .. } => {
                sys::symlinkat(made.target().as_slice(), &directory, bytes)?;
            }
            Made::Fifo => node(sys::FileType::Fifo, 0)?,
            Made::Socket => node(sys::FileType::Socket, 0)?,
            Made::Character(device) => {
                let device = sys::makedev(device.major, device.minor);
                node(sys::FileType::CharacterDevice, device)?;
            }
            Made::Block(device) => {
                let device = sys::makedev(device.major, device.minor);
                node(sys::FileType::BlockDevice, device)?;
            }
        }
        Ok(())
    }

    fn unlink(&self, name: &Name, flags: AtFlags) -> Result<()> {
        sys::unlinkat(self.find(&name.directory)?, name.name.as_slice(), flags)
    }

    fn write(&self, file: &OwnedFd, offset: u64, data: Data) -> Result<()> {
        // With O_APPEND, every write is at the end.
        let is_at_end = offset == stat(file)?.st_size as u64;
        let file = File::from(if is_at_end {
            open_to_change(file)?
        } else {
            open(file, OFlags::WRONLY)?
        });
        file.write_all_at(&data.bytes(), offset)
            .map_err(|error| Errno::from_io_error(&error).expect("an error of the system"))
    }

    fn find(&self, place: &Place) -> Result<OwnedFd> {
        let path = match place {
            Place::At(path) => path,
            Place::Handle(handle) => {
                let handle = self.handles[*handle].as_ref().ok_or(Errno::NOENT)?;
                return handle.try_clone().map_err(|_| Errno::MFILE);
            }
        };
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        let root = sys::open(&self.root, flags, Mode::empty())?;
        path.0.iter().try_fold(root, |at, name| {
            sys::openat(at, name.as_slice(), flags, Mode::empty())
        })
    }

    /// Everything that has a name.
    pub fn tree(&self) -> Result<Tree> {
        let mut tree = Tree::new();
        let root = self.find(&Place::At(Path::default()))?;
        self.add(&root, Path::default(), &mut tree, &mut BTreeMap::new())?;
        settle_first_paths(&mut tree);
        Ok(tree)
    }

    fn add(
        &self,
        file: &OwnedFd,
        path: Path,
        tree: &mut Tree,
        first: &mut BTreeMap<u64, Path>,
    ) -> Result<()> {
        let inode = stat(file)?.st_ino;
        let same_as = first.entry(inode).or_insert_with(|| path.clone()).clone();
        let seen = self.see(file, same_as)?;
        let is_directory = seen.file_type == FileType::Directory;
        tree.insert(path.clone(), seen);
        if !is_directory {
            return Ok(());
        }
        for entry in fs::read_dir(path_of(file)).expect("a directory") {
            let name = entry.expect("an entry").file_name();
            let flags = OFlags::PATH | OFlags::NOFOLLOW;
            let child = sys::openat(file, &name, flags, Mode::empty())?;
            self.add(&child, path.join(name.as_bytes()), tree, first)?;
        }
        Ok(())
    }

    fn see(&self, file: &OwnedFd, same_as: Path) -> Result<Seen> {
        let stat = stat(file)?;
        let file_type = match sys::FileType::from_raw_mode(stat.st_mode) {
            sys::FileType::RegularFile => FileType::Regular,
            sys::FileType::Directory => FileType::Directory,
            sys::FileType::Symlink => FileType::SymbolicLink,
            sys::FileType::Fifo => FileType::Fifo,
            sys::FileType::Socket => FileType::Socket,
            sys::FileType::CharacterDevice => FileType::CharacterDevice,
            sys::FileType::BlockDevice => FileType::BlockDevice,
            sys::FileType::Unknown => panic!("mode {:o}", stat.st_mode),
        };
        let is_device = matches!(file_type, FileType::CharacterDevice | FileType::BlockDevice);
        Ok(Seen {
            file_type,
            permissions: (stat.st_mode & 0o7777) as u16,
            links: stat.st_nlink as u16,
            uid: stat.st_uid,
            gid: stat.st_gid,
            flags: match file_type {
                FileType::Regular | FileType::Directory => flags(file)? & USER_FLAGS,
                _ => InodeFlags::empty(),
            },
            device: is_device.then(|| extant_ext4::DeviceNumber {
                major: sys::major(stat.st_rdev),
                minor: sys::minor(stat.st_rdev),
            }),
            target: match file_type {
                FileType::SymbolicLink => Some(sys::readlinkat(file, "", Vec::new())?.into_bytes()),
                _ => None,
            },
            xattrs: xattrs(file)?,
            modified: Some(Timestamp {
                seconds: stat.st_mtime,
                nanoseconds: stat.st_mtime_nsec as u32,
            }),
            data: match file_type {
                FileType::Regular => Some(self.content(file)?),
                _ => None,
            },
            same_as,
        })
    }

    fn content(&self, file: &OwnedFd) -> Result<Content> {
        let size = stat(file)?.st_size as u64;
        let states = states(file);
        let file = File::from(open(file, OFlags::RDONLY)?);
        Content::read(size, states, self.block_bytes.into(), |bytes, offset| {
            read_full(&file, bytes, offset)
        })
    }

    /// The data of a file.
    pub fn content_at(&self, place: &Place) -> Result<Content> {
        self.content(&self.find(place)?)
    }
}

/// A path that resolves to the file of a descriptor.
fn path_of(file: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

fn open(file: &OwnedFd, flags: OFlags) -> Result<OwnedFd> {
    sys::open(path_of(file), flags, Mode::empty())
}

/// Opened for changes, if possible.
fn open_to_change(file: &OwnedFd) -> Result<OwnedFd> {
    match open(file, OFlags::WRONLY) {
        Err(Errno::PERM) => open(file, OFlags::WRONLY | OFlags::APPEND),
        opened => opened,
    }
}

fn stat(file: &OwnedFd) -> Result<sys::Stat> {
    sys::statat(file, "", AtFlags::EMPTY_PATH)
}

fn read_full(file: &File, into: &mut [u8], offset: u64) -> Result<usize> {
    let mut done = 0;
    while done < into.len() {
        match rustix::io::pread(file, &mut into[done..], offset + done as u64)? {
            0 => break,
            read => done += read,
        }
    }
    Ok(done)
}

fn fallocate(file: &OwnedFd, mode: FallocateMode, range: ByteRange) -> Result<()> {
    let keep = FallocateFlags::KEEP_SIZE;
    let flags = match mode {
        FallocateMode::Allocate => FallocateFlags::empty(),
        FallocateMode::AllocateKeepSize => keep,
        FallocateMode::PunchHole => FallocateFlags::PUNCH_HOLE | keep,
        FallocateMode::ZeroRange => FallocateFlags::ZERO_RANGE,
        FallocateMode::ZeroRangeKeepSize => FallocateFlags::ZERO_RANGE | keep,
        FallocateMode::CollapseRange => FallocateFlags::COLLAPSE_RANGE,
        FallocateMode::InsertRange => FallocateFlags::INSERT_RANGE,
        mode => panic!("the kernel has no {mode} for ext4 on a loop device"),
    };
    sys::fallocate(open_to_change(file)?, flags, range.start(), range.len())
}

fn states(file: &OwnedFd) -> Vec<(ByteRange, ExtentState)> {
    // Of this process: filefrag has descriptors of its own.
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let mut states = Vec::new();
    for extent in filefrag(path.as_ref()).extents {
        push_state(&mut states, extent.logical, extent.state);
    }
    states
}

/// It is a regular file or a directory.
fn has_flags(file: &OwnedFd) -> Result<bool> {
    Ok(matches!(
        stat(file)?.st_mode & 0o170_000,
        0o040_000 | 0o100_000
    ))
}

fn flags(file: &OwnedFd) -> Result<InodeFlags> {
    let flags = sys::ioctl_getflags(open(file, OFlags::RDONLY)?)?;
    Ok(InodeFlags::from_bits_retain(flags.bits()))
}

fn set_flags(file: &OwnedFd, new: u32) -> Result<()> {
    let file = open(file, OFlags::RDONLY)?;
    let others = sys::ioctl_getflags(&file)?.bits() & !USER_FLAGS.bits();
    sys::ioctl_setflags(file, IFlags::from_bits_retain(others | new))
}

/// One change of the engine is several calls here. Flags that forbid other changes are cleared
/// first and set last.
fn set_attributes(file: &OwnedFd, change: &Change) -> Result<()> {
    let fixed = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
    let before = if has_flags(file)? {
        flags(file)? & USER_FLAGS
    } else {
        InodeFlags::empty()
    };
    let is_fixed = before.intersects(fixed);
    let after = change.flags.map_or(before, InodeFlags::from_bits_retain);
    if (before & after).intersects(fixed) {
        let others = change.permissions.is_some()
            || change.uid.is_some()
            || change.gid.is_some()
            || change.modified.is_some();
        return match change.flags {
            _ if others => Err(Errno::PERM),
            Some(new) => set_flags(file, new),
            None => Ok(()),
        };
    }
    if is_fixed {
        set_flags(file, 0)?;
    }
    if change.uid.is_some() || change.gid.is_some() {
        let before = stat(file)?.st_mode;
        let uid = change.uid.map(sys::Uid::from_raw);
        let gid = change.gid.map(sys::Gid::from_raw);
        sys::chownat(file, "", uid, gid, AtFlags::EMPTY_PATH)?;
        // The kernel takes bits away when the owner changes.
        if before & 0o170_000 != 0o120_000 {
            sys::chmod(path_of(file), Mode::from_raw_mode(before & 0o7777))?;
        }
    }
    if let Some(permissions) = change.permissions {
        sys::chmod(path_of(file), Mode::from_raw_mode(permissions.into()))?;
    }
    if let Some(time) = change.modified {
        let times = sys::Timestamps {
            last_access: sys::Timespec {
                tv_sec: 0,
                tv_nsec: sys::UTIME_OMIT,
            },
            last_modification: sys::Timespec {
                tv_sec: time.seconds,
                tv_nsec: time.nanoseconds.into(),
            },
        };
        sys::utimensat(file, "", &times, AtFlags::EMPTY_PATH)?;
    }
    match change.flags {
        Some(new) => set_flags(file, new),
        None => Ok(()),
    }
}

fn xattrs(file: &OwnedFd) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let path = path_of(file);
    let mut names = vec![0; 64 << 10];
    let length = sys::listxattr(&path, &mut names)?;
    let mut xattrs = BTreeMap::new();
    for name in names[..length]
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
    {
        let mut value = vec![0; 64 << 10];
        let length = sys::getxattr(&path, name, &mut value)?;
        value.truncate(length);
        xattrs.insert(name.to_vec(), value);
    }
    Ok(xattrs)
}
