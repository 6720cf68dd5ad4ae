//! `fusermount3`, the setuid helper that mounts for unprivileged users.
//!
//! It receives one end of a socket, and sends the open device over it.

use std::io::{IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use extant_space::{Error, ErrorKind, Result};
use rustix::mount::MountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::UnmountMode;
use crate::options::{AccessTimes, AllowOther, MountOptions, list};

const PROGRAM: &str = "fusermount3";
/// Holds the number of its descriptor of the socket.
const SOCKET_VARIABLE: &str = "_FUSE_COMMFD";

/// Mounts at `directory`, an absolute path.
pub(super) fn mount(directory: &Path, options: &MountOptions) -> Result<OwnedFd> {
    if !options
        .flags
        .contains(MountFlags::NODEV | MountFlags::NOSUID)
    {
        return Err(
            Error::new(ErrorKind::PermissionDenied).detail("only root mounts with `dev` or `suid`")
        );
    }
    let (mine, theirs) = UnixStream::pair().map_err(Error::from)?;
    let mut process = Command::new(PROGRAM)
        .arg("-o")
        .arg(list::join(&words(options)))
        .arg("--")
        .arg(directory)
        // Its end of the socket is its standard input, so that no other child process inherits it.
        .env(SOCKET_VARIABLE, "0")
        .env("LC_ALL", "C")
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(missing)?;
    let received = receive(&mine);
    let mut message = Vec::new();
    if let Some(mut messages) = process.stderr.take() {
        let _ = messages.read_to_end(&mut message);
    }
    let _ = process.wait();
    received?.ok_or_else(|| refused(&message))
}

/// Unmounts the mount of an unprivileged user.
pub(super) fn unmount(directory: &Path, mode: UnmountMode) -> Result<()> {
    let how: &[&str] = match mode {
        UnmountMode::Refuse => &["-u"],
        UnmountMode::Detach | UnmountMode::Abort => &["-u", "-z"],
    };
    let output = Command::new(PROGRAM)
        .args(how)
        .arg("--")
        .arg(directory)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .map_err(missing)?;
    match output {
        Output { status, .. } if status.success() => Ok(()),
        Output { stderr, .. } => Err(refused(&stderr).during("unmount").at(directory)),
    }
}

/// The options that `fusermount3` accepts.
fn words(options: &MountOptions) -> Vec<String> {
    let mut words = options.words_of_every_mount();
    words.retain(|word| word != "strictatime");
    if options.access_times == AccessTimes::Never {
        words.push("noatime".to_owned());
    }
    words.push("default_permissions".to_owned());
    if options.allow_other == AllowOther::On {
        words.push("allow_other".to_owned());
    }
    if let Some(max) = options.read_length_max {
        words.push(format!("max_read={max}"));
    }
    let source = options.source.as_ref().unwrap_or(&options.subtype);
    words.push(format!("fsname={source}"));
    words.push(format!("subtype={}", options.subtype));
    words
}

/// Receives the device over the socket; `None` if that is closed without one.
fn receive(socket: &UnixStream) -> Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let mut parts = [IoSliceMut::new(&mut byte)];
    rustix::io::retry_on_intr(|| recvmsg(socket, &mut parts, &mut ancillary, flags))
        .map_err(|errno| Error::from_errno(errno.raw_os_error()))?;
    let connection = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    Ok(connection)
}

fn missing(error: std::io::Error) -> Error {
    let error = Error::from(error).at(PROGRAM).during("start");
    match error.kind() {
        ErrorKind::NotFound => error
            .with_kind(ErrorKind::Unsupported)
            .detail("needed to mount and unmount without root, and not installed")
            .advice("install the package fuse3"),
        _ => error,
    }
}

/// The error that `message` of the program describes.
fn refused(message: &[u8]) -> Error {
    let message = String::from_utf8_lossy(message);
    let kind = if message.contains("busy") {
        ErrorKind::InUse
    } else {
        ErrorKind::PermissionDenied
    };
    let error = Error::new(kind);
    match message.trim() {
        "" => error.detail(format!("{PROGRAM} failed without a message")),
        message => error.detail(message.lines().collect::<Vec<_>>().join("; ")),
    }
}
