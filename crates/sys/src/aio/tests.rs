//! Contexts on files, with and without direct I/O.

use std::fs::OpenOptions;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use extant_testkit::require;
use extant_testkit::requires::Requirement;

use super::*;
use crate::buffer::AlignedBuffer;
use crate::call::{Durability, Memory};
use crate::call_list::{List, read, write};
use crate::direct;

const BLOCK: usize = 4096;

fn aio() -> Requirement {
    Requirement::new("Linux AIO in the kernel", Aio::new(1).is_ok())
}

/// Without a name, and with direct I/O where its file system has that.
fn direct_file() -> File {
    let file = tempfile::tempfile_in("/var/tmp").unwrap();
    let _ = direct::set(&file, true);
    file
}

/// A block filled with `byte`.
fn block(byte: u8) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::new(BLOCK).unwrap();
    buffer.as_mut_slice().fill(byte);
    buffer
}

#[test]
fn context_is_filled_again_until_all_calls_are_made() {
    require!(aio());
    let file = direct_file();
    let blocks: Vec<_> = (1..=100).map(block).collect();
    let calls = blocks.iter().enumerate();
    let calls = calls.map(|(at, block)| write(block.as_slice(), (at * BLOCK) as u64 * 2));
    let mut list = List::new(calls.collect());
    let mut aio = Aio::new(4).unwrap();
    aio.run(&file, &mut list);
    assert!(list.most_in_flight <= 4);
    let results = list.results();
    assert_eq!(results.len(), 100);
    assert!(results.iter().all(|result| matches!(result, Ok(BLOCK))));

    let mut found: Vec<_> = (0..199).map(|_| block(255)).collect();
    let calls = found.iter_mut().enumerate();
    let calls = calls.map(|(at, block)| read(block.as_mut_slice(), (at * BLOCK) as u64));
    let mut list = List::new(calls.collect());
    aio.run(&file, &mut list);
    drop(list);
    for (at, block) in found.iter().enumerate() {
        let expected = if at % 2 == 0 { at / 2 + 1 } else { 0 };
        assert!(
            block
                .as_slice()
                .iter()
                .all(|&byte| usize::from(byte) == expected),
            "{at}"
        );
    }
}

#[test]
fn buffers_of_calls_and_durable_writes_are_taken_as_well() {
    require!(aio());
    let file = direct_file();
    let calls = vec![Call::Write {
        offset: 0,
        from: Memory::Buffer(block(7), 0..BLOCK),
        durability: Durability::Durable,
    }];
    let mut list = List::new(calls);
    let mut aio = Aio::new(1).unwrap();
    aio.run(&file, &mut list);
    assert!(matches!(list.results()[..], [Ok(BLOCK)]));
    let mut call = Call::Read {
        offset: 0,
        into: Memory::Buffer(block(0), 0..BLOCK),
    };
    assert_eq!(call.execute(&file).unwrap(), BLOCK);
    assert_eq!(call.into_buffer().unwrap().as_slice()[BLOCK - 1], 7);
}

#[test]
fn call_that_the_kernel_refuses_has_its_error_and_the_others_are_made() {
    require!(aio());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, [1; BLOCK]).unwrap();
    // It may not be written to: that is seen when the call is submitted.
    let file = OpenOptions::new().read(true).open(&path).unwrap();
    let (mut before, mut after) = ([0; 4], [0; 4]);
    let calls = vec![
        read(&mut before, 0),
        write(b"x", 0),
        Call::SyncData,
        read(&mut after, 4),
    ];
    let mut list = List::new(calls);
    Aio::new(8).unwrap().run(&file, &mut list);
    let results = list.results();
    assert!(matches!(results[0], Ok(4)) && matches!(results[3], Ok(4)));
    assert!(results[2].is_ok());
    let errno = results[1].as_ref().unwrap_err().raw_os_error();
    assert_eq!(errno, Some(libc::EBADF));
    assert_eq!((before, after), ([1; 4], [1; 4]));
}

#[test]
fn context_can_be_used_again_after_a_panic() {
    require!(aio());
    let file = direct_file();
    let data = block(3);
    let mut aio = Aio::new(8).unwrap();
    let calls = (0..8).map(|at| write(data.as_slice(), at * BLOCK as u64));
    let mut list = List::new(calls.collect());
    list.panic_at_end = true;
    let run = catch_unwind(AssertUnwindSafe(|| aio.run(&file, &mut list)));
    assert!(run.is_err());
    drop(list);
    // The requests in flight at the panic have completed: the file has their size.
    assert_eq!(file.metadata().unwrap().len(), 8 * BLOCK as u64);
    let mut list = List::new(vec![write(data.as_slice(), 0)]);
    aio.run(&file, &mut list);
    assert!(matches!(list.results()[..], [Ok(BLOCK)]));
}

/// Writes of blocks whose numbers arrive through a pipe; the end of each adds two more.
struct Fed {
    from: PipeReader,
    to: PipeWriter,
    fed: u8,
    in_flight: usize,
    most_in_flight: usize,
    written: Vec<usize>,
}

impl Fed {
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

#[test]
fn queue_with_an_input_is_run_until_neither_calls_nor_input_are_left() {
    require!(aio());
    let file = direct_file();
    let mut aio = Aio::new(16).unwrap();
    // Once more with a signal left over from the first time.
    for _ in 0..2 {
        let mut fed = Fed::new();
        aio.run(&file, &mut fed);
        fed.written.sort_unstable();
        assert_eq!(fed.written, (1..=100).collect::<Vec<_>>());
        assert!(fed.most_in_flight <= 16);
        let mut found = block(0);
        for number in 1..=100 {
            let call = read(found.as_mut_slice(), (number - 1) * BLOCK as u64);
            let mut list = List::new(vec![call]);
            aio.run(&file, &mut list);
            assert!(matches!(list.results()[..], [Ok(BLOCK)]));
            assert!(
                found
                    .as_slice()
                    .iter()
                    .all(|byte| u64::from(*byte) == number)
            );
        }
    }
}
