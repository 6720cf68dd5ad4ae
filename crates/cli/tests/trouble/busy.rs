//! Files in use by other processes: refused with the user's name, or stopped when they are opened.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};

use extant_space::ExtentState;
use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::{command, oracle, require, requires};

use crate::support::{
    MIB, Running, assert_names, create, extant, lengthen, materialize, noise, run, wait_until,
};

/// 1 MiB of data, then a hole up to `size`; returns the data.
#[track_caller]
fn holey_file(file: &Path, size: u64) -> Vec<u8> {
    let mut data = noise(7, MIB as usize);
    fs::write(file, &data).unwrap();
    lengthen(file, size);
    data.resize(size as usize, 0);
    data
}

/// Another process that has a file open; ended when dropped.
struct Holder(Child);

impl Holder {
    fn of(file: &Path, write: bool) -> Self {
        let open = fs::File::options().read(true).write(write).open(file);
        let child = command::tool("sleep")
            .arg("600")
            .stdin(Stdio::from(open.unwrap()))
            .spawn()
            .unwrap();
        let comm = format!("/proc/{}/comm", child.id());
        wait_until("sleep runs", || {
            fs::read_to_string(&comm).is_ok_and(|name| name == "sleep\n")
        });
        Self(child)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn open_file_is_refused_with_the_process_name() {
    require!(Filesystem::Ext4.requirement());
    let scratch = Scratch::new(Filesystem::Ext4, 64 * MIB);
    let file = scratch.path().join("a");
    let data = holey_file(&file, 4 * MIB);
    let before = oracle::filefrag(&file);
    for (write, how) in [(true, "writing"), (false, "reading")] {
        let holder = Holder::of(&file, write);
        let who = format!("sleep (pid {}, {how})", holder.0.id());
        materialize(&file, &[]).refused(4, &["/a: ", &who, "--shared"]);
        assert_eq!(oracle::filefrag(&file), before);
    }
    let _holder = Holder::of(&file, true);
    materialize(&file, &["--shared"]).success();
    assert!(oracle::filefrag(&file).is_extant());
    assert!(fs::read(&file).unwrap() == data);
}

#[test]
fn opener_continues_and_materialize_stops_with_the_data_intact() {
    require!(Filesystem::Ext4.requirement());
    let scratch = Scratch::new(Filesystem::Ext4, 128 * MIB);
    let file = scratch.path().join("a");
    let data = holey_file(&file, 48 * MIB);
    let mut command = extant();
    command.arg("materialize").arg(&file);
    let running = Running::start(command.args(["--rate", "8M"]));
    // filefrag would break the lease itself; the used space of the disk shows it as well.
    wait_until("space taken", || oracle::allocated_bytes(&file) > 40 * MIB);
    // Waits in the kernel until the lease is released.
    let mut opened = fs::File::options()
        .read(true)
        .write(true)
        .open(&file)
        .unwrap();
    let answer = running.wait();
    answer.refused(4, &["/a: ", "another process opens the file", "run again"]);
    let mut now = Vec::new();
    std::io::Read::read_to_end(&mut opened, &mut now).unwrap();
    assert!(now == data);
    drop(opened);
    assert!(oracle::filefrag(&file).bytes(ExtentState::Unwritten) > 0);

    materialize(&file, &[]).success();
    assert!(oracle::filefrag(&file).is_extant());
    assert!(fs::read(&file).unwrap() == data);
}

/// An active swap file; inactive when dropped.
struct Swap<'p>(&'p Path);

impl<'p> Swap<'p> {
    fn on(file: &'p Path) -> Self {
        command::run(command::tool("mkswap").arg(file)).unwrap();
        command::run(command::tool("swapon").arg(file)).unwrap();
        Self(file)
    }
}

impl Drop for Swap<'_> {
    fn drop(&mut self) {
        let _ = command::run(command::tool("swapoff").arg(self.0));
    }
}

#[test]
fn active_swap_file_is_left_alone() {
    require!(
        Filesystem::Ext4.requirement(),
        requires::tool("mkswap"),
        requires::tool("swapon")
    );
    let scratch = Scratch::new(Filesystem::Ext4, 64 * MIB);
    let file = scratch.path().join("swap");
    // Made by us: a swap file must be extant, and this is the way to get one.
    create(&file, "8MiB", &["--mode", "0600"]).success();
    let swap = Swap::on(&file);
    let before = oracle::filefrag(&file);
    materialize(&file, &[]).refused(4, &["/swap: ", "swap file"]);
    materialize(&file, &["--shared"]).refused(4, &["/swap: ", "swap file"]);
    create(&file, "1MiB", &["--force"]).refused(4, &["/swap: "]);
    for options in [&["-l", "16MiB"][..], &["-w", "-l", "4MiB"], &["-d"]] {
        let answer = run(extant().arg("fallocate").args(options).arg(&file));
        assert_eq!(answer.code, Some(1), "{answer}");
        assert_eq!(answer.stderr.lines().count(), 1, "{answer}");
    }
    assert_eq!(oracle::filefrag(&file), before);
    drop(swap);
    assert_names(scratch.path(), &["swap"]);
}

#[test]
fn running_program_is_left_alone() {
    require!(Filesystem::Ext4.requirement());
    let scratch = Scratch::new(Filesystem::Ext4, 64 * MIB);
    let program = scratch.path().join("program");
    fs::copy(command::find("sleep").unwrap(), &program).unwrap();
    let mut child = std::process::Command::new(&program)
        .arg("600")
        .spawn()
        .unwrap();
    let answer = materialize(&program, &["--shared"]);
    child.kill().unwrap();
    child.wait().unwrap();
    answer.refused(4, &["/program: ", "running program"]);
}
