//! The allocator's hot paths, one at a time and a given number of times, for
//! `cargo xtask instructions`.

use std::convert::Infallible;
use std::process::ExitCode;

use extant_mballoc::{
    Allocator, BitmapSource, Block, BlockRange, Free, Geometry, Goal, GroupNumber, Options, Owner,
    Request, RequestFlags, TransactionId,
};
use extant_space::Result;
use extant_testkit::hot_paths::run_named;

/// A name, and an operation to repeat n times on a new allocator; the result depends on the work.
type Path = (&'static str, fn(u64) -> u64);

const PATHS: [Path; 7] = [
    ("take from a window", take_from_window),
    ("take at the goal, without windows", take_at_goal),
    ("take 5 blocks in fragmented groups", |count| {
        take_fragmented(count, 5)
    }),
    ("take 512 blocks in fragmented groups", |count| {
        take_fragmented(count, 512)
    }),
    ("take 512 blocks of many fresh groups", take_fresh),
    ("free until a commit, and commit", free_and_commit),
    ("load a fragmented group", load),
];

fn main() -> ExitCode {
    run_named(&PATHS, |work, count| Ok::<_, Infallible>(work(count)))
}

const WORDS: usize = 512;

/// Groups of 32,768 blocks that all look the same.
struct Groups {
    used: [u64; WORDS],
}

impl Groups {
    /// An allocator over groups with a free run in every `spacing` blocks, of eight lengths not
    /// much shorter than that, or without a used block.
    fn allocator(groups: u64, spacing: Option<usize>, options: Options) -> Allocator {
        let geometry = Geometry {
            first: Block(0),
            end: Block(groups * WORDS as u64 * 64),
            blocks_per_group: WORDS as u32 * 64,
        };
        let mut used = [0; WORDS];
        if let Some(spacing) = spacing {
            let is_used = |at: &usize| at % spacing < at / spacing % 8 + 1;
            for at in (0..WORDS * 64).filter(is_used) {
                used[at / 64] |= 1 << (at % 64);
            }
        }
        let options = Options { cpus: 2, ..options };
        Allocator::open(geometry, options, Self { used }).expect("a good geometry")
    }
}

impl BitmapSource for Groups {
    fn free_blocks(&self, _group: GroupNumber) -> u32 {
        self.used.iter().map(|word| word.count_zeros()).sum()
    }

    fn load(&self, _group: GroupNumber, used: &mut [u64]) -> Result<()> {
        used.copy_from_slice(&self.used);
        Ok(())
    }
}

fn take(owner: &Owner, request: &Request) -> BlockRange {
    owner.allocate(request).expect("there is room").keep()
}

fn take_from_window(count: u64) -> u64 {
    let allocator = Groups::allocator(512, None, Options::default());
    let owner = allocator.owner(1, 1 << 20);
    let mut request = Request::data(2);
    let mut last = take(&owner, &request);
    for _ in 0..count {
        request.goal = Goal::Follow(last.end());
        last = take(&owner, &request);
    }
    last.end().0
}

fn take_at_goal(count: u64) -> u64 {
    let allocator = Groups::allocator(512, None, Options::after_scalability_patches());
    let owner = allocator.owner(1, 0);
    let mut request = Request::data(2);
    let mut last = take(&owner, &request);
    for _ in 0..count {
        request.goal = Goal::Follow(last.end());
        last = take(&owner, &request);
    }
    last.end().0
}

fn take_fragmented(count: u64, blocks: u32) -> u64 {
    let allocator = Groups::allocator(16, Some(blocks as usize * 2), Options::default());
    let owner = allocator.owner(1, 0);
    let mut request = Request::data(blocks);
    request.flags |= RequestFlags::NO_NORMALISE;
    let mut sum = 0;
    let mut taken: Vec<BlockRange> = (0..8).map(|_| take(&owner, &request)).collect();
    for at in 0..count {
        let slot = &mut taken[at as usize % 8];
        allocator.free(*slot, Free::Now).expect("blocks in use");
        *slot = take(&owner, &request);
        sum += slot.start().0;
    }
    sum
}

fn take_fresh(count: u64) -> u64 {
    let allocator = Groups::allocator(512, None, Options::default());
    let mut request = Request::data(512);
    request.flags |= RequestFlags::NO_NORMALISE;
    (0..count)
        .map(|number| {
            let owner = allocator.owner(number, 0);
            let range = take(&owner, &request);
            allocator.free(range, Free::Now).expect("blocks in use");
            range.start().0
        })
        .sum()
}

fn free_and_commit(count: u64) -> u64 {
    let allocator = Groups::allocator(512, None, Options::default());
    let owner = allocator.owner(1, 0);
    let mut request = Request::data(4);
    request.flags |= RequestFlags::NO_NORMALISE;
    let mut freed = 0;
    for transaction in 0..count.div_ceil(64) {
        let transaction = TransactionId(transaction as u32);
        for _ in 0..64 {
            let range = take(&owner, &request);
            owner
                .free(range, Free::AfterCommit(transaction))
                .expect("blocks in use");
        }
        freed += allocator.committed(transaction).ranges().len() as u64;
    }
    freed
}

fn load(count: u64) -> u64 {
    let allocator = Groups::allocator(count, Some(64), Options::default());
    let mut runs = 0;
    allocator.for_each_free(|_| {
        runs += 1;
        std::ops::ControlFlow::Continue(())
    });
    runs
}
