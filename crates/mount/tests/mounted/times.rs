//! The order of times that the kernel and the server store.

use std::fs::{self, File, Metadata};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use extant_testkit::require;

use crate::mounts::{Ours, needs};

const ROUNDS: usize = 300;

#[test]
fn later_change_never_has_an_earlier_time() {
    let [a, b, c, d, e, f] = needs();
    require!(a, b, c, d, e, f);
    for options in ["writeback", "no_writeback"] {
        let ours = Ours::new(16, options);
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            // Another file system raises the kernel's time above its last tick.
            scope.spawn(|| {
                let mut busy = tempfile::tempfile().unwrap();
                while !is_done.load(Ordering::Relaxed) {
                    busy.write_all(b"x").unwrap();
                    busy.metadata().unwrap();
                }
            });
            let in_order = (0..ROUNDS)
                .map(|_| make_in_order(&ours))
                .all(|times| times.is_sorted());
            is_done.store(true, Ordering::Relaxed);
            assert!(in_order, "{options}");
        });
        ours.end();
    }
}

/// Changes files by the kernel and by the server in turn; their times.
fn make_in_order(ours: &Ours) -> [(i64, i64); 5] {
    let path = |name: &str| ours.path().join(name);
    let time = |found: Metadata| (found.mtime(), found.mtime_nsec());
    fs::write(path("a"), "written").unwrap();
    File::create_new(path("made")).unwrap();
    fs::write(path("b"), "written").unwrap();
    fs::create_dir(path("directory")).unwrap();
    fs::write(path("c"), "written").unwrap();
    let times =
        ["a", "made", "b", "directory", "c"].map(|name| time(path(name).metadata().unwrap()));
    fs::remove_file(path("made")).unwrap();
    fs::remove_dir(path("directory")).unwrap();
    times
}
