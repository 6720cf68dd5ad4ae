//! `FS_IOC_SHUTDOWN` on a real mount: the answers afterwards beside the kernel's ext4, what is
//! durable, and mounts that are busy meanwhile.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use extant_blockdev::MemoryDevice;
use extant_ext4::{FileType, Filesystem};
use extant_space::SpaceFile;
use extant_testkit::command::{run, run_any_status, tool};
use extant_testkit::oracle::assert_e2fsck_clean;
use extant_testkit::scratch::{LoopDevice, Mount};
use extant_testkit::workdir::Workdir;
use extant_testkit::{require, requires};
use rustix::fs::{
    FallocateFlags, OFlags, SeekFrom, XattrFlags, copy_file_range, fallocate, fdatasync, fgetxattr,
    flistxattr, fsetxattr, ioctl_getflags, seek, syncfs,
};
use rustix::io::Errno;

use crate::control::Calls;
use crate::mounts::{Ours, Theirs, needs};
use crate::notes::Notes;

const SHUTDOWN: u32 = 0x8004_587D;
const TRIM: u32 = 0xC018_5879;
const MAPPER: &str = include_str!("shutdown.c");
const PIECE: usize = 4096;
/// Pieces that an appender appends at most.
const PIECES_MAX: u64 = 1000;

/// The values of the flags.
const DEFAULT: u32 = 0;
const LOGFLUSH: u32 = 1;
const NOLOGFLUSH: u32 = 2;

fn shut_down(calls: &mut Calls, mount: &Path, flags: u32) {
    let answer = calls.call(mount, SHUTDOWN, &flags.to_ne_bytes());
    assert_eq!(answer, Ok(flags.to_ne_bytes().to_vec()));
}

/// Answers that differ from the kernel's, which `docs/semantics.md` lists.
const DIFFERENT: [&str; 4] = ["read past the end", "syncfs", "get flags", "trim"];
const DIFFERENT_WITH_WRITEBACK: &str = "write of a page";

fn answers(mount: &Path, calls: &mut Calls) -> Vec<String> {
    let mut notes = Notes::new(mount.to_owned());
    let at = |name: &str| mount.join(name);
    fs::write(at("f"), [1; 3 * PIECE]).unwrap();
    fs::create_dir(at("d")).unwrap();
    fs::write(at("d/f"), "").unwrap();
    symlink("f", at("symlink")).unwrap();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(at("f"))
        .unwrap();
    fsetxattr(&file, "user.known", b"value", XattrFlags::empty()).unwrap();
    file.sync_all().unwrap();
    let root = File::open(mount).unwrap();
    let mut buffer = [0; PIECE];
    file.read_exact_at(&mut buffer, 0).unwrap();

    let wrong = calls.call(mount, SHUTDOWN, &9u32.to_ne_bytes());
    notes.note("unknown flags", wrong.is_err());
    shut_down(calls, mount, NOLOGFLUSH);
    shut_down(calls, mount, DEFAULT);

    notes.call("stat", fs::metadata(at("f")));
    notes.call("stat of what was not looked up", fs::metadata(at("d/f")));
    notes.call("stat of nothing", fs::metadata(at("none")));
    notes.answer("list", fs::read_dir(at("d")).map(Iterator::count));
    notes.call("readlink", fs::read_link(at("symlink")));
    notes.call("list xattrs", flistxattr(&file, &mut [0u8; 100]));
    notes.call("get xattr", fgetxattr(&file, "user.known", &mut [0u8; 9]));
    let set = fsetxattr(&file, "user.new", b"value", XattrFlags::empty());
    notes.call("set xattr", set);
    notes.call("open", File::open(at("f")));
    let write = OpenOptions::new().write(true).open(at("f"));
    notes.call("open to write", write);
    notes.call("open a directory", File::open(at("d")));
    notes.call("read", file.read_at(&mut buffer, 0));
    notes.call("read past the end", file.read_at(&mut buffer, 1 << 20));
    // Before the lost write of a page, which it reports.
    notes.call("syncfs", syncfs(&root));
    notes.call("write", file.write_at(b"new", 1));
    notes.call("write of a page", file.write_at(&[2; PIECE], 0));
    notes.call("truncate", file.set_len(5));
    notes.call("fsync", file.sync_all());
    notes.call("fdatasync", fdatasync(&file));
    notes.call("fsync of a directory", root.sync_all());
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    notes.call("punch", fallocate(&file, punch, 0, PIECE as u64));
    let allocate = FallocateFlags::empty();
    notes.call("allocate", fallocate(&file, allocate, 0, 1 << 20));
    notes.call("seek the end", seek(&file, SeekFrom::End(0)));
    let (mut from, mut to) = (0, 2 * PIECE as u64);
    let copied = copy_file_range(&file, Some(&mut from), &file, Some(&mut to), 100);
    notes.call("copy", copied);
    notes.call("mkdir", fs::create_dir(at("new")));
    notes.call("create", File::create(at("new")));
    notes.call("symlink", symlink("f", at("new")));
    notes.call("link", fs::hard_link(at("f"), at("new")));
    notes.call("unlink", fs::remove_file(at("d/f")));
    notes.call("rmdir", fs::remove_dir(at("d")));
    notes.call("rename", fs::rename(at("f"), at("new")));
    let mode = fs::metadata(at("d")).unwrap().permissions();
    notes.call("chmod", fs::set_permissions(at("d"), mode));
    let unnamed = OpenOptions::new()
        .write(true)
        .custom_flags(OFlags::TMPFILE.bits() as i32)
        .open(mount);
    notes.call("open with O_TMPFILE", unnamed);
    notes.call("statfs", rustix::fs::statvfs(mount));
    notes.call("get flags", ioctl_getflags(&file));
    let range = [0, u64::MAX, 0].map(u64::to_ne_bytes).concat();
    let trimmed = calls.call(mount, TRIM, &range).map(drop);
    notes.call("trim", trimmed.map_err(Errno::from_raw_os_error));
    // Dirty data cannot be written any more, which this close would report.
    drop(file);
    notes.lines()
}

#[test]
fn calls_after_a_shutdown_answer_as_those_of_the_kernel() {
    let [a, b, c, d, e, f] = needs();
    require!(a, b, c, d, e, f, requires::tool("perl"));
    for is_written_back in [true, false] {
        let cache = ["no_writeback", "writeback"][usize::from(is_written_back)];
        let (ours, theirs) = (Ours::new(32, cache), Theirs::new(32));
        let mut calls = Calls::new();
        let found = answers(ours.path(), &mut calls);
        let expected = answers(theirs.path(), &mut calls);
        drop(calls);
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(&expected) {
            let call = found.split(": ").next().unwrap();
            let differs =
                DIFFERENT.contains(&call) || is_written_back && call == DIFFERENT_WITH_WRITEBACK;
            assert_eq!(found != expected, differs, "{cache}: {found}, {expected}");
        }
        ours.end_as_it_is();
    }
}

/// The content of a file in an image.
fn content(filesystem: &Filesystem, name: &str) -> Option<Vec<u8>> {
    let node = filesystem.root().unwrap().lookup(name.as_bytes()).ok()?;
    assert_eq!(node.file_type(), FileType::Regular);
    let mut data = vec![0; node.attributes().size_bytes as usize];
    node.file().unwrap().read_at(&mut data, 0).unwrap();
    Some(data)
}

/// Has e2fsck replay the journal of a copy, and finds the same with the kernel's ext4. Our own
/// replay leaves a clean image.
fn judge(device: &Arc<MemoryDevice>, check: impl Fn(&dyn Fn(&str) -> Option<Vec<u8>>)) {
    let ours = Filesystem::open(device.clone(), Default::default());
    let work = Workdir::new();
    let image = work.path().join("image");
    // Before ours has changed it.
    fs::write(&image, device.to_vec()).unwrap();
    let ours = ours.unwrap();
    check(&|name| content(&ours, name));
    ours.close().unwrap();
    let closed = work.path().join("closed");
    fs::write(&closed, device.to_vec()).unwrap();
    assert_e2fsck_clean(&closed);

    let kernels = work.path().join("kernels");
    fs::copy(&image, &kernels).unwrap();
    let directory = work.directory("mount");
    for (path, is_checked) in [(&image, true), (&kernels, false)] {
        if is_checked {
            let checked = run_any_status(tool("e2fsck").arg("-fy").arg(path)).unwrap();
            // 1 says that something was done: the replay.
            let said = String::from_utf8_lossy(&checked.stdout);
            assert!(matches!(checked.status.code(), Some(0 | 1)), "{said}");
            assert_e2fsck_clean(path);
        }
        let attached = LoopDevice::attach(path);
        let mount = Mount::new("ext4", attached.path(), &directory, "");
        check(&|name| fs::read(mount.path().join(name)).ok());
    }
}

/// An independent program that shuts file systems down. As [`Calls`] it is started before any file
/// is opened.
struct XfsIo(Child);

impl XfsIo {
    fn start(mount: &Path) -> Self {
        let mut command = tool("xfs_io");
        command.arg("-x").arg(mount).stdin(Stdio::piped());
        Self(command.stdout(Stdio::null()).spawn().unwrap())
    }

    fn run(mut self, command: &str) {
        writeln!(self.0.stdin.take().unwrap(), "{command}").unwrap();
        assert!(self.0.wait().unwrap().success(), "{command}");
    }
}

impl Drop for XfsIo {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn flags_say_what_is_durable_and_nothing_is_written_afterwards() {
    let [a, b, c, d, e, f] = needs();
    require!(
        a,
        b,
        c,
        d,
        e,
        f,
        requires::tool("perl"),
        requires::tool("xfs_io")
    );
    // The rest of a file that was written and not synced: its name, and its data.
    for (flags, has_name, has_data) in [
        (DEFAULT, true, true),
        (LOGFLUSH, true, false),
        (NOLOGFLUSH, false, false),
    ] {
        let ours = Ours::new(32, "writeback,commit=300");
        let mut calls = Calls::new();
        let xfs_io = XfsIo::start(ours.path());
        let write = |name: &str, data: &[u8]| {
            let file = File::create(ours.path().join(name)).unwrap();
            file.write_all_at(data, 0).unwrap();
            file
        };
        let synced = write("synced", &[1; 10_000]);
        synced.sync_all().unwrap();
        let later = write("later", &[2; 10_000]);
        match flags {
            DEFAULT => {
                drop(xfs_io);
                shut_down(&mut calls, ours.path(), flags);
            }
            LOGFLUSH => xfs_io.run("shutdown -f"),
            _ => xfs_io.run("shutdown"),
        }
        let left = ours.content();
        let needs_recovery = left[1024 + 0x60] & 4 == 4;
        assert_eq!(needs_recovery, flags != DEFAULT);
        if flags != DEFAULT {
            // Its dirty data is lost, and it says so.
            let lost = later.sync_all().unwrap_err();
            assert_eq!(lost.raw_os_error(), Some(Errno::IO.raw_os_error()));
        }
        drop((synced, later, calls));
        let device = ours.end_as_it_is();
        assert!(left == device.to_vec(), "{flags}: something was written");
        judge(&device, |content| {
            assert_eq!(content("synced"), Some(vec![1; 10_000]), "{flags}");
            let later = content("later");
            assert_eq!(later.is_some(), has_name, "{flags}");
            assert_eq!(later == Some(vec![2; 10_000]), has_data, "{flags}");
        });
    }
}

/// Appends numbered pieces until it is refused.
struct Appender {
    name: String,
    /// Whether the data goes past the kernel's cache; otherwise each piece is synced.
    is_direct: bool,
    appended: AtomicU64,
}

impl Appender {
    fn run(&self, directory: &Path) {
        let flags = if self.is_direct {
            OFlags::DIRECT.bits() as i32
        } else {
            0
        };
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags(flags)
            .open(directory.join(&self.name))
            .unwrap();
        for number in 0.. {
            // Later ones overwrite the first, with the same data.
            let place = if number < PIECES_MAX { number } else { 0 };
            let appended = file
                .write_all_at(&piece(place), place * PIECE as u64)
                .and_then(|()| {
                    if self.is_direct {
                        Ok(())
                    } else {
                        file.sync_data()
                    }
                });
            if let Err(error) = appended {
                assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()));
                return;
            }
            if number < PIECES_MAX {
                self.appended.store(number + 1, Ordering::SeqCst);
            }
        }
    }
}

fn piece(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(PIECE / 8)
}

/// A process of `shutdown.c`.
struct Mapper {
    process: Child,
    lines: BufReader<ChildStdout>,
}

impl Mapper {
    fn start(program: &Path, file: PathBuf) -> Self {
        let mut process = Command::new(program)
            .arg(file)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap());
        Self { process, lines }
    }

    fn expect(&mut self, line: &str) {
        let mut said = String::new();
        self.lines.read_line(&mut said).unwrap();
        assert_eq!(said.trim_end(), line);
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn busy_mount_with_mapped_files_is_shut_down_and_unmounted() {
    let [a, b, c, d, e, f] = needs();
    require!(
        a,
        b,
        c,
        d,
        e,
        f,
        requires::tool("perl"),
        requires::tool("cc")
    );
    let work = Workdir::new();
    let (source, program) = (work.path().join("map.c"), work.path().join("map"));
    fs::write(&source, MAPPER).unwrap();
    run(tool("cc")
        .args(["-D_GNU_SOURCE", "-O1", "-Wall", "-Werror", "-o"])
        .args([&program, &source]))
    .unwrap_or_else(|failure| panic!("{failure}"));
    for (flags, cache) in [
        (DEFAULT, "writeback"),
        (LOGFLUSH, "no_writeback"),
        (NOLOGFLUSH, "writeback"),
    ] {
        let ours = Ours::new(48, cache);
        let mut calls = Calls::new();
        let mut mappers: Vec<_> = (0..3)
            .map(|number| Mapper::start(&program, ours.path().join(format!("mapped{number}"))))
            .collect();
        for mapper in &mut mappers {
            mapper.expect("mapped");
        }
        let appenders = ["synced1", "synced2", "direct1", "direct2"].map(|name| Appender {
            name: name.to_owned(),
            is_direct: name.starts_with("direct"),
            appended: AtomicU64::new(0),
        });
        let left = thread::scope(|scope| {
            for appender in &appenders {
                scope.spawn(|| appender.run(ours.path()));
            }
            let appended = |it: &Appender| it.appended.load(Ordering::SeqCst);
            while appenders.iter().any(|it| appended(it) < 10) {
                thread::sleep(Duration::from_millis(1));
            }
            shut_down(&mut calls, ours.path(), flags);
            ours.content()
        });
        for mapper in &mut mappers {
            mapper.expect("bus");
        }
        drop((mappers, calls));
        let device = ours.end_as_it_is();
        assert!(
            left == device.to_vec(),
            "{flags} {cache}: something was written"
        );
        judge(&device, |content| {
            for appender in &appenders {
                // Data that was not synced is durable by the flags alone.
                if appender.is_direct && flags == NOLOGFLUSH {
                    continue;
                }
                let found = content(&appender.name).unwrap();
                for number in 0..appender.appended.load(Ordering::SeqCst) {
                    let at = number as usize * PIECE;
                    assert!(
                        found.get(at..at + PIECE) == Some(&piece(number)),
                        "{flags} {cache}: piece {number} of {} is lost",
                        appender.name
                    );
                }
            }
        });
    }
}
