//! The superblock.

use extant_ext4::Timestamp;
use extant_ondisk::ext4::directory::{HashKind, HashVersion, Sign};
use extant_ondisk::ext4::superblock::{ErrorPolicy, JournalPlace, RecordedError, State};
use extant_ondisk::ext4::{Features, Superblock};
use serde::Serialize;

use super::line;
use crate::fs::df::uuid_text;
use crate::fs::time;
use crate::fs_image::names::escaped;

#[derive(Debug, Serialize)]
pub(super) struct Fields {
    label: String,
    last_mounted: String,
    uuid: String,
    revision: u32,
    features: Vec<String>,
    state: Vec<&'static str>,
    on_error: &'static str,
    inodes: u32,
    blocks: u64,
    reserved_blocks: u64,
    free_blocks: u64,
    free_inodes: u32,
    first_data_block: u64,
    block_bytes: u32,
    cluster_blocks: u32,
    descriptor_bytes: u16,
    reserved_descriptor_blocks: u16,
    groups: u32,
    blocks_per_group: u32,
    inodes_per_group: u32,
    inode_blocks_per_group: u32,
    groups_per_flex: u32,
    inode_bytes: u16,
    extra_isize: u16,
    first_inode: u32,
    created: Option<String>,
    mounted: Option<String>,
    written: Option<String>,
    checked: Option<String>,
    mounts: u16,
    written_kib: u64,
    journal_inode: Option<u32>,
    orphan_file_inode: Option<u32>,
    last_orphan_inode: Option<u32>,
    hash: String,
    hash_seed: String,
    checksum: u32,
    checksum_seed: Option<u32>,
    first_error: Option<Noted>,
    last_error: Option<Noted>,
}

#[derive(Debug, Serialize)]
pub(in crate::fs) struct Noted {
    time: String,
    inode: Option<u32>,
    block: u64,
    function: String,
    line: u32,
    code: u8,
}

impl Fields {
    pub(super) fn of(superblock: &Superblock) -> Self {
        let (raw, layout) = (superblock.raw(), superblock.layout());
        let time = |low: u32, high: u8| {
            let seconds = i64::from(high) << 32 | i64::from(low);
            (seconds != 0).then(|| {
                time::rfc3339(Timestamp {
                    // The field has a larger range than the time stamps of files.
                    seconds: seconds.min(Timestamp::MAX.seconds),
                    nanoseconds: 0,
                })
            })
        };
        let (first_error, last_error) = superblock.recorded_errors();
        Self {
            label: escaped(superblock.volume_name()),
            last_mounted: escaped(superblock.last_mounted()),
            uuid: uuid_text(superblock.uuid()),
            revision: raw.s_rev_level.get(),
            features: feature_names(superblock.features()),
            state: state_names(superblock.state()),
            on_error: match superblock.error_policy() {
                ErrorPolicy::Continue => "continue",
                ErrorPolicy::ReadOnly => "remount read-only",
                ErrorPolicy::Panic => "panic",
            },
            inodes: layout.inodes(),
            blocks: layout.blocks(),
            reserved_blocks: superblock.reserved_blocks(),
            free_blocks: superblock.free_blocks(),
            free_inodes: superblock.free_inodes(),
            first_data_block: layout.first_data_block().0,
            block_bytes: layout.block_bytes(),
            cluster_blocks: layout.blocks_per_cluster(),
            descriptor_bytes: layout.descriptor_bytes(),
            reserved_descriptor_blocks: layout.reserved_descriptor_blocks(),
            groups: layout.groups(),
            blocks_per_group: layout.blocks_per_group(),
            inodes_per_group: layout.inodes_per_group(),
            inode_blocks_per_group: layout.inode_table_blocks(),
            groups_per_flex: layout.groups_per_flex(),
            inode_bytes: layout.inode_bytes(),
            extra_isize: superblock.extra_isize_for_new_inodes(),
            first_inode: layout.first_inode().0,
            created: time(raw.s_mkfs_time.get(), raw.s_mkfs_time_hi),
            mounted: time(raw.s_mtime.get(), raw.s_mtime_hi),
            written: time(raw.s_wtime.get(), raw.s_wtime_hi),
            checked: time(raw.s_lastcheck.get(), raw.s_lastcheck_hi),
            mounts: raw.s_mnt_count.get(),
            written_kib: raw.s_kbytes_written.get(),
            journal_inode: match superblock.journal() {
                Some(JournalPlace::Inode(number)) => Some(number.0),
                _ => None,
            },
            orphan_file_inode: superblock.orphan_file().map(|number| number.0),
            last_orphan_inode: superblock.last_orphan().map(|number| number.0),
            hash: match superblock.hash_version() {
                Ok(version) => hash_name(version),
                Err(_) => format!("unknown ({})", raw.s_def_hash_version),
            },
            hash_seed: uuid_text(&{
                let mut bytes = [0; 16];
                for (into, word) in bytes.chunks_exact_mut(4).zip(raw.s_hash_seed) {
                    into.copy_from_slice(&word.get().to_le_bytes());
                }
                bytes
            }),
            checksum: raw.s_checksum.get(),
            checksum_seed: superblock.seed().map(|seed| seed.value()),
            first_error: first_error.map(Noted::from),
            last_error: last_error.map(Noted::from),
        }
    }

    pub(super) fn describe(&self) -> String {
        let or_none = |text: &str| match text {
            "" => "<none>".to_owned(),
            text => text.to_owned(),
        };
        let time = |time: &Option<String>| time.clone().unwrap_or("n/a".to_owned());
        let mut lines = vec![
            line("Volume name", or_none(&self.label)),
            line("Last mounted on", or_none(&self.last_mounted)),
            line("UUID", &self.uuid),
            line("Features", self.features.join(" ")),
            line("State", self.state.join(", ")),
            line("On errors", self.on_error),
            line(
                "Inodes",
                format!("{}, {} free", self.inodes, self.free_inodes),
            ),
            line(
                "Blocks",
                format!(
                    "{}, {} free, {} reserved",
                    self.blocks, self.free_blocks, self.reserved_blocks
                ),
            ),
            line("First data block", self.first_data_block),
            line("Block size", self.block_bytes),
            line(
                "Groups",
                format!("{}, {} to a flex group", self.groups, self.groups_per_flex),
            ),
            line("Blocks per group", self.blocks_per_group),
            line(
                "Inodes per group",
                format!(
                    "{} in {} blocks",
                    self.inodes_per_group, self.inode_blocks_per_group
                ),
            ),
            line("Descriptor size", self.descriptor_bytes),
            line("Reserved GDT blocks", self.reserved_descriptor_blocks),
            line(
                "Inode size",
                format!("{}, extra fields {}", self.inode_bytes, self.extra_isize),
            ),
            line("First inode", self.first_inode),
            line("Created", time(&self.created)),
            line("Last mounted", time(&self.mounted)),
            line("Last written", time(&self.written)),
            line("Last checked", time(&self.checked)),
            line("Mounts since", self.mounts),
            line("Lifetime writes", format!("{} KiB", self.written_kib)),
        ];
        for (name, inode) in [
            ("Journal inode", self.journal_inode),
            ("Orphan file inode", self.orphan_file_inode),
            ("First orphan inode", self.last_orphan_inode),
        ] {
            lines.extend(inode.map(|number| line(name, number)));
        }
        lines.push(line(
            "Directory hash",
            format!("{}, seed {}", self.hash, self.hash_seed),
        ));
        if let Some(seed) = self.checksum_seed {
            lines.push(line(
                "Checksum",
                format!("{:#010x}, seed {seed:#010x}", self.checksum),
            ));
        }
        lines.extend(noted_lines(&self.first_error, &self.last_error));
        lines.join("\n")
    }
}

/// The recorded errors, on a line each.
pub(in crate::fs) fn noted_lines(first: &Option<Noted>, last: &Option<Noted>) -> Vec<String> {
    let both = [("First error", first), ("Last error", last)];
    let noted = both.into_iter().filter_map(|(name, error)| {
        let error = error.as_ref()?;
        Some(line(name, error.describe()))
    });
    noted.collect()
}

impl Noted {
    fn describe(&self) -> String {
        let inode = self
            .inode
            .map(|inode| format!(", inode {inode}"))
            .unwrap_or_default();
        format!(
            "{}: code {}, {}:{}{inode}, block {}",
            self.time,
            self.code,
            escaped(self.function.as_bytes()),
            self.line,
            self.block
        )
    }
}

impl From<RecordedError> for Noted {
    fn from(error: RecordedError) -> Self {
        let seconds = (error.time_seconds as i64).min(Timestamp::MAX.seconds);
        Self {
            time: time::rfc3339(Timestamp {
                seconds,
                nanoseconds: 0,
            }),
            inode: error.inode.map(|inode| inode.0),
            block: error.block.0,
            function: error.function,
            line: error.line,
            code: error.code,
        }
    }
}

fn hash_name(version: HashVersion) -> String {
    let kind = match version.kind {
        HashKind::Legacy => "legacy",
        HashKind::HalfMd4 => "half_md4",
        HashKind::Tea => "tea",
    };
    let sign = match version.sign {
        Sign::Signed => "signed",
        Sign::Unsigned => "unsigned",
    };
    format!("{kind}, {sign}")
}

fn feature_names(features: &Features) -> Vec<String> {
    let all = features
        .compat
        .names()
        .chain(features.incompat.names())
        .chain(features.ro_compat.names());
    all.map(|name| name.to_string()).collect()
}

fn state_names(state: State) -> Vec<&'static str> {
    let mut names = vec![if state.contains(State::VALID) {
        "clean"
    } else {
        "not clean"
    }];
    for (flag, name) in [
        (State::ERRORS, "with errors"),
        (State::ORPHANS, "orphans being cleared"),
        (State::FAST_COMMIT_REPLAY, "fast commit being replayed"),
    ] {
        names.extend(state.contains(flag).then_some(name));
    }
    names
}
