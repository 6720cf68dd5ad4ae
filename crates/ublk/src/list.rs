//! The ublk disks of this machine.

use std::fs;

use extant_blockdev::SECTOR_BYTES;
use extant_space::{Error, ErrorKind, Result};

use crate::control::{Control, DiskName, block_device};
use crate::disk::{is_own, is_served};
use crate::protocol::state;

/// Directory with an entry for each disk.
const DISKS: &str = "/sys/class/ublk-char";

/// A disk of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskInfo {
    /// Its number.
    pub id: u32,
    /// Path of the disk.
    pub path: String,
    /// Its size.
    pub size_bytes: u64,
    /// Its state.
    pub state: DiskState,
    /// The process that serves it, or served it last.
    pub server_pid: i32,
    /// Made by this program.
    pub is_own: bool,
}

/// The state of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskState {
    /// A server runs its requests.
    Live,
    /// Its server died; requests wait for the next one.
    Waiting,
    /// Its server died; requests fail until the next one.
    Failing,
    /// Not started, or stopped.
    Dead,
}

impl DiskState {
    /// A word for tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Waiting => "waiting",
            Self::Failing => "failing",
            Self::Dead => "dead",
        }
    }
}

/// The disks that the caller may ask about, by number.
///
/// # Errors
/// As [`availability`](crate::availability).
pub fn list() -> Result<Vec<DiskInfo>> {
    let mut control = Control::open()?;
    let mut disks = Vec::new();
    let entries = match fs::read_dir(DISKS) {
        Ok(entries) => entries,
        Err(error) => return Err(Error::from(error).at(DISKS)),
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("ublkc"));
        let Some(id) = number.and_then(|number| number.parse().ok()) else {
            continue;
        };
        // It may have been removed, or be another user's.
        let Ok(Some(info)) = control.info(id) else {
            continue;
        };
        let parameters = control.parameters(DiskName::from(&info));
        disks.push(DiskInfo {
            id,
            path: block_device(id),
            size_bytes: parameters
                .map_or(0, |parameters| parameters.basic.dev_sectors * SECTOR_BYTES),
            state: match info.state {
                state::LIVE if !is_served(&info) => DiskState::Waiting,
                state::LIVE => DiskState::Live,
                state::QUIESCED => DiskState::Waiting,
                state::FAIL_IO => DiskState::Failing,
                state::DEAD.. => DiskState::Dead,
            },
            server_pid: info.ublksrv_pid,
            is_own: is_own(&info),
        });
    }
    disks.sort_by_key(|disk| disk.id);
    Ok(disks)
}

/// Removes a disk that has no server any more. Requests that wait for it fail.
///
/// # Errors
/// `NotFound` without such a disk, `InUse` while a server serves it, those of the driver.
pub fn delete(id: u32) -> Result<()> {
    let mut control = Control::open()?;
    let path = block_device(id);
    let Some(info) = control.info(id)? else {
        return Err(Error::new(ErrorKind::NotFound)
            .at(path)
            .detail("no such ublk disk"));
    };
    if is_served(&info) {
        return Err(Error::new(ErrorKind::InUse)
            .at(path)
            .detail(format!("process {} serves it", info.ublksrv_pid))
            .advice("end that process"));
    }
    let name = DiskName::from(&info);
    if info.state != state::DEAD {
        control.stop(name)?;
    }
    control.delete(name)
}
