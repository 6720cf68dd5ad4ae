//! How a mount ends: by itself, in use, by a panic, cut; and signals on the way.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use extant_fuse::Session;
use extant_space::ErrorKind;
use extant_testkit::workdir::Workdir;
use extant_testkit::{command, require, requires};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{Fixture, can_mount, is_mounted, options, wait_for};
use crate::memory_fs::{ENDLESS, MemoryFs};

fn kill(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

#[test]
fn mount_in_use_stays_unless_it_is_detached() {
    require!(can_mount());
    let mut fixture = Fixture::new("");
    fs::write(fixture.path("file"), "data").unwrap();
    let file = File::open(fixture.path("file")).unwrap();
    let refused = fixture.unmounter.unmount().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InUse);
    fixture.unmounter.detach().unwrap();
    assert!(!fixture.path("file").exists());
    assert_eq!(std::io::read_to_string(&file).unwrap(), "data");
    assert!(!fixture.memory_fs.was_destroyed.load(Ordering::SeqCst));
    drop(file);
    fixture.join().unwrap();
    assert!(fixture.memory_fs.was_destroyed.load(Ordering::SeqCst));
}

#[test]
fn umount_of_a_user_ends_the_session() {
    require!(can_mount(), requires::tool("umount"));
    let mut fixture = Fixture::new("threads=3");
    let status = Command::new("umount").arg(fixture.directory()).status();
    assert!(status.unwrap().success());
    fixture.join().unwrap();
    fixture.unmounter.unmount().unwrap();
}

#[test]
fn session_that_is_not_run_leaves_no_mount() {
    require!(can_mount());
    let work = Workdir::new();
    let directory = work.directory("mount");
    let session = Session::mount(Arc::new(MemoryFs::default()), &directory, &options("")).unwrap();
    assert!(is_mounted(&directory));
    drop(session);
    assert!(!is_mounted(&directory));
}

#[test]
fn panic_is_an_error_for_every_caller_and_for_the_server() {
    require!(can_mount());
    let mut fixture = Fixture::new("threads=2");
    fs::write(fixture.path("file"), "data").unwrap();
    let file = File::open(fixture.path("file")).unwrap();
    let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap();
    let panicked = errno(fs::metadata(fixture.path("panic")).unwrap_err());
    assert_eq!(panicked, Errno::IO);
    let error = fixture.join().unwrap_err();
    assert!(error.to_string().contains("asked to panic"), "{error}");
    // The mount is removed, and access to open files is an error without a wait.
    assert!(!is_mounted(fixture.directory()));
    let after = errno(file.sync_all().unwrap_err());
    assert!(
        [Errno::IO, Errno::NOTCONN, Errno::CONNABORTED].contains(&after),
        "{after}"
    );
    assert!(!fixture.memory_fs.was_destroyed.load(Ordering::SeqCst));
}

#[test]
fn signal_ends_a_cancellable_operation_without_blocking_others() {
    require!(can_mount(), requires::tool("fallocate"));
    for (threads, signal) in [(1, Signal::INT), (2, Signal::KILL)] {
        let fixture = Fixture::new(&format!("threads={threads}"));
        fs::write(fixture.path("file"), "").unwrap();
        // A shell's background job ignores SIGINT, and so do the tests in it.
        let mut child = Command::new("env")
            .args(["--default-signal=INT", "fallocate"])
            .args(["-l", &ENDLESS.to_string()])
            .arg(fixture.path("file"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_for("the child to be in its call", || {
            fixture.memory_fs.is_waiting.load(Ordering::SeqCst)
        });
        fs::write(fixture.path("meanwhile"), "data").unwrap();
        kill(&child, signal);
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(signal.as_raw()));
        wait_for("the server to be notified", || {
            fixture.memory_fs.was_cancelled.load(Ordering::SeqCst)
        });
        // A thread's next request is not affected.
        fs::write(fixture.path("other"), "data").unwrap();
        fixture.end();
    }
}

#[test]
fn connection_that_is_cut_ends_the_session_and_the_mount() {
    require!(can_mount(), requires::tool("unshare"));
    let mut fixture = Fixture::new("");
    fs::write(fixture.path("file"), "data").unwrap();
    let file = File::open(fixture.path("file")).unwrap();
    let minor = rustix::fs::minor(rustix::fs::stat(fixture.directory()).unwrap().st_dev);
    // Not every machine has the control files in their place.
    let mut cut = command::tool("unshare");
    cut.args(["--mount", "--propagation", "private", "sh", "-euc"])
        .arg("[ -d $control/$minor ] || mount -t fusectl none $control; echo 1 > $control/$minor/abort")
        .env("control", "/sys/fs/fuse/connections")
        .env("minor", minor.to_string());
    command::run(&mut cut).unwrap();
    let error = fixture.join().unwrap_err();
    assert!(error.to_string().contains("aborted"), "{error}");
    assert!(fixture.memory_fs.was_destroyed.load(Ordering::SeqCst));
    assert!(!is_mounted(fixture.directory()));
    drop(file);
}

#[test]
fn place_that_is_none_is_refused() {
    require!(can_mount());
    let work = Workdir::new();
    fs::write(work.path().join("file"), "").unwrap();
    let mount = |name: &str| {
        let place = work.path().join(name);
        let memory_fs = Arc::new(MemoryFs::default());
        let error = Session::mount(memory_fs, &place, &options("")).unwrap_err();
        assert_eq!(error.path(), Some(&*place));
        error.kind()
    };
    assert_eq!(mount("none"), ErrorKind::NotFound);
    assert_eq!(mount("file"), ErrorKind::NotDirectory);
}

#[test]
fn options_of_the_mount_are_the_kernels() {
    require!(can_mount());
    let fixture = Fixture::new("ro,noexec,noatime,allow_other,fsname=some\\,image,subtype=kind");
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let place = fixture.directory().to_str().unwrap();
    let line = table
        .lines()
        .find(|line| line.split(' ').nth(4) == Some(place))
        .unwrap();
    let (mount, system) = line.split_once(" - ").unwrap();
    let words: Vec<_> = mount.split(' ').nth(5).unwrap().split(',').collect();
    assert_eq!(words, ["ro", "nosuid", "nodev", "noexec", "noatime"]);
    assert!(system.starts_with("fuse.kind some,image "), "{system}");
    assert!(
        system.contains("default_permissions,allow_other"),
        "{system}"
    );
    let refused = fs::write(fixture.path("file"), "").unwrap_err();
    assert_eq!(Errno::from_io_error(&refused), Some(Errno::ROFS));
    fixture.end();
}
