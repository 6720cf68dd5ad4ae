//! The abilities of each layer below a path.

use std::fs::File;
use std::path::{Path, PathBuf};

use extant_space::{Error, FallocateMode, Result};
use extant_sys::disk;
use extant_sys::extents::MapSource;
use extant_sys::stack::{DeviceKind, Member, Stack, StackDevice, StackFile};
use serde::Serialize;

use super::{ModeResult, ProbeReport, probe};
use crate::devices::DeviceBelow;
use crate::disk::DiskLimits;
use crate::fast_zeroing::FastZeroing;
use crate::filesystem::parent_of;

/// The layers below a path.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LayerProbes {
    /// Files that store the layer above, from the path down.
    pub layers: Vec<FileProbe>,
    /// The devices between them.
    pub devices: Vec<DeviceProbe>,
}

/// Abilities of a file of a layer.
#[derive(Clone, Debug, Serialize)]
pub struct FileProbe {
    /// Number of the layer; 0 is the path that was asked for.
    pub depth: u32,
    /// Its path.
    #[serde(serialize_with = "crate::filesystem::serialize_path")]
    pub layer: PathBuf,
    /// Name of its file system.
    pub filesystem: String,
    /// The source of its extent map; `None` where no file could be made beside it.
    pub map_source: Option<MapSource>,
    /// Allocation, tried beside the file; `None` where that could not be tried.
    pub allocate: Option<ModeResult>,
    /// Write zeroes, tried likewise.
    pub write_zeroes: Option<ModeResult>,
    /// Allocation reaches the disk: this layer and all below it allocate.
    pub can_assign: bool,
}

/// Abilities of a device.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceProbe {
    /// Number of the layer that is on it.
    pub depth: u32,
    /// The device.
    #[serde(flatten)]
    pub device: DeviceBelow,
    /// Its queue; a partition has that of its disk.
    pub limits: Option<DiskLimits>,
    /// Whether it zeroes without being sent zeros.
    pub fast_zeroing: Option<FastZeroing>,
}

/// Probes the layers below `path`, a file, directory or disk, of which `report` is the probe.
///
/// # Errors
/// Those of opening the path.
pub(super) fn below(path: &Path, report: &ProbeReport) -> Result<LayerProbes> {
    let fail = |source| Error::from(source).at(path);
    let file = File::open(path).map_err(fail)?;
    let stack = Stack::below(&file).map_err(fail)?;
    let mut found = LayerProbes::default();
    found.add(0, path, report, report.map_source, &stack.device);
    Ok(found)
}

impl LayerProbes {
    /// Adds a file, the device that it is on, and all below it; whether it can be assigned.
    fn add(
        &mut self,
        depth: u32,
        layer: &Path,
        report: &ProbeReport,
        map_source: Option<MapSource>,
        device: &StackDevice,
    ) -> bool {
        let mode = |wanted: FallocateMode| {
            let mut modes = report.modes.iter();
            modes.find(|mode| mode.mode == wanted.name()).cloned()
        };
        let at = self.layers.len();
        let allocate = mode(FallocateMode::Allocate);
        let can_allocate = allocate.as_ref().is_some_and(|mode| mode.is_supported);
        self.layers.push(FileProbe {
            depth,
            layer: layer.to_owned(),
            filesystem: report.filesystem.name.clone(),
            map_source,
            allocate,
            write_zeroes: mode(FallocateMode::WriteZeroes),
            can_assign: false,
        });
        let is_known_below = self.add_device(depth, layer, device);
        self.layers[at].can_assign = can_allocate && is_known_below;
        self.layers[at].can_assign
    }

    /// Adds a device and all below it; whether allocation reaches all disks.
    fn add_device(&mut self, depth: u32, layer: &Path, device: &StackDevice) -> bool {
        let number = device
            .number
            .filter(|_| device.kind != DeviceKind::Partition);
        let sysfs = number.and_then(disk::directory);
        let limits = number.and_then(DiskLimits::of_device);
        let fast_zeroing = limits.as_ref().zip(sysfs);
        self.devices.push(DeviceProbe {
            depth,
            device: DeviceBelow::new(device, layer),
            fast_zeroing: fast_zeroing
                .map(|(limits, sysfs)| FastZeroing::of(device, limits, &sysfs)),
            limits,
        });
        let mut is_known = !matches!(device.kind, DeviceKind::Unknown { .. });
        for member in &device.members {
            is_known &= match member {
                Member::Device(device) => self.add_device(depth, layer, device),
                Member::File(file) => self.add_file(depth + 1, file),
            };
        }
        is_known
    }

    fn add_file(&mut self, depth: u32, file: &StackFile) -> bool {
        match probe(parent_of(&file.path)) {
            Ok(report) => self.add(depth, &file.path, &report, Some(file.map), &file.device),
            Err(_) => false,
        }
    }
}
