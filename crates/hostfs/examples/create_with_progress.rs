//! Creates a written file in the background of a program, with progress and a deadline.
//!
//!     cargo run -p extant-hostfs --example create_with_progress -- /tmp/demo.raw
//!
//! Shows the three things a long operation is given: options, a cancel token that any
//! thread may use, and a progress callback.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::time::Duration;

use extant_hostfs::{CreateOptions, create};
use extant_space::{ByteSize, CancelToken, Control, ErrorKind, Progress};

fn main() {
    let Some(path) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: create_with_progress PATH");
        std::process::exit(2);
    };
    let cancel = CancelToken::new();
    let deadline = cancel.clone();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(30));
        deadline.cancel();
    });
    let show = |progress: Progress| {
        eprint!(
            "\r{} {} of {}   ",
            progress.phase.name(),
            ByteSize(progress.done_bytes),
            ByteSize(progress.total_bytes)
        );
    };
    let options = CreateOptions::new(256 << 20);
    match create(&path, &options, Control::new(&cancel, &show)) {
        Ok(report) => println!(
            "\n{}: {} written in {:.2} s",
            report.path.display(),
            ByteSize(report.written_bytes),
            report.elapsed_seconds
        ),
        Err(error) if error.kind() == ErrorKind::Cancelled => {
            println!("\ntoo slow: gave up, nothing is left behind");
        }
        Err(error) => {
            eprintln!("\n{error}");
            std::process::exit(1);
        }
    }
}
