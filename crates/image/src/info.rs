//! What an image is, and how much of it is really there.

use std::ops::ControlFlow;
use std::path::PathBuf;

use extant_space::{ByteRange, ExtentState, Result};
use serde::Serialize;

use crate::format::{Autoclear, Compatible, Header, Incompatible, read_snapshots};
use crate::layer::Layer;
use crate::options::Format;
use crate::preallocation::Preallocation;
use crate::qcow2::Qcow2;

/// Snapshots told at most; all are counted.
const SNAPSHOTS_TOLD: usize = 1000;

/// What an image is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ImageInfo {
    /// Its format.
    pub format: Format,
    /// Size of the guest's disk.
    pub virtual_bytes: u64,
    /// Size of the file.
    pub file_bytes: u64,
    /// Bytes of the file that have space.
    pub allocated_bytes: u64,
    /// The mode that the image is in, as found: the least that holds for all of the disk.
    pub preallocation: Preallocation,
    /// Bytes of the guest's disk by the state of their space.
    pub states: StateBytes,
    /// What only qcow2 has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qcow2: Option<Qcow2Info>,
}

/// Bytes of the guest's disk by state; a data file that was not opened counts as written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StateBytes {
    /// Without space, in this image or on the host.
    pub hole: u64,
    /// With space that is not written yet.
    pub unwritten: u64,
    /// Written.
    pub written: u64,
    /// Of these, mapped by the image: all of a raw one.
    pub mapped: u64,
}

/// Facts of a qcow2 header.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Qcow2Info {
    /// `0.10` or `1.1`.
    pub compat: &'static str,
    /// Size of a cluster.
    pub cluster_bytes: u64,
    /// Width of a refcount.
    pub refcount_bits: u32,
    /// How clusters are compressed.
    pub compression: &'static str,
    /// Refcounts may be written later.
    pub lazy_refcounts: bool,
    /// Refcounts may be wrong.
    pub is_dirty: bool,
    /// Structures are damaged.
    pub is_corrupt: bool,
    /// There are valid bitmaps.
    pub has_bitmaps: bool,
    /// The name of the backing file.
    pub backing_file: Option<PathBuf>,
    /// The format of the backing file.
    pub backing_format: Option<String>,
    /// The name of the data file.
    pub data_file: Option<PathBuf>,
    /// The data file reads as the guest does.
    pub data_file_raw: bool,
    /// How many internal snapshots there are.
    pub snapshot_count: u32,
    /// The first of them.
    pub snapshots: Vec<SnapshotInfo>,
}

/// An internal snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SnapshotInfo {
    /// Its identifier.
    pub id: String,
    /// Its name.
    pub name: String,
    /// When it was made, seconds since 1970.
    pub date_seconds: u32,
    /// Bytes of the machine's state in it.
    pub vm_state_bytes: u64,
    /// The size that the disk had.
    pub virtual_bytes: Option<u64>,
}

impl Layer {
    /// Tells what this layer is, looking at its tables and at the map of its file. Files below it are not looked at.
    ///
    /// # Errors
    /// `Corrupt` for tables and lists that cannot be; and errors of reading.
    pub fn info(&self) -> Result<ImageInfo> {
        let file = self.file();
        let file_bytes = file.size()?;
        let mut allocated_bytes = 0;
        file.for_each_extent(ByteRange::new(0, file_bytes), &mut |extent| {
            if extent.state != ExtentState::Hole {
                allocated_bytes += extent.logical.len();
            }
            ControlFlow::Continue(())
        })?;
        let states = self.states()?;
        let qcow2 = match self.qcow2() {
            None => None,
            Some(qcow2) => Some(qcow2_info(qcow2)?),
        };
        let is_mapped = states.mapped == self.virtual_bytes() && qcow2.is_some();
        let preallocation = match states {
            _ if self.virtual_bytes() == 0 => Preallocation::Off,
            StateBytes {
                hole: 0,
                unwritten: 0,
                ..
            } => Preallocation::Full,
            StateBytes { hole: 0, .. } => Preallocation::Falloc,
            _ if is_mapped => Preallocation::Metadata,
            _ => Preallocation::Off,
        };
        Ok(ImageInfo {
            format: self.format(),
            virtual_bytes: self.virtual_bytes(),
            file_bytes,
            allocated_bytes,
            preallocation,
            states,
            qcow2,
        })
    }

    /// Of this layer alone.
    fn states(&self) -> Result<StateBytes> {
        let mut states = StateBytes::default();
        self.for_each_own_extent(&mut |extent| {
            let bytes = extent.guest.len();
            match extent.state {
                ExtentState::Hole => states.hole += bytes,
                ExtentState::Unwritten => states.unwritten += bytes,
                ExtentState::Written => states.written += bytes,
            }
            if extent.offset.is_some() || extent.is_data {
                states.mapped += bytes;
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(states)
    }
}

fn qcow2_info(qcow2: &Qcow2) -> Result<Qcow2Info> {
    let header: &Header = &qcow2.header;
    let mut snapshots = Vec::new();
    read_snapshots(&*qcow2.file, header, &mut |snapshot| {
        if snapshots.len() < SNAPSHOTS_TOLD {
            snapshots.push(SnapshotInfo {
                id: snapshot.id,
                name: snapshot.name,
                date_seconds: snapshot.date_seconds,
                vm_state_bytes: snapshot.vm_state_bytes,
                virtual_bytes: snapshot.virtual_bytes,
            });
        }
        Ok(())
    })?;
    Ok(Qcow2Info {
        compat: header.version.compat(),
        cluster_bytes: header.geometry.cluster_bytes(),
        refcount_bits: header.geometry.refcount_bits(),
        compression: header.compression.name(),
        lazy_refcounts: header.compatible.contains(Compatible::LAZY_REFCOUNTS),
        is_dirty: header.incompatible.contains(Incompatible::DIRTY),
        is_corrupt: header.incompatible.contains(Incompatible::CORRUPT),
        has_bitmaps: header.autoclear.contains(Autoclear::BITMAPS),
        backing_file: header.backing_file.clone(),
        backing_format: header.extensions.backing_format(),
        data_file: header.data_file().map(PathBuf::from),
        data_file_raw: header.autoclear.contains(Autoclear::RAW_DATA_FILE),
        snapshot_count: header.snapshots.count,
        snapshots,
    })
}
