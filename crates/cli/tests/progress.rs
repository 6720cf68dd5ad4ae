//! Progress for another program: on a descriptor, on a socket, with slow and disconnected readers.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write, pipe};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::thread;

use extant_testkit::workdir::Workdir;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::Signal;
use serde_json::Value;

use support::{
    MIB, Running, assert_names, create_command, extant, run, schema, through, wait_until,
};

fn parsed(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
}

/// All lines until the other side closes.
fn lines(from: impl std::io::Read) -> Vec<Value> {
    let lines = BufReader::new(from).lines();
    lines.map(|line| parsed(&line.unwrap())).collect()
}

/// Descriptor 3 of the command is the pipe.
fn on_descriptor(command: &mut Command, writer: PipeWriter) -> Command {
    command.args(["--progress-fd", "3"]);
    let shell = ["sh", "-c", "exec \"$@\" 3>&1 1>/dev/null", "sh"];
    let mut wrapped = through(&shell, command);
    wrapped.stdout(Stdio::from(writer));
    wrapped
}

#[track_caller]
fn assert_end(lines: &[Value], outcome: &str) {
    let (end, before) = lines.split_last().expect("some lines");
    assert_eq!(end["event"], "end", "{lines:?}");
    assert_eq!(end["outcome"], outcome, "{lines:?}");
    let lines = before.iter().map(|line| ("progress_line", line));
    schema::assert_valid(lines.chain([("end_line", end)]));
}

/// Runs a command with a listener for its progress; its received lines.
#[track_caller]
fn heard(work: &Workdir, command: &mut Command, code: i32) -> Vec<Value> {
    let path = work.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let reader = thread::spawn(move || lines(listener.accept().unwrap().0));
    let answer = run(command.arg("--progress-socket").arg(&path));
    fs::remove_file(&path).unwrap();
    assert_eq!(answer.code, Some(code), "{answer}");
    reader.join().unwrap()
}

#[test]
fn descriptor_receives_progress_and_outcome() {
    let work = Workdir::new();
    let file = work.path().join("a");
    let (reader, writer) = pipe().unwrap();
    let mut create = create_command(&file, "16MiB", &["--rate", "16M"]);
    let mut child = on_descriptor(&mut create, writer)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // This ends the wrapper that held the other end.
    let all = lines(reader);
    assert!(child.wait().unwrap().success());
    assert_end(&all, "done");
    let writes = all.iter().filter(|line| line["phase"] == "write");
    let writes: Vec<_> = writes.collect();
    assert!(writes.len() >= 5, "{all:?}");
    assert!(writes.iter().all(|line| line["total_bytes"] == 16 * MIB));
    let rated = writes
        .iter()
        .filter(|line| line["rate_bytes_per_second"].as_u64() > Some(0));
    assert!(rated.count() >= 3, "{all:?}");
    let last = writes.last().unwrap();
    assert!(last["eta_seconds"].as_f64() < Some(1.0), "{last}");
    assert_eq!(fs::metadata(&file).unwrap().len(), 16 * MIB);
}

#[test]
fn every_long_command_reports_to_a_socket() {
    let work = Workdir::new();
    let pool = work.directory("pool");
    let at = |name: &str| {
        work.path()
            .join(name)
            .into_os_string()
            .into_string()
            .unwrap()
    };
    let pool = pool.to_str().unwrap();
    fs::write(work.path().join("source"), vec![7; 3 << 20]).unwrap();
    let [raw, qcow2, copied] = ["a.raw", "a.qcow2", "b.qcow2"].map(at);
    let [source, target] = ["source", "target"].map(at);
    let file_system = at("ext4");
    run(extant().args(["fs", "mkfs", &file_system, "64MiB"])).success();
    for words in [
        &["create", &raw, "8MiB", "--preallocation", "falloc"][..],
        &["materialize", &raw],
        &["create", &qcow2, "8MiB", "--preallocation", "metadata"],
        &["image", "materialize", &qcow2],
        &["image", "resize", &qcow2, "9MiB"],
        &["image", "convert", &qcow2, &copied],
        &["image", "check", &copied],
        &["vol", "create", pool, "a", "8MiB"],
        &["vol", "clone", pool, "a", "b", "--method", "copy"],
        &["vol", "resize", pool, "a", "9MiB"],
        &["vol", "upload", pool, "c", &source],
        &["vol", "download", pool, "c", &target],
        &["vol", "materialize", pool, "c"],
        &["vol", "wipe", pool, "c"],
        &["job", "watch", pool, "1"],
        &["fs", "put", &file_system, &source, "/"],
        &["fs", "get", &file_system, "/source", &at("back")],
        &["fs", "check", &file_system],
    ] {
        let all = heard(&work, extant().args(words), 0);
        // Earlier lines may have been written before a reader existed.
        assert_end(&all, "done");
    }
}

#[test]
fn failure_before_the_start_sends_an_end_line() {
    let work = Workdir::new();
    let pool = work.directory("pool");
    let create = |words: &[&str]| {
        let mut command = extant();
        command.args(["vol", "create"]).arg(&pool).args(words);
        command
    };
    let all = heard(&work, &mut create(&["a", "1EiB"]), 3);
    assert_end(&all, "failed");
    let end = all.last().unwrap();
    assert_eq!(end["kind"], "no-space", "{end}");
    assert!(
        end["message"].as_str().unwrap().contains("missing"),
        "{end}"
    );
    let mut unknown = extant();
    unknown.args(["vol", "create", "./no-such-pool", "a", "1MiB"]);
    let all = heard(&work, &mut unknown, 4);
    assert_end(&all, "failed");
    assert_eq!(all.last().unwrap()["kind"], "not-found");
    let all = heard(&work, &mut create_command(work.path(), "1MiB", &[]), 4);
    assert_end(&all, "failed");
}

#[test]
fn cancel_is_the_end() {
    let work = Workdir::new();
    let (reader, writer) = pipe().unwrap();
    let file = work.path().join("a");
    let mut create = create_command(&file, "64MiB", &["--rate", "8M"]);
    let mut wrapped = on_descriptor(&mut create, writer);
    let mut child = wrapped.stderr(Stdio::null()).spawn().unwrap();
    // Ours would keep the pipe open.
    drop(wrapped);
    let mut lines = BufReader::new(reader).lines();
    let mut all = vec![parsed(&lines.next().unwrap().unwrap())];
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, Signal::INT).unwrap();
    all.extend(lines.map(|line| parsed(&line.unwrap())));
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_end(&all, "cancelled");
    assert_names(work.path(), &["lock"]);
}

#[test]
fn reader_that_disconnects_changes_nothing() {
    let work = Workdir::new();
    let path = work.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let file = work.path().join("a");
    let mut create = create_command(&file, "16MiB", &["--rate", "16M"]);
    let running = Running::start(create.arg("--progress-socket").arg(&path));
    let (stream, _) = listener.accept().unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    assert_eq!(parsed(&line)["event"], "progress");
    // The other end is closed by now, before further lines.
    let answer = running.wait();
    assert_eq!(answer.code, Some(0), "{answer}");
    assert_eq!(answer.stderr, "", "{answer}");
    assert_eq!(fs::metadata(&file).unwrap().len(), 16 * MIB);
}

/// Fills a pipe until nothing fits any more; by how much.
fn fill(writer: &PipeWriter) -> usize {
    let flags = fcntl_getfl(writer).unwrap();
    fcntl_setfl(writer, flags | OFlags::NONBLOCK).unwrap();
    let (mut to, mut filled) = (writer, 0);
    while let Ok(written) = to.write(b"\n") {
        filled += written;
    }
    fcntl_setfl(writer, flags).unwrap();
    filled
}

#[test]
fn slow_reader_blocks_no_writer_and_receives_the_newest_line_later() {
    let work = Workdir::new();
    let (mut reader, writer): (PipeReader, PipeWriter) = pipe().unwrap();
    let filled = fill(&writer);
    let file = work.path().join("a");
    let size = 48 * MIB;
    let mut create = create_command(&file, "48MiB", &["--rate", "16M"]);
    let mut wrapped = on_descriptor(&mut create, writer);
    let mut child = wrapped.spawn().unwrap();
    drop(wrapped);
    // Two thirds are written without a reader.
    let partial = support::partial_of(&file);
    let written = || {
        let map = partial
            .exists()
            .then(|| extant_testkit::oracle::filefrag(&partial));
        map.map_or(0, |map| map.bytes(extant_space::ExtentState::Written))
    };
    wait_until("two thirds of the file", || written() >= size * 2 / 3);
    std::io::Read::read_exact(&mut reader, &mut vec![0; filled]).unwrap();
    let all = lines(reader);
    assert!(child.wait().unwrap().success());
    assert_end(&all, "done");
    // The first was on its way when the pipe was full; those between are dropped.
    let jump = all[1]["done_bytes"].as_u64().unwrap();
    assert!(jump >= size / 2, "{all:?}");
    assert_eq!(fs::metadata(&file).unwrap().len(), size);
}

#[test]
fn reader_that_never_reads_does_not_delay_the_command() {
    let work = Workdir::new();
    let (reader, writer) = pipe().unwrap();
    fill(&writer);
    let file = work.path().join("a");
    let mut create = create_command(&file, "4MiB", &[]);
    let status = on_descriptor(&mut create, writer).status().unwrap();
    assert!(status.success());
    assert_eq!(fs::metadata(&file).unwrap().len(), 4 * MIB);
    drop(reader);
}

#[test]
fn missing_listener_is_an_error_before_any_change() {
    let work = Workdir::new();
    let file = work.path().join("a");
    let socket = work.path().join("socket");
    let socket = socket.to_str().unwrap();
    let create = |more: &[&str]| run(&mut create_command(&file, "1MiB", more));
    create(&["--progress-fd", "77"]).refused(2, &["descriptor 77", "not open"]);
    create(&["--progress-fd", "0"]).refused(2, &["descriptor 0", "for writing"]);
    create(&["--progress-fd=-1"]).refused(2, &["--progress-fd"]);
    create(&["--progress-socket", socket]).refused(4, &["socket"]);
    let both = ["--progress-socket", socket, "--progress-fd", "2"];
    create(&both).refused(2, &["--progress-fd"]);
    assert_names(work.path(), &["lock"]);
    let pool = work.directory("pool");
    let mut detached = extant();
    detached.args(["vol", "create"]).arg(&pool);
    let detached = detached.args(["a", "1MiB", "--detach", "--progress-fd", "2"]);
    run(detached).refused(2, &["--detach"]);
    assert_names(&pool, &[]);
}

#[test]
fn watch_reports_a_job_of_another_process_to_a_socket() {
    let work = Workdir::new();
    let pool = work.directory("pool");
    let path = work.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let job = |word: &str| {
        let mut command = extant();
        command.args(["job", word]).arg(&pool).arg("1");
        command
    };
    let mut create = extant();
    create.args(["vol", "create"]).arg(&pool);
    run(create.args(["a", "64MiB", "--rate", "8M", "--detach"])).success();
    let mut watch = job("watch");
    let watch = Running::start(watch.arg("--progress-socket").arg(&path));
    let mut lines = accepted(&listener).lines();
    let mut all = vec![parsed(&lines.next().unwrap().unwrap())];
    run(&mut job("cancel")).success();
    all.extend(lines.map(|line| parsed(&line.unwrap())));
    assert_eq!(watch.wait().code, Some(130));
    assert_end(&all, "cancelled");
}

fn accepted(listener: &UnixListener) -> BufReader<UnixStream> {
    BufReader::new(listener.accept().unwrap().0)
}

#[test]
fn program_that_listens_to_many_takes_them_one_after_the_other() {
    let work = Workdir::new();
    let path = work.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let start = |name: &str| {
        let file = work.path().join(name);
        let mut create = create_command(&file, "1MiB", &[]);
        Running::start(create.arg("--progress-socket").arg(&path))
    };
    let running: Vec<Running> = (0..6).map(|number| start(&number.to_string())).collect();
    // They end although no connection has been accepted.
    for run in running {
        let answer = run.wait();
        assert_eq!(answer.code, Some(0), "{answer}");
    }
    for _ in 0..6 {
        assert_end(&lines(listener.accept().unwrap().0), "done");
    }
}

#[test]
fn command_goes_on_without_a_reader_of_stderr() {
    let work = Workdir::new();
    let file = work.path().join("a");
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    let words = ["--progress", "json", "--rate", "16M"];
    let status = create_command(&file, "4MiB", &words)
        .stderr(writer)
        .status();
    assert_eq!(status.unwrap().code(), Some(0));
    assert_eq!(fs::metadata(&file).unwrap().len(), 4 * MIB);
}
