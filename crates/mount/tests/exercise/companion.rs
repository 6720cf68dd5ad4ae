//! The process that maps files, and makes asynchronous and control calls for a worker:
//! `companion.c`.
//!
//! It is compiled with the structures of `docs/formats/ioctl.md` as that page prints them, so a
//! page that is wrong fails here.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use extant_mount::ioctl::{MappedExtent, fallocate_bits};
use extant_space::{Extent, FallocateMode};
use extant_testkit::command::{run, tool};
use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

const PAGE_OF_CALLS: &str = include_str!("../../../../docs/formats/ioctl.md");
const SOURCE: &str = include_str!("companion.c");

/// Bits of the mode of a mapped read or write.
pub const SYNC: u32 = 1;
pub const ASYNC: u32 = 2;
/// The file is closed before the mapping is used.
pub const CLOSE_FIRST: u32 = 4;
/// The file is open past the cache.
pub const DIRECT: u32 = 8;

#[derive(Clone, Copy)]
enum Kind {
    Read = 1,
    Write,
    Keep,
    Drop,
    Fallocate,
    Extents,
    SubmitRead,
    SubmitWrite,
    SetSync,
}

/// Compiles the program into a directory.
#[track_caller]
pub fn compile(directory: &Path) -> PathBuf {
    let mut header = String::from("#include <stdint.h>\n");
    for block in PAGE_OF_CALLS.split("```c\n").skip(1) {
        header += block.split("```").next().unwrap_or_default();
    }
    let program = directory.join("companion");
    let source = directory.join("companion.c");
    fs::write(directory.join("extant.h"), header).unwrap();
    fs::write(&source, SOURCE).unwrap();
    run(tool("cc")
        .args(["-D_GNU_SOURCE", "-O1", "-Wall", "-Werror", "-o"])
        .args([&program, &source]))
    .unwrap_or_else(|failure| panic!("{failure}"));
    program
}

/// A running companion. It ends when dropped, and with it its mappings.
pub struct Companion {
    process: Child,
    requests: Option<ChildStdin>,
    answers: ChildStdout,
}

impl Companion {
    pub fn start(program: &Path, files: &[PathBuf]) -> Self {
        let mut process = std::process::Command::new(program)
            .args(files)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            requests: process.stdin.take(),
            answers: process.stdout.take().unwrap(),
            process,
        }
    }

    /// The contents of a mapping. The range is inside the file.
    pub fn read(
        &mut self,
        file: usize,
        mode: u32,
        offset: u64,
        length: usize,
    ) -> Result<Vec<u8>, String> {
        let (_, data) = self.ask(Kind::Read, file, mode, (offset, length as u64), &[])?;
        Ok(data)
    }

    /// Stores into a mapping. The range is inside the file.
    pub fn write(
        &mut self,
        file: usize,
        mode: u32,
        offset: u64,
        data: &[u8],
    ) -> Result<(), String> {
        let range = (offset, data.len() as u64);
        self.ask(Kind::Write, file, mode, range, data).map(|_| ())
    }

    /// Reads past the cache, in parts that are under way at once.
    pub fn submit_read(
        &mut self,
        file: usize,
        parts: usize,
        offset: u64,
        length: usize,
    ) -> Result<Vec<u8>, String> {
        let range = (offset, length as u64);
        let (_, data) = self.ask(Kind::SubmitRead, file, parts as u32, range, &[])?;
        Ok(data)
    }

    /// Writes past the cache, in parts that are under way at once.
    pub fn submit_write(
        &mut self,
        file: usize,
        parts: usize,
        offset: u64,
        data: &[u8],
    ) -> Result<(), String> {
        let range = (offset, data.len() as u64);
        self.ask(Kind::SubmitWrite, file, parts as u32, range, data)
            .map(|_| ())
    }

    /// `chattr +S` or `-S`.
    pub fn set_sync(&mut self, file: usize, is_set: bool) -> Result<(), String> {
        self.ask(Kind::SetSync, file, is_set.into(), (0, 0), &[])
            .map(|_| ())
    }

    /// Holds on to a mapping of that many bytes, which reads and writes use from now on.
    pub fn keep(&mut self, file: usize, length: u64) -> Result<(), String> {
        self.ask(Kind::Keep, file, 0, (0, length), &[]).map(|_| ())
    }

    /// Releases it.
    pub fn drop_kept(&mut self, file: usize) -> Result<(), String> {
        self.ask(Kind::Drop, file, 0, (0, 0), &[]).map(|_| ())
    }

    /// `fallocate` by the control call, and what a caller does afterwards.
    pub fn fallocate(
        &mut self,
        file: usize,
        mode: FallocateMode,
        offset: u64,
        length: u64,
    ) -> Result<Result<(), Errno>, String> {
        let bits = fallocate_bits(mode).expect("a mode that has bits");
        let (error, _) = self.ask(Kind::Fallocate, file, bits, (offset, length), &[])?;
        Ok(match error {
            0 => Ok(()),
            error => Err(Errno::from_raw_os_error(error as i32)),
        })
    }

    /// The extent map.
    pub fn extents(&mut self, file: usize) -> Result<Vec<Extent>, String> {
        let (_, data) = self.ask(Kind::Extents, file, 0, (0, 0), &[])?;
        let extents = data.chunks(size_of::<MappedExtent>()).map(|bytes| {
            let mapped = MappedExtent::read_from_bytes(bytes).expect("a whole one");
            mapped.to_extent().ok_or("an extent past all files".into())
        });
        extents.collect()
    }

    fn ask(
        &mut self,
        kind: Kind,
        file: usize,
        mode: u32,
        (offset, length): (u64, u64),
        data: &[u8],
    ) -> Result<(u32, Vec<u8>), String> {
        let words = [kind as u32, file as u32, mode, 0];
        let answered = self.exchange(&words, [offset, length], data);
        answered.map_err(|error| {
            // It ends when there are no more requests, if it has not ended yet.
            self.requests = None;
            let status = self.process.wait();
            format!("the companion: {error}, {status:?}")
        })
    }

    fn exchange(
        &mut self,
        words: &[u32; 4],
        range: [u64; 2],
        data: &[u8],
    ) -> io::Result<(u32, Vec<u8>)> {
        let requests = self.requests.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        requests.write_all(&[words.as_bytes(), range.as_bytes(), data].concat())?;
        let mut head = [0u32; 2];
        self.answers.read_exact(head.as_mut_bytes())?;
        let mut answer = vec![0; head[1] as usize];
        self.answers.read_exact(&mut answer)?;
        Ok((head[0], answer))
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        // The end of the requests.
        self.requests = None;
        let _ = self.process.wait();
    }
}
