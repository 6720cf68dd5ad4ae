//! The power is cut at every write of a life in which files are changed and synced: synced data is
//! present.
//!
//! A sync of one file makes durable all that was done before, by a fast commit or a full one. So
//! after a cut every path not changed since the last sync has its synced state.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use extant_blockdev::simulation::{CrashDevice, CrashOptions, WriteLog};
use extant_ext4::{Filesystem, NewKind, Node, Options, RenameMode};
use extant_jbd2::{JournalLocation, Recovery};
use extant_space::{ByteRange, FallocateMode, SpaceFile, SyncMode};
use extant_testkit::{require, requires, seeds};

use crate::made::{in_blocks_of, journal_place, mke2fs, node};
use crate::snapshot::{Snapshot, assert_clean};
use crate::tree::{Tree, assert_same, tree};

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// State at each sync, and the paths touched between it and the next.
struct Life {
    journal: JournalLocation,
    log: WriteLog,
    synced: Vec<Tree>,
    touched: Vec<BTreeSet<String>>,
}

fn live(seed: u64, batches: usize) -> Life {
    let mut random = fastrand::Rng::with_seed(seed);
    let device = mke2fs("-t ext4 -O fast_commit -b 1024 -J size=2 -N 256", 8);
    let journal = journal_place(&device);
    let disk = Arc::new(CrashDevice::new(in_blocks_of(1024, &device)));
    let options = Options {
        // The seed decides the times of the commits.
        commit_interval: Duration::from_secs(10_000),
        ..Options::default()
    };
    let fs = Filesystem::open(disk.clone(), options).unwrap();
    let root = fs.root().unwrap();
    let (mut synced, mut touched) = (vec![tree(&fs)], vec![BTreeSet::new()]);
    for _ in 0..batches {
        let paths = touched.last_mut().unwrap();
        let mut last = None;
        for _ in 0..random.usize(1..5) {
            let name = NAMES[random.usize(..NAMES.len())];
            let other = NAMES[random.usize(..NAMES.len())];
            paths.extend([format!("/{name}"), format!("/{other}")]);
            // Other names of the same inodes are touched as well.
            for known in [name, other]
                .iter()
                .filter_map(|n| root.lookup(n.as_bytes()).ok())
            {
                paths.extend(NAMES.iter().filter_map(|name| {
                    let same = root.lookup(name.as_bytes()).ok()?.number() == known.number();
                    same.then(|| format!("/{name}"))
                }));
            }
            last = act(&mut random, &root, name, other).or(last);
        }
        let Some(file) = last else { continue };
        // A sync of an unchanged file has no effect.
        let data = file.file().unwrap();
        data.resize(data.size().unwrap() + 1).unwrap();
        match random.u8(..8) {
            0 => fs.sync().unwrap(),
            _ => file.sync(SyncMode::All).unwrap(),
        }
        if random.u8(..4) > 0 {
            disk.mark(synced.len().to_string());
            synced.push(tree(&fs));
            touched.push(BTreeSet::new());
        }
    }
    // As a crash: nothing is closed.
    let log = disk.log();
    drop((root, fs));
    Life {
        journal,
        log,
        synced,
        touched,
    }
}

/// One change; returns the file to be synced.
fn act(random: &mut fastrand::Rng, root: &Node, name: &str, other: &str) -> Option<Node> {
    let (bytes, other) = (name.as_bytes(), other.as_bytes());
    let Ok(found) = root.lookup(bytes) else {
        return root.create(bytes, &node(NewKind::Regular)).ok();
    };
    let file = found.file().unwrap();
    let at = random.u64(..40_000);
    match random.u8(..12) {
        0..5 => {
            let data = vec![random.u8(1..); random.usize(1..9000)];
            file.write_at(&data, at).unwrap();
        }
        5 => {
            let range = ByteRange::new(at, at + random.u64(1..20_000));
            let mode = [
                FallocateMode::PunchHole,
                FallocateMode::Allocate,
                FallocateMode::AllocateKeepSize,
                FallocateMode::ZeroRange,
            ][random.usize(..4)];
            file.fallocate(mode, range).unwrap();
        }
        6 => file.resize(random.u64(..50_000)).unwrap(),
        7 | 8 => drop(root.link(other, &found)),
        9 => root.unlink(bytes).unwrap(),
        10 => drop(root.rename(bytes, root, other, RenameMode::Replace)),
        _ => drop(root.rename(bytes, root, other, RenameMode::NoReplace)),
    }
    Some(found)
}

#[test]
fn synced_data_survives_every_power_cut() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let (mut cuts, mut fast) = (0, 0);
    let given = seeds::given("EXTANT_POWER_SEEDS");
    for seed in given.clone().unwrap_or(0..2) {
        let life = live(seed, 30);
        let options = CrashOptions {
            states_max: 2,
            ..CrashOptions::seeded(seed)
        };
        for crash in life.log.crashes(options) {
            let image = Snapshot::of_device(&crash.image);
            let device = Arc::new(crash.image.snapshot());
            let what = format!("seed {seed}: {crash}");
            let fs = Filesystem::open(device.clone(), Options::default())
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            let seen = tree(&fs);
            fs.close().unwrap();
            let mark: usize = crash.mark().map_or(0, |mark| mark.parse().unwrap());
            let untouched = |tree: &Tree| -> Tree {
                let paths = tree
                    .iter()
                    .filter(|(path, _)| !life.touched[mark].contains(*path));
                paths
                    .map(|(path, seen)| (path.clone(), seen.clone()))
                    .collect()
            };
            assert_same(&untouched(&life.synced[mark]), &untouched(&seen), &what);
            if cuts % 61 == 0 {
                assert_clean(&device);
                assert_same(&seen, &image.ours_read_only(), &what);
                // Between a full commit and the erasing of fast commits e2fsck 1.47.0 stumbles over
                // these.
                let recovery = Recovery::read(image.device(), life.journal.clone()).unwrap();
                if image.fast_commits() == [recovery.report().next.0] {
                    assert_same(&seen, &image.e2fsck(), &format!("{what}: e2fsck's"));
                    fast += 1;
                }
            }
            cuts += 1;
        }
    }
    eprintln!("{cuts} power cuts, {fast} by e2fsck");
    seeds::counted(cuts, "cuts");
    assert!(
        given.is_some() || cuts > 400 && fast > 2,
        "{cuts} power cuts, {fast} by e2fsck"
    );
}
