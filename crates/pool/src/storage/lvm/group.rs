//! A volume group, through the LVM tools alone.
//!
//! Each command of the tools is atomic: its change of the group's metadata is one commit, which a
//! power cut does not tear. The tools take the lock of the group themselves. A command of a killed
//! process of the pool continues; it inherits a lock on the file `commands` of the state directory
//! as its standard input, so later commands, and reports, wait until it has ended.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use extant_hostfs::Directory;
use extant_space::{ByteSize, Error, ErrorKind, Result};
use extant_sys::wait::poll_until;
use parking_lot::Mutex;
use rustix::fs::OFlags;

use super::report::{INCOMPLETE, LogicalVolume, RAW, Report, messages};
use crate::storage::block_file::user_of_node;

const PROGRAM: &str = "lvm";
/// Where the tools are, for users whose `PATH` has no programs of root.
const PROGRAM_DIRECTORIES: &str = "/usr/sbin:/sbin";
/// The file of the state directory that running commands have locked.
const COMMANDS: &str = "commands";
/// How long the commands of other processes may take.
const COMMANDS_TIMEOUT: Duration = Duration::from_secs(60);
const COMMANDS_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How long a volume that is to be removed may be in use: by udev, and by the last writes of a
/// killed process.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(3);
const REMOVE_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Fields of the report, by section.
const FIELDS: [(&str, &str); 5] = [
    ("vg", "vg_uuid,vg_attr,vg_extent_size,vg_size"),
    ("pv", "pv_attr,pv_free"),
    (
        "lv",
        "lv_name,lv_uuid,lv_size,lv_tags,lv_layout,lv_role,lv_kernel_major,lv_kernel_minor",
    ),
    ("seg", "lv_uuid"),
    ("pvseg", "pvseg_start"),
];

/// A volume group, for one operation.
#[derive(Debug)]
pub(super) struct Group {
    name: String,
    /// Of the group that the pool was made with.
    uuid: Option<String>,
    /// The state directory.
    own: Option<Directory>,
    /// As it was after the last change of this operation.
    report: Mutex<Option<Arc<Report>>>,
}

impl Group {
    /// # Errors
    /// `Unsupported` if the kernel has no device mapper.
    pub(super) fn open(name: &str, uuid: Option<String>, own: Option<&Directory>) -> Result<Self> {
        check_device_mapper().map_err(|error| error.at(path_of_group(name)))?;
        Ok(Self {
            name: name.to_owned(),
            uuid,
            own: own.map(Directory::again).transpose()?,
            report: Mutex::default(),
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Path of a volume, for messages.
    pub(super) fn path(&self, volume: &str) -> PathBuf {
        path_of_group(&self.name).join(volume)
    }

    /// The group as this operation has left it.
    pub(super) fn report(&self) -> Result<Arc<Report>> {
        if let Some(report) = &*self.report.lock() {
            return Ok(Arc::clone(report));
        }
        self.fresh()
    }

    /// The group as it is now.
    ///
    /// # Errors
    /// `NotFound` also for another group than that of the pool.
    pub(super) fn fresh(&self) -> Result<Arc<Report>> {
        let mut words = vec![
            "fullreport",
            "--reportformat",
            "json",
            "--units",
            "b",
            "--nosuffix",
        ];
        for (section, fields) in FIELDS {
            words.extend(["--configreport", section, "-o", fields]);
        }
        words.push(&self.name);
        let text = self.run(&words)?;
        let report = Report::parse(&text).map_err(|error| error.at(self.path("")))?;
        if self.uuid.as_ref().is_some_and(|uuid| *uuid != report.uuid) {
            return Err(Error::new(ErrorKind::NotFound)
                .at(path_of_group(&self.name))
                .detail("the volume group is another one than the pool was made with")
                .advice("attach its disks, or delete the definition and define the pool again"));
        }
        let report = Arc::new(report);
        *self.report.lock() = Some(Arc::clone(&report));
        Ok(report)
    }

    /// Makes an unfinished volume, of contiguous extents if there are such.
    pub(super) fn create(&self, volume: &str, bytes: u64) -> Result<LogicalVolume> {
        let size = format!("{bytes}b");
        let create = |policy: &str| {
            self.change(&[
                "lvcreate",
                "--yes",
                "--quiet",
                "--type",
                "linear",
                "--wipesignatures",
                "y",
                "--alloc",
                policy,
                "--addtag",
                RAW,
                "--addtag",
                INCOMPLETE,
                "--size",
                &size,
                "--name",
                volume,
                &self.name,
            ])
        };
        self.contiguous_first(bytes, create)?;
        self.find(volume)
    }

    /// Adds extents to a volume.
    pub(super) fn extend(&self, volume: &LogicalVolume, bytes: u64) -> Result<()> {
        let (size, name) = (format!("{bytes}b"), self.full(&volume.name));
        self.contiguous_first(bytes - volume.size_bytes, |policy| {
            self.change(&[
                "lvextend", "--yes", "--quiet", "--alloc", policy, "--size", &size, &name,
            ])
        })
    }

    /// Runs `change` with the policy `contiguous`, then with `normal`.
    fn contiguous_first(&self, bytes: u64, change: impl Fn(&str) -> Result<()>) -> Result<()> {
        if change("contiguous").is_ok() {
            return Ok(());
        }
        let Err(error) = change("normal") else {
            return Ok(());
        };
        let free_bytes = self.fresh()?.free_bytes;
        if free_bytes >= bytes {
            return Err(error);
        }
        Err(Error::new(ErrorKind::NoSpace)
            .at(path_of_group(&self.name))
            .detail(format!(
                "no space: {} wanted, {} free in the volume group, {} missing",
                ByteSize(bytes),
                ByteSize(free_bytes),
                ByteSize(bytes - free_bytes)
            )))
    }

    /// Removes extents at the end of a volume, with their data.
    pub(super) fn reduce(&self, volume: &LogicalVolume, bytes: u64) -> Result<()> {
        let (size, name) = (format!("{bytes}b"), self.full(&volume.name));
        let reduce = |more: &[&str]| {
            let words = ["lvreduce", "--force", "--yes", "--quiet", "--size", &size];
            self.change(&[&words[..], more, &[&name]].concat())
        };
        // Since 2.03.17 the tools refuse to cut a file system without an option that earlier ones
        // do not have.
        reduce(&[]).or_else(|error| reduce(&["--fs", "ignore"]).map_err(|_| error))
    }

    /// An unfinished volume is complete: other programs may extend it as they like.
    pub(super) fn set_complete(&self, volume: &LogicalVolume) -> Result<()> {
        let name = self.full(&volume.name);
        self.change(&[
            "lvchange", "--quiet", "--alloc", "inherit", "--deltag", INCOMPLETE, &name,
        ])
    }

    /// # Errors
    /// `AlreadyExists` if another volume has the name.
    pub(super) fn rename(&self, from: &str, to: &str) -> Result<()> {
        let renamed = self.change(&["lvrename", "--quiet", &self.name, from, to]);
        renamed.map_err(|error| match self.fresh() {
            Ok(report) if report.named(to).is_some() => {
                Error::new(ErrorKind::AlreadyExists).at(self.path(to))
            }
            _ => error,
        })
    }

    pub(super) fn add_tag(&self, volumes: &[&LogicalVolume], tag: &str) -> Result<()> {
        self.change_tag("--addtag", volumes, tag)
    }

    pub(super) fn remove_tag(&self, volume: &LogicalVolume, tag: &str) -> Result<()> {
        self.change_tag("--deltag", &[volume], tag)
    }

    fn change_tag(&self, option: &str, volumes: &[&LogicalVolume], tag: &str) -> Result<()> {
        let names: Vec<String> = volumes.iter().map(|one| self.full(&one.name)).collect();
        let mut words = vec!["lvchange", "--quiet", option, tag];
        words.extend(names.iter().map(String::as_str));
        self.change(&words)
    }

    /// # Errors
    /// `InUse` with the user.
    pub(super) fn remove(&self, volume: &LogicalVolume) -> Result<()> {
        volume.check_no_snapshots()?;
        let unused = poll_until(REMOVE_TIMEOUT, REMOVE_POLL_INTERVAL, || {
            self.user_of(volume).is_none().then_some(())
        });
        if unused.is_none()
            && let Some(who) = self.user_of(volume)
        {
            return Err(in_use(&who));
        }
        let removed = self.change(&["lvremove", "--yes", "--quiet", &self.full(&volume.name)]);
        removed.map_err(|error| match self.user_of(volume) {
            Some(who) => in_use(&who),
            None => error,
        })
    }

    /// The user of a volume's device, as text.
    pub(super) fn user_of(&self, volume: &LogicalVolume) -> Option<String> {
        user_of_node(&node_of(volume)?)
    }

    /// The device of a volume, activated if it has none.
    pub(super) fn device(&self, uuid: &str) -> Result<PathBuf> {
        let find = |report: &Report| {
            let found = report.volumes.iter().find(|volume| volume.uuid == uuid);
            found.cloned().ok_or_else(|| {
                Error::new(ErrorKind::NotFound).detail("the logical volume was removed")
            })
        };
        if let Some(node) = node_of(&find(&*self.report()?)?) {
            return Ok(node);
        }
        let volume = find(&*self.fresh()?)?;
        if let Some(node) = node_of(&volume) {
            return Ok(node);
        }
        let name = self.full(&volume.name);
        self.change(&["lvchange", "--quiet", "--activate", "y", &name])?;
        node_of(&find(&*self.report()?)?).ok_or_else(|| {
            Error::new(ErrorKind::NotFound).detail("the logical volume is active and has no device")
        })
    }

    /// A volume by its name now.
    pub(super) fn find(&self, volume: &str) -> Result<LogicalVolume> {
        let report = self.report()?;
        let found = report.named(volume).cloned();
        found.ok_or_else(|| Error::new(ErrorKind::NotFound).at(self.path(volume)))
    }

    fn full(&self, volume: &str) -> String {
        format!("{}/{volume}", self.name)
    }

    fn change(&self, words: &[&str]) -> Result<()> {
        *self.report.lock() = None;
        self.run(words).map(drop)
    }

    /// Runs a command; its output.
    ///
    /// # Errors
    /// `NotFound` if there is no such group, `Io` with what the command printed.
    fn run(&self, words: &[&str]) -> Result<String> {
        let place = path_of_group(&self.name);
        let input = match self.lock()? {
            Some(lock) => Stdio::from(lock),
            None => Stdio::null(),
        };
        let mut path = std::env::var_os("PATH").unwrap_or_default();
        if !path.is_empty() {
            path.push(":");
        }
        path.push(OsString::from(PROGRAM_DIRECTORIES));
        let output = Command::new(PROGRAM)
            .args(words)
            .env("PATH", path)
            .env("LC_ALL", "C")
            .env("LVM_SUPPRESS_FD_WARNINGS", "1")
            .stdin(input)
            // A signal from the terminal is for this process, which cancels in order.
            .process_group(0)
            .output();
        let output = output.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::new(ErrorKind::Unsupported)
                .at(&place)
                .detail("there is no program lvm")
                .advice("Debian: apt install lvm2"),
            _ => Error::from(error).at(PROGRAM),
        })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let (said, reported) = (
            String::from_utf8_lossy(&output.stderr),
            messages(&String::from_utf8_lossy(&output.stdout)),
        );
        let lines: Vec<&str> = said
            .lines()
            .chain(reported.iter().map(String::as_str))
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .collect();
        let kind = if lines.iter().any(|line| line.ends_with("not found")) {
            ErrorKind::NotFound
        } else {
            ErrorKind::Io
        };
        Err(Error::new(kind).at(place).detail(format!(
            "{}: {}",
            words.first().unwrap_or(&PROGRAM),
            if lines.is_empty() {
                output.status.to_string()
            } else {
                lines.join("; ")
            }
        )))
    }

    /// The lock of a command; `None` if the state directory has none.
    fn lock(&self) -> Result<Option<File>> {
        let Some(own) = &self.own else {
            return Ok(None);
        };
        let file = match own.file(COMMANDS, OFlags::RDWR | OFlags::CREATE) {
            Ok(file) => file,
            Err(error) => match error.kind() {
                ErrorKind::ReadOnly | ErrorKind::NoSpace | ErrorKind::PermissionDenied => {
                    return Ok(None);
                }
                _ => return Err(error),
            },
        };
        let locked = poll_until(COMMANDS_TIMEOUT, COMMANDS_POLL_INTERVAL, || {
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => None,
                answer => Some(answer),
            }
        });
        match locked {
            Some(Ok(())) => Ok(Some(file)),
            Some(Err(TryLockError::Error(source))) => Err(Error::from(source).during("lock")),
            None | Some(Err(TryLockError::WouldBlock)) => Err(Error::new(ErrorKind::InUse)
                .at(path_of_group(&self.name))
                .detail("another command of the LVM tools runs for the pool")),
        }
    }
}

/// The directory of a group's devices.
pub(super) fn path_of_group(name: &str) -> PathBuf {
    Path::new("/dev").join(name)
}

/// The node of a volume's device; `None` if it is not active.
pub(super) fn node_of(volume: &LogicalVolume) -> Option<PathBuf> {
    let (major, minor) = volume.device?;
    let sysfs = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let node = Path::new("/dev").join(sysfs.file_name()?);
    let number = fs::metadata(&node).ok()?.rdev();
    (number == rustix::fs::makedev(major, minor)).then_some(node)
}

fn in_use(who: &str) -> Error {
    Error::new(ErrorKind::InUse)
        .detail(format!("the logical volume is in use: {who}"))
        .advice("stop its user, or umount it")
}

/// The kernel has a device mapper, or loads it now.
fn check_device_mapper() -> Result<()> {
    let is_listed = fs::read_to_string("/proc/misc")
        .is_ok_and(|text| text.lines().any(|line| line.ends_with(" device-mapper")));
    if is_listed || File::open("/dev/mapper/control").is_ok() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Unsupported)
        .detail("this kernel has no device mapper, which logical volumes are made of")
        .advice("load the module dm-mod"))
}
