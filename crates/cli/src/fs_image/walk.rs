//! Trees of an image: the names of a directory in order, and everything below it.
//!
//! The image may be damaged or hostile: each name must be a valid component, and a directory is
//! entered once, so that a walk ends and no name leads out of where it is. The walk needs memory
//! for the names of the directories on the way down, and none of the stack.

use std::collections::HashSet;
use std::ops::ControlFlow;

use extant_ext4::{FileType, InodeNumber, Node};
use extant_space::{Error, ErrorKind, Result};

use super::{At, Image, names};
use crate::exit::Failures;

/// Treatment of files and directories that cannot be read.
#[derive(Clone, Copy, Debug)]
pub enum OnError<'f> {
    /// They end the walk.
    Stop,
    /// They are reported, and the walk continues without them.
    Report(&'f Failures),
}

impl OnError<'_> {
    /// The value, or `None` after an error that was reported.
    pub fn value<T>(self, result: Result<T>) -> Result<Option<T>> {
        match (result, self) {
            (Ok(value), _) => Ok(Some(value)),
            (Err(error), Self::Stop) => Err(error),
            (Err(error), Self::Report(failures)) => failures.note(error).map(|()| None),
        }
    }
}

/// Names of a directory, sorted, without `.` and `..`. After a reported error these are the names
/// that could be read.
pub fn names_of(
    image: &Image,
    directory: &Node,
    path: &[u8],
    on_error: OnError<'_>,
) -> Result<Vec<Vec<u8>>> {
    let mut found: Vec<Vec<u8>> = Vec::new();
    let mut bad = None;
    let listed = directory.list(0, &mut |listed| {
        match listed.name {
            b"." | b".." => {}
            name if name.is_empty() || name.iter().any(|byte| matches!(byte, b'/' | 0)) => {
                bad.get_or_insert_with(|| names::escaped(name));
            }
            name => found.push(name.to_vec()),
        }
        ControlFlow::Continue(())
    });
    on_error.value(listed.at_inner(image, path))?;
    if let Some(name) = bad {
        let error = Error::new(ErrorKind::Corrupt).detail(format!(
            "directory inode {}: '{name}' cannot be a name",
            directory.number()
        ));
        on_error.value(Err::<(), _>(error).at_inner(image, path))?;
    }
    found.sort_unstable();
    Ok(found)
}

/// Order of a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Before its content.
    Before,
    /// A directory again, after everything in it.
    After,
}

/// Step of a walk.
pub struct Step<'a> {
    /// Its path, which begins with the path of where the walk began.
    pub path: &'a [u8],
    /// Itself.
    pub node: &'a Node,
    /// The directory that names it; `None` where the walk began.
    pub parent: Option<&'a Node>,
    /// Its name there.
    pub name: &'a [u8],
    /// Directories above it in this walk.
    pub depth: usize,
    /// No other name follows in its directory.
    pub is_last: bool,
    /// Whether its content is visited first.
    pub stage: Stage,
}

/// Whether a walk enters a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enter {
    Yes,
    No,
}

struct Level {
    node: Node,
    path: Vec<u8>,
    names: std::vec::IntoIter<Vec<u8>>,
    /// Its own place in the level above.
    is_last: bool,
}

/// Visits `root`, called `path`, and everything below it, names in order.
pub fn walk(
    image: &Image,
    root: &Node,
    path: &[u8],
    on_error: OnError<'_>,
    visit: &mut dyn FnMut(&Step<'_>) -> Result<Enter>,
) -> Result<()> {
    let mut entered: HashSet<InodeNumber> = HashSet::new();
    let mut levels: Vec<Level> = Vec::new();
    let first = Step {
        path,
        node: root,
        parent: None,
        name: names::last(path),
        depth: 0,
        is_last: true,
        stage: Stage::Before,
    };
    if visit(&first)? == Enter::Yes && root.file_type() == FileType::Directory {
        let names = enter(image, root, path, on_error, &mut entered)?;
        levels.push(Level {
            node: root.clone(),
            path: path.to_vec(),
            names,
            is_last: true,
        });
    }
    while let Some(level) = levels.last_mut() {
        let Some(name) = level.names.next() else {
            let done = levels.pop().expect("there is a last one");
            let parent = levels.last().map(|level| &level.node);
            visit(&Step {
                path: &done.path,
                node: &done.node,
                parent,
                name: names::last(&done.path),
                depth: levels.len(),
                is_last: done.is_last,
                stage: Stage::After,
            })?;
            continue;
        };
        let path = names::join(&level.path, &name);
        let found = level.node.lookup(&name).at_inner(image, &path);
        let Some(node) = on_error.value(found)? else {
            continue;
        };
        let is_last = level.names.len() == 0;
        let depth = levels.len();
        let decided = visit(&Step {
            path: &path,
            node: &node,
            parent: levels.last().map(|level| &level.node),
            name: &name,
            depth,
            is_last,
            stage: Stage::Before,
        })?;
        if decided == Enter::Yes && node.file_type() == FileType::Directory {
            let names = enter(image, &node, &path, on_error, &mut entered)?;
            levels.push(Level {
                node,
                path,
                names,
                is_last,
            });
        }
    }
    Ok(())
}

/// The names in a directory that is entered; none after a reported error.
fn enter(
    image: &Image,
    node: &Node,
    path: &[u8],
    on_error: OnError<'_>,
    entered: &mut HashSet<InodeNumber>,
) -> Result<std::vec::IntoIter<Vec<u8>>> {
    if !entered.insert(node.number()) {
        let error = Error::new(ErrorKind::Corrupt)
            .at(image.place(path))
            .detail(format!(
                "directory inode {} has more than one name",
                node.number()
            ))
            .advice("check the file system");
        on_error.value(Err::<(), _>(error))?;
        return Ok(Vec::new().into_iter());
    }
    Ok(names_of(image, node, path, on_error)?.into_iter())
}

/// Is shown the inode and the path of a name.
type VisitName<'v> = dyn FnMut(InodeNumber, &[u8]) -> Result<ControlFlow<()>> + 'v;

/// Visits the inode and the path of every name below `root`, called `path`, itself first, until
/// `visit` breaks. Only directories are opened, so that this costs no more than reading them.
pub fn scan_names(
    image: &Image,
    root: &Node,
    path: &[u8],
    visit: &mut VisitName<'_>,
) -> Result<()> {
    if visit(root.number(), path)?.is_break() || root.file_type() != FileType::Directory {
        return Ok(());
    }
    let mut entered: HashSet<InodeNumber> = HashSet::from([root.number()]);
    let mut pending = vec![(root.clone(), path.to_vec())];
    while let Some((directory, path)) = pending.pop() {
        let mut below = Vec::new();
        let mut stopped: Result<ControlFlow<()>> = Ok(ControlFlow::Continue(()));
        let listed = directory.list(0, &mut |listed| {
            if matches!(listed.name, b"." | b"..") {
                return ControlFlow::Continue(());
            }
            let name = names::join(&path, listed.name);
            stopped = visit(listed.inode, &name);
            match stopped {
                Ok(ControlFlow::Continue(())) => {}
                _ => return ControlFlow::Break(()),
            }
            // A file system without `filetype` does not store the type here.
            if matches!(listed.file_type, Some(FileType::Directory) | None) {
                below.push((listed.inode, name));
            }
            ControlFlow::Continue(())
        });
        listed.at_inner(image, &path)?;
        if stopped?.is_break() {
            return Ok(());
        }
        for (inode, name) in below {
            if !entered.insert(inode) {
                continue;
            }
            let node = image.filesystem().node(inode).at_inner(image, &name)?;
            if node.file_type() == FileType::Directory {
                pending.push((node, name));
            }
        }
    }
    Ok(())
}
