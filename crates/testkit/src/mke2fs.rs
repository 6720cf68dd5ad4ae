//! File systems that mke2fs makes, as bytes.

use std::fs;

use crate::command::{run, tool};
use crate::workdir::Workdir;

/// What mke2fs makes of `options`, which are parted by spaces, in an image of `bytes` bytes that is empty before. A test that
/// uses it requires the tool.
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
