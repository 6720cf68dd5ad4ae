//! Requests and their results, on every kind of device.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use extant_blockdev::{
    Device, HostCache, MemoryDevice, MemoryOptions, OperationKind, RangeStatus, Statistics,
};
use extant_space::ByteRange;
use extant_testkit::vhost_client::{Client, Op, Options, Ram, SLOT_BYTES, feature, kind, status};
use extant_vhost::{Access, DiscardPolicy, Volume};

use crate::{Ground, MIB, SECTOR, expect_event, pattern};

const GRACE: Duration = Duration::from_secs(30);

/// Writes of many lengths to all of the device in a scattered order, then reads of the same.
fn write_and_verify(client: &mut Client, queue: usize, depth: u16, start: u64, bytes: u64) {
    let lengths = [SECTOR, 4096, 3 * SECTOR, SLOT_BYTES, 33 << 10];
    let mut ranges = Vec::new();
    let mut at = start;
    while at < start + bytes {
        let length = lengths[ranges.len() % lengths.len()].min((start + bytes - at) as usize);
        ranges.push((at, length));
        at += length as u64;
    }
    let count = ranges.len();
    ranges.sort_by_key(|&(at, _)| at.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let sector = |at: u64| at / SECTOR as u64;
    let queue = &mut client.queues[queue];
    let writes: Vec<_> = ranges
        .iter()
        .map(|&(at, length)| Op::write(sector(at), &pattern(at, length)))
        .collect();
    let mut ended = 0;
    queue.run_all(depth, &writes, |_, done| {
        assert_eq!((done.status, done.used), (status::OK, 1));
        ended += 1;
    });
    assert_eq!(ended, count);
    assert_eq!(queue.run(&Op::of_kind(kind::FLUSH)).status, status::OK);
    let reads: Vec<_> = ranges
        .iter()
        .map(|&(at, length)| Op::read(sector(at), length))
        .collect();
    queue.run_all(depth, &reads, |index, done| {
        let (at, length) = ranges[index];
        assert_eq!((done.status, done.used), (status::OK, length as u32 + 1));
        assert!(done.input == pattern(at, length), "{length} bytes at {at}");
    });
}

#[test]
fn written_data_is_read_back_at_every_depth_and_ring_layout() {
    let ground = Ground::new();
    for (name, device) in ground.devices(4 * MIB) {
        let (server, _) = ground.serve(device.clone());
        for without in [
            vec![],
            vec![feature::EVENT_IDX],
            vec![feature::INDIRECT],
            vec![feature::INDIRECT, feature::EVENT_IDX],
        ] {
            for depth in [1, 16, 60] {
                println!("{name}, without {without:?}, depth {depth}");
                let ram = Ram::new(1);
                let without = without.clone();
                let options = Options {
                    without,
                    ..Options::default()
                };
                let mut client = Client::connect(&ground.socket(), &ram, options);
                write_and_verify(&mut client, 0, depth, 0, 4 * MIB);
            }
        }
        server.shutdown(GRACE).unwrap();
        let mut first = vec![0; SECTOR];
        device.read_at(&mut first, 0).unwrap();
        assert!(first == pattern(0, SECTOR), "{name}");
    }
}

#[test]
fn queues_work_beside_each_other() {
    let ground = Ground::new();
    for (name, device) in ground.devices(8 * MIB) {
        println!("{name}");
        let (_server, _) = ground.serve(device);
        let ram = Ram::new(4);
        let options = Options {
            queues: 4,
            ..Options::default()
        };
        let mut client = Client::connect(&ground.socket(), &ram, options);
        // Requests of all rings are there before the first is answered.
        for queue in &mut client.queues {
            for slot in 0..64 {
                queue.add(slot, &Op::read(u64::from(slot), SECTOR));
            }
            queue.kick();
        }
        for queue in &mut client.queues {
            let mut left = 64;
            while left > 0 {
                left -= queue.wait().len();
            }
        }
        for queue in 0..4 {
            write_and_verify(&mut client, queue, 32, queue as u64 * 2 * MIB, 2 * MIB);
        }
    }
}

#[test]
fn buffered_file_is_served_in_batches() {
    let ground = Ground::new();
    for device in [
        ground.raw(2 * MIB, HostCache::Buffered),
        ground.qcow2(2 * MIB, HostCache::Buffered),
    ] {
        let (_server, _) = ground.serve(device);
        let ram = Ram::new(1);
        let mut client = Client::connect(&ground.socket(), &ram, Options::default());
        write_and_verify(&mut client, 0, 100, 0, 2 * MIB);
    }
}

#[test]
fn request_of_many_parts_longer_than_a_buffer_is_whole() {
    let ground = Ground::new();
    let (_server, _) = ground.serve(Arc::new(MemoryDevice::new(16 * MIB)));
    let ram = Ram::new(1);
    let mut client = Client::connect(&ground.socket(), &ram, Options::default());
    let queue = &mut client.queues[0];
    // 3 MiB and a bit in parts of odd lengths, over the memory of all slots.
    let lengths = [1_000_001, 7, 1 << 20, 2_000_000];
    let total: u32 = lengths.iter().sum();
    let lengths = lengths.into_iter().chain([512 - total % 512]);
    let mut data = vec![];
    let mut at = queue.data_address(0);
    for length in lengths {
        data.push((at, length));
        at += u64::from(length) + 3;
    }
    let total: usize = data.iter().map(|&(_, length)| length as usize).sum();
    let wanted = pattern(7, total);
    for (kind, flags) in [(kind::OUT, 1), (kind::IN, 1 | 2)] {
        let mut done = 0;
        for &(address, length) in &data {
            let bytes = match kind {
                kind::OUT => wanted[done..done + length as usize].to_vec(),
                _ => vec![0; length as usize],
            };
            queue.write_memory(address, &bytes);
            done += length as usize;
        }
        queue.set_header(0, kind, 8);
        let mut chain = vec![(queue.header_address(0), 16, 1, 1)];
        for (at, &(address, length)) in data.iter().enumerate() {
            chain.push((address, length, flags, at as u16 + 2));
        }
        chain.push((queue.status_address(0), 1, 2, 0));
        queue.add_chain(&chain);
        queue.kick();
        let done = queue.wait();
        assert_eq!(done[0].status, status::OK);
    }
    let mut read = Vec::new();
    for &(address, length) in &data {
        read.extend(queue.read_memory(address, length as usize));
    }
    assert!(read == wanted);
}

#[test]
fn discard_and_write_zeroes_keep_or_free_space_as_the_flag_says() {
    let ground = Ground::new();
    let device = ground.raw(4 * MIB, HostCache::Direct);
    let (_server, _) = ground.serve(device.clone());
    let ram = Ram::new(1);
    let mut client = Client::connect(&ground.socket(), &ram, Options::default());
    assert!(client.has(feature::DISCARD));
    write_and_verify(&mut client, 0, 16, 0, 4 * MIB);
    let queue = &mut client.queues[0];
    let mebibyte = 2048;
    for (at, kind, flags) in [
        (0, kind::DISCARD, 0),
        (1, kind::WRITE_ZEROES, 1),
        (2, kind::WRITE_ZEROES, 0),
    ] {
        let op = Op::range(kind, at * u64::from(mebibyte), mebibyte, flags);
        assert_eq!(queue.run(&op).status, status::OK);
    }
    let is_hole = |at: u64| {
        let mut is_hole = true;
        device
            .status(
                ByteRange::new(at * MIB, (at + 1) * MIB),
                &mut |_, status| {
                    is_hole &= status == RangeStatus::Hole;
                    std::ops::ControlFlow::Continue(())
                },
            )
            .unwrap();
        is_hole
    };
    assert!(is_hole(0) && is_hole(1) && !is_hole(2) && !is_hole(3));
    let done = queue.run(&Op::read(2 * u64::from(mebibyte), 4096));
    assert_eq!(done.input, [0; 4096]);
    let untouched = queue.run(&Op::read(3 * u64::from(mebibyte), SECTOR));
    assert!(untouched.input.iter().any(|&byte| byte != 0));
}

#[test]
fn preserved_space_is_not_discarded() {
    let ground = Ground::new();
    let device = ground.raw(MIB, HostCache::Direct);
    let volume = Volume::new("disk", device, Access::ReadWrite);
    let (_server, _) = ground.serve_volume(volume.with_discard_policy(DiscardPolicy::Ignore));
    let ram = Ram::new(1);
    let mut client = Client::connect(&ground.socket(), &ram, Options::default());
    assert!(!client.has(feature::DISCARD));
    let discard = client.queues[0].run(&Op::range(kind::DISCARD, 0, 8, 0));
    assert_eq!(discard.status, status::UNSUPP);
}

#[test]
fn serial_configuration_and_unknown_requests_are_answered() {
    let ground = Ground::new();
    let device = Arc::new(MemoryDevice::new(3 * MIB + 5 * 512));
    let volume = Volume::new("disk", device, Access::ReadWrite).with_serial("S1");
    let (_server, _) = ground.serve_volume(volume.with_queues(2));
    let ram = Ram::new(1);
    let mut client = Client::connect(&ground.socket(), &ram, Options::default());
    let config = client.config();
    assert_eq!(client.capacity_sectors(), 3 * 2048 + 5);
    assert_eq!(config[12..16], 126_u32.to_le_bytes(), "seg_max");
    assert_eq!(config[20..24], 512_u32.to_le_bytes(), "blk_size");
    assert_eq!(config[34..36], 2_u16.to_le_bytes(), "num_queues");
    assert_eq!(config[56], 1, "write_zeroes_may_unmap");
    let queue = &mut client.queues[0];
    let mut identify = Op::of_kind(kind::GET_ID);
    identify.input = 20;
    let mut wanted = b"S1".to_vec();
    wanted.resize(20, 0);
    assert_eq!(queue.run(&identify).input, wanted);
    for unknown in [2, 14, 99] {
        assert_eq!(queue.run(&Op::of_kind(unknown)).status, status::UNSUPP);
    }
}

#[test]
fn read_only_volume_refuses_changes() {
    let ground = Ground::new();
    let device = Arc::new(MemoryDevice::new(MIB));
    let (_server, _) = ground.serve_volume(Volume::new("disk", device, Access::ReadOnly));
    let ram = Ram::new(1);
    let mut client = Client::connect(&ground.socket(), &ram, Options::default());
    assert!(client.has(feature::RO));
    let queue = &mut client.queues[0];
    let write = queue.run(&Op::write(0, &[1; SECTOR]));
    assert_eq!(write.status, status::IOERR);
    let zeroes = queue.run(&Op::range(kind::WRITE_ZEROES, 0, 8, 0));
    assert_eq!(zeroes.status, status::UNSUPP);
    assert_eq!(queue.run(&Op::read(0, SECTOR)).input, [0; SECTOR]);
}

#[test]
fn driver_without_flush_has_durable_changes() {
    let ground = Ground::new();
    let device = Arc::new(Statistics::new(MemoryDevice::new(MIB)));
    let (_server, _) = ground.serve(device.clone());
    let ram = Ram::new(1);
    let options = Options {
        without: vec![feature::FLUSH],
        ..Options::default()
    };
    let mut client = Client::connect(&ground.socket(), &ram, options);
    let writes = vec![Op::write(0, &[1; SECTOR]); 10];
    client.queues[0].run_all(4, &writes, |_, done| assert_eq!(done.status, status::OK));
    let flushes = || device.snapshot().of(OperationKind::Flush).latency.count();
    assert_eq!(flushes(), 10);
    for (number, kind) in (11..).zip([kind::DISCARD, kind::WRITE_ZEROES]) {
        let done = client.queues[0].run(&Op::range(kind, 0, 8, 0));
        assert_eq!(done.status, status::OK);
        assert_eq!(flushes(), number);
    }
}

#[test]
fn socket_is_for_its_owner_alone_and_is_removed() {
    let ground = Ground::new();
    let (server, _) = ground.serve(Arc::new(MemoryDevice::new(MIB)));
    let mode = std::fs::metadata(ground.socket()).unwrap().permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    server.shutdown(GRACE).unwrap();
    assert!(!ground.socket().exists());
}

#[test]
fn full_device_fails_a_write_and_reports_it() {
    let ground = Ground::new();
    let options = MemoryOptions {
        capacity: Some(MIB),
        ..MemoryOptions::new(4 * MIB)
    };
    let device = Arc::new(MemoryDevice::with_options(options));
    let (_server, events) = ground.serve(device);
    let ram = Ram::new(1);
    let mut client = Client::connect(&ground.socket(), &ram, Options::default());
    let queue = &mut client.queues[0];
    let sectors = (SLOT_BYTES / SECTOR) as u64;
    let results: Vec<_> = (0..64)
        .map(|at| {
            queue
                .run(&Op::write(at * sectors, &vec![1; SLOT_BYTES]))
                .status
        })
        .collect();
    assert_eq!(results[0], status::OK);
    assert_eq!(results[63], status::IOERR);
    expect_event(&events, "Failed");
}
