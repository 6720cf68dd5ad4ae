//! Power cuts below a server: acknowledged writes survive if they were flushed or had FUA.
//!
//! Model: two connections alternate. Each step sends a few requests to disjoint blocks at once and
//! waits for all replies. The model then records which data is durable and which is permitted, and
//! adds the step number to the log of the disk. Afterwards the power fails at every position of
//! the log, and each sector must hold a content that the last step before it permits.

use std::sync::Arc;

use extant_blockdev::simulation::{CrashDevice, CrashOptions};
use extant_blockdev::{Device, MemoryDevice};
use extant_export::{Access, Export, Exports, Server, ServerOptions};

use crate::client::*;

const BLOCK: u64 = 4096;
const BLOCKS: usize = 24;
const SECTOR: usize = 512;
const STEPS: usize = 40;

/// Permitted contents of each block's sectors: the durable one, then later ones.
#[derive(Clone)]
struct Promise(Vec<Vec<u8>>);

/// A change of a block.
struct Change {
    block: usize,
    value: u8,
    flags: u16,
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % bound
    }
}

impl Change {
    /// Up to eight at a time, no two of a block.
    fn some(random: &mut Random, step: usize) -> Vec<Self> {
        let mut blocks: Vec<usize> = (0..BLOCKS).collect();
        let count = 1 + random.below(8);
        let changes = (0..count).map(|_| Self {
            block: blocks.swap_remove(random.below(blocks.len())),
            value: match random.below(4) {
                0 => 0,
                _ => 1 + (step % 255) as u8,
            },
            flags: match random.below(4) {
                0 => FUA,
                _ => 0,
            },
        });
        changes.collect()
    }

    fn encode(&self, client: &mut Client) -> Vec<u8> {
        let offset = self.block as u64 * BLOCK;
        match self.value {
            0 => client.encode(ZEROES, self.flags, offset, BLOCK),
            value => {
                let mut bytes = client.encode(WRITE, self.flags, offset, BLOCK);
                bytes.extend([value; BLOCK as usize]);
                bytes
            }
        }
    }
}

/// Work of the clients, and the promises after each step.
fn live(seed: u64) -> (Arc<CrashDevice>, Vec<Promise>) {
    let device = Arc::new(CrashDevice::new(MemoryDevice::new(BLOCKS as u64 * BLOCK)));
    let export = Export::new("disk", "", device.clone(), Access::ReadWrite).unwrap();
    let server = Server::new(
        Exports::new(vec![export]).unwrap(),
        ServerOptions::default(),
    );
    let mut clients = [(); 2].map(|()| Client::ready(&server, Some(STRUCTURED), &[]));
    let mut random = Random(seed);
    let mut now = Promise(vec![vec![0]; BLOCKS]);
    let mut promises = Vec::new();
    for step in 0..STEPS {
        let client = &mut clients[random.below(2)];
        let before = now.clone();
        if random.below(4) == 0 {
            // A flush covers the acknowledged writes of the other connection too (multi-conn).
            assert_eq!(error_of(&client.request(FLUSH, 0, 0, 0)), 0);
            promises.push(before);
            for values in &mut now.0 {
                values.drain(..values.len() - 1);
            }
        } else {
            let changes = Change::some(&mut random, step);
            let bytes: Vec<u8> = changes
                .iter()
                .flat_map(|change| change.encode(client))
                .collect();
            for change in &changes {
                now.0[change.block].push(change.value);
            }
            // Until all replies have arrived, any subset of them may have.
            promises.push(now.clone());
            client.send(&bytes);
            for _ in &changes {
                assert_eq!(error_of(&client.reply()), 0);
            }
            for change in changes.iter().filter(|change| change.flags == FUA) {
                now.0[change.block] = vec![change.value];
            }
        }
        device.mark(step.to_string());
    }
    promises.push(now.clone());
    server.shutdown(TEST_TIMEOUT).unwrap();
    device.mark(STEPS.to_string());
    for values in &mut now.0 {
        values.drain(..values.len() - 1);
    }
    promises.push(now);
    (device, promises)
}

#[test]
fn flushed_and_fua_writes_survive_every_power_cut() {
    let mut cuts = 0;
    for seed in 1..=3 {
        let (device, promises) = live(seed);
        let options = CrashOptions {
            states_max: 6,
            ..CrashOptions::seeded(seed)
        };
        for crash in device.log().crashes(options) {
            cuts += 1;
            // The promise that held while the step after the mark was on its way.
            let step = crash
                .mark()
                .map_or(0, |mark| mark.parse::<usize>().unwrap() + 1);
            let mut bytes = vec![0; BLOCKS * BLOCK as usize];
            crash.image.read_at(&mut bytes, 0).unwrap();
            for (block, allowed) in promises[step].0.iter().enumerate() {
                let bytes = &bytes[block * BLOCK as usize..][..BLOCK as usize];
                for sector in bytes.chunks(SECTOR) {
                    let is_allowed = allowed
                        .iter()
                        .any(|value| sector.iter().all(|byte| byte == value));
                    assert!(
                        is_allowed,
                        "seed {seed}, {crash}: block {block} is to be of {allowed:?}"
                    );
                }
            }
        }
    }
    assert!(cuts > 500, "{cuts} cuts");
}
