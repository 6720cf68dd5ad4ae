//! Random steps. They know the reference, so that most of them find something to do; the others are
//! wrong in every way there is.

#[path = "generate/attributes.rs"]
mod attributes;
#[path = "generate/data.rs"]
mod data;

pub use attributes::unfix;

use std::ops::Range;

use extant_ext4::{DeviceNumber, RenameMode};
use extant_space::SyncMode;
use extant_testkit::seeds;
use fastrand::Rng;

use crate::operation::{CURSORS, HANDLES, Made, Name, Operation, Owner, Path, Place};
use crate::reference::{Body, Format, ROOT, Reference};

/// Focus of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taste {
    /// A bit of everything.
    Mixed,
    /// Names above all: directories that grow.
    Names,
    /// Data above all: files of many extents.
    Data,
}

/// The implementation whose rules the steps follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// All that the engine does.
    Engine,
    /// Operations that the kernel does alike.
    #[allow(dead_code, reason = "the kernel test needs it")]
    Kernel,
}

/// `EXTANT_MODEL_SEEDS=A..B`, or those of every day.
pub fn seeds(usual: Range<u64>) -> Range<u64> {
    let seeds = seeds::seeds("EXTANT_MODEL_SEEDS", usual);
    seeds::counted(seeds.end - seeds.start, "runs");
    seeds
}

/// Makes steps.
pub struct Generator {
    rng: Rng,
    taste: Taste,
    dialect: Dialect,
    /// Blocks of data there may be.
    blocks_max: u64,
    objects_max: usize,
    file_blocks_max: u64,
    has_extents: bool,
    /// Names that are given.
    names: usize,
}

impl Generator {
    pub fn new(seed: u64, taste: Taste, dialect: Dialect, format: Format, blocks_max: u64) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            taste,
            dialect,
            blocks_max,
            file_blocks_max: format.file_blocks_max,
            has_extents: format.has_extents,
            objects_max: match taste {
                Taste::Names => 600,
                _ => 150,
            },
            names: match taste {
                Taste::Names => 300,
                _ => 25,
            },
        }
    }

    /// The next step.
    pub fn next(&mut self, reference: &Reference) -> Operation {
        if reference.data_blocks() > self.blocks_max || reference.object_count() > self.objects_max
        {
            return self.give_back(reference);
        }
        if self.chance(10)
            && let Some(path) = reference.find_fixed()
        {
            return unfix(Place::At(path));
        }
        let (names, data) = match self.taste {
            Taste::Mixed => (35, 40),
            Taste::Names => (80, 5),
            Taste::Data => (6, 84),
        };
        match self.rng.u32(0..100) {
            share if share < names => self.name_step(reference),
            share if share < names + data => self.data_step(reference),
            share if share < names + data + 5 => self.handle_step(reference),
            _ => match self.rng.u32(0..20) {
                0..12 => self.attribute_step(reference),
                12..15 => self.list_step(reference),
                15..18 => {
                    let mode = *self.pick(&[SyncMode::Data, SyncMode::All]);
                    Operation::SyncFile(self.place(reference), mode)
                }
                18 => Operation::Sync,
                _ if self.chance(50) => Operation::Crash,
                _ => Operation::Reopen,
            },
        }
    }

    fn name_step(&mut self, reference: &Reference) -> Operation {
        match self.rng.u32(0..100) {
            0..45 => {
                let name = match self.rng.u32(0..100) {
                    0 => Name::new(Place::At(self.directory_path(reference)), &[b'n'; 256]),
                    _ => self.free_name(reference),
                };
                let made = self.made(reference);
                Operation::Create(name, made, self.owner(made))
            }
            45..52 => self.link_step(reference),
            52..68 => Operation::Unlink(self.taken_name(reference)),
            68..76 => Operation::RemoveDirectory(self.taken_name(reference)),
            _ => {
                let mode = *self.pick(&[
                    RenameMode::Replace,
                    RenameMode::Replace,
                    RenameMode::NoReplace,
                    RenameMode::Exchange,
                    RenameMode::Whiteout { uid: 0, gid: 0 },
                ]);
                let from = self.taken_name(reference);
                let to = if self.chance(50) {
                    self.taken_name(reference)
                } else {
                    self.free_name(reference)
                };
                Operation::Rename(from, to, mode)
            }
        }
    }

    fn link_step(&mut self, reference: &Reference) -> Operation {
        let mut place = self.place(reference);
        let is_nameless = |place: &Place| {
            let found = reference.find(place);
            found.is_ok_and(|id| reference.object(id).links == 0)
        };
        // The kernel does not link an inode that has lost its names.
        if self.dialect == Dialect::Kernel && is_nameless(&place) {
            place = Place::At(Path(vec![b"lost+found".to_vec()]));
        }
        Operation::Link(place, self.free_name(reference))
    }

    fn handle_step(&mut self, reference: &Reference) -> Operation {
        let handle = self.rng.usize(0..HANDLES);
        match self.rng.u32(0..10) {
            0..5 => Operation::Open(Place::At(self.any_path(reference)), handle),
            5..8 => Operation::Close(handle),
            _ => {
                let near = self.directory(reference);
                Operation::CreateUnnamed(near, self.owner(Made::Regular), handle)
            }
        }
    }

    fn list_step(&mut self, reference: &Reference) -> Operation {
        let cursor = self.rng.usize(0..CURSORS);
        if self.chance(30) {
            Operation::ListStart(self.directory(reference), cursor)
        } else {
            Operation::ListNext(cursor, self.rng.usize(1..200))
        }
    }

    /// Makes room.
    fn give_back(&mut self, reference: &Reference) -> Operation {
        if self.chance(20)
            && let Some(path) = reference.find_fixed()
        {
            return unfix(Place::At(path));
        }
        match self.rng.u32(0..20) {
            0..8 => Operation::Unlink(self.taken_name(reference)),
            8..12 => Operation::RemoveDirectory(self.taken_name(reference)),
            12..14 => Operation::Close(self.rng.usize(0..HANDLES)),
            _ => {
                let place = self.place(reference);
                let size = reference.file(&place).map_or(0, |(_, file)| file.size);
                Operation::Resize(place, size / 4)
            }
        }
    }

    fn made(&mut self, reference: &Reference) -> Made {
        let device = DeviceNumber {
            major: self.rng.u32(0..4096),
            minor: self.rng.u32(0..1 << 20),
        };
        match self.rng.u32(0..20) {
            0..10 => Made::Regular,
            10..16 => Made::Directory,
            16 | 17 => {
                let most = reference.format.block_bytes as usize + 1;
                let length = match self.rng.u32(0..10) {
                    0..6 => self.rng.usize(1..80),
                    6..9 => self.rng.usize(1..most),
                    _ => most,
                };
                // The kernel takes paths of a page at most.
                let length = match self.dialect {
                    Dialect::Kernel => length.min(4095),
                    Dialect::Engine => length,
                };
                Made::Link {
                    length,
                    letter: self.rng.alphanumeric() as u8,
                }
            }
            18 => *self.pick(&[Made::Fifo, Made::Socket]),
            _ if self.chance(50) => Made::Character(device),
            _ => Made::Block(device),
        }
    }

    fn owner(&mut self, made: Made) -> Owner {
        if matches!(made, Made::Link { .. }) && self.dialect == Dialect::Kernel {
            // Links grant all permissions.
            return Owner {
                permissions: 0o777,
                uid: 0,
                gid: 0,
                umask: 0,
            };
        }
        let is_own = self.dialect == Dialect::Kernel || self.chance(60);
        Owner {
            permissions: *self.pick(&[0o644, 0o755, 0o2755, 0o7777, 0]),
            uid: if is_own { 0 } else { self.rng.u32(..) },
            gid: if is_own { 0 } else { self.rng.u32(0..100_000) },
            // The kernel shares one between all threads.
            umask: match self.dialect {
                Dialect::Engine => *self.pick(&[0, 0, 0o022, 0o7077]),
                Dialect::Kernel => 0,
            },
        }
    }

    /// Anything: mostly by path, mostly there.
    fn place(&mut self, reference: &Reference) -> Place {
        let handles = reference.open_handles();
        match self.rng.u32(0..100) {
            0..25 if !handles.is_empty() => Place::Handle(*self.pick(&handles)),
            25..28 => Place::At(self.any_path(reference).join(b"none")),
            _ => Place::At(self.any_path(reference)),
        }
    }

    /// A regular file nearly always.
    fn file(&mut self, reference: &Reference) -> Place {
        for _ in 0..8 {
            let place = self.place(reference);
            if reference.file(&place).is_ok() {
                return place;
            }
        }
        let place = self.place(reference);
        let is_odd = reference.find(&place).is_ok_and(|id| {
            let body = &reference.object(id).body;
            matches!(body, Body::Link(_) | Body::Other(..))
        });
        if is_odd && self.dialect == Dialect::Kernel {
            Place::At(Path::default())
        } else {
            place
        }
    }

    fn directory(&mut self, reference: &Reference) -> Place {
        if self.chance(92) {
            Place::At(self.directory_path(reference))
        } else {
            self.place(reference)
        }
    }

    /// A directory, by a walk downwards.
    fn directory_path(&mut self, reference: &Reference) -> Path {
        let go_on = match self.taste {
            Taste::Names => 35,
            _ => 60,
        };
        let mut path = Path::default();
        let mut at = ROOT;
        while self.chance(go_on) {
            let Body::Directory(directory) = &reference.object(at).body else {
                unreachable!("only directories are gone into");
            };
            let below: Vec<_> = directory
                .names
                .iter()
                .filter(|(_, id)| reference.object(**id).is_directory())
                .collect();
            let Some((name, id)) = self.rng.choice(below) else {
                break;
            };
            path = path.join(name);
            at = *id;
        }
        path
    }

    fn any_path(&mut self, reference: &Reference) -> Path {
        let path = self.directory_path(reference);
        let id = reference.find(&Place::At(path.clone())).expect("walked to");
        let Body::Directory(directory) = &reference.object(id).body else {
            unreachable!("a directory");
        };
        match self.rng.choice(directory.names.keys()) {
            Some(name) if self.chance(90) => path.join(name),
            _ => path,
        }
    }

    /// A name that is nearly always there.
    fn taken_name(&mut self, reference: &Reference) -> Name {
        let mut path = self.any_path(reference);
        match path.0.pop() {
            Some(last) if self.chance(95) => Name::new(Place::At(path), &last),
            _ => self.free_name(reference),
        }
    }

    /// A name that may be there or not.
    fn free_name(&mut self, reference: &Reference) -> Name {
        let number = self.rng.usize(0..self.names);
        let padding = match number % 4 {
            0 => 0,
            1 => 200,
            _ => number % 60,
        };
        let name = format!("{number}{}", "p".repeat(padding));
        Name::new(self.directory(reference), name.as_bytes())
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.rng.u32(0..100) < percent
    }

    fn pick<'t, T>(&mut self, among: &'t [T]) -> &'t T {
        &among[self.rng.usize(0..among.len())]
    }
}
