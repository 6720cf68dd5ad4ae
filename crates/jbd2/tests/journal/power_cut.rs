//! Power cuts at every write of a long workload: committed transactions survive as a whole, no
//! others do, and blocks that became data keep their data.
//!
//! A workload consists of transactions that change, allocate and free blocks of metadata, one of
//! which is a counter. Freed blocks get data after their transaction is durable, as in the file
//! system; some become metadata again. Checkpoints are interspersed.

use std::collections::BTreeMap;
use std::sync::Arc;

use extant_blockdev::simulation::{CacheMode, CrashDevice, CrashOptions, CrashState, WriteLog};
use extant_blockdev::{Device, MemoryDevice, Persistence};
use extant_jbd2::{Frozen, LogFormat};
use extant_ondisk::ext4::PhysicalBlock;
use extant_ondisk::jbd2::JournalSuperblock;
use extant_ondisk::jbd2::commit::Commit;
use extant_ondisk::jbd2::header::{BlockType, Header};
use extant_testkit::seeds;

use crate::device::{
    BLOCK, FORMATS, HOMES, V3, contents, device, home, location, offset, open, recover,
};

/// Holds the number of the last transaction.
const COUNTER: u64 = 0;

/// Contents of blocks after a transaction.
#[derive(Clone, Default)]
struct State {
    /// The version of each block of metadata.
    metadata: BTreeMap<u64, u64>,
    /// The transaction in which each block of data became one.
    data: BTreeMap<u64, u64>,
}

/// State known to be durable at a mark.
struct Promise {
    transaction: usize,
    data: BTreeMap<u64, u64>,
}

struct Life {
    log: WriteLog,
    /// After each transaction, and before the first.
    states: Vec<State>,
    promises: Vec<Promise>,
    blocks: u32,
}

fn data(block: u64, since: u64) -> Vec<u8> {
    let mut data = vec![0xDA; BLOCK];
    data[..8].copy_from_slice(&block.to_le_bytes());
    data[8..16].copy_from_slice(&since.to_le_bytes());
    data
}

fn live(seed: u64, blocks: u32, format: LogFormat, transactions: u64, mode: CacheMode) -> Life {
    let mut random = fastrand::Rng::with_seed(seed);
    let disk = Arc::new(CrashDevice::with_cache(device(blocks), mode));
    let journal = open(disk.clone(), blocks, format);
    let mut state = State::default();
    let mut states = vec![state.clone()];
    let mut promises = Vec::new();
    let mut written = BTreeMap::new();
    let most = journal.transaction_blocks_max().min(12) as usize;
    for number in 1..=transactions {
        let mut frozen = Frozen::new();
        let mut change = vec![COUNTER];
        change.extend((1..random.usize(2..most)).map(|_| random.u64(1..HOMES)));
        change.sort_unstable();
        change.dedup();
        let given_up: Vec<u64> = state
            .metadata
            .keys()
            .copied()
            .filter(|block| *block != COUNTER && random.u8(..12) == 0)
            .take(most / 2)
            .collect();
        for block in &given_up {
            state.metadata.remove(block);
            state.data.insert(*block, number);
            frozen.revoke(PhysicalBlock(*block));
        }
        for block in change {
            state.metadata.insert(block, number);
            state.data.remove(&block);
            written.remove(&block);
            frozen.block(PhysicalBlock(block), contents(block, number));
        }
        // Data written before the commit is durable with it.
        let durable = written.clone();
        journal.commit(frozen).unwrap();
        states.push(state.clone());
        let mut promise = |data: &BTreeMap<u64, u64>| {
            disk.mark(promises.len().to_string());
            promises.push(Promise {
                transaction: number as usize,
                data: data.clone(),
            });
        };
        promise(&durable);
        for block in given_up {
            if state.data.contains_key(&block) {
                let at = block * BLOCK as u64;
                let data = data(block, number);
                disk.write_at(&data, at, Persistence::Cached).unwrap();
                written.insert(block, number);
            }
        }
        match random.u8(..10) {
            0 => {
                disk.flush().unwrap();
                promise(&written);
            }
            1..4 => drop(journal.checkpoint().unwrap()),
            4 if random.bool() => {
                journal.empty().unwrap();
                promise(&written);
            }
            _ => {}
        }
    }
    drop(journal);
    let disk = Arc::into_inner(disk).expect("the journal released it");
    Life {
        log: disk.into_log(),
        states,
        promises,
        blocks,
    }
}

impl Life {
    /// Returns the error of a device after recovery.
    fn check(&self, device: &dyn Device, crash: &CrashState) -> Result<usize, String> {
        let counter = home(device, COUNTER);
        let number = u64::from_le_bytes(counter[12..20].try_into().unwrap()) as usize;
        let state = self.states.get(number).ok_or("a counter out of nowhere")?;
        for (block, version) in &state.metadata {
            if home(device, *block) != *contents(*block, *version) {
                return Err(format!(
                    "block {block} is not that of transaction {version}"
                ));
            }
        }
        let promise = crash.mark().map(|mark| mark.parse::<usize>().unwrap());
        let Some(promise) = promise.map(|promise| &self.promises[promise]) else {
            return Ok(number);
        };
        if number < promise.transaction {
            let promised = promise.transaction;
            return Err(format!(
                "transaction {promised} was durable, {number} is there"
            ));
        }
        for (block, since) in &state.data {
            if promise.data.get(block) == Some(since)
                && home(device, *block) != data(*block, *since)
            {
                return Err(format!("data of block {block} since {since} is lost"));
            }
        }
        Ok(number)
    }

    /// Recovers from every power cut; returns how many there were.
    fn survive(&self, options: CrashOptions) -> usize {
        let mut cuts = 0;
        for crash in self.log.crashes(options) {
            let image = Arc::new(crash.image.snapshot());
            let recovered = recover(image.clone(), self.blocks);
            recovered.unwrap_or_else(|error| panic!("{crash}: {error}"));
            let number = self.check(&*image, &crash);
            let number = number.unwrap_or_else(|loss| panic!("{crash}: {loss}"));
            if cuts % 101 == 0 {
                self.survive_again(&crash, number);
            }
            cuts += 1;
        }
        cuts
    }

    /// The power fails again during recovery.
    fn survive_again(&self, crash: &CrashState, number: usize) {
        let disk = Arc::new(CrashDevice::new(crash.image.snapshot()));
        recover(disk.clone(), self.blocks).unwrap();
        let disk = Arc::into_inner(disk).unwrap();
        for second in disk.into_log().crashes(few_states(number as u64)) {
            let image: Arc<MemoryDevice> = Arc::new(second.image.snapshot());
            recover(image.clone(), self.blocks).unwrap();
            let again = self.check(&*image, crash);
            assert_eq!(again, Ok(number), "{crash}, then {second}");
        }
    }
}

fn few_states(seed: u64) -> CrashOptions {
    CrashOptions {
        states_max: 8,
        ..CrashOptions::seeded(seed)
    }
}

#[test]
fn long_life_in_a_small_log_survives_every_power_cut() {
    let given = seeds::given("EXTANT_POWER_SEEDS");
    for seed in given.clone().unwrap_or(0..2) {
        let life = live(seed, 60, V3, 30, CacheMode::Volatile);
        let cuts = life.survive(few_states(seed));
        seeds::counted(cuts, "cuts");
        assert!(given.is_some() || cuts > 500, "{cuts} power cuts");
    }
}

#[test]
fn every_format_survives_every_power_cut() {
    let given = seeds::given("EXTANT_POWER_SEEDS");
    let first = given.as_ref().map_or(10, |seeds| seeds.start);
    for (seed, format) in (first..).zip(FORMATS) {
        let cuts = live(seed, 60, format, 12, CacheMode::Volatile).survive(few_states(seed));
        seeds::counted(cuts, "cuts");
        assert!(given.is_some() || cuts > 200, "{cuts} power cuts");
    }
}

/// The commit blocks of the newest transaction in the log, of which the checksum is wrong.
fn torn_commits(image: &MemoryDevice, blocks: u32) -> usize {
    let location = location(blocks);
    let log: Vec<_> = (0..blocks)
        .map(|block| {
            let mut bytes = vec![0; BLOCK];
            image.read_at(&mut bytes, offset(&location, block)).unwrap();
            bytes
        })
        .collect();
    let superblock = JournalSuperblock::parse(&log[0]).unwrap();
    let headers = || log[1..].iter().filter_map(|block| Header::read(block));
    let newest = headers().map(|header| header.sequence.0).max();
    log[1..]
        .iter()
        .filter(|block| {
            Header::read(block).is_some_and(|header| {
                header.kind == BlockType::Commit && Some(header.sequence.0) == newest
            })
        })
        .filter(|block| Commit::parse(block, superblock.format()).is_err())
        .count()
}

#[test]
fn commit_block_is_there_or_not_when_the_disk_wrote_half_of_it() {
    let life = live(40, 60, V3, 40, CacheMode::Volatile);
    let mut last = 0;
    for crash in life.log.crashes(few_states(40)) {
        assert_eq!(torn_commits(&crash.image, life.blocks), 0, "{crash}");
        last = crash.position();
    }
    assert!(last > 100, "{last} positions");
}

#[test]
fn smallest_log_survives_every_power_cut() {
    live(20, 17, V3, 20, CacheMode::Volatile).survive(few_states(20));
}

#[test]
fn disk_without_a_cache_needs_no_flush() {
    live(30, 60, V3, 20, CacheMode::WriteThrough).survive(few_states(30));
}
