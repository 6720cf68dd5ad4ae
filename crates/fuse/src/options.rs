//! Options of a mount that concern the kernel and FUSE (`-o`).
//!
//! Names are those of mount(8) and mount.fuse3(8). A file system with options of its own parses a
//! list with [`list::split`], passes the options that it does not know to [`MountOptions::set`],
//! and rejects those that are unknown here too.

pub mod list;

use std::fmt;
use std::num::NonZero;
use std::str::FromStr;

use extant_space::{Error, ErrorKind, Result};
use rustix::mount::MountFlags;

/// How FUSE mounts a file system and serves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// `ro`; `nodev` and `nosuid`, which are set by default; `noexec`, `sync`, `dirsync`.
    pub flags: MountFlags,
    /// Which users have access (`allow_other`).
    pub allow_other: AllowOther,
    /// When a read updates the access time (`relatime`, `noatime`, `strictatime`, `nodiratime`).
    pub access_times: AccessTimes,
    /// The source in the lists of mounts (`fsname=`).
    pub source: Option<String>,
    /// The file-system type after `fuse.` (`subtype=`).
    pub subtype: String,
    /// Whether the kill of the server unmounts (`auto_unmount`).
    pub auto_unmount: AutoUnmount,
    /// Maximum length of a read, in bytes (`max_read=`).
    pub read_length_max: Option<NonZero<u32>>,
    /// Caching of written data (`writeback`, `no_writeback`).
    pub write_cache: WriteCache,
    /// Whether requests arrive through io_uring (`io_uring`, `no_io_uring`).
    pub io_uring: IoUring,
    /// Number of workers (`threads=`); by default one for each CPU, from 2 to 8, and with io_uring
    /// two for each CPU. With io_uring each CPU has at least one.
    pub threads: Option<NonZero<usize>>,
    /// CPU affinity of the workers (`pin`, `no_pin`).
    pub affinity: WorkerAffinity,
}

/// Users with access to a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowOther {
    /// The user who mounted it.
    Off,
    /// All users, as permissions allow.
    On,
}

/// When a read updates the access time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessTimes {
    /// If it is older than the last change, or than a day.
    Relative,
    /// As above, except for directories.
    FilesOnly,
    /// Always.
    Strict,
    /// Never.
    Never,
}

/// Whether a mount ends together with its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutoUnmount {
    /// After a kill the mount remains, and returns errors.
    Off,
    /// A separate process waits for the end of the server and unmounts.
    On,
}

/// Caching of written data before it reaches the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteCache {
    /// Nowhere: a write ends when the server has it.
    Through,
    /// In the kernel: a write ends in its cache, and reaches the server later in larger requests.
    Back,
}

/// Whether requests arrive through io_uring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoUring {
    /// They do not.
    Off,
    /// They do; the mount fails if the kernel does not offer it.
    On,
}

/// CPU affinity of the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerAffinity {
    /// The scheduler chooses.
    Free,
    /// Worker n runs on the nth CPU that the process may use, modulo their number.
    OnePerCpu,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            flags: MountFlags::NODEV | MountFlags::NOSUID,
            allow_other: AllowOther::Off,
            access_times: AccessTimes::Relative,
            source: None,
            subtype: "extant".to_owned(),
            auto_unmount: AutoUnmount::Off,
            read_length_max: None,
            write_cache: WriteCache::Back,
            io_uring: IoUring::Off,
            threads: None,
            affinity: WorkerAffinity::OnePerCpu,
        }
    }
}

/// Whether an option is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Known {
    /// It is, and was set.
    Yes,
    /// It is not.
    No,
}

impl MountOptions {
    /// The defaults of mount(8) for root, which omits `dev` and `suid` from the list that it passes
    /// on.
    pub fn for_mount8() -> Self {
        Self {
            flags: MountFlags::empty(),
            ..Self::default()
        }
    }

    /// The options that `-o remount` can change: those of every file system. The others are
    /// ignored, because mount(8) repeats those in force, of which `in_force` is the kernel's list.
    ///
    /// # Errors
    /// `Unsupported` with the option for a change that only the server could make, which is not
    /// informed of a remount: of access times, and of the durability of names.
    pub fn for_remount(list: &str, in_force: &[String]) -> Result<Self> {
        let words = list::split(list);
        let mut options = Self::for_mount8();
        for word in &words {
            if OF_EVERY_MOUNT.contains(&word.as_str()) {
                let _ = options.set_word(word);
            }
        }
        let before = AccessWords::in_force(in_force);
        let after = before.changed_by(&words);
        let is_new = |word: &&String| !in_force.contains(word);
        if after != before {
            let mut of_access = words
                .iter()
                .filter(|word| ACCESS_WORDS.contains(&word.as_str()));
            let word = of_access.clone().rfind(is_new).or(of_access.next_back());
            return Err(fixed_at_mount(word.map_or("", String::as_str)));
        }
        options.access_times = after.access_times();
        for (flag, word) in [
            (MountFlags::SYNCHRONOUS, "sync"),
            (MountFlags::DIRSYNC, "dirsync"),
        ] {
            if options.flags.contains(flag) && is_new(&&word.to_owned()) {
                return Err(fixed_at_mount(word));
            }
        }
        Ok(options)
    }

    /// Whether the mount is read-only.
    pub fn is_read_only(&self) -> bool {
        self.flags.contains(MountFlags::RDONLY)
    }

    /// Sets one option: a word, or a name with a value.
    ///
    /// # Errors
    /// `InvalidArgument` for a wrong value.
    pub fn set(&mut self, name: &str, value: Option<&str>) -> Result<Known> {
        match value {
            None => Ok(self.set_word(name)),
            Some(value) => self.set_value(name, value),
        }
    }

    fn set_word(&mut self, name: &str) -> Known {
        match name {
            "" | "default_permissions" => {}
            "rw" => self.flags.remove(MountFlags::RDONLY),
            "ro" => self.flags.insert(MountFlags::RDONLY),
            "dev" => self.flags.remove(MountFlags::NODEV),
            "nodev" => self.flags.insert(MountFlags::NODEV),
            "suid" => self.flags.remove(MountFlags::NOSUID),
            "nosuid" => self.flags.insert(MountFlags::NOSUID),
            "exec" => self.flags.remove(MountFlags::NOEXEC),
            "noexec" => self.flags.insert(MountFlags::NOEXEC),
            "sync" => self.flags.insert(MountFlags::SYNCHRONOUS),
            "async" => self.flags.remove(MountFlags::SYNCHRONOUS),
            "dirsync" => self.flags.insert(MountFlags::DIRSYNC),
            "relatime" | "atime" => self.access_times = AccessTimes::Relative,
            "strictatime" => self.access_times = AccessTimes::Strict,
            "noatime" => self.access_times = AccessTimes::Never,
            "nodiratime" if self.access_times == AccessTimes::Never => {}
            "nodiratime" => self.access_times = AccessTimes::FilesOnly,
            "allow_other" => self.allow_other = AllowOther::On,
            "auto_unmount" => self.auto_unmount = AutoUnmount::On,
            "writeback" => self.write_cache = WriteCache::Back,
            "no_writeback" => self.write_cache = WriteCache::Through,
            "io_uring" => self.io_uring = IoUring::On,
            "no_io_uring" => self.io_uring = IoUring::Off,
            "pin" => self.affinity = WorkerAffinity::OnePerCpu,
            "no_pin" => self.affinity = WorkerAffinity::Free,
            _ => return Known::No,
        }
        Known::Yes
    }

    fn set_value(&mut self, name: &str, value: &str) -> Result<Known> {
        match name {
            "fsname" => self.source = Some(list::text(name, value)?),
            "subtype" => self.subtype = list::text(name, value)?,
            "max_read" => {
                let wanted = "bytes, 4096 or more";
                let max: NonZero<u32> = list::number(name, value, wanted)?;
                if max.get() < 4096 {
                    return Err(list::wrong_value(name, value, wanted));
                }
                self.read_length_max = Some(max);
            }
            "threads" => self.threads = Some(list::number(name, value, "how many, 1 or more")?),
            _ => return Ok(Known::No),
        }
        Ok(Known::Yes)
    }

    /// The options without a value that differ from the defaults, after `ro` or `rw`.
    pub fn words(&self) -> Vec<String> {
        let mut words = self.words_of_every_mount();
        let own = [
            (self.allow_other == AllowOther::On, "allow_other"),
            (self.auto_unmount == AutoUnmount::On, "auto_unmount"),
            (self.write_cache == WriteCache::Through, "no_writeback"),
            (self.affinity == WorkerAffinity::Free, "no_pin"),
            (self.io_uring == IoUring::On, "io_uring"),
        ];
        let own = own.into_iter().filter(|(is_set, _)| *is_set);
        words.extend(own.map(|(_, word)| word.to_owned()));
        words
    }

    /// The options with a value that differ from the defaults, as `name=value`.
    pub fn values(&self) -> Vec<String> {
        let subtype = (self.subtype != Self::default().subtype).then(|| self.subtype.clone());
        let values = [
            ("fsname", self.source.clone()),
            ("subtype", subtype),
            ("max_read", self.read_length_max.map(|max| max.to_string())),
            ("threads", self.threads.map(|threads| threads.to_string())),
        ];
        list::named(values)
    }

    /// The options that every file system has.
    pub(crate) fn words_of_every_mount(&self) -> Vec<String> {
        let access = if self.is_read_only() { "ro" } else { "rw" };
        let times = match self.access_times {
            AccessTimes::Relative => None,
            AccessTimes::FilesOnly => Some("nodiratime"),
            AccessTimes::Strict => Some("strictatime"),
            AccessTimes::Never => Some("noatime"),
        };
        let has = |flag: MountFlags| self.flags.contains(flag);
        let flags = [
            (!has(MountFlags::NODEV), "dev"),
            (!has(MountFlags::NOSUID), "suid"),
            (has(MountFlags::NOEXEC), "noexec"),
            (has(MountFlags::SYNCHRONOUS), "sync"),
            (has(MountFlags::DIRSYNC), "dirsync"),
        ];
        let flags = flags
            .into_iter()
            .filter_map(|(is_set, word)| is_set.then_some(word));
        let words = [access].into_iter().chain(flags).chain(times);
        words.map(str::to_owned).collect()
    }
}

impl FromStr for MountOptions {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut options = Self::default();
        for option in list::split(text) {
            let (name, value) = list::name_and_value(&option);
            if options.set(name, value)? == Known::No && !list::is_for_fstab(name) {
                return Err(list::unknown(&option));
            }
        }
        Ok(options)
    }
}

impl fmt::Display for MountOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&list::join(&[self.words(), self.values()].concat()))
    }
}

/// The options of access times.
const ACCESS_WORDS: [&str; 5] = ["relatime", "atime", "strictatime", "noatime", "nodiratime"];

/// When reads are accesses, as the kernel has it: `nodiratime` is an option of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AccessWords {
    times: AccessTimes,
    spares_directories: bool,
}

impl AccessWords {
    /// By the kernel's list of the options of a mount, which does not show `strictatime`.
    fn in_force(words: &[String]) -> Self {
        let none = Self {
            times: AccessTimes::Strict,
            spares_directories: false,
        };
        none.changed_by(words)
    }

    fn changed_by(mut self, words: &[String]) -> Self {
        for word in words {
            match word.as_str() {
                "relatime" | "atime" => self.times = AccessTimes::Relative,
                "strictatime" => self.times = AccessTimes::Strict,
                "noatime" => self.times = AccessTimes::Never,
                "nodiratime" => self.spares_directories = true,
                _ => {}
            }
        }
        self.spares_directories &= self.times != AccessTimes::Never;
        self
    }

    fn access_times(self) -> AccessTimes {
        match self.times {
            AccessTimes::Relative if self.spares_directories => AccessTimes::FilesOnly,
            times => times,
        }
    }
}

fn fixed_at_mount(word: &str) -> Error {
    Error::new(ErrorKind::Unsupported)
        .detail(format!(
            "mount option `{word}` cannot be changed by a remount"
        ))
        .advice("unmount it, and mount it with the option")
}

/// The options common to mounts of all file systems.
const OF_EVERY_MOUNT: [&str; 16] = [
    "rw",
    "ro",
    "dev",
    "nodev",
    "suid",
    "nosuid",
    "exec",
    "noexec",
    "sync",
    "async",
    "dirsync",
    "relatime",
    "atime",
    "strictatime",
    "noatime",
    "nodiratime",
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(list: &str) -> MountOptions {
        list.parse().unwrap()
    }

    #[test]
    fn later_option_counts() {
        assert!(!parsed("ro,rw").is_read_only());
        assert_eq!(parsed("dev,nodev,suid").flags, MountFlags::NODEV);
        for both in ["noatime,nodiratime", "nodiratime,noatime"] {
            assert_eq!(parsed(both).access_times, AccessTimes::Never);
        }
    }

    #[test]
    fn unknown_option_and_wrong_value_are_rejected_by_name() {
        for (list, wrong) in [
            ("rw,discard", "discard"),
            ("threads=0", "threads=0"),
            ("max_read=100", "max_read=100"),
            ("subtype=", "subtype="),
        ] {
            let error = list.parse::<MountOptions>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains(&format!("`{wrong}`")), "{error}");
        }
    }

    #[test]
    fn remount_takes_the_options_of_every_mount_alone() {
        let list = "remount,ro,noexec,allow_other,errors=continue";
        let options = MountOptions::for_remount(list, &words("rw,relatime")).unwrap();
        let expected = MountFlags::RDONLY | MountFlags::NOEXEC;
        assert_eq!(options.flags, expected);
        assert_eq!(options.allow_other, AllowOther::Off);
    }

    fn words(list: &str) -> Vec<String> {
        list::split(list)
    }

    #[test]
    fn remount_with_what_only_the_server_could_change_is_refused_by_name() {
        for (in_force, list, times) in [
            ("rw,relatime", "rw,relatime", AccessTimes::Relative),
            ("rw,relatime", "remount,ro", AccessTimes::Relative),
            ("rw", "remount,ro", AccessTimes::Strict),
            ("rw,noatime", "remount,nodiratime", AccessTimes::Never),
            (
                "rw,nodiratime,relatime",
                "nodiratime,relatime,ro",
                AccessTimes::FilesOnly,
            ),
            ("rw,sync,noatime", "sync,noatime,async", AccessTimes::Never),
            ("rw,dirsync,relatime", "dirsync", AccessTimes::Relative),
        ] {
            let options = MountOptions::for_remount(list, &words(in_force)).unwrap();
            assert_eq!(options.access_times, times, "{in_force}; {list}");
        }
        for (in_force, list, refused) in [
            ("rw,relatime", "rw,relatime,noatime", "noatime"),
            ("rw,relatime", "remount,nodiratime", "nodiratime"),
            ("rw,noatime", "rw,noatime,relatime", "relatime"),
            (
                "rw,nodiratime,relatime",
                "nodiratime,relatime,strictatime",
                "strictatime",
            ),
            ("rw", "remount,atime", "atime"),
            ("rw,relatime", "remount,sync", "sync"),
            ("rw,relatime", "remount,dirsync", "dirsync"),
        ] {
            let error = MountOptions::for_remount(list, &words(in_force)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(
                error.to_string().contains(&format!("`{refused}`")),
                "{error}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_rejected(list in ".{0,40}") {
            if let Ok(options) = list.parse::<MountOptions>() {
                prop_assert_eq!(parsed(&options.to_string()), options);
            }
        }
    }
}
