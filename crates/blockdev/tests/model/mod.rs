//! The same random operations on a device and on plain bytes.

use std::ops::ControlFlow;

use extant_blockdev::{
    Device, Operation, Persistence, RangeStatus, ReadBuffers, Request, Speed, WriteBuffers,
    ZeroedSpace, Zeroing,
};
use extant_space::{ByteRange, Extent, ExtentState};
use proptest::prelude::*;

/// Small enough to be compared whole, large enough for several regions of a memory device.
pub const SIZE: u64 = 600 << 10;
const BLOCK: u64 = 512;

/// A step; ranges in blocks.
#[derive(Clone, Debug)]
pub enum Step {
    Write {
        blocks: (u64, u64),
        seed: u8,
        persistence: Persistence,
        cut: usize,
    },
    Read {
        blocks: (u64, u64),
        cut: usize,
    },
    Flush,
    Discard {
        blocks: (u64, u64),
    },
    WriteZeroes {
        blocks: (u64, u64),
        space: ZeroedSpace,
    },
    Assign {
        blocks: (u64, u64),
    },
}

fn blocks() -> impl Strategy<Value = (u64, u64)> {
    let all = SIZE / BLOCK;
    let short = 0..24u64;
    let long = 0..all;
    (0..all, prop_oneof![3 => short, 1 => long])
        .prop_map(move |(first, count)| (first, count.min(all - first)))
}

fn persistence() -> impl Strategy<Value = Persistence> {
    prop_oneof![Just(Persistence::Cached), Just(Persistence::Fua)]
}

fn zeroed_space() -> impl Strategy<Value = ZeroedSpace> {
    prop_oneof![
        Just(ZeroedSpace::MayUnmap),
        Just(ZeroedSpace::Allocated),
        Just(ZeroedSpace::Written)
    ]
}

pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (blocks(), any::<u8>(), persistence(), any::<usize>()).prop_map(
            |(blocks, seed, persistence, cut)| Step::Write { blocks, seed, persistence, cut }
        ),
        2 => (blocks(), any::<usize>()).prop_map(|(blocks, cut)| Step::Read { blocks, cut }),
        1 => Just(Step::Flush),
        1 => blocks().prop_map(|blocks| Step::Discard { blocks }),
        2 => (blocks(), zeroed_space()).prop_map(|(blocks, space)| Step::WriteZeroes { blocks, space }),
        1 => blocks().prop_map(|blocks| Step::Assign { blocks }),
    ];
    prop::collection::vec(step, 1..40)
}

fn range((first, count): (u64, u64)) -> ByteRange {
    ByteRange::at(first * BLOCK, count * BLOCK).unwrap()
}

fn inside(range: ByteRange) -> std::ops::Range<usize> {
    range.start() as usize..range.end() as usize
}

pub fn data(length: u64, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at / 7) as u8 ^ seed).collect()
}

/// Runs `steps` on `device`, which is a hole of [`SIZE`] bytes that reads as zeros where discarded,
/// and holds its contents and status against the model.
pub fn compare(device: &dyn Device, steps: &[Step]) {
    let (model, allocated) = compare_contents(device, steps);
    let mut end = 0;
    let mut told = Vec::new();
    let visit = &mut |part: ByteRange, status| {
        assert_eq!(part.start(), end);
        end = part.end();
        told.push((part.end(), status));
        let blocks = (part.start() / BLOCK) as usize..(part.end() / BLOCK) as usize;
        match status {
            RangeStatus::Data => {}
            RangeStatus::Zero => assert!(model[inside(part)].iter().all(|&byte| byte == 0)),
            RangeStatus::Hole => {
                assert!(model[inside(part)].iter().all(|&byte| byte == 0));
                assert!(!allocated[blocks].contains(&true), "a hole in {part}");
            }
        }
        ControlFlow::Continue(())
    };
    device.status(ByteRange::new(0, SIZE), visit).unwrap();
    assert_eq!(end, SIZE);
    assert_eq!(
        extents(device),
        told,
        "the extents say what the status says"
    );
}

/// End of each run of extents of a state, in the types of the status.
fn extents(device: &dyn Device) -> Vec<(u64, RangeStatus)> {
    let mut end = 0;
    let mut runs: Vec<(u64, RangeStatus)> = Vec::new();
    let visit = &mut |extent: Extent| {
        assert_eq!(extent.logical.start(), end);
        end = extent.logical.end();
        let status = match extent.state {
            ExtentState::Hole => RangeStatus::Hole,
            ExtentState::Unwritten => RangeStatus::Zero,
            ExtentState::Written => RangeStatus::Data,
        };
        match runs.last_mut() {
            Some(last) if last.1 == status => last.0 = end,
            _ => runs.push((end, status)),
        }
        ControlFlow::Continue(())
    };
    device.extents(ByteRange::new(0, SIZE), visit).unwrap();
    runs
}

/// As [`compare`], without the status. Returns the contents, and the blocks that must have space:
/// the assigned, written, and zeroed (unmap forbidden) ranges.
pub fn compare_contents(device: &dyn Device, steps: &[Step]) -> (Vec<u8>, Vec<bool>) {
    let mut model = vec![0; SIZE as usize];
    let mut allocated = vec![false; (SIZE / BLOCK) as usize];
    for step in steps {
        run(device, step, &mut model, &mut allocated);
        let mut seen = vec![0xEE; SIZE as usize];
        device.read_at(&mut seen, 0).unwrap();
        assert!(seen == model, "contents differ after {step:?}");
    }
    (model, allocated)
}

fn run(device: &dyn Device, step: &Step, model: &mut [u8], allocated: &mut [bool]) {
    let blocks_of = |(first, count): (u64, u64)| first as usize..(first + count) as usize;
    match *step {
        Step::Write {
            blocks,
            seed,
            persistence,
            cut,
        } => {
            let range = range(blocks);
            let bytes = data(range.len(), seed);
            let (a, b) = bytes.split_at(cut % (bytes.len() + 1));
            let write = Operation::Write {
                offset: range.start(),
                from: WriteBuffers::from_iter([a, b]),
                persistence,
            };
            device.run(write).unwrap();
            model[inside(range)].copy_from_slice(&bytes);
            allocated[blocks_of(blocks)].fill(true);
        }
        Step::Read { blocks, cut } => {
            let range = range(blocks);
            let mut bytes = vec![0xEE; range.len() as usize];
            let cut = cut % (bytes.len() + 1);
            let (a, b) = bytes.split_at_mut(cut);
            let read = Operation::Read {
                offset: range.start(),
                into: ReadBuffers::from_iter([a, b]),
            };
            device.run(read).unwrap();
            assert_eq!(bytes, model[inside(range)]);
        }
        Step::Flush => device.flush().unwrap(),
        Step::Discard { blocks } => {
            device.discard(range(blocks)).unwrap();
            model[inside(range(blocks))].fill(0);
            allocated[blocks_of(blocks)].fill(false);
        }
        Step::WriteZeroes { blocks, space } => {
            let zeroing = Zeroing {
                space,
                speed: Speed::Any,
                persistence: Persistence::Cached,
            };
            device.write_zeroes(range(blocks), zeroing).unwrap();
            model[inside(range(blocks))].fill(0);
            allocated[blocks_of(blocks)].fill(space != ZeroedSpace::MayUnmap);
        }
        Step::Assign { blocks } => {
            let mut requests = [Request::new(Operation::Assign(range(blocks)))];
            device.submit(&mut requests);
            let [request] = requests;
            match request.into_result() {
                Ok(()) => allocated[blocks_of(blocks)].fill(true),
                Err(error) => assert_eq!(error.kind(), extant_space::ErrorKind::Unsupported),
            }
        }
    }
}
