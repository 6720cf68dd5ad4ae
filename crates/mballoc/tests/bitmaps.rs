//! Bitmaps that cannot be trusted: their group is out of use and named, and the others continue.

#![cfg(not(feature = "shuttle"))]

mod disk;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use extant_mballoc::{
    Allocator, BitmapSource, Block, BlockRange, CorruptGroup, Free, Geometry, GroupNumber, Options,
    Request, TransactionId,
};
use extant_space::{Error, ErrorKind, Result};

use disk::Disk;

/// Four groups, the last of 36 blocks.
const GEOMETRY: Geometry = Geometry {
    first: Block(0),
    end: Block(336),
    blocks_per_group: 100,
};
const BAD: GroupNumber = GroupNumber(1);
const LAST: GroupNumber = GroupNumber(3);

#[derive(Clone, Copy)]
enum Fault {
    /// The number of free blocks by which the descriptor exceeds the bitmap.
    FreeCount(i32),
    /// The bit of this place in the group is clear.
    Clear(usize),
    Unreadable,
}

/// A free disk with a fault in one group.
struct Faulty {
    disk: Disk,
    group: GroupNumber,
    fault: Fault,
    loads: Arc<AtomicU32>,
}

impl BitmapSource for Faulty {
    fn free_blocks(&self, group: GroupNumber) -> u32 {
        let free = self.disk.free_blocks(group);
        match self.fault {
            Fault::FreeCount(more) if group == self.group => free.saturating_add_signed(more),
            _ => free,
        }
    }

    fn load(&self, group: GroupNumber, used: &mut [u64]) -> Result<()> {
        self.disk.load(group, used)?;
        if group != self.group {
            return Ok(());
        }
        self.loads.fetch_add(1, Ordering::Relaxed);
        match self.fault {
            Fault::FreeCount(_) => {}
            Fault::Clear(place) => used[place / 64] &= !(1 << (place % 64)),
            Fault::Unreadable => return Err(Error::new(ErrorKind::Io).during("read bitmap")),
        }
        Ok(())
    }
}

fn faulty(group: GroupNumber, fault: Fault) -> Faulty {
    // The first block of a group holds its bitmap.
    let disk = Disk::new(&GEOMETRY, |block| block.0.is_multiple_of(100));
    Faulty {
        disk,
        group,
        fault,
        loads: Arc::default(),
    }
}

/// Takes all that can be taken; the group is refused with this message. Returns the allocator.
fn exhaust(group: GroupNumber, fault: Fault, kind: ErrorKind, reason: &str) -> Allocator {
    let source = faulty(group, fault);
    let loads = Arc::clone(&source.loads);
    let promised: u32 = (0..4)
        .map(|group| source.free_blocks(GroupNumber(group)))
        .sum();
    let lost = source.free_blocks(group);
    let allocator = Allocator::open(GEOMETRY, Options::default(), source).unwrap();
    assert_eq!(allocator.free_blocks(), promised.into());
    assert!(
        allocator.corrupt_groups().is_empty(),
        "nothing was read yet"
    );

    let owner = allocator.owner(1, 0);
    let mut taken = 0;
    let error = loop {
        match owner.allocate(&Request::data(7)) {
            Ok(allocation) => {
                let range = allocation.keep();
                let groups = [range.start(), Block(range.end().0 - 1)];
                assert!(
                    groups.iter().all(|block| block.0 / 100 != group.0.into()),
                    "{range}"
                );
                taken += u64::from(range.count());
            }
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert_eq!(
        error.to_string(),
        "allocate: no free block, 1 groups out of use"
    );
    assert_eq!(taken, u64::from(promised - lost));
    assert_eq!(allocator.free_blocks(), 0);
    assert_eq!(allocator.check(), Ok(()));
    let [out]: [CorruptGroup; 1] = allocator.corrupt_groups().try_into().unwrap();
    assert_eq!(
        (out.group, out.kind, out.reason.as_str()),
        (group, kind, reason)
    );
    assert_eq!(loads.load(Ordering::Relaxed), 1, "it is not read again");
    drop(owner);
    allocator
}

#[test]
fn bitmap_with_fewer_free_blocks_than_promised_is_refused() {
    let reason = "block bitmap of group 1: 99 free blocks, where its descriptor says 100; check the file system";
    exhaust(BAD, Fault::FreeCount(1), ErrorKind::Corrupt, reason);
}

#[test]
fn bitmap_with_more_free_blocks_than_promised_is_refused() {
    let reason = "block bitmap of group 1: 99 free blocks, where its descriptor says 89; check the file system";
    exhaust(BAD, Fault::FreeCount(-10), ErrorKind::Corrupt, reason);
}

#[test]
fn bitmap_with_free_blocks_past_the_last_is_refused() {
    for place in [36, 99, 127] {
        let reason = format!(
            "block bitmap of group 3: bit {place} is clear, past the 36 blocks of the group; check the file system"
        );
        exhaust(LAST, Fault::Clear(place), ErrorKind::Corrupt, &reason);
    }
}

#[test]
fn bitmap_that_cannot_be_read_is_refused_with_the_error() {
    let reason = "read bitmap: input/output error";
    exhaust(BAD, Fault::Unreadable, ErrorKind::Io, reason);
}

#[test]
fn freeing_into_a_corrupt_group_is_an_error_and_others_continue() {
    let allocator = exhaust(
        BAD,
        Fault::Clear(0),
        ErrorKind::Corrupt,
        "block bitmap of group 1: 100 free blocks, where its descriptor says 99; check the file system",
    );
    let owner = allocator.owner(1, 0);
    let text = "free: blocks 150 to 159: group 1 is out of use; check the file system";
    for when in [Free::Now, Free::AfterCommit(TransactionId(1))] {
        let freed = [
            owner.free(BlockRange::new(Block(150), 10), when),
            allocator.free(BlockRange::new(Block(150), 10), when),
        ];
        for error in freed.map(Result::unwrap_err) {
            assert_eq!(
                (error.kind(), error.to_string().as_str()),
                (ErrorKind::Corrupt, text)
            );
        }
    }
    owner
        .free(BlockRange::new(Block(250), 10), Free::Now)
        .unwrap();
    assert_eq!(
        (allocator.free_blocks(), allocator.pending_blocks()),
        (10, 0)
    );
    let mut runs = Vec::new();
    allocator.for_each_free(|run| {
        runs.push(run);
        ControlFlow::Continue(())
    });
    assert_eq!(runs, [BlockRange::new(Block(250), 10)]);
    assert_eq!(owner.allocate(&Request::data(10)).unwrap().keep(), runs[0]);
    assert_eq!(allocator.check(), Ok(()));
}

#[test]
fn shrink_through_a_group_out_of_use_is_refused() {
    let allocator = Allocator::open(
        GEOMETRY,
        Options::default(),
        faulty(GroupNumber(2), Fault::Unreadable),
    )
    .unwrap();
    let error = allocator.shrink(Block(150)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert_eq!(
        error.to_string(),
        "shrink: group 2 is out of use; check the file system"
    );
    assert_eq!(allocator.geometry(), GEOMETRY);
    assert_eq!(allocator.check(), Ok(()));
    let owner = allocator.owner(1, 0);
    let there = owner
        .allocate(&Request::data(5).follow(Block(305)))
        .unwrap();
    assert_eq!(
        there.range().start(),
        Block(305),
        "the closed end is open again"
    );
}

#[test]
fn descriptor_with_more_free_blocks_than_its_group_has_is_refused_at_once() {
    let open = |fault| Allocator::open(GEOMETRY, Options::default(), faulty(LAST, fault));
    let error = open(Fault::FreeCount(2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert_eq!(
        error.to_string(),
        "the descriptor of group 3 says 37 free blocks of 36; check the file system"
    );
    open(Fault::FreeCount(1)).unwrap();
}

#[test]
fn grow_to_a_group_with_a_wrong_descriptor_changes_nothing() {
    let larger = Geometry {
        end: Block(450),
        ..GEOMETRY
    };
    let disk = Disk::new(&larger, |_| false);
    let source = Faulty {
        fault: Fault::FreeCount(1),
        group: GroupNumber(4),
        disk,
        loads: Arc::default(),
    };
    let geometry = Geometry {
        end: Block(300),
        ..GEOMETRY
    };
    let allocator = Allocator::open(geometry, Options::default(), source).unwrap();
    let error = allocator.grow(larger.end).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the descriptor of group 4 says 51 free blocks of 50; check the file system"
    );
    assert_eq!(
        (allocator.geometry(), allocator.free_blocks()),
        (geometry, 300)
    );
    assert_eq!(allocator.check(), Ok(()));
}
