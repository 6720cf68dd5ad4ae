//! Extended attributes and access control lists.

use std::fs;

use rustix::fs::{
    XattrFlags, getxattr, lgetxattr, listxattr, lsetxattr, removexattr, setxattr, symlink,
};

use super::{Case, same};
use crate::notes::Notes;

pub const CASES: &[Case] = &[
    same(
        "getxattr, setxattr, listxattr, removexattr",
        "extended attributes",
        attributes,
    ),
    same(
        "getxattr, setxattr, listxattr, removexattr",
        "who may see and set",
        by_whom,
    ),
    same("access control lists", "access control lists", lists),
    same("access control lists", "default lists", default_lists),
];

fn get(notes: &mut Notes, file: &str, name: &str) {
    let mut buffer = vec![0; 70_000];
    let read = getxattr(notes.at(file), name, &mut *buffer);
    let value = read.map(|length| (length, buffer[..length.min(20)].to_vec()));
    notes.answer(&format!("{name} of {file}"), value);
}

fn set(notes: &mut Notes, file: &str, name: &str, value: &[u8], flags: XattrFlags) {
    let what = format!("set {name} of {file}, {} bytes, {flags:?}", value.len());
    let path = notes.at(file);
    notes.answer(&what, setxattr(path, name, value, flags));
}

fn list(notes: &mut Notes, file: &str) {
    let mut buffer = vec![0; 10_000];
    let names = listxattr(notes.at(file), &mut *buffer).map(|length| {
        let mut names: Vec<_> = buffer[..length].split(|&byte| byte == 0).collect();
        names.sort();
        names
            .iter()
            .map(|name| String::from_utf8_lossy(name).into_owned())
            .collect::<Vec<_>>()
    });
    notes.answer(&format!("list {file}"), names);
}

fn attributes(notes: &mut Notes) {
    let none = XattrFlags::empty();
    fs::write(notes.at("f"), "").unwrap();
    fs::create_dir(notes.at("d")).unwrap();
    symlink("f", notes.at("s")).unwrap();
    for name in [
        "user.a",
        "trusted.b",
        "security.c",
        "system.d",
        "none.e",
        "user.",
        "plain",
        "system.data",
    ] {
        set(notes, "f", name, b"value", none);
        get(notes, "f", name);
    }
    set(notes, "f", "user.a", b"", none);
    get(notes, "f", "user.a");
    set(notes, "f", "user.a", b"x", XattrFlags::CREATE);
    set(notes, "f", "user.n", b"x", XattrFlags::REPLACE);
    set(notes, "f", "user.n", b"x", XattrFlags::CREATE);
    set(notes, "f", "user.n", b"yy", XattrFlags::REPLACE);
    get(notes, "f", "user.n");
    for length in [100, 1_000, 3_900, 4_096, 60_000, 65_536, 65_537] {
        set(notes, "f", "user.large", &vec![5; length], none);
        get(notes, "f", "user.large");
    }
    let long = format!("user.{}", "n".repeat(250));
    set(notes, "f", &long, b"x", none);
    set(notes, "f", &format!("{long}n"), b"x", none);
    list(notes, "f");
    let mut small = [0; 1];
    let answer = getxattr(notes.at("f"), "user.n", &mut small);
    notes.answer("too small a buffer", answer.map(|_| ()));
    let answer = listxattr(notes.at("f"), &mut small);
    notes.answer("too small for a list", answer.map(|_| ()));
    for name in ["user.n", "user.n", "user.none", "system.d", "none.e"] {
        let removed = removexattr(notes.at("f"), name);
        notes.answer(&format!("remove {name}"), removed);
    }
    set(notes, "d", "user.a", b"of a directory", none);
    get(notes, "d", "user.a");
    let linked = lsetxattr(notes.at("s"), "user.a", b"x", none);
    notes.answer("user of a link", linked);
    let linked = lsetxattr(notes.at("s"), "trusted.a", b"x", none);
    notes.answer("trusted of a link", linked);
    let mut buffer = [0; 10];
    let answer = lgetxattr(notes.at("s"), "trusted.a", &mut buffer);
    notes.answer("and read", answer);
    list(notes, "f");
    notes.stat("f");
}

fn by_whom(notes: &mut Notes) {
    fs::write(notes.at("f"), "").unwrap();
    notes.shell(0, "chmod 644 f; setfattr -n user.a -v 1 f; setfattr -n trusted.b -v 2 f; setfattr -n security.c -v 3 f");
    notes.shell(
        1000,
        "getfattr -m - -d f; setfattr -n user.a -v x f; setfattr -n trusted.b -v x f",
    );
    notes.shell(0, "getfattr -m - -d f; chmod 666 f; chmod 1777 .");
    notes.shell(
        1000,
        "setfattr -n user.a -v x f; setfattr -n security.c -v x f; getfattr -n trusted.b f",
    );
    notes.shell(0, "setcap cap_net_raw+ep f; getcap f; echo x >>f; getcap f; setcap cap_net_raw+ep f; truncate -s 0 f; getcap f");
    notes.shell(
        0,
        "setcap cap_net_raw+ep f; chown 5 f; getcap f; mkfifo p; setfattr -n user.a -v x p",
    );
}

fn lists(notes: &mut Notes) {
    fs::write(notes.at("f"), "secret").unwrap();
    notes.shell(
        0,
        "chmod 600 f; setfacl -m u:1000:r f; getfacl -n f; stat -c %a f",
    );
    notes.shell(1000, "cat f; echo x >>f");
    notes.shell(
        0,
        "setfacl -m u:1000:rw,g:7:rwx f; getfacl -n f; stat -c %a f",
    );
    notes.shell(1000, "cat f; echo x >>f");
    notes.shell(0, "chmod 640 f; getfacl -n f; stat -c %a f; chmod g-r f");
    notes.shell(1000, "cat f");
    notes.shell(0, "setfacl -x g:7 f; getfacl -n f; setfacl -b f; getfacl -n f; stat -c %a f; getfattr -m - -d f");
    notes.shell(0, "setfacl -m d:u:5:r f; chmod 2755 f; chown 1000:77 f");
    notes.shell(0, "setfattr -n system.posix_acl_access -v nonsense f; setfattr -x system.posix_acl_access f; setfattr -x system.posix_acl_default f");
    notes.shell(1000, "chmod g+s f; setfacl -m u:8:r f; stat -c %a f");
}

fn default_lists(notes: &mut Notes) {
    notes.shell(
        0,
        "mkdir d; setfacl -m d:u:1000:rwx,d:g:7:r,d:o::- d; getfacl -n d; umask 077; cd d; \
         >f; mkdir e; ln -s f s; mkfifo p; mkdir -m 700 m; (umask 0; >open); \
         getfacl -n f e p m open; stat -c '%n %a' f e s p m open",
    );
    notes.shell(
        0,
        "cd d/e; >deep; getfacl -n deep; setfacl -k .; >deeper; getfacl -n deeper; getfacl -n .",
    );
    notes.shell(0, "cp -a d copy; find copy | sort | xargs getfacl -n");
}
