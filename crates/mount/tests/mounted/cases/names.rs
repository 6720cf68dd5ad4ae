//! Names.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use rustix::fs::{
    AtFlags, CWD, Dev, FileType, Mode, OFlags, RenameFlags, link, linkat, makedev, mkdir, mknodat,
    open, readlink, rename, renameat_with, rmdir, symlink, unlink,
};

use super::{Case, same};
use crate::notes::Notes;

pub const CASES: &[Case] = &[
    same("open, creat", "open with flags", open_with_flags),
    same("open, creat", "names too long", names_too_long),
    same("open with O_TMPFILE", "unnamed files", unnamed_files),
    same("mkdir, rmdir", "directories", directories),
    same("mknod", "special files", special_files),
    same("symlink, readlink", "symbolic links", symbolic_links),
    same("link", "hard links", hard_links),
    same("unlink", "unlink", unlinks),
    same("unlink", "unlinked file stays usable", unlinked_file),
    same("rename, renameat2", "rename", renames),
    same("rename, renameat2", "rename with flags", renames_with_flags),
    same("getdents", "listing", listing),
];

fn make(notes: &Notes, name: &str, content: &str) {
    fs::write(notes.at(name), content).unwrap();
}

fn read(notes: &Notes, name: &str) -> std::io::Result<String> {
    fs::read_to_string(notes.at(name))
}

fn open_with_flags(notes: &mut Notes) {
    let mode = Mode::from_raw_mode(0o640);
    let create = OFlags::RDWR | OFlags::CREATE;
    notes.call("open a", open(notes.at("a"), create, mode));
    notes.stat("a");
    notes.call(
        "again, exclusive",
        open(notes.at("a"), create | OFlags::EXCL, mode),
    );
    make(notes, "a", "content");
    notes.call(
        "again, truncating",
        open(notes.at("a"), create | OFlags::TRUNC, mode),
    );
    notes.stat("a");
    notes.call("absent", open(notes.at("b"), OFlags::RDONLY, mode));
    fs::create_dir(notes.at("d")).unwrap();
    notes.call(
        "directory to write",
        open(notes.at("d"), OFlags::RDWR, mode),
    );
    notes.call("directory to create", open(notes.at("d"), create, mode));
    let directory = OFlags::RDONLY | OFlags::DIRECTORY;
    notes.call("file as directory", open(notes.at("a"), directory, mode));
    notes.call(
        "file with slash",
        open(notes.at("a/"), OFlags::RDONLY, mode),
    );
    notes.call("below a file", open(notes.at("a/b"), OFlags::RDONLY, mode));
    symlink("a", notes.at("s")).unwrap();
    let no_follow = OFlags::RDONLY | OFlags::NOFOLLOW;
    notes.call("link, not followed", open(notes.at("s"), no_follow, mode));
    notes.call(
        "link, exclusive",
        open(notes.at("s"), create | OFlags::EXCL, mode),
    );
    symlink("nowhere", notes.at("dangling")).unwrap();
    notes.call("dangling", open(notes.at("dangling"), create, mode));
    notes.stat("nowhere");
    notes.call(
        "odd mode",
        open(notes.at("odd"), create, Mode::from_raw_mode(0o7777)),
    );
    notes.stat("odd");
}

fn names_too_long(notes: &mut Notes) {
    let (long, longest) = ("x".repeat(256), "y".repeat(255));
    notes.call("open 256", File::create(notes.at(&long)));
    notes.call("256 names", notes.look(&long));
    notes.call("open 255", File::create(notes.at(&longest)));
    notes.call("rename to 256", rename(notes.at(&longest), notes.at(&long)));
    notes.call("unlink 255", unlink(notes.at(&longest)));
    notes.call("unlink 256", unlink(notes.at(&long)));
    let mode = Mode::from_raw_mode(0o755);
    notes.call("mkdir 256", mkdir(notes.at(&long), mode));
    notes.call("rmdir 256", rmdir(notes.at(&long)));
    notes.call("empty", open("", OFlags::RDONLY, mode));
}

fn unnamed_files(notes: &mut Notes) {
    let mode = Mode::from_raw_mode(0o640);
    let unnamed = |flags| open(notes.directory(), OFlags::TMPFILE | flags, mode);
    let file = File::from(unnamed(OFlags::RDWR).unwrap());
    file.write_all_at(b"unnamed", 0).unwrap();
    let links = |file: &File| {
        use std::os::unix::fs::MetadataExt;
        file.metadata()
            .map(|metadata| (metadata.nlink(), metadata.mode()))
    };
    let exclusive = unnamed(OFlags::RDWR | OFlags::EXCL).unwrap();
    let reading = unnamed(OFlags::RDONLY);
    notes.answer("links", links(&file));
    let named = |file: &dyn std::os::fd::AsFd, name: &str| {
        linkat(file.as_fd(), "", CWD, notes.at(name), AtFlags::EMPTY_PATH)
    };
    let (linked, refused) = (named(&file, "a"), named(&exclusive, "b"));
    notes.call("to read only", reading);
    notes.call("link", linked);
    notes.call("link of an exclusive one", refused);
    notes.answer("links", links(&file));
    notes.mode("a");
    notes.answer("content", read(notes, "a"));
}

fn directories(notes: &mut Notes) {
    let mode = Mode::from_raw_mode(0o777);
    notes.call("mkdir", mkdir(notes.at("d"), mode));
    notes.stat("d");
    notes.call("mkdir again", mkdir(notes.at("d"), mode));
    notes.call("mkdir below", mkdir(notes.at("d/e"), mode));
    notes.stat("d");
    notes.call("rmdir full", rmdir(notes.at("d")));
    notes.call("rmdir dot", rmdir(notes.at("d/.")));
    notes.call("rmdir dot dot", rmdir(notes.at("d/e/..")));
    make(notes, "f", "");
    notes.call("rmdir file", rmdir(notes.at("f")));
    let open_directory = File::open(notes.at("d/e")).unwrap();
    notes.call("rmdir below", rmdir(notes.at("d/e")));
    let inside = format!("/proc/self/fd/{}/x", {
        use std::os::fd::AsRawFd;
        open_directory.as_raw_fd()
    });
    notes.call("create in a removed one", File::create(inside));
    notes.stat("d");
    notes.call("rmdir", rmdir(notes.at("d")));
    notes.call("rmdir again", rmdir(notes.at("d")));
    notes.call(
        "mkdir with sticky",
        mkdir(notes.at("t"), Mode::from_raw_mode(0o1777)),
    );
    notes.stat("t");
}

fn special_files(notes: &mut Notes) {
    let mode = Mode::from_raw_mode(0o666);
    let make = |name: &str, kind, device: Dev| mknodat(CWD, notes.at(name), kind, mode, device);
    let made = [
        make("fifo", FileType::Fifo, 0),
        make("socket", FileType::Socket, 0),
        make("null", FileType::CharacterDevice, makedev(1, 3)),
        make("large", FileType::BlockDevice, makedev(259, 70_000)),
        make("plain", FileType::RegularFile, 0),
        make("plain", FileType::RegularFile, 0),
    ];
    for result in made {
        notes.call("mknod", result);
    }
    for name in ["fifo", "socket", "null", "large", "plain"] {
        notes.stat(name);
    }
    notes.answer("write to null", fs::write(notes.at("null"), "gone"));
    notes.call(
        "truncate null",
        fs::OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(notes.at("null")),
    );
    notes.shell(0, "(echo through >fifo &); cat fifo");
}

fn symbolic_links(notes: &mut Notes) {
    for (name, length) in [("short", 10), ("inline", 59), ("block", 60), ("long", 4000)] {
        let target = "t".repeat(length);
        notes.call("symlink", symlink(&target, notes.at(name)));
        let read = readlink(notes.at(name), Vec::new());
        notes.note("same target", read.unwrap().as_bytes() == target.as_bytes());
        notes.stat(name);
    }
    notes.call("too long", symlink("t".repeat(4096), notes.at("x")));
    notes.call("empty", symlink("", notes.at("x")));
    notes.call("taken", symlink("t", notes.at("short")));
    make(notes, "f", "");
    notes.call("readlink of a file", readlink(notes.at("f"), Vec::new()));
    symlink("loop", notes.at("loop")).unwrap();
    notes.call("loop", File::open(notes.at("loop")));
}

fn hard_links(notes: &mut Notes) {
    make(notes, "a", "shared");
    notes.call("link", link(notes.at("a"), notes.at("b")));
    notes.stat("b");
    notes.note(
        "same inode",
        notes.look("a").unwrap().stx_ino == notes.look("b").unwrap().stx_ino,
    );
    notes.call("taken", link(notes.at("a"), notes.at("b")));
    notes.call("absent", link(notes.at("none"), notes.at("c")));
    fs::create_dir(notes.at("d")).unwrap();
    notes.call("directory", link(notes.at("d"), notes.at("c")));
    symlink("a", notes.at("s")).unwrap();
    notes.call("of a link", link(notes.at("s"), notes.at("s2")));
    notes.stat("s2");
    notes.call("into a file", link(notes.at("a"), notes.at("b/c")));
    unlink(notes.at("a")).unwrap();
    notes.stat("b");
    notes.answer("content", read(notes, "b"));
}

fn unlinks(notes: &mut Notes) {
    make(notes, "a", "");
    notes.call("unlink", unlink(notes.at("a")));
    notes.call("again", unlink(notes.at("a")));
    fs::create_dir(notes.at("d")).unwrap();
    notes.call("directory", unlink(notes.at("d")));
    notes.call("with slash", unlink(notes.at("d/")));
    notes.call("dot", unlink(notes.at("d/.")));
    symlink("nowhere", notes.at("s")).unwrap();
    notes.call("link", unlink(notes.at("s")));
}

fn unlinked_file(notes: &mut Notes) {
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(notes.at("a"))
        .unwrap();
    file.write_all_at(b"still here", 0).unwrap();
    unlink(notes.at("a")).unwrap();
    make(notes, "a", "another");
    file.write_all_at(b"and more", 10_000).unwrap();
    let mut bytes = [0; 10];
    notes.call("read", file.read_exact_at(&mut bytes, 0));
    notes.note("bytes", bytes);
    notes.answer("size", file.metadata().map(|metadata| metadata.len()));
    notes.call("truncate", file.set_len(5));
    notes.call(
        "chmod",
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600)),
    );
    notes.call("sync", file.sync_all());
    let reopened = File::open(format!("/proc/self/fd/{}", {
        use std::os::fd::AsRawFd;
        file.as_raw_fd()
    }));
    notes.answer("through proc", reopened.and_then(std::io::read_to_string));
    notes.answer("the other", read(notes, "a"));
}

fn renames(notes: &mut Notes) {
    make(notes, "a", "a");
    make(notes, "b", "b");
    fs::create_dir_all(notes.at("d/e")).unwrap();
    fs::create_dir(notes.at("empty")).unwrap();
    let pairs = [
        ("a", "b"),
        ("a", "c"),
        ("b", "b"),
        ("b", "d"),
        ("d", "b"),
        ("d", "d/e/f"),
        ("d/e", "d"),
        ("empty", "d"),
        ("d", "empty"),
        ("empty/e", "moved"),
        ("empty", "b/x"),
        ("b", "x/"),
        (".", "y"),
        ("moved", "empty/."),
        ("b", "moved/b"),
    ];
    for (from, to) in pairs {
        let what = format!("{from} to {to}");
        notes.call(&what, rename(notes.at(from), notes.at(to)));
    }
    for name in ["a", "b", "c", "d", "empty", "moved", "moved/b"] {
        notes.mode(name);
    }
    link(notes.at("moved/b"), notes.at("same")).unwrap();
    notes.call(
        "two names of one file",
        rename(notes.at("moved/b"), notes.at("same")),
    );
    notes.stat("same");
    notes.stat("moved/b");
}

fn renames_with_flags(notes: &mut Notes) {
    make(notes, "a", "of a");
    make(notes, "b", "of b");
    fs::create_dir_all(notes.at("d/e")).unwrap();
    let renamed = |notes: &mut Notes, from: &str, to: &str, flags| {
        let what = format!("{from} to {to} with {flags:?}");
        let done = renameat_with(CWD, notes.at(from), CWD, notes.at(to), flags);
        notes.call(&what, done);
    };
    renamed(notes, "a", "b", RenameFlags::NOREPLACE);
    renamed(notes, "a", "c", RenameFlags::NOREPLACE);
    renamed(notes, "c", "none", RenameFlags::EXCHANGE);
    renamed(notes, "c", "b", RenameFlags::EXCHANGE);
    renamed(notes, "b", "d/e", RenameFlags::EXCHANGE);
    renamed(notes, "d", "d/e", RenameFlags::EXCHANGE);
    renamed(notes, "c", "w", RenameFlags::WHITEOUT);
    renamed(notes, "d", "dw", RenameFlags::WHITEOUT);
    renamed(
        notes,
        "w",
        "b",
        RenameFlags::EXCHANGE | RenameFlags::NOREPLACE,
    );
    for name in ["a", "b", "c", "d", "d/e", "w", "dw", "dw/e"] {
        notes.stat(name);
    }
    notes.answer("content of w", read(notes, "w"));
}

fn listing(notes: &mut Notes) {
    fs::create_dir(notes.at("d")).unwrap();
    for index in 0..500 {
        File::create(notes.at(&format!("d/file-{index}"))).unwrap();
    }
    symlink("x", notes.at("d/link")).unwrap();
    fs::create_dir(notes.at("d/inner")).unwrap();
    let mut names: Vec<String> = fs::read_dir(notes.at("d"))
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            format!("{:?} {:?}", entry.file_name(), entry.file_type().unwrap())
        })
        .collect();
    names.sort();
    notes.note("names", &names);
    // Names removed and made meanwhile do not affect the others.
    let mut seen = Vec::new();
    for (index, entry) in fs::read_dir(notes.at("d")).unwrap().enumerate() {
        seen.push(entry.unwrap().file_name());
        if index % 50 == 0 {
            File::create(notes.at(&format!("d/new-{index}"))).unwrap();
            let _ = unlink(notes.at(&format!("d/new-{}", index.wrapping_sub(50))));
        }
    }
    seen.retain(|name| !name.to_string_lossy().starts_with("new-"));
    seen.sort();
    notes.note("seen", seen.len());
    seen.dedup();
    notes.note("once", seen.len());
    notes.answer("of a file", fs::read_dir(notes.at("d/file-0")).map(|_| ()));
}
