//! Reports of the LVM tools (`--reportformat json --units b --nosuffix`): all values are text.
//!
//! The name and the tags of a logical volume say what it is for the pool:
//!
//! - `extant.format=raw`: made by a pool. Others are never changed;
//! - `extant.state=incomplete`: not complete, with a hidden name;
//! - `extant.growing=NAME/BYTES`: under a hidden name, the volume NAME, whose part behind BYTES is
//!   not zeroed yet;
//! - `extant.replaced=NAME`: of a volume under a hidden name and of the one that replaces it.

use extant_space::{Error, ErrorKind, Result};
use serde::{Deserialize, Deserializer, de};

pub(super) const RAW: &str = "extant.format=raw";
pub(super) const INCOMPLETE: &str = "extant.state=incomplete";
const GROWING: &str = "extant.growing=";
const REPLACED: &str = "extant.replaced=";

/// A volume group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) uuid: String,
    pub(super) extent_bytes: u64,
    pub(super) size_bytes: u64,
    /// Of the disks that new volumes may use.
    pub(super) free_bytes: u64,
    /// Why the pool cannot use the group.
    pub(super) fault: Option<&'static str>,
    pub(super) volumes: Vec<LogicalVolume>,
}

/// A logical volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LogicalVolume {
    pub(super) name: String,
    pub(super) uuid: String,
    pub(super) size_bytes: u64,
    pub(super) tags: Vec<String>,
    /// It has all of its space, and is no part of another one.
    pub(super) is_thick: bool,
    pub(super) has_snapshots: bool,
    /// Numbers of its device; `None` if it is not active.
    pub(super) device: Option<(u32, u32)>,
}

impl Report {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let corrupt = |detail: String| {
            Error::new(ErrorKind::Corrupt)
                .during("read the report of the LVM tools")
                .detail(detail)
        };
        let document: Document =
            serde_json::from_str(text).map_err(|error| corrupt(error.to_string()))?;
        let mut sections = document.report.into_iter();
        let (Some(section), None) = (sections.next(), sections.next()) else {
            return Err(corrupt("not one volume group".to_owned()));
        };
        let [group] = &section.groups[..] else {
            return Err(corrupt("not one volume group".to_owned()));
        };
        let usable = section.disks.iter().filter(|disk| disk.is_allocatable());
        Ok(Self {
            uuid: group.uuid.clone(),
            extent_bytes: group.extent_bytes,
            size_bytes: group.size_bytes,
            free_bytes: usable.map(|disk| disk.free_bytes).sum(),
            fault: group.fault(),
            volumes: section
                .volumes
                .into_iter()
                .map(LogicalVolume::from)
                .collect(),
        })
    }

    pub(super) fn named(&self, name: &str) -> Option<&LogicalVolume> {
        self.volumes.iter().find(|volume| volume.name == name)
    }
}

impl LogicalVolume {
    /// A pool has made it.
    pub(super) fn is_own(&self) -> bool {
        self.is_thick && self.has_tag(RAW)
    }

    pub(super) fn has_tag(&self, tag: &str) -> bool {
        self.tags.iter().any(|own| own == tag)
    }

    /// The name and size that it had before it began to grow.
    pub(super) fn growing(&self) -> Option<(&str, u64)> {
        let mut values = self.tags.iter().filter_map(|tag| tag.strip_prefix(GROWING));
        let (name, bytes) = values.next()?.split_once('/')?;
        Some((name, bytes.parse().ok()?))
    }

    /// The name of the replaced volume.
    pub(super) fn replaced(&self) -> Option<&str> {
        let mut values = self
            .tags
            .iter()
            .filter_map(|tag| tag.strip_prefix(REPLACED));
        values.next()
    }

    /// The tools would remove them with it.
    pub(super) fn check_no_snapshots(&self) -> Result<()> {
        if self.has_snapshots {
            return Err(Error::new(ErrorKind::InUse)
                .detail("the logical volume has snapshots, which LVM would remove with it")
                .advice("remove them with lvremove"));
        }
        Ok(())
    }
}

pub(super) fn growing_tag(name: &str, bytes: u64) -> String {
    format!("{GROWING}{name}/{bytes}")
}

pub(super) fn replaced_tag(name: &str) -> String {
    format!("{REPLACED}{name}")
}

/// The errors in the log of a failed report; none for another text.
pub(super) fn messages(text: &str) -> Vec<String> {
    let log = serde_json::from_str(text).map(|document: FailedDocument| document.log);
    let errors = log.unwrap_or_default().into_iter();
    errors
        .filter(|row| row.kind == "error")
        .map(|row| row.message)
        .collect()
}

#[derive(Deserialize)]
struct FailedDocument {
    log: Vec<LogRow>,
}

#[derive(Deserialize)]
struct LogRow {
    #[serde(rename = "log_type")]
    kind: String,
    #[serde(rename = "log_message")]
    message: String,
}

#[derive(Deserialize)]
struct Document {
    report: Vec<Section>,
}

#[derive(Deserialize)]
struct Section {
    #[serde(rename = "vg")]
    groups: Vec<GroupRow>,
    #[serde(rename = "pv", default)]
    disks: Vec<DiskRow>,
    #[serde(rename = "lv", default)]
    volumes: Vec<VolumeRow>,
}

#[derive(Deserialize)]
struct GroupRow {
    #[serde(rename = "vg_uuid")]
    uuid: String,
    #[serde(rename = "vg_attr")]
    attributes: String,
    #[serde(rename = "vg_extent_size", deserialize_with = "number")]
    extent_bytes: u64,
    #[serde(rename = "vg_size", deserialize_with = "number")]
    size_bytes: u64,
}

impl GroupRow {
    /// The attributes are letters, described in vgs(8).
    fn fault(&self) -> Option<&'static str> {
        let attributes = self.attributes.as_bytes();
        let is = |at: usize, letters: &[u8]| {
            attributes
                .get(at)
                .is_some_and(|letter| letters.contains(letter))
        };
        if is(2, b"x") {
            Some("the volume group is exported: vgimport")
        } else if is(5, b"cs") {
            Some("the volume group is shared by several machines")
        } else {
            None
        }
    }
}

#[derive(Deserialize)]
struct DiskRow {
    #[serde(rename = "pv_attr")]
    attributes: String,
    #[serde(rename = "pv_free", deserialize_with = "number")]
    free_bytes: u64,
}

impl DiskRow {
    /// As in pvs(8): allocatable, and not missing.
    fn is_allocatable(&self) -> bool {
        let letters = self.attributes.as_bytes();
        letters.first() == Some(&b'a') && letters.get(2) != Some(&b'm')
    }
}

#[derive(Deserialize)]
struct VolumeRow {
    #[serde(rename = "lv_name")]
    name: String,
    #[serde(rename = "lv_uuid")]
    uuid: String,
    #[serde(rename = "lv_size", deserialize_with = "number")]
    size_bytes: u64,
    #[serde(rename = "lv_tags")]
    tags: String,
    #[serde(rename = "lv_layout")]
    layout: String,
    #[serde(rename = "lv_role")]
    role: String,
    #[serde(rename = "lv_kernel_major")]
    major: String,
    #[serde(rename = "lv_kernel_minor")]
    minor: String,
}

impl From<VolumeRow> for LogicalVolume {
    fn from(row: VolumeRow) -> Self {
        let words = |text: &str| -> Vec<String> { text.split(',').map(str::to_owned).collect() };
        let (layout, role) = (words(&row.layout), words(&row.role));
        let has = |words: &[String], one: &str| words.iter().any(|word| word == one);
        let is_plain = ["linear", "striped", "raid", "mirror"]
            .iter()
            .any(|one| has(&layout, one));
        Self {
            name: row.name,
            uuid: row.uuid,
            size_bytes: row.size_bytes,
            tags: words(&row.tags),
            is_thick: is_plain && has(&role, "public") && !has(&role, "snapshot"),
            has_snapshots: has(&role, "origin"),
            // -1 of an inactive one.
            device: row.major.parse().ok().zip(row.minor.parse().ok()),
        }
    }
}

fn number<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<u64, D::Error> {
    let text = String::deserialize(from)?;
    text.parse()
        .map_err(|_| de::Error::custom(format!("{text:?} is no number of bytes")))
}

#[cfg(test)]
mod tests;
