//! File systems that mke2fs makes, as bytes.

use std::fs;

use crate::command::{run, tool};
use crate::workdir::Workdir;

/// Runs mke2fs with `options`, separated by spaces, on an empty image of `bytes` bytes; returns
/// the image. The test has to require the tool.
///
/// # Panics
/// When mke2fs fails.
#[track_caller]
pub fn mke2fs(options: &str, bytes: u64) -> Vec<u8> {
    let work = Workdir::new();
    let path = work.path().join("image");
    let file = fs::File::create(&path).unwrap();
    file.set_len(bytes).unwrap();
    run(tool("mke2fs")
        .args(["-q", "-F"])
        .args(options.split_whitespace())
        .arg(&path))
    .unwrap_or_else(|failure| panic!("{failure}"));
    fs::read(&path).unwrap()
}
