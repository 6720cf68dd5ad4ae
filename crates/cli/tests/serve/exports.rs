//! Commands on an NBD export in place of an image or disk: of our own server, qemu-nbd and nbdkit.

use std::path::Path;
use std::process::{Child, Stdio};

use extant_space::ExtentState;
use extant_testkit::busy::try_while_busy;
use extant_testkit::command::tool;
use extant_testkit::fuse_watchdog::FuseWatchdog;
use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::{listener, oracle, require, requires};

use crate::stand::{Serving, Stand, said};
use crate::support::{Answer, MIB, extant, noise, run};

/// A third-party server of one export, ended with the value.
struct Foreign {
    server: Child,
    uri: String,
}

impl Foreign {
    fn start(stand: &Stand, program: &str, export: &str, words: &[&str]) -> Self {
        let socket = stand.path(&format!("{program}.sock"));
        let mut command = tool(program);
        command
            .args(words)
            .stdin(Stdio::null())
            .current_dir(stand.work.path());
        let server = command.spawn().unwrap();
        listener::wait_for(&socket);
        Self {
            server,
            uri: format!("nbd+unix:///{export}?socket={}", socket.display()),
        }
    }

    fn qemu_nbd(stand: &Stand, words: &[&str]) -> Self {
        let socket = stand.path("qemu-nbd.sock");
        let own = ["-k", socket.to_str().unwrap(), "-x", "disk", "-t"];
        Self::start(stand, "qemu-nbd", "disk", &[&own[..], words].concat())
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn ext4(stand: &Stand, name: &str, mebibytes: u64) {
    let path = stand.sparse(name, mebibytes);
    said(tool("mke2fs").args(["-q", "-t", "ext4"]).arg(path));
}

/// `extant` with `words`, in the stand's directory.
fn extant_in(stand: &Stand, words: &[&str]) -> Answer {
    run(extant().args(words).current_dir(stand.work.path()))
}

#[test]
fn files_of_a_served_image_are_changed_and_written_below() {
    require!(
        requires::tool("mke2fs"),
        requires::tool("e2fsck"),
        requires::tool("filefrag")
    );
    let stand = Stand::new();
    ext4(&stand, "disk.img", 128);
    let data = stand.data("data", 7, 3);
    let serving = stand.serve(&["disk.img"]);
    // By a relative path of the socket, as a user types it.
    let uri = "nbd+unix:///disk.img?socket=s";
    extant_in(&stand, &["fs", "put", uri, "data", "/data"]).success();
    extant_in(&stand, &["create", "--in", uri, "/db", "16MiB"]).success();
    let listed = extant_in(&stand, &["fs", "ls", uri, "/"]).success();
    for name in ["data", "db"] {
        assert!(listed.stdout.contains(name), "{listed}");
    }
    let map = extant_in(&stand, &["map", "--json", "--in", uri, "/db"]).success();
    assert_eq!(map.number("/files/0/summary/extant_bytes"), 16 * MIB);
    extant_in(&stand, &["fs", "check", uri]).success();
    let stored = extant_in(&stand, &["fs", "stats", "--json", uri]).success();
    // Of 8 MiB, as mke2fs makes them for small disks.
    assert_eq!(stored.number("/groups"), 16, "{stored}");
    extant_in(&stand, &["image", "map", uri]).success();
    // The layers below are those of the server's host.
    let through = extant_in(&stand, &["image", "map", "--through", uri]);
    through.refused(5, &["not a file of this host"]);
    serving.end();

    let disk = stand.path("disk.img");
    oracle::assert_e2fsck_clean(&disk);
    // Written in the host file as well, by its own map.
    let below = oracle::filefrag(&disk);
    assert!(below.bytes(ExtentState::Written) >= 16 * MIB, "{below:?}");
    let out = extant_in(&stand, &["fs", "cat", "disk.img", "/data"]).success();
    assert_eq!(
        out.stdout.len(),
        String::from_utf8_lossy(&std::fs::read(data).unwrap()).len()
    );
}

#[test]
fn disk_of_a_qcow2_image_behind_qemu_nbd_is_mounted_and_keeps_its_files() {
    require!(
        requires::root(),
        requires::device("/dev/fuse"),
        requires::tool("qemu-nbd"),
        oracle::qemu::qemu_img(),
        requires::tool("mke2fs")
    );
    let stand = Stand::new();
    ext4(&stand, "disk.raw", 64);
    let (raw, image) = (stand.path("disk.raw"), stand.path("disk.qcow2"));
    oracle::qemu::qemu(&[&"convert", &"-O", &"qcow2", &raw, &image]);
    let server = Foreign::qemu_nbd(&stand, &["-f", "qcow2", "disk.qcow2"]);
    let place = stand.work.directory("mount");
    extant_in(&stand, &["mount", &server.uri, "mount"]).success();
    let watchdog = FuseWatchdog::watch(&place);
    let bytes = noise(11, 5 * MIB as usize);
    std::fs::write(place.join("data"), &bytes).unwrap();
    // The mount holds the export.
    let refused = extant_in(&stand, &["fs", "rm", &server.uri, "/data"]);
    refused.refused(4, &["extant (pid ", " writes to the export"]);
    let is_busy = |answer: &Answer| answer.stderr.contains("in use");
    try_while_busy(is_busy, || extant_in(&stand, &["umount", &server.uri])).success();
    watchdog.progress();
    extant_in(&stand, &["fs", "check", &server.uri]).success();
    let again = extant_in(&stand, &["fs", "get", &server.uri, "/data", "out"]);
    again.success();
    assert!(std::fs::read(stand.path("out")).unwrap() == bytes);
    drop(server);
    oracle::qemu::assert_checks(&image);
}

/// A thin qcow2 image with an ext4 file system, served by a process of ours, and mounted over NBD
/// by another one.
struct Mounted<'a> {
    stand: &'a Stand,
    serving: Serving,
    uri: String,
    _watchdog: FuseWatchdog,
}

impl<'a> Mounted<'a> {
    fn new(stand: &'a Stand, image: &Path, options: &str) -> Self {
        // No backup superblocks, which would divide the free space.
        let raw = stand.sparse("disk.raw", 256);
        let mut mke2fs = tool("mke2fs");
        mke2fs.args(["-q", "-t", "ext4", "-O", "sparse_super2"]);
        said(mke2fs.args(["-E", "num_backup_sb=0"]).arg(&raw));
        oracle::qemu::qemu(&[&"convert", &"-O", &"qcow2", &raw, &image]);
        let served = format!("disk={}", image.display());
        let serving = stand.serve(&["--format", "qcow2", &served]);
        let uri = serving.uri("disk");
        let place = stand.work.directory("mount");
        extant_in(stand, &["mount", "-o", options, &uri, "mount"]).success();
        Self {
            stand,
            serving,
            uri,
            _watchdog: FuseWatchdog::watch(&place),
        }
    }

    fn fallocate(&self, length: &str) -> Answer {
        extant_in(self.stand, &["fallocate", "-l", length, "mount/file"])
    }

    /// Unmounts, checks the file system over NBD, and ends the server.
    fn end(self) {
        let is_busy = |answer: &Answer| answer.stderr.contains("in use");
        try_while_busy(is_busy, || extant_in(self.stand, &["umount", "mount"])).success();
        extant_in(self.stand, &["fs", "check", &self.uri]).success();
        self.serving.end();
    }
}

#[test]
fn fallocate_in_a_mount_is_one_allocation_in_the_host_file_of_another_process() {
    require!(
        requires::root(),
        requires::device("/dev/fuse"),
        oracle::qemu::qemu_img(),
        requires::tool("mke2fs"),
        requires::tool("filefrag"),
        Filesystem::Ext4.requirement()
    );
    let allocated = |options: &str| {
        // A new file system: the free space of the disk of the tests may be in small pieces.
        let host = Scratch::new(Filesystem::Ext4, 1024 * MIB);
        let image = host.path().join("disk.qcow2");
        let stand = Stand::new();
        let mounted = Mounted::new(&stand, &image, options);
        mounted.fallocate("96MiB").success();
        mounted.end();
        oracle::qemu::assert_checks(&image);
        let map = oracle::filefrag(&image);
        (map.bytes(ExtentState::Unwritten), map.extents)
    };
    let (bytes, extents) = allocated("assign=require");
    assert!(bytes >= 96 * MIB, "{bytes} in {extents:?}");
    // Large extents have nearly all of it: the allocation arrived as few requests. How large they
    // are is up to the block groups in which ext4 finds them.
    let lengths = extents.iter().map(|extent| extent.logical.len());
    let in_large: u64 = lengths.filter(|length| *length >= 4 * MIB).sum();
    assert!(in_large >= 90 * MIB, "{in_large} in {extents:?}");
    let (bytes, _) = allocated("assign=off");
    assert!(bytes < 8 * MIB, "{bytes} without assign");
}

#[test]
fn full_host_is_reported_through_every_process_to_fallocate_with_assign_required() {
    require!(
        requires::root(),
        requires::device("/dev/fuse"),
        oracle::qemu::qemu_img(),
        requires::tool("mke2fs"),
        Filesystem::Ext4.requirement()
    );
    let host = Scratch::new(Filesystem::Ext4, 64 * MIB);
    let image = host.path().join("disk.qcow2");
    let stand = Stand::new();
    let mounted = Mounted::new(&stand, &image, "assign=require");
    let refused = mounted.fallocate("100MiB");
    assert_eq!(refused.code, Some(1), "{refused}");
    assert!(
        refused.stderr.contains("No space left on device"),
        "{refused}"
    );
    mounted.fallocate("1MiB").success();
    mounted.end();
    oracle::qemu::assert_checks(&image);
}

#[test]
fn pool_in_an_export_makes_lists_and_deletes_volumes() {
    require!(
        requires::tool("nbdkit"),
        requires::tool("mke2fs"),
        requires::tool("e2fsck")
    );
    let stand = Stand::new();
    ext4(&stand, "disk.img", 128);
    let socket = stand.path("nbdkit.sock");
    let words = ["-f", "-U", socket.to_str().unwrap(), "file", "disk.img"];
    let server = Foreign::start(&stand, "nbdkit", "", &words);
    let pool = |words: &[&str]| extant_in(&stand, words);
    let define = [
        "pool",
        "define",
        "far",
        "--config-dir",
        "pools",
        "--kind",
        "ext4",
    ];
    let target = ["--target", &server.uri, "--state", "state"];
    pool(&[&define[..], &target].concat()).success();
    let vol = |words: &[&str]| pool(&[&["vol"][..], words, &["--config-dir", "pools"]].concat());
    vol(&["create", "far", "a.raw", "8MiB"]).success();
    vol(&[
        "create",
        "far",
        "b.qcow2",
        "8MiB",
        "--preallocation",
        "metadata",
    ])
    .success();
    let listed = vol(&["list", "far"]).success();
    assert!(
        listed.stdout.contains("a.raw") && listed.stdout.contains("b.qcow2"),
        "{listed}"
    );
    vol(&["delete", "far", "a.raw"]).success();
    let listed = vol(&["list", "far"]).success();
    assert!(!listed.stdout.contains("a.raw"), "{listed}");
    drop(server);
    oracle::assert_e2fsck_clean(&stand.path("disk.img"));
}

#[test]
fn image_is_made_checked_resized_and_served_on_an_export() {
    require!(
        requires::tool("qemu-nbd"),
        requires::tool("nbdcopy"),
        oracle::qemu::qemu_img()
    );
    let stand = Stand::new();
    let file = stand.sparse("disk", 64);
    let server = Foreign::qemu_nbd(&stand, &["-f", "raw", "disk"]);
    let create = ["create", "--format", "qcow2", "--preallocation", "metadata"];
    let words = [&create[..], &[&server.uri, "32MiB"]].concat();
    extant_in(&stand, &words).refused(4, &["--force"]);
    extant_in(&stand, &[&words[..], &["--force"]].concat()).success();
    let info = ["image", "info", "--json", "--format", "qcow2", &server.uri];
    assert_eq!(
        extant_in(&stand, &info).success().number("/virtual-size"),
        32 * MIB
    );
    extant_in(
        &stand,
        &["image", "resize", "--format", "qcow2", &server.uri, "48MiB"],
    )
    .success();
    extant_in(
        &stand,
        &["image", "check", "--format", "qcow2", &server.uri],
    )
    .success();
    // A chain of servers: qemu-nbd has the file, ours the image in it.
    let serving = stand.serve(&["--format", "qcow2", &format!("x={}", server.uri)]);
    let data = stand.data("data", 3, 48);
    said(tool("nbdcopy").arg(&data).arg(serving.uri("x")));
    serving.end();
    drop(server);
    oracle::qemu::assert_checks(&file);
    oracle::qemu::assert_reads_same((&file, "qcow2"), (&data, "raw"));
}

#[test]
fn exports_that_cannot_serve_a_command_are_refused_by_name() {
    require!(requires::tool("mke2fs"));
    let stand = Stand::new();
    ext4(&stand, "disk.img", 16);
    let serving = stand.serve(&["--read-only", "disk.img"]);
    let uri = serving.uri("disk.img");
    extant_in(&stand, &["fs", "ls", &uri, "/"]).success();
    extant_in(&stand, &["fs", "mkdir", &uri, "/a"]).refused(4, &[&uri, "read-only"]);
    let other = serving.uri("other");
    extant_in(&stand, &["fs", "ls", &other, "/"]).refused(4, &[&other]);
    for words in [
        &["create", &uri, "1MiB"][..],
        &["materialize", "--format", "raw", &uri],
        &["assign", &uri],
        &["probe", &uri],
    ] {
        extant_in(&stand, words).refused(5, &["not a file of this host"]);
    }
    serving.end();
    let refused = extant_in(&stand, &["fs", "ls", &uri, "/"]);
    assert!(refused.stderr.contains(&uri), "{refused}");
    assert!(!Path::new(&stand.path("nbd+unix:")).exists());
}
