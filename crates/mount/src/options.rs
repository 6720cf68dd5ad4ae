//! Mount options (`-o`) of an ext4 volume.
//!
//! One list holds the options of every mount, those of FUSE ([`extant_fuse::MountOptions`]) and
//! those of ext4. Names are those of mount(8), mount.fuse3(8) and ext4(5). The later one of two
//! contradicting options wins. An unknown option is rejected by name, except for those that
//! mount(8) keeps in `fstab` for itself.
//!
//! [`MountOptions`] is displayed in the syntax that it parses, so that another process can repeat
//! the mount.

mod allocator;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use extant_ext4::{Access, Assign, DeviceZeroes, Discard, OnError, Replay};
use extant_fuse::options::{Known, list};
use extant_space::{Error, Result};
use rustix::mount::MountFlags;

pub use allocator::AllocatorOptions;

/// How an ext4 file system is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// Options of the kernel and of FUSE.
    pub fuse: extant_fuse::MountOptions,
    /// Whether the journal is replayed, or skipped (`noload`, `norecovery`), which makes the mount
    /// read-only.
    pub replay: Replay,
    /// Whether freed blocks are discarded (`discard`, `nodiscard`).
    pub discard: Discard,
    /// Whether new extents are assigned on the device below at once (`assign=off`, `assign=try`,
    /// `assign=require`).
    pub assign: Assign,
    /// How `fallocate` with WRITE_ZEROES zeroes the device below (`zeroes=metadata`: allocated,
    /// perhaps unwritten; `zeroes=through`: written in every layer).
    pub zeroes: DeviceZeroes,
    /// Reaction to corrupt metadata (`errors=continue`, `errors=remount-ro`); by default that of
    /// the superblock.
    pub on_error: Option<OnError>,
    /// How blocks are searched for, which a remount can change.
    pub allocator: AllocatorOptions,
    /// Interval of commits (`commit=`, in seconds).
    pub commit_interval: Option<Duration>,
    /// The user outside to which files of the image's user 0 belong (`uid=`).
    pub uid: Option<u32>,
    /// The group outside to which files of the image's group 0 belong (`gid=`).
    pub gid: Option<u32>,
    /// The owner outside of the image's root's files if neither `uid=` nor `gid=` is given
    /// (`idmap=none`, `idmap=user`).
    pub id_mapping: IdMapping,
}

/// The owner outside of files that belong to root in the image, without `uid=` and `gid=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdMapping {
    /// The mounting user, who could not change them otherwise.
    User,
    /// Root.
    None,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            fuse: extant_fuse::MountOptions::default(),
            replay: Replay::On,
            discard: Discard::Off,
            assign: Assign::Try,
            zeroes: DeviceZeroes::Written,
            on_error: None,
            allocator: AllocatorOptions::default(),
            commit_interval: None,
            uid: None,
            gid: None,
            id_mapping: IdMapping::User,
        }
    }
}

impl MountOptions {
    /// The defaults of mount(8) for root ([`extant_fuse::MountOptions::for_mount8`]).
    pub fn for_mount8() -> Self {
        Self {
            fuse: extant_fuse::MountOptions::for_mount8(),
            ..Self::default()
        }
    }

    /// Whether the file system is written to (`ro`, `rw`).
    pub fn access(&self) -> Access {
        if self.fuse.is_read_only() {
            Access::ReadOnly
        } else {
            Access::ReadWrite
        }
    }

    /// Makes the mount read-only (`ro`).
    pub fn set_read_only(&mut self) {
        self.fuse.flags.insert(MountFlags::RDONLY);
    }

    /// Adds a list of options, separated by commas; `\,` is a comma in a value.
    ///
    /// # Errors
    /// `InvalidArgument` with the option that is unknown or has a wrong value.
    pub fn add(&mut self, list: &str) -> Result<()> {
        for option in list::split(list) {
            let (name, value) = list::name_and_value(&option);
            if self.set(name, value)? == Known::No && !list::is_for_fstab(name) {
                return Err(list::unknown(&option));
            }
        }
        Ok(())
    }

    /// Maps root in the image to the user and group who mount it, unless other owners are given, or
    /// the image was made for this user: its root directory belongs to `root_owner`.
    pub fn map_root_to(&mut self, user: u32, group: u32, root_owner: u32) {
        let has_owners = self.uid.is_some() || self.gid.is_some();
        let is_needed = user != 0 && root_owner != user;
        if self.id_mapping == IdMapping::User && !has_owners && is_needed {
            (self.uid, self.gid) = (Some(user), Some(group));
        }
    }

    fn set(&mut self, name: &str, value: Option<&str>) -> Result<Known> {
        let known = match value {
            None => self.set_word(name),
            Some(value) => self.set_value(name, value)?,
        };
        if known == Known::Yes || self.allocator.set(name, value)? == Known::Yes {
            return Ok(Known::Yes);
        }
        self.fuse.set(name, value)
    }

    fn set_word(&mut self, name: &str) -> Known {
        match name {
            "rw" => {
                self.replay = Replay::On;
                return Known::No;
            }
            "noload" | "norecovery" => {
                self.replay = Replay::Off;
                self.set_read_only();
            }
            "discard" => self.discard = Discard::OnCommit,
            "nodiscard" => self.discard = Discard::Off,
            _ => return Known::No,
        }
        Known::Yes
    }

    fn set_value(&mut self, name: &str, value: &str) -> Result<Known> {
        match name {
            "commit" => {
                let seconds = list::number(name, value, "seconds")?;
                // 0 is the default, as in ext4(5).
                self.commit_interval = (seconds > 0).then(|| Duration::from_secs(seconds));
            }
            "uid" => self.uid = Some(list::number(name, value, "a number")?),
            "gid" => self.gid = Some(list::number(name, value, "a number")?),
            "idmap" => {
                self.id_mapping = match value {
                    "none" => IdMapping::None,
                    "user" => IdMapping::User,
                    _ => return Err(list::wrong_value(name, value, "none or user")),
                };
            }
            "errors" => {
                self.on_error = Some(match value {
                    "continue" => OnError::Continue,
                    "remount-ro" => OnError::ReadOnly,
                    _ => return Err(list::wrong_value(name, value, "continue or remount-ro")),
                });
            }
            "assign" => {
                self.assign = match value {
                    "off" => Assign::Off,
                    "try" => Assign::Try,
                    "require" => Assign::Require,
                    _ => return Err(list::wrong_value(name, value, "off, try or require")),
                };
            }
            "zeroes" => {
                self.zeroes = match value {
                    "metadata" => DeviceZeroes::Allocated,
                    "through" => DeviceZeroes::Written,
                    _ => return Err(list::wrong_value(name, value, "metadata or through")),
                };
            }
            _ => return Ok(Known::No),
        }
        Ok(Known::Yes)
    }

    /// The options of ext4 without a value that differ from the defaults; those with few values
    /// count as such.
    fn words(&self) -> Vec<String> {
        let assign = match self.assign {
            Assign::Off => Some("assign=off"),
            Assign::Try => None,
            Assign::Require => Some("assign=require"),
        };
        let on_error = self.on_error.map(|reaction| match reaction {
            OnError::Continue => "errors=continue",
            OnError::ReadOnly => "errors=remount-ro",
        });
        let words = [
            (self.discard == Discard::OnCommit).then_some("discard"),
            assign,
            (self.zeroes == DeviceZeroes::Allocated).then_some("zeroes=metadata"),
            (self.replay == Replay::Off).then_some("noload"),
            (self.id_mapping == IdMapping::None).then_some("idmap=none"),
            on_error,
        ];
        let words = words.into_iter().chain(self.allocator.words());
        words.flatten().map(str::to_owned).collect()
    }

    fn values(&self) -> Vec<String> {
        let commit = self.commit_interval.map(|time| time.as_secs().to_string());
        list::named([
            ("commit", commit),
            ("uid", self.uid.map(|uid| uid.to_string())),
            ("gid", self.gid.map(|gid| gid.to_string())),
        ])
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
        let parts = [
            self.fuse.words(),
            self.words(),
            self.fuse.values(),
            self.values(),
        ];
        f.write_str(&list::join(&parts.concat()))
    }
}

#[cfg(test)]
mod tests {
    use extant_fuse::options::AccessTimes;
    use extant_space::ErrorKind;
    use proptest::prelude::*;

    use super::*;

    fn parsed(list: &str) -> MountOptions {
        list.parse().unwrap()
    }

    #[test]
    fn later_option_counts() {
        assert_eq!(parsed("ro,rw").access(), Access::ReadWrite);
        for word in ["noload", "norecovery"] {
            let read = |list: &str| (parsed(list).access(), parsed(list).replay);
            assert_eq!(read(word), (Access::ReadOnly, Replay::Off));
            assert_eq!(read(&format!("{word},ro")).1, Replay::Off);
            assert_eq!(read(&format!("{word},rw")), (Access::ReadWrite, Replay::On));
        }
        assert_eq!(parsed("dev,nodev,suid").fuse.flags, MountFlags::NODEV);
        assert_eq!(
            parsed("noatime,nodiratime").fuse.access_times,
            AccessTimes::Never
        );
        assert_eq!(
            parsed("nodiratime,noatime").fuse.access_times,
            AccessTimes::Never
        );
        assert_eq!(parsed("errors=continue").on_error, Some(OnError::Continue));
        assert_eq!(parsed("commit=9,commit=0").commit_interval, None);
    }

    #[test]
    fn root_of_the_image_is_the_mounting_user_by_default() {
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
            "zeroes=maybe",
            "mb_optimize_scan",
            "mb_optimize_scan=2",
            "mb_optimize_scan=",
            "reservation=1",
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
    fn options_of_the_allocator_are_taken_out_of_a_remount() {
        let parse = |list: &str| AllocatorOptions::for_remount(list).unwrap();
        let (options, others) = parse("remount,ro,noreservation,mb_optimize_scan=0,user_id=0");
        assert_eq!(
            options,
            parsed("mb_optimize_scan=0,noreservation").allocator
        );
        assert_eq!(others, ["ro", "user_id=0"]);
        assert!(parse("remount").0.is_empty());
        let error = AllocatorOptions::for_remount("mb_optimize_scan=7").unwrap_err();
        assert!(
            error.to_string().contains("`mb_optimize_scan=7`"),
            "{error}"
        );
        for list in ["mb_optimize_scan=0", "reservation", "noreservation", ""] {
            let options = parse(list).0;
            assert_eq!(
                AllocatorOptions::from_call(&options.to_call()),
                Some(options)
            );
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
        assert_eq!(options.fuse.source.as_deref(), Some(r"a,b\c"));
        assert_eq!(options.access(), Access::ReadOnly);
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
        "zeroes=metadata",
        "zeroes=through",
        "mb_optimize_scan=0",
        "mb_optimize_scan=1",
        "reservation",
        "noreservation",
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
        fn printed_value_parses_to_the_same(words in prop::collection::vec(prop::sample::select(WORDS), 0..12)) {
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
