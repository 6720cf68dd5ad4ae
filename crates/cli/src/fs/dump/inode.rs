//! One inode.

use extant_ext4::Node;
use extant_ondisk::ext4::Layout;
use serde::Serialize;

use super::line;
use crate::fs::entry::{flag_names, mode_letters, type_name};
use crate::fs::time;

#[derive(Debug, Serialize)]
pub(super) struct Fields {
    inode: u32,
    #[serde(rename = "type")]
    kind: &'static str,
    mode: String,
    letters: String,
    flags: Vec<String>,
    flag_bits: u32,
    generation: u32,
    version: u64,
    uid: u32,
    gid: u32,
    project: Option<u32>,
    size_bytes: u64,
    links: u16,
    sectors: u64,
    xattr_block: Option<u64>,
    deleted: u32,
    extra_isize: u16,
    accessed: String,
    modified: String,
    changed: String,
    created: Option<String>,
    /// `i_block` in hexadecimal.
    block_area: String,
}

impl Fields {
    pub(super) fn of(node: &Node, layout: &Layout) -> Self {
        let (inode, found) = (node.inode(), node.attributes());
        Self {
            inode: found.inode.0,
            kind: type_name(found.file_type),
            mode: format!("{:04o}", found.permissions),
            letters: mode_letters(found.file_type, found.permissions),
            flags: flag_names(&found),
            flag_bits: found.flags.bits(),
            generation: found.generation,
            version: inode.version(),
            uid: found.uid,
            gid: found.gid,
            project: inode.project(),
            size_bytes: found.size_bytes,
            links: found.links,
            sectors: inode.sectors(layout),
            xattr_block: inode.xattr_block(layout).map(|block| block.0),
            deleted: inode.deletion_word(),
            extra_isize: inode.extra_isize(),
            accessed: time::rfc3339(found.accessed),
            modified: time::rfc3339(found.modified),
            changed: time::rfc3339(found.changed),
            created: found.created.map(time::rfc3339),
            block_area: inode
                .block_area()
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect(),
        }
    }

    pub(super) fn describe(&self) -> String {
        let mut lines = vec![
            line("Inode", format!("{}, {}", self.inode, self.kind)),
            line("Mode", format!("{} {}", self.mode, self.letters)),
            line(
                "Flags",
                format!("{:#x} {}", self.flag_bits, self.flags.join(" ")),
            ),
            line(
                "Generation",
                format!("{}, version {}", self.generation, self.version),
            ),
            line("Owner", format!("{}:{}", self.uid, self.gid)),
            line("Size", self.size_bytes),
            line("Links", self.links),
            line("Sectors", self.sectors),
        ];
        if let Some(project) = self.project.filter(|&project| project != 0) {
            lines.push(line("Project", project));
        }
        if let Some(block) = self.xattr_block {
            lines.push(line("Attribute block", block));
        }
        if self.deleted != 0 {
            lines.push(line("Deleted, or next orphan", self.deleted));
        }
        lines.push(line("Accessed", &self.accessed));
        lines.push(line("Modified", &self.modified));
        lines.push(line("Changed", &self.changed));
        lines.extend(
            self.created
                .as_ref()
                .map(|created| line("Created", created)),
        );
        lines.push(line("Extra fields", format!("{} bytes", self.extra_isize)));
        lines.join("\n")
    }
}
