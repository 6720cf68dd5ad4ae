//! The guest boots, runs a script and takes write zeroes where its disk does.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use extant_testkit::guest::{Bus, Disk, Guest, Options, Output};
use extant_testkit::workdir::Workdir;
use extant_testkit::{oracle, require};

const MIB: u64 = 1 << 20;

/// Makes a file written by one `fallocate`, with mode 0x80, and shows its map.
const WRITE_ZEROES: &str = r#"#!/bin/sh
set -e
uname -r
mkfs.ext4 -q /dev/disk0
mount /dev/disk0 /mnt
python3 - <<'P'
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
file = os.open("/mnt/f", os.O_RDWR | os.O_CREAT)
if libc.fallocate(file, 0x80, 0, 32 << 20):
    print("errno", ctypes.get_errno())
    sys.exit(3)
P
filefrag -v /mnt/f
umount /mnt
"#;

fn image(work: &Workdir, size_bytes: u64) -> PathBuf {
    let file = work.path().join("disk");
    File::create_new(&file)
        .unwrap()
        .set_len(size_bytes)
        .unwrap();
    file
}

fn run_on(bus: Bus, file: PathBuf) -> Output {
    let options = Options {
        disks: vec![Disk { file, bus }],
        ..Options::default()
    };
    Guest::run(WRITE_ZEROES, &options)
}

#[test]
fn write_zeroes_on_nvme_leaves_written_extents() {
    require!(Guest::requirement());
    let work = Workdir::new();
    let disk = image(&work, 128 * MIB);
    let Output { status, text } = run_on(Bus::Nvme, disk.clone());
    assert_eq!(status, 0, "{text}");
    let map = text.split_once("File size of").expect(&text).1;
    assert!(
        map.contains(" is 33554432 ") && map.contains("eof"),
        "{text}"
    );
    assert!(!map.contains("unwritten"), "{text}");
    // The disk unmapped: written zeros of the guest need no space on the host.
    assert!(oracle::allocated_bytes(&disk) < 32 * MIB);
    oracle::assert_e2fsck_clean(&disk);
}

#[test]
fn write_zeroes_on_virtio_is_refused() {
    require!(Guest::requirement());
    let work = Workdir::new();
    let Output { status, text } = run_on(Bus::Virtio, image(&work, 128 * MIB));
    assert_eq!(status, 3, "{text}");
    assert!(text.ends_with("errno 95\n"), "{text}");
}

#[test]
fn shared_directory_is_written_by_the_guest() {
    require!(Guest::requirement());
    let work = Workdir::new();
    fs::write(work.path().join("question"), "six times seven").unwrap();
    let options = Options {
        shared: Some(work.path().to_owned()),
        ..Options::default()
    };
    let script = "#!/usr/bin/python3\nimport sys\nprint(open('/host/question').read(), flush=True)\n\
                  open('/host/answer', 'w').write('42')\nprint('no', file=sys.stderr)\nsys.exit(200)\n";
    let Output { status, text } = Guest::run(script, &options);
    assert_eq!((status, text.as_str()), (200, "six times seven\nno\n"));
    assert_eq!(
        fs::read_to_string(work.path().join("answer")).unwrap(),
        "42"
    );
}

#[test]
fn guest_that_hangs_is_killed_and_quoted() {
    require!(Guest::requirement());
    let options = Options {
        timeout: Duration::from_secs(25),
        ..Options::default()
    };
    let start = Instant::now();
    let result = std::panic::catch_unwind(|| {
        Guest::run("#!/bin/sh\necho before\nsleep 1000\n", &options);
    });
    let message = *result.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains("no status after 25s"), "{message}");
    assert!(message.contains("output:\nbefore\n"), "{message}");
    assert!(start.elapsed() < Duration::from_secs(50));
}
