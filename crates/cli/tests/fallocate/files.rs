//! Files of every kind, and errors with them: status, and the reported cause.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;

use extant_testkit::scratch::{Filesystem, LoopDevice, Scratch};
use extant_testkit::workdir::Workdir;
use extant_testkit::{command, newer, require, requires};

use crate::program::{Answer, Program};

/// Runs both in `directory`; status and the text of the error number must agree.
#[track_caller]
fn same_cause(dir: &Path, arguments: &[&str]) {
    let [wanted, answer] =
        [Program::Real, Program::Ours].map(|program| program.run(dir, arguments).plain());
    assert_eq!(wanted.status, Some(1), "{wanted:#?}");
    assert!(
        answer.status == wanted.status && answer.cause() == wanted.cause(),
        "{arguments:?}:\n{wanted:#?}\n{answer:#?}"
    );
    assert!(answer.stderr.starts_with("fallocate: "), "{answer:#?}");
}

#[test]
fn files_that_are_none_are_refused_without_a_wait() {
    require!(newer::requirement());
    let work = Workdir::new();
    work.directory("directory");
    command::run(command::tool("mkfifo").arg(work.path().join("fifo"))).unwrap();
    let _socket = UnixListener::bind(work.path().join("socket")).unwrap();
    std::os::unix::fs::symlink("loop", work.path().join("loop")).unwrap();
    for file in ["directory", "fifo", "socket", "loop", "/dev/null"] {
        same_cause(work.path(), &["-l", "1", file]);
        same_cause(work.path(), &["-p", "-l", "1", file]);
        same_cause(work.path(), &["-x", "-l", "1", file]);
    }
    for file in ["directory", "fifo", "socket", "loop"] {
        same_cause(work.path(), &["-d", file]);
        same_cause(work.path(), &["-r", file]);
    }
}

#[test]
fn full_and_read_only_file_systems_fail_with_the_same_errno() {
    require!(newer::requirement(), Filesystem::Ext4.requirement());
    let scratch = Scratch::new(Filesystem::Ext4, 32 << 20);
    let dir = scratch.path();
    for mode in [
        &["-l"] as &[&str],
        &["-n", "-l"],
        &["-x", "-l"],
        &["-w", "-l"],
    ] {
        if mode[0] == "-w" {
            // util-linux's program is refused before space is checked.
            let answer = Program::Ours.run(dir, &["-w", "-l", "1G", "f"]);
            assert_eq!(
                (answer.status, answer.cause()),
                (Some(1), "No space left on device")
            );
            continue;
        }
        fs::write(dir.join("f"), b"").unwrap();
        same_cause(dir, &[mode, &["1G", "f"]].concat());
        fs::remove_file(dir.join("f")).unwrap();
    }
    same_cause(dir, &["-l", "17T", "f"]);
    fs::write(dir.join("f"), vec![0; 8192]).unwrap();
    scratch.remount("ro");
    for mode in [&["-l", "1"] as &[&str], &["-d"], &["-w", "-l", "1"]] {
        same_cause(dir, &[mode, &["f"]].concat());
        let Some(1) = Program::Ours.run(dir, &[mode, &["new"]].concat()).status else {
            panic!("{mode:?} made a file on a read-only file system");
        };
    }
    let answer = Program::Ours.run(dir, &["-r", "f"]);
    assert_eq!(
        answer.status,
        Some(0),
        "-r needs no right to write: {answer:?}"
    );
}

#[test]
fn immutable_files_are_refused_with_the_same_errno() {
    require!(
        newer::requirement(),
        requires::tool("chattr"),
        Filesystem::Ext4.requirement()
    );
    let scratch = Scratch::new(Filesystem::Ext4, 32 << 20);
    let file = scratch.path().join("f");
    for attribute in ["i", "a"] {
        fs::write(&file, vec![0; 8192]).unwrap();
        let set = |sign: &str| {
            command::run(
                command::tool("chattr")
                    .arg(format!("{sign}{attribute}"))
                    .arg(&file),
            )
        };
        set("+").unwrap();
        same_cause(scratch.path(), &["-l", "1M", "f"]);
        same_cause(scratch.path(), &["-d", "f"]);
        set("-").unwrap();
        fs::remove_file(&file).unwrap();
    }
}

#[test]
fn file_size_limit_is_an_error_and_no_signal() {
    let work = Workdir::new();
    for arguments in ["-l 1M", "-x -l 1M", "-z -l 1M", "-w -l 1M", "-o 1M -l 1"] {
        fs::write(work.path().join("f"), b"data").unwrap();
        let script = format!("ulimit -f 100; exec \"$0\" fallocate {arguments} f");
        let answer = Answer::of(
            command::tool("sh")
                .args(["-c", &script, env!("CARGO_BIN_EXE_extant")])
                .current_dir(work.path()),
        );
        assert_eq!(
            (answer.status, &*answer.stderr),
            (Some(1), "fallocate: fallocate failed: File too large\n"),
            "{arguments}"
        );
        assert_eq!(fs::read(work.path().join("f")).unwrap(), b"data");
    }
}

#[test]
fn full_standard_output_is_an_error() {
    require!(newer::requirement());
    let work = Workdir::new();
    fs::write(work.path().join("f"), b"data").unwrap();
    for arguments in [
        &["-v", "-l", "1"] as &[&str],
        &["-r"],
        &["-rv"],
        &["-d", "-v"],
    ] {
        let [wanted, answer] = [Program::Real, Program::Ours].map(|program| {
            let full = fs::OpenOptions::new()
                .write(true)
                .open("/dev/full")
                .unwrap();
            let mut command = program.command();
            command.args(arguments).arg("f").current_dir(work.path());
            let output = command.stdout(full).output().unwrap();
            (
                output.status.code(),
                String::from_utf8(output.stderr).unwrap(),
            )
        });
        assert_eq!(wanted, answer, "{arguments:?}");
    }
}

#[test]
fn block_devices_are_zeroed_and_punched_as_by_the_real_one() {
    require!(
        newer::requirement(),
        requires::root(),
        requires::device("/dev/loop-control"),
        requires::tool("losetup")
    );
    let work = Workdir::new();
    let [real, ours] = [Program::Real, Program::Ours].map(|program| {
        let file = work.path().join(format!("{program:?}"));
        fs::write(&file, vec![7; 1 << 20]).unwrap();
        let device = LoopDevice::attach(&file);
        let node = device.path().to_str().unwrap();
        let answers = [
            "-v -z -l 65536",
            "-v -z -n -o 4096 -l 65536",
            "-v -p -o 131072 -l 65536",
            "-v -p -o 5 -l 100",
            "-l 4096",
            "-n -l 4096",
            "-c -l 4096",
            "-x -l 4096",
            "-p -o 1M -l 1M",
            "-d -v",
            "-r -v",
        ]
        .map(|arguments| {
            let mut arguments: Vec<&str> = arguments.split(' ').collect();
            arguments.push(node);
            let mut answer = program.run(work.path(), &arguments).plain();
            answer.stdout = answer.stdout.replace(node, "NODE");
            (arguments[0].to_owned(), answer)
        });
        drop(device);
        (answers, fs::read(&file).unwrap())
    });
    assert_eq!(real.0, ours.0);
    assert!(real.1 == ours.1, "the devices differ");
}

#[test]
fn dig_keeps_the_data_behind_its_range() {
    let work = Workdir::new();
    let file = work.path().join("f");
    let mut bytes = vec![0; 20_480];
    bytes[8192..].fill(7);
    fs::write(&file, &bytes).unwrap();
    let answer = Program::Ours.run(work.path(), &["-d", "-v", "-l", "8192", "f"]);
    let wanted = "f: 1 holes, 8 KiB (8192 bytes, 40.00% of the file) converted to sparse holes.\n";
    assert_eq!((answer.status, &*answer.stdout), (Some(0), wanted));
    assert!(fs::read(&file).unwrap() == bytes);
}
