//! Doing the steps of one actor.

use std::collections::BTreeMap;
use std::env;
use std::sync::Arc;

use extant_blockdev::simulation::CrashDevice;
use extant_ext4::{AttributeChange, File, Filesystem, FollowLast, Node, Shutdown, XattrMode};
use extant_space::{ByteRange, Error, ErrorKind, Result, SpaceFile};

use super::{Actor, End, options};
use crate::image::{Commits, OLD};
use crate::step::{Kind, Step, Target, data};
use crate::view::{Id, View};

/// Executes the steps.
pub(super) struct Player<'d> {
    disk: &'d Arc<CrashDevice>,
    number: usize,
    home: String,
    commits: Commits,
    filesystem: Option<Filesystem>,
    held: BTreeMap<usize, Node>,
    pub(super) first_step: usize,
    pub(super) end: End,
}

impl<'d> Player<'d> {
    pub(super) fn new(
        disk: &'d Arc<CrashDevice>,
        number: usize,
        home: &str,
        commits: Commits,
        filesystem: Filesystem,
    ) -> Self {
        Self {
            disk,
            number,
            home: home.into(),
            commits,
            filesystem: Some(filesystem),
            held: BTreeMap::new(),
            first_step: 0,
            end: End::Closed,
        }
    }

    pub(super) fn play(&mut self, steps: &[Step]) -> Actor {
        let mut actor = Actor {
            home: self.home.clone(),
            commits: self.commits,
            steps: steps.to_vec(),
            states: vec![self.view()],
            failed: Vec::new(),
            targets: Vec::new(),
            floors: vec![0],
            data_floors: vec![Arc::default()],
            fast_commits: 0,
            ends: Vec::new(),
        };
        for (number, step) in steps.iter().enumerate() {
            let target = step.data_target().and_then(|target| self.id(target).ok());
            let synced = match step {
                Step::Sync(target, mode) => self.id(target).ok().map(|id| (id, *mode)),
                _ => None,
            };
            let done = self.apply(self.first_step + number, step);
            if env::var_os("EXTANT_POWER_TRACE").is_some() {
                eprintln!("{number}: {step:?}: {done:?}");
            }
            let mark = format!("{}:{}", self.number, number + 1);
            self.disk.mark(mark);
            let view = share(self.view(), &actor.states[number]);
            assert!(!view.shows(OLD), "{step:?} shows old data");
            actor.states.push(view);
            actor.targets.push(target);
            let promised = match done {
                Ok(()) => actor.promise(number + 1, step, synced),
                Err(error) => {
                    actor.failed.push((step.clone(), error));
                    None
                }
            };
            let (floor, data_floors) = promised
                .unwrap_or_else(|| (actor.floors[number], Arc::clone(&actor.data_floors[number])));
            actor.floors.push(floor.max(actor.floors[number]));
            actor.data_floors.push(data_floors);
        }
        if let Some(filesystem) = &self.filesystem {
            let journal = filesystem.counters().journal;
            actor.fast_commits = journal.map_or(0, |journal| journal.fast_commits);
        }
        self.finish();
        actor
    }

    fn finish(&mut self) {
        let filesystem = self.filesystem.take();
        if let Some(filesystem) = &filesystem
            && self.end == End::Crashed
        {
            filesystem.shut_down(Shutdown::NoLogFlush).unwrap();
        }
        self.held.clear();
        if let Some(filesystem) = filesystem
            && self.home.is_empty()
            && self.end == End::Closed
        {
            filesystem.close().unwrap();
        }
    }

    fn root(&self) -> Node {
        let filesystem = self.filesystem.as_ref().expect("open");
        filesystem
            .resolve(self.home.as_bytes(), FollowLast::No)
            .unwrap()
    }

    fn view(&self) -> View {
        let held: Vec<_> = self.held.values().cloned().collect();
        View::of(&self.root(), &held, self.commits).unwrap()
    }

    fn node(&self, target: &Target) -> Result<Node> {
        match target {
            Target::At(path) => {
                let filesystem = self.filesystem.as_ref().expect("open");
                let path = format!("{}{path}", self.home);
                filesystem.resolve(path.as_bytes(), FollowLast::No)
            }
            Target::Held(slot) => match self.held.get(slot) {
                Some(node) => Ok(node.clone()),
                None => Err(Error::new(ErrorKind::NotFound)),
            },
        }
    }

    fn id(&self, target: &Target) -> Result<Id> {
        let node = self.node(target)?;
        Ok((node.number(), node.attributes().generation))
    }

    /// The directory of a path, and the name in it.
    fn split<'p>(&self, path: &'p str) -> Result<(Node, &'p [u8])> {
        let (above, name) = path.rsplit_once('/').expect("an absolute path");
        Ok((self.node(&Target::At(above.into()))?, name.as_bytes()))
    }

    fn apply(&mut self, number: usize, step: &Step) -> Result<()> {
        match step {
            Step::Create(path, kind) => {
                let target = match kind {
                    Kind::SymbolicLink(length) => vec![b'a' + (number % 26) as u8; *length],
                    _ => Vec::new(),
                };
                let (directory, name) = self.split(path)?;
                directory.create(name, &kind.node(&target))?;
            }
            Step::CreateUnnamed(slot) => {
                let node = self.root().create_unnamed(&Kind::Regular.node(b""))?;
                self.held.insert(*slot, node);
            }
            Step::Link(target, path) => {
                let (directory, name) = self.split(path)?;
                directory.link(name, &self.node(target)?)?;
            }
            Step::Unlink(path) => {
                let (directory, name) = self.split(path)?;
                directory.unlink(name)?;
            }
            Step::RemoveDirectory(path) => {
                let (directory, name) = self.split(path)?;
                directory.remove_directory(name)?;
            }
            Step::Rename(from, to, mode) => {
                let (directory, name) = self.split(from)?;
                let (to_directory, to_name) = self.split(to)?;
                directory.rename(name, &to_directory, to_name, *mode)?;
            }
            Step::Hold(path, slot) => {
                let node = self.node(&Target::At(path.clone()))?;
                self.held.insert(*slot, node);
            }
            Step::Release(slot) => drop(self.held.remove(slot)),
            Step::Write(target, offset, length) => {
                let file = self.node(target)?.file()?;
                write(&file, &data(number, *offset, *length), *offset)?;
            }
            Step::Append(target, length) => {
                let file = self.node(target)?.file()?;
                let size = file.size()?;
                write(&file, &data(number, size, *length), size)?;
            }
            Step::Resize(target, size) => self.node(target)?.file()?.resize(*size)?,
            Step::Fallocate(target, mode, offset, length) => {
                let range = ByteRange::new(*offset, offset + length);
                self.node(target)?.file()?.fallocate(*mode, range)?;
            }
            Step::SetXattr(target, name, length) => {
                let value = data(number, 0, *length);
                self.node(target)?
                    .set_xattr(name.as_bytes(), &value, XattrMode::Set)?;
            }
            Step::RemoveXattr(target, name) => self.node(target)?.remove_xattr(name.as_bytes())?,
            Step::SetPermissions(target, permissions) => {
                self.node(target)?.set_attributes(&AttributeChange {
                    permissions: Some(*permissions),
                    ..AttributeChange::default()
                })?;
            }
            Step::Sync(target, mode) => self.node(target)?.sync(*mode)?,
            Step::SyncAll => self.filesystem.as_ref().expect("open").sync()?,
            Step::Reopen => {
                self.held.clear();
                self.filesystem.take().expect("open").close()?;
                let disk = Arc::<CrashDevice>::clone(self.disk);
                self.filesystem = Some(Filesystem::open(disk, options())?);
            }
        }
        Ok(())
    }
}

/// Writes, and reads it again.
fn write(file: &File, bytes: &[u8], offset: u64) -> Result<()> {
    file.write_at(bytes, offset)?;
    let mut read = vec![0; bytes.len()];
    file.read_at(&mut read, offset)?;
    assert!(read == bytes, "other bytes than were written at {offset}");
    Ok(())
}

/// Shares the unchanged parts with `before`.
fn share(mut view: View, before: &View) -> View {
    for (id, seen) in &mut view.inodes {
        if let Some(old) = before.inodes.get(id)
            && old == seen
        {
            *seen = Arc::clone(old);
        }
    }
    view
}
