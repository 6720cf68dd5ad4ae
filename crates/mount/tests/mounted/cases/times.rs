//! Times: which of them calls move.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;

use rustix::fs::{
    AtFlags, CWD, Dir, FallocateFlags, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps,
    UTIME_NOW, UTIME_OMIT, XattrFlags, chmod, chown, fallocate, link, openat, readlink,
    renameat_with, setxattr, symlink, unlink, utimensat,
};

use super::{Case, Expect, same};
use crate::notes::Notes;

pub const CASES: &[Case] = &[
    same("utimensat", "times that are set", times_set),
    same("times", "times of a file", of_a_file),
    same("times", "times of a directory", of_a_directory),
    same("relatime", "time of access", of_access),
    same(
        "chattr (FS_IOC_SETFLAGS)",
        "times of a directory with other flags",
        |notes| of_other_flags(notes, "d"),
    ),
    Case {
        name: "times of a file with other flags",
        row: "times after chattr of a file",
        expect: Expect::LimitOfWriteback,
        run: |notes| of_other_flags(notes, "f"),
    },
    Case {
        name: "times of a direct write",
        row: "times after a write with O_DIRECT",
        expect: Expect::LimitOfWriteback,
        run: of_a_direct_write,
    },
    Case {
        name: "times of a cut that cuts nothing",
        row: "times after truncate to the same size",
        expect: Expect::LimitOfWriteback,
        run: of_a_cut_of_nothing,
    },
];

fn at(seconds: i64, nanoseconds: i64) -> Timespec {
    Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds as _,
    }
}

fn set(
    notes: &Notes,
    name: &str,
    accessed: Timespec,
    modified: Timespec,
) -> rustix::io::Result<()> {
    let times = Timestamps {
        last_access: accessed,
        last_modification: modified,
    };
    utimensat(CWD, notes.at(name), &times, AtFlags::SYMLINK_NOFOLLOW)
}

fn times_set(notes: &mut Notes) {
    fs::write(notes.at("f"), "").unwrap();
    fs::create_dir(notes.at("d")).unwrap();
    symlink("f", notes.at("s")).unwrap();
    let omit = at(0, UTIME_OMIT);
    for name in ["f", "d", "s"] {
        for (accessed, modified) in [
            (
                at(1_000_000_000, 123_456_789),
                at(1_100_000_000, 987_654_321),
            ),
            (omit, at(0, 0)),
            (at(-1_000_000, 5), omit),
            (at(3_000_000_000, 1), at(15_000_000_000, 2)),
        ] {
            notes.answer("set", set(notes, name, accessed, modified));
            let stat = notes.look(name).unwrap();
            let shown = [stat.stx_atime, stat.stx_mtime].map(|time| (time.tv_sec, time.tv_nsec));
            notes.note(name, shown);
        }
    }
    notes.answer("wrong", set(notes, "f", at(0, 2_000_000_000), omit));
    notes.moves("now", "f", |notes| {
        let now = at(0, UTIME_NOW);
        notes.answer("set", set(notes, "f", now, now));
    });
    chmod(notes.at("f"), Mode::from_raw_mode(0o666)).unwrap();
    notes.shell(1000, "touch f; touch -d 2001-01-01 f");
}

fn of_a_file(notes: &mut Notes) {
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .write(true)
        .create(true)
        .open(notes.at("f"))
        .unwrap();
    file.write_all_at(&[1; 10_000], 0).unwrap();
    notes.moves("write", "f", |_| file.write_all_at(b"x", 0).unwrap());
    notes.moves("write of nothing", "f", |_| {
        file.write_all_at(b"", 0).unwrap()
    });
    notes.moves("extend", "f", |_| file.write_all_at(b"x", 20_000).unwrap());
    notes.moves("truncate", "f", |_| file.set_len(10).unwrap());
    notes.moves("ftruncate to the same size", "f", |_| {
        file.set_len(10).unwrap()
    });
    notes.moves("fallocate", "f", |_| {
        fallocate(&file, FallocateFlags::empty(), 0, 8192).unwrap();
    });
    notes.moves("punch", "f", |_| {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, mode, 0, 4096).unwrap();
    });
    notes.moves("open to truncate", "f", |notes| {
        drop(File::create(notes.at("f")).unwrap())
    });
    notes.moves("open to truncate nothing", "f", |notes| {
        drop(File::create(notes.at("f")).unwrap())
    });
    notes.moves("chmod", "f", |notes| {
        chmod(notes.at("f"), Mode::from_raw_mode(0o600)).unwrap()
    });
    notes.moves("chown", "f", |notes| {
        chown(notes.at("f"), None, Some(Gid::from_raw(1))).unwrap()
    });
    notes.moves("link", "f", |notes| {
        link(notes.at("f"), notes.at("g")).unwrap()
    });
    notes.moves("unlink", "f", |notes| unlink(notes.at("g")).unwrap());
    notes.moves("rename there and back", "f", |notes| {
        fs::rename(notes.at("f"), notes.at("h")).unwrap();
        fs::rename(notes.at("h"), notes.at("f")).unwrap();
    });
}

fn of_a_direct_write(notes: &mut Notes) {
    fs::write(notes.at("f"), [1; 8192]).unwrap();
    notes.moves("direct write", "f", |notes| {
        notes.shell(
            0,
            "dd if=/dev/zero of=f bs=4096 count=1 conv=notrunc oflag=direct 2>/dev/null",
        )
    });
}

fn of_a_cut_of_nothing(notes: &mut Notes) {
    fs::write(notes.at("f"), "0123456789").unwrap();
    notes.moves("truncate", "f", |notes| {
        notes.shell(0, "perl -e 'truncate(\"f\", 10)'")
    });
}

fn of_a_directory(notes: &mut Notes) {
    let path = |name: &str| format!("d/{name}");
    fs::create_dir(notes.at("d")).unwrap();
    fs::create_dir(notes.at("e")).unwrap();
    fs::write(notes.at(&path("a")), "").unwrap();
    notes.moves("create", "d", |notes| {
        drop(File::create(notes.at("d/f")).unwrap())
    });
    notes.moves("open again", "d", |notes| {
        drop(File::create(notes.at("d/f")).unwrap())
    });
    notes.moves("mkdir", "d", |notes| {
        fs::create_dir(notes.at("d/x")).unwrap()
    });
    notes.moves("rmdir", "d", |notes| {
        fs::remove_dir(notes.at("d/x")).unwrap()
    });
    notes.moves("link", "d", |notes| {
        link(notes.at("d/f"), notes.at("d/g")).unwrap()
    });
    notes.moves("unlink", "d", |notes| unlink(notes.at("d/g")).unwrap());
    notes.moves("symlink", "d", |notes| {
        symlink("f", notes.at("d/s")).unwrap()
    });
    notes.moves("rename away", "d", |notes| {
        fs::rename(notes.at("d/f"), notes.at("e/f")).unwrap()
    });
    notes.moves("rename back", "e", |notes| {
        fs::rename(notes.at("e/f"), notes.at("d/f")).unwrap()
    });
    notes.moves("rename within", "d", |notes| {
        fs::rename(notes.at("d/f"), notes.at("d/g")).unwrap()
    });
    notes.moves("exchange", "d/g", |notes| {
        let (a, b) = (notes.at("d/g"), notes.at("d/a"));
        renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).unwrap();
        let (a, b) = (notes.at("d/g"), notes.at("d/a"));
        renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).unwrap();
    });
    notes.moves("attribute", "d", |notes| {
        setxattr(notes.at("d"), "user.a", b"b", XattrFlags::empty()).unwrap();
    });
    notes.moves("chmod of what is inside", "d", |notes| {
        chmod(notes.at("d/g"), Mode::from_raw_mode(0o600)).unwrap();
    });
}

fn of_access(notes: &mut Notes) {
    let old = at(1_000_000_000, 0);
    fs::write(notes.at("f"), "content").unwrap();
    File::open(notes.at("f")).unwrap().sync_all().unwrap();
    // Listing one fills the cache of its names.
    for directory in ["d", "n"] {
        fs::create_dir(notes.at(directory)).unwrap();
        fs::write(notes.at(directory).join("x"), "").unwrap();
    }
    symlink("f", notes.at("s")).unwrap();
    for name in ["f", "d", "n", "s"] {
        set(notes, name, old, at(0, UTIME_OMIT)).unwrap();
    }
    // Not in the cache, so that the file system is asked.
    let read = |notes: &mut Notes, name: &str| {
        notes.shell(
            0,
            &format!("dd if={name} iflag=nocache count=0 2>/dev/null; cat {name} >/dev/null"),
        );
    };
    let list = |notes: &Notes, name: &str| {
        fs::read_dir(notes.at(name)).unwrap().count();
    };
    notes.moves("read with O_NOATIME", "f", |notes| {
        notes.shell(
            0,
            "dd if=f iflag=nocache count=0 2>/dev/null; dd if=f iflag=noatime 2>/dev/null >&2",
        );
    });
    notes.moves("list with O_NOATIME", "n", |notes| {
        let flags = OFlags::DIRECTORY | OFlags::NOATIME;
        let open = openat(CWD, notes.at("n"), flags, Mode::empty()).unwrap();
        Dir::new(open).unwrap().count();
    });
    notes.moves("read", "f", |notes| read(notes, "f"));
    notes.moves("list", "d", |notes| list(notes, "d"));
    notes.moves("readlink", "s", |notes| {
        drop(readlink(notes.at("s"), Vec::new()).unwrap())
    });
    notes.moves("read again", "f", |notes| read(notes, "f"));
    notes.moves("list again", "d", |notes| list(notes, "d"));
}

fn of_other_flags(notes: &mut Notes, name: &str) {
    fs::write(notes.at("f"), "").unwrap();
    fs::create_dir(notes.at("d")).unwrap();
    for flag in ["+d", "-d"] {
        notes.moves(&format!("chattr {flag}"), name, |notes| {
            notes.shell(0, &format!("chattr {flag} {name}"));
        });
    }
}
