//! `extant image mount`: the disk in an image as a regular file for every program, through FUSE.
//!
//! Background and foreground are those of `extant mount`; images are opened as for `extant serve`.

mod server;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use extant_space::{CancelToken, Result};

use crate::background::{self, RunMode, Started};
use crate::print;
use crate::source::{Discard, SourceArgs};

/// Use the disk in an image as a raw file in any program, through FUSE.
///
/// IMAGE may be raw or qcow2, a disk, an NBD export or a volume. In a directory the file has the
/// name of the image with the suffix .raw (disk.raw for an export); a regular file is covered by
/// the mount, and may be the image itself. The server detaches when the file is accessible; extant
/// umount ends it. Without root, fusermount3 mounts.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant image mount vm.qcow2 mnt                   the disk is mnt/vm.raw
  extant image mount vm.qcow2 vm.qcow2              the disk under the name of the image
  extant image mount -r --chain top.qcow2 mnt
  extant image mount --pool vms web.qcow2 mnt
  losetup -f --show --direct-io=on mnt/vm.raw
  dd if=boot.bin of=mnt/vm.raw conv=notrunc
  cp --sparse=always mnt/vm.raw copy.raw
  extant umount mnt                                 waits until the image is closed

Data is not cached by the kernel above the image (direct I/O); mmap works. What was written is durable after
fsync, and after the last program that wrote has closed the file. fallocate allocates, punches (--discard)
and zeroes space of the image; SEEK_DATA and SEEK_HOLE find what is zeros; st_blocks is the space allocated.
The file has the owner and permissions of the image; chown and chmod hold until the unmount. It has a fixed
size, and is not truncated (dd needs conv=notrunc), except that --growable lets it grow.

Options after -o, separated by commas:
  ro, rw, nodev, nosuid, noexec                     as in mount(8)
  allow_other                                       all users see the file, as permissions allow
  auto_unmount                                      the mount goes when the server is killed
  io_uring, threads=N, pin, no_pin, max_read=BYTES, fsname=NAME   as for extant mount
SIGINT, SIGTERM and SIGHUP unmount: at once, or when the last file in use is closed; a second one ends the
server as a crash would: what was synced is in the image.
Exit status: see extant --help.")]
pub struct ImageMountArgs {
    /// The image, disk, NBD export (its URI) or volume
    #[arg(value_name = "IMAGE|VOLUME")]
    pub file: PathBuf,

    /// The mount point: a directory, or the regular file that shows the disk
    #[arg(value_name = "DIR|FILE")]
    pub place: PathBuf,

    #[command(flatten)]
    pub source: SourceArgs,

    /// Space of a punched hole, as mkfs and fstrim punch
    #[arg(long, value_name = "WHAT", default_value = "unmap")]
    pub discard: Discard,

    /// Let writes, truncate and fallocate past the end make the disk larger; a qcow2 image is
    /// closed and opened again each time
    #[arg(long, conflicts_with_all = ["read_only", "chain"])]
    pub growable: bool,

    /// Options of the mount, as listed below
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<String>,

    /// Stay in the foreground
    #[arg(long)]
    pub foreground: bool,

    /// Print JSON, on one line, when it is mounted
    #[arg(long)]
    pub json: bool,

    /// This process is the server, started by one that waits for its ready message
    #[arg(long, hide = true, conflicts_with = "foreground")]
    pub background_server: bool,
}

/// Mounts; `words` are the arguments of this program.
pub(super) fn run(
    args: &ImageMountArgs,
    words: &[OsString],
    cancel: &CancelToken,
) -> Result<ExitCode> {
    match (args.foreground, args.background_server) {
        (true, _) => server::run(args, RunMode::Foreground, cancel),
        (_, true) => server::run(args, RunMode::Background, cancel),
        _ => Ok(
            match background::start(&to_server_arguments(words), cancel)? {
                Started::Ready(line) => print::text(line),
                Started::Failed(status) => status,
            },
        ),
    }
}

/// The arguments of a process that is to be the server: the same, and a word to it.
fn to_server_arguments(words: &[OsString]) -> Vec<OsString> {
    let mut arguments = words[1..].to_vec();
    let at = arguments.iter().position(|word| word == "mount");
    arguments.insert(at.map_or(0, |at| at + 1), "--background-server".into());
    arguments
}
