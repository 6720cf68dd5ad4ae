//! Queues of calls for tests of the queue runners: a list, and one with an input.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::buffer::AlignedBuffer;
use crate::call::{Call, Durability, Memory};
use crate::direct;
use crate::queue::CallQueue;
use crate::shared::SharedMemory;

pub const BLOCK: usize = 4096;

/// Address of the first byte of a machine's memory.
pub const MACHINE_BASE: u64 = 0x10000;

/// Memory of a machine, each block filled with its number and one: two regions of four blocks that
/// touch, and one apart.
pub fn machine() -> Arc<GuestMemoryMmap> {
    let region = |at: u64| (GuestAddress(MACHINE_BASE + at * BLOCK as u64), 4 * BLOCK);
    let memory = GuestMemoryMmap::from_ranges(&[region(0), region(4), region(16)]).unwrap();
    for at in (0..8).chain(16..20) {
        let address = GuestAddress(MACHINE_BASE + at * BLOCK as u64);
        memory.write_slice(&[at as u8 + 1; BLOCK], address).unwrap();
    }
    Arc::new(memory)
}

/// Parts of a machine's memory, each by its start and length.
pub fn shared(memory: &Arc<GuestMemoryMmap>, ranges: &[(usize, usize)]) -> Option<SharedMemory> {
    let ranges = ranges
        .iter()
        .map(|&(at, bytes)| (GuestAddress(MACHINE_BASE + at as u64), bytes));
    SharedMemory::new(memory.clone(), ranges)
}

/// Without a name, and with direct I/O where its file system has that.
pub fn direct_file() -> File {
    let file = tempfile::tempfile_in("/var/tmp").unwrap();
    let _ = direct::set(&file, true);
    file
}

/// A block filled with `byte`.
pub fn block(byte: u8) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::new(BLOCK).unwrap();
    buffer.as_mut_slice().fill(byte);
    buffer
}

pub fn read(into: &mut [u8], offset: u64) -> Call<'_> {
    let parts = [IoSliceMut::new(into)].into_iter().collect();
    Call::Read {
        offset,
        into: Memory::Parts(parts),
    }
}

pub fn write(from: &[u8], offset: u64) -> Call<'_> {
    let parts = [IoSlice::new(from)].into_iter().collect();
    Call::Write {
        offset,
        from: Memory::Parts(parts),
        durability: Durability::Cached,
    }
}

/// A list of calls, and their results in the order in which they ended.
#[derive(Default)]
pub struct List<'a> {
    calls: Vec<Call<'a>>,
    started: usize,
    pub most_in_flight: usize,
    ended: Vec<(usize, io::Result<usize>)>,
    pub panic_at_end: bool,
}

impl<'a> List<'a> {
    /// The calls are made from the last to the first.
    pub fn new(mut calls: Vec<Call<'a>>) -> Self {
        calls.reverse();
        Self {
            calls,
            ..Self::default()
        }
    }

    pub fn results(mut self) -> Vec<io::Result<usize>> {
        self.ended.sort_by_key(|(tag, _)| *tag);
        self.ended.into_iter().map(|(_, result)| result).collect()
    }
}

impl<'a> CallQueue<'a> for List<'a> {
    fn next(&mut self) -> Option<(usize, Call<'a>)> {
        let call = self.calls.pop()?;
        self.started += 1;
        self.most_in_flight = self.most_in_flight.max(self.started - self.ended.len());
        Some((self.started - 1, call))
    }

    fn ended(&mut self, tag: usize, _call: Call<'a>, result: io::Result<usize>) {
        self.ended.push((tag, result));
        assert!(!self.panic_at_end, "as the test wants it");
    }
}

/// Writes of blocks whose numbers arrive through a pipe; the end of each adds two more.
pub struct Fed {
    from: PipeReader,
    to: PipeWriter,
    fed: u8,
    in_flight: usize,
    most_in_flight: usize,
    written: Vec<usize>,
}

impl Fed {
    /// Runs 100 writes, and checks that all were made, and never more than `depth` at a time.
    pub fn check(file: &File, depth: usize, run: impl FnOnce(&mut Self)) {
        let mut fed = Self::new();
        run(&mut fed);
        fed.written.sort_unstable();
        assert_eq!(fed.written, (1..=100).collect::<Vec<_>>());
        assert!((2..=depth).contains(&fed.most_in_flight));
        let mut found = block(0);
        for number in 1..=100 {
            let mut call = read(found.as_mut_slice(), (number - 1) * BLOCK as u64);
            assert_eq!(call.execute(file).unwrap(), BLOCK);
            drop(call);
            let bytes = found.as_slice();
            assert!(bytes.iter().all(|byte| u64::from(*byte) == number));
        }
    }

    fn new() -> Self {
        let (from, to) = std::io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&from, true).unwrap();
        let mut fed = Self {
            from,
            to,
            fed: 0,
            in_flight: 0,
            most_in_flight: 0,
            written: Vec::new(),
        };
        fed.feed(1);
        fed
    }

    fn feed(&mut self, bytes: u8) {
        for _ in 0..bytes.min(100 - self.fed) {
            self.fed += 1;
            self.to.write_all(&[self.fed]).unwrap();
        }
    }
}

impl CallQueue<'static> for Fed {
    fn next(&mut self) -> Option<(usize, Call<'static>)> {
        let mut number = [0];
        self.from.read_exact(&mut number).ok()?;
        let [number] = number;
        self.in_flight += 1;
        self.most_in_flight = self.most_in_flight.max(self.in_flight);
        let call = Call::Write {
            offset: u64::from(number - 1) * BLOCK as u64,
            from: Memory::Buffer(block(number), 0..BLOCK),
            durability: Durability::Cached,
        };
        Some((number.into(), call))
    }

    fn ended(&mut self, tag: usize, _call: Call<'static>, result: io::Result<usize>) {
        assert_eq!(result.unwrap(), BLOCK);
        self.in_flight -= 1;
        self.written.push(tag);
        self.feed(2);
    }

    fn input(&self) -> Option<BorrowedFd<'_>> {
        Some(self.from.as_fd())
    }
}
