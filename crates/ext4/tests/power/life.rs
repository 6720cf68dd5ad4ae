//! A life: steps of one actor or several on a disk that records them, and the visible state after
//! each.
//!
//! Model: nothing is known here of how the engine works but this. A step that may not be divided is
//! in one transaction, transactions become durable in their order, and each actor goes one step
//! after the other. So after a cut an actor's directory has the state after one of its own steps,
//! at or after the last synced one. Data is written past the journal: it may be older than that,
//! back to the last sync of the file, and newer.

mod player;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use extant_blockdev::simulation::{CrashDevice, Event, WriteLog};
use extant_blockdev::{Device, MemoryDevice};
use extant_ext4::{AttributeChange, Filesystem, NewKind, NewNode, Options};
use extant_space::{Error, SyncMode};

use crate::image::{Commits, Format};
use crate::step::Step;
use crate::view::{Id, Meta, Seen, View};
use player::Player;

/// Steps of one actor.
pub struct Actor {
    /// The directory it has for itself; `` for all.
    pub home: String,
    pub commits: Commits,
    pub steps: Vec<Step>,
    /// Before the first step and after each.
    pub states: Vec<View>,
    /// Steps that failed, as some of a random life do.
    pub failed: Vec<(Step, Error)>,
    /// The files whose data each step changed.
    pub targets: Vec<Option<Id>>,
    /// After each number of steps: the first state that may be left.
    pub floors: Vec<usize>,
    /// The same for data of one file.
    pub data_floors: Vec<Arc<DataFloors>>,
    /// Syncs that were fast commits, before the file system was closed.
    pub fast_commits: u64,
    /// Position in the log at the end of each step.
    ends: Vec<usize>,
}

/// Promised data.
#[derive(Clone, Default)]
pub struct DataFloors {
    all: usize,
    files: HashMap<Id, usize>,
}

pub struct Life {
    pub name: String,
    pub log: WriteLog,
    pub actors: Vec<Actor>,
}

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Closed,
    /// Nothing is written after the last step.
    Crashed,
}

/// Where a life begins that continues another one.
pub struct Start<'s> {
    pub base: &'s MemoryDevice,
    pub commits: Commits,
    /// Number of the first step: the data that a step writes follows from its number.
    pub first_step: usize,
    /// Returns the device on which the file system is opened, given the one that records.
    pub device: &'s (dyn Fn(Arc<CrashDevice>) -> Arc<dyn Device> + Sync),
}

/// Workloads without periodic commits.
pub fn options() -> Options {
    Options {
        commit_interval: Duration::from_secs(100_000),
        ..Options::default()
    }
}

impl Life {
    /// One actor, to whom all belongs.
    pub fn alone(name: impl Into<String>, format: Format, steps: Vec<Step>) -> Self {
        Self::of(name.into(), format, vec![(String::new(), steps)])
    }

    /// Several actors at the same time, in directories of their own. None of them reopens the file
    /// system.
    pub fn together(name: impl Into<String>, format: Format, scripts: Vec<Vec<Step>>) -> Self {
        let homes = (0..).map(|number| format!("/actor{number}"));
        Self::of(name.into(), format, homes.zip(scripts).collect())
    }

    /// One actor, to whom all belongs, on a copy of `start.base`.
    pub fn branch(name: impl Into<String>, start: &Start<'_>, steps: &[Step], end: End) -> Self {
        let disk = Arc::new(CrashDevice::new(start.base.snapshot()));
        let device = (start.device)(disk.clone());
        let filesystem = Filesystem::open(device, options()).unwrap();
        if start.commits == Commits::Fast {
            // Before the first full commit there are no fast ones.
            let change = AttributeChange {
                permissions: Some(0o755),
                ..AttributeChange::default()
            };
            filesystem.root().unwrap().set_attributes(&change).unwrap();
            filesystem.sync().unwrap();
        }
        disk.settle();
        let mut player = Player::new(&disk, 0, "", start.commits, filesystem);
        player.first_step = start.first_step;
        player.end = end;
        let mut actor = player.play(steps);
        drop(player);
        let log = Arc::into_inner(disk).expect("closed").into_log();
        actor.ends = ends(&log, 0);
        Self {
            name: name.into(),
            log,
            actors: vec![actor],
        }
    }

    fn of(name: String, format: Format, scripts: Vec<(String, Vec<Step>)>) -> Self {
        let disk = Arc::new(CrashDevice::new(format.make()));
        let filesystem = Filesystem::open(disk.clone(), options()).unwrap();
        for (home, _) in scripts.iter().filter(|(home, _)| !home.is_empty()) {
            let root = filesystem.root().unwrap();
            let new = NewNode {
                kind: NewKind::Directory,
                permissions: 0o755,
                uid: 0,
                gid: 0,
                umask: 0,
            };
            root.create(&home.as_bytes()[1..], &new).unwrap();
        }
        filesystem.sync().unwrap();
        disk.settle();
        let alone = scripts.len() == 1;
        let mut players: Vec<_> = scripts
            .iter()
            .enumerate()
            .map(|(number, (home, _))| {
                Player::new(&disk, number, home, format.commits, filesystem.clone())
            })
            .collect();
        drop(filesystem);
        let mut actors: Vec<Actor> = if alone {
            vec![players[0].play(&scripts[0].1)]
        } else {
            std::thread::scope(|scope| {
                let running: Vec<_> = players
                    .iter_mut()
                    .zip(&scripts)
                    .map(|(player, (_, steps))| scope.spawn(|| player.play(steps)))
                    .collect();
                running
                    .into_iter()
                    .map(|player| player.join().unwrap())
                    .collect()
            })
        };
        drop(players);
        let log = Arc::into_inner(disk).expect("closed").into_log();
        for (number, actor) in actors.iter_mut().enumerate() {
            actor.ends = ends(&log, number);
        }
        Self { name, log, actors }
    }
}

/// Positions behind the marks of an actor.
fn ends(log: &WriteLog, actor: usize) -> Vec<usize> {
    let prefix = format!("{actor}:");
    let events = log.events().iter().enumerate();
    events
        .filter(|(_, event)| matches!(event, Event::Mark(name) if name.starts_with(&prefix)))
        .map(|(position, _)| position + 1)
        .collect()
}

impl Actor {
    /// Promises of a completed step; `reached` is the state after it.
    fn promise(
        &self,
        reached: usize,
        step: &Step,
        synced: Option<(Id, SyncMode)>,
    ) -> Option<(usize, Arc<DataFloors>)> {
        if matches!(step, Step::SyncAll | Step::Reopen) {
            let floors = DataFloors {
                all: reached,
                files: HashMap::new(),
            };
            return Some((reached, Arc::new(floors)));
        }
        let (id, mode) = synced?;
        let is_changed = |at: usize| {
            let seen = |at: usize| self.states[at].inodes.get(&id);
            match (seen(at - 1), seen(at)) {
                (Some(before), Some(after)) => differ(before, after, mode),
                (before, after) => before.is_some() != after.is_some(),
            }
        };
        let floor = (1..=reached).rev().find(|&at| is_changed(at)).unwrap_or(0);
        let mut floors = DataFloors::clone(&self.data_floors[reached - 1]);
        floors.files.insert(id, reached);
        Some((floor, Arc::new(floors)))
    }

    /// Position of the log at which a number of steps had ended.
    pub fn end_of(&self, steps: usize) -> usize {
        steps.checked_sub(1).map_or(0, |last| self.ends[last])
    }

    /// How many steps had ended at a position of the log.
    pub fn ended(&self, position: usize) -> usize {
        self.ends.partition_point(|end| *end <= position)
    }
}

/// Whether there is something between the two for a sync.
fn differ(before: &Arc<Seen>, after: &Arc<Seen>, mode: SyncMode) -> bool {
    if Arc::ptr_eq(before, after) {
        return false;
    }
    let needed = |meta: &Meta| (meta.attributes.size_bytes, meta.extents.clone());
    match mode {
        SyncMode::Data => needed(&before.meta) != needed(&after.meta),
        SyncMode::All => before.meta != after.meta || before.children != after.children,
    }
}

impl DataFloors {
    /// The earliest state that the data of a file may have.
    pub fn of(&self, id: &Id) -> usize {
        self.files
            .get(id)
            .map_or(self.all, |floor| self.all.max(*floor))
    }
}
