//! `tar x` and `rm -r` of a source tree.
//!
//! The tree is generated from a seed: about 3,000 files in directories four deep, most of them of a
//! few KiB and some of hundreds, like source code. Its archive is in memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, ensure};
use extant_testkit::command::{run, tool};
use extant_testkit::scratch::{Filesystem, Scratch};

use super::environment::{Environments, Peer};
use super::rates::RateTable;
use crate::bench::{Context, Outcome, rounds};
use crate::random::Random;

/// The lesser of both, over fuse2fs.
pub(super) const OVER_FUSE2FS: &str = "tree-over-fuse2fs";

const UNPACK: &str = "tar x";
const REMOVE: &str = "rm -r";
const MEMORY: u64 = 512 << 20;
const FILES_PER_DIRECTORY: usize = 15;
/// Directories per level, and their depth.
const BREADTH: usize = 6;
const DEPTH_MAX: usize = 4;

pub(super) fn measure(
    context: &Context,
    environments: &Environments,
    outcome: &mut Outcome,
) -> Result<()> {
    let runs = context.options.runs(5, 1);
    let store = Scratch::new(Filesystem::Tmpfs, MEMORY);
    let source = store.path().join("source");
    let entries = grow(&source, context.options.pick(3000, 300))?;
    let archive = store.path().join("source.tar");
    run(tool("tar")
        .arg("-cf")
        .arg(&archive)
        .arg("-C")
        .arg(store.path())
        .arg("source"))?;
    fs::remove_dir_all(&source)?;
    let rates = RateTable {
        title: "tree",
        unit: "entries/s",
        peers: environments.file_systems(),
        cases: [UNPACK, REMOVE].map(str::to_owned).into(),
    };
    for (round, at) in rounds(runs, rates.peers.len()) {
        let peer = rates.peers[at];
        context.step(format!("tree, round {}: {peer}", round + 1));
        let place = environments.path(peer);
        for (case, command) in [
            (
                UNPACK,
                tool("tar").arg("-xf").arg(&archive).arg("-C").arg(place),
            ),
            (REMOVE, tool("rm").arg("-r").arg(place.join("source"))),
        ] {
            rustix::fs::sync();
            let start = Instant::now();
            run(command)?;
            let rate = entries as f64 / start.elapsed().as_secs_f64();
            rates.record(outcome, peer, case, rate);
        }
        ensure!(!place.join("source").exists(), "something is left");
    }
    rates.evaluate(outcome, OVER_FUSE2FS, Peer::Fuse2fs)?;
    rates.print(outcome)
}

/// Creates `files` files; returns the number of entries including directories.
fn grow(root: &Path, files: usize) -> Result<usize> {
    let mut random = Random::new(files as u64);
    let directories = files.div_ceil(FILES_PER_DIRECTORY);
    for number in 0..directories {
        let directory = root.join(directory(number));
        fs::create_dir_all(&directory)?;
        let from = number * FILES_PER_DIRECTORY;
        for file in from..files.min(from + FILES_PER_DIRECTORY) {
            // From 64 bytes to 256 KiB, log-uniform except for the square, which favours small
            // ones.
            let bytes = 64.0 * 4096f64.powf(random.fraction().powi(2));
            let text = format!("line {file} of a source\n").into_bytes();
            let data: Vec<u8> = text.into_iter().cycle().take(bytes as usize).collect();
            fs::write(directory.join(format!("file{file}.c")), data)?;
        }
    }
    count(root)
}

/// The path of a directory: the digits of its number in base [`BREADTH`].
fn directory(number: usize) -> PathBuf {
    let mut path = PathBuf::new();
    let mut rest = number;
    for _ in 1..DEPTH_MAX {
        path.push(format!("dir{}", rest % BREADTH));
        rest /= BREADTH;
    }
    path.join(format!("dir{rest}"))
}

fn count(path: &Path) -> Result<usize> {
    let mut entries = 1;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        entries += if entry.file_type()?.is_dir() {
            count(&entry.path())?
        } else {
            1
        };
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tree_is_the_same_each_time_and_counts_every_entry() {
        let directory = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| directory.path().join(name));
        let entries = grow(&a, 40).unwrap();
        assert_eq!(entries, grow(&b, 40).unwrap());
        // 40 files in 3 directories, each of which has three of its own above it, under one root.
        assert_eq!(entries, 40 + 3 * 4 + 1);
        run(tool("diff").arg("-r").args([&a, &b])).unwrap();
    }
}
