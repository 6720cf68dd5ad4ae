//! Ways to a file of zeros. Those of the peers are processes of their own, of this program where
//! it can: only the mapped file is written by Python, as the bench has no unsafe code.

use std::env;
use std::fmt;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use extant_testkit::command::tool;
use nix::fcntl::posix_fallocate;

use super::filesystem::Kind;
use crate::bench::{Context, size_word};

/// The word of such a process on the command line.
pub(crate) const WORD: &str = "__zeroes";

/// Maps a file and clears it by memset. Its start takes some hundredths of a second.
const MMAP: &str = "\
import ctypes, mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_EXCL)
size = int(sys.argv[2])
os.ftruncate(fd, size)
map = (ctypes.c_char * size).from_buffer(mmap.mmap(fd, size))
ctypes.memset(map, 0, size)
os.fsync(fd)
";

/// A way to a file of zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    PosixFallocate,
    Mmap,
    /// `write(2)` of this number of bytes, buffered.
    Write(usize),
    Create,
    /// `extant create --preallocation falloc`
    Reserve,
}

impl Method {
    pub(super) const ALL: [Self; 7] = [
        Self::PosixFallocate,
        Self::Mmap,
        Self::Write(4 << 10),
        Self::Write(8 << 10),
        Self::Write(2 << 20),
        Self::Create,
        Self::Reserve,
    ];

    /// ext3 cannot reserve; `extant` refuses where glibc writes.
    pub(super) fn is_possible(self, kind: Kind) -> bool {
        !(self == Self::Reserve && kind == Kind::Ext3)
    }

    /// Whether the file's blocks are written.
    pub(super) fn writes(self, kind: Kind) -> bool {
        match self {
            Self::PosixFallocate => kind == Kind::Ext3,
            Self::Reserve => false,
            _ => true,
        }
    }

    pub(super) fn command(self, context: &Context, file: &Path, size: u64) -> Result<Command> {
        let mut command = match self {
            Self::Create | Self::Reserve => {
                let mut command = context.extant();
                command.args(["create", "--quiet"]);
                if self == Self::Reserve {
                    command.args(["--preallocation", "falloc"]);
                }
                command.arg(file).arg(size_word(size));
                return Ok(command);
            }
            Self::Mmap => {
                let mut command = tool("python3");
                command.args(["-c", MMAP]);
                command
            }
            Self::PosixFallocate | Self::Write(_) => {
                let mut command = Command::new(env::current_exe()?);
                command.arg(WORD);
                command
            }
        };
        command.arg(file).arg(size.to_string());
        if let Self::Write(bytes) = self {
            command.arg(bytes.to_string());
        }
        Ok(command)
    }

    pub(super) fn shown(self, context: &Context, command: &Command) -> String {
        match self {
            Self::Mmap => "python3: ftruncate, mmap, memset, fsync".to_owned(),
            Self::PosixFallocate => "posix_fallocate, fsync".to_owned(),
            Self::Write(bytes) => format!("write of {bytes} B each, fsync"),
            Self::Create | Self::Reserve => context.shown(command),
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PosixFallocate => f.pad("posix_fallocate"),
            Self::Mmap => f.pad("mmap + memset"),
            Self::Write(bytes) => f.pad(&format!("write {}", size_word(*bytes as u64))),
            Self::Create => f.pad("extant create"),
            Self::Reserve => f.pad("extant create, falloc"),
        }
    }
}

/// The process: allocates a new file, or writes it in pieces of `write_bytes`, and syncs it.
pub(crate) fn serve(file: &Path, bytes: u64, write_bytes: Option<usize>) -> Result<()> {
    let mut file = File::create_new(file)?;
    match write_bytes {
        None => posix_fallocate(&file, 0, bytes.try_into()?)?,
        Some(write_bytes) => {
            let zeroes = vec![0; write_bytes];
            for _ in 0..bytes / write_bytes as u64 {
                file.write_all(&zeroes)?;
            }
        }
    }
    Ok(file.sync_all()?)
}
