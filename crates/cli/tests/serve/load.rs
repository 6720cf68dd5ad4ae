//! Clients and servers that end in the middle of their work.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use extant_testkit::command::tool;
use extant_testkit::{require, requires};
use rustix::process::Signal;

use crate::image::Image;
use crate::stand::{Serving, Stand, nbdsh, qemu_io, said};
use crate::support::wait_until;

/// Writes block after block, 32 at a time, each full of its number. Says `begun` when a hundred
/// were acknowledged, and at the end which ones were.
const WRITER: &str = r#"
done = []
def note(at, error):
    if error.value == 0:
        done.append(at)
    return 1
at = 0
has_begun = False
try:
    while at < 16384:
        while h.aio_in_flight() < 32 and at < 16384:
            data = nbd.Buffer.from_bytearray(bytearray([at % 251 + 1]) * 4096)
            h.aio_pwrite(data, at * 4096, completion=lambda error, at=at: note(at, error))
            at += 1
        h.poll(-1)
        if len(done) >= 100 and not has_begun:
            has_begun = True
            print("begun", flush=True)
except nbd.Error:
    pass
print(*done)
"#;

/// A client that has received a hundred acknowledgements, and continues to write.
struct Writer(std::process::Child);

impl Writer {
    #[track_caller]
    fn begun(serving: &Serving) -> Self {
        let mut command: Command = nbdsh(&serving.uri("a.raw"), WRITER);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut word = [0; 6];
        let said = child.stdout.as_mut().unwrap().read_exact(&mut word);
        assert!(said.is_ok() && word == *b"begun\n", "{word:?}");
        Self(child)
    }

    /// The blocks that were acknowledged as written.
    fn acknowledged(mut self) -> Vec<usize> {
        let mut said = String::new();
        self.0
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        assert!(self.0.wait().unwrap().success(), "{said}");
        let numbers = said.split_whitespace();
        numbers.map(|number| number.parse().unwrap()).collect()
    }
}

/// A sparse `/a.raw` inside an ext4 image; sizes are in MiB.
fn inside(image_mib: u64, file_mib: u64) -> (Stand, Image) {
    let stand = Stand::new();
    let image = Image::new(image_mib);
    stand.sparse("a.raw", file_mib);
    let file = stand.path("a.raw");
    image
        .fs(&["put", "IMAGE", file.to_str().unwrap(), "/"])
        .success();
    (stand, image)
}

#[track_caller]
fn assert_written(bytes: &[u8], blocks: &[usize]) {
    assert!(blocks.len() >= 100, "{blocks:?}");
    for at in blocks {
        let block = &bytes[at * 4096..][..4096];
        assert!(
            block.iter().all(|&byte| byte as usize == at % 251 + 1),
            "block {at}"
        );
    }
}

#[test]
fn server_stopped_under_load_keeps_every_acknowledged_write() {
    require!(requires::tool("nbdsh"));
    for cache in ["writeback", "none"] {
        let stand = Stand::new();
        let file = stand.sparse("a.raw", 64);
        let serving = stand.serve(&["a.raw", "--cache", cache]);
        let writer = Writer::begun(&serving);
        serving.end();
        assert_written(&fs::read(file).unwrap(), &writer.acknowledged());
    }
}

/// Writes 4 KiB blocks at random, 16 at a time, reads all of them back and compares; then once more
/// one at a time.
fn verify_by_fio(serving: &Serving, directory: &Path) {
    let uri = format!("--uri={}", serving.uri(""));
    for depth in ["--iodepth=16", "--iodepth=1"] {
        said(tool("fio").current_dir(directory).args([
            "--name=verify",
            "--ioengine=nbd",
            &uri,
            "--rw=randwrite",
            "--bs=4k",
            "--size=4m",
            "--verify=crc32c",
            "--verify_fatal=1",
            depth,
        ]));
    }
}

#[test]
fn data_written_by_every_engine_is_read_back_and_the_engine_is_named() {
    require!(requires::tool("fio"), requires::tool("qemu-img"));
    let stand = Stand::new();
    let create = ["create", "-q", "-f", "qcow2", "a.qcow2", "8M"];
    said(tool("qemu-img").current_dir(stand.work.path()).args(create));
    stand.sparse("a.raw", 8);
    for file in ["a.raw", "a.qcow2"] {
        for (cache, aio) in [
            ("none", "auto"),
            ("none", "native"),
            ("none", "io_uring"),
            ("none", "threads"),
            ("writeback", "io_uring"),
            ("writeback", "threads"),
        ] {
            let serving = stand.serve(&[file, "--cache", cache, "--aio", aio, "--verbose"]);
            verify_by_fio(&serving, stand.work.path());
            let answer = serving.end();
            let named = format!("{file}: --aio {aio}");
            assert!(answer.stderr.contains(&named), "{answer}");
        }
    }
    let check = ["check", "-q", "a.qcow2"];
    said(tool("qemu-img").current_dir(stand.work.path()).args(check));
}

#[test]
fn server_on_a_file_inside_an_image_ends_under_load_and_leaves_the_image_clean() {
    require!(requires::tool("nbdsh"), requires::tool("mke2fs"));
    let (stand, image) = inside(128, 64);
    let path = image.path.to_str().unwrap();
    let serving = stand.serve(&["--in", path, "/a.raw"]);
    let writer = Writer::begun(&serving);
    serving.end();
    image.assert_clean();
    let out = stand.path("out");
    image
        .fs(&["get", "IMAGE", "/a.raw", out.to_str().unwrap()])
        .success();
    assert_written(&fs::read(out).unwrap(), &writer.acknowledged());
}

#[test]
fn flushed_data_survives_a_kill_of_a_server_on_a_file_inside_an_image() {
    require!(requires::tool("qemu-io"), requires::tool("mke2fs"));
    let (stand, image) = inside(64, 16);
    let path = image.path.to_str().unwrap();
    let mut serving = stand.serve(&["--in", path, "/a.raw"]);
    qemu_io(
        &serving.uri("a.raw"),
        &["write -P 9 3M 1M", "flush", "write -f -P 8 9M 64k"],
    );
    serving.running.send(Signal::KILL);
    serving.running.wait();
    // The socket and the lock of a dead process do not disturb.
    fs::remove_file(stand.path("s.pid")).unwrap();
    let serving = stand.serve(&["--in", path, "/a.raw"]);
    let reads = ["read -P 9 3M 1M", "read -P 8 9M 64k", "read -P 0 4M 1M"];
    qemu_io(&serving.uri("a.raw"), &reads);
    serving.end();
    image.assert_clean();
}

#[test]
fn client_that_is_killed_under_load_leaves_a_server_that_serves_others() {
    require!(requires::tool("nbdsh"), requires::tool("qemu-io"));
    let stand = Stand::new();
    stand.sparse("a.raw", 64);
    let serving = stand.serve(&["a.raw", "-v"]);
    let mut writer = Writer::begun(&serving);
    writer.0.kill().unwrap();
    writer.0.wait().unwrap();
    qemu_io(
        &serving.uri("a.raw"),
        &["read -P 1 0 4k", "write -P 7 60M 1M", "read -P 7 60M 1M"],
    );
    let tasks = format!("/proc/{}/task", serving.running.pid());
    // Signals and the listener; the threads of the connections have ended.
    wait_until("the end of its threads", || {
        let names = fs::read_dir(&tasks)
            .unwrap()
            .flatten()
            .map(|task| fs::read_to_string(task.path().join("comm")).unwrap_or_default());
        !names
            .into_iter()
            .any(|name| name.starts_with("nbd connection") || name.starts_with("nbd worker"))
    });
    let answer = serving.end();
    assert!(
        answer.stderr.contains("was lost") || answer.stderr.contains("has left"),
        "{answer}"
    );
}

#[test]
fn full_disk_is_reported_to_client_and_log_and_the_server_continues() {
    require!(requires::tool("nbdsh"), requires::tool("mke2fs"));
    let (stand, image) = inside(16, 64);
    let path = image.path.to_str().unwrap();
    let serving = stand.serve(&["--in", path, "/a.raw"]);
    let code = r#"
import errno
at = 0
try:
    while True:
        h.pwrite(b'1' * 1048576, at)
        at += 1048576
except nbd.Error as error:
    assert error.errnum == errno.ENOSPC, error.errnum
assert at >= 4 << 20, at
assert h.pread(1048576, at - 1048576) == b'1' * 1048576
h.pwrite(b'2' * 4096, 0)
h.flush()
"#;
    crate::stand::said(&mut nbdsh(&serving.uri("a.raw"), code));
    let answer = serving.end();
    assert!(
        answer.stderr.contains("export \"a.raw\": ") && answer.stderr.contains("no free block"),
        "{answer}"
    );
    image.assert_clean();
}
