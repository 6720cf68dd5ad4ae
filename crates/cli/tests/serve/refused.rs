//! Files that are not served, and the reasons.

use std::fs;

use extant_testkit::command::{run_any_status, tool};
use extant_testkit::scratch::LoopDevice;
use extant_testkit::{require, requires};

use crate::stand::{Stand, qemu_io, said, size};
use crate::support::{Answer, Running, run, wait_until};

fn serve(stand: &Stand, words: &[&str]) -> Answer {
    run(stand.command(&["--socket", "t"]).args(words))
}

#[test]
fn image_of_another_format_is_served_only_when_raw_is_said() {
    require!(requires::tool("qemu-img"));
    let stand = Stand::new();
    for format in ["qcow2", "vmdk", "vdi", "vhdx", "vpc", "qed", "parallels"] {
        let file = stand.path(format);
        let create = ["create", "-q", "-f", format];
        said(tool("qemu-img").args(create).arg(&file).arg("64M"));
        serve(&stand, &[format]).refused(5, &[format, "looks like a", "--format raw"]);
    }
    let serving = stand.serve(&["qcow2", "-f", "raw"]);
    let bytes = fs::read(stand.path("qcow2")).unwrap();
    assert!(!bytes.len().is_multiple_of(512));
    assert_eq!(size(&serving.uri("qcow2")), bytes.len() as u64);
    let copy = stand.path("copy");
    let uri = serving.uri("qcow2");
    let convert = ["convert", "-f", "raw", "-O", "raw", &uri];
    said(tool("qemu-img").args(convert).arg(&copy));
    serving.end();
    // QEMU takes whole sectors, the last of which ends with zeros.
    let copied = fs::read(copy).unwrap();
    let (same, rest) = copied.split_at(bytes.len());
    assert!(same == bytes && rest.len() < 512 && rest.iter().all(|&byte| byte == 0));
}

#[test]
fn header_written_by_a_client_to_a_raw_image_is_ignored() {
    require!(requires::tool("qemu-img"), requires::tool("nbdcopy"));
    let stand = Stand::new();
    fs::write(stand.path("secret"), [7; 65_536]).unwrap();
    stand.sparse("disk.raw", 1);
    let create = [
        "create", "-q", "-f", "qcow2", "-F", "raw", "-b", "secret", "evil", "1M",
    ];
    said(tool("qemu-img").current_dir(stand.work.path()).args(create));
    // Clients write whole blocks.
    let evil = fs::OpenOptions::new()
        .write(true)
        .open(stand.path("evil"))
        .unwrap();
    evil.set_len(evil.metadata().unwrap().len().next_multiple_of(512))
        .unwrap();
    let serving = stand.serve(&["disk.raw"]);
    said(tool("nbdcopy").arg(stand.path("evil")).arg(serving.uri("")));
    serving.end();
    serve(&stand, &["disk.raw"]).refused(5, &["qcow2"]);
    let serving = stand.serve(&["disk.raw", "--format", "raw"]);
    qemu_io(&serving.uri(""), &["read -P 0x51 0 1"]);
    serving.end();
}

#[test]
fn served_file_is_refused_to_others() {
    let stand = Stand::new();
    let file = stand.sparse("a.raw", 1);
    serve(&stand, &["a.raw", "b=a.raw"]).refused(4, &["a.raw", "in use"]);
    let serving = stand.serve(&["a.raw"]);
    serve(&stand, &["a.raw"]).refused(4, &["a.raw", "in use"]);
    serve(&stand, &["-r", "a.raw"]).refused(4, &["a.raw", "in use"]);
    serving.end();
    // Readers do not exclude each other.
    let serving = stand.serve(&["-r", "a.raw", "again=a.raw"]);
    serve(&stand, &["a.raw"]).refused(4, &["in use"]);
    serving.end();
    let writer = fs::OpenOptions::new().write(true).open(&file).unwrap();
    // The tests are another process than the server.
    serve(&stand, &["a.raw"]).refused(4, &["open for writing elsewhere"]);
    drop(writer);
    stand.serve(&["a.raw"]).end();
}

#[test]
fn tools_of_qemu_and_a_server_keep_each_other_out() {
    require!(requires::tool("qemu-io"), requires::tool("qemu-nbd"));
    let stand = Stand::new();
    let file = stand.sparse("a.raw", 1);
    let writes = || {
        let mut command = tool("qemu-io");
        command.args(["-f", "raw", "-c", "write 0 512"]).arg(&file);
        let output = run_any_status(&mut command).unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), text)
    };
    assert!(writes().0);
    for more in [&[][..], &["-r"]] {
        let serving = stand.serve(&[&["a.raw"], more].concat());
        let (success, text) = writes();
        assert!(!success && text.contains("\"write\" lock"), "{text}");
        serving.end();
    }
    assert!(writes().0);
    for (name, access) in [("rw", "--cache=writeback"), ("ro", "--read-only")] {
        let word = stand.path(name).with_extension("pid");
        let mut qemu_nbd = tool("qemu-nbd");
        qemu_nbd
            .args(["-t", "-f", "raw", access, "--pid-file"])
            .arg(&word);
        let mut theirs = Running::start(qemu_nbd.arg("-k").arg(stand.path(name)).arg(&file));
        wait_until("qemu-nbd", || word.exists() || !theirs.is_alive());
        match name {
            "rw" => {
                serve(&stand, &["a.raw"]).refused(4, &["a.raw", "qemu-nbd"]);
                serve(&stand, &["-r", "a.raw"]).refused(4, &["a.raw", "qemu-nbd"]);
            }
            // Readers admit other readers.
            _ => drop(stand.serve(&["-r", "a.raw"]).end()),
        }
        theirs.send(rustix::process::Signal::TERM);
        theirs.wait();
    }
    stand.serve(&["a.raw"]).end();
}

#[test]
fn arguments_that_contradict_each_other_are_refused() {
    let stand = Stand::new();
    stand.sparse("a.raw", 1);
    fs::create_dir(stand.path("d")).unwrap();
    run(&mut stand.command(&["a.raw"])).refused(2, &["nowhere to listen", "--socket"]);
    serve(&stand, &["a.raw", "d", "--name", "x"]).refused(2, &["--name"]);
    serve(&stand, &["a=a.raw", "a=d"]).refused(4, &["d"]);
    serve(&stand, &["d"]).refused(4, &["d: ", "not a regular file"]);
    serve(&stand, &["none"]).refused(4, &["none"]);
    serve(&stand, &["a.raw", "--max-request", "3M"]).refused(2, &["power of two"]);
    serve(&stand, &["a.raw", "--connections", "0"]).refused(2, &["connections"]);
    serve(&stand, &["a.raw", "--listen", "nowhere at all"]).refused(2, &["nowhere at all"]);
    serve(&stand, &["a.raw", "--aio", "native"]).refused(2, &["--aio native", "--cache none"]);
    let export = ["nbd+unix:///?socket=none", "--aio", "threads"];
    serve(&stand, &export).refused(2, &["--aio", "export"]);
    serve(&stand, &["a.raw", "--tls-optional"]).refused(2, &["--tls-creds"]);
    serve(&stand, &["a.raw", "--socket", "no/such/directory"]).refused(4, &["no/such/directory"]);
    assert!(!stand.path("t").exists(), "a socket is left");
    fs::copy(stand.path("a.raw"), stand.path("b.raw")).unwrap();
    serve(&stand, &["x=a.raw", "x=b.raw"]).refused(4, &["two exports"]);
    let serving = stand.serve(&["a.raw"]);
    let socket = ["b.raw", "--socket", "s"];
    let who = format!("extant (pid {}) listens there", serving.running.pid());
    run(&mut stand.command(&socket)).refused(4, &[&who]);
    serving.end();
}

/// A filter for system calls as a container's: io_uring is refused.
const WITHOUT_IO_URING: &str = "\
import ctypes, os, struct, sys
# Load the number; io_uring_setup is 425 on every machine: EPERM; else allowed.
code = [(0x20, 0, 0, 0), (0x15, 0, 1, 425), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7fff0000)]
text = b''.join(struct.pack('HBBI', *one) for one in code)
class Program(ctypes.Structure):
    _fields_ = [('length', ctypes.c_ushort), ('code', ctypes.c_char_p)]
program = Program(len(code), text)
libc = ctypes.CDLL(None, use_errno=True)
no_new_privileges, seccomp, filter = 38, 22, 2
assert libc.prctl(no_new_privileges, 1, 0, 0, 0) == 0
assert libc.prctl(seccomp, filter, ctypes.byref(program)) == 0, ctypes.get_errno()
os.execv(sys.argv[1], sys.argv[1:])
";

#[test]
fn engine_that_the_kernel_forbids_is_refused_and_the_default_falls_back_to_threads() {
    require!(requires::tool("python3"), requires::tool("nbdinfo"));
    let stand = Stand::new();
    stand.sparse("a.raw", 1);
    let words = ["a.raw", "--json", "--socket", "t", "--aio"];
    let command = |aio: &str| {
        let inner = stand.command(&[&words[..], &[aio]].concat());
        let mut command = tool("python3");
        command
            .args(["-c", WITHOUT_IO_URING])
            .arg(inner.get_program());
        command
            .args(inner.get_args())
            .current_dir(stand.work.path());
        command
    };
    let error = run(&mut command("io_uring")).refused_json(5, "unsupported");
    assert!(error.to_string().contains("io_uring_disabled"), "{error}");
    let mut running = Running::start(&mut command("auto"));
    wait_until("the socket", || {
        stand.path("t").exists() || !running.is_alive()
    });
    let answer = running.stop(rustix::process::Signal::TERM).0;
    assert!(answer.stdout.contains("\"aio\":\"threads\""), "{answer}");
}

#[test]
fn disk_is_served_and_claimed() {
    require!(requires::root(), requires::tool("qemu-io"));
    let stand = Stand::new();
    let file = stand.sparse("a.raw", 8);
    let disk = LoopDevice::attach(&file);
    let path = disk.path().to_str().unwrap().to_owned();
    let words = [&format!("disk={path}")[..], "--discard", "unmap"];
    let serving = stand.serve(&words);
    serve(&stand, &[&path]).refused(4, &["in use"]);
    let commands = [
        "write -P 5 1M 1M",
        "discard 0 64k",
        "flush",
        "read -P 5 1M 1M",
    ];
    qemu_io(&serving.uri("disk"), &commands);
    serving.end();
    drop(disk);
    let bytes = fs::read(&file).unwrap();
    assert!(bytes[1 << 20..2 << 20].iter().all(|&byte| byte == 5));
}

#[test]
fn port_with_a_listener_is_in_use() {
    let stand = Stand::new();
    stand.sparse("a.raw", 1);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let words = ["a.raw", "--listen", &address];
    // A process just forked by another test has the socket as well.
    let who = ["(pid ", ") listens there"];
    run(&mut stand.command(&words)).refused(4, &[&[&*address][..], &who].concat());
    let answer = run(stand.command(&words).arg("--json"));
    answer.refused_json(4, "in-use");
}

#[test]
fn ublk_disk_is_refused_and_probed_where_the_driver_is_missing() {
    require!(requires::root(), requires::tool("unshare"));
    let stand = Stand::new();
    stand.sparse("a.raw", 1);
    // A machine that has the driver loses it for the command.
    let hidden = "if [ -e /dev/ublk-control ]; then mount --bind /dev/null /dev/ublk-control; fi; exec \"$@\"";
    let without_driver = |words: &[&str]| {
        let mut command = tool("unshare");
        command.args(["-m", "sh", "-c", hidden, "sh", env!("CARGO_BIN_EXE_extant")]);
        run(command.args(words).current_dir(stand.work.path()))
    };
    without_driver(&["serve", "a.raw", "--ublk"]).refused(5, &["ublk", "Linux 6."]);
    let probe = without_driver(&["probe", "--json"]).success();
    assert_eq!(probe.json()["ublk"]["is_supported"], false, "{probe}");
    assert!(probe.text("/ublk/reason").contains("ublk"), "{probe}");
    stand.sparse("b.raw", 1);
    let words = ["serve", "a.raw", "b.raw", "--ublk=3"];
    without_driver(&words).refused(2, &["--ublk=N is for one file"]);
}

/// Run with `cargo xtask test --target x86_64-unknown-linux-musl -p extant refused_by_static`.
#[cfg(target_feature = "crt-static")]
#[test]
fn image_of_ceph_is_refused_by_static_program_with_what_to_install() {
    let stand = Stand::new();
    let answer = run(&mut stand.command(&["rbd:vms/disk"]));
    answer.refused(5, &["rbd:vms/disk", "linked statically", "librbd1"]);
    let mut probe = tool(env!("CARGO_BIN_EXE_extant"));
    let probe = run(probe.args(["probe", "--json"])).success();
    assert_eq!(probe.json()["rbd"]["is_supported"], false, "{probe}");
    assert!(probe.text("/rbd/reason").contains("librbd1"), "{probe}");
}
