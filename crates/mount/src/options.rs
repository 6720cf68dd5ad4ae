//! Mount options (`-o`).
//!
//! Three kinds of options share one list: those of every mount, for the kernel; those of FUSE; and
//! those of this file system. Names are those of mount(8), mount.fuse3(8) and ext4(5). The later
//! one of two contradicting options wins. An unknown option is refused by name, except for those
//! that mount(8) keeps in `fstab` for itself.
//!
//! A list is printed as it is parsed, so that another process can repeat the mount.

mod list;

use std::fmt;
use std::num::NonZero;
use std::str::FromStr;
use std::time::Duration;

use extant_ext4::{Access, Assign, Discard, OnError, Replay};
use extant_space::{Error, ErrorKind, Result};
use rustix::mount::MountFlags;

pub(crate) use list::{join, of_every_mount};

pub use crate::protocol::connection::WriteCache;
pub use crate::serve::placement::Placement;
pub use crate::transport::IoUring;

/// How a file system is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// Whether anything is written (`ro`, `rw`).
    pub access: Access,
    /// Whether the journal is replayed, or passed over (`noload`, `norecovery`), which makes the
    /// mount read-only.
    pub replay: Replay,
    /// `nodev` and `nosuid`, which are set unless it is said otherwise; `noexec`, `sync`,
    /// `dirsync`.
    pub flags: MountFlags,
    /// Which users have access (`allow_other`).
    pub audience: Audience,
    /// When the time of the last access is noted (`relatime`, `noatime`, `strictatime`,
    /// `nodiratime`).
    pub access_times: AccessTimes,
    /// What is mounted, as lists of mounts show it (`fsname=`).
    pub source: Option<String>,
    /// What kind it is, behind `fuse.` (`subtype=`).
    pub subtype: String,
    /// Whether the mount goes when the process is killed (`auto_unmount`).
    pub auto_unmount: AutoUnmount,
    /// Most bytes of one read (`max_read=`).
    pub read_length_max: Option<NonZero<u32>>,
    /// Where written data is cached (`writeback`, `no_writeback`).
    pub write_cache: WriteCache,
    /// Whether requests come through io_uring (`io_uring`, `no_io_uring`).
    pub io_uring: IoUring,
    /// How many threads answer (`threads=`); by default one for each CPU, from 2 to 8, and with
    /// io_uring two for each. A CPU has one at least then.
    pub threads: Option<NonZero<usize>>,
    /// On which CPUs they run (`pin`, `no_pin`).
    pub placement: Placement,
    /// Whether freed blocks are discarded (`discard`, `nodiscard`).
    pub discard: Discard,
    /// Whether new space gets its place on the device below at once (`assign=off`, `assign=try`,
    /// `assign=require`).
    pub assign: Assign,
    /// Reaction to corrupt metadata (`errors=continue`, `errors=remount-ro`); by default that of
    /// the superblock.
    pub on_error: Option<OnError>,
    /// How long a change may wait for its commit (`commit=`, in seconds).
    pub commit_interval: Option<Duration>,
    /// The user that files of the image's user 0 belong to outside (`uid=`).
    pub uid: Option<u32>,
    /// The same of groups (`gid=`).
    pub gid: Option<u32>,
    /// Whom the files of the image's root belong to when neither is said (`idmap=none`,
    /// `idmap=user`).
    pub id_mapping: IdMapping,
}

/// Whom files of root in the image belong to outside, when neither `uid=` nor `gid=` is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdMapping {
    /// The user who mounts, as that user could not change them otherwise.
    User,
    /// Root.
    None,
}

/// Users with access to a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// The user who mounted it.
    Owner,
    /// All users, as permissions allow.
    Everyone,
}

/// When the time of the last access is noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessTimes {
    /// When it is older than the last change, or than a day.
    Relative,
    /// The same, for anything but directories.
    FilesOnly,
    /// Always.
    Strict,
    /// Never.
    Never,
}

/// Whether a mount goes together with its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutoUnmount {
    /// After a kill it stays, and answers with errors.
    Off,
    /// A process of its own waits for the end and unmounts.
    On,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            access: Access::ReadWrite,
            replay: Replay::On,
            flags: MountFlags::NODEV | MountFlags::NOSUID,
            audience: Audience::Owner,
            access_times: AccessTimes::Relative,
            source: None,
            subtype: "extant".to_owned(),
            auto_unmount: AutoUnmount::Off,
            read_length_max: None,
            write_cache: WriteCache::Back,
            io_uring: IoUring::Off,
            threads: None,
            placement: Placement::OnePerCpu,
            discard: Discard::Off,
            assign: Assign::Try,
            on_error: None,
            commit_interval: None,
            uid: None,
            gid: None,
            id_mapping: IdMapping::User,
        }
    }
}

impl MountOptions {
    /// Adds a list of options, separated by commas; `\,` is a comma in a value.
    ///
    /// # Errors
    /// `InvalidArgument` with the name of what is not known, or has a wrong value.
    pub fn add(&mut self, list: &str) -> Result<()> {
        for option in list::split(list) {
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (option.as_str(), None),
            };
            if self.add_one(name, value)? == Known::No && !is_for_fstab(name) {
                return Err(Error::new(ErrorKind::InvalidArgument)
                    .detail(format!("mount option `{option}` is not known")));
            }
        }
        Ok(())
    }

    /// What mount(8) begins with for root, and leaves out of the list that it hands on: `dev` and
    /// `suid`.
    pub fn for_mount8() -> Self {
        Self {
            flags: MountFlags::empty(),
            ..Self::default()
        }
    }

    /// Has root in the image be the user and group who mount it, unless other owners were asked
    /// for, or the image is made for this user: its root directory belongs to `root_owner`.
    pub fn map_root_to(&mut self, user: u32, group: u32, root_owner: u32) {
        let has_owners = self.uid.is_some() || self.gid.is_some();
        let is_needed = user != 0 && root_owner != user;
        if self.id_mapping == IdMapping::User && !has_owners && is_needed {
            (self.uid, self.gid) = (Some(user), Some(group));
        }
    }

    /// What `-o remount` can change: the options of every mount. All others of the list are passed
    /// over, as mount(8) repeats those that are in force.
    pub fn for_remount(list: &str) -> Self {
        let mut options = Self::for_mount8();
        for word in list::split(list) {
            if OF_EVERY_MOUNT.contains(&word.as_str()) {
                options.add_word(&word);
            }
        }
        options
    }

    fn add_one(&mut self, name: &str, value: Option<&str>) -> Result<Known> {
        match value {
            None => Ok(self.add_word(name)),
            Some(value) => self.add_value(name, value),
        }
    }

    fn add_word(&mut self, name: &str) -> Known {
        match name {
            "" | "default_permissions" => {}
            "rw" => (self.access, self.replay) = (Access::ReadWrite, Replay::On),
            "ro" => self.access = Access::ReadOnly,
            "noload" | "norecovery" => {
                (self.access, self.replay) = (Access::ReadOnly, Replay::Off);
            }
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
            "allow_other" => self.audience = Audience::Everyone,
            "auto_unmount" => self.auto_unmount = AutoUnmount::On,
            "writeback" => self.write_cache = WriteCache::Back,
            "no_writeback" => self.write_cache = WriteCache::Through,
            "io_uring" => self.io_uring = IoUring::On,
            "no_io_uring" => self.io_uring = IoUring::Off,
            "pin" => self.placement = Placement::OnePerCpu,
            "no_pin" => self.placement = Placement::Free,
            "discard" => self.discard = Discard::OnCommit,
            "nodiscard" => self.discard = Discard::Off,
            _ => return Known::No,
        }
        Known::Yes
    }

    fn add_value(&mut self, name: &str, value: &str) -> Result<Known> {
        match name {
            "fsname" => self.source = Some(text(name, value)?),
            "subtype" => self.subtype = text(name, value)?,
            "max_read" => self.read_length_max = Some(number(name, value, "bytes, 4096 or more")?),
            "threads" => self.threads = Some(number(name, value, "how many, 1 or more")?),
            "commit" => {
                let seconds = number(name, value, "seconds")?;
                // 0 is the default, as in ext4(5).
                self.commit_interval = (seconds > 0).then(|| Duration::from_secs(seconds));
            }
            "uid" => self.uid = Some(number(name, value, "a number")?),
            "gid" => self.gid = Some(number(name, value, "a number")?),
            "idmap" => {
                self.id_mapping = match value {
                    "none" => IdMapping::None,
                    "user" => IdMapping::User,
                    _ => return Err(wrong_value(name, value, "none or user")),
                };
            }
            "errors" => {
                self.on_error = Some(match value {
                    "continue" => OnError::Continue,
                    "remount-ro" => OnError::ReadOnly,
                    _ => return Err(wrong_value(name, value, "continue or remount-ro")),
                });
            }
            "assign" => {
                self.assign = match value {
                    "off" => Assign::Off,
                    "try" => Assign::Try,
                    "require" => Assign::Require,
                    _ => return Err(wrong_value(name, value, "off, try or require")),
                };
            }
            _ => return Ok(Known::No),
        }
        if let Some(max) = self.read_length_max
            && max.get() < 4096
        {
            return Err(wrong_value(name, value, "bytes, 4096 or more"));
        }
        Ok(Known::Yes)
    }
}

impl FromStr for MountOptions {
    type Err = Error;

    fn from_str(list: &str) -> Result<Self> {
        let mut options = Self::default();
        options.add(list)?;
        Ok(options)
    }
}

impl fmt::Display for MountOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&list::join(&list::words(self)))
    }
}

/// Words that say something of a mount, of whatever kind.
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

/// Whether an option was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Yes,
    No,
}

/// Options for mount(8) itself, without meaning for a file system.
fn is_for_fstab(name: &str) -> bool {
    let words = [
        "_netdev", "nofail", "noauto", "auto", "user", "nouser", "users", "owner", "group",
        "defaults", "comment", "helper", "uhelper",
    ];
    words.contains(&name) || name.starts_with("x-") || name.starts_with("X-")
}

fn number<T: FromStr>(name: &str, value: &str, wanted: &str) -> Result<T> {
    value.parse().map_err(|_| wrong_value(name, value, wanted))
}

/// A word that the kernel and the lists of mounts can hold.
fn text(name: &str, value: &str) -> Result<String> {
    if value.is_empty() || value.contains(char::is_control) {
        Err(wrong_value(name, value, "a name"))
    } else {
        Ok(value.to_owned())
    }
}

fn wrong_value(name: &str, value: &str, wanted: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument)
        .detail(format!("mount option `{name}={value}` is wrong"))
        .advice(format!("it takes {wanted}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(list: &str) -> MountOptions {
        list.parse().unwrap()
    }

    #[test]
    fn later_option_counts() {
        assert_eq!(parsed("ro,rw").access, Access::ReadWrite);
        for word in ["noload", "norecovery"] {
            let read = |list: &str| (parsed(list).access, parsed(list).replay);
            assert_eq!(read(word), (Access::ReadOnly, Replay::Off));
            assert_eq!(read(&format!("{word},ro")).1, Replay::Off);
            assert_eq!(read(&format!("{word},rw")), (Access::ReadWrite, Replay::On));
        }
        assert_eq!(parsed("dev,nodev,suid").flags, MountFlags::NODEV);
        assert_eq!(
            parsed("noatime,nodiratime").access_times,
            AccessTimes::Never
        );
        assert_eq!(
            parsed("nodiratime,noatime").access_times,
            AccessTimes::Never
        );
        assert_eq!(parsed("errors=continue").on_error, Some(OnError::Continue));
        assert_eq!(parsed("commit=9,commit=0").commit_interval, None);
    }

    #[test]
    fn root_of_the_image_is_the_user_who_mounts_unless_something_else_is_asked_for() {
        let mapped = |list: &str, user: u32, root_owner: u32| {
            let mut options = parsed(list);
            options.map_root_to(user, user + 1, root_owner);
            (options.uid, options.gid)
        };
        let none = (None, None);
        assert_eq!(mapped("", 1000, 0), (Some(1000), Some(1001)));
        assert_eq!(mapped("idmap=none,idmap=user", 1000, 7).0, Some(1000));
        assert_eq!(mapped("", 0, 0), none);
        assert_eq!(mapped("", 1000, 1000), none);
        assert_eq!(mapped("idmap=none", 1000, 0), none);
        assert_eq!(mapped("uid=5", 1000, 0), (Some(5), None));
        assert_eq!(mapped("gid=5", 1000, 0), (None, Some(5)));
    }

    #[test]
    fn unknown_option_and_wrong_value_are_refused_by_name() {
        for wrong in [
            "nosuchthing",
            "nosuch=thing",
            "allow_root",
            "ro=1",
            "fsname",
            "fsname=",
            "threads=0",
            "threads=-1",
            "max_read=4095",
            "max_read=0",
            "errors=panic",
            "assign=maybe",
            "commit=x",
            "uid=4294967296",
            "idmap=root",
        ] {
            let list = format!("ro,{wrong},rw");
            let error = list.parse::<MountOptions>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains(&format!("`{wrong}`")), "{error}");
        }
    }

    #[test]
    fn options_of_fstab_are_taken_and_mean_nothing() {
        let list = "defaults,_netdev,nofail,noauto,auto,user,users,user=me,helper=fuse.extant,x-systemd.automount,X-a=b,,";
        assert_eq!(parsed(list), MountOptions::default());
    }

    #[test]
    fn comma_in_a_value_is_escaped() {
        let options = parsed(r"fsname=a\,b\\c,ro");
        assert_eq!(options.source.as_deref(), Some(r"a,b\c"));
        assert_eq!(options.access, Access::ReadOnly);
    }

    const WORDS: &[&str] = &[
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
        "strictatime",
        "noatime",
        "nodiratime",
        "allow_other",
        "auto_unmount",
        "writeback",
        "no_writeback",
        "pin",
        "no_pin",
        "io_uring",
        "no_io_uring",
        "discard",
        "nodiscard",
        "errors=continue",
        "errors=remount-ro",
        "assign=off",
        "assign=require",
        "assign=try",
        "commit=7",
        "uid=1",
        "gid=0",
        "idmap=none",
        "idmap=user",
        "noload",
        "norecovery",
        "threads=3",
        "max_read=65536",
        "subtype=x",
        r"fsname=a b\,c\\",
    ];

    proptest! {
        #[test]
        fn what_is_printed_reads_the_same(words in prop::collection::vec(prop::sample::select(WORDS), 0..12)) {
            let options = parsed(&words.join(","));
            prop_assert_eq!(parsed(&options.to_string()), options);
        }

        #[test]
        fn any_text_is_read_or_refused(list in ".{0,40}") {
            if let Ok(options) = list.parse::<MountOptions>() {
                prop_assert_eq!(parsed(&options.to_string()), options);
            }
        }
    }
}
