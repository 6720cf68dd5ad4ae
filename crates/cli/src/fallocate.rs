//! `extant fallocate`: a drop-in for fallocate(1) of util-linux 2.42.
//!
//! Options, their exclusions, numbers, output and exit status are those of util-linux, and so is
//! the beginning of every message (`fallocate: `), also as `extant fallocate`: scripts that parse
//! them keep working. A link named `fallocate` to the program is this command.
//!
//! Intended differences:
//! - `-w` (also `-Z`, `--force-zero`) is done by writing if the kernel refuses it, unless
//!   `--no-fallback` is given;
//! - `-d` never changes a byte outside the range; util-linux punches up to a block too far, and
//!   with `--length` that block may hold data;
//! - `-r` opens for reading only and makes no file;
//! - fractions are exact ([`number`]);
//! - past `ulimit -f` there is a message where a signal kills util-linux's program;
//! - fifos, sockets and character devices are refused when opened;
//! - `-l=4K` is `-l 4K`, where util-linux takes `=4K` for the length, and refuses it;
//! - an interrupted run ends with 130, as the shell reports it for util-linux;
//! - `--in` is not short for `--insert-range`: it names the file-system image that contains the
//!   file.

mod arguments;
mod holes;
mod inside;
mod number;
mod operation;
mod words;

use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use extant_hostfs::{Access, Fallback, HostFile, Pace};
use extant_space::{
    ByteRange, CancelToken, Control, Error, ErrorKind, FallocateMode, Silent, SpaceFile, SyncMode,
};

pub use self::arguments::FallocateArgs;
use self::holes::Detail;
use self::operation::Operation;
use crate::exit;

/// `posix_fallocate` that writes does so in parts, so that a cancel is answered.
const POSIX_PART: u64 = 64 << 20;

/// Why there is no success.
enum Failure {
    /// One line, without the program's name.
    Message(String),
    /// Arguments that clap refused, or help and version.
    Usage(clap::Error),
    /// Standard output is closed.
    Output(io::Error),
    Cancelled,
}

/// Runs the command with the arguments behind its name; usage errors end with 1 as well.
pub fn run(arguments: Vec<OsString>, cancel: &CancelToken) -> ExitCode {
    let failure = match arguments::parse(arguments).and_then(|args| execute(&args, cancel)) {
        Ok(()) => return ExitCode::SUCCESS,
        Err(_) if cancel.is_cancelled() => Failure::Cancelled,
        Err(failure) => failure,
    };
    match failure {
        Failure::Usage(error) if !error.use_stderr() => {
            return match error.print() {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            };
        }
        Failure::Usage(error) => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            let line = line.strip_prefix("error: ").unwrap_or(line);
            complain(&format!(
                "{line}\nTry 'fallocate --help' for more information."
            ));
        }
        Failure::Message(line) => complain(&line),
        // The reader has closed the output; util-linux's program is killed by a signal, without a
        // message.
        Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Failure::Output(error) => complain(&format!("write error: {}", words::io_text(&error))),
        Failure::Cancelled => {
            complain("cancelled");
            return ExitCode::from(exit::CANCELLED);
        }
    }
    ExitCode::FAILURE
}

/// Without stderr the error cannot be reported.
fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "fallocate: {line}");
}

fn execute(args: &FallocateArgs, cancel: &CancelToken) -> Result<(), Failure> {
    let operation = Operation::of(args);
    if args.through && !operation.gives_space() {
        return Err(message(
            "option --through is for operations that allocate or write zeroes",
        ));
    }
    let path = match &args.files[..] {
        [] => return Err(message("no filename specified")),
        [path] => Path::new(path),
        _ => return Err(message("unexpected number of arguments")),
    };
    let (offset, length) = numbers(args, operation)?;
    if let Some(image) = &args.image {
        return inside::execute(args, operation, image, path, (offset, length), cancel);
    }
    let access = match operation {
        Operation::Report => Access::Read,
        _ if operation.creates() => Access::ReadWriteCreate,
        _ => Access::ReadWrite,
    };
    let file = HostFile::open(path, access).map_err(|error| {
        let cause = words::open_error(&error, path);
        message(format!("cannot open {}: {cause}", path.display()))
    })?;
    // Both are at most i64::MAX.
    let range = length.map(|length| ByteRange::new(offset, offset + length));

    if operation.takes_whole_file() {
        let range = range.or_else(|| Some(ByteRange::new(offset, u64::MAX)));
        return look_for_holes(args, operation, &file, range, cancel);
    }
    let range = range.ok_or_else(|| message("no length argument specified"))?;
    let done = if args.through {
        change_through(&file, operation, range, args, cancel).map_err(|error| match error.kind() {
            ErrorKind::Cancelled => Failure::Cancelled,
            // Whole: it names the layer.
            _ => message(format!("fallocate failed: {error}")),
        })
    } else {
        change(&file, operation, range, args, cancel).map_err(|error| failed(&error))
    }?;
    sync(&file)?;
    tell(args, path, range, done)
}

/// Message of `-v`.
fn tell(args: &FallocateArgs, path: &Path, range: ByteRange, done: &str) -> Result<(), Failure> {
    if args.verbose {
        let human = words::Human(range.len());
        let line = format!(": {human} ({} bytes) {done}.", range.len());
        print(&[path.as_os_str().as_bytes(), line.as_bytes()])?;
    }
    Ok(())
}

/// Offset, and length unless it is up to the end of the file.
fn numbers(args: &FallocateArgs, operation: Operation) -> Result<(u64, Option<u64>), Failure> {
    let read = |text: &Option<OsString>, what| {
        let Some(text) = text else { return Ok(None) };
        let number = number::parse(text);
        number
            .map(Some)
            .ok_or_else(|| message(format!("invalid {what}")))
    };
    let length = read(&args.length, "length")?;
    let length = match length {
        Some(0) if operation.takes_whole_file() => None,
        Some(0) => return Err(message("invalid length")),
        None if !operation.takes_whole_file() => {
            return Err(message("no length argument specified"));
        }
        length => length,
    };
    Ok((read(&args.offset, "offset")?.unwrap_or(0), length))
}

/// Executes the operation; returns how it is reported.
fn change(
    file: &HostFile,
    operation: Operation,
    range: ByteRange,
    args: &FallocateArgs,
    cancel: &CancelToken,
) -> Result<&'static str, Error> {
    match operation {
        Operation::Kernel(mode, done) => file.fallocate(mode, range).map(|()| done),
        Operation::Posix => posix(file, range, cancel).map(|()| "allocated"),
        Operation::WriteZeroes => {
            let fallback = if args.no_fallback {
                Fallback::None
            } else {
                Fallback::Write
            };
            let control = Control::new(cancel, &Silent);
            extant_hostfs::write_zeroes(file, range, fallback, &Pace::Full, control)?;
            Ok("written as zeroes")
        }
        Operation::Dig | Operation::Report => unreachable!("takes no range"),
    }
}

/// [`change`], and the space in the layers below.
fn change_through(
    file: &HostFile,
    operation: Operation,
    range: ByteRange,
    args: &FallocateArgs,
    cancel: &CancelToken,
) -> Result<&'static str, Error> {
    let control = Control::new(cancel, &Silent);
    let mut done = "";
    let mut change = || {
        done = change(file, operation, range, args, cancel)?;
        Ok(())
    };
    match operation {
        Operation::WriteZeroes => {
            extant_hostfs::zero_through(file, range, control, &mut change)?;
        }
        _ => {
            change()?;
            extant_hostfs::assign_file(file, range, control)?;
        }
    }
    Ok(done)
}

fn posix(file: &HostFile, range: ByteRange, cancel: &CancelToken) -> Result<(), Error> {
    match file.fallocate(FallocateMode::Allocate, range) {
        Err(error) if error.kind() == ErrorKind::Unsupported => {}
        done => return done,
    }
    for part in range.chunks(POSIX_PART) {
        cancel.check()?;
        file.posix_fallocate(part)?;
    }
    Ok(())
}

fn look_for_holes(
    args: &FallocateArgs,
    operation: Operation,
    file: &HostFile,
    range: Option<ByteRange>,
    cancel: &CancelToken,
) -> Result<(), Failure> {
    let fail = |error: Error| match error.kind() {
        // Past the largest file.
        ErrorKind::InvalidArgument => {
            let cause = words::operation_error(&error);
            message(format!("seek on {} failed: {cause}", file.path().display()))
        }
        _ => failed(&error),
    };
    if operation == Operation::Report {
        let mut out = BufWriter::new(io::stdout().lock());
        return holes::report(file, range, detail(args), cancel, &mut out)
            .map_err(fail)?
            .and_then(|()| out.flush())
            .map_err(Failure::Output);
    }
    let line = holes::dig(file, range, cancel).map_err(fail)?;
    sync(file)?;
    if args.verbose {
        print(&[file.path().as_os_str().as_bytes(), b": ", line.as_bytes()])?;
    }
    Ok(())
}

fn detail(args: &FallocateArgs) -> Detail {
    if args.verbose {
        Detail::Holes
    } else {
        Detail::Summary
    }
}

fn sync(file: &HostFile) -> Result<(), Failure> {
    file.sync(SyncMode::All).map_err(|error| {
        let cause = words::operation_error(&error);
        message(format!("write failed: {}: {cause}", file.path().display()))
    })
}

/// One line to stdout.
fn print(parts: &[&[u8]]) -> Result<(), Failure> {
    let mut line = parts.concat();
    line.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&line)
        .and_then(|()| out.flush())
        .map_err(Failure::Output)
}

fn failed(error: &Error) -> Failure {
    if error.kind() == ErrorKind::Cancelled {
        return Failure::Cancelled;
    }
    let cause = words::operation_error(error);
    message(format!("fallocate failed: {cause}"))
}

fn message(line: impl Into<String>) -> Failure {
    Failure::Message(line.into())
}
