//! Arguments of every kind: status, and the meaning of the message.

use std::fs;
use std::process::Command;

use extant_testkit::workdir::Workdir;
use extant_testkit::{newer, require};

use crate::program::{Answer, Program};

const MODES: [&str; 9] = ["-c", "-d", "-i", "-n", "-p", "-r", "-w", "-x", "-z"];

/// Runs both on a file `f` of 20000 bytes, and with no file; the answers and the resulting files.
#[track_caller]
fn same(arguments: &[&str]) {
    for size in [None, Some(20_000)] {
        let [wanted, answer] = [Program::Real, Program::Ours].map(|program| {
            let work = Workdir::new();
            let file = work.path().join("f");
            if let Some(size) = size {
                fs::write(&file, vec![1; size]).unwrap();
            }
            let answer = program.run(work.path(), arguments).plain();
            (answer, fs::read(&file).ok())
        });
        // getopt and clap have different messages for unknown options.
        let is_usage = wanted.0.stderr.contains("Try ");
        let is_same = if is_usage {
            let last = |answer: &Answer| answer.stderr.lines().last().map(str::to_owned);
            wanted.0.status == answer.0.status && last(&wanted.0) == last(&answer.0)
        } else {
            wanted.0 == answer.0
        };
        assert!(
            is_same && wanted.1 == answer.1,
            "{arguments:?} on a file of {size:?}:\n{:#?}\n{:#?}",
            wanted.0,
            answer.0
        );
    }
}

#[test]
fn exclusions_are_those_of_the_real_one() {
    require!(newer::requirement());
    for one in MODES {
        for other in MODES {
            // -r on a missing file, and -w of a range, differ on purpose.
            if one == "-r" || other == "-r" || (one == "-w" && other == "-w") {
                continue;
            }
            same(&[one, other, "-l", "4096", "f"]);
        }
    }
    same(&["--write-zeroes", "--keep-size", "-l", "1", "f"]);
    same(&["--dig-holes", "--posix", "f"]);
}

#[test]
fn force_zero_is_another_name_of_write_zeroes() {
    let work = Workdir::new();
    for name in ["-Z", "--force-zero", "-w", "--write-zeroes"] {
        let answer = Program::Ours.run(work.path(), &[name, "-n", "-l", "1", "f"]);
        let wanted = "fallocate: options --write-zeroes and --keep-size cannot be combined\n";
        assert_eq!((answer.status, &*answer.stderr), (Some(1), wanted));
    }
}

#[test]
fn report_wins_over_every_operation_and_changes_nothing() {
    require!(newer::requirement());
    let work = Workdir::new();
    let file = work.path().join("f");
    let mut bytes = vec![0; 20_000];
    bytes[9000] = 1;
    fs::write(&file, &bytes).unwrap();
    for mode in MODES {
        let [wanted, answer] = [Program::Real, Program::Ours]
            .map(|program| program.run(work.path(), &["-v", mode, "-r", "-l", "12288", "f"]));
        assert_eq!(wanted, answer, "{mode}");
        assert_eq!(fs::read(&file).unwrap(), bytes);
    }
}

#[test]
fn lengths_and_offsets_are_read_as_by_the_real_one() {
    require!(newer::requirement());
    for number in [
        "0",
        "-1",
        "-0",
        "+5",
        "010",
        "08",
        "0x10",
        "0x",
        "0b11",
        "1K",
        "1k",
        "1KiB",
        "1kib",
        "1KIB",
        "1KB",
        "1kb",
        "1B",
        "5b",
        "5iB",
        "1.5K",
        "1.5",
        "1.",
        "1.K",
        ".5K",
        "1,5K",
        "1X",
        "1e3",
        " 5",
        "5 ",
        "5 K",
        "",
        "x",
        "1M",
        "8191P",
        "8E",
        "16E",
        "1ZB",
        "1YiB",
        "10EB",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551616",
        "99999999999999999999999",
    ] {
        same(&["-v", "-l", number, "f"]);
        same(&["-v", "-p", "-o", number, "-l", "4096", "f"]);
        same(&["-v", "-d", "-o", number, "-l", number, "f"]);
        same(&["-v", &format!("-l{number}"), "f"]);
        same(&[&format!("--length={number}"), "f"]);
    }
    same(&["-o", "9223372036854775807", "-l", "1", "f"]);
    same(&[
        "-x",
        "-o",
        "9223372036854775807",
        "-l",
        "9223372036854775807",
        "f",
    ]);
}

#[test]
fn wrong_command_lines_end_with_1_as_the_real_one() {
    require!(newer::requirement());
    for arguments in [
        &[] as &[&str],
        &["f"],
        &["-l"],
        &["-l", "1"],
        &["-l", "1", "f", "g"],
        &["-l", "x", "f", "g"],
        &["-c", "f"],
        &["-o", "0", "f"],
        &["-q", "f"],
        &["--foo", "f"],
        &["--p", "-l", "1", "f"],
        &["--keep-size=3", "-l", "1", "f"],
        &["f", "--", "-l"],
        &["-c", "-n"],
        &["-l", "1", ""],
        &["-l", "1", "none/f"],
        &["-l", "1", "f/g"],
        &["-d", "none"],
        &["--len", "10", "f"],
        &["-nvl", "10", "f"],
        &["f", "-l", "10"],
        &["-l", "10", "-l", "20", "f"],
    ] {
        same(arguments);
    }
}

#[test]
fn help_and_version_end_with_0_on_stdout() {
    let work = Workdir::new();
    for option in ["-h", "--help", "-V", "--version"] {
        let answer = Program::Ours.run(work.path(), &[option, "f"]);
        assert_eq!((answer.status, &*answer.stderr), (Some(0), ""));
        assert!(answer.stdout.contains("fallocate"), "{}", answer.stdout);
    }
}

#[test]
fn link_named_fallocate_is_the_drop_in() {
    let work = Workdir::new();
    let link = work.path().join("fallocate");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_extant"), &link).unwrap();
    let run = |arguments: &[&str]| {
        Answer::of(Command::new(&link).args(arguments).current_dir(work.path()))
    };
    let answer = run(&["-v", "-l", "1M", "f"]);
    assert_eq!(answer.stdout, "f: 1 MiB (1048576 bytes) allocated.\n");
    assert_eq!(answer.status, Some(0));
    let answer = run(&["-l", "0", "f"]);
    assert_eq!(
        (answer.status, &*answer.stderr),
        (Some(1), "fallocate: invalid length\n")
    );
}
