//! Many threads at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use extant_fuse::Operations;
use extant_testkit::require;

use crate::image::needs;
use crate::kernel::{Kernel, ROOT};

const THREADS: u64 = 8;
const ROUNDS: u64 = 300;

#[test]
fn node_that_is_looked_up_and_forgotten_by_many_is_never_lost() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(16);
    let (file, _) = kernel.create(ROOT, "a", 0o644).unwrap();
    kernel.write(file.node, 0, b"data").unwrap();
    kernel.volume.forget(file.node, 1);
    let looked_up = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let entry = kernel.lookup(ROOT, "a").unwrap();
                    looked_up.fetch_add(1, Ordering::Relaxed);
                    // It is in use, so it must be there.
                    assert_eq!(kernel.read(entry.node, 0, 4), b"data");
                    kernel.volume.forget(entry.node, 1);
                }
            });
        }
    });
    assert_eq!(looked_up.into_inner(), THREADS * ROUNDS);
    assert_eq!(kernel.volume.known_nodes(), 0);
    kernel.end();
}

#[test]
fn files_made_and_removed_by_many_leave_nothing() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(32);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let kernel = &kernel;
            scope.spawn(move || {
                let directory = kernel.mkdir(ROOT, &format!("d{thread}"), 0o755).unwrap();
                for round in 0..50 {
                    let name = format!("f{round}");
                    let (file, _) = kernel.create(directory.node, &name, 0o644).unwrap();
                    kernel.write(file.node, 0, &[thread as u8; 10_000]).unwrap();
                    kernel.unlink(directory.node, &name).unwrap();
                    let data = kernel.read(file.node, 9_999, 10);
                    assert_eq!(data, [thread as u8]);
                    kernel.volume.forget(file.node, 1);
                }
                kernel.volume.forget(directory.node, 1);
            });
        }
    });
    assert_eq!(kernel.volume.known_nodes(), 0);
    assert_eq!(kernel.names(ROOT).len(), THREADS as usize + 1);
    kernel.end();
}
