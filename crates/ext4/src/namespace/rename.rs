//! Renaming: the one change that concerns up to two directories and two inodes in them.

use std::sync::Arc;

use extant_ondisk::ext4::InodeNumber;
use extant_ondisk::ext4::directory::check_name;
use extant_ondisk::ext4::fast_commit::NameChange;
use extant_ondisk::ext4::inode::{DeviceNumber, FileType, TimeField};
use extant_space::{Error, ErrorKind, Result};
use smallvec::SmallVec;

use super::unlink::loops;
use super::{Blocks, check_addable, check_takeable, in_directory};
use crate::directory::Directory;
use crate::engine::Engine;
use crate::inode_cell::InodeCell;
use crate::new_node::{NewKind, NewNode};
use crate::orphan;
use crate::state::FsState;
use crate::sync::{lock, read, write};
use crate::transaction::Transaction;

/// Treatment of an existing new name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Replace the existing inode, as `rename(2)` does.
    Replace,
    /// Refuse.
    NoReplace,
    /// Exchange: the existing inode gets the old name; it must be there.
    Exchange,
    /// Replace it, and leave a whiteout under the old name: a character device with the number 0,
    /// which overlayfs uses as the mark of a removed name. It is a new inode of this user and
    /// group.
    Whiteout {
        /// User.
        uid: u32,
        /// Group; in a directory with the setgid bit that of the directory instead.
        gid: u32,
    },
}

/// A name in a directory.
#[derive(Clone, Copy)]
pub(crate) struct Name<'a> {
    pub(crate) directory: &'a Arc<InodeCell>,
    pub(crate) name: &'a [u8],
}

/// Arguments of a rename, with handles on both inodes.
struct Move<'a> {
    from: Name<'a>,
    to: Name<'a>,
    mode: RenameMode,
    source: Arc<InodeCell>,
    source_type: FileType,
    target: Option<(Arc<InodeCell>, FileType)>,
}

/// A directory that gets another parent.
struct Child<'a> {
    own: Directory<Blocks<'a>>,
    parent: InodeNumber,
}

/// None where no directory crosses, two where two are exchanged.
type Children<'a> = SmallVec<[Child<'a>; 2]>;

/// Above a directory, beginning with itself.
type Ancestors = Vec<InodeNumber>;

/// Blocks and inodes that change besides those of an insertion: the other directory's block and
/// inode, the new directory's inode, both inodes moved, and the first block of each of them.
const OTHERS: u32 = 7;

impl Engine {
    /// Gives an inode another name.
    pub(crate) fn rename(&self, from: Name<'_>, to: Name<'_>, mode: RenameMode) -> Result<()> {
        check_name(from.name)?;
        check_name(to.name)?;
        if Arc::ptr_eq(from.directory, to.directory) {
            let _alone = write(&from.directory.operation);
            return self.rename_within(from, to, mode, None);
        }
        let fs = &*self.fs;
        let _moving = lock(&fs.rename_lock);
        let above_from = fs.ancestors(from.directory)?;
        let above_to = fs.ancestors(to.directory)?;
        let (a, b) = (from.directory, to.directory);
        let from_first = match (above_to.contains(&a.number), above_from.contains(&b.number)) {
            (true, _) => true,
            (_, true) => false,
            _ => a.number < b.number,
        };
        let (first, second) = if from_first { (a, b) } else { (b, a) };
        let _first_alone = write(&first.operation);
        let _second_alone = write(&second.operation);
        self.rename_within(from, to, mode, Some((&above_from, &above_to)))
    }

    /// The same, with the operation locks of both directories; `above` holds their ancestors if
    /// they differ.
    fn rename_within(
        &self,
        from: Name<'_>,
        to: Name<'_>,
        mode: RenameMode,
        above: Option<(&Ancestors, &Ancestors)>,
    ) -> Result<()> {
        let source = self.victim(from.directory, from.name)?;
        let done = self.with_target(from, to, mode, above, &source);
        self.close_handle(&source);
        done
    }

    fn with_target(
        &self,
        from: Name<'_>,
        to: Name<'_>,
        mode: RenameMode,
        above: Option<(&Ancestors, &Ancestors)>,
        source: &Arc<InodeCell>,
    ) -> Result<()> {
        let target = match self.victim(to.directory, to.name) {
            Ok(target) => Some(target),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let moved = Move {
            from,
            to,
            mode,
            source: Arc::clone(source),
            source_type: file_type(source)?,
            target: match &target {
                Some(target) => Some((Arc::clone(target), file_type(target)?)),
                None => None,
            },
        };
        let done = self.move_locked(&moved, above);
        if let Some(target) = target {
            self.close_handle(&target);
        }
        done
    }

    fn move_locked(&self, moved: &Move<'_>, above: Option<(&Ancestors, &Ancestors)>) -> Result<()> {
        if moved.is_nothing()? {
            return Ok(());
        }
        moved.check_places(above)?;
        moved.check_flags()?;
        moved.check_types()?;
        // The moved inode, and the replaced or exchanged one.
        let mut children = Vec::new();
        if moved.source_type == FileType::Directory && above.is_some() {
            children.push(&moved.source);
        }
        if let Some((target, FileType::Directory)) = &moved.target
            && (above.is_some() || moved.mode != RenameMode::Exchange)
        {
            children.push(target);
        }
        children.sort_by_key(|cell| cell.number);
        let _children: Vec<_> = children
            .into_iter()
            .map(|cell| write(&cell.operation))
            .collect();
        self.fs.check_move(moved)?;
        let credits = self.insert_credits(moved.to.directory)? + OTHERS + orphan::CREDITS;
        if let Some(new) = moved.whiteout() {
            return self.move_with_whiteout(moved, &new, credits);
        }
        let transaction = if moved.is_recorded() {
            self.begin_recorded(credits)?
        } else {
            self.begin(credits)?
        };
        match self.fs.change_names(&transaction, moved, None) {
            Ok(()) => Ok(()),
            Err(NotMoved::Untouched(error)) => Err(error),
            Err(NotMoved::Halfway(error)) => Err(self.fail(error)),
        }
    }

    fn move_with_whiteout(&self, moved: &Move<'_>, new: &NewNode<'_>, credits: u32) -> Result<()> {
        let fs = &*self.fs;
        let directory = moved.from.directory;
        fs.check_kind(&new.kind)?;
        let inherited = fs.inherited_access(&read(&directory.state), new)?;
        let transaction = self.begin(credits + fs.new_inode_credits())?;
        let whiteout = fs.make_inode(&transaction, directory, new, &inherited)?;
        let done = fs
            .inherit_access(&transaction, &whiteout, &inherited)
            .map_err(NotMoved::Untouched)
            .and_then(|()| fs.change_names(&transaction, moved, Some(&whiteout)));
        let done = match done {
            Ok(()) => Ok(()),
            Err(NotMoved::Untouched(error)) => {
                fs.give_up_inode(&transaction, &whiteout);
                Err(error)
            }
            Err(NotMoved::Halfway(error)) => Err(self.fail(error)),
        };
        drop(transaction);
        self.close_handle(&whiteout);
        done
    }
}

/// The cause of a failed rename.
enum NotMoved {
    Untouched(Error),
    Halfway(Error),
}

impl Move<'_> {
    /// Whether both names are of the same inode already.
    fn is_nothing(&self) -> Result<bool> {
        match (&self.target, self.mode) {
            (Some(_), RenameMode::NoReplace) => Err(Error::new(ErrorKind::AlreadyExists)),
            (None, RenameMode::Exchange) => Err(Error::new(ErrorKind::NotFound)),
            (Some((target, _)), _) => Ok(Arc::ptr_eq(target, &self.source)),
            (None, _) => Ok(false),
        }
    }

    /// Refuses to move immutable and append-only inodes.
    fn check_flags(&self) -> Result<()> {
        check_takeable(&read(&self.from.directory.state))?;
        read(&self.source.state).check_mutable()?;
        let to = read(&self.to.directory.state);
        match &self.target {
            None => check_addable(&to),
            Some((target, _)) => {
                check_takeable(&to)?;
                drop(to);
                read(&target.state).check_mutable()
            }
        }
    }

    fn check_types(&self) -> Result<()> {
        let directory = FileType::Directory;
        let Some((_, target)) = self.target else {
            return Ok(());
        };
        match (
            self.mode,
            self.source_type == directory,
            target == directory,
        ) {
            (RenameMode::Exchange, ..) | (_, true, true) | (_, false, false) => Ok(()),
            (_, true, false) => Err(Error::new(ErrorKind::NotDirectory)),
            (_, false, true) => Err(Error::new(ErrorKind::IsDirectory)),
        }
    }

    /// Refuses to move a directory into itself, and to replace an ancestor of the moved inode.
    fn check_places(&self, above: Option<(&Ancestors, &Ancestors)>) -> Result<()> {
        let Some((above_from, above_to)) = above else {
            let parent = self.from.directory;
            let is_parent = |cell: &Arc<InodeCell>| Arc::ptr_eq(cell, parent);
            let target = self.target.as_ref().map(|(cell, _)| cell);
            return if is_parent(&self.source) || target.is_some_and(is_parent) {
                Err(loops(parent))
            } else {
                Ok(())
            };
        };
        let into_itself = || {
            Error::new(ErrorKind::InvalidArgument).detail("a directory cannot be moved into itself")
        };
        if above_to.contains(&self.source.number) {
            return Err(into_itself());
        }
        match &self.target {
            Some((target, _)) if above_from.contains(&target.number) => match self.mode {
                RenameMode::Exchange => Err(into_itself()),
                _ => Err(Error::new(ErrorKind::NotEmpty)),
            },
            _ => Ok(()),
        }
    }

    /// Whether a fast commit can say it.
    fn is_recorded(&self) -> bool {
        let directory = FileType::Directory;
        matches!(self.mode, RenameMode::Replace | RenameMode::NoReplace)
            && self.source_type != directory
            && self.target_type() != Some(directory)
    }

    /// Records the changes of names for a fast commit.
    fn note(&self, transaction: &Transaction<'_>) {
        let (from, to, source) = (self.from, self.to, self.source.number);
        if let Some((target, _)) = &self.target {
            let (parent, target) = (to.directory.number, target.number);
            transaction.note_name(NameChange::Unlink, parent, target, to.name);
        }
        transaction.note_name(NameChange::Link, to.directory.number, source, to.name);
        transaction.note_name(NameChange::Unlink, from.directory.number, source, from.name);
    }

    /// The replacement of the old name.
    fn whiteout(&self) -> Option<NewNode<'static>> {
        let RenameMode::Whiteout { uid, gid } = self.mode else {
            return None;
        };
        Some(NewNode {
            kind: NewKind::CharacterDevice(DeviceNumber { major: 0, minor: 0 }),
            permissions: 0,
            uid,
            gid,
            umask: 0,
        })
    }

    fn crosses(&self) -> bool {
        !Arc::ptr_eq(self.from.directory, self.to.directory)
    }

    fn target_type(&self) -> Option<FileType> {
        self.target.as_ref().map(|(_, file_type)| *file_type)
    }
}

impl FsState {
    /// The directories above one, up to the root. Nothing moves from directory to directory
    /// meanwhile.
    fn ancestors(&self, cell: &Arc<InodeCell>) -> Result<Ancestors> {
        let mut above = vec![cell.number];
        let mut at = Arc::clone(cell);
        while at.number != InodeNumber::ROOT {
            let up = {
                let _shared = read(&at.operation);
                self.find_parent(&at)?
            };
            let up = up.ok_or_else(|| loops(&at))?;
            if above.contains(&up.inode) {
                return Err(loops(&at));
            }
            above.push(up.inode);
            let next = self.entry_cell(up, at.number)?;
            at = next;
        }
        Ok(above)
    }

    /// Refuses inodes that may not be moved or replaced.
    fn check_move(&self, moved: &Move<'_>) -> Result<()> {
        match (&moved.target, moved.mode) {
            (None, _) | (Some(_), RenameMode::Exchange) => {}
            (Some((target, FileType::Directory)), _) => self.check_empty(target)?,
            (Some((target, _)), _) => read(&target.state).check_mutable()?,
        }
        let directory = Some(FileType::Directory);
        let to_gains = moved.crosses()
            && moved.source_type == FileType::Directory
            && moved.target_type() != directory;
        if to_gains {
            self.check_room_for_subdirectory(&read(&moved.to.directory.state))?;
        }
        let from_gains = moved.crosses()
            && moved.mode == RenameMode::Exchange
            && moved.source_type != FileType::Directory
            && moved.target_type() == directory;
        if from_gains {
            self.check_room_for_subdirectory(&read(&moved.from.directory.state))?;
        }
        Ok(())
    }

    fn change_names(
        &self,
        transaction: &Transaction<'_>,
        moved: &Move<'_>,
        whiteout: Option<&Arc<InodeCell>>,
    ) -> Result<(), NotMoved> {
        let (from, to) = (moved.from, moved.to);
        let source = moved.source.number;
        let children = self
            .moved_children(transaction, moved)
            .map_err(NotMoved::Untouched)?;
        // Steps that can fail with `NoSpace` run first and have no effect if they fail.
        let first = match &moved.target {
            None => self
                .names(transaction, to)?
                .insert_absent(to.name, source, moved.source_type),
            Some(_) => self
                .names(transaction, to)?
                .retarget(to.name, source, moved.source_type)
                .map(|_| ()),
        };
        first.map_err(|error| NotMoved::Untouched(in_directory(error, to.directory.number)))?;
        self.finish_move(transaction, moved, whiteout, children)
            .map_err(|error| NotMoved::Halfway(in_directory(error, from.directory.number)))
    }

    fn touch(&self, transaction: &Transaction<'_>, cell: &Arc<InodeCell>) {
        let now = self.clock.now();
        cell.change(transaction, |state| {
            state.inode.set_time(TimeField::Change, now);
        });
    }

    fn names<'a>(
        &'a self,
        transaction: &'a Transaction<'a>,
        name: Name<'a>,
    ) -> Result<Directory<Blocks<'a>>, NotMoved> {
        self.directory(name.directory, Some(transaction))
            .map_err(NotMoved::Untouched)
    }

    fn finish_move(
        &self,
        transaction: &Transaction<'_>,
        moved: &Move<'_>,
        whiteout: Option<&Arc<InodeCell>>,
        children: Children<'_>,
    ) -> Result<()> {
        let (from, to) = (moved.from, moved.to);
        let directory = Some(FileType::Directory);
        for mut child in children {
            child
                .own
                .retarget(b"..", child.parent, FileType::Directory)?;
        }
        let mut old = self.directory(from.directory, Some(transaction))?;
        match (&moved.target, moved.mode) {
            (Some((target, file_type)), RenameMode::Exchange) => {
                old.retarget(from.name, target.number, *file_type)?;
                if moved.crosses() && *file_type == FileType::Directory {
                    self.remove_subdirectory(transaction, to.directory);
                    self.add_subdirectory(transaction, from.directory);
                }
                self.touch(transaction, target);
            }
            (target, _) => {
                match whiteout {
                    Some(cell) => {
                        old.retarget(from.name, cell.number, FileType::CharacterDevice)?;
                    }
                    None => {
                        old.remove(from.name)?;
                    }
                }
                match target {
                    Some((target, FileType::Directory)) => {
                        self.remove_subdirectory(transaction, to.directory);
                        self.lose_directory(transaction, target);
                    }
                    Some((target, _)) => self.lose_name(transaction, target),
                    None => {}
                }
            }
        }
        if moved.crosses() && Some(moved.source_type) == directory {
            self.remove_subdirectory(transaction, from.directory);
            self.add_subdirectory(transaction, to.directory);
        }
        self.touch(transaction, &moved.source);
        moved.note(transaction);
        self.names_changed(transaction, from.directory);
        if moved.crosses() {
            self.names_changed(transaction, to.directory);
        }
        Ok(())
    }

    /// The directories that get another parent, each with the block of its `..` read and held, so
    /// that a damaged one is found before the first change.
    fn moved_children<'a>(
        &'a self,
        transaction: &'a Transaction<'a>,
        moved: &'a Move<'_>,
    ) -> Result<Children<'a>> {
        let mut children = Children::new();
        if !moved.crosses() {
            return Ok(children);
        }
        let mut add = |cell: &'a Arc<InodeCell>, parent: InodeNumber| {
            let own = self.own_entries(cell, Some(transaction))?;
            own.lookup(b"..")
                .map_err(|error| in_directory(error, cell.number))?;
            children.push(Child { own, parent });
            Ok::<_, Error>(())
        };
        if moved.source_type == FileType::Directory {
            add(&moved.source, moved.to.directory.number)?;
        }
        if let (Some((target, FileType::Directory)), RenameMode::Exchange) =
            (&moved.target, moved.mode)
        {
            add(target, moved.from.directory.number)?;
        }
        Ok(children)
    }
}

fn file_type(cell: &InodeCell) -> Result<FileType> {
    let file_type = read(&cell.state).inode.mode().file_type();
    file_type.ok_or_else(|| {
        Error::new(ErrorKind::Corrupt).detail(format!("inode {} has no type", cell.number))
    })
}
