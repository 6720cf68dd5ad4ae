//! Our control calls on a real mount: the kernel's cache and the file must agree afterwards.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use extant_mount::ioctl::{self, ExtentsPage, Fallocate, Probe, Statistics};
use extant_space::{Extent, ExtentState, FallocateMode};
use extant_testkit::command::tool;
use extant_testkit::{require, requires};
use rustix::fs::{SeekFrom, seek};
use zerocopy::{FromBytes, IntoBytes};

use crate::mounts::{Ours, needs};

const OPTIONS: [&str; 2] = ["writeback", "no_writeback"];

/// Makes control calls, which need `unsafe` code, in a separate process. It is started before any
/// file is opened: a new one would get every open file, close it, and have the kernel write it
/// back.
pub struct Calls {
    process: Child,
    answers: BufReader<ChildStdout>,
}

impl Calls {
    pub fn new() -> Self {
        let script = r#"
            $| = 1;
            while (<STDIN>) {
                my ($command, $bytes, $path) = /^(\d+) (\S+) (.*)$/;
                my $mode = -d $path ? "<" : "+<";
                open my $file, $mode, $path or die "open: $!";
                my $buffer = pack "H*", $bytes;
                my $answer = ioctl($file, $command, $buffer) ? unpack "H*", $buffer : "errno " . ($! + 0);
                close $file;
                print $answer, "\n";
            }
        "#;
        let mut process = tool("perl")
            .args(["-e", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        Self { process, answers }
    }

    /// A call on a file that is opened for it, or a directory; the answer, or the error's number.
    pub fn call(&mut self, path: &Path, command: u32, bytes: &[u8]) -> Result<Vec<u8>, i32> {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let stdin = self.process.stdin.as_mut().unwrap();
        writeln!(stdin, "{command} {hex} {}", path.display()).unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        let answer = answer.trim_end();
        if let Some(number) = answer.strip_prefix("errno ") {
            return Err(number.parse().unwrap());
        }
        let digits = answer.as_bytes().chunks(2);
        let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        Ok(digits.map(byte).take(bytes.len()).collect())
    }

    /// `fallocate` through the control call, and the steps of a caller afterwards.
    fn fallocate(
        &mut self,
        path: &Path,
        mode: FallocateMode,
        offset: u64,
        length: u64,
    ) -> Result<(), i32> {
        let request = Fallocate::new(mode, offset, length).unwrap();
        let answer = self.call(path, ioctl::FALLOCATE, request.as_bytes())?;
        let size = Fallocate::read_from_bytes(&answer).unwrap().size;
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        if file.metadata().unwrap().len() != size {
            file.set_len(size).unwrap();
        }
        Ok(())
    }

    fn states(&mut self, path: &Path) -> Vec<(u64, u64, ExtentState)> {
        let request = ExtentsPage::new(0, u64::MAX);
        let answer = self.call(path, ioctl::EXTENTS, request.as_bytes()).unwrap();
        let page = ExtentsPage::read_from_bytes(&answer).unwrap();
        let extents = page
            .extents()
            .iter()
            .map(|extent| extent.to_extent().unwrap());
        let tell = |extent: Extent| (extent.logical.start(), extent.logical.end(), extent.state);
        extents.map(tell).collect()
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

#[test]
fn probe_answers_on_files_and_directories() {
    let [a, b, c, d, e, f] = needs();
    require!(a, b, c, d, e, f, requires::tool("perl"));
    for options in OPTIONS {
        let ours = Ours::new(16, options);
        let mut calls = Calls::new();
        let path = ours.path().join("f");
        fs::write(&path, "").unwrap();
        for place in [path.as_path(), ours.path()] {
            let answer = calls.call(place, ioctl::PROBE, &[0; 64]).unwrap();
            let probe = Probe::read_from_bytes(&answer).unwrap();
            assert_eq!((probe.magic, probe.version), (ioctl::MAGIC, ioctl::VERSION));
            assert_eq!(
                probe.flags & ioctl::probe_flags::WRITEBACK != 0,
                options == "writeback"
            );
            let answer = calls.call(place, ioctl::STATISTICS, &[0; 448]).unwrap();
            let statistics = Statistics::read_from_bytes(&answer).unwrap();
            assert_eq!(statistics.allocator.groups, 1);
            let other_size = ioctl::STATISTICS - (8 << 16);
            let refused = calls.call(place, other_size, &[0; 440]);
            assert_eq!(refused, Err(rustix::io::Errno::NOTTY.raw_os_error()));
        }
        ours.end();
    }
}

#[test]
fn fallocate_call_handles_unsynced_data() {
    let [a, b, c, d, e, f] = needs();
    require!(a, b, c, d, e, f, requires::tool("perl"));
    for options in OPTIONS {
        let ours = Ours::new(32, options);
        let mut calls = Calls::new();
        ours.trust();
        let path = ours.path().join("f");
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .unwrap();
        let block = |value: u8| [value; 4096];
        let mut expected = Vec::new();
        for value in 1..=8 {
            file.write_all_at(&block(value), u64::from(value - 1) * 4096)
                .unwrap();
            expected.extend(block(value));
        }
        let check = |expected: &[u8], what: &str| {
            let mut found = vec![0xEE; expected.len() + 1];
            let read = file.read_at(&mut found, 0).unwrap();
            assert!(
                found[..read] == *expected,
                "{what}, {options}: another content"
            );
            assert_eq!(
                file.metadata().unwrap().len(),
                expected.len() as u64,
                "{what}, {options}"
            );
        };
        check(&expected, "before");
        calls
            .fallocate(&path, FallocateMode::CollapseRange, 4096, 8192)
            .unwrap();
        expected.drain(4096..12_288);
        check(&expected, "collapse");
        // Dirty again, across the moved range.
        file.write_all_at(&block(9), 6000).unwrap();
        expected[6000..10_096].copy_from_slice(&block(9));
        calls
            .fallocate(&path, FallocateMode::InsertRange, 8192, 4096)
            .unwrap();
        expected.splice(8192..8192, [0; 4096]);
        check(&expected, "insert");
        file.write_all_at(&block(10), 0).unwrap();
        expected[..4096].copy_from_slice(&block(10));
        calls
            .fallocate(&path, FallocateMode::WriteZeroes, 4096, 4096)
            .unwrap();
        expected[4096..8192].fill(0);
        check(&expected, "write zeroes");
        let end = expected.len() as u64;
        calls
            .fallocate(&path, FallocateMode::WriteZeroes, end, 10_000)
            .unwrap();
        expected.resize(expected.len() + 10_000, 0);
        check(&expected, "write zeroes at the end");
        file.write_all_at(b"tail", expected.len() as u64).unwrap();
        expected.extend(b"tail");
        check(&expected, "append");
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), expected);
        let device = ours.end();
        let again = extant_ext4::Filesystem::open(device, extant_ext4::Options::default()).unwrap();
        let node = again.root().unwrap().lookup(b"f").unwrap();
        let mut stored = vec![0; expected.len() + 1];
        let read = extant_space::SpaceFile::read_at(&node.file().unwrap(), &mut stored, 0).unwrap();
        assert!(stored[..read] == *expected, "{options}: on the device");
    }
}

#[test]
fn extents_call_shows_data_that_was_not_synced() {
    let [a, b, c, d, e, f] = needs();
    require!(a, b, c, d, e, f, requires::tool("perl"));
    for options in OPTIONS {
        let ours = Ours::new(32, options);
        let mut calls = Calls::new();
        ours.trust();
        let path = ours.path().join("f");
        let file = File::create_new(&path).unwrap();
        file.write_all_at(&[7; 8192], 4096).unwrap();
        assert_eq!(
            calls.states(&path),
            [(4096, 12_288, ExtentState::Written)],
            "{options}"
        );
        calls
            .fallocate(&path, FallocateMode::AllocateKeepSize, 12_288, 4096)
            .unwrap();
        let unwritten = (12_288, 16_384, ExtentState::Unwritten);
        assert_eq!(calls.states(&path).last(), Some(&unwritten), "{options}");
        drop(file);
        ours.end();
    }
}

#[test]
fn fallocate_call_is_refused_as_fallocate_is() {
    let [a, b, c, d, e, f] = needs();
    require!(a, b, c, d, e, f, requires::tool("perl"));
    let ours = Ours::new(16, "writeback");
    let mut calls = Calls::new();
    let path = ours.path().join("f");
    fs::write(&path, "data").unwrap();
    let mut run = |mode, offset, length| calls.fallocate(&path, mode, offset, length);
    assert_eq!(run(FallocateMode::CollapseRange, 0, 4096), Err(22));
    assert_eq!(run(FallocateMode::Allocate, 0, 1 << 40), Err(28));
    assert_eq!(run(FallocateMode::WriteZeroes, 1 << 50, 4096), Err(27));
    let request = Fallocate::new(FallocateMode::WriteZeroes, 0, 4096).unwrap();
    let directory = calls.call(ours.path(), ioctl::FALLOCATE, request.as_bytes());
    assert_eq!(directory, Err(9));
    ours.end();
}

#[test]
fn kernel_without_a_writeback_cache_sees_the_effect_of_the_call() {
    let [a, b, c, d, e, f] = needs();
    require!(a, b, c, d, e, f, requires::tool("perl"));
    let ours = Ours::new(16, "no_writeback");
    let mut calls = Calls::new();
    let path = ours.path().join("f");
    let expected: Vec<u8> = (0..20_480u32).map(|at| (at >> 12) as u8 + 1).collect();
    fs::write(&path, &expected).unwrap();
    let file = File::open(&path).unwrap();
    assert_eq!(fs::read(&path).unwrap(), expected);
    // Without the steps of a caller afterwards.
    let collapse = Fallocate::new(FallocateMode::CollapseRange, 4096, 8192).unwrap();
    calls
        .call(&path, ioctl::FALLOCATE, collapse.as_bytes())
        .unwrap();
    assert_eq!(file.metadata().unwrap().len(), 12_288);
    let mut found = vec![0; 20_480];
    let read = file.read_at(&mut found, 0).unwrap();
    let first_of_each: Vec<u8> = found[..read].iter().step_by(4096).copied().collect();
    assert_eq!((read, first_of_each), (12_288, vec![1, 4, 5]));
    drop(file);
    ours.end();
}

#[test]
fn calls_wait_for_data_that_is_on_its_way() {
    let [a, b, c, d, e, f] = needs();
    require!(a, b, c, d, e, f, requires::tool("perl"));
    let ours = Ours::new(64, "writeback");
    let mut calls = Calls::new();
    ours.trust();
    let mebibyte = 1u64 << 20;
    // The kernel may write back each page for itself.
    let data: Vec<u8> = (0..6 * mebibyte).map(|at| (at >> 12) as u8).collect();
    let write = |name: &str| {
        let path = ours.path().join(name);
        let file = File::create_new(&path).unwrap();
        ours.slow_writes(Duration::from_millis(2));
        file.write_all_at(&data, 0).unwrap();
        (path, file)
    };
    let (_, file) = write("sought");
    let last = 6 * mebibyte - 1;
    assert_eq!(seek(&file, SeekFrom::Data(last)), Ok(last));
    ours.quick_writes();
    drop(file);

    let (path, file) = write("mapped");
    let end = calls.states(&path).last().map(|(_, end, _)| *end);
    assert_eq!(end, Some(6 * mebibyte));
    ours.quick_writes();
    drop(file);

    let (path, file) = write("collapsed");
    calls
        .fallocate(&path, FallocateMode::CollapseRange, 0, 4096)
        .unwrap();
    ours.quick_writes();
    drop(file);
    assert!(fs::read(&path).unwrap() == data[4096..], "other data");
    ours.end();
}
