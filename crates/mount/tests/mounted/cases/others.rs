//! Other calls on open files.

use std::fs::{self, File};

use rustix::fs::{SeekFrom, ioctl_getflags, seek};

use super::{Case, same};
use crate::notes::Notes;

pub const CASES: &[Case] = &[
    same("lseek", "seek", seeks),
    same(
        "FS_IOC_GETFLAGS, FS_IOC_GETVERSION, FS_IOC_GETFSLABEL",
        "control calls",
        control_calls,
    ),
    same("FITRIM", "trim", trims),
    same(
        "programs: tar, cp, mv, diff, find, sort, cc",
        "programs at work",
        programs,
    ),
];

fn seeks(notes: &mut Notes) {
    fs::write(notes.at("f"), "0123456789").unwrap();
    let file = File::open(notes.at("f")).unwrap();
    for place in [
        SeekFrom::Start(5),
        SeekFrom::Current(3),
        SeekFrom::End(-1),
        SeekFrom::End(100),
        SeekFrom::Start(1 << 43),
        SeekFrom::Current(-1 << 44),
    ] {
        notes.answer(&format!("{place:?}"), seek(&file, place));
    }
}

fn control_calls(notes: &mut Notes) {
    fs::write(notes.at("f"), "").unwrap();
    for name in ["f", "."] {
        let flags = ioctl_getflags(File::open(notes.at(name)).unwrap());
        notes.answer(name, flags);
    }
    let perl = |call: &str, length: u32, show: &str| {
        format!(
            "perl -e 'open F, \"<\", \"f\"; $b = \"\\0\" x {length}; print ioctl(F, {call}, $b) ? {show} : $! + 0'"
        )
    };
    notes.shell(0, &perl("0x80087601", 256, "\"has a version\""));
    notes.shell(0, &perl("0x81009431", 256, "unpack(\"Z*\", $b)"));
    notes.shell(0, &perl("0x80041234", 256, "\"what?\""));
}

fn trims(notes: &mut Notes) {
    let trim = |range: &str, show: &str| {
        format!(
            "perl -e 'open F, \"<\", \".\"; $b = pack \"Q3\", {range}; print ioctl(F, 0xC0185879, $b) ? {show} : $! + 0'"
        )
    };
    let much = "(unpack \"Q3\", $b)[1] > 1 << 20 ? \"much\" : \"little\"";
    // In this order: the kernel skips already discarded runs of the same length.
    notes.shell(0, &trim("0, ~0, 1 << 20", much));
    notes.shell(0, &trim("0, ~0, 0", much));
    notes.shell(0, &trim("0, 100, 0", much));
    notes.shell(0, &trim("1 << 60, 4096, 0", much));
    notes.shell(0, &trim("0, ~0, 1 << 40", much));
}

fn programs(notes: &mut Notes) {
    notes.shell(0, "mkdir a && (cd /usr/include && tar cf - linux) | tar xf - -C a && diff -r /usr/include/linux a/linux && echo same");
    notes.shell(
        0,
        "cp -a a b && diff -r a b && rm -r a && ls && mv b c && find c | wc -l",
    );
    notes.shell(
        0,
        "seq 20000 | sort -R --random-source=/bin/sh >n; sort -n n | md5sum; rm -r c n; ls",
    );
}
