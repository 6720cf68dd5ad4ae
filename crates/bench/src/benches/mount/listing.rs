//! `find` with attributes, and `rm -r`, of 100,000 files in 200 directories.
//!
//! Each sample mounts a copy of an image that the kernel has filled, and drops what the kernel has
//! cached. `find -size` then reads every inode; `rm -r` follows in the same mount.

use std::fs::{self, File};
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use extant_testkit::command::{run, tool};
use extant_testkit::scratch::{Filesystem, Mount, Scratch};

use super::environment::{Environment, MEMORY, Peer, SIZE, mkfs};
use super::rates::RateTable;
use crate::bench::{Context, Outcome, rounds};
use crate::memory::drop_caches;

/// Time for each entry of a listing with attributes, nothing cached.
pub(super) const FIND: &str = "find-entry";
/// Time for each entry of its removal.
pub(super) const REMOVE: &str = "remove-entry";

const FIND_CASE: &str = "find -size, cold";
const REMOVE_CASE: &str = "rm -r";
const PEERS: [Peer; 3] = [Peer::Extant, Peer::Fuse2fs, Peer::Kernel];
const DIRECTORIES: usize = 200;
const TREE: &str = "tree";

pub(super) fn measure(context: &Context, outcome: &mut Outcome) -> Result<()> {
    let runs = context.options.runs(5, 1);
    let store = Scratch::new(Filesystem::Tmpfs, MEMORY);
    let filled = store.path().join("filled");
    context.step("listing: the files");
    let entries = fill(&filled, &store, context.options.pick(500, 50))?;
    let rates = RateTable {
        title: "listing",
        unit: "entries/s",
        peers: PEERS.into(),
        cases: [FIND_CASE, REMOVE_CASE].map(str::to_owned).into(),
    };
    for (round, at) in rounds(runs, PEERS.len()) {
        let peer = PEERS[at];
        context.step(format!("listing, round {}: {peer}", round + 1));
        let environment = Environment::of_copy(peer, context, &filled)?;
        let tree = environment.path().join(TREE);
        drop_caches()?;
        for (case, command) in [
            (FIND_CASE, tool("find").arg(&tree).args(["-size", "+0"])),
            (REMOVE_CASE, tool("rm").arg("-r").arg(&tree)),
        ] {
            let start = Instant::now();
            run(command)?;
            let rate = entries as f64 / start.elapsed().as_secs_f64();
            rates.record(outcome, peer, case, rate);
        }
        ensure!(!tree.exists(), "something is left");
        environment.end(peer)?;
    }
    for (goal, case) in [(FIND, FIND_CASE), (REMOVE, REMOVE_CASE)] {
        let microseconds = 1e6 / rates.median(outcome, Peer::Extant, case)?;
        outcome.goals.insert(goal, microseconds.into());
    }
    rates.print(outcome)
}

/// Makes an image with the tree, through the kernel's ext4; returns the number of entries.
fn fill(image: &Path, store: &Scratch, files_per_directory: usize) -> Result<usize> {
    File::create_new(image)?.set_len(SIZE.0)?;
    mkfs(image)?;
    let mount = Mount::new("ext4", image, &store.directory_beside("filling"), "loop");
    let tree = mount.path().join(TREE);
    for number in 0..DIRECTORIES {
        let directory = tree.join(format!("directory{number:03}"));
        fs::create_dir_all(&directory)?;
        for file in 0..files_per_directory {
            File::create_new(directory.join(format!("file{file:03}")))?;
        }
    }
    mount.unmount();
    Ok(1 + DIRECTORIES * (1 + files_per_directory))
}
