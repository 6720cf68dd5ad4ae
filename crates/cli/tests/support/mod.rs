//! Support of the product tests: the command as a user runs it, and its results.
//!
//! Every run is of the built binary, in a process of its own. Its output is kept with its command
//! line, so that a failed assertion shows both.

// Each test program uses a part of it.
#![allow(dead_code, unused_imports)]

mod running;
pub mod schema;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use extant_space::ExtentState;
use extant_testkit::scratch::Scratch;
pub use extant_testkit::user::NOBODY;
use extant_testkit::user::as_user;
use extant_testkit::workdir::Workdir;
use extant_testkit::{command, oracle};
use serde_json::Value;

pub use running::{Running, wait_until};

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;

/// `extant` without arguments yet.
pub fn extant() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_extant"));
    command.stdin(Stdio::null()).env("LC_ALL", "C");
    command
}

/// `extant create PATH SIZE` with further arguments.
pub fn create_command(path: &Path, size: &str, more: &[&str]) -> Command {
    let mut command = extant();
    command.arg("create").arg(path).arg(size).args(more);
    command
}

/// Runs `extant create PATH SIZE` with further arguments.
pub fn create(path: &Path, size: &str, more: &[&str]) -> Answer {
    run(&mut create_command(path, size, more))
}

/// Runs `extant materialize FILE` with further arguments.
pub fn materialize(file: &Path, more: &[&str]) -> Answer {
    run(extant().arg("materialize").arg(file).args(more))
}

/// `words` as another program of the system, with the built command as its last arguments: `setpriv
/// ... extant create ...`.
pub fn through(wrapper: &[&str], inner: &Command) -> Command {
    let mut command = command::tool(wrapper[0]);
    command
        .args(&wrapper[1..])
        .arg(inner.get_program())
        .args(inner.get_args())
        .stdin(Stdio::null());
    if let Some(dir) = inner.get_current_dir() {
        command.current_dir(dir);
    }
    command
}

/// The same command run by [`NOBODY`]. The program is copied to where every user can run it.
pub fn as_nobody(inner: &Command, place: &Workdir) -> Command {
    let copy = place.path().join("extant");
    if !copy.exists() {
        copy_program(Path::new(inner.get_program()), &copy);
    }
    let mut command = as_user(&copy);
    command.args(inner.get_args());
    command
}

/// Copies a program to where every user can run it. Another process copies, because a process
/// forked here by another thread would have the copy open for writing for a moment, and such a file
/// cannot be executed ("Text file busy").
#[track_caller]
pub fn copy_program(program: &Path, copy: &Path) {
    let mut install = command::tool("install");
    command::must(install.arg("--mode=0755").arg(program).arg(copy));
}

/// Runs `command` to its end.
#[track_caller]
pub fn run(command: &mut Command) -> Answer {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("`{}`: {error}", command::line(command)));
    Answer::of(command::line(command), output)
}

/// Output and exit status of a run.
#[derive(Debug)]
pub struct Answer {
    pub line: String,
    pub stdout: String,
    pub stderr: String,
    /// Exit status; `None` after a signal.
    pub code: Option<i32>,
    pub signal: Option<i32>,
}

impl Answer {
    fn of(line: String, output: Output) -> Self {
        Self {
            line,
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            code: output.status.code(),
            signal: output.status.signal(),
        }
    }

    /// It ended well, without a word on stderr.
    #[track_caller]
    pub fn success(self) -> Self {
        assert_eq!(self.code, Some(0), "{self}");
        assert_eq!(self.stderr, "", "{self}");
        self
    }

    /// It was refused with `code` and one line on stderr that begins with `extant: ` and
    /// holds all `words`; nothing on stdout.
    #[track_caller]
    pub fn refused(self, code: i32, words: &[&str]) -> Self {
        assert_eq!(self.code, Some(code), "{self}");
        assert_eq!(self.stdout, "", "{self}");
        let lines: Vec<&str> = self.stderr.lines().collect();
        assert_eq!(lines.len(), 1, "one line is wanted: {self}");
        assert!(lines[0].starts_with("extant: "), "{self}");
        for word in words {
            assert!(lines[0].contains(word), "no {word:?} in {self}");
        }
        self
    }

    /// It was refused with `code`, and one line of JSON on stderr reports that; nothing on stdout.
    #[track_caller]
    pub fn refused_json(self, code: i32, kind: &str) -> Value {
        assert_eq!(self.code, Some(code), "{self}");
        assert_eq!(self.stdout, "", "{self}");
        assert_eq!(self.stderr.lines().count(), 1, "{self}");
        let error: Value = serde_json::from_str(&self.stderr).expect(&self.stderr);
        assert_eq!(error["schema_version"], 1, "{self}");
        assert_eq!(error["event"], "error", "{self}");
        assert_eq!(error["kind"], kind, "{self}");
        assert_eq!(error["exit_status"], code, "{self}");
        error
    }

    /// Stdout as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self}"))
    }

    /// Stdout as the JSON of `command`, valid against the published schema.
    #[track_caller]
    pub fn valid_json(&self, command: &str) -> Value {
        let json = self.json();
        schema::assert_valid([(command, &json)]);
        json
    }

    /// A number in the JSON on stdout, by its JSON pointer.
    #[track_caller]
    pub fn number(&self, pointer: &str) -> u64 {
        let json = self.json();
        let value = json.pointer(pointer).and_then(Value::as_u64);
        value.unwrap_or_else(|| panic!("no number {pointer}: {self}"))
    }

    /// A text in the JSON on stdout, by its JSON pointer.
    #[track_caller]
    pub fn text(&self, pointer: &str) -> String {
        let json = self.json();
        let value = json.pointer(pointer).and_then(Value::as_str);
        value
            .unwrap_or_else(|| panic!("no text {pointer}: {self}"))
            .to_owned()
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` ended with {:?} (signal {:?})\nstdout:\n{}\nstderr:\n{}",
            self.line, self.code, self.signal, self.stdout, self.stderr
        )
    }
}

/// The names in `directory`, sorted, without `lost+found`.
#[track_caller]
pub fn names(dir: &Path) -> Vec<OsString> {
    let entries = std::fs::read_dir(dir);
    let entries = entries.unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut names: Vec<OsString> = entries
        .map(|entry| entry.expect("a readable directory").file_name())
        .filter(|name| name != "lost+found")
        .collect();
    names.sort();
    names
}

/// Nothing but `wanted` is in `directory`.
#[track_caller]
pub fn assert_names(dir: &Path, wanted: &[&str]) {
    let mut wanted: Vec<&OsStr> = wanted.iter().map(OsStr::new).collect();
    wanted.sort();
    assert_eq!(names(dir), wanted, "in {}", dir.display());
}

/// The partial file of `extant create` until `path` is complete.
pub fn partial_of(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().expect("a file name"));
    name.push(".extant-partial");
    path.with_file_name(name)
}

/// Waits until the creation of `path` has begun to take space: it holds its partial file.
#[track_caller]
pub fn wait_for_space_of(path: &Path) {
    wait_until("space of the partial file", || {
        std::fs::metadata(partial_of(path)).is_ok_and(|partial| partial.blocks() > 0)
    });
}

/// Bytes that are written of the partial file of `path`, whose process was killed: the kernel
/// finishes its requests in flight.
#[track_caller]
pub fn left_written(path: &Path) -> u64 {
    let written = || oracle::filefrag(&partial_of(path)).bytes(ExtentState::Written);
    let mut last = written();
    loop {
        std::thread::sleep(Duration::from_millis(50));
        match written() {
            now if now == last => return now,
            now => last = now,
        }
    }
}

/// Bytes that were written to the loop device of a file system so far.
pub fn device_bytes_written(scratch: &Scratch) -> u64 {
    let device = scratch.device().expect("a file system on a device");
    let name = device.file_name().expect("a name under /dev");
    let file = Path::new("/sys/block").join(name).join("stat");
    let text = std::fs::read_to_string(file).expect("statistics of the device");
    // Documentation/block/stat.rst: the seventh word, in units of 512 bytes.
    let sectors = text.split_whitespace().nth(6).map(str::parse::<u64>);
    sectors.expect("a seventh word").expect("a number") * 512
}

/// Makes `file` longer, with a hole, on the disk.
#[track_caller]
pub fn lengthen(file: &Path, size: u64) {
    let open = std::fs::File::options().write(true).open(file);
    let open = open.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    open.set_len(size).expect("a longer file");
    open.sync_all().expect("a synced file");
}

/// Bytes that look like nothing else, the same for a seed.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut random = Random(seed);
    (0..length).map(|_| random.next() as u8 | 1).collect()
}

/// Numbers for tests that try moments and places at random: splitmix64.
pub struct Random(pub u64);

impl Random {
    /// From `EXTANT_SEED`, or from the clock. The seed is printed, to repeat a failure.
    pub fn seeded(test: &str) -> Self {
        let chosen = std::env::var("EXTANT_SEED").ok();
        let seed = chosen
            .and_then(|text| text.parse().ok())
            .unwrap_or_else(|| {
                let now = std::time::SystemTime::now();
                let since = now
                    .duration_since(std::time::UNIX_EPOCH)
                    .expect("after 1970");
                since.as_nanos() as u64 & 0xffff_ffff
            });
        eprintln!("repeat: EXTANT_SEED={seed} cargo test -p extant {test}");
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
