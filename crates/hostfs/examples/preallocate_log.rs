//! How a database makes its next log segment: written space ahead of the writes.
//!
//!     cargo run -p extant-hostfs --example preallocate_log -- /tmp/segment.log
//!
//! A segment that exists is grown, and only the new part is made written; the data in it is
//! preserved. Writes into it then change no metadata of the file system, so `fdatasync` is as cheap
//! as the disk allows (docs/benchmarks.md, sync4k).

#![forbid(unsafe_code)]

use std::path::PathBuf;

use extant_hostfs::{Access, Fallback, HostFile, MaterializeOptions, Pace};
use extant_hostfs::{materialize, write_zeroes};
use extant_space::{ByteRange, CancelToken, Control, Result, Silent, SpaceFile, SyncMode};

const SEGMENT: u64 = 64 << 20;

fn main() {
    let Some(path) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: preallocate_log PATH");
        std::process::exit(2);
    };
    if let Err(error) = extend(&path) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn extend(path: &std::path::Path) -> Result<()> {
    let cancel = CancelToken::new();
    let control = Control::new(&cancel, &Silent);
    let file = HostFile::open(path, Access::ReadWriteCreate)?;
    let end = file.size()?;

    // The new segment: zeroed and written, by the kernel where it can.
    let segment = ByteRange::new(end, end + SEGMENT);
    let report = write_zeroes(&file, segment, Fallback::Write, &Pace::Full, control)?;
    let how = match report.fallback {
        None => "by the kernel",
        Some(_) => "by writing zeros",
    };
    println!("{segment} written {how}");

    // A record is written without any change of metadata.
    file.write_at(b"record", segment.start())?;
    file.sync(SyncMode::Data)?;
    drop(file);

    // Older segments, made by something else, may have holes: fill those.
    let report = materialize(path, &MaterializeOptions::default(), control)?;
    println!(
        "older parts: {} bytes were written already, {} were not",
        report.already_written_bytes, report.zeroed_bytes
    );
    Ok(())
}
