//! The same random steps for the engine and for the kernel, alternating on one image.

use std::sync::Arc;

use extant_blockdev::MemoryDevice;
use extant_ext4::{FileType, InodeFlags};
use extant_space::ErrorKind;
use extant_testkit::require;

use crate::engine::Engine;
use crate::generate::{Dialect, Generator, Taste, seeds};
use crate::image::{assert_clean, make};
use crate::mounted::{Mounted, needs, repaired};
use crate::operation::{Name, Operation, Outcome};
use crate::reference::{Format, Reference};
use crate::system::System;
use crate::tree::{Tree, difference};

const STEPS: usize = 180;
/// Bytes of data that there may be.
const BYTES_MAX: u64 = 8 << 20;

const FORMATS: [&str; 8] = [
    "-t ext4 -b 4096",
    "-t ext4 -b 1024",
    "-t ext4 -b 4096 -O ^orphan_file",
    "-t ext4 -b 1024 -O ^64bit,^flex_bg,^metadata_csum",
    "-t ext4 -b 4096 -O ^dir_index,^huge_file,^dir_nlink -I 128",
    "-t ext3 -b 4096",
    "-t ext3 -b 1024 -I 128",
    "-t ext4 -b 1024 -O ^has_journal",
];

/// Both do the same on images that are the same at the start.
#[test]
fn engine_and_kernel_do_the_same_on_images_of_their_own() {
    let [a, b, c, d, e, f] = needs();
    require!(a, b, c, d, e, f);
    for seed in seeds(0..FORMATS.len() as u64) {
        let mut run = Run::new(seed);
        let device = run.start();
        let mut engine = Engine::open(Arc::new(device.snapshot()));
        let mounted = Mounted::new(&device);
        let mut system = System::new(mounted.path(), run.format.block_bytes);
        for _ in 0..STEPS {
            let operation = run.next();
            let wanted = run.wanted(&operation, &engine.apply(&operation), "the engine");
            if let Some(wanted) = wanted {
                let outcome = system.apply(&operation);
                assert!(
                    wanted.agrees(&outcome),
                    "{run}: {operation:?}: the kernel: {outcome:?}, not {wanted:?}"
                );
            }
        }
        for operation in run.reference.steps_for_e2fsck() {
            let wanted = run.wanted(&operation, &engine.apply(&operation), "the engine");
            assert_eq!(
                wanted,
                Some(system.apply(&operation)),
                "{run}: {operation:?}"
            );
        }
        let (found, other) = (plain(engine.tree().unwrap()), plain(system.tree().unwrap()));
        assert_eq!(difference(&run.tree(), &found), None, "{run}: the engine");
        assert_eq!(difference(&run.tree(), &other), None, "{run}: the kernel");
        drop(system);
        mounted.unmount();
        assert_clean(&engine.close());
    }
}

/// Each implementation continues with the image of the other one, closed or not.
#[test]
fn engine_and_kernel_take_turns_on_one_image() {
    let [a, b, c, d, e, f] = needs();
    require!(a, b, c, d, e, f);
    for seed in seeds(0..FORMATS.len() as u64) {
        let mut run = Run::new(seed);
        let mut device = run.start();
        for round in 0..2 {
            device = run.turn_of_engine(&device, round);
            device = run.turn_of_kernel(&device, round);
        }
    }
}

/// One sequence.
struct Run {
    seed: u64,
    options: &'static str,
    format: Format,
    reference: Reference,
    generator: Generator,
}

impl Run {
    fn new(seed: u64) -> Self {
        let options = FORMATS[(seed % FORMATS.len() as u64) as usize];
        let format = Format::of(options);
        let taste = [Taste::Mixed, Taste::Data, Taste::Names][(seed % 3) as usize];
        eprintln!(
            "EXTANT_MODEL_SEEDS={seed}..{}: {taste:?}, mke2fs {options}",
            seed + 1
        );
        let blocks_max = BYTES_MAX / u64::from(format.block_bytes);
        Self {
            seed,
            options,
            format,
            reference: Reference::new(format),
            generator: Generator::new(seed, taste, Dialect::Kernel, format, blocks_max),
        }
    }

    fn start(&self) -> Arc<MemoryDevice> {
        make(&format!("{} -N 2048", self.options), 32)
    }

    fn next(&mut self) -> Operation {
        loop {
            let operation = self.generator.next(&self.reference);
            let is_possible = match &operation {
                Operation::Reopen
                | Operation::Crash
                | Operation::ListStart(..)
                | Operation::ListNext(..) => false,
                Operation::Unlink(name) | Operation::RemoveDirectory(name) => !is_found(name),
                Operation::Rename(from, to, _) => {
                    let directory = self.reference.find(&to.directory);
                    let is_gone = directory.is_ok_and(|id| self.reference.object(id).links == 0);
                    !is_found(from) && !is_found(to) && !is_gone
                }
                _ => true,
            };
            if is_possible {
                return operation;
            }
        }
    }

    /// Required result of a step after the first implementation has done it; `None` if the other
    /// need not do it.
    fn wanted(&mut self, operation: &Operation, outcome: &Outcome, who: &str) -> Option<Outcome> {
        if let Operation::SetXattr(place, name, value, _) = operation
            && self.reference.may_lack_xattr_room(place, name, value)
            && Outcome::Failed(ErrorKind::NoSpace).agrees(outcome)
        {
            return None;
        }
        let wanted = self.reference.apply(operation);
        if let Operation::Fallocate(place, ..) = operation {
            // The kernel changes the time also where it then refuses.
            self.reference.forget_modified(place);
        }
        assert!(
            wanted.agrees(outcome),
            "{self}: {operation:?}: {who}: {outcome:?}, not {wanted:?}"
        );
        Some(wanted)
    }

    fn tree(&self) -> Tree {
        plain(self.reference.tree())
    }

    /// An image that was not closed, as the other implementation can open it: without a journal
    /// after e2fsck.
    fn usable(&self, left: Arc<MemoryDevice>) -> Arc<MemoryDevice> {
        if self.options.contains("^has_journal") {
            repaired(&left)
        } else {
            left
        }
    }

    fn close_all(&mut self) {
        self.reference.apply(&Operation::Reopen);
    }

    fn turn_of_engine(&mut self, device: &MemoryDevice, round: u32) -> Arc<MemoryDevice> {
        let mut engine = Engine::open(Arc::new(device.snapshot()));
        let found = plain(engine.tree().unwrap());
        assert_eq!(
            difference(&self.tree(), &found),
            None,
            "{self}, round {round}: as opened"
        );
        for _ in 0..STEPS {
            let operation = self.next();
            let outcome = engine.apply(&operation);
            self.wanted(&operation, &outcome, "the engine");
        }
        for operation in self.reference.steps_for_e2fsck() {
            let outcome = engine.apply(&operation);
            self.wanted(&operation, &outcome, "the engine");
        }
        engine.filesystem().sync().unwrap();
        let unclean = self.usable(engine.snapshot());
        let closed = engine.close();
        assert_clean(&closed);
        self.close_all();
        // A clean close and a crash give the same state.
        for left in [&unclean, &closed] {
            let mounted = Mounted::new(left);
            let system = System::new(mounted.path(), self.format.block_bytes);
            let found = plain(system.tree().unwrap());
            assert_eq!(
                difference(&self.tree(), &found),
                None,
                "{self}, round {round}: mounted"
            );
            mounted.unmount();
        }
        match round % 2 {
            0 => closed,
            _ => unclean,
        }
    }

    fn turn_of_kernel(&mut self, device: &MemoryDevice, round: u32) -> Arc<MemoryDevice> {
        let mounted = Mounted::new(device);
        let mut system = System::new(mounted.path(), self.format.block_bytes);
        for _ in 0..STEPS {
            let operation = self.next();
            let outcome = system.apply(&operation);
            self.wanted(&operation, &outcome, "the kernel");
        }
        for operation in self.reference.steps_for_e2fsck() {
            let outcome = system.apply(&operation);
            self.wanted(&operation, &outcome, "the kernel");
        }
        system.sync().unwrap();
        let unclean = self.usable(mounted.cut());
        drop(system);
        let unmounted = mounted.unmount();
        self.close_all();
        for (how, left) in [("unclean", &unclean), ("repaired", &repaired(&unclean))] {
            let engine = Engine::open(Arc::new(left.snapshot()));
            let found = plain(engine.tree().unwrap());
            assert_eq!(
                difference(&self.tree(), &found),
                None,
                "{self}, round {round}: {how}"
            );
            assert_clean(&engine.close());
        }
        match round % 2 {
            0 => unclean,
            _ => unmounted,
        }
    }
}

impl std::fmt::Display for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seed {}, mke2fs {}", self.seed, self.options)
    }
}

/// e2fsck creates a directory of that name if there is none, and removes any other inode of that
/// name.
fn is_found(name: &Name) -> bool {
    name.name == b"lost+found"
}

/// Without the state that the kernel does not expose: the flags of special files.
fn plain(mut tree: Tree) -> Tree {
    for seen in tree.values_mut() {
        if !matches!(seen.file_type, FileType::Regular | FileType::Directory) {
            seen.flags = InodeFlags::empty();
        }
    }
    tree
}
