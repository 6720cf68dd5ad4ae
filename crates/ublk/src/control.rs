//! Commands to the driver.

use std::fs::{File, OpenOptions};
use std::io;

use extant_space::{Error, ErrorKind, Result};
use rustix::process::getpid;
use zerocopy::IntoBytes;

use crate::protocol::{
    ANY_DISK, CONTROL_DEVICE, ControlCommand, ControlOperation, DeviceInfo, Flags, Parameters,
};
use crate::sys::ControlRing;

/// CPUs in the answer about a queue's CPUs; more than a kernel has.
const CPUS_MAX: usize = 8192;

/// The driver.
pub(crate) struct Control {
    ring: ControlRing,
    pub features: Flags,
}

/// Checks that this machine can make disks.
///
/// # Errors
/// `Unsupported` where the kernel has no ublk driver, or one before Linux 6.5;
/// `PermissionDenied`, `NotPermitted`.
pub fn availability() -> Result<()> {
    Control::open().map(drop)
}

/// Path of the character device through which the server of a disk works.
pub(crate) fn character_device(id: u32) -> String {
    format!("/dev/ublkc{id}")
}

/// Path of the disk.
pub(crate) fn block_device(id: u32) -> String {
    format!("/dev/ublkb{id}")
}

impl Control {
    /// # Errors
    /// As [`availability`].
    pub(crate) fn open() -> Result<Self> {
        let device = OpenOptions::new()
            .read(true)
            .write(true)
            .open(CONTROL_DEVICE);
        let device = device.map_err(|error| {
            let error = Error::from(error).at(CONTROL_DEVICE).during("open");
            match error.kind() {
                ErrorKind::NotFound | ErrorKind::WrongType => error
                    .with_kind(ErrorKind::Unsupported)
                    .advice("load the driver with `modprobe ublk_drv` (Linux 6.0 and newer)"),
                _ => error,
            }
        })?;
        let ring = ControlRing::new(device).map_err(|error| failed(error, "make an io_uring"))?;
        let features = Flags::empty();
        let mut control = Self { ring, features };
        let mut bits = 0_u64;
        let command = ControlCommand {
            dev_id: ANY_DISK,
            queue_id: u16::MAX,
            ..ControlCommand::default()
        };
        let known = control
            .ring
            .run(ControlOperation::GetFeatures, command, bits.as_mut_bytes());
        known.map_err(|error| {
            let error = failed(error, "ask for features");
            error
                .with_kind(ErrorKind::Unsupported)
                .detail("the ublk driver is older than Linux 6.5")
        })?;
        control.features = Flags::from_bits_retain(bits);
        Ok(control)
    }

    /// Adds a disk as `info` requests. Returns it as the driver made it.
    pub(crate) fn add(&mut self, mut info: DeviceInfo) -> Result<DeviceInfo> {
        let command = ControlCommand {
            dev_id: info.dev_id,
            queue_id: u16::MAX,
            ..ControlCommand::default()
        };
        let added = self
            .ring
            .run(ControlOperation::AddDevice, command, info.as_mut_bytes());
        added.map_err(|error| failed(error, "add a ublk disk"))?;
        Ok(info)
    }

    /// The disk with this number, if there is one.
    pub(crate) fn info(&mut self, id: u32) -> Result<Option<DeviceInfo>> {
        let mut info = DeviceInfo::default();
        let disk = DiskName {
            id,
            flags: Flags::empty(),
        };
        let operation = ControlOperation::GetDeviceInfo;
        match self.run(operation, disk, 0, info.as_mut_bytes()) {
            Ok(_) => Ok(Some(info)),
            // The path does not exist, or the driver has no such disk.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENOENT)) => {
                Ok(None)
            }
            Err(error) => Err(failed(error, "ask about the disk").at(block_device(id))),
        }
    }

    pub(crate) fn parameters(&mut self, disk: DiskName) -> Result<Parameters> {
        let mut parameters = Parameters {
            len: size_of::<Parameters>() as u32,
            ..Parameters::default()
        };
        let operation = ControlOperation::GetParameters;
        let known = self.run(operation, disk, 0, parameters.as_mut_bytes());
        disk.named(known, "ask for parameters")?;
        Ok(parameters)
    }

    pub(crate) fn set_parameters(
        &mut self,
        disk: DiskName,
        mut parameters: Parameters,
    ) -> Result<()> {
        let operation = ControlOperation::SetParameters;
        let set = self.run(operation, disk, 0, parameters.as_mut_bytes());
        disk.named(set, "set parameters")
    }

    /// Makes the disk appear. Returns when the kernel has read its partition table, so the queues
    /// must be served.
    pub(crate) fn start(&mut self, disk: DiskName) -> Result<()> {
        let started = self.run(ControlOperation::StartDevice, disk, own_pid(), &mut []);
        disk.named(started, "start")
    }

    /// Takes over a disk whose server died.
    pub(crate) fn start_recovery(&mut self, disk: DiskName) -> io::Result<()> {
        self.run(ControlOperation::StartRecovery, disk, 0, &mut [])
            .map(drop)
    }

    /// The disk continues, with requests that the dead server had.
    pub(crate) fn end_recovery(&mut self, disk: DiskName) -> Result<()> {
        let ended = self.run(ControlOperation::EndRecovery, disk, own_pid(), &mut []);
        disk.named(ended, "recover")
    }

    pub(crate) fn set_size(&mut self, disk: DiskName, sectors: u64) -> Result<()> {
        let set = self.run(ControlOperation::UpdateSize, disk, sectors, &mut []);
        disk.named(set, "resize").map_err(|error| {
            if self.features.contains(Flags::UPDATE_SIZE) {
                error
            } else {
                error.detail("the ublk driver is older than Linux 6.16")
            }
        })
    }

    /// Stops the disk; requests that wait for it fail.
    pub(crate) fn stop(&mut self, disk: DiskName) -> Result<()> {
        let stopped = self.run(ControlOperation::StopDevice, disk, 0, &mut []);
        disk.named(stopped, "stop")
    }

    /// Stops the disk unless a process has it open (`EBUSY`).
    pub(crate) fn try_stop(&mut self, disk: DiskName) -> io::Result<()> {
        self.run(ControlOperation::TryStopDevice, disk, 0, &mut [])
            .map(drop)
    }

    /// Removes a stopped disk, or one that no server serves.
    pub(crate) fn delete(&mut self, disk: DiskName) -> Result<()> {
        let deleted = self.run(ControlOperation::DeleteDevice, disk, 0, &mut []);
        disk.named(deleted, "delete")
    }

    /// The CPUs whose requests arrive in a queue.
    pub(crate) fn queue_cpus(&mut self, disk: DiskName, queue: u16) -> io::Result<Vec<usize>> {
        let mut bits = [0_u8; CPUS_MAX / 8];
        let operation = ControlOperation::GetQueueAffinity;
        self.run(operation, disk, queue.into(), &mut bits)?;
        let cpus = 0..CPUS_MAX;
        Ok(cpus
            .filter(|cpu| bits[cpu / 8] & (1 << (cpu % 8)) != 0)
            .collect())
    }

    /// Runs a command about a disk. For an owner without privileges the driver checks the path of
    /// the character device, which is then in front of the structure.
    fn run(
        &mut self,
        operation: ControlOperation,
        disk: DiskName,
        data: u64,
        structure: &mut [u8],
    ) -> io::Result<u32> {
        let has_path = operation == ControlOperation::GetDeviceInfo
            || disk.flags.contains(Flags::UNPRIVILEGED_DEV);
        let mut memory = Vec::new();
        if has_path {
            memory.extend_from_slice(character_device(disk.id).as_bytes());
            memory.push(0);
        }
        let path_len = memory.len();
        memory.extend_from_slice(structure);
        let command = ControlCommand {
            dev_id: disk.id,
            queue_id: u16::MAX,
            data,
            dev_path_len: path_len as u16,
            ..ControlCommand::default()
        };
        let result = self.ring.run(operation, command, &mut memory)?;
        structure.copy_from_slice(&memory[path_len..]);
        Ok(result)
    }
}

/// A disk in commands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiskName {
    pub id: u32,
    pub flags: Flags,
}

impl From<&DeviceInfo> for DiskName {
    fn from(info: &DeviceInfo) -> Self {
        Self {
            id: info.dev_id,
            flags: Flags::from_bits_retain(info.flags),
        }
    }
}

impl DiskName {
    fn named<T>(self, result: io::Result<T>, operation: &'static str) -> Result<()> {
        match result {
            Ok(_) => Ok(()),
            Err(error) => Err(failed(error, operation).at(block_device(self.id))),
        }
    }
}

/// Opens the character device of a disk. It has its owner and mode from udev, which may be late.
pub(crate) fn open_character_device(id: u32) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(character_device(id))
}

fn own_pid() -> u64 {
    getpid().as_raw_nonzero().get() as u64
}

fn failed(error: io::Error, operation: &'static str) -> Error {
    Error::from(error).during(operation)
}
