//! `extant fs mkfs`: a call of mke2fs(8), which knows best how to lay out a file system.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::Args;
use extant_blockdev::{Device, HostOptions};
use extant_ext4::Statistics;
use extant_space::{ByteSize, CancelToken, Error, ErrorKind, Result};
use rustix::process::{Gid, Uid, getegid, geteuid};
use serde::Serialize;

use crate::arguments::parse_size;
use crate::fs_image::Image;
use crate::print;

/// Make an ext4 file system, by mke2fs.
///
/// Runs `mke2fs -t ext4 [OPTIONS] IMAGE`, after creating IMAGE, sparse and of SIZE bytes, if it
/// does not exist. Without root, the root directory is yours (-E root_owner). mke2fs asks before it
/// overwrites a file system (-F forces it), and its output and errors are passed on. Extant
/// supports the default features.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant fs mkfs disk.img 20GiB
  extant fs mkfs disk.img 1GiB -- -L root -b 4096
  extant fs mkfs disk.img 512MiB -- -d rootfs -O ^metadata_csum
  extant fs mkfs /dev/vdb -- -F

mke2fs is part of e2fsprogs; it is searched in PATH, /usr/sbin and /sbin.")]
pub struct MkfsArgs {
    /// The image, made if missing, or the disk
    pub image: PathBuf,

    /// Size of a new image; an existing one keeps its size
    #[arg(value_parser = parse_size)]
    pub size: Option<ByteSize>,

    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,

    /// Options of mke2fs, after --
    #[arg(last = true, value_name = "OPTIONS")]
    pub options: Vec<OsString>,
}

/// Report of a new file system.
#[derive(Serialize)]
struct Report {
    path: String,
    /// `None` here and below: this program cannot read the file system.
    size_bytes: Option<u64>,
    block_bytes: Option<u32>,
    available_bytes: Option<u64>,
    inodes: Option<u32>,
}

/// Makes.
pub(super) fn run(args: &MkfsArgs, cancel: &CancelToken) -> Result<ExitCode> {
    let mke2fs = find_mke2fs()?;
    let made = prepare(&args.image, args.size)?;
    let done = call(&mke2fs, args, cancel);
    if done.is_err() && matches!(made, Made::New) {
        // It is incomplete; the error of mke2fs is reported.
        let _ = fs::remove_file(&args.image);
    }
    done?;
    drop(made);
    // mke2fs may have been given features that this program cannot read.
    let made = Image::look(&args.image).ok();
    let made = made.map(|image| image.filesystem().statistics());
    let made = made.as_ref();
    let bytes = |made: &Statistics, blocks: u64| blocks * u64::from(made.block_bytes);
    let report = Report {
        path: args.image.to_string_lossy().into_owned(),
        size_bytes: made.map(|made| bytes(made, made.blocks)),
        block_bytes: made.map(|made| made.block_bytes),
        available_bytes: made.map(|made| bytes(made, made.available_blocks)),
        inodes: made.map(|made| made.inodes),
    };
    Ok(if args.json {
        print::json(&report)
    } else {
        print::text(report.describe())
    })
}

impl Report {
    fn describe(&self) -> String {
        let path = print::path(Path::new(&self.path));
        match (
            self.size_bytes,
            self.block_bytes,
            self.available_bytes,
            self.inodes,
        ) {
            (Some(size), Some(block), Some(available), Some(inodes)) => format!(
                "{path}: ext4 file system of {} in blocks of {}, {} available, {inodes} inodes",
                ByteSize(size),
                ByteSize(block.into()),
                ByteSize(available),
            ),
            _ => format!("{path}: made by mke2fs"),
        }
    }
}

enum Made {
    New,
    /// Kept from others while this lives. `None` for a disk, which mke2fs claims.
    Old(#[expect(dead_code)] Option<Arc<dyn Device>>),
}

fn prepare(image: &Path, size: Option<ByteSize>) -> Result<Made> {
    let fail = |source| Error::from(source).at(image);
    match (fs::metadata(image), size) {
        (Ok(found), Some(size)) if found.is_file() && found.len() != size.0 => {
            Err(Error::new(ErrorKind::AlreadyExists)
                .at(image)
                .detail(format!(
                    "the image exists and has {}, not {size}",
                    ByteSize(found.len())
                )))
        }
        (Ok(found), _) => {
            // mke2fs detects mounts, not locks.
            let held = Image::hold_device(image, &HostOptions::default())?;
            Ok(Made::Old(found.is_file().then_some(held)))
        }
        (Err(error), None) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(fail(error).advice("a new image needs a SIZE"))
        }
        (Err(error), Some(size)) if error.kind() == std::io::ErrorKind::NotFound => {
            let file = File::create_new(image).map_err(fail)?;
            file.set_len(size.0).map_err(|error| {
                let _ = fs::remove_file(image);
                fail(error)
            })?;
            Ok(Made::New)
        }
        (Err(error), _) => Err(fail(error)),
    }
}

fn call(mke2fs: &Path, args: &MkfsArgs, cancel: &CancelToken) -> Result<()> {
    let fail = |error| Error::from(error).at(mke2fs);
    let mut child = Command::new(mke2fs)
        .args(["-q", "-t", "ext4"])
        .args(with_owner(&args.options, geteuid(), getegid()))
        .arg("--")
        .arg(&args.image)
        .stdin(Stdio::inherit())
        .spawn()
        .map_err(fail)?;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(fail)? {
            break status;
        }
        if cancel.check().is_err() {
            child.kill().map_err(fail)?;
        }
        thread::sleep(POLL_INTERVAL);
    };
    cancel.check().map_err(|error| error.at(&args.image))?;
    if status.success() {
        Ok(())
    } else {
        Err(Error::new(ErrorKind::Io)
            .at(&args.image)
            .detail(format!("mke2fs failed: {status}")))
    }
}

/// The options, with the calling user as the owner of the root directory unless that is root.
/// mke2fs uses the last `-E` only, so the owner is added to the existing one. A tree to copy (`-d`)
/// has an owner of its own.
fn with_owner(options: &[OsString], user: Uid, group: Gid) -> Vec<OsString> {
    let mut options = options.to_vec();
    if user.is_root() {
        return options;
    }
    let owner = format!("root_owner={user}:{group}");
    let mut extended = None;
    let mut words = options.iter().enumerate();
    while let Some((at, word)) = words.next() {
        let Some(letters) = word.as_bytes().strip_prefix(b"-") else {
            continue;
        };
        let Some(end) = letters
            .iter()
            .position(|letter| WITH_VALUES.contains(letter))
        else {
            continue;
        };
        let (letter, rest) = (letters[end], &letters[end + 1..]);
        let value = match rest {
            [] => words.next().map(|(at, value)| (at, 0, value.as_bytes())),
            rest => Some((at, end + 2, rest)),
        };
        match (letter, value) {
            (b'd', _) => return options,
            (b'E' | b'R', Some((at, start, value))) => {
                if value.starts_with(b"root_owner")
                    || value.windows(11).any(|part| part == b",root_owner")
                {
                    return options;
                }
                extended = Some((at, start));
            }
            _ => {}
        }
    }
    match extended {
        Some((at, start)) => {
            let mut word = options[at].as_bytes().to_vec();
            word.splice(start..start, format!("{owner},").bytes());
            options[at] = OsString::from_vec(word);
        }
        None => options.extend(["-E".into(), owner.into()]),
    }
    options
}

/// Poll interval for the end of mke2fs.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Options of mke2fs(8) that take a value.
const WITH_VALUES: &[u8] = b"bCdEeGgIiJLlMmNOorRTtUz";

/// Most users do not have the directories of the system's tools in their PATH.
fn find_mke2fs() -> Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let directories = env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    directories
        .map(|directory| directory.join("mke2fs"))
        .find(|program| program.is_file())
        .ok_or_else(|| {
            Error::new(ErrorKind::NotFound)
                .at("mke2fs")
                .advice("it is part of e2fsprogs")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_directory_is_the_users_beside_other_extended_options() {
        let options = |line: &str, user: u32| {
            let words: Vec<_> = line.split_whitespace().map(OsString::from).collect();
            let words = with_owner(&words, Uid::from_raw(user), Gid::from_raw(7));
            words.join(" ".as_ref()).into_string().unwrap()
        };
        for (line, expected) in [
            ("", "-E root_owner=5:7"),
            ("-L E -b 4096", "-L E -b 4096 -E root_owner=5:7"),
            ("-E stride=4 -F", "-E root_owner=5:7,stride=4 -F"),
            ("-FEstride=4", "-FEroot_owner=5:7,stride=4"),
            ("-E a -E b", "-E a -E root_owner=5:7,b"),
            ("-E stride=4,root_owner", "-E stride=4,root_owner"),
            ("-E root_owner=1:1", "-E root_owner=1:1"),
            ("-d tree", "-d tree"),
            ("-Fdtree -E a", "-Fdtree -E a"),
        ] {
            assert_eq!(options(line, 5), expected);
            assert_eq!(options(line, 0), line);
        }
    }
}
