//! Batches without a kernel: the test hands out the results.

use extant_space::ErrorKind;
use extant_sys::buffer::AlignedBuffer;
use extant_sys::call::{Durability, Memory};
use extant_sys::direct::DirectIo;
use tempfile::NamedTempFile;

use super::*;
use crate::{HostOptions, Zeroing};

const MIB: u64 = 1 << 20;
const SECTORS: DirectIo = DirectIo {
    memory_bytes: 512,
    offset_bytes: 512,
};

fn device() -> (NamedTempFile, HostDevice) {
    let file = NamedTempFile::new().unwrap();
    file.as_file().set_len(16 * MIB).unwrap();
    let device = HostDevice::open(file.path(), &HostOptions::default()).unwrap();
    (file, device)
}

fn errno(errno: i32) -> io::Result<usize> {
    Err(io::Error::from_raw_os_error(errno))
}

fn assign(start: u64, end: u64) -> Operation<'static> {
    Operation::Assign(ByteRange::new(start * MIB, end * MIB))
}

/// Offset and length of the call, which must be a read or write.
fn place(call: &Call<'_>) -> (u64, usize) {
    let (Call::Read { offset, .. } | Call::Write { offset, .. }) = call else {
        panic!("{call:?}");
    };
    (*offset, call.remaining())
}

fn allocated(call: &Call<'_>) -> u64 {
    let Call::Fallocate { range, .. } = call else {
        panic!("{call:?}");
    };
    range.start() / MIB
}

#[test]
fn assigns_are_in_flight_one_at_a_time_in_order_beside_the_rest() {
    let (_file, device) = device();
    let mut operations = [assign(0, 1), Operation::Flush, assign(1, 2), assign(2, 3)];
    let mut batch = Batch::new(&device);
    operations
        .iter_mut()
        .for_each(|operation| batch.add(operation));
    let (tag, call) = batch.next().unwrap();
    assert_eq!(allocated(&call), 0);
    let (sync_tag, sync) = batch.next().unwrap();
    assert!(matches!(sync, Call::SyncData));
    assert!(batch.next().is_none());
    batch.ended(tag, call, Ok(0));
    let (tag, call) = batch.next().unwrap();
    assert_eq!(allocated(&call), 1);
    assert!(batch.next().is_none());
    // The next one continues after an error, too; an interrupted one is repeated.
    batch.ended(tag, call, errno(libc::EINTR));
    let (tag, call) = batch.next().unwrap();
    assert_eq!(allocated(&call), 1);
    batch.ended(tag, call, errno(libc::ENOSPC));
    let (tag, call) = batch.next().unwrap();
    assert_eq!(allocated(&call), 2);
    batch.ended(sync_tag, sync, Ok(0));
    batch.ended(tag, call, Ok(0));
    assert!(batch.next().is_none());
    let results = batch.into_results();
    let failed: Vec<_> = results.iter().map(Result::is_err).collect();
    assert_eq!(failed, [false, false, true, false]);
    assert_eq!(results[2].as_ref().unwrap_err().kind(), ErrorKind::NoSpace);
}

#[test]
fn short_transfer_continues_where_it_ended() {
    let (_file, device) = device();
    let (mut a, mut b) = (vec![0; 1000], vec![0; 3096]);
    let mut operation = Operation::Read {
        offset: 8192,
        into: [&mut a[..], &mut b[..]].into_iter().collect(),
    };
    let mut batch = Batch::new(&device);
    batch.add(&mut operation);
    let (tag, call) = batch.next().unwrap();
    assert_eq!(place(&call), (8192, 4096));
    batch.ended(tag, call, Ok(1500));
    let (tag, call) = batch.next().unwrap();
    assert_eq!(place(&call), (9692, 2596));
    batch.ended(tag, call, Ok(0));
    assert!(batch.next().is_none());
    let results = batch.into_results();
    let error = results[0].as_ref().unwrap_err();
    assert_eq!(error.range(), Some(ByteRange::new(9692, 12288)));
}

#[test]
fn direct_transfer_continues_at_a_whole_block() {
    let (_file, mut device) = device();
    device.direct = Some(SECTORS);
    let mut memory = AlignedBuffer::new(4096).unwrap();
    let mut operation = Operation::Read {
        offset: 8192,
        into: [memory.as_mut_slice()].into_iter().collect(),
    };
    let mut batch = Batch::new(&device);
    batch.add(&mut operation);
    let (tag, call) = batch.next().unwrap();
    batch.ended(tag, call, Ok(1500));
    let (tag, call) = batch.next().unwrap();
    assert_eq!(place(&call), (8192 + 1024, 4096 - 1024));
    // Less than a block: the file ends here.
    batch.ended(tag, call, Ok(476));
    assert!(batch.next().is_none());
    assert!(batch.into_results()[0].is_err());
}

#[test]
fn refused_ways_are_left_out_until_zeros_are_data() {
    let (_file, device) = device();
    let range = ByteRange::new(MIB / 2, 3 * MIB);
    let mut modes = Vec::new();
    let mut places = Vec::new();
    for _ in 0..2 {
        let mut operation = Operation::WriteZeroes(range, Zeroing::ALLOCATED);
        let mut batch = Batch::new(&device);
        batch.add(&mut operation);
        while let Some((tag, call)) = batch.next() {
            let result = match &call {
                Call::Fallocate { mode, .. } => {
                    modes.push(mode.bits());
                    errno(libc::EOPNOTSUPP)
                }
                call => {
                    places.push(place(call));
                    Ok(call.remaining())
                }
            };
            batch.ended(tag, call, result);
        }
        assert!(batch.into_results()[0].is_ok());
    }
    // FALLOC_FL_WRITE_ZEROES, then FALLOC_FL_ZERO_RANGE with KEEP_SIZE; the second time neither.
    assert_eq!(modes, [0x80, 0x11]);
    let half = MIB as usize / 2;
    let once = [
        (MIB / 2, 2 * half),
        (3 * MIB / 2, 2 * half),
        (5 * MIB / 2, half),
    ];
    assert_eq!(places, [once, once].concat());
}

#[test]
fn zeros_that_shall_be_durable_are_synced_after_all_else() {
    let (_file, device) = device();
    let data = [1; 512];
    let zeroing = Zeroing {
        persistence: Persistence::Fua,
        ..Zeroing::ALLOCATED
    };
    let mut operations = [
        Operation::WriteZeroes(ByteRange::new(0, 4096), zeroing),
        Operation::Write {
            offset: 8192,
            from: [&data[..]].into_iter().collect(),
            persistence: Persistence::Fua,
        },
    ];
    let mut batch = Batch::new(&device);
    operations
        .iter_mut()
        .for_each(|operation| batch.add(operation));
    let (zero_tag, zero) = batch.next().unwrap();
    let (write_tag, write) = batch.next().unwrap();
    let durable = Durability::Durable;
    assert!(matches!(&write, Call::Write { durability, .. } if *durability == durable));
    batch.ended(zero_tag, zero, Ok(0));
    assert!(batch.next().is_none());
    batch.ended(write_tag, write, Ok(512));
    let (tag, call) = batch.next().unwrap();
    assert!(matches!(call, Call::SyncData));
    batch.ended(tag, call, errno(libc::EIO));
    assert!(batch.next().is_none());
    let results = batch.into_results();
    assert!(results[0].is_err() && results[1].is_ok());
}

#[test]
fn unaligned_memory_for_direct_io_uses_a_bounce_buffer() {
    let (_file, mut device) = device();
    device.direct = Some(SECTORS);
    let mut memory = AlignedBuffer::new(8192).unwrap();
    let (aligned, rest) = memory.as_mut_slice().split_at_mut(4096);
    let (unaligned, odd) = rest.split_at_mut(1024);
    let mut operations = [
        Operation::Read {
            offset: 0,
            into: [&mut aligned[..1024]].into_iter().collect(),
        },
        Operation::Read {
            offset: 4096,
            into: [&mut unaligned[1..513]].into_iter().collect(),
        },
        Operation::Read {
            offset: 8192,
            // Aligned, and not in whole blocks.
            into: odd[..512].chunks_mut(256).collect(),
        },
    ];
    let mut batch = Batch::new(&device);
    operations
        .iter_mut()
        .for_each(|operation| batch.add(operation));
    let mut has_buffer = Vec::new();
    while let Some((tag, mut call)) = batch.next() {
        let Call::Read { into, .. } = &mut call else {
            panic!("{call:?}");
        };
        if let Memory::Buffer(buffer, part) = into {
            buffer.as_mut_slice()[part.clone()].fill(9);
        }
        has_buffer.push(matches!(into, Memory::Buffer(..)));
        let length = call.remaining();
        batch.ended(tag, call, Ok(length));
    }
    drop(batch);
    drop(operations);
    assert_eq!(has_buffer, [false, true, true]);
    let seen = &memory.as_slice()[4096..];
    assert_eq!((seen[0], &seen[1..513], seen[513]), (0, &[9; 512][..], 0));
    assert_eq!(
        (seen[1023], &seen[1024..1536], seen[1536]),
        (0, &[9; 512][..], 0)
    );
}

/// One batch of a sync or of a durable write, whose call is in flight.
fn in_flight<'s>(
    device: &'s HostDevice,
    operation: &'s mut Operation<'_>,
) -> (Batch<'s>, usize, Call<'s>) {
    let mut batch = Batch::new(device);
    batch.add(operation);
    let (tag, call) = batch.next().unwrap();
    (batch, tag, call)
}

fn durable_write() -> Operation<'static> {
    Operation::Write {
        offset: 0,
        from: [&[1; 512][..]].into_iter().collect(),
        persistence: Persistence::Fua,
    }
}

#[test]
fn sync_that_overlaps_a_failed_one_fails_whichever_ends_first() {
    let is_failed = |batch: Batch<'_>| batch.into_results().remove(0).is_err();
    for fails_first in [false, true] {
        for make in [|| Operation::Flush, durable_write] {
            let (_file, device) = device();
            let (mut bad, mut good) = (make(), Operation::Flush);
            let (mut bad, bad_tag, bad_call) = in_flight(&device, &mut bad);
            let (mut good, good_tag, good_call) = in_flight(&device, &mut good);
            if fails_first {
                bad.ended(bad_tag, bad_call, errno(libc::EIO));
                good.ended(good_tag, good_call, Ok(0));
            } else {
                good.ended(good_tag, good_call, Ok(0));
                bad.ended(bad_tag, bad_call, errno(libc::EIO));
            }
            assert!(is_failed(good) && is_failed(bad), "{fails_first}");
        }
    }
}

#[test]
fn sync_waits_only_for_earlier_overlapping_calls() {
    for result in [Ok(0), errno(libc::EIO)] {
        let (_file, device) = device();
        let operations = &mut [(); 3].map(|()| Operation::Flush);
        let [first, second, third] = operations;
        let (mut first, first_tag, first_call) = in_flight(&device, first);
        let (mut second, second_tag, second_call) = in_flight(&device, second);
        second.ended(second_tag, second_call, Ok(0));
        let (third, _, _) = in_flight(&device, third);
        let is_failed = result.is_err();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| second.into_results().remove(0).is_err());
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert!(!waits.is_finished(), "the first has not ended");
            first.ended(first_tag, first_call, result);
            assert_eq!(waits.join().unwrap(), is_failed);
        });
        drop(third);
    }
}

#[test]
fn durable_write_through_the_page_cache_fails_after_a_failed_sync() {
    for is_direct in [false, true] {
        let (_file, mut device) = device();
        device.direct = is_direct.then_some(SECTORS);
        let (mut flush, mut before, mut after) =
            (Operation::Flush, durable_write(), durable_write());
        let (mut early, early_tag, early_call) = in_flight(&device, &mut before);
        early.ended(early_tag, early_call, Ok(512));
        assert!(early.into_results()[0].is_ok());
        let (mut sync, tag, call) = in_flight(&device, &mut flush);
        sync.ended(tag, call, errno(libc::ENOSPC));
        assert!(sync.into_results()[0].is_err());
        let (mut late, late_tag, late_call) = in_flight(&device, &mut after);
        late.ended(late_tag, late_call, Ok(512));
        assert_eq!(late.into_results()[0].is_ok(), is_direct);
    }
}
