//! A disk, from its start to its end.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle, available_parallelism};
use std::time::{Duration, Instant};

use extant_blockdev::{Access, Device, DiscardPolicy, Features, SECTOR_BYTES};
use extant_space::thread::spawn;
use extant_space::{Error, ErrorKind, Result};
use extant_sys::cpus;

use crate::control::{Control, DiskName, block_device, open_character_device};
use crate::protocol::{ANY_DISK, DeviceInfo, Flags, state};
use crate::queue::{FailureObserver, QueueWorker};
use crate::request::parameters;
use crate::sys::become_io_flusher;

/// Requests in flight of each queue.
const QUEUE_DEPTH: u16 = 128;
/// Most queues; each has [`QUEUE_DEPTH`] buffers.
const QUEUES_MAX: usize = 4;
/// Most bytes of a read or write, and of a buffer, whose memory is allocated on first use.
const BUFFER_BYTES: u32 = 256 << 10;
/// In the upper half of the field that the driver stores for servers: a disk of this program.
const OWN_MARK: u64 = 0x4578_746e << 32;
/// Time for udev to give the character device to its owner, and for the driver to notice that a
/// server has died.
const PATIENCE: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The fate of a disk whose server dies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recovery {
    /// It stays. Requests wait until another server continues it, also those that the dead one had.
    #[default]
    Wait,
    /// It is removed, and its requests fail.
    Remove,
}

/// Options of a disk.
#[derive(Clone)]
pub struct DiskOptions {
    /// Number of the disk. If a disk with this number lost its server, it is continued. `None`: the
    /// first free number.
    pub id: Option<u32>,
    /// A number by which the served contents are recognised when a disk is continued.
    pub contents: u32,
    /// Whether the disk can be written.
    pub access: Access,
    /// How discards and zeros treat the space.
    pub discard: DiscardPolicy,
    /// The fate of the disk when this process dies. A user without privileges gets `Remove`.
    pub recovery: Recovery,
    /// Called for each request that failed.
    pub on_failure: Option<FailureObserver>,
}

impl DiskOptions {
    /// A writable disk with the first free number.
    pub fn new(contents: u32) -> Self {
        Self {
            id: None,
            contents,
            access: Access::ReadWrite,
            discard: DiscardPolicy::default(),
            recovery: Recovery::default(),
            on_failure: None,
        }
    }
}

/// The result of a request to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The disk is gone.
    Done,
    /// It is in use, and still served.
    InUse,
}

/// A disk of this machine, served by threads of this process. Dropping it stops it.
pub struct Disk {
    control: Control,
    name: DiskName,
    device: Arc<dyn Device>,
    sectors: u64,
    is_continued: bool,
    queues: Vec<JoinHandle<Result<()>>>,
}

impl Disk {
    /// Makes `/dev/ublkbN` with the contents of `device`, or continues it.
    ///
    /// # Errors
    /// As [`availability`](crate::availability). `InUse` when the number is that of a disk with a
    /// living server. `InvalidArgument` when it is that of a disk with other contents, or the
    /// device is too small or has blocks that no disk has.
    pub fn start(device: Arc<dyn Device>, options: &DiskOptions) -> Result<Self> {
        let geometry = device.geometry();
        if geometry.whole_sectors() == 0 || geometry.logical_block > 4096 {
            return Err(Error::new(ErrorKind::InvalidArgument).detail(format!(
                "a ublk disk has at least one block of 512 to 4096 bytes, not {} bytes in blocks of {}",
                geometry.size, geometry.logical_block
            )));
        }
        let mut control = Control::open()?;
        let continued = match options.id {
            Some(id) => lost_disk(&mut control, id, options)?,
            None => None,
        };
        let is_continued = continued.is_some();
        let info = match continued {
            Some(info) => info,
            None => control.add(wanted(options))?,
        };
        let mut disk = Self {
            name: DiskName::from(&info),
            control,
            device,
            sectors: geometry.whole_sectors(),
            is_continued,
            queues: Vec::new(),
        };
        match disk.serve(&info, options) {
            Ok(()) => Ok(disk),
            Err(error) => {
                disk.abandon();
                Err(error)
            }
        }
    }

    /// Path of the disk.
    pub fn path(&self) -> PathBuf {
        block_device(self.name.id).into()
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.name.id
    }

    /// It was continued after its server had died.
    pub fn is_continued(&self) -> bool {
        self.is_continued
    }

    /// Its queues have ended: another program stopped the disk, or they failed. `stop` says which.
    pub fn has_ended(&self) -> bool {
        self.queues.iter().any(JoinHandle::is_finished)
    }

    /// Gives the disk the size of the device, if that has changed. Returns the size in bytes.
    ///
    /// # Errors
    /// Those of the device, and of the driver, which can resize since Linux 6.16.
    pub fn refresh(&mut self) -> Result<u64> {
        self.device.refresh()?;
        let sectors = self.device.geometry().whole_sectors();
        if sectors != self.sectors {
            self.control.set_size(self.name, sectors)?;
            self.sectors = sectors;
        }
        Ok(sectors * SECTOR_BYTES)
    }

    /// Stops and removes the disk, unless it is in use: open, where the driver reports that
    /// (Linux 7.0), otherwise mounted or claimed.
    ///
    /// # Errors
    /// Those of the driver, and of the last flush.
    pub fn stop(&mut self) -> Result<Stopped> {
        if self.queues.is_empty() {
            return Ok(Stopped::Done);
        }
        if self.control.features.contains(Flags::SAFE_STOP_DEV) {
            match self.control.try_stop(self.name) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    return Ok(Stopped::InUse);
                }
                other => other.map_err(|error| {
                    let path = block_device(self.name.id);
                    Error::from(error).during("stop").at(path)
                })?,
            }
        } else {
            if is_claimed(&self.path()) {
                return Ok(Stopped::InUse);
            }
            self.control.stop(self.name)?;
        }
        self.finish()?;
        Ok(Stopped::Done)
    }

    /// Stops and removes the disk; requests of those who still use it fail.
    ///
    /// # Errors
    /// As [`stop`](Self::stop).
    pub fn stop_by_force(&mut self) -> Result<()> {
        if self.queues.is_empty() {
            return Ok(());
        }
        self.control.stop(self.name)?;
        self.finish()
    }

    fn finish(&mut self) -> Result<()> {
        let mut result = Ok(());
        for queue in self.queues.drain(..) {
            let ended = queue.join().unwrap_or_else(|_| {
                Err(Error::new(ErrorKind::Io).detail("the thread of a queue panicked"))
            });
            result = result.and(ended);
        }
        let deleted = self.control.delete(self.name);
        let geometry = self.device.geometry();
        let flushed = if geometry.features.contains(Features::READ_ONLY) {
            Ok(())
        } else {
            self.device.flush()
        };
        result.and(deleted).and(flushed)
    }

    /// Starts the queues, then the disk.
    fn serve(&mut self, info: &DeviceInfo, options: &DiskOptions) -> Result<()> {
        let file = Arc::new(open_with_patience(info.dev_id)?);
        if !self.is_continued {
            let geometry = self.device.geometry();
            let is_read_only = options.access.is_read_only(&geometry);
            let buffer_bytes = info.max_io_buf_bytes;
            let parameters = parameters(&geometry, is_read_only, options.discard, buffer_bytes);
            self.control.set_parameters(self.name, parameters)?;
        }
        let (started, starts) = mpsc::channel();
        for queue in 0..info.nr_hw_queues {
            let cpus = self
                .control
                .queue_cpus(self.name, queue)
                .unwrap_or_default();
            let file = Arc::clone(&file);
            let device = Arc::clone(&self.device);
            let (discard, on_failure) = (options.discard, options.on_failure.clone());
            let shape = (queue, info.queue_depth, info.max_io_buf_bytes as usize);
            let started = started.clone();
            let serve = move || {
                become_io_flusher();
                // A preference: a thread on another CPU works as well.
                if let Some(&cpu) = cpus.first() {
                    let _ = cpus::stay_on(cpu);
                }
                match QueueWorker::new(file, shape, device, discard, on_failure) {
                    Ok(worker) => {
                        let _ = started.send(Ok(()));
                        // `serve` waits for the last sender.
                        drop(started);
                        worker.run()
                    }
                    Err(error) => {
                        let _ = started.send(Err(error));
                        Ok(())
                    }
                }
            };
            self.queues
                .push(spawn(&format!("extant-ublk-{queue}"), serve)?);
        }
        drop(started);
        for started in starts {
            started?;
        }
        if !self.is_continued {
            return self.control.start(self.name);
        }
        let sectors = self.control.parameters(self.name)?.basic.dev_sectors;
        self.control.end_recovery(self.name)?;
        if sectors != self.sectors {
            self.control.set_size(self.name, self.sectors)?;
        }
        Ok(())
    }

    /// Undoes a start that failed. A disk that was to be continued stays for the next attempt.
    fn abandon(&mut self) {
        if self.is_continued {
            // The threads end with the process.
            self.queues.clear();
            return;
        }
        let _ = self.control.stop(self.name);
        self.queues.clear();
        let _ = self.control.delete(self.name);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = self.stop_by_force();
    }
}

/// A new disk as the options request it.
fn wanted(options: &DiskOptions) -> DeviceInfo {
    let mut flags = Flags::CMD_IOCTL_ENCODE;
    if is_privileged() {
        if options.recovery == Recovery::Wait {
            flags |= Flags::USER_RECOVERY | Flags::USER_RECOVERY_REISSUE;
        }
    } else {
        flags |= Flags::UNPRIVILEGED_DEV;
    }
    let processors = available_parallelism().map_or(1, usize::from);
    DeviceInfo {
        nr_hw_queues: processors.min(QUEUES_MAX) as u16,
        queue_depth: QUEUE_DEPTH,
        max_io_buf_bytes: BUFFER_BYTES,
        dev_id: options.id.unwrap_or(ANY_DISK),
        flags: flags.bits(),
        ublksrv_flags: mark(options.contents),
        ..DeviceInfo::default()
    }
}

fn mark(contents: u32) -> u64 {
    OWN_MARK | u64::from(contents)
}

/// The disk was made by this program.
pub(crate) fn is_own(info: &DeviceInfo) -> bool {
    info.ublksrv_flags >> 32 == OWN_MARK >> 32
}

/// The driver requires `CAP_SYS_ADMIN` for a disk that is not its owner's alone.
fn is_privileged() -> bool {
    rustix::process::geteuid().is_root()
}

/// The disk with this number, taken over from a server that died. `None`: there is no such disk.
fn lost_disk(control: &mut Control, id: u32, options: &DiskOptions) -> Result<Option<DeviceInfo>> {
    let Some(info) = control.info(id)? else {
        return Ok(None);
    };
    let path = block_device(id);
    if info.ublksrv_flags != mark(options.contents) {
        let whose = if is_own(&info) {
            "the disk serves another file"
        } else {
            "the disk is that of another program"
        };
        return Err(Error::new(ErrorKind::InvalidArgument)
            .at(path)
            .detail(whose));
    }
    let in_use = |info: &DeviceInfo| {
        Error::new(ErrorKind::InUse)
            .at(&path)
            .detail(format!("process {} serves it", info.ublksrv_pid))
    };
    let flags = Flags::from_bits_retain(info.flags);
    if !flags.contains(Flags::USER_RECOVERY) || is_served(&info) {
        return Err(in_use(&info));
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        match control.start_recovery(DiskName::from(&info)) {
            Ok(()) => return Ok(Some(info)),
            // The driver has not noticed yet that the server died.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                if Instant::now() > deadline {
                    return Err(in_use(&info));
                }
                thread::sleep(POLL_INTERVAL);
            }
            Err(error) => return Err(Error::from(error).during("recover").at(path)),
        }
    }
}

/// A server of the disk is alive.
pub(crate) fn is_served(info: &DeviceInfo) -> bool {
    info.state == state::LIVE && Path::new(&format!("/proc/{}", info.ublksrv_pid)).exists()
}

fn open_with_patience(id: u32) -> Result<File> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match open_character_device(id) {
            Ok(file) => return Ok(file),
            Err(error) if Instant::now() > deadline => {
                let path = crate::control::character_device(id);
                let error = Error::from(error).during("open").at(path);
                return Err(match error.kind() {
                    ErrorKind::PermissionDenied => {
                        error.advice("a udev rule has to give /dev/ublkc* to the owner of the disk")
                    }
                    _ => error,
                });
            }
            Err(_) => thread::sleep(POLL_INTERVAL),
        }
    }
}

/// The disk is mounted, or another program has claimed it.
fn is_claimed(path: &Path) -> bool {
    let opened: io::Result<File> = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_EXCL)
        .open(path);
    opened.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
}
