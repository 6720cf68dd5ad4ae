//! A few bytes for every inode in use: its type, and the number of its names.

use extant_ondisk::ext4::inode::FileType;
use extant_ondisk::ext4::{GroupNumber, InodeNumber, Layout};

/// Use of an inode, as found by the scan of the inode tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InodeUse {
    /// Nothing, or something deleted.
    None,
    /// An inode of the file system itself, which no directory names.
    Own,
    /// A file that waits to be cleared or cut.
    Orphan,
    /// The value of an attribute.
    AttributeValue,
    /// A file.
    File,
}

/// One inode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InodeState {
    pub(crate) usage: InodeUse,
    /// The type; `None` also where the mode stands for none.
    pub(crate) kind: Option<FileType>,
    /// `i_links_count`.
    pub(crate) links_stored: u16,
    /// Entries that name it.
    pub(crate) links_found: u32,
}

/// All inodes in use.
pub(crate) struct InodeStates {
    layout: Layout,
    /// Of each group, with their places in it, in order.
    groups: Vec<Vec<(u32, InodeState)>>,
}

impl InodeStates {
    pub(crate) fn new(layout: &Layout) -> Self {
        Self {
            layout: *layout,
            groups: vec![Vec::new(); layout.groups() as usize],
        }
    }

    /// Adds an inode in use.
    ///
    /// # Panics
    /// When it does not follow all others of its group.
    pub(crate) fn push(&mut self, number: InodeNumber, state: InodeState) {
        let place = self
            .layout
            .locate_inode(number)
            .expect("an inode that was read");
        let states = &mut self.groups[place.group.0 as usize];
        assert!(states.last().is_none_or(|(last, _)| *last < place.index));
        states.push((place.index, state));
    }

    /// The inodes of a group that are in use, with their places in it.
    pub(crate) fn of_group(&self, group: GroupNumber) -> &[(u32, InodeState)] {
        &self.groups[group.0 as usize]
    }

    /// One inode; `None` where there is none, or it is not in use.
    pub(crate) fn get(&self, number: InodeNumber) -> Option<&InodeState> {
        let (group, at) = self.find(number)?;
        Some(&self.groups[group][at].1)
    }

    /// The same, to be changed.
    pub(crate) fn get_mut(&mut self, number: InodeNumber) -> Option<&mut InodeState> {
        let (group, at) = self.find(number)?;
        Some(&mut self.groups[group][at].1)
    }

    fn find(&self, number: InodeNumber) -> Option<(usize, usize)> {
        let place = self.layout.locate_inode(number).ok()?;
        let group = place.group.0 as usize;
        let found = self.groups[group].binary_search_by_key(&place.index, |(index, _)| *index);
        Some((group, found.ok()?))
    }

    /// Use of an inode number.
    pub(crate) fn usage(&self, number: InodeNumber) -> InodeUse {
        self.get(number).map_or(InodeUse::None, |state| state.usage)
    }

    /// Its type.
    pub(crate) fn kind(&self, number: InodeNumber) -> Option<FileType> {
        self.get(number)?.kind
    }

    /// All inodes in use, in order.
    pub(crate) fn used(&self) -> impl Iterator<Item = (InodeNumber, &InodeState)> {
        let layout = self.layout;
        self.groups
            .iter()
            .enumerate()
            .flat_map(move |(group, states)| {
                let group = GroupNumber(group as u32);
                let states = states.iter();
                states.map(move |(index, state)| (layout.inode_at(group, *index), state))
            })
    }
}
