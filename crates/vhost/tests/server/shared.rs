//! Data that moves from and to the guest's memory without a copy, and data that cannot.

use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use extant_blockdev::{
    Device, Geometry, HostCache, RangeStatus, Request, Transfer, TransferMemory, TransferStream,
};
use extant_space::{ByteRange, Result};
use extant_testkit::vhost_client::{
    Client, Op, Options, Queue, Ram, RawDescriptor, SLOT_BYTES, feature, flag, kind, status,
};
use parking_lot::{Condvar, Mutex};

use crate::{Ground, MIB, SECTOR, pattern};

/// Counts the transfers of streams by their memory, and holds them back until they are released.
struct Gate {
    inner: Arc<dyn Device>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_closed: bool,
    own: usize,
    shared: usize,
}

impl Gate {
    fn new(inner: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    fn set_closed(&self, is_closed: bool) {
        self.state.lock().is_closed = is_closed;
        self.changed.notify_all();
    }

    /// Waits for a transfer with shared memory since the last call.
    fn wait_for_shared(&self) {
        let mut state = self.state.lock();
        while state.shared == 0 {
            self.changed.wait(&mut state);
        }
        state.shared = 0;
    }

    /// Transfers with memory of their own, and with shared memory, since the last call.
    fn take_counts(&self) -> (usize, usize) {
        let mut state = self.state.lock();
        (
            std::mem::take(&mut state.own),
            std::mem::take(&mut state.shared),
        )
    }
}

impl Device for Gate {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        self.inner.submit(requests);
    }

    fn run_stream(&self, stream: &mut dyn TransferStream) -> bool {
        let gate = self;
        self.inner.run_stream(&mut Gated { gate, stream })
    }

    fn shared_memory_alignment(&self) -> Option<usize> {
        self.inner.shared_memory_alignment()
    }

    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()> {
        self.inner.status(range, visit)
    }
}

struct Gated<'s> {
    gate: &'s Gate,
    stream: &'s mut dyn TransferStream,
}

impl TransferStream for Gated<'_> {
    fn next(&mut self) -> Option<Transfer> {
        let transfer = self.stream.next()?;
        let mut state = self.gate.state.lock();
        match transfer.memory {
            TransferMemory::Own(_) => state.own += 1,
            TransferMemory::Shared(_) => state.shared += 1,
        }
        self.gate.changed.notify_all();
        while state.is_closed {
            self.gate.changed.wait(&mut state);
        }
        Some(transfer)
    }

    fn ended(&mut self, transfer: Transfer, result: Result<()>) {
        self.stream.ended(transfer, result);
    }

    fn input(&self) -> Option<BorrowedFd<'_>> {
        self.stream.input()
    }
}

/// Runs a read or write of `sector` whose data is in these parts of the guest's memory.
#[track_caller]
fn run(queue: &mut Queue, kind: u32, sector: u64, parts: &[(u64, usize)]) -> u8 {
    queue.set_header(0, kind, sector);
    let direction = if kind == kind::IN { flag::WRITE } else { 0 };
    let mut chain: Vec<RawDescriptor> = vec![(queue.header_address(0), 16, 0, 0)];
    chain.extend(
        parts
            .iter()
            .map(|&(address, bytes)| (address, bytes as u32, direction, 0)),
    );
    chain.push((queue.status_address(0), 1, flag::WRITE, 0));
    let last = chain.len() - 1;
    for (at, (_, _, flags, next)) in chain[..last].iter_mut().enumerate() {
        *flags |= flag::NEXT;
        *next = at as u16 + 1;
    }
    queue.add_chain(&chain);
    queue.kick();
    let done = queue.wait();
    assert_eq!(done.len(), 1);
    done[0].status
}

fn without_tables() -> Options {
    Options {
        without: vec![feature::INDIRECT],
        ..Options::default()
    }
}

#[test]
fn aligned_data_is_not_copied_and_unaligned_data_arrives_all_the_same() {
    let ground = Ground::new();
    for (name, device) in ground.devices(4 * MIB) {
        let is_direct = name != "memory";
        let gate = Gate::new(device);
        let (server, _) = ground.serve(gate.clone());
        let ram = Ram::new(1);
        let mut client = Client::connect(&ground.socket(), &ram, without_tables());
        let queue = &mut client.queues[0];
        let at = queue.data_address(0);
        for (number, (parts, is_aligned)) in [
            (vec![(at, 4096)], true),
            (vec![(at, SECTOR), (at + 8192, 3 * SECTOR)], true),
            (vec![(at + 1, 4096)], false),
            (vec![(at, 4096), (at + 4096 + 4, SECTOR)], false),
            (vec![(at, 300), (at + 512, 212)], false),
            (vec![(at, 4096), (at + 4096, 1), (at + 8192, 511)], false),
        ]
        .into_iter()
        .enumerate()
        {
            println!("{name}, {parts:?}");
            let sector = 64 * number as u64;
            let bytes = parts.iter().map(|part| part.1).sum();
            let data = pattern(number as u64, bytes);
            let mut rest = &data[..];
            for &(address, bytes) in &parts {
                let (now, later) = rest.split_at(bytes);
                queue.write_memory(address, now);
                rest = later;
            }
            let _ = gate.take_counts();
            assert_eq!(run(queue, kind::OUT, sector, &parts), status::OK);
            parts
                .iter()
                .for_each(|&(address, bytes)| queue.write_memory(address, &vec![0; bytes]));
            assert_eq!(run(queue, kind::IN, sector, &parts), status::OK);
            let read: Vec<_> = parts
                .iter()
                .flat_map(|&(address, bytes)| queue.read_memory(address, bytes))
                .collect();
            assert!(read == data);
            let expected = match (is_direct, is_aligned) {
                (false, _) => (0, 0),
                (true, true) => (0, 2),
                (true, false) => (2, 0),
            };
            assert_eq!(gate.take_counts(), expected, "own and shared memory");
        }
        drop(server);
    }
}

#[test]
fn data_over_two_regions_of_memory_is_not_copied() {
    let ground = Ground::new();
    let gate = Gate::new(ground.raw(4 * MIB, HostCache::Direct));
    let (_server, _) = ground.serve(gate.clone());
    let ram = Ram::new(1);
    // In the data of the slot.
    let second_region = Some(MIB + SLOT_BYTES as u64 / 2);
    let options = Options {
        second_region,
        ..Options::default()
    };
    let mut client = Client::connect(&ground.socket(), &ram, options);
    let queue = &mut client.queues[0];
    let data = pattern(3, SLOT_BYTES);
    assert_eq!(queue.run(&Op::write(7, &data)).status, status::OK);
    let read = queue.run(&Op::read(7, SLOT_BYTES));
    assert!(read.status == status::OK && read.input == data);
    assert_eq!(gate.take_counts(), (0, 2));
}

#[test]
fn region_removed_in_flight_stays_until_the_transfers_end() {
    let ground = Ground::new();
    let gate = Gate::new(ground.raw(4 * MIB, HostCache::Direct));
    let (_server, _) = ground.serve(gate.clone());
    let ram = Ram::new(1);
    let second_region = Some(MIB);
    for op in [Op::write(9, &pattern(1, 8192)), Op::read(9, 8192)] {
        let options = Options {
            second_region,
            ..Options::default()
        };
        let mut client = Client::connect(&ground.socket(), &ram, options);
        gate.set_closed(true);
        client.queues[0].add(0, &op);
        client.queues[0].kick();
        gate.wait_for_shared();
        client.remove_region();
        gate.set_closed(false);
        let queue = &mut client.queues[0];
        let done = queue.wait().remove(0);
        assert_eq!(done.status, status::OK);
        if op.kind == kind::IN {
            assert!(done.input == pattern(1, 8192));
        }
        // The next one finds no memory.
        assert_eq!(queue.run(&op).status, status::IOERR);
    }
}

#[test]
fn read_over_the_end_of_a_file_that_was_cut_fails_alone() {
    let ground = Ground::new();
    let gate = Gate::new(ground.raw(4 * MIB, HostCache::Direct));
    let (_server, _) = ground.serve(gate.clone());
    let ram = Ram::new(1);
    let mut client = Client::connect(&ground.socket(), &ram, Options::default());
    let queue = &mut client.queues[0];
    let data = pattern(4, SLOT_BYTES);
    assert_eq!(queue.run(&Op::write(0, &data)).status, status::OK);
    let file = std::fs::File::options()
        .write(true)
        .open(ground.path("raw"));
    file.unwrap().set_len(SLOT_BYTES as u64 / 2).unwrap();
    let half = SLOT_BYTES / 2;
    for (sector, bytes, wanted) in [
        (0, SLOT_BYTES, status::IOERR),
        (half / SECTOR, SECTOR, status::IOERR),
        (0, half, status::OK),
    ] {
        let done = queue.run(&Op::read(sector as u64, bytes));
        assert_eq!(done.status, wanted, "{bytes} bytes at sector {sector}");
        assert!(wanted != status::OK || done.input == data[..half]);
    }
    assert_eq!(gate.take_counts(), (0, 4));
}
