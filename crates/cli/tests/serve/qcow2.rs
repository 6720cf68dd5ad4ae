//! qcow2 images as exports.

use extant_testkit::command::{run_any_status, tool};
use extant_testkit::oracle;
use extant_testkit::scratch::LoopDevice;
use extant_testkit::{require, requires};
use rustix::process::Signal;

use crate::stand::{Stand, qemu_io, said, size};
use crate::support::{MIB, extant};

/// `qemu-img check` and the data that `qemu-io` reads from the file itself.
#[track_caller]
fn assert_holds(stand: &Stand, name: &str, reads: &[&str]) {
    let path = stand.path(name);
    oracle::qemu::assert_checks(&path);
    oracle::qemu::qemu_io(&path, "qcow2", reads);
}

#[test]
fn image_of_every_mode_is_served_as_its_disk_and_stays_whole() {
    require!(requires::tool("qemu-img"), requires::tool("qemu-io"));
    let stand = Stand::new();
    let modes = ["off", "metadata", "falloc", "full"];
    let names = modes.map(|mode| format!("{mode}.qcow2"));
    for (mode, name) in modes.iter().zip(&names) {
        let mut create = extant();
        create.args(["create", name, "16MiB", "--preallocation", mode]);
        said(create.current_dir(stand.work.path()));
    }
    let serving = stand.serve(&names.each_ref().map(String::as_str));
    for name in &names {
        let uri = serving.uri(name);
        assert_eq!(size(&uri), 16 * MIB);
        qemu_io(&uri, &["write -P 7 1M 3M", "write -z 2M 512k", "flush"]);
    }
    serving.end();
    for name in &names {
        let reads = [
            "read -P 0 0 1M",
            "read -P 7 1M 1M",
            "read -P 0 2M 512k",
            "read -P 7 3M 1M",
        ];
        assert_holds(&stand, name, &reads);
    }
}

#[test]
fn streams_of_eight_clients_are_contiguous_in_a_thin_image() {
    require!(requires::tool("qemu-img"), requires::tool("qemu-io"));
    const STREAM: u64 = 8 * MIB;
    const CLUSTER: u64 = 64 << 10;
    let stand = Stand::new();
    let mut create = extant();
    create.args(["create", "a.qcow2", "256MiB", "--preallocation", "off"]);
    said(create.current_dir(stand.work.path()));
    let serving = stand.serve(&["a.qcow2"]);
    let uri = serving.uri("a.qcow2");
    std::thread::scope(|scope| {
        for client in 0..8 {
            let uri = &uri;
            scope.spawn(move || {
                let offsets = (0..STREAM / CLUSTER).map(|at| client * 4 * STREAM + at * CLUSTER);
                let write = |offset| format!("aio_write -q -P {} {offset} {CLUSTER}", client + 1);
                let mut commands: Vec<_> = offsets.map(write).collect();
                commands.push("aio_flush".into());
                qemu_io(uri, &Vec::from_iter(commands.iter().map(String::as_str)));
            });
        }
    });
    serving.end();
    let reads: Vec<_> = (0..8)
        .map(|client| format!("read -P {} {} {STREAM}", client + 1, client * 4 * STREAM))
        .collect();
    assert_holds(
        &stand,
        "a.qcow2",
        &Vec::from_iter(reads.iter().map(String::as_str)),
    );
    let path = stand.path("a.qcow2");
    let map = oracle::qemu::qemu_json(&[&"map", &"-f", &"qcow2", &"--output=json", &path]);
    let runs = map.as_array().unwrap().iter();
    let pieces = runs.filter(|run| run["offset"].is_u64()).count() as u64;
    // In turn, they would be as many as the clusters.
    assert!(pieces <= 8 * STREAM / CLUSTER / 6, "{pieces} pieces");
}

#[test]
fn served_image_is_locked_for_qemu_as_well() {
    require!(requires::tool("qemu-img"), requires::tool("qemu-io"));
    let stand = Stand::new();
    said(
        tool("qemu-img")
            .args(["create", "-q", "-f", "qcow2", "a.qcow2", "4M"])
            .current_dir(stand.work.path()),
    );
    stand.sparse("b.raw", 1);
    for (format, name) in [("qcow2", "a.qcow2"), ("raw", "b.raw")] {
        let serving = stand.serve(&[name]);
        let mut write = tool("qemu-io");
        write.args(["-f", format, "-c", "write 0 64k", name]);
        let refused = write.current_dir(stand.work.path()).output().unwrap();
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(text.contains("lock"), "{text}");
        serving.end();
        said(&mut write);
    }
}

#[test]
fn backing_file_is_opened_only_when_that_is_said() {
    require!(requires::tool("qemu-img"), requires::tool("nbdinfo"));
    let stand = Stand::new();
    stand.data("base", 3, 1);
    said(
        tool("qemu-img")
            .args([
                "create",
                "-q",
                "-f",
                "qcow2",
                "-F",
                "raw",
                "-b",
                "base",
                "top.qcow2",
            ])
            .current_dir(stand.work.path()),
    );
    let answer =
        crate::support::Running::start(&mut stand.command(&["top.qcow2", "-s", "s"])).wait();
    assert_eq!(answer.code, Some(5), "{answer}");
    assert!(answer.stderr.contains("backing file (base)"), "{answer}");
    let serving = stand.serve(&["top.qcow2", "--chain", "-r"]);
    let out = stand.path("out");
    said(tool("nbdcopy").arg(serving.uri("top.qcow2")).arg(&out));
    serving.end();
    crate::stand::assert_same(&out, &stand.path("base"));
}

#[test]
fn image_inside_an_ext4_image_is_served() {
    require!(requires::tool("mke2fs"), requires::tool("qemu-io"));
    let stand = Stand::new();
    stand.sparse("disk.img", 64);
    said(
        tool("mke2fs")
            .args(["-q", "-t", "ext4"])
            .arg(stand.path("disk.img")),
    );
    let mut create = extant();
    create.args([
        "create",
        "--in",
        "disk.img",
        "/vm.qcow2",
        "8MiB",
        "--preallocation",
        "off",
    ]);
    said(create.current_dir(stand.work.path()));
    let serving = stand.serve(&["--in", "disk.img", "/vm.qcow2"]);
    qemu_io(&serving.uri("vm.qcow2"), &["write -P 9 64k 3M"]);
    serving.end();
    let mut get = extant();
    get.args(["fs", "get", "disk.img", "/vm.qcow2", "vm.qcow2"]);
    said(get.current_dir(stand.work.path()));
    assert_holds(&stand, "vm.qcow2", &["read -P 9 64k 3M", "read -P 0 4M 4M"]);
}

#[test]
fn image_on_a_disk_is_served() {
    require!(
        requires::tool("qemu-img"),
        requires::tool("qemu-io"),
        requires::root()
    );
    let stand = Stand::new();
    let file = stand.data("disk", 3, 32);
    let disk = LoopDevice::attach(&file);
    let mut create = extant();
    create.args(["create", "--force", "--format", "qcow2"]);
    create.args(["--preallocation", "metadata"]);
    said(create.arg(disk.path()).arg("16MiB"));
    let export = format!("disk={}", disk.path().display());
    let serving = stand.serve(&["--format", "qcow2", &export]);
    let uri = serving.uri("disk");
    assert_eq!(size(&uri), 16 * MIB);
    qemu_io(&uri, &["read -P 0 0 16M", "write -P 7 1M 3M", "flush"]);
    serving.end();
    oracle::qemu::assert_checks(disk.path());
    let reads = ["read -P 0 0 1M", "read -P 7 1M 3M", "read -P 0 4M 12M"];
    oracle::qemu::qemu_io(disk.path(), "qcow2", &reads);
}

/// Crashes leave files longer than their refcount table counts, and a disk is longer from the
/// beginning.
#[test]
fn image_of_small_clusters_is_served_on_after_kills() {
    require!(
        requires::tool("qemu-img"),
        requires::tool("qemu-io"),
        requires::root()
    );
    for (options, on_disk) in [
        ("cluster_size=512", false),
        ("cluster_size=1k,refcount_bits=64", false),
        ("cluster_size=512,refcount_bits=64", true),
        ("cluster_size=4k,refcount_bits=1", true),
    ] {
        let stand = Stand::new();
        let file = stand.data("image", 3, if on_disk { 32 } else { 0 });
        let disk = on_disk.then(|| LoopDevice::attach(&file));
        let path = disk.as_ref().map_or(&*file, |disk| disk.path());
        let mut create = tool("qemu-img");
        create.args(["create", "-q", "-f", "qcow2", "-o", options]);
        said(create.arg(path).arg("24M"));
        let export = format!("disk={}", path.display());
        let words = ["--format", "qcow2", &export];
        let mut reads = Vec::new();
        for life in 0..3 {
            let serving = stand.serve(&words);
            let at = 7 * life;
            let write = format!("write -P {} {at}M 7M", life + 1);
            qemu_io(
                &serving.uri("disk"),
                &[&write, "flush", "write -P 9 22M 1M"],
            );
            let (answer, _) = serving.running.stop(Signal::KILL);
            assert_eq!(answer.code, None, "{answer}");
            std::fs::remove_file(stand.path("s.pid")).unwrap();
            reads.push(format!("read -P {} {at}M 7M", life + 1));
            // Leaks at worst.
            let mut check = tool("qemu-img");
            check.args(["check", "-f", "qcow2"]).arg(path);
            let output = run_any_status(&mut check).unwrap();
            assert!(
                matches!(output.status.code(), Some(0 | 3)),
                "{options}: {output:?}"
            );
        }
        // At once: the killed one may not have ended yet.
        let serving = stand.serve(&words);
        let reads: Vec<_> = reads.iter().map(String::as_str).collect();
        qemu_io(&serving.uri("disk"), &reads);
        serving.end();
        oracle::qemu::qemu_io(path, "qcow2", &reads);
        let mut repair = tool("qemu-img");
        said(
            repair
                .args(["check", "-q", "-r", "leaks", "-f", "qcow2"])
                .arg(path),
        );
        oracle::qemu::assert_checks(path);
    }
}
