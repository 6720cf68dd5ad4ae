//! The command on a file inside an image: the engine's own operations, with the same options and
//! messages.

use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use extant_ext4::File;
use extant_provision::{Fallback, Pace, write_zeroes};
use extant_space::{
    ByteRange, CancelToken, Control, Error, ErrorKind, FallocateMode, Silent, SpaceFile, SyncMode,
};

use super::operation::Operation;
use super::{Failure, FallocateArgs, detail, holes, message, print, tell};
use crate::fs_image::{Image, SpaceBelow};
use crate::in_image::{self, Opened, Purpose};

/// Does it.
pub(super) fn execute(
    args: &FallocateArgs,
    operation: Operation,
    image: &Path,
    path: &Path,
    (offset, length): (u64, Option<u64>),
    cancel: &CancelToken,
) -> Result<(), Failure> {
    let purpose = match operation {
        Operation::Report => Purpose::Look,
        _ if operation.creates() => Purpose::ChangeOrCreate,
        _ => Purpose::Change,
    };
    let range = match length {
        // Both are at most i64::MAX.
        Some(length) => ByteRange::new(offset, offset + length),
        None => ByteRange::new(offset, u64::MAX),
    };
    let below = SpaceBelow {
        assign: args.assign,
        zeroes: args.zeroes,
    };
    let Opened { image, file } = in_image::open(image, path, purpose, below)
        .map_err(|error| message(format!("cannot open {error}")))?;
    let place = image.place(path.as_os_str().as_bytes());
    let done = run(args, operation, &image, &file, range, cancel);
    drop(file);
    // Durable and complete before any message.
    let said = image.finish(done).map_err(|error| failed(error, &place))?;
    match said {
        Outcome::Range(done) => tell(args, &place, range, done),
        Outcome::Dug(line) if args.verbose => {
            print(&[place.as_os_str().as_bytes(), b": ", line.as_bytes()])
        }
        Outcome::Dug(_) => Ok(()),
        Outcome::Reported(written) => written.map_err(Failure::Output),
    }
}

enum Outcome {
    Range(&'static str),
    Dug(String),
    Reported(io::Result<()>),
}

fn run(
    args: &FallocateArgs,
    operation: Operation,
    image: &Image,
    file: &File,
    range: ByteRange,
    cancel: &CancelToken,
) -> extant_space::Result<Outcome> {
    let block_bytes = image.filesystem().block_bytes().into();
    let said = match operation {
        Operation::Kernel(mode, done) => {
            file.fallocate(mode, range)?;
            Outcome::Range(done)
        }
        Operation::Posix => {
            file.fallocate(FallocateMode::Allocate, range)?;
            Outcome::Range("allocated")
        }
        Operation::WriteZeroes => {
            let control = Control::new(cancel, &Silent);
            write_zeroes(file, range, Fallback::Write, &Pace::Full, control)?;
            Outcome::Range("written as zeroes")
        }
        Operation::Dig => Outcome::Dug(holes::dig_inside(file, block_bytes, Some(range), cancel)?),
        Operation::Report => {
            let mut out = BufWriter::new(io::stdout().lock());
            let written = holes::report_inside(
                file,
                block_bytes,
                Some(range),
                detail(args),
                cancel,
                &mut out,
            )?;
            return Ok(Outcome::Reported(written.and_then(|()| out.flush())));
        }
    };
    file.sync(SyncMode::All)?;
    Ok(said)
}

fn failed(error: Error, place: &Path) -> Failure {
    match error.kind() {
        ErrorKind::Cancelled => Failure::Cancelled,
        _ => message(format!("fallocate failed: {}", error.at(place))),
    }
}
