//! Other implementations as clients: libnbd's nbdinfo, nbdcopy and nbdsh, qemu-img, qemu-io, fio.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use extant_blockdev::{HostCache, HostDevice, HostOptions};
use extant_export::{Access, Address, Export, Exports, Server, ServerOptions};
use extant_testkit::command::{run_any_status, text, tool};
use extant_testkit::{require, requires};
use tempfile::TempDir;

use crate::{MIB, server};

/// A server on a socket in its own directory.
struct Served {
    server: Server,
    directory: TempDir,
}

impl Served {
    fn new(server: Server) -> Self {
        Self::inside(tempfile::tempdir().unwrap(), server)
    }

    fn inside(directory: TempDir, server: Server) -> Self {
        let socket = Address::Unix(directory.path().join("s"));
        server.listen(&socket).unwrap();
        Self { server, directory }
    }

    fn in_memory() -> Self {
        Self::new(server(ServerOptions::default()).0)
    }

    /// A new file of 16 MiB, past the page cache where that can be had.
    fn on_a_file() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.raw");
        std::fs::File::create(&path)
            .unwrap()
            .set_len(16 * MIB)
            .unwrap();
        let open = |cache| {
            HostDevice::open(
                &path,
                &HostOptions {
                    cache,
                    ..HostOptions::default()
                },
            )
        };
        let device = open(HostCache::Direct).or_else(|_| open(HostCache::Buffered));
        let device = Arc::new(device.unwrap());
        let export = Export::new("disk", "a file", device, Access::ReadWrite).unwrap();
        let exports = Exports::new(vec![export]).unwrap();
        Self::inside(directory, Server::new(exports, ServerOptions::default()))
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("disk.raw")
    }

    fn uri(&self) -> String {
        let socket = self.directory.path().join("s");
        format!("nbd+unix:///disk?socket={}", socket.display())
    }

    fn end(&self) {
        self.server.shutdown(crate::client::TEST_TIMEOUT).unwrap();
    }
}

#[track_caller]
fn output(command: &mut Command) -> String {
    match text(command) {
        Ok(text) => text,
        Err(failure) => panic!("{failure}"),
    }
}

/// Runs Python code with a handle `h` that is connected.
#[track_caller]
fn shell(uri: &str, code: &str) {
    // If several Pythons are installed, the distribution's one has the module.
    let nbdsh = &mut tool("nbdsh");
    output(
        nbdsh
            .args(["-u", uri, "-c", code])
            .env("PATH", "/usr/bin:/bin"),
    );
}

#[test]
fn nbdinfo_shows_size_contexts_and_map() {
    require!(requires::tool("nbdinfo"), requires::tool("nbdsh"));
    let served = Served::in_memory();
    let uri = served.uri();
    let shown = output(tool("nbdinfo").arg(&uri));
    for expected in [
        "export-size: 67108864",
        "base:allocation",
        "extant:state",
        "extant:assign",
        "can_multi_conn: true",
        "can_fast_zero: true",
        "block_size_maximum: 33554432",
    ] {
        assert!(shown.contains(expected), "{expected} in\n{shown}");
    }
    let listed = output(tool("nbdinfo").args(["--list", &uri]));
    assert!(listed.contains("export=\"disk\""), "{listed}");
    shell(&uri, "h.pwrite(b'1' * 1048576, 1048576)");
    let map = output(tool("nbdinfo").args(["--map", &uri]));
    let lines: Vec<Vec<&str>> = map
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(lines[0], ["0", "1048576", "3", "hole,zero"]);
    assert_eq!(lines[1], ["1048576", "1048576", "0", "data"]);
    assert_eq!(lines[2], ["2097152", "65011712", "3", "hole,zero"]);
    let map = output(tool("nbdinfo").args(["--map=extant:state", &uri]));
    let second = map.lines().nth(1).unwrap();
    assert!(
        second.split_whitespace().eq(["1048576", "1048576", "0"]),
        "{map}"
    );
    served.end();
}

#[test]
fn nbdcopy_brings_a_file_there_and_back() {
    require!(requires::tool("nbdcopy"), requires::tool("cmp"));
    for served in [Served::in_memory(), Served::on_a_file()] {
        let file = served.directory.path().join("file");
        let data: Vec<u8> = (0..9 * MIB as u32)
            .map(|at| match at / 100_000 % 3 {
                0 => 0,
                _ => (at % 251) as u8,
            })
            .collect();
        std::fs::write(&file, &data).unwrap();
        let back = served.directory.path().join("back");
        let uri = served.uri();
        output(tool("nbdcopy").arg("--flush").arg(&file).arg(&uri));
        output(tool("nbdcopy").arg(&uri).arg(&back));
        let back = std::fs::read(&back).unwrap();
        assert!(back.starts_with(&data));
        assert!(back[data.len()..].iter().all(|&byte| byte == 0));
        served.end();
    }
}

#[test]
fn nbdsh_finds_every_command_as_the_protocol_has_it() {
    require!(requires::tool("nbdsh"));
    let served = Served::on_a_file();
    shell(
        &served.uri(),
        r#"
import errno
assert h.can_fua() and h.can_flush() and h.can_trim() and h.can_zero() and h.can_df() and h.can_cache()
h.pwrite(b'\x05' * 65536, 0, nbd.CMD_FLAG_FUA)
assert h.pread(65536, 0) == b'\x05' * 65536
assert h.pread_structured(4096, 0, lambda *a: 0, nbd.CMD_FLAG_DF) == b'\x05' * 4096
h.zero(8192, 4096, nbd.CMD_FLAG_NO_HOLE)
assert h.pread(16384, 0) == b'\x05' * 4096 + bytes(8192) + b'\x05' * 4096
h.trim(4096, 16384, nbd.CMD_FLAG_FUA)
h.cache(65536, 0)
h.flush()
h.set_strict_mode(0)
def fails(number, call, *arguments):
    try:
        call(*arguments)
    except nbd.Error as error:
        assert error.errnum == number, (error.errnum, number)
    else:
        raise AssertionError("no error")
size = h.get_size()
fails(errno.EINVAL, h.pread, 512, size)
fails(errno.ENOSPC, h.pwrite, bytes(512), size)
fails(errno.EINVAL, h.trim, 512, size)
cookies = [h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray([i]) * 4096), i * 4096) for i in range(200)]
cookies += [h.aio_flush() for i in range(3)]
for cookie in cookies:
    while not h.aio_command_completed(cookie):
        h.poll(-1)
assert h.pread(200 * 4096, 0) == b''.join(bytes([i]) * 4096 for i in range(200))
h.shutdown()
"#,
    );
    served.end();
    let bytes = std::fs::read(served.file()).unwrap();
    assert!((0..200).all(|page| bytes[page * 4096..][..4096] == [page as u8; 4096]));
}

#[test]
fn qemu_tools_convert_compare_and_map() {
    require!(requires::tool("qemu-img"), requires::tool("qemu-io"));
    let served = Served::on_a_file();
    let uri = served.uri();
    let io = |command: &str| output(tool("qemu-io").args(["-f", "raw", "-c", command, &uri]));
    for command in [
        "write -P 7 0 2M",
        "write -z 64k 64k",
        "write -zu 256k 64k",
        "write -f -P 9 4M 64k",
        "read -P 7 0 64k",
        "read -P 0 64k 64k",
        "read -P 9 4M 64k",
        "discard 1M 64k",
        "flush",
    ] {
        let shown = io(command);
        assert!(!shown.contains("failed"), "{command}: {shown}");
    }
    let copy = served.directory.path().join("copy.qcow2");
    let format = ["convert", "-f", "raw", "-O", "qcow2"];
    output(tool("qemu-img").args(format).arg(&uri).arg(&copy));
    output(
        tool("qemu-img")
            .args(["compare", "-f", "qcow2", "-F", "raw"])
            .arg(&copy)
            .arg(&uri),
    );
    // The same with the data that qemu reads from the file itself.
    output(
        tool("qemu-img")
            .args(["compare", "-f", "qcow2", "-F", "raw", "-U"])
            .arg(&copy)
            .arg(served.file()),
    );
    let back = ["convert", "-n", "-f", "qcow2", "-O", "raw"];
    output(tool("qemu-img").args(back).arg(&copy).arg(&uri));
    let map = output(tool("qemu-img").args(["map", "--output=json", "-f", "raw", &uri]));
    assert!(
        map.contains("\"data\": true") && map.contains("\"zero\": true"),
        "{map}"
    );
    served.end();
}

#[test]
fn fio_verifies_its_writes_at_depth() {
    require!(requires::tool("fio"));
    let help = run_any_status(tool("fio").arg("--enghelp=nbd")).unwrap();
    require!(requires::Requirement::new(
        "fio with its nbd engine",
        help.status.success()
    ));
    let served = Served::on_a_file();
    let uri = format!("--uri={}", served.uri());
    for job in [
        &["--bs=4k", "--iodepth=64", "--rw=randwrite", "--fsync=50"][..],
        &["--bs=1m", "--iodepth=16", "--rw=write"],
        &["--bs=4k", "--iodepth=1", "--rw=randrw", "--io_size=1m"],
    ] {
        let command = &mut tool("fio");
        command.args([
            "--name=job",
            "--ioengine=nbd",
            "--size=16m",
            "--verify=crc32c",
            // Else it leaves a file behind.
            "--verify_state_save=0",
        ]);
        output(command.arg(&uri).args(job));
    }
    served.end();
}
