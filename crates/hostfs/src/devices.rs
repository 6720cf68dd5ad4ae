//! The block devices between a file and the files and disks below it, for reports.

use std::path::Path;

use extant_space::Result;
use extant_sys::stack::{DeviceKind, Member, Stack, StackDevice};
use serde::Serialize;

use crate::file::HostFile;

/// A block device of a stack, or what its layers end at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceBelow {
    /// Path of the file that the device stores.
    pub layer: String,
    /// A path in `/dev`, or the name of a file system below which nothing is known.
    pub name: String,
    /// `disk`, `memory`, `partition`, `loop`, `unknown`; of the device mapper the types of its
    /// targets, of md the level.
    pub kind: String,
    /// Its bytes are stored by these: devices, or the file of a loop device.
    pub members: Vec<String>,
    /// Why nothing is known below.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The devices below the file or disk at `path`, each before those below it.
///
/// # Errors
/// Those of opening the file.
pub fn devices_below(path: &Path) -> Result<Vec<DeviceBelow>> {
    let file = HostFile::open_read(path)?;
    let stack = Stack::below(file.as_file()).map_err(|source| file.error(source))?;
    let mut found = Vec::new();
    add(&stack.device, path, &mut found);
    for lower in stack.files() {
        add(&lower.device, &lower.path, &mut found);
    }
    Ok(found)
}

fn add(device: &StackDevice, layer: &Path, found: &mut Vec<DeviceBelow>) {
    let devices = device.down_to_files().into_iter();
    found.extend(devices.map(|device| DeviceBelow::new(device, layer)));
}

impl DeviceBelow {
    pub(crate) fn new(device: &StackDevice, layer: &Path) -> Self {
        let (kind, reason) = match &device.kind {
            DeviceKind::Disk => ("disk".to_owned(), None),
            DeviceKind::Memory => ("memory".to_owned(), None),
            DeviceKind::Partition => ("partition".to_owned(), None),
            DeviceKind::Loop => ("loop".to_owned(), None),
            DeviceKind::Mapper { targets } => (targets.join(", "), None),
            DeviceKind::Array { level } => (level.clone(), None),
            DeviceKind::Unknown { reason } => ("unknown".to_owned(), Some(reason.clone())),
        };
        let member = |member: &Member| match member {
            Member::Device(device) => device.name.clone(),
            Member::File(file) => file.path.to_string_lossy().into_owned(),
        };
        Self {
            layer: layer.to_string_lossy().into_owned(),
            name: device.name.clone(),
            kind,
            members: device.members.iter().map(member).collect(),
            reason,
        }
    }
}
