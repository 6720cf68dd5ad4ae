//! Several threads on one file system: each with a tree of its own, and all of them on one that
//! they share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use extant_ext4::{Filesystem, NewKind, NewNode, Node};
use extant_space::{ErrorKind, SpaceFile};
use extant_testkit::{require, requires};

use crate::engine::Engine;
use crate::generate::{Dialect, Generator, Taste, seeds};
use crate::image;
use crate::operation::{Operation, Outcome};
use crate::reference::{Format, Reference};
use crate::tree::difference;

const THREADS: u64 = 4;
const STEPS: usize = 700;
/// A run takes a few seconds.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Blocks of data of each tree.
const BLOCKS_MAX: u64 = 3000;

#[test]
fn threads_keep_their_own_trees_and_share_one() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    for seed in seeds(0..3) {
        let options = [
            "-t ext4 -b 1024 -N 8192",
            "-t ext4 -b 4096 -O ^orphan_file -N 8192",
        ][(seed % 2) as usize];
        let (done, result) = mpsc::channel();
        let runner = thread::spawn(move || {
            run(seed, options);
            let _ = done.send(());
        });
        match result.recv_timeout(STALL_TIMEOUT) {
            Ok(()) => runner.join().unwrap(),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                runner.join().expect("a thread has failed");
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {
                panic!("seed {seed}: nothing happens for {STALL_TIMEOUT:?}: a deadlock")
            }
        }
    }
}

fn run(seed: u64, options: &str) {
    let format = Format::of(options);
    let device = image::make(options, 256);
    let filesystem = image::open(&device);
    let root = filesystem.root().unwrap();
    let shared = make_directory(&root, "shared");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|number| {
                let own = make_directory(&root, &format!("own {number}"));
                let (filesystem, shared) = (&filesystem, shared.clone());
                scope.spawn(move || work(seed * 100 + number, format, filesystem, own, shared))
            })
            .collect();
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                filesystem.sync().unwrap();
                filesystem.statistics();
            }
        });
        scope.spawn(|| open_and_close(&shared, &is_over));
        let results: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        for result in results {
            result.unwrap();
        }
    });
    drop((root, shared));
    filesystem.close().unwrap();
    image::assert_clean(&device);
}

fn work(seed: u64, format: Format, filesystem: &Filesystem, own: Node, shared: Node) {
    let mut engine = Engine::within(filesystem, own);
    let mut reference = Reference::bare(format);
    let mut generator = Generator::new(seed, Taste::Mixed, Dialect::Engine, format, BLOCKS_MAX);
    // The state without the other threads' work: sufficient for choosing operations.
    let mut all_engine = Engine::within(filesystem, shared);
    let mut all_reference = Reference::bare(format);
    let mut all_generator = Generator::new(seed + 50, Taste::Mixed, Dialect::Engine, format, 500);
    for step in 0..STEPS {
        let operation = all_generator.next(&all_reference);
        let outcome = all_engine.apply(&operation);
        assert!(
            can_be(&operation, &outcome),
            "shared: {operation:?}: {outcome:?}"
        );
        all_reference.apply(&operation);

        let operation = generator.next(&reference);
        let outcome = engine.apply(&operation);
        let text = || format!("seed {seed}, step {step}: {operation:?}");
        match (&operation, &outcome) {
            (Operation::ListNext(cursor, _), Outcome::Listed(listed)) => {
                assert_eq!(reference.listed(*cursor, listed), None, "{}", text());
            }
            (Operation::ListNext(cursor, _), _) => {
                assert!(!reference.is_listable(*cursor), "{}", text());
            }
            (Operation::SetXattr(place, name, value, _), Outcome::Failed(ErrorKind::NoSpace)) => {
                assert!(
                    reference.may_lack_xattr_room(place, name, value),
                    "{}",
                    text()
                );
            }
            _ => assert_eq!(reference.apply(&operation), outcome, "{}", text()),
        }
        if step % 200 == 0 {
            assert_eq!(
                difference(&reference.tree(), &engine.tree().unwrap()),
                None,
                "{}",
                text()
            );
        }
    }
    assert_eq!(
        difference(&reference.tree(), &engine.tree().unwrap()),
        None,
        "seed {seed}"
    );
}

/// Whether an operation can succeed while others run.
fn can_be(operation: &Operation, outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Failed(ErrorKind::NoSpace) => matches!(operation, Operation::SetXattr(..)),
        Outcome::Failed(kind) => matches!(
            kind,
            ErrorKind::NotFound
                | ErrorKind::AlreadyExists
                | ErrorKind::WrongType
                | ErrorKind::NotDirectory
                | ErrorKind::IsDirectory
                | ErrorKind::NotEmpty
                | ErrorKind::NameTooLong
                | ErrorKind::NoAttribute
                | ErrorKind::Immutable
                | ErrorKind::TooLarge
                | ErrorKind::InvalidArgument
                | ErrorKind::Unsupported
        ),
        _ => true,
    }
}

/// Opens the existing files, reads a little of each, and closes them in another order.
fn open_and_close(shared: &Node, is_over: &AtomicBool) {
    let mut held = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        for number in 0..25 {
            let name = format!("{number}{}", "p".repeat(number % 60));
            let Ok(node) = shared.lookup(name.as_bytes()) else {
                continue;
            };
            let _ = node.attributes();
            if let Ok(file) = node.file() {
                file.read_at(&mut [0; 5000], 100).unwrap();
            }
            held.push(node);
            if held.len() > 20 {
                held.swap_remove(number % held.len());
            }
        }
        thread::yield_now();
    }
}

fn make_directory(root: &Node, name: &str) -> Node {
    root.create(
        name.as_bytes(),
        &NewNode {
            kind: NewKind::Directory,
            permissions: 0o755,
            uid: 0,
            gid: 0,
            umask: 0,
        },
    )
    .unwrap()
}
