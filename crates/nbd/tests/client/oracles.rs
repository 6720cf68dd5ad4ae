//! Servers of other implementations.

use std::fs::{self, File, Permissions};
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use extant_blockdev::{
    Assigned, Device, Features, Persistence, RangeStatus, Request, Speed, Zeroing,
};
use extant_nbd::{NbdAccess, NbdDevice, NbdOptions, NbdUri};
use extant_space::{ByteRange, ErrorKind, ExtentState};
use extant_testkit::command::{must, text, tool};
use extant_testkit::{require, requires};

use crate::model::Model;
use crate::servers::Served;
use crate::{MIB, options};

fn connect(uri: &NbdUri) -> NbdDevice {
    NbdDevice::connect(uri, options()).unwrap()
}

/// A file that is a hole.
fn sparse(path: &Path, size: u64) {
    File::create(path).unwrap().set_len(size).unwrap();
}

#[track_caller]
fn model_runs(uri: &NbdUri, seed: u64) -> NbdDevice {
    let device = connect(uri);
    let mut model = Model::new(&device, seed);
    model.run(&device, 60);
    model.check(&device);
    device
}

#[test]
fn nbdkit_memory_agrees_with_the_model() {
    require!(requires::tool("nbdkit"));
    let directory = tempfile::tempdir().unwrap();
    let served = Served::nbdkit(directory.path(), &["memory", "16M"]);
    model_runs(&served.uri(""), 1);
}

#[test]
fn nbdkit_with_few_features_agrees_with_the_model() {
    require!(requires::tool("nbdkit"));
    let directory = tempfile::tempdir().unwrap();
    let filters = ["--filter=nozero", "--filter=noextents", "--filter=fua"];
    for (seed, more) in [
        &["--no-sr"][..],
        &["fuamode=emulate"],
        &["--filter=multi-conn", "multi-conn-mode=disable"],
    ]
    .into_iter()
    .enumerate()
    {
        let (flags, parameters): (Vec<&str>, Vec<&str>) =
            more.iter().partition(|part| part.starts_with("--"));
        let arguments: Vec<&str> = flags
            .into_iter()
            .chain(filters)
            .chain(["memory", "16M"])
            .chain(parameters)
            .collect();
        let served = Served::nbdkit(directory.path(), &arguments);
        let device = model_runs(&served.uri(""), seed as u64);
        assert!(!device.geometry().features.contains(Features::WRITE_ZEROES));
    }
}

#[test]
fn block_sizes_of_the_server_are_kept() {
    require!(requires::tool("nbdkit"));
    let directory = tempfile::tempdir().unwrap();
    let served = Served::nbdkit(
        directory.path(),
        &[
            "--filter=blocksize-policy",
            "memory",
            "16M",
            "blocksize-minimum=4096",
            "blocksize-preferred=64K",
            "blocksize-maximum=192K",
            "blocksize-error-policy=error",
        ],
    );
    let device = model_runs(&served.uri(""), 7);
    let geometry = device.geometry();
    assert_eq!(
        (geometry.logical_block, geometry.physical_block),
        (4096, 65536)
    );
    assert_eq!(geometry.limits.transfer, 192 << 10);
    let error = device.read_at(&mut [0; 512], 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn file_of_odd_size_is_served_to_its_last_byte() {
    require!(requires::tool("nbdkit"));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("odd");
    fs::write(&path, b"0123456789").unwrap();
    let served = Served::nbdkit(directory.path(), &["file", path.to_str().unwrap()]);
    let device = connect(&served.uri(""));
    let mut bytes = [0; 3];
    device.read_at(&mut bytes, 7).unwrap();
    assert_eq!(&bytes, b"789");
    device.write_at(b"X", 9, Persistence::Fua).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"012345678X");
}

#[test]
fn error_of_the_server_names_server_and_range() {
    require!(requires::tool("nbdkit"));
    let directory = tempfile::tempdir().unwrap();
    let arguments = [
        "--filter=error",
        "memory",
        "1M",
        "error-pwrite=ENOSPC",
        "error-pwrite-rate=100%",
    ];
    let served = Served::nbdkit(directory.path(), &arguments);
    let device = connect(&served.uri(""));
    let error = device
        .write_at(&[1; 4096], 8192, Persistence::Cached)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert_eq!(error.range(), Some(ByteRange::new(8192, 12288)));
    let line = error.to_string();
    assert!(line.starts_with("nbd+unix:///?socket="), "{line}");
    // Other requests succeed.
    device.read_at(&mut [0; 4096], 0).unwrap();
}

#[test]
fn failed_flush_stays_and_reads_go_on() {
    require!(requires::tool("nbdkit"));
    let directory = tempfile::tempdir().unwrap();
    // The first flush fails, the others would not.
    let script = r#"case "$1" in
        get_size) echo 1M ;;
        can_write|can_flush) exit 0 ;;
        pwrite) cat > /dev/null ;;
        pread) dd if=/dev/zero count=$3 iflag=count_bytes status=none ;;
        flush) test -e "$tmpdir/flushed" || { touch "$tmpdir/flushed"; echo EIO bad disk >&2; exit 1; } ;;
        *) exit 2 ;;
    esac"#;
    let path = directory.path().join("plugin.sh");
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    let served = Served::nbdkit(directory.path(), &["sh", path.to_str().unwrap()]);
    let device = connect(&served.uri(""));
    device.write_at(&[1; 512], 0, Persistence::Cached).unwrap();
    for _ in 0..2 {
        let error = device.flush().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("in doubt"), "{error}");
    }
    device.read_at(&mut [0; 512], 0).unwrap();
}

#[test]
fn requests_of_a_batch_are_in_flight_together() {
    require!(requires::tool("nbdkit"));
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let arguments = [
        "--filter=log",
        "--filter=delay",
        "--threads=16",
        "memory",
        "1M",
        "rdelay=200ms",
        &format!("logfile={}", log.display()),
    ];
    let served = Served::nbdkit(directory.path(), &arguments);
    let one_connection = NbdOptions {
        connections: 1,
        ..options()
    };
    let device = NbdDevice::connect(&served.uri(""), one_connection).unwrap();
    let mut buffers = vec![[0_u8; 512]; 16];
    let mut requests: Vec<_> = buffers
        .iter_mut()
        .enumerate()
        .map(|(at, buffer)| Request::read(at as u64 * 512, buffer))
        .collect();
    device.submit(&mut requests);
    for request in requests {
        request.into_result().unwrap();
    }
    drop(device);
    drop(served);
    // All of them have begun before the first one ended.
    let log = fs::read_to_string(log).unwrap();
    let events: Vec<_> = log
        .lines()
        .filter_map(
            |line| match (line.contains(" Read "), line.contains("...Read ")) {
                (true, _) => Some(true),
                (_, true) => Some(false),
                _ => None,
            },
        )
        .collect();
    let together = events.iter().take_while(|begins| **begins).count();
    assert_eq!(together, 16, "{log}");
}

#[test]
fn qemu_nbd_raw_agrees_with_the_model_and_with_the_file() {
    require!(requires::tool("qemu-nbd"));
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("disk.raw");
    sparse(&image, 16 * MIB);
    let served = Served::qemu(directory.path(), &image, &["--format=raw", "--shared=8"]);
    let device = model_runs(&served.uri("disk"), 11);
    let mut bytes = vec![0; 16 << 20];
    device.read_at(&mut bytes, 0).unwrap();
    device.flush().unwrap();
    drop((device, served));
    assert!(fs::read(&image).unwrap() == bytes);
}

#[test]
fn qemu_nbd_qcow2_agrees_with_the_model_and_reports_its_map() {
    require!(requires::tool("qemu-nbd"), requires::tool("qemu-img"));
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("disk.qcow2");
    must(
        tool("qemu-img")
            .args(["create", "-q", "-f", "qcow2"])
            .arg(&image)
            .arg("16M"),
    );
    // One client at a time: further connections are tried in vain.
    let served = Served::qemu(
        directory.path(),
        &image,
        &["--format=qcow2", "--discard=unmap"],
    );
    let device = connect(&served.uri("disk"));
    device
        .write_at(&[1; 65536], MIB, Persistence::Cached)
        .unwrap();
    let mut found = Vec::new();
    device
        .status(ByteRange::new(0, 16 * MIB), &mut |range, status| {
            found.push((range.start(), range.end(), status));
            ControlFlow::Continue(())
        })
        .unwrap();
    let expected = [
        (0, MIB, RangeStatus::Hole),
        (MIB, MIB + 65536, RangeStatus::Data),
        (MIB + 65536, 16 * MIB, RangeStatus::Hole),
    ];
    assert_eq!(merged(found), expected);
    let mut states = Vec::new();
    device
        .extents(ByteRange::new(MIB, 3 * MIB), &mut |extent| {
            states.push(extent.state);
            ControlFlow::Continue(())
        })
        .unwrap();
    states.dedup();
    assert_eq!(states, [ExtentState::Written, ExtentState::Hole]);
    device
        .write_zeroes(device.geometry().range(), Zeroing::ANY)
        .unwrap();
    let mut model = Model::new(&device, 12);
    model.run(&device, 60);
    model.check(&device);
    drop((device, served));
    must(tool("qemu-img").args(["check", "-q"]).arg(&image));
}

/// Neighbours of one status may come separately.
fn merged(found: Vec<(u64, u64, RangeStatus)>) -> Vec<(u64, u64, RangeStatus)> {
    let mut merged: Vec<(u64, u64, RangeStatus)> = Vec::new();
    for (start, end, status) in found {
        match merged.last_mut() {
            Some(last) if last.2 == status => last.1 = end,
            _ => merged.push((start, end, status)),
        }
    }
    merged
}

#[test]
fn read_only_export_is_refused_for_writing_and_read_otherwise() {
    require!(requires::tool("qemu-nbd"));
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("disk.raw");
    fs::write(&image, vec![7; 1 << 20]).unwrap();
    let served = Served::qemu(
        directory.path(),
        &image,
        &["--format=raw", "--read-only", "--shared=8"],
    );
    let uri = served.uri("disk");
    let error = NbdDevice::connect(&uri, options()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly);
    let reading = NbdOptions {
        access: NbdAccess::ReadOnly,
        ..options()
    };
    let device = NbdDevice::connect(&uri, reading).unwrap();
    let mut bytes = [0; 512];
    device.read_at(&mut bytes, 4096).unwrap();
    assert_eq!(bytes, [7; 512]);
    let error = device
        .write_at(&[0; 512], 0, Persistence::Cached)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly);
}

#[test]
fn nbd_server_agrees_with_the_model_and_with_the_file() {
    require!(requires::tool("nbd-server"));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("disk.raw");
    sparse(&file, 16 * MIB);
    let served = Served::nbd_server(directory.path(), &file);
    let device = model_runs(&served.uri("disk"), 13);
    let mut bytes = vec![0; 16 << 20];
    device.read_at(&mut bytes, 0).unwrap();
    drop((device, served));
    assert!(fs::read(&file).unwrap() == bytes);
}

#[test]
fn missing_server_and_missing_export_are_named() {
    require!(requires::tool("qemu-nbd"), requires::tool("nbdkit"));
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("disk.raw");
    sparse(&image, MIB);
    let mut served = Served::qemu(directory.path(), &image, &["--format=raw", "--shared=8"]);
    let error = NbdDevice::connect(&served.uri("other"), options()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(error.to_string().contains("\"other\""), "{error}");
    let uri = served.uri("disk");
    served.kill();
    fs::remove_file(&served.socket).unwrap();
    let error = NbdDevice::connect(&uri, options()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(error.to_string().starts_with(&uri.to_string()), "{error}");
}

#[test]
fn server_without_the_extension_assigns_nothing_and_gets_written_zeros_as_data() {
    require!(requires::tool("nbdkit"));
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let arguments = [
        "--filter=log",
        "memory",
        "64M",
        &format!("logfile={}", log.display()),
    ];
    let served = Served::nbdkit(directory.path(), &arguments);
    let device = connect(&served.uri(""));
    device
        .write_zeroes(ByteRange::new(0, 20 * MIB), Zeroing::WRITTEN)
        .unwrap();
    let fast = Zeroing {
        speed: Speed::OnlyIfFast,
        ..Zeroing::WRITTEN
    };
    let error = device
        .write_zeroes(ByteRange::new(0, MIB), fast)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let refused = device.assign(ByteRange::new(0, MIB)).unwrap();
    assert_eq!(refused, Assigned::Refused);
    drop((device, served));
    let log = fs::read_to_string(log).unwrap();
    assert_eq!(log.matches(" Write ").count(), 3, "{log}");
    assert_eq!(log.matches(" Zero ").count(), 0, "{log}");
}

#[test]
fn nbdinfo_shows_the_same_size_as_the_device() {
    require!(requires::tool("nbdkit"), requires::tool("nbdinfo"));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    sparse(&path, MIB);
    let served = Served::nbdkit(directory.path(), &["file", path.to_str().unwrap()]);
    let uri = served.uri("");
    let device = connect(&uri);
    let shown = text(tool("nbdinfo").args(["--size", &uri.to_string()])).unwrap();
    assert_eq!(shown.trim(), device.geometry().size.to_string());
    sparse(&path, 2 * MIB);
    assert_eq!(device.geometry().size, MIB);
    assert_eq!(device.refresh().unwrap(), 2 * MIB);
    assert_eq!(device.geometry().size, 2 * MIB);
}
