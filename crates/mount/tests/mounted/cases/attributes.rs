//! Attributes.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};

use rustix::fs::{
    AtFlags, CWD, Gid, Mode, Uid, chmod, chown, chownat, ftruncate, statvfs, symlink,
};

use super::{Case, same};
use crate::notes::Notes;

pub const CASES: &[Case] = &[
    same("stat, statx", "stat of everything", stat_of_everything),
    same("chmod", "chmod", chmods),
    same("chown", "chown", chowns),
    same("umask, setgid directories", "what new files get", new_files),
    same("truncate, ftruncate", "truncate", truncates),
    same("statfs", "statfs", statistics),
    same("access, permissions", "permissions", permissions),
    same(
        "setuid and setgid bits",
        "privileges go with changes",
        privileges,
    ),
    same(
        "chattr (FS_IOC_SETFLAGS)",
        "immutable and append only",
        flags,
    ),
    same(
        "chattr (FS_IOC_SETFLAGS)",
        "immutable and append only while open",
        flags_while_open,
    ),
];

fn stat_of_everything(notes: &mut Notes) {
    fs::write(notes.at("f"), "x".repeat(5000)).unwrap();
    File::open(notes.at("f")).unwrap().sync_all().unwrap();
    fs::create_dir(notes.at("d")).unwrap();
    symlink("f", notes.at("s")).unwrap();
    for name in [".", "f", "d", "s", "none"] {
        notes.stat(name);
    }
    let stat = notes.look("f").unwrap();
    let created = (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec);
    notes.note("has a time of birth", stat.stx_mask & 0x800 != 0);
    fs::write(notes.at("f"), "again").unwrap();
    let stat = notes.look("f").unwrap();
    let later = (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec);
    notes.note("which stays", created == later);
}

fn chmods(notes: &mut Notes) {
    fs::write(notes.at("f"), "").unwrap();
    fs::create_dir(notes.at("d")).unwrap();
    for mode in [0o000, 0o644, 0o4755, 0o2755, 0o1777, 0o7777] {
        for name in ["f", "d"] {
            notes.call("chmod", chmod(notes.at(name), Mode::from_raw_mode(mode)));
            notes.mode(name);
        }
    }
    notes.call(
        "absent",
        chmod(notes.at("none"), Mode::from_raw_mode(0o644)),
    );
    let file = File::open(notes.at("f")).unwrap();
    notes.call(
        "fchmod",
        file.set_permissions(fs::Permissions::from_mode(0o600)),
    );
    notes.mode("f");
    // By an owner who is not of the group.
    chown(
        notes.at("f"),
        Some(Uid::from_raw(1000)),
        Some(Gid::from_raw(77)),
    )
    .unwrap();
    notes.shell(
        1000,
        "chmod 2755 f; stat -c %a f; chmod 4755 f; stat -c %a f",
    );
}

fn chowns(notes: &mut Notes) {
    let (uid, gid) = (Uid::from_raw(1000), Gid::from_raw(2000));
    fs::write(notes.at("f"), "").unwrap();
    notes.call("owner", chown(notes.at("f"), Some(uid), None));
    notes.mode("f");
    notes.call("group", chown(notes.at("f"), None, Some(gid)));
    notes.mode("f");
    let large = Uid::from_raw(4_000_000_000);
    notes.call("large number", chown(notes.at("f"), Some(large), None));
    notes.mode("f");
    for mode in [0o6777, 0o6767, 0o2644] {
        chmod(notes.at("f"), Mode::from_raw_mode(mode)).unwrap();
        notes.call("takes bits", chown(notes.at("f"), Some(uid), Some(gid)));
        notes.mode("f");
    }
    fs::create_dir(notes.at("d")).unwrap();
    chmod(notes.at("d"), Mode::from_raw_mode(0o6777)).unwrap();
    notes.call("directory", chown(notes.at("d"), Some(uid), Some(gid)));
    notes.mode("d");
    symlink("f", notes.at("s")).unwrap();
    let linked = chownat(
        CWD,
        notes.at("s"),
        Some(gid_as_uid(gid)),
        None,
        AtFlags::SYMLINK_NOFOLLOW,
    );
    notes.call("link itself", linked);
    notes.mode("s");
    notes.mode("f");
    notes.shell(1001, "chgrp 1001 f");
}

fn gid_as_uid(gid: Gid) -> Uid {
    Uid::from_raw(gid.as_raw())
}

fn new_files(notes: &mut Notes) {
    fs::create_dir(notes.at("d")).unwrap();
    chown(
        notes.at("d"),
        Some(Uid::from_raw(5)),
        Some(Gid::from_raw(77)),
    )
    .unwrap();
    for (directory, mode) in [("plain", 0o777), ("setgid", 0o2777)] {
        fs::rename(notes.at("d"), notes.at(directory)).unwrap();
        chmod(notes.at(directory), Mode::from_raw_mode(mode)).unwrap();
        notes.shell(
            1000,
            &format!(
                "cd {directory} && umask 027 && >f && mkdir d && ln -s f s && mkfifo p && \
                 umask 0 && >g && mkdir -m 7777 e && stat -c '%n %a %u:%g' f d s p g e"
            ),
        );
        fs::remove_dir_all(notes.at(directory)).unwrap();
        fs::create_dir(notes.at("d")).unwrap();
        chown(
            notes.at("d"),
            Some(Uid::from_raw(5)),
            Some(Gid::from_raw(77)),
        )
        .unwrap();
    }
}

fn truncates(notes: &mut Notes) {
    let file = File::create_new(notes.at("f")).unwrap();
    file.write_all_at(&[7; 10_000], 0).unwrap();
    for size in [10_000u64, 5_000, 0, 20_000, 4_097, 4_096] {
        notes.call("ftruncate", ftruncate(&file, size));
        file.sync_all().unwrap();
        notes.stat("f");
    }
    notes.note("zeros", fs::read(notes.at("f")).unwrap() == [0; 4096]);
    notes.call("too large", ftruncate(&file, 1 << 50));
    notes.call("largest", ftruncate(&file, (1 << 44) - 4096));
    notes.stat("f");
    notes.call("one more", ftruncate(&file, (1 << 44) - 4095));
    notes.call("negative", ftruncate(&file, u64::MAX));
    let reading = File::open(notes.at("f")).unwrap();
    notes.call("not open for writing", ftruncate(&reading, 0));
    notes.shell(0, "truncate -s 10 .; truncate -s 10 f; stat -c %s f");
}

fn statistics(notes: &mut Notes) {
    let shown = statvfs(notes.directory()).unwrap();
    notes.note(
        "block size",
        (shown.f_bsize, shown.f_frsize, shown.f_namemax),
    );
    notes.note("blocks", shown.f_blocks);
    notes.note("files", shown.f_files);
    // The kernel keeps some more for itself.
    notes.note("some are kept for root", shown.f_bfree > shown.f_bavail);
    let file = File::create_new(notes.at("f")).unwrap();
    rustix::fs::syncfs(&file).unwrap();
    let before = statvfs(notes.directory()).unwrap();
    file.write_all_at(&[7; 1 << 20], 0).unwrap();
    file.sync_all().unwrap();
    let after = statvfs(notes.directory()).unwrap();
    notes.note("blocks taken", before.f_bfree - after.f_bfree);
}

fn permissions(notes: &mut Notes) {
    fs::create_dir(notes.at("d")).unwrap();
    fs::write(notes.at("d/mine"), "mine").unwrap();
    fs::write(notes.at("d/group"), "group").unwrap();
    chown(notes.at("d/group"), None, Some(Gid::from_raw(1000))).unwrap();
    chmod(notes.at("d/mine"), Mode::from_raw_mode(0o600)).unwrap();
    chmod(notes.at("d/group"), Mode::from_raw_mode(0o060)).unwrap();
    for script in [
        "cat d/mine",
        "cat d/group && echo more >>d/group",
        "test -r d/mine; echo $?; test -w d/group; echo $?",
        "echo x >d/new",
        "rm -f d/mine",
        "mv d/mine d/other",
        "chmod 777 d/mine",
        "ls d",
    ] {
        notes.shell(1000, script);
    }
    chmod(notes.at("d"), Mode::from_raw_mode(0o1777)).unwrap();
    notes.shell(
        1000,
        "rm -f d/mine; >d/own && mv d/own d/renamed && rm d/renamed && ls d",
    );
    chmod(notes.at("d"), Mode::from_raw_mode(0o700)).unwrap();
    notes.shell(1000, "cat d/group; ls d");
}

fn privileges(notes: &mut Notes) {
    for (name, change) in [
        ("write", "echo x >>F"),
        ("overwrite", "echo x | dd of=F conv=notrunc 2>/dev/null"),
        ("truncate", "truncate -s 1 F"),
        ("open", ">F"),
        ("fallocate", "fallocate -l 8192 F"),
        ("punch", "fallocate -p -o 0 -l 4096 F"),
        (
            "direct",
            "dd if=/dev/zero of=F bs=4096 count=1 oflag=direct conv=notrunc 2>/dev/null",
        ),
        ("chmod", "chmod o+x F"),
    ] {
        for mode in [0o6777, 0o6766, 0o4766] {
            for user in [1000, 0] {
                fs::write(notes.at(name), "data").unwrap();
                chown(
                    notes.at(name),
                    Some(Uid::from_raw(1001)),
                    Some(Gid::from_raw(1001)),
                )
                .unwrap();
                chmod(notes.at(name), Mode::from_raw_mode(mode)).unwrap();
                let script = change.replace('F', name);
                notes.shell(user, &format!("{script}; stat -c %a {name}"));
                fs::remove_file(notes.at(name)).unwrap();
            }
        }
    }
}

fn flags(notes: &mut Notes) {
    fs::write(notes.at("f"), "first").unwrap();
    fs::create_dir(notes.at("d")).unwrap();
    fs::write(notes.at("d/inner"), "").unwrap();
    notes.shell(0, "lsattr -d f d");
    notes.shell(
        0,
        "chattr +i f; lsattr f; echo x >f; echo x >>f; rm -f f; mv f g; chmod 600 f; ln f g; \
         touch f; cat f; truncate -s 0 f; setfattr -n user.a -v b f; chattr -i f",
    );
    notes.shell(
        0,
        "chattr +a f; lsattr f; echo x >f; echo second >>f; rm -f f; mv f g; cat f; \
         truncate -s 0 f; fallocate -p -o 0 -l 1 f; fallocate -l 100 f; stat -c %s f; chattr -a f",
    );
    notes.shell(
        0,
        "chattr +i d; >d/new; rm -f d/inner; chattr -i d; \
         chattr +a d; >d/new; rm -f d/inner; ls d; mv d/new d/newer; chattr -a d",
    );
    notes.shell(
        0,
        "chattr +a f; touch -m -d 2001-01-01 f; touch -a -d 2001-01-01 f; touch -m -d 2101-01-01 f; \
         touch f; chattr -a f",
    );
    notes.shell(0, "chattr +dA f; lsattr f; chattr -dA f; lsattr f");
    notes.shell(1000, "chattr +i f; chattr +d f");
}

fn flags_while_open(notes: &mut Notes) {
    for flag in ["a", "i"] {
        notes.shell(
            0,
            &format!(
                "perl -e 'open F, \">\", \"f-{flag}\"; print F \"before\"; system \"chattr +{flag} f-{flag}\"; \
                 close F or print \"close: $!\"'; cat f-{flag}; chattr -{flag} f-{flag}"
            ),
        );
    }
}
