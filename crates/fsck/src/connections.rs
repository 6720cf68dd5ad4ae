//! Whether everything can be reached from the root, and links are counted right.

use std::collections::HashSet;

use extant_ondisk::ext4::InodeNumber;
use extant_ondisk::ext4::inode::FileType;

use crate::checker::Check;
use crate::findings::{FindingKind, Location};
use crate::states::{InodeState, InodeUse};

/// Links of a directory that can be counted.
const LINKS_MAX: u32 = 65_000;

impl Check<'_> {
    /// Follows every directory up to the root, and compares `..` with the way.
    pub(crate) fn check_connections(&mut self) {
        let mut reached: HashSet<usize> = HashSet::new();
        for start in 0..self.directories.len() {
            self.check_dot_dot(start);
            let mut path = HashSet::new();
            let mut at = start;
            while !reached.contains(&at) && path.insert(at) {
                let directory = &self.directories[at];
                let is_top = directory.number == InodeNumber::ROOT || directory.parent.is_none();
                if is_top {
                    break;
                }
                let parent = directory
                    .parent
                    .and_then(|parent| self.directory_index(parent));
                // The parent of an entry is a directory.
                at = parent.expect("a parent that was read");
            }
            let is_loop = !reached.contains(&at)
                && self.directories[at].parent.is_some()
                && self.directories[at].number != InodeNumber::ROOT;
            if is_loop {
                let place = Location::inode(self.directories[at].number);
                let words = "a directory that is below itself";
                self.findings.add(FindingKind::Unreachable, place, words);
            }
            reached.extend(path);
        }
    }

    fn check_dot_dot(&mut self, index: usize) {
        let directory = &self.directories[index];
        let number = directory.number;
        let place = Location::inode(number);
        let parent = match number {
            InodeNumber::ROOT => Some(number),
            _ => directory.parent,
        };
        match (parent, directory.dot_dot) {
            (None, _) if directory.is_deleted => {}
            (None, _) => {
                let words = "a directory without a name";
                self.findings.add(FindingKind::Unreachable, place, words);
            }
            (Some(parent), Some(dot_dot)) if parent != dot_dot => {
                let words = format_args!("names inode {dot_dot}, and the directory is in {parent}");
                let place = place.at_entry(b"..");
                self.findings.add(FindingKind::OwnEntries, place, words);
            }
            _ => {}
        }
    }

    /// Compares links, and counts files with several names.
    pub(crate) fn check_links(&mut self) {
        let mut several = 0;
        for (number, state) in self.states.used() {
            let is_directory = state.kind == Some(FileType::Directory);
            if !is_directory {
                several += u64::from(state.links_found.saturating_sub(1));
            }
            let is_unnamed = if is_directory {
                // A directory names itself; other references were reported before.
                number != InodeNumber::ROOT && self.is_without_parent(number)
            } else {
                state.links_found == 0
            };
            let place = Location::inode(number);
            match state.usage {
                InodeUse::None | InodeUse::Own => {}
                InodeUse::AttributeValue if state.links_stored != 1 => {
                    let words = format_args!("i_links_count is {}, not 1", state.links_stored);
                    self.findings.add(FindingKind::Links, place, words);
                }
                InodeUse::AttributeValue => {}
                // Without a type nothing that names it can be right.
                _ if state.kind.is_none() => {}
                _ if is_unnamed && is_directory => {}
                InodeUse::File if is_unnamed => {
                    let words = "a file without a name";
                    self.findings.add(FindingKind::Unreachable, place, words);
                }
                InodeUse::File | InodeUse::Orphan if self.is_right(number, state) => {}
                InodeUse::File | InodeUse::Orphan => {
                    let words = format_args!(
                        "i_links_count is {}, and there are {} links",
                        state.links_stored, state.links_found
                    );
                    self.findings.add(FindingKind::Links, place, words);
                }
            }
        }
        self.counts.links = several;
    }

    /// The link count of a directory with a tree stays at 1 once it has exceeded [`LINKS_MAX`],
    /// also when links are removed. e2fsck checks the flag, not the feature.
    fn is_right(&self, number: InodeNumber, state: &InodeState) -> bool {
        let (stored, found) = (state.links_stored.into(), state.links_found);
        let index = match state.kind {
            Some(FileType::Directory) => self.directory_index(number),
            _ => None,
        };
        let may_be_1 = index.is_some_and(|index| self.directories[index].is_indexed);
        match (stored, found) {
            (1, 2..) if may_be_1 => true,
            (stored, found) => stored == found && (index.is_none() || found <= LINKS_MAX),
        }
    }

    fn is_without_parent(&self, number: InodeNumber) -> bool {
        self.directory_index(number)
            .is_none_or(|index| self.directories[index].parent.is_none())
    }
}
