//! Extended attributes of an inode: in its slot and in a separate block.
//!
//! Model: an attribute is stored in the inode if it fits, else in the block. A block that several
//! inodes share (as the kernel makes them) is never changed: a change copies it. New blocks are not
//! shared.
//!
//! Lists from the disk are validated; each change rewrites one list as a whole, in one transaction.
//!
//! Access control lists are stored in a shorter form than the one programs see: `acl`.

mod acl;
mod inherit;

use std::sync::Arc;

use extant_ondisk::ext4::inode::{Mode, TimeField};
use extant_ondisk::ext4::xattr::{self as disk, Attributes, XattrBlock, XattrName, XattrValue};
use extant_ondisk::ext4::{PhysicalBlock, Seed};
use extant_space::{Error, ErrorKind, Result};

use crate::engine::Engine;
use crate::groups::group_credits;
use crate::inode_cell::{InodeCell, InodeState};
use crate::state::FsState;
use crate::store::Store;
use crate::sync::{read, write};
use crate::transaction::INODE_CREDITS;
use crate::transaction::Transaction;
use crate::tree::NodesMut;

pub(crate) use inherit::InheritedAccess;

/// Most bytes of a value, as in the kernel's calls.
const VALUE_BYTES_MAX: usize = 64 << 10;
/// Blocks of metadata that giving back a block of attributes touches at most, or a reference to it.
pub(crate) const RELEASE_CREDITS: u32 = 2 + group_credits(1);
/// The same for removing one.
pub(crate) const TAKE_CREDITS: u32 = 1 + group_credits(1);

/// The same for changing attributes, without the inode.
pub(crate) const CHANGE_CREDITS: u32 = TAKE_CREDITS + RELEASE_CREDITS;

/// Whether an attribute may be there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// It may or may not.
    Set,
    /// It must not.
    Create,
    /// It must.
    Replace,
}

/// A change of the attributes of an inode that was prepared.
pub(crate) struct XattrChange {
    before: Lists,
    after: Lists,
}

/// All attributes of an inode, by where they are.
#[derive(Clone, Default, PartialEq, Eq)]
struct Lists {
    inode: Attributes<'static>,
    block: Attributes<'static>,
}

impl FsState {
    /// The value of an attribute.
    pub(crate) fn xattr(&self, cell: &InodeCell, name: &[u8]) -> Result<Vec<u8>> {
        let name = parse_name(name)?;
        let lists = self.xattr_lists(&read(&cell.state))?;
        let found = lists.inode.get(&name).or_else(|| lists.block.get(&name));
        match found {
            None => Err(Error::new(ErrorKind::NoAttribute)),
            Some(XattrValue::Bytes(bytes)) => {
                if acl::is_list(&name) {
                    acl::from_disk(bytes)
                } else {
                    Ok(bytes.to_vec())
                }
            }
            Some(XattrValue::Inode { inode, bytes }) => {
                let cell = self.inodes.get(*inode)?;
                let mut value = vec![0; (*bytes as usize).min(VALUE_BYTES_MAX)];
                let read = self.read_file(&cell, &mut value, 0)?;
                value.truncate(read);
                Ok(value)
            }
        }
    }

    /// The names of all attributes that programs see, as in the kernel: not those of encryption and
    /// verity, nor data in the inode.
    pub(crate) fn xattr_names(&self, cell: &InodeCell) -> Result<Vec<Vec<u8>>> {
        let lists = self.xattr_lists(&read(&cell.state))?;
        let all = lists.inode.iter().chain(lists.block.iter());
        let shown = all.filter(|attribute| is_shown(&attribute.name));
        Ok(shown.map(|attribute| attribute.name.full()).collect())
    }

    /// The access list after a change of permissions: both must agree. `None` without a list. The
    /// inode's operation lock is held until the change is made.
    pub(crate) fn change_access_list(
        &self,
        cell: &InodeCell,
        permissions: u16,
    ) -> Result<Option<XattrChange>> {
        let name = acl::access_name();
        let state = read(&cell.state);
        let before = self.xattr_lists(&state)?;
        let found = before.inode.get(&name).or_else(|| before.block.get(&name));
        let Some(XattrValue::Bytes(stored)) = found else {
            return Ok(None);
        };
        let mut list = acl::parse(&acl::from_disk(stored)?)
            .map_err(|error| error.with_kind(ErrorKind::Corrupt))?;
        list.set_permissions(permissions);
        let after = self.placed(&state, &before, &name, Some(&list.to_disk()))?;
        Ok(Some(XattrChange { before, after }))
    }

    /// The attributes without `name`; `None` if it does not exist. The inode's operation lock is
    /// held until the change is made.
    pub(crate) fn without_xattr(
        &self,
        state: &InodeState,
        name: &[u8],
    ) -> Result<Option<XattrChange>> {
        let name = parse_name(name)?;
        let before = self.xattr_lists(state)?;
        let after = self.placed(state, &before, &name, None)?;
        Ok((before != after).then_some(XattrChange { before, after }))
    }

    /// Makes a change, in a transaction that has [`CHANGE_CREDITS`] left.
    pub(crate) fn change_xattrs(
        &self,
        transaction: &Transaction<'_>,
        cell: &Arc<InodeCell>,
        change: &XattrChange,
    ) -> Result<()> {
        self.write_xattr_lists(transaction, cell, &change.before, &change.after)
    }

    fn xattr_lists(&self, state: &InodeState) -> Result<Lists> {
        let inode = Attributes::parse_inode(&state.slot, &state.inode, &self.layout)?;
        let inode = inode.into_owned();
        let block = match state.inode.xattr_block(&self.layout) {
            None => Attributes::default(),
            Some(place) => {
                let bytes = self.cache.read(place, &validate(place, self.seed))?;
                let block = XattrBlock::parse(&bytes, place, None)?;
                block.attributes.into_owned()
            }
        };
        Ok(Lists { inode, block })
    }

    /// Takes one reference away from the block of attributes, and the block with the last.
    pub(crate) fn release_xattr_block(
        &self,
        transaction: &Transaction<'_>,
        cell: &InodeCell,
        state: &mut InodeState,
    ) -> Result<()> {
        let mut store = Store::new(self, transaction, cell, state);
        let released = self.drop_reference(&mut store, state);
        store.settle(state)?;
        released
    }

    fn drop_reference(&self, store: &mut Store<'_>, state: &mut InodeState) -> Result<()> {
        let Some(place) = state.inode.xattr_block(&self.layout) else {
            return Ok(());
        };
        store.hold(place, &validate(place, self.seed))?;
        let mut is_last = true;
        store.change(place, &mut |bytes| {
            let references =
                XattrBlock::parse(bytes, place, None).map_or(1, |block| block.references);
            is_last = references <= 1;
            if !is_last {
                disk::set_references(bytes, references - 1, place, self.seed);
            }
        });
        if is_last {
            store.remove(place)
        } else {
            // It counts for every inode that names it.
            store.uncount(1)
        }
        state.inode.set_xattr_block(None, &self.layout);
        Ok(())
    }

    /// Writes the parts that differ from `before`.
    fn write_xattr_lists(
        &self,
        transaction: &Transaction<'_>,
        cell: &Arc<InodeCell>,
        before: &Lists,
        after: &Lists,
    ) -> Result<()> {
        let mut state = write(&cell.state);
        state.join(cell, transaction);
        let mut store = Store::new(self, transaction, cell, &mut state);
        let written = self.write_xattr_block(&mut store, &mut state, before, after);
        store.settle(&mut state)?;
        written?;
        if !(after.inode.is_empty() && after.block.is_empty()) {
            self.set_ext_attr(transaction);
        }
        let state = &mut *state;
        after
            .inode
            .write_inode(&mut state.slot, &state.inode, &self.layout)?;
        state.inode.set_time(TimeField::Change, self.clock.now());
        Ok(())
    }

    fn write_xattr_block(
        &self,
        store: &mut Store<'_>,
        state: &mut InodeState,
        before: &Lists,
        after: &Lists,
    ) -> Result<()> {
        if before.block == after.block {
            return Ok(());
        }
        if after.block.is_empty() {
            return self.drop_reference(store, state);
        }
        let own = match state.inode.xattr_block(&self.layout) {
            Some(place) => {
                let bytes = store.hold(place, &validate(place, self.seed))?;
                let references = XattrBlock::parse(&bytes, place, None)?.references;
                (references == 1).then_some(place)
            }
            None => None,
        };
        let place = match own {
            Some(place) => place,
            None => {
                let place = store.create(PhysicalBlock(0), None)?;
                self.drop_reference(store, state)?;
                state.inode.set_xattr_block(Some(place), &self.layout);
                place
            }
        };
        store.change(place, &mut |bytes| {
            after
                .block
                .write_block(bytes, 1, place, self.seed)
                .expect("they fit, as was checked before");
        });
        Ok(())
    }
}

impl Engine {
    /// Sets an attribute.
    pub(crate) fn set_xattr(
        &self,
        cell: &Arc<InodeCell>,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let name = parse_name(name)?;
        if value.len() > VALUE_BYTES_MAX {
            return Err(Error::new(ErrorKind::TooLarge).detail(format!(
                "a value of {} bytes, where an attribute has at most {VALUE_BYTES_MAX}",
                value.len()
            )));
        }
        let _alone = write(&cell.operation);
        let list = if acl::is_list(&name) {
            Some(acl::parse(value)?)
        } else {
            None
        };
        let stored = list
            .as_ref()
            .map_or_else(|| value.to_vec(), acl::Acl::to_disk);
        let new = match &list {
            // Says no more than the mode does.
            Some(list) if list.is_minimal() && acl::is_access(&name) => None,
            _ => Some(stored.as_slice()),
        };
        self.change_xattr(cell, &name, new, mode, list.as_ref())
    }

    /// Removes an attribute.
    pub(crate) fn remove_xattr(&self, cell: &Arc<InodeCell>, name: &[u8]) -> Result<()> {
        let name = parse_name(name)?;
        let _alone = write(&cell.operation);
        self.change_xattr(cell, &name, None, XattrMode::Replace, None)
    }

    fn change_xattr(
        &self,
        cell: &Arc<InodeCell>,
        name: &XattrName<'_>,
        value: Option<&[u8]>,
        mode: XattrMode,
        list: Option<&acl::Acl>,
    ) -> Result<()> {
        let fs = &*self.fs;
        let (before, after) = {
            let state = read(&cell.state);
            state.check_mutable()?;
            let before = fs.xattr_lists(&state)?;
            let is_there = before.inode.get(name).is_some() || before.block.get(name).is_some();
            match (mode, is_there) {
                (XattrMode::Create, true) => return Err(Error::new(ErrorKind::AlreadyExists)),
                (XattrMode::Replace, false) => return Err(Error::new(ErrorKind::NoAttribute)),
                _ => {}
            }
            let after = fs.placed(&state, &before, name, value)?;
            (before, after)
        };
        let credits = INODE_CREDITS + CHANGE_CREDITS;
        let transaction = self.begin(credits)?;
        fs.write_xattr_lists(&transaction, cell, &before, &after)?;
        if let Some(list) = list
            && acl::is_access(name)
        {
            cell.change(&transaction, |state| {
                let mode = state.inode.mode();
                let permissions = mode.permissions() & !0o777 | list.permissions();
                if let Some(file_type) = mode.file_type() {
                    let mode = Mode::new(file_type, permissions);
                    state.inode.set_mode(mode);
                }
            });
        }
        Ok(())
    }
}

impl FsState {
    /// The lists with an attribute changed or removed: in the inode where it fits, else in the
    /// block.
    fn placed(
        &self,
        state: &InodeState,
        before: &Lists,
        name: &XattrName<'_>,
        value: Option<&[u8]>,
    ) -> Result<Lists> {
        let mut lists = before.clone();
        lists.inode.remove(name);
        lists.block.remove(name);
        let Some(value) = value else {
            return Ok(lists);
        };
        let (name, value) = (name.clone().into_owned(), value.to_vec());
        let mut inode = lists.inode.clone();
        inode.set(name.clone(), value.clone());
        if inode.inode_bytes() <= Attributes::inode_room(&state.inode, &self.layout) {
            lists.inode = inode;
            return Ok(lists);
        }
        lists.block.set(name, value);
        let room = self.layout.block_bytes() as usize;
        if lists.block.block_bytes() > room {
            return Err(Error::new(ErrorKind::NoSpace).detail(format!(
                "the attributes of the inode take {} bytes, where a block has {room}",
                lists.block.block_bytes()
            )));
        }
        Ok(lists)
    }
}

fn validate(place: PhysicalBlock, seed: Option<Seed>) -> impl Fn(&[u8]) -> Result<()> {
    move |bytes| XattrBlock::parse(bytes, place, seed).map(|_| ())
}

/// Whether an attribute has a name for programs. The kernel has no prefix for numbers such as 9,
/// encryption, and 11, verity, and lists nothing of `system.` but access lists.
fn is_shown(name: &XattrName<'_>) -> bool {
    let prefix = name.index.prefix();
    prefix.is_some_and(|prefix| !matches!(prefix, b"" | b"system."))
}

fn parse_name(full: &[u8]) -> Result<XattrName<'_>> {
    // Without a known namespace it would be invisible to others.
    let name = XattrName::new(full).filter(|name| name.index.0 != 0);
    name.ok_or_else(|| {
        Error::new(ErrorKind::Unsupported).detail(format!(
            "no attribute can be called {}",
            full.escape_ascii()
        ))
    })
}
