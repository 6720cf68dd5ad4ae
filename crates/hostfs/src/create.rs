//! Creates a new file with allocated space.
//!
//! The work is done on a partial file in the same directory (`partial.rs`). Its extent map is the
//! record of progress: a run after a crash or a kill writes only the missing ranges. The file gets
//! its name when it is complete, synced and verified.

mod replaced;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use extant_provision::{ContentWriter, NewFile, Pace, Plan, Provisioner, Verified};
use extant_space::{
    ByteRange, ByteSize, Control, Error, ErrorKind, LayerStates, MapDetail, MapSummary,
    Preallocation, Remedy, Result, SpaceFile, SyncMode,
};
use extant_sys::extents::MapSource;
use rustix::fs::{IFlags, Mode};
use serde::Serialize;

use crate::assign::{Reach, assign_below, write_through};
use crate::destination::{Destination, Durable};
use crate::directory::Existing;
use crate::file::HostFile;
use crate::filesystem::{FileSystem, FileSystemKind};
use crate::partial::Partial;
use replaced::Replaced;

/// Treatment of file systems that overwrite out of place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyOnWrite {
    /// A written file is refused there: its space would not stay in place.
    #[default]
    Refuse,
    /// Copy-on-write is turned off for the file (`chattr +C`) where that is possible; this also
    /// disables checksums and compression of the file's data.
    Disable,
}

/// Treatment of a partial file after a cancel or an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// It is removed.
    #[default]
    Remove,
    /// It is kept, and the next run resumes it.
    KeepPartial,
}

/// Options of [`create`].
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Size of the file, bytes: its capacity.
    pub size_bytes: u64,
    /// The number of first bytes to allocate; `None`: all, and nothing for [`Preallocation::Off`].
    pub allocation_bytes: Option<u64>,
    /// The preallocation mode of these bytes.
    pub preallocation: Preallocation,
    /// How the disk is used.
    pub pace: Pace,
    /// Treatment of an existing file of that name.
    pub existing: Existing,
    /// Treatment of copy-on-write file systems.
    pub copy_on_write: CopyOnWrite,
    /// Treatment of the partial file after a cancel or an error.
    pub on_failure: OnFailure,
    /// Permissions of the file; `None`: those of a file that is replaced, else 0666 without the
    /// umask's bits.
    pub mode: Option<u32>,
    /// Durability on return.
    pub durable: Durable,
    /// Lowest layer in which the space is written.
    pub reach: Reach,
}

impl CreateOptions {
    /// A written file of `size_bytes`, at full pace.
    pub fn new(size_bytes: u64) -> Self {
        Self {
            size_bytes,
            allocation_bytes: None,
            preallocation: Preallocation::Full,
            pace: Pace::Full,
            existing: Existing::default(),
            copy_on_write: CopyOnWrite::default(),
            on_failure: OnFailure::default(),
            mode: None,
            durable: Durable::default(),
            reach: Reach::default(),
        }
    }

    /// The number of first bytes to allocate.
    ///
    /// # Errors
    /// `InvalidArgument` for an allocation that makes no sense.
    pub fn allocation(&self) -> Result<u64> {
        let invalid = |detail: String| Err(Error::new(ErrorKind::InvalidArgument).detail(detail));
        match (self.preallocation, self.allocation_bytes) {
            (Preallocation::Off, None | Some(0)) => Ok(0),
            (Preallocation::Off, Some(_)) => {
                invalid("an allocation needs preallocation falloc or full".to_owned())
            }
            (_, None) => Ok(self.size_bytes),
            (_, Some(bytes)) if bytes > self.size_bytes => invalid(format!(
                "the allocation ({}) is more than the size ({})",
                ByteSize(bytes),
                ByteSize(self.size_bytes)
            )),
            (_, Some(bytes)) => Ok(bytes),
        }
    }
}

/// Report of [`create`].
#[derive(Clone, Debug, Serialize)]
pub struct CreateReport {
    /// The file.
    #[serde(serialize_with = "crate::filesystem::serialize_path")]
    pub path: PathBuf,
    /// Its size.
    pub size_bytes: u64,
    /// The number of allocated first bytes.
    pub allocation_bytes: u64,
    /// The method.
    pub preallocation: Preallocation,
    /// Bytes of zeros written in this run, by the kernel or by us.
    pub written_bytes: u64,
    /// Bytes that an earlier run had written.
    pub resumed_bytes: u64,
    /// Method of writing space; `None` where nothing had to be.
    pub plan: Option<Plan>,
    /// How the result was verified.
    pub verified: Verified,
    /// The space in the layers below, from the top down; none unless they were to have it.
    pub layers: Vec<LayerStates>,
    /// Figures of the extent map.
    pub map: MapSummary,
    /// Source of the map.
    pub map_source: MapSource,
    /// Things the user should know, one line each.
    pub notes: Vec<String>,
    /// Time taken, seconds.
    pub elapsed_seconds: f64,
}

/// Creates `path` with the size and the real space that `options` ask for.
///
/// On success the file is complete, durable and verified. On any error nothing is left
/// behind (with [`OnFailure::KeepPartial`]: the partial file), and a file that had the
/// name is untouched. Kinds: [`ErrorKind::AlreadyExists`], [`ErrorKind::NotFound`] (the
/// directory), [`ErrorKind::WrongType`], [`ErrorKind::NoSpace`] with the missing amount,
/// [`ErrorKind::QuotaExceeded`], [`ErrorKind::TooLarge`], [`ErrorKind::CopyOnWrite`],
/// [`ErrorKind::Unsupported`], [`ErrorKind::InUse`] (being created elsewhere),
/// [`ErrorKind::NotKept`], [`ErrorKind::Io`], [`ErrorKind::Cancelled`].
pub fn create(path: &Path, options: &CreateOptions, control: Control<'_>) -> Result<CreateReport> {
    create_new(path, options, None, control)
}

/// As [`create`], for a file that holds more than zeros: `filling` writes it before the file has
/// its name.
pub fn create_filled(
    path: &Path,
    options: &CreateOptions,
    filling: &ContentWriter<'_>,
    control: Control<'_>,
) -> Result<CreateReport> {
    create_new(path, options, Some(filling), control)
}

fn create_new(
    path: &Path,
    options: &CreateOptions,
    filling: Option<&ContentWriter<'_>>,
    control: Control<'_>,
) -> Result<CreateReport> {
    let started = Instant::now();
    let allocation_bytes = options.allocation().map_err(|error| error.at(path))?;
    let destination = Destination::new(path, options.existing)?;
    check_size(&destination.path, options.size_bytes)?;
    let filesystem =
        FileSystem::of_directory(&destination.directory, destination.directory.path())?;
    let keep = options.on_failure == OnFailure::KeepPartial;
    let partial = Partial::open(destination, keep, control)?;
    let made = make(
        &partial,
        &filesystem,
        allocation_bytes,
        options,
        filling,
        control,
    );
    let named = made.and_then(|mut report| {
        report.notes.extend(describe(&partial, options)?);
        let file = partial.file();
        match options.preallocation {
            // Its first sync, which may take long.
            Preallocation::Falloc => file.sync_checked(&|| control.cancel.check())?,
            // Only its owner, mode and mark are not durable yet.
            Preallocation::Off | Preallocation::Full => file.sync(SyncMode::All)?,
        }
        Ok(report)
    });
    let mut report = match named {
        Ok(report) => report,
        Err(error) => {
            if error.kind() == ErrorKind::Cancelled {
                partial.cancel(&filesystem);
            }
            return Err(explain(error.at(path), options));
        }
    };
    partial.publish(options.durable)?;
    path.clone_into(&mut report.path);
    report.elapsed_seconds = started.elapsed().as_secs_f64();
    Ok(report)
}

/// Owner, permissions and attributes: those of the file that is replaced, else as of any new file.
fn describe(partial: &Partial, options: &CreateOptions) -> Result<Vec<String>> {
    let file = partial.file();
    // Before the mode, which may forbid it.
    partial.clear_mark()?;
    let replaced = match options.existing {
        Existing::Replace => Replaced::read(partial.destination()),
        Existing::Refuse => None,
    };
    match replaced {
        Some(replaced) => {
            let mode = options.mode.map(|bits| final_mode(Some(bits)));
            replaced.hand_over(file, mode.transpose()?)
        }
        None => {
            let mode = final_mode(options.mode)?;
            rustix::fs::fchmod(file.as_file(), mode)
                .map_err(|errno| file.error(errno).during("set mode"))?;
            Ok(Vec::new())
        }
    }
}

/// Allocates or writes the partial file as the options require.
fn make(
    partial: &Partial,
    filesystem: &FileSystem,
    allocation_bytes: u64,
    options: &CreateOptions,
    filling: Option<&ContentWriter<'_>>,
    control: Control<'_>,
) -> Result<CreateReport> {
    let file = partial.file();
    let mut notes = Vec::new();
    prepare_copy_on_write(file, filesystem, options, &mut notes)?;
    let new = NewFile {
        size_bytes: options.size_bytes,
        preallocation: options.preallocation,
        contents: filling,
        before_contents: &|| partial.begin_filling(),
        resumed_bytes: resumed_bytes(file)?,
        is_synced_later: true,
    };
    let range = ByteRange::new(0, allocation_bytes);
    let target = Provisioner::new(file, range, control).at_pace(&options.pace);
    let stack = options.reach.stack(file)?;
    if let Some(stack) = &stack {
        target.check_space(target.survey()?.hole_bytes)?;
        // The layers get the space at once, not in the order of the writes.
        assign_below(stack, file, &target)?;
    }
    let made = target
        .provision_new(&new)
        .map_err(|error| match error.kind() {
            ErrorKind::Unsupported if options.preallocation == Preallocation::Falloc => {
                error.detail(format!("{} cannot reserve space", filesystem.name))
            }
            _ => error,
        })?;
    let layers = match (&stack, options.preallocation) {
        (None, _) => Vec::new(),
        (Some(stack), Preallocation::Full) => write_through(stack, file, &target)?.layers,
        (Some(_), _) => LayerStates::of(file, range)?,
    };
    if filesystem.kind == FileSystemKind::Network && allocation_bytes > 0 {
        notes.push(format!(
            "{}: the server decides where space is located and whether it stays",
            filesystem.name
        ));
    }
    Ok(CreateReport {
        path: PathBuf::new(),
        size_bytes: made.size_bytes,
        allocation_bytes,
        preallocation: options.preallocation,
        written_bytes: made.provisioned.zeroed_bytes,
        resumed_bytes: made.provisioned.already_written_bytes,
        plan: made.provisioned.plan,
        verified: made.verified,
        layers,
        map: summarize(file, filesystem)?,
        map_source: file.map_source(),
        notes,
        elapsed_seconds: 0.0,
    })
}

/// How many of the first bytes an earlier run has written, where the map does not show it. The size
/// shows it until the machine restarts.
fn resumed_bytes(file: &HostFile) -> Result<u64> {
    if file.map_detail()? == MapDetail::HolesAndData && is_from_this_boot(file)? {
        file.size()
    } else {
        Ok(0)
    }
}

fn is_from_this_boot(file: &HostFile) -> Result<bool> {
    let modified = file
        .metadata()?
        .modified()
        .map_err(|source| file.error(source))?;
    let up = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let up = Duration::new(up.tv_sec as u64, up.tv_nsec as u32);
    Ok(SystemTime::now()
        .checked_sub(up)
        .is_some_and(|booted| modified > booted))
}

fn check_size(path: &Path, size_bytes: u64) -> Result<()> {
    let too_large = |detail: String| Err(Error::new(ErrorKind::TooLarge).at(path).detail(detail));
    if i64::try_from(size_bytes).is_err() {
        return too_large(format!("{} is past the largest file", ByteSize(size_bytes)));
    }
    // Growing past it would raise SIGXFSZ, which ends the process.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    match limit {
        Some(limit) if size_bytes > limit => too_large(format!(
            "{} is past this process's limit of {} (RLIMIT_FSIZE, ulimit -f)",
            ByteSize(size_bytes),
            ByteSize(limit)
        )),
        _ => Ok(()),
    }
}

/// Sets NOCOW on request, possible only on an empty file, and refuses copy-on-write files
/// otherwise.
fn prepare_copy_on_write(
    file: &HostFile,
    filesystem: &FileSystem,
    options: &CreateOptions,
    notes: &mut Vec<String>,
) -> Result<()> {
    let is_wanted = options.copy_on_write == CopyOnWrite::Disable;
    if is_wanted && !file.attributes().contains(IFlags::NOCOW) {
        file.resize(0)?;
        if !file.accepts_nocow() && filesystem.check_written_stays(file).is_ok() {
            notes.push(format!(
                "copy-on-write need not be turned off: {} overwrites in place",
                filesystem.name
            ));
        }
    }
    if options.preallocation != Preallocation::Full {
        return Ok(());
    }
    filesystem.check_written_stays(file).map_err(|error| {
        let error = match filesystem.kind {
            FileSystemKind::CopyOnWrite if !is_wanted => error.remedy(Remedy::DisableCopyOnWrite),
            _ => error,
        };
        error.remedy(Remedy::ReserveOnly)
    })
}

fn explain(error: Error, options: &CreateOptions) -> Error {
    match error.kind() {
        ErrorKind::NoSpace if options.allocation_bytes.is_none() => error
            .advice("free some, or choose a smaller size")
            .remedy(Remedy::AllocateLess),
        ErrorKind::NoSpace => error.advice("free some, or make less real"),
        _ => error,
    }
}

fn summarize(file: &HostFile, filesystem: &FileSystem) -> Result<MapSummary> {
    let mut summary = MapSummary::for_block_size(filesystem.block_bytes);
    file.for_each_extent(ByteRange::new(0, file.size()?), &mut |extent| {
        summary.add(&extent);
        std::ops::ControlFlow::Continue(())
    })?;
    Ok(summary)
}

fn final_mode(mode: Option<u32>) -> Result<Mode> {
    match mode {
        Some(bits) if bits > 0o7777 => Err(Error::new(ErrorKind::InvalidArgument)
            .detail(format!("{bits:o} is not a file mode (0 to 7777, octal)"))),
        Some(bits) => Ok(Mode::from_raw_mode(bits)),
        None => Ok(Mode::from_raw_mode(0o666 & !current_umask())),
    }
}

/// The umask without changing it for a moment, as `umask(2)` would, in all threads.
fn current_umask() -> u32 {
    std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("Umask:"))?;
            u32::from_str_radix(line.trim(), 8).ok()
        })
        // Without /proc, the usual one.
        .unwrap_or(0o022)
}
