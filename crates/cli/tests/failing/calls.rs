//! System calls of a run, and a run in which one of them fails, by strace.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::process::Command;

use extant_testkit::command;
use extant_testkit::workdir::Workdir;

use crate::support::through;

/// The calls that reach files, devices and clients, and errors of their manual pages.
const ERRORS: &[(&str, &[&str])] = &[
    ("accept4", &["EMFILE", "ECONNABORTED", "ENOMEM"]),
    ("bind", &["EACCES", "EADDRINUSE", "ENOSPC"]),
    ("clone3", &["EAGAIN"]),
    ("connect", &["ECONNREFUSED"]),
    ("copy_file_range", &["EXDEV", "EOPNOTSUPP", "EIO", "ENOSPC"]),
    ("epoll_create1", &["EMFILE"]),
    ("eventfd2", &["EMFILE"]),
    (
        "fallocate",
        &["ENOSPC", "EDQUOT", "EOPNOTSUPP", "EIO", "EINTR"],
    ),
    ("fchmod", &["EPERM", "EIO"]),
    ("fchown", &["EPERM", "EIO"]),
    ("fcntl", &["EINVAL", "ENOLCK"]),
    ("fdatasync", &["EIO", "ENOSPC", "EDQUOT"]),
    ("fgetxattr", &["EOPNOTSUPP", "EIO"]),
    ("flock", &["ENOLCK", "EINTR"]),
    ("fsetxattr", &["EOPNOTSUPP", "ENOSPC", "EIO"]),
    ("fstatfs", &["EIO"]),
    ("fsync", &["EIO", "ENOSPC", "EDQUOT"]),
    ("ftruncate", &["EIO", "EFBIG", "EPERM"]),
    ("getdents64", &["EIO"]),
    ("getrandom", &["ENOSYS"]),
    ("io_submit", &["EAGAIN", "EIO"]),
    ("io_setup", &["EAGAIN", "ENOSYS"]),
    ("io_uring_enter", &["EINTR", "EAGAIN", "EBUSY"]),
    ("io_uring_register", &["EINVAL", "ENOMEM"]),
    ("io_uring_setup", &["ENOSYS", "EPERM", "ENOMEM"]),
    ("ioctl", &["ENOTTY", "EOPNOTSUPP", "EIO"]),
    ("linkat", &["EIO", "ENOSPC", "EROFS", "EPERM"]),
    ("listen", &["EADDRINUSE"]),
    ("lseek", &["EINVAL", "EIO"]),
    ("memfd_create", &["EMFILE"]),
    ("mkdirat", &["ENOSPC", "EACCES", "EIO"]),
    ("openat", &["EACCES", "EMFILE", "EIO", "ENOMEM"]),
    ("openat2", &["ENOSYS", "EAGAIN", "EIO"]),
    ("pipe2", &["EMFILE"]),
    ("pread64", &["EIO", "EINTR"]),
    ("preadv", &["EIO"]),
    ("preadv2", &["EOPNOTSUPP", "EIO"]),
    ("pwrite64", &["EIO", "ENOSPC", "EDQUOT", "EINTR"]),
    ("pwritev", &["EIO", "ENOSPC"]),
    ("pwritev2", &["EOPNOTSUPP", "EIO", "ENOSPC"]),
    ("read", &["EIO", "EINTR"]),
    ("recvfrom", &["ECONNRESET", "EINTR"]),
    ("recvmsg", &["ECONNRESET", "EINTR"]),
    ("renameat", &["EIO", "ENOSPC", "EROFS"]),
    ("renameat2", &["EIO", "ENOSPC", "EROFS", "EINVAL"]),
    ("sendmsg", &["EPIPE", "ECONNRESET", "EINTR"]),
    ("sendto", &["EPIPE", "EINTR"]),
    ("socket", &["EMFILE", "EACCES"]),
    ("statfs", &["EIO"]),
    ("statx", &["EIO", "ENOSYS"]),
    ("symlinkat", &["ENOSPC"]),
    ("sync_file_range", &["EIO", "ENOSPC"]),
    ("syncfs", &["EIO", "ENOSPC"]),
    ("unlinkat", &["EIO", "EROFS"]),
    ("write", &["EIO", "ENOSPC", "EINTR"]),
];

/// Paths of calls that are left out: those of the dynamic loader, and the list of processes, whose
/// length changes.
const OTHERS: [&str; 4] = ["/proc/", "/lib/", "/lib64/", "/etc/ld.so"];

/// One call that fails with one error.
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    call: &'static str,
    /// Which call of this name in its thread, from 1.
    number: usize,
    error: &'static str,
}

impl Failure {
    /// The command, in whose run it happens.
    pub fn inject(&self, inner: &Command) -> Command {
        let Self {
            call,
            number,
            error,
        } = self;
        let inject = format!("inject={call}:error={error}:when={number}");
        // A run that hangs ends without an exit status of its own.
        let words = ["timeout", "--signal=KILL", "60"];
        through(&words, &strace("/dev/null", call, &["-e", &inject], inner))
    }

    /// Files that a run in which this call succeeds removes may remain.
    pub fn keeps_files(&self) -> bool {
        self.call == "unlinkat"
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            call,
            number,
            error,
        } = self;
        write!(f, "{call} {number} with {error}")
    }
}

/// Runs a command; every failure that is possible in its run.
///
/// # Panics
/// When it fails by itself.
pub fn of(inner: &Command) -> Vec<Failure> {
    let work = Workdir::new();
    let log = work.path().join("calls");
    let names: Vec<_> = ERRORS.iter().map(|(name, _)| *name).collect();
    let to = log.to_str().expect("UTF-8");
    command::must(&mut strace(to, &names.join(","), &[], inner));
    let log = fs::read_to_string(&log).expect("strace's output");
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut numbers: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    for line in log.lines() {
        // "1234 read(3</tmp/disk>, ..."; a call may be continued in a line of its own.
        let Some((thread, call)) = line.split_once(' ') else {
            continue;
        };
        let Some((name, arguments)) = call.trim_start().split_once('(') else {
            continue;
        };
        let Some(&name) = names.iter().find(|known| **known == name) else {
            continue;
        };
        let count = counts.entry((thread, name)).or_default();
        *count += 1;
        if !OTHERS.iter().any(|path| arguments.contains(path)) {
            numbers.entry(name).or_default().insert(*count);
        }
    }
    let of_call = |&(call, errors): &'static (&str, &'static [&str])| {
        let numbers = numbers.get(call).into_iter().flatten();
        let failures = numbers.flat_map(move |&number| {
            errors.iter().map(move |error| Failure {
                call,
                number,
                error,
            })
        });
        failures.collect::<Vec<_>>()
    };
    ERRORS.iter().flat_map(of_call).collect()
}

fn strace(log: &str, calls: &str, more: &[&str], inner: &Command) -> Command {
    let trace = format!("trace={calls}");
    let words = ["strace", "-f", "-y", "-qq", "--seccomp-bpf", "-o", log];
    let trace = ["-e", "signal=none", "-e", &trace];
    through(&[&words[..], &trace, more, &["--"]].concat(), inner)
}
