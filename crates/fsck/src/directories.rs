//! The blocks of directories, entry by entry.
//!
//! Every entry is counted as a link of the inode it names, and gives a directory its parent.

use extant_ondisk::ext4::directory::{
    BlockKind, DirectoryFormat, Entry, RawDirEntry, Tail, block_kind, encrypted_entries, entries,
    verify,
};
use extant_ondisk::ext4::extent::ExtentKind;
use extant_ondisk::ext4::inode::{FileType, InodeFlags};
use extant_ondisk::ext4::{
    GroupNumber, Incompat, Inode, InodeNumber, InodeSeed, LogicalBlock, PhysicalBlock,
};
use extant_space::Result;

use crate::checker::{Check, Step};
use crate::directory::Directory;
use crate::file_blocks::Summary;
use crate::findings::{FindingKind, Location};
use crate::hash_tree::{HashTree, Role};
use crate::mapping::Run;
use crate::names::KnownName;
use crate::states::InodeUse;

/// Blocks read at once.
const CHUNK_BLOCKS: u64 = 64;
/// Offset of `..` in the first block.
const DOT_DOT_OFFSET: usize = 12;

/// Bytes of `i_block`.
const INLINE_BYTES: usize = 60;

/// A block of a directory.
struct Block<'a> {
    directory: InodeNumber,
    logical: u64,
    physical: PhysicalBlock,
    bytes: &'a [u8],
}

impl Block<'_> {
    fn place(&self) -> Location {
        Location::inode(self.directory).in_block(self.physical)
    }
}

impl Check<'_> {
    /// Takes a directory that the scan found.
    pub(crate) fn add_directory(&mut self, number: InodeNumber, inode: &Inode, summary: Summary) {
        let layout = self.volume.layout();
        let size = inode.size_bytes(layout);
        let blocks = summary.last.map_or(0, |last| last + 1);
        let expected = blocks << layout.block_bits();
        let place = Location::inode(number);
        let is_deleted = self.states.usage(number) == InodeUse::Orphan && inode.links() == 0;
        let has_high_size = layout.features().incompat.contains(Incompat::LARGEDIR);
        if inode.raw().i_size_high.get() != 0 && !has_high_size {
            let words = "i_size_high is not 0 without large_dir";
            self.findings.add(FindingKind::Size, place.clone(), words);
        }
        let is_inline = inode.flags().contains(InodeFlags::INLINE_DATA);
        if size != expected && !is_deleted && !is_inline {
            let words = format_args!("i_size is {size}, and its blocks end at byte {expected}");
            self.findings.add(FindingKind::Size, place.clone(), words);
        }
        if summary
            .runs
            .iter()
            .any(|run| run.kind == ExtentKind::Unwritten)
        {
            let words = "a directory with unwritten blocks";
            self.findings.add(FindingKind::Mapping, place, words);
        }
        self.directories.push(Directory {
            number,
            parent: None,
            dot_dot: None,
            seed: self.volume.seed().map(|seed| inode.seed(seed, number)),
            is_indexed: inode.flags().contains(InodeFlags::INDEX),
            is_encrypted: inode.flags().contains(InodeFlags::ENCRYPT),
            is_casefolded: inode.flags().contains(InodeFlags::CASEFOLD),
            is_deleted,
            runs: summary.runs,
        });
    }

    /// Reads all directories.
    pub(crate) fn check_directories(&mut self) -> Result<()> {
        let per_group = self.volume.layout().inodes_per_group();
        for index in 0..self.directories.len() {
            let directory = &mut self.directories[index];
            let number = directory.number;
            // The runs are not needed afterwards.
            let runs = std::mem::take(&mut directory.runs);
            let (seed, is_indexed) = (directory.seed, directory.is_indexed);
            let is_casefolded = directory.is_casefolded;
            if directory.is_deleted {
                continue;
            }
            self.advance(Step::Directories, GroupNumber((number.0 - 1) / per_group))?;
            if let Some(data) = self.inline_directories.remove(&number) {
                self.check_inline_directory(number, &data);
                continue;
            }
            let tree = if is_indexed && !is_casefolded {
                self.read_hash_tree(number, &runs, seed)?
            } else {
                None
            };
            self.check_directory(number, &runs, seed, is_indexed, tree.as_ref())?;
        }
        Ok(())
    }

    /// Reads the entries that an inode holds: four bytes are `..`, records follow to the end of
    /// `i_block`, and others in the attribute behind it.
    fn check_inline_directory(&mut self, number: InodeNumber, data: &[u8]) {
        self.count_link(number);
        let word = |at: usize| u32::from_le_bytes(data[at..at + 4].try_into().expect("4 bytes"));
        let parent = InodeNumber::new(word(0));
        let index = self.directory_index(number).expect("a directory");
        self.directories[index].dot_dot = parent;
        if let Some(parent) = parent {
            self.count_link(parent);
        }
        let place = self.volume.inode_place(number);
        let block = Block {
            directory: number,
            logical: 0,
            physical: place.map_or(PhysicalBlock(0), |(block, _)| block),
            bytes: data,
        };
        let header = size_of::<RawDirEntry>();
        for (mut at, end) in [(4, INLINE_BYTES), (INLINE_BYTES, data.len())] {
            while at < end {
                let length = if end - at >= header {
                    usize::from(u16::from_le_bytes([data[at + 4], data[at + 5]]))
                } else {
                    0
                };
                let name_end = at + header + usize::from(data.get(at + 6).copied().unwrap_or(0));
                let is_whole = length >= header && length.is_multiple_of(4);
                if !is_whole || at + length > end || name_end > at + length {
                    let words = format_args!("a record of {length} bytes at byte {at}");
                    self.findings
                        .add(FindingKind::DirectoryBlock, block.place(), words);
                    break;
                }
                if let Some(inode) = InodeNumber::new(word(at)) {
                    let entry = Entry {
                        inode,
                        name: &data[at + header..name_end],
                        file_type: None,
                        type_code: data[at + 7],
                        offset: at,
                    };
                    self.check_entry(&block, &entry);
                }
                at += length;
            }
        }
    }

    fn check_directory(
        &mut self,
        number: InodeNumber,
        runs: &[Run],
        seed: Option<InodeSeed>,
        is_indexed: bool,
        tree: Option<&HashTree>,
    ) -> Result<()> {
        let block_bytes = self.volume.layout().block_bytes() as usize;
        let mut names = Vec::new();
        let mut end = 0;
        for run in runs {
            if run.logical > end {
                let words = format_args!("a directory without block {end}");
                self.findings
                    .add(FindingKind::DirectoryBlock, Location::inode(number), words);
            }
            end = run.logical + run.blocks;
            for first in (0..run.blocks).step_by(CHUNK_BLOCKS as usize) {
                let physical = run.physical.0 + first;
                let blocks = CHUNK_BLOCKS.min(run.blocks - first);
                let bytes = self.volume.blocks(PhysicalBlock(physical), blocks as u32)?;
                for (index, bytes) in (0..).zip(bytes.chunks(block_bytes)) {
                    let block = Block {
                        directory: number,
                        logical: run.logical + first + index,
                        physical: PhysicalBlock(physical + index),
                        bytes,
                    };
                    let role = match (is_indexed, tree) {
                        (true, Some(tree)) => self.role_in_tree(&block, tree),
                        (true, None) => self.likely_role(&block),
                        (false, _) => Role::Records(None),
                    };
                    self.check_block(&block, role, tree, seed, &mut names);
                }
            }
        }
        if runs.first().is_none_or(|run| run.logical > 0) {
            let words = "a directory without its first block";
            self.findings
                .add(FindingKind::OwnEntries, Location::inode(number), words);
        }
        self.check_names(number, runs, names)
    }

    fn role_in_tree(&mut self, block: &Block<'_>, tree: &HashTree) -> Role {
        if let Some(role) = tree.role(block.logical) {
            return role;
        }
        let words = format_args!("block {} is not in the hash tree", block.logical);
        self.findings
            .add(FindingKind::HashTree, block.place(), words);
        self.likely_role(block)
    }

    fn likely_role(&self, block: &Block<'_>) -> Role {
        let format = self.volume.directory_format();
        match block_kind(block.bytes, LogicalBlock(block.logical as u32), &format) {
            BlockKind::Root => Role::Root,
            BlockKind::Node => Role::Node,
            BlockKind::Records => Role::Records(None),
        }
    }

    fn check_block(
        &mut self,
        block: &Block<'_>,
        role: Role,
        tree: Option<&HashTree>,
        seed: Option<InodeSeed>,
        names: &mut Vec<KnownName>,
    ) {
        let format = self.volume.directory_format();
        let format = match role {
            Role::Node => return,
            // `..` spans the rest of the block, with the tree's sum in it.
            Role::Root => DirectoryFormat {
                tail: Tail::None,
                ..format
            },
            Role::Records(_) => format,
        };
        if let Err(error) = verify(block.bytes, &format, seed) {
            self.findings
                .add(FindingKind::DirectoryBlock, block.place(), error);
        }
        let mut own = if block.logical == 0 {
            &[&b"."[..], b".."][..]
        } else {
            &[]
        };
        let index = self.directory_index(block.directory).expect("a directory");
        let directory = &self.directories[index];
        let is_text = directory.is_casefolded && !directory.is_encrypted && self.names_are_strict();
        let entries = if directory.is_encrypted {
            encrypted_entries(block.bytes, &format)
        } else {
            entries(block.bytes, &format)
        };
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    self.findings
                        .add(FindingKind::DirectoryBlock, block.place(), error);
                    break;
                }
            };
            let offset = if own.len() == 1 { DOT_DOT_OFFSET } else { 0 };
            if own.first() == Some(&entry.name) && entry.offset == offset {
                own = &own[1..];
                self.check_own_entry(block, &entry);
                continue;
            }
            if matches!(entry.name, b"." | b"..") {
                let words = "in the place of another entry";
                let place = block.place().at_entry(entry.name);
                self.findings.add(FindingKind::OwnEntries, place, words);
                continue;
            }
            self.check_entry(block, &entry);
            if is_text && str::from_utf8(entry.name).is_err() {
                let words = "no UTF-8, in a directory that compares names without case";
                let place = block.place().at_entry(entry.name);
                self.findings.add(FindingKind::Name, place, words);
            }
            if let (Role::Records(Some(range)), Some(tree)) = (role, tree) {
                let hash = tree.hash(entry.name);
                if !range.contains(&hash) {
                    let place = block.place().at_entry(entry.name);
                    let words = format_args!("its hash {hash:#x} belongs into another block");
                    self.findings.add(FindingKind::HashTree, place, words);
                }
            }
            names.push(KnownName::of(&entry, block.logical));
        }
        for name in own {
            let words = "missing, or not in its place";
            let place = block.place().at_entry(name);
            self.findings.add(FindingKind::OwnEntries, place, words);
        }
    }

    /// Whether directories that compare names without case refuse names that are no text.
    fn names_are_strict(&self) -> bool {
        const STRICT: u16 = 1;
        let raw = self.volume.superblock().raw();
        raw.s_encoding_flags.get() & STRICT != 0
    }

    fn check_own_entry(&mut self, block: &Block<'_>, entry: &Entry<'_>) {
        if entry.name == b"." && entry.inode != block.directory {
            let words = format_args!("names inode {}", entry.inode);
            let place = block.place().at_entry(entry.name);
            self.findings.add(FindingKind::OwnEntries, place, words);
        }
        // Others take these names for texts that end.
        let name_end = entry.offset + size_of::<RawDirEntry>() + entry.name.len();
        if block.bytes[name_end] != 0 {
            let words = "no zero behind the name";
            let place = block.place().at_entry(entry.name);
            self.findings.add(FindingKind::OwnEntries, place, words);
        }
        if entry.name == b".." {
            let index = self.directory_index(block.directory).expect("a directory");
            self.directories[index].dot_dot = Some(entry.inode);
        }
        let kind = self.count_link(entry.inode);
        self.check_entry_type(block, entry, kind);
    }

    fn check_entry(&mut self, block: &Block<'_>, entry: &Entry<'_>) {
        let number = entry.inode;
        let problem = match self.states.usage(number) {
            _ if number == InodeNumber::ROOT => Some("a second name of the root"),
            InodeUse::None => Some("which is not in use"),
            InodeUse::Own => Some("which belongs to the file system"),
            InodeUse::AttributeValue => Some("which is the value of an attribute"),
            InodeUse::File | InodeUse::Orphan => None,
        };
        if let Some(problem) = problem {
            let words = format_args!("names inode {number}, {problem}");
            let place = block.place().at_entry(entry.name);
            self.findings.add(FindingKind::Entry, place, words);
            return;
        }
        let kind = self.count_link(number);
        self.check_entry_type(block, entry, kind);
        if kind != Some(FileType::Directory) {
            return;
        }
        let index = self
            .directory_index(number)
            .expect("a directory that was scanned");
        match self.directories[index].parent {
            None => self.directories[index].parent = Some(block.directory),
            Some(parent) => {
                let words =
                    format_args!("a second name of directory {number}, which is in {parent}");
                let place = block.place().at_entry(entry.name);
                self.findings.add(FindingKind::DirectoryTwice, place, words);
            }
        }
    }

    /// Counts one more link of an inode in use, and gives its type.
    fn count_link(&mut self, number: InodeNumber) -> Option<FileType> {
        let state = self.states.get_mut(number)?;
        state.links_found = state.links_found.saturating_add(1);
        state.kind
    }

    fn check_entry_type(&mut self, block: &Block<'_>, entry: &Entry<'_>, kind: Option<FileType>) {
        // 0 says nothing, also where entries have no types.
        let code = entry.type_code;
        let expected = kind
            .map(FileType::directory_code)
            .filter(|&expected| expected != code);
        if let Some(expected) = expected.filter(|_| code != 0) {
            let place = block.place().at_entry(entry.name);
            let words = format_args!("says type {code}, and the inode type {expected}");
            self.findings.add(FindingKind::EntryType, place, words);
        }
    }
}
