//! Messages: contents, stream and number; and the rate limit.

use std::io::Read;
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use extant_testkit::faulty::{DirectIoFault, FallocateFault, Faults, Faulty};
use extant_testkit::workdir::Workdir;
use extant_testkit::{command, require, requires};
use serde_json::Value;

use crate::support::{MIB, create, create_command, run};

/// Lines of progress as JSON; the rest is the error line, if any.
#[track_caller]
fn events(stderr: &str) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"));
    stderr.lines().map(parse).collect()
}

/// At least 5 lines in every second, from the first to the last.
#[track_caller]
fn assert_steady(events: &[Value]) {
    let times: Vec<f64> = events
        .iter()
        .map(|event| event["elapsed_seconds"].as_f64().expect("a time"))
        .collect();
    let last = *times.last().expect("some lines");
    assert!(last >= 1.0, "too short to evaluate: {last} s");
    let wanted = (last * 5.0) as usize;
    assert!(times.len() >= wanted, "{} lines in {last} s", times.len());
    let pause = times.windows(2).map(|pair| pair[1] - pair[0]);
    let pause = pause.fold(0.0, f64::max);
    // A fifth of a second, and room for a machine that is busy with other tests.
    assert!(pause < 0.5, "nothing was reported for {pause} s");
}

#[test]
fn json_has_every_field_that_is_documented() {
    let work = Workdir::new();
    let answer = create(&work.path().join("a"), "3MiB", &["--json"]).success();
    let json = answer.json();
    assert_eq!(json["path"], work.path().join("a").to_str().unwrap());
    assert_eq!(json["preallocation"], "full");
    assert_eq!(json["format"], "raw");
    for (field, value) in [
        ("/capacity_bytes", 3 * MIB),
        ("/preallocated_bytes", 3 * MIB),
        ("/size_bytes", 3 * MIB),
        ("/allocated_bytes", 3 * MIB),
        ("/written_bytes", 3 * MIB),
        ("/resumed_bytes", 0),
        ("/map/extant_bytes", 3 * MIB),
        ("/map/hole_bytes", 0),
        ("/map/unwritten_bytes", 0),
    ] {
        assert_eq!(answer.number(field), value, "{field}: {answer}");
    }
    let strategies = ["write-zeroes", "overwrite", "write-in-order"];
    assert!(strategies.contains(&answer.text("/plan/strategy").as_str()));
    assert_eq!(answer.text("/verified"), "extent-map");
    assert_eq!(answer.text("/map_source"), "fiemap");
    assert!(json["notes"].as_array().is_some_and(Vec::is_empty));
    assert!(json["elapsed_seconds"].as_f64().is_some_and(|s| s > 0.0));
    assert!(json["plan"]["rejected"].is_array());
}

#[test]
fn words_tell_size_way_pieces_and_proof() {
    let work = Workdir::new();
    let answer = create(&work.path().join("a"), "3MiB", &["-v"]).success();
    let words = [
        "3 MiB, all of it zeroed and written",
        "extents",
        "checked",
        "how",
    ];
    for word in words {
        assert!(answer.stdout.contains(word), "no {word}: {answer}");
    }
    // More, not less, than without -v.
    let plain = create(&work.path().join("b"), "3MiB", &[]).success();
    assert!(plain.stdout.lines().count() < answer.stdout.lines().count());
}

#[test]
fn progress_lines_are_json_and_come_five_times_a_second() {
    let work = Workdir::new();
    let file = work.path().join("a");
    let answer = create(&file, "32MiB", &["--progress", "json", "--rate", "16M"]);
    assert_eq!(answer.code, Some(0), "{answer}");
    let events = events(&answer.stderr);
    assert_steady(&events);
    let mut done = 0;
    for event in &events {
        assert_eq!(event["event"], "progress");
        let phase = event["phase"].as_str().expect("a phase");
        assert!(["allocate", "write", "sync", "verify"].contains(&phase));
        if phase == "write" || phase == "sync" {
            let now = event["done_bytes"].as_u64().expect("bytes");
            assert!(now >= done, "progress goes back: {answer}");
            assert_eq!(event["total_bytes"], 32 * MIB);
            done = now;
        }
    }
    assert_eq!(done, 32 * MIB, "the end is reported: {answer}");
}

#[test]
fn progress_comes_five_times_a_second_from_a_slow_disk() {
    require!(Faulty::requirement());
    let slow = Faults {
        latency: Duration::from_millis(25),
        ..Faults::default()
    };
    let in_order = Faults {
        fallocate: FallocateFault::Unsupported,
        direct_io: DirectIoFault::Refused,
        ..slow.clone()
    };
    for faults in [slow, in_order] {
        let fuse = Faulty::new(256 * MIB, faults);
        let file = fuse.path().join("a");
        let mut command = create_command(&file, "48MiB", &["--progress", "json"]);
        let answer = run(&mut command);
        assert_eq!(answer.code, Some(0), "{answer}");
        assert_steady(&events(&answer.stderr));
    }
}

#[test]
fn failure_after_progress_lines_is_one_json_line() {
    let work = Workdir::new();
    std::fs::write(work.path().join("a"), "").unwrap();
    let answer = create(&work.path().join("a"), "1MiB", &["--progress", "json"]);
    assert_eq!(answer.code, Some(4), "{answer}");
    let events = events(&answer.stderr);
    assert_eq!(events.len(), 1, "{answer}");
    assert_eq!(events[0]["event"], "error");
    assert_eq!(events[0]["kind"], "already-exists");
    assert_eq!(events[0]["exit_status"], 4);
    assert!(events[0]["message"].as_str().unwrap().contains("--force"));
}

#[test]
fn progress_is_not_printed_without_a_terminal() {
    let work = Workdir::new();
    let rate = ["--rate", "64M"];
    create(&work.path().join("a"), "16MiB", &rate).success();
    let options = ["--rate", "64M", "--progress", "none"];
    create(&work.path().join("b"), "16MiB", &options).success();
}

#[test]
fn bar_on_a_terminal_moves_five_times_a_second_and_is_cleared() {
    require!(requires::tool("script"));
    let work = Workdir::new();
    let mut child = command::tool("script")
        .args(["--quiet", "--return", "--command"])
        .arg(format!(
            "stty cols 100; {} create {} 48MiB --rate 16M",
            env!("CARGO_BIN_EXE_extant"),
            work.path().join("a").display()
        ))
        .arg("/dev/null")
        .env("TERM", "xterm")
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut terminal = child.stdout.take().unwrap();
    let (mut all, mut draws) = (Vec::new(), Vec::new());
    let mut buffer = [0; 65536];
    let start = Instant::now();
    loop {
        let length = terminal.read(&mut buffer).unwrap();
        if length == 0 {
            break;
        }
        let piece = &buffer[..length];
        all.extend_from_slice(piece);
        // Every state of the bar shows how much there is.
        if String::from_utf8_lossy(piece).contains("48.00 MiB") {
            draws.push(start.elapsed());
        }
    }
    let text = String::from_utf8_lossy(&all).into_owned();
    assert!(child.wait().unwrap().success(), "{text}");
    let length = draws.last().copied().unwrap_or_default() - draws[0];
    assert!(length > Duration::from_secs(1), "{draws:?}\n{text}");
    let wanted = length.as_secs_f64() * 5.0;
    assert!(
        draws.len() as f64 >= wanted,
        "{} draws in {length:?}",
        draws.len()
    );
    assert!(text.contains('%') && text.contains('█'), "{text}");
    assert!(text.contains("\r\x1b[2K"), "the bar is cleared: {text:?}");
    assert!(text.contains("zeroed and written"), "{text}");
}

#[test]
fn rate_is_not_exceeded() {
    let work = Workdir::new();
    for (size, rate, seconds) in [("24MiB", "16M", 1.5), ("1MiB", "1M/s", 1.0)] {
        let start = Instant::now();
        create(&work.path().join(size), size, &["--rate", rate]).success();
        let took = start.elapsed().as_secs_f64();
        // Faster by a fifth would be wrong; slower is the disk's affair.
        assert!(took >= seconds / 1.2, "{size} at {rate}: {took} s");
    }
}

#[test]
fn background_ends_on_an_idle_disk_and_writes_all() {
    let work = Workdir::new();
    let options = ["--background", "--json"];
    let answer = create(&work.path().join("a"), "16MiB", &options).success();
    assert_eq!(answer.number("/map/extant_bytes"), 16 * MIB);
    let pauses = answer.json()["gave_way_seconds"].as_f64();
    assert!(pauses.is_some_and(|seconds| seconds >= 0.0), "{answer}");
}

#[test]
fn background_reports_the_time_paused_for_others() {
    let work = Workdir::new();
    let busy = AtomicBool::new(true);
    let (answer, words) = thread::scope(|scope| {
        // Another process that writes to the same disk all the time.
        scope.spawn(|| {
            let path = work.path().join("other");
            let other = std::fs::File::create(path).unwrap();
            while busy.load(Ordering::Relaxed) {
                other.write_all_at(&[1; 1 << 20], 0).unwrap();
                other.sync_data().unwrap();
            }
        });
        let run = |name: &str, size: &str, more: &[&str]| {
            let options = [&["--background"][..], more].concat();
            create(&work.path().join(name), size, &options)
        };
        // The text names pauses of at least 0.1 s; a fast disk needs many requests for that.
        let answers = (run("a", "2MiB", &["--json"]), run("b", "16MiB", &[]));
        busy.store(false, Ordering::Relaxed);
        answers
    });
    let json = answer.success().json();
    let seconds = |field: &str| json[field].as_f64().unwrap();
    assert!(seconds("gave_way_seconds") > 0.0, "{json}");
    assert!(
        seconds("gave_way_seconds") <= seconds("elapsed_seconds"),
        "{json}"
    );
    let words = words.success();
    assert!(
        words.stdout.contains(" s of it paused for others"),
        "{words}"
    );
}

/// Terminal output of `extant create` at 32 MiB/s, without escape sequences.
#[track_caller]
fn drawn(columns: u32, locale: &str) -> Vec<String> {
    let work = Workdir::new();
    let mut script = command::tool("script");
    let output = script
        .args(["--quiet", "--return", "--command"])
        .arg(format!(
            "stty rows 24 cols {columns}; {} create {} 16MiB --rate 32M",
            env!("CARGO_BIN_EXE_extant"),
            work.path().join("a").display()
        ))
        .arg("/dev/null")
        .env("TERM", "xterm")
        .env("LC_ALL", locale)
        .stdin(Stdio::null());
    let text = command::text(output).unwrap();
    // The result is printed after the bar, in full length.
    let (bar, _) = text.split_once("/a: 16 MiB").expect(&text);
    let states = bar.split(['\r', '\n']).map(|state| {
        let pieces = state.split("\x1b[").map(|piece| {
            let is_sequence = |c: char| c.is_ascii_digit() || c == ';' || c == '?';
            let rest = piece.trim_start_matches(is_sequence);
            rest.get(1..)
                .filter(|_| state.contains('\x1b'))
                .unwrap_or(piece)
        });
        pieces.collect::<String>()
    });
    states.filter(|state| state.contains('%')).collect()
}

#[test]
fn bar_fits_into_narrow_terminals_and_is_ascii_where_the_locale_is() {
    require!(requires::tool("script"));
    for columns in [24, 50] {
        for (locale, is_ascii) in [("C.UTF-8", false), ("C", true)] {
            let states = drawn(columns, locale);
            assert!(!states.is_empty(), "{columns} {locale}");
            for state in &states {
                let width = state.chars().count();
                assert!(width <= columns as usize, "{columns}: {state:?}");
            }
            let all_ascii = states.iter().all(|state| state.is_ascii());
            assert_eq!(all_ascii, is_ascii, "{locale}: {states:?}");
        }
    }
}

#[test]
fn report_that_cannot_be_printed_is_an_error_and_the_file_is_kept() {
    let work = Workdir::new();
    let file = work.path().join("a");
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let mut command = create_command(&file, "1MiB", &["--json"]);
    let child = command.stdout(full).stderr(Stdio::piped()).spawn().unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("write to stdout"), "{stderr}");
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert_eq!(std::fs::metadata(&file).unwrap().len(), MIB);
}
