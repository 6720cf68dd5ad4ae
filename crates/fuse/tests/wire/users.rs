//! Mounts of an unprivileged user, and mounts that outlive their server.
//!
//! The server is this same program, started again as that user: It runs [`serve_for_another_test`].

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::{self, sleep};
use std::time::Duration;

use extant_fuse::Session;
use extant_testkit::fuse_watchdog::FuseWatchdog;
use extant_testkit::requires::Requirement;
use extant_testkit::workdir::Workdir;
use extant_testkit::{command, require, requires};

use crate::fixture::{can_mount, is_mounted_for, options};
use crate::memory_fs::MemoryFs;

const NOBODY: u32 = 65534;
/// Mount point and options of the started program.
const PLACE: &str = "EXTANT_WIRE_PLACE";
const OPTIONS: &str = "EXTANT_WIRE_OPTIONS";

/// A mount namespace whose mounts are invisible to others, with a `/dev/fuse` that all users may
/// open, as on most systems.
struct Room {
    process: Child,
    directory: PathBuf,
    program: PathBuf,
    _work: Workdir,
}

/// A server in a process of its own, in a room.
struct Server {
    process: Child,
    watchdog: Option<FuseWatchdog>,
    room: Room,
}

impl Room {
    /// With a directory that belongs to `uid`.
    fn new(uid: u32) -> Self {
        let work = Workdir::new();
        let directory = work.directory("mount");
        chown(&directory, Some(uid), Some(uid)).unwrap();
        // The build directory may be inaccessible to other users.
        let program = work.path().join("server");
        fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        let device = work.path().join("fuse");
        let process = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-euc"])
            .arg("umount -l -a -t fuse.extant || true; mknod $device c 10 229; chmod 666 $device; mount --bind $device /dev/fuse; echo; exec sleep 1000")
            .env("device", device)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut room = Self {
            process,
            directory,
            program,
            _work: work,
        };
        let mut ready = [0];
        let output = room.process.stdout.as_mut().unwrap();
        output.read_exact(&mut ready).unwrap();
        room
    }

    /// A program in it, run by a user.
    fn command(&self, uid: u32, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--mount=/proc/{}/ns/mnt", self.process.id()))
            .args(["setpriv", "--clear-groups"])
            .arg(format!("--reuid={uid}"))
            .arg(format!("--regid={uid}"))
            .arg(program)
            .current_dir("/");
        command
    }

    /// The output of a shell run by the user `nobody`.
    fn sh_as_nobody(&self, script: &str) -> String {
        let mut command = self.command(NOBODY, "sh");
        command.args(["-euc", script]).env("dir", &self.directory);
        command::text(&mut command).unwrap()
    }

    fn is_mounted(&self) -> bool {
        is_mounted_for(self.process.id(), &self.directory)
    }
}

impl Server {
    fn start(uid: u32, options: &str) -> Self {
        let room = Room::new(uid);
        let process = room
            .command(uid, &room.program)
            .args(["--exact", "users::serve_for_another_test", "--nocapture"])
            .env(PLACE, &room.directory)
            .env(OPTIONS, options)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut server = Self {
            process,
            watchdog: None,
            room,
        };
        server.wait_until("mounted", Room::is_mounted);
        let (process, directory) = (server.room.process.id(), &server.room.directory);
        server.watchdog = Some(FuseWatchdog::watch_in(process, directory));
        server
    }

    fn wait_until(&mut self, what: &str, condition: impl Fn(&Room) -> bool) {
        for _ in 0..3000 {
            if condition(&self.room) {
                return;
            }
            sleep(Duration::from_millis(10));
        }
        panic!("not {what} after 30 seconds: {:?}", self.process.try_wait());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // Mounts of the namespace end with its last process.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Requirements of a namespace.
fn can_make_rooms() -> Requirement {
    let tools = ["fusermount3", "unshare", "nsenter", "setpriv"];
    let missing = tools
        .into_iter()
        .find(|name| !requires::tool(name).is_met());
    Requirement::new(missing.unwrap_or("tools"), missing.is_none())
}

/// Not a test itself.
#[test]
fn serve_for_another_test() {
    let (Ok(place), Ok(list)) = (std::env::var(PLACE), std::env::var(OPTIONS)) else {
        return;
    };
    let memory_fs = Arc::new(MemoryFs::default());
    let session = Session::mount(memory_fs.clone(), Path::new(&place), &options(&list)).unwrap();
    let unmounter = session.unmounter();
    thread::spawn(move || {
        while !memory_fs.has("unmount") {
            sleep(Duration::from_millis(10));
        }
        // The process that gave the signal may still be there.
        unmounter.detach().unwrap();
    });
    session.run().unwrap();
}

#[test]
fn user_mounts_and_unmounts_with_the_help_of_fusermount() {
    require!(can_mount(), can_make_rooms());
    for options in [
        "",
        "ro,noatime,noexec,fsname=a\\,b,max_read=65536",
        "auto_unmount",
    ] {
        let mut server = Server::start(NOBODY, options);
        // The server is ready when it has answered.
        assert_eq!(server.room.sh_as_nobody("ls $dir"), "");
        if !options.contains("ro") {
            let script = "echo hello > $dir/file; cat $dir/file; stat -c %U $dir/file";
            assert_eq!(server.room.sh_as_nobody(script), "hello\nnobody\n");
        }
        server.room.sh_as_nobody("fusermount3 -u $dir");
        assert!(server.process.wait().unwrap().success(), "{options}");
        assert!(!server.room.is_mounted());
    }
}

#[test]
fn user_unmounts_from_inside() {
    require!(can_mount(), can_make_rooms());
    let mut server = Server::start(NOBODY, "threads=1");
    // The server takes it for a sign to end.
    server.room.sh_as_nobody("touch $dir/unmount");
    assert!(server.process.wait().unwrap().success());
    assert!(!server.room.is_mounted());
}

#[test]
fn mount_is_removed_when_the_server_is_killed() {
    require!(can_mount(), can_make_rooms());
    for uid in [0, NOBODY] {
        let mut server = Server::start(uid, "auto_unmount");
        server.process.kill().unwrap();
        server.wait_until("unmounted", |room| !room.is_mounted());
    }
}

#[test]
fn mount_without_auto_unmount_stays_when_the_server_is_killed_and_is_named() {
    require!(can_mount(), can_make_rooms());
    let mut server = Server::start(0, "");
    server.process.kill().unwrap();
    server.process.wait().unwrap();
    assert!(server.room.is_mounted());
    let mut again = server.room.command(0, &server.room.program);
    again
        .args(["--exact", "users::serve_for_another_test", "--nocapture"])
        .env(PLACE, &server.room.directory)
        .env(OPTIONS, "");
    let failed = command::run(&mut again).unwrap_err().to_string();
    assert!(failed.contains("unmount it first"), "{failed}");
}

#[test]
fn refusal_of_fusermount_is_reported() {
    require!(can_mount(), can_make_rooms());
    let room = Room::new(NOBODY);
    let mut server = room.command(NOBODY, &room.program);
    server
        .args(["--exact", "users::serve_for_another_test", "--nocapture"])
        .env(PLACE, "/")
        .env(OPTIONS, "");
    let failed = command::run(&mut server).unwrap_err().to_string();
    assert!(failed.contains("fusermount3"), "{failed}");
}
