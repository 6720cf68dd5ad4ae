//! Panics in the middle of changes: nothing of a change that was half made reaches the disk.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_blockdev::{Device, Geometry, MemoryDevice, RangeStatus, Request};
use extant_ext4::Filesystem;
use extant_space::{ByteRange, Result};
use extant_testkit::command::{run_any_status, tool};
use extant_testkit::workdir::Workdir;
use extant_testkit::{require, requires};

use crate::image::{Judge, NO_JOURNAL, OLD, PLAIN, assert_usable, forgetful, open, used};
use crate::scenario::{self, Outcome};
use crate::watch::Watch;

const MISTAKE: &str = "a mistake of the device";

/// A device that panics once.
struct Panicking {
    device: MemoryDevice,
    /// Requests until then.
    left: AtomicU64,
}

impl Device for Panicking {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        let before = self.left.fetch_sub(1, Ordering::Relaxed);
        if before == 0 {
            // Without a word of the hook, which would print hundreds of stacks.
            resume_unwind(Box::new(MISTAKE));
        }
        self.device.submit(requests);
    }

    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()> {
        self.device.status(range, visit)
    }
}

/// State after a panic.
struct Left {
    image: Arc<MemoryDevice>,
    outcome: Outcome,
    has_panicked: bool,
    closed: Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closed {
    Clean,
    /// With an error.
    Stopped,
    /// The device panicked while it was closed.
    Panicked,
}

/// Runs the scenario on a device that panics at its request `number` after the opening.
fn panicked(base: &MemoryDevice, number: u64) -> Left {
    let device = Arc::new(Panicking {
        device: base.snapshot(),
        left: AtomicU64::new(u64::MAX / 2),
    });
    let filesystem = Filesystem::open(device.clone(), forgetful()).unwrap();
    device.left.store(number, Ordering::Relaxed);
    let mut outcome = Outcome::default();
    let run = AssertUnwindSafe(|| scenario::run_into(&filesystem, "d", &mut outcome));
    let _ = catch_unwind(run);
    let closed = match catch_unwind(AssertUnwindSafe(|| filesystem.close())) {
        Ok(Ok(())) => Closed::Clean,
        Ok(Err(_)) => Closed::Stopped,
        Err(words) if words.downcast_ref() == Some(&MISTAKE) => Closed::Panicked,
        Err(words) => panic!(
            "closing panics by itself: {:?}",
            words.downcast_ref::<String>()
        ),
    };
    Left {
        image: Arc::new(device.device.snapshot()),
        outcome,
        has_panicked: device.left.load(Ordering::Relaxed) > u64::MAX / 2,
        closed,
    }
}

/// `s_state`: marked clean, and errors noted.
fn state(image: &MemoryDevice) -> (bool, bool) {
    let state = image.to_vec()[1024 + 0x3A];
    (state & 1 != 0, state & 2 != 0)
}

pub fn has_noted_errors(image: &MemoryDevice) -> bool {
    state(image).1
}

#[test]
fn panic_at_any_request_leaves_no_half_change_and_is_noted() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let mut judge = Judge::new();
    let watch = Watch::new();
    for (options, step) in [(PLAIN, 1), (OLD, 2)] {
        let base = used(options);
        let mut stopped = 0;
        for number in (0..).step_by(step) {
            let what = format!("{options}: panic at request {number}");
            watch.tell(what.clone());
            let left = panicked(&base, number);
            if !left.has_panicked {
                break;
            }
            let is_stopped = left.closed == Closed::Stopped;
            stopped += u64::from(is_stopped);
            assert_eq!(has_noted_errors(&left.image), is_stopped, "{what}");
            assert_usable(&left.image, &mut judge, &what);
            left.outcome
                .assert_kept(&open(left.image.clone()).unwrap(), &what);
        }
        assert!(stopped > 10, "{stopped} panics stopped the journal");
    }
}

#[test]
fn panic_without_a_journal_is_recorded_and_repairable() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let mut judge = Judge::new();
    let watch = Watch::new();
    let base = used(NO_JOURNAL);
    let mut stopped = 0;
    for number in (0..).step_by(4) {
        let what = format!("panic at request {number}");
        watch.tell(what.clone());
        let left = panicked(&base, number);
        if !left.has_panicked {
            break;
        }
        let mut image = left.image;
        if left.closed != Closed::Clean {
            stopped += 1;
            let is_stopped = left.closed == Closed::Stopped;
            assert_eq!(has_noted_errors(&image), is_stopped, "{what}");
            if state(&image).0 && left.closed == Closed::Panicked {
                // In the flush behind the mark: then nothing is left to repair.
                judge.assert_clean(&image, &what);
            } else {
                assert!(open(image.clone()).is_err(), "{what}: it is marked clean");
                image = Arc::new(repaired(&image));
            }
        }
        assert_usable(&image, &mut judge, &what);
        left.outcome.assert_kept(&open(image).unwrap(), &what);
    }
    assert!(stopped > 5, "{stopped} panics stopped it");
}

/// Repairs the image by e2fsck, which may need several passes.
pub fn repaired(image: &MemoryDevice) -> MemoryDevice {
    let work = Workdir::new();
    let path = work.path().join("image");
    std::fs::write(&path, image.to_vec()).unwrap();
    for _ in 0..4 {
        let output = run_any_status(tool("e2fsck").args(["-f", "-y"]).arg(&path)).unwrap();
        if output.status.success() {
            break;
        }
    }
    MemoryDevice::from_bytes(&std::fs::read(&path).unwrap())
}
