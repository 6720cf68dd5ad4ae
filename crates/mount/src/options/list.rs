//! A list of mount options: taken apart at its commas, and put together again.
//!
//! As in libfuse, a backslash takes the meaning from the character after it.

use extant_ext4::{Access, Assign, Discard, OnError, Replay};
use rustix::mount::MountFlags;

use super::{
    AccessTimes, Audience, AutoUnmount, IdMapping, IoUring, MountOptions, Placement, WriteCache,
};

/// The options of a list, without escapes.
pub(super) fn split(list: &str) -> Vec<String> {
    let mut options = vec![String::new()];
    let mut chars = list.chars();
    while let Some(next) = chars.next() {
        let taken = match next {
            ',' => {
                options.push(String::new());
                continue;
            }
            '\\' => chars.next(),
            other => Some(other),
        };
        if let Some(last) = options.last_mut() {
            last.extend(taken);
        }
    }
    options
}

/// The list of options.
pub(crate) fn join(options: &[String]) -> String {
    let escaped = options
        .iter()
        .map(|option| option.replace('\\', r"\\").replace(',', r"\,"));
    escaped.collect::<Vec<_>>().join(",")
}

/// Every option that differs from what it is without a word, and `ro` or `rw` first.
pub(super) fn words(options: &MountOptions) -> Vec<String> {
    let default = MountOptions::default();
    let mut words = of_every_mount(options);
    let mut add = |word: &str| words.push(word.to_owned());
    if options.audience == Audience::Everyone {
        add("allow_other");
    }
    if options.auto_unmount == AutoUnmount::On {
        add("auto_unmount");
    }
    if options.write_cache == WriteCache::Through {
        add("no_writeback");
    }
    if options.placement == Placement::Free {
        add("no_pin");
    }
    if options.io_uring == IoUring::On {
        add("io_uring");
    }
    if options.discard == Discard::OnCommit {
        add("discard");
    }
    match options.assign {
        Assign::Off => add("assign=off"),
        Assign::Try => {}
        Assign::Require => add("assign=require"),
    }
    if options.replay == Replay::Off {
        add("noload");
    }
    if options.id_mapping == IdMapping::None {
        add("idmap=none");
    }
    match options.on_error {
        Some(OnError::Continue) => add("errors=continue"),
        Some(OnError::ReadOnly) => add("errors=remount-ro"),
        None => {}
    }
    let subtype = (options.subtype != default.subtype).then_some(&options.subtype);
    let values = [
        ("fsname", options.source.clone()),
        ("subtype", subtype.cloned()),
        (
            "max_read",
            options.read_length_max.map(|max| max.to_string()),
        ),
        (
            "threads",
            options.threads.map(|threads| threads.to_string()),
        ),
        (
            "commit",
            options
                .commit_interval
                .map(|time| time.as_secs().to_string()),
        ),
        ("uid", options.uid.map(|uid| uid.to_string())),
        ("gid", options.gid.map(|gid| gid.to_string())),
    ];
    for (name, value) in values {
        words.extend(value.map(|value| format!("{name}={value}")));
    }
    words
}

/// Those that any file system has.
pub(crate) fn of_every_mount(options: &MountOptions) -> Vec<String> {
    let access = match options.access {
        Access::ReadOnly => "ro",
        Access::ReadWrite => "rw",
    };
    let times = match options.access_times {
        AccessTimes::Relative => None,
        AccessTimes::FilesOnly => Some("nodiratime"),
        AccessTimes::Strict => Some("strictatime"),
        AccessTimes::Never => Some("noatime"),
    };
    let has = |flag: MountFlags| options.flags.contains(flag);
    let flags = [
        (!has(MountFlags::NODEV), "dev"),
        (!has(MountFlags::NOSUID), "suid"),
        (has(MountFlags::NOEXEC), "noexec"),
        (has(MountFlags::SYNCHRONOUS), "sync"),
        (has(MountFlags::DIRSYNC), "dirsync"),
    ];
    let flags = flags
        .into_iter()
        .filter_map(|(is_said, word)| is_said.then_some(word));
    let words = [access].into_iter().chain(flags).chain(times);
    words.map(str::to_owned).collect()
}
