//! vhost-user disks, through a driver without a guest.

use std::fs;
use std::path::Path;
use std::process::Command;

use extant_testkit::command::tool;
use extant_testkit::vhost_client::{Client, Op, Options, Ram, kind, status};
use extant_testkit::{require, requires};
use rustix::process::Signal;

use crate::stand::{Stand, size};
use crate::support::Running;
use crate::support::{MIB, noise, run, wait_until};

const SECTOR: usize = 512;

fn connect(socket: &Path, ram: &Ram) -> Client {
    Client::connect(socket, ram, Options::default())
}

#[test]
fn disk_and_export_of_one_file_have_the_same_data() {
    let stand = Stand::new();
    let file = stand.data("a.raw", 1, 2);
    let serving = stand.serve(&["a.raw", "--vhost-user", "v"]);
    let ram = Ram::new(1);
    let mut client = connect(&stand.path("v"), &ram);
    assert_eq!(client.capacity_sectors(), 4096);
    let queue = &mut client.queues[0];
    let read = queue.run(&Op::read(7, 4096));
    assert!(read.input == noise(1, 2 << 20)[7 * SECTOR..7 * SECTOR + 4096]);
    let mut identify = Op::of_kind(kind::GET_ID);
    identify.input = 20;
    assert!(queue.run(&identify).input.starts_with(b"a.raw\0"));
    assert_eq!(queue.run(&Op::write(0, &noise(2, 4096))).status, status::OK);
    assert_eq!(queue.run(&Op::of_kind(kind::FLUSH)).status, status::OK);
    let answer = serving.end();
    let lines: Vec<_> = answer.stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{answer}");
    assert_eq!(Path::new(lines[1]), stand.path("v"));
    assert!(!stand.path("v").exists());
    assert!(fs::read(file).unwrap()[..4096] == noise(2, 4096));
}

#[test]
fn directory_has_a_socket_for_each_file() {
    let stand = Stand::new();
    stand.sparse("a.raw", 1);
    stand.sparse("b.raw", 3);
    let directory = stand.work.directory("d");
    let serving = stand.serve(&["a.raw", "second=b.raw", "--vhost-user", "d"]);
    for (name, mebibytes) in [("a.raw.sock", 1), ("second.sock", 3)] {
        let ram = Ram::new(1);
        let mut client = connect(&directory.join(name), &ram);
        assert_eq!(client.capacity_sectors(), mebibytes * 2048, "{name}");
    }
    serving.end();
    assert_eq!(fs::read_dir(directory).unwrap().count(), 0);
    let words = ["a.raw", "b.raw", "--vhost-user", "v"];
    run(&mut stand.command(&words)).refused(2, &["--vhost-user", "for 2 files"]);
}

/// Starts a program as systemd does, with the named sockets `a`, `b`, ... from descriptor 3 on.
const ACTIVATE: &str = "
import os, socket, sys
names = sys.argv[1].split(':')
held = [socket.socket(socket.AF_UNIX) for _ in names]
for at, made in enumerate(held):
    made.bind(chr(ord('a') + at))
    made.listen()
# Descriptors that would be overwritten are moved out of the way first.
copies = [os.dup2(made.fileno(), 20 + at) for at, made in enumerate(held)]
for at, copy in enumerate(copies):
    os.dup2(copy, 3 + at)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(names)), LISTEN_FDNAMES=sys.argv[1])
os.execv(sys.argv[2], sys.argv[2:])
";

fn activated(stand: &Stand, names: &str, words: &[&str]) -> Command {
    let inner = stand.command(words);
    let mut command = tool("python3");
    command.args(["-c", ACTIVATE, names]);
    command.arg(inner.get_program()).args(inner.get_args());
    command.current_dir(stand.work.path());
    command
}

#[test]
fn sockets_handed_over_by_name_serve_the_files_in_their_order() {
    require!(requires::tool("python3"), requires::tool("nbdinfo"));
    let stand = Stand::new();
    stand.sparse("1.raw", 1);
    stand.sparse("3.raw", 3);
    let words = ["1.raw", "3.raw", "--pid-file", "p"];
    let mut command = activated(&stand, "vhost-user:connection:vhost-user", &words);
    let mut running = Running::start(&mut command);
    wait_until("the server", || {
        stand.path("p").exists() || !running.is_alive()
    });
    for (socket, mebibytes) in [("a", 1), ("c", 3)] {
        let ram = Ram::new(1);
        let mut client = connect(&stand.path(socket), &ram);
        assert_eq!(client.capacity_sectors(), mebibytes * 2048, "{socket}");
    }
    let uri = format!("nbd+unix:///3.raw?socket={}", stand.path("b").display());
    assert_eq!(size(&uri), 3 * MIB);
    let (answer, _) = running.stop(Signal::TERM);
    assert!(answer.success().stdout.is_empty());
    // The parent keeps the name, for the next server.
    assert!(stand.path("a").exists());
}

#[test]
fn sockets_handed_over_that_do_not_fit_the_files_are_refused() {
    require!(requires::tool("python3"));
    for (names, more, word) in [
        ("vhost-user:vhost-user", &[][..], "2 vhost-user sockets"),
        ("vhost-user", &["--vhost-user", "v"], "--vhost-user"),
    ] {
        let stand = Stand::new();
        stand.sparse("1.raw", 1);
        let words = [&["1.raw"][..], more].concat();
        run(&mut activated(&stand, names, &words)).refused(2, &[word]);
    }
}

#[test]
fn ready_message_names_the_socket() {
    let stand = Stand::new();
    stand.sparse("a.raw", 1);
    let words = [
        "a.raw",
        "--vhost-user",
        "v",
        "--fork",
        "--json",
        "--pid-file",
        "p",
    ];
    let answer = run(&mut stand.command(&words)).success();
    assert_eq!(answer.text("/event"), "serving");
    let socket = stand.path("v");
    assert_eq!(Path::new(&answer.text("/exports/0/vhost_user")), socket);
    let pid = rustix::process::Pid::from_raw(answer.number("/pid") as i32).unwrap();
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    wait_until("the end", || !stand.path("p").exists() && !socket.exists());
}

#[test]
fn killed_server_is_replaced_and_every_request_is_completed_once() {
    let stand = Stand::new();
    // Completed writes without a flush survive a killed server in a raw file only.
    let image = stand.sparse("a.raw", 64);
    let words = ["a.raw", "--vhost-user", "v", "--cache", "none"];
    let ram = Ram::new(1);
    let write = |slot: u16| Op::write(u64::from(slot) * 256, &noise(slot.into(), 4096));
    let mut serving = stand.serve(&words);
    let mut client = connect(&stand.path("v"), &ram);
    let mut completed = 0;
    for _ in 0..5 {
        for slot in 0..100 {
            client.queues[0].add(slot, &write(slot));
        }
        client.queues[0].kick();
        completed += client.queues[0].wait().len();
        let (_, _) = serving.running.stop(Signal::KILL);
        completed += client.queues[0].take_completed().len();
        let options = Options {
            inflight: Some(client.inflight),
            bases: vec![client.queues[0].used_index()],
            ..Options::default()
        };
        fs::remove_file(stand.path("s.pid")).unwrap();
        serving = stand.serve(&words);
        client = Client::connect(&stand.path("v"), &ram, options);
        client.queues[0].kick_anyway();
        while completed % 100 != 0 {
            for done in client.queues[0].wait() {
                assert_eq!(done.status, status::OK);
                completed += 1;
            }
        }
    }
    assert_eq!(completed, 500);
    assert_eq!(
        client.queues[0].run(&Op::of_kind(kind::FLUSH)).status,
        status::OK
    );
    serving.running.stop(Signal::KILL);
    let bytes = fs::read(image).unwrap();
    for slot in 0..100_u16 {
        let at = usize::from(slot) * 256 * SECTOR;
        assert!(bytes[at..at + 4096] == noise(slot.into(), 4096), "{slot}");
    }
    assert_eq!(bytes.len() as u64, 64 * MIB);
}
