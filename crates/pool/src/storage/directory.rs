//! A directory of the host. Unfinished files are in `.extant/work`.

use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use extant_hostfs::{
    Access, ContentOrder, ContentWriter, CopyOnWrite, CreateOptions, Directory, Durable, Existing,
    FileSystem, HostFile, OnFailure, Pace, remove_soon,
};
use extant_space::{Control, Error, ErrorKind, Preallocation, Result};
use rustix::fs::{FileType, OFlags, Stat};

use super::{
    Checkpoint, Done, FileStat, NewFile, OWNER_WRITES, Peek, Storage, VolumeFile, WorkFile, is_own,
};
use crate::name::VolumeName;
use crate::state_directory::{STATE_DIRECTORY, make_state_directory, open_state_directory};

const WORK: &str = "work";
/// A file without a name for the time of a look.
const PROBE: &str = "probe";

/// A directory whose regular files are volumes.
pub(crate) struct DirectoryStorage<'p> {
    dir: &'p Directory,
}

impl<'p> DirectoryStorage<'p> {
    pub(crate) fn new(dir: &'p Directory) -> Self {
        Self { dir }
    }

    /// Opened for each call, because a reader has none.
    fn work(&self) -> Result<Directory> {
        make_state_directory(self.dir, STATE_DIRECTORY)?.make_child(WORK)
    }

    fn host_file(dir: &Directory, name: &str, access: OFlags) -> Result<Box<dyn VolumeFile>> {
        let file = dir.file(name, access)?;
        Ok(Box::new(HostFile::from_file(file, &dir.path().join(name))?))
    }
}

impl Storage for DirectoryStorage<'_> {
    fn for_each_volume(&self, visit: &mut dyn FnMut(&VolumeName, &FileStat)) -> Result<u64> {
        let mut others = 0;
        self.dir.for_each_name(|listed: &CStr| {
            let name = listed.to_str().ok().and_then(|name| name.parse().ok());
            let stat = self.dir.stat_listed(listed);
            match (name, stat) {
                (Some(name), Some(stat)) if is_regular(&stat) => visit(&name, &stat.into()),
                _ => others += u64::from(!is_own(listed.to_bytes())),
            }
        })?;
        Ok(others)
    }

    fn has_name(&self, name: &VolumeName) -> Result<bool> {
        Ok(self.dir.stat(name.as_str())?.is_some())
    }

    fn open(&self, name: &VolumeName, access: Access) -> Result<Box<dyn VolumeFile>> {
        let access = match access {
            Access::Read => OFlags::RDONLY,
            Access::ReadWrite => OFlags::RDWR,
            Access::ReadWriteCreate => OFlags::RDWR | OFlags::CREATE,
        };
        Self::host_file(self.dir, name.as_str(), access)
    }

    fn peek(&self, name: &VolumeName) -> Option<Box<dyn Peek>> {
        let fd = self.dir.peek(name.as_str())?;
        Some(Box::new(fd))
    }

    fn remove(&self, name: &VolumeName) -> Result<()> {
        if self.dir.remove(name.as_str())? {
            Ok(())
        } else {
            Err(Error::new(ErrorKind::NotFound).at(self.dir.path().join(name.as_str())))
        }
    }

    fn sync(&self) -> Result<()> {
        self.dir.sync()
    }

    fn free_bytes(&self) -> Result<u64> {
        FileSystem::available_bytes(self.dir).map_err(|error| error.at(self.dir.path()))
    }

    fn total_bytes(&self) -> Result<u64> {
        match rustix::fs::fstatvfs(self.dir) {
            Ok(found) => Ok(found.f_blocks.saturating_mul(found.f_frsize)),
            Err(errno) => Err(Error::from(io::Error::from(errno)).at(self.dir.path())),
        }
    }

    fn work_path(&self) -> PathBuf {
        self.dir.path().join(STATE_DIRECTORY).join(WORK)
    }

    fn work_files(&self) -> Result<Vec<WorkFile>> {
        let work = open_state_directory(self.dir, STATE_DIRECTORY).and_then(|own| own.child(WORK));
        let work = match work {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            work => work?,
        };
        let mut files = Vec::new();
        work.for_each_name(|name| {
            let (Ok(text), Some(stat)) = (name.to_str(), work.stat_listed(name)) else {
                return;
            };
            files.push(WorkFile {
                name: text.to_owned(),
                allocated_bytes: stat.st_blocks as u64 * 512,
            });
        })?;
        Ok(files)
    }

    fn open_work(&self, name: &str) -> Result<Option<Box<dyn VolumeFile>>> {
        match Self::host_file(&self.work()?, name, OFlags::RDWR) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn new_work(&self, name: &str, _: u64) -> Result<Box<dyn VolumeFile>> {
        let new = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        Self::host_file(&self.work()?, name, new)
    }

    fn create_work(
        &self,
        name: &str,
        new: &NewFile,
        pace: Pace,
        _: &dyn Checkpoint,
        control: Control<'_>,
    ) -> Result<Done> {
        let work = self.work()?;
        if work.stat(name)?.is_some() {
            return Ok(Done::default());
        }
        let image = &new.image;
        let mut options = CreateOptions::new(image.file_bytes());
        options.preallocation = image.preallocation().space();
        options.allocation_bytes = match options.preallocation {
            Preallocation::Off => None,
            Preallocation::Falloc | Preallocation::Full => image.allocation_bytes(),
        };
        options.pace = pace;
        // It is opened again before it has its last mode.
        options.mode = Some(new.mode | OWNER_WRITES);
        if new.nocow {
            options.copy_on_write = CopyOnWrite::Disable;
        }
        // Its next name is made durable.
        options.durable = Durable::Content;
        // Removed by the roll-back, or kept for a later resumption.
        options.on_failure = OnFailure::KeepPartial;
        let path = work.path_to(name);
        let contents = ContentWriter {
            order: ContentOrder::AfterSpace,
            fill: &|file, control| image.write_metadata(file, control),
        };
        let made = if image.has_metadata() {
            extant_hostfs::create_filled(&path, &options, &contents, control)
        } else {
            extant_hostfs::create(&path, &options, control)
        };
        made.map(Done::from)
            .map_err(|error| error.about(work.path().join(name)))
    }

    fn remove_work(&self, name: &str) -> Result<()> {
        let work = self.work()?;
        remove_soon(&work, name.as_ref()).map_err(|error| error.about(work.path().join(name)))
    }

    fn publish(&self, work: &str, volume: &VolumeName, existing: Existing) -> Result<()> {
        self.work()?
            .rename(work, self.dir, volume.as_str(), existing)?;
        self.dir.sync()
    }

    fn path_of(&self, name: &VolumeName) -> PathBuf {
        self.dir.path().join(name.as_str())
    }

    fn can_share(&self, source: &dyn VolumeFile) -> Result<bool> {
        let Some(source) = source.as_host() else {
            return Ok(false);
        };
        let work = self.work()?;
        work.remove(PROBE)?;
        let file = work.new_file(PROBE);
        work.remove(PROBE)?;
        Ok(rustix::fs::ioctl_ficlone(&file?, source.as_file()).is_ok())
    }
}

/// Lists use no longer values.
const PEEKED_MAX: usize = 64;

impl Peek for OwnedFd {
    fn attribute(&self, name: &str) -> Option<Vec<u8>> {
        let mut value = [0; PEEKED_MAX];
        let length = rustix::fs::fgetxattr(self, name, &mut value[..]).ok()?;
        Some(value[..length].to_vec())
    }

    fn read(&self, first: &mut [u8]) -> usize {
        rustix::io::pread(self, first, 0).unwrap_or(0)
    }
}

impl From<Stat> for FileStat {
    fn from(stat: Stat) -> Self {
        Self {
            size_bytes: stat.st_size as u64,
            allocated_bytes: stat.st_blocks as u64 * 512,
            block_bytes: stat.st_blksize.max(0) as u64,
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
        }
    }
}

fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}
