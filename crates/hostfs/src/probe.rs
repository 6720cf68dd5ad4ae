//! Probe: capabilities of a path, found by trying.
//!
//! Everything is tried on scratch files without a name (`O_TMPFILE`; where that is
//! missing, with a name that is removed at once), so that nothing is left behind.

mod through;

use std::fs::File;
use std::path::{Path, PathBuf};

use extant_provision::{Plan, refusal};
use extant_space::{ByteRange, Error, ErrorKind, FallocateMode, Result, SpaceFile};
use extant_sys::direct::DirectIo;
use extant_sys::extents::MapSource;
use serde::Serialize;

use crate::disk::DiskLimits;
use crate::file::HostFile;
use crate::filesystem::{FileSystem, parent_of};
use crate::scratch::Scratch;

pub use self::through::{DeviceProbe, FileProbe, LayerProbes};

const SCRATCH: u64 = 4 << 20;

/// One operation of `fallocate(2)`, tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModeResult {
    /// The operation, by its name in messages.
    pub mode: &'static str,
    /// It works.
    pub is_supported: bool,
    /// Answer of the file system: `ok` or the name of an error.
    pub answer: String,
}

/// Capabilities of a path.
#[derive(Clone, Debug, Serialize)]
pub struct ProbeReport {
    /// The directory that was tried.
    #[serde(serialize_with = "crate::filesystem::serialize_path")]
    pub directory: PathBuf,
    /// Its file system.
    pub filesystem: FileSystem,
    /// The disk below, where there is one.
    pub disk: Option<DiskLimits>,
    /// Source of extent maps; `None` where no file could be made.
    pub map_source: Option<MapSource>,
    /// Alignment for direct I/O; `None`: there is none.
    pub direct_io: Option<DirectIo>,
    /// The operations of `fallocate(2)`.
    pub modes: Vec<ModeResult>,
    /// Files can share space (`FICLONE`).
    pub has_reflink: bool,
    /// Copy-on-write can be turned off for an empty file (`chattr +C`).
    pub has_nocow: bool,
    /// Plan of `create` for this path; `None` with the reason in `refusal`.
    pub plan: Option<Plan>,
    /// Why `create` would refuse a written file here.
    pub refusal: Option<String>,
    /// The layers below, of [`probe_through`].
    #[serde(flatten)]
    pub through: Option<LayerProbes>,
}

/// [`probe`], and the abilities of each layer below `path`.
///
/// # Errors
/// As [`probe`].
pub fn probe_through(path: &Path) -> Result<ProbeReport> {
    let mut report = probe(path)?;
    report.through = Some(through::below(path, &report)?);
    Ok(report)
}

/// Probes the file system at `path`. `path` is a directory, or a file (or the name of one to be) in
/// the directory that is tried.
pub fn probe(path: &Path) -> Result<ProbeReport> {
    let directory_path = if path.is_dir() { path } else { parent_of(path) };
    let directory =
        File::open(directory_path).map_err(|source| Error::from(source).at(directory_path))?;
    let scratch = Scratch::new(&directory, directory_path);
    let filesystem = FileSystem::of_directory(&directory, directory_path)?;
    let mut report = ProbeReport {
        directory: directory_path.to_path_buf(),
        disk: filesystem.device.and_then(DiskLimits::of_device),
        map_source: None,
        direct_io: None,
        modes: Vec::new(),
        has_reflink: false,
        has_nocow: false,
        plan: None,
        refusal: None,
        through: None,
        filesystem,
    };
    if let Err(error) = try_out(&scratch, &mut report) {
        report.refusal = Some(error.to_string());
    }
    Ok(report)
}

/// Fills in the capabilities that have to be tried; stops where nothing can be (read-only, full,
/// forbidden).
fn try_out(scratch: &Scratch<'_>, report: &mut ProbeReport) -> Result<()> {
    let file = scratch.file()?;
    report.map_source = Some(file.map_source());
    report.direct_io = DirectIo::of(file.as_file());
    report.has_nocow = scratch.file()?.accepts_nocow();
    report.modes = modes_on(scratch, &report.filesystem)?;
    report.has_reflink = has_reflink(scratch)?;
    report.plan = Some(plan_on(&scratch.file()?)?);
    Ok(())
}

fn modes_on(scratch: &Scratch<'_>, filesystem: &FileSystem) -> Result<Vec<ModeResult>> {
    // Collapse and insert need whole blocks, on bigalloc and XFS real-time whole clusters.
    let unit = filesystem.block_bytes.next_power_of_two().max(1 << 20);
    let inner = ByteRange::new(unit, 2 * unit);
    FallocateMode::ALL
        .into_iter()
        .map(|mode| {
            let file = scratch.file()?;
            // Written data, so that there is something to punch, zero or move.
            file.write_at(&vec![1; SCRATCH as usize], 0)?;
            file.resize(4 * unit)?;
            let result = file.fallocate(mode, inner);
            Ok(ModeResult {
                mode: mode.name(),
                is_supported: result.is_ok(),
                answer: match result {
                    Ok(()) => "ok".to_owned(),
                    Err(error) => refusal(&error),
                },
            })
        })
        .collect()
}

fn plan_on(file: &HostFile) -> Result<Plan> {
    let range = ByteRange::new(0, SCRATCH);
    match file.fallocate(FallocateMode::Allocate, range) {
        Ok(()) => Plan::of(file, Some(range)),
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            let mut plan = Plan::of(file, None)?;
            plan.fall_back_to_write_in_order(&refusal(&error));
            Ok(plan)
        }
        Err(error) => Err(error),
    }
}

fn has_reflink(scratch: &Scratch<'_>) -> Result<bool> {
    let (from, to) = (scratch.file()?, scratch.file()?);
    from.write_at(&[1; 4096], 0)?;
    Ok(rustix::fs::ioctl_ficlone(to.as_file(), from.as_file()).is_ok())
}
