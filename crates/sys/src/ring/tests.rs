//! Rings on files and fifos: a read of an empty fifo remains in flight until the test writes to it.

use std::fs::OpenOptions;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use extant_space::ByteRange;
use extant_testkit::require;
use extant_testkit::requires::Requirement;
use rustix::fs::{CWD, FallocateFlags, FileType, Mode, mknodat};

use super::*;
use crate::aio::Aio;
use crate::call::Durability;
use crate::call_list::{BLOCK, Fed, List, direct_file, machine, read, shared, write};
use crate::queue::run_threads;

fn uring() -> Requirement {
    Requirement::new("io_uring in the kernel", Ring::new(1).is_ok())
}

fn fifo() -> File {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fifo");
    mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let mut options = OpenOptions::new();
    options.read(true).write(true).open(path).unwrap()
}

#[test]
fn calls_are_in_flight_together() {
    require!(uring());
    let fifo = fifo();
    let mut byte = [0];
    // The first ends only because of the second.
    let mut list = List::new(vec![read(&mut byte, 0), write(b"x", 0)]);
    Ring::new(2).unwrap().run(&fifo, &mut list).unwrap();
    assert!(list.results().iter().all(|result| matches!(result, Ok(1))));
    assert_eq!(&byte, b"x");
}

/// A read, and the write that it waits for, which the queue returns to the fourth request.
struct LateWrite<'a> {
    read: Option<Call<'a>>,
    asked: u32,
    ended: u32,
}

impl<'a> CallQueue<'a> for LateWrite<'a> {
    fn next(&mut self) -> Option<(usize, Call<'a>)> {
        self.asked += 1;
        match self.asked {
            1 => self.read.take().map(|call| (0, call)),
            4 => Some((1, write(b"x", 0))),
            _ => None,
        }
    }

    fn ended(&mut self, _: usize, _: Call<'a>, result: io::Result<usize>) {
        assert_eq!(result.unwrap(), 1);
        self.ended += 1;
    }

    fn recheck_interval(&self) -> Option<Duration> {
        Some(Duration::from_millis(1))
    }
}

#[test]
fn queue_is_asked_again_while_a_call_is_in_flight() {
    let has_timeouts = Ring::new(1).is_ok_and(|ring| ring.has_timeouts());
    require!(Requirement::new("io_uring of Linux 5.11", has_timeouts));
    let mut byte = [0];
    let mut queue = LateWrite {
        read: Some(read(&mut byte, 0)),
        asked: 0,
        ended: 0,
    };
    Ring::new(2).unwrap().run(&fifo(), &mut queue).unwrap();
    assert_eq!(queue.ended, 2);
}

#[test]
fn queue_with_an_input_is_run_until_neither_calls_nor_input_are_left() {
    require!(uring());
    let file = direct_file();
    let mut ring = Ring::new(16).ok();
    for _ in 0..2 {
        Fed::check(&file, 16, |fed| {
            ring = ring.take().unwrap().run(&file, fed);
        });
    }
}

#[test]
fn ring_is_filled_and_never_holds_more_than_its_depth() {
    require!(uring());
    let file = tempfile::tempfile().unwrap();
    let data: Vec<u8> = (0..100).collect();
    let calls = (0..100).map(|at| write(&data[at..at + 1], at as u64 * 2));
    let mut list = List::new(calls.collect());
    let ring = Ring::new(4).unwrap().run(&file, &mut list).unwrap();
    assert_eq!(list.most_in_flight, 4);
    assert_eq!(list.results().len(), 100);
    let mut bytes = [1; 199];
    let mut list = List::new(vec![read(&mut bytes, 0)]);
    ring.run(&file, &mut list).unwrap();
    drop(list);
    let expected = (0..199).map(|at| if at % 2 == 0 { at / 2 } else { 0 });
    assert!(expected.eq(bytes));
}

#[test]
fn call_that_fails_has_the_error_of_the_kernel() {
    require!(uring());
    let file = tempfile::tempfile().unwrap();
    let range = ByteRange::new(0, 4096);
    let calls = vec![
        Call::SyncData,
        Call::Discard(range),
        Call::Fallocate {
            mode: FallocateFlags::from_bits_retain(1 << 30),
            range,
        },
        Call::Fallocate {
            mode: FallocateFlags::empty(),
            range,
        },
    ];
    let mut list = List::new(calls);
    Ring::new(8).unwrap().run(&file, &mut list).unwrap();
    let results = list.results();
    assert!(results[0].is_ok() && results[1].is_err());
    let errno = results[2].as_ref().unwrap_err().raw_os_error();
    assert_eq!(errno, Some(libc::EOPNOTSUPP));
    assert!(results[3].is_ok());
    assert_eq!(file.metadata().unwrap().len(), 4096);
}

#[test]
fn panic_waits_for_the_calls_in_flight() {
    require!(uring());
    let fifo = fifo();
    let mut byte = [0];
    let mut list = List::new(vec![read(&mut byte, 0), Call::SyncData]);
    list.panic_at_end = true;
    let mut other_end = fifo.try_clone().unwrap();
    let late = thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        other_end.write_all(b"x").unwrap();
    });
    let ring = Ring::new(2).unwrap();
    let run = catch_unwind(AssertUnwindSafe(|| ring.run(&fifo, &mut list).is_some()));
    assert!(run.is_err());
    drop(list);
    assert_eq!(&byte, b"x", "the call was over when the panic came out");
    late.join().unwrap();
}

#[test]
fn calls_that_the_kernel_never_took_are_made_when_a_ring_is_abandoned() {
    require!(uring());
    let file = tempfile::tempfile().unwrap();
    let mut ring = Ring::new(4).unwrap();
    let mut flights = Flights::new(&mut ring, &file);
    flights.start(0, write(b"a", 0));
    flights.submit_and_wait(None).unwrap();
    flights.start(1, write(b"b", 1));
    flights.start(2, write(b"c", 2));
    assert_eq!(flights.in_kernel(), 1);
    let mut list = List::default();
    flights.abandon(&mut list);
    assert!(matches!(list.results()[..], [Ok(1), Ok(1), Ok(1)]));
    let mut bytes = [0; 3];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"abc");
}

/// Runs calls on a file, as one of the executors does.
type Run = fn(&File, &mut List<'_>);

#[test]
fn every_executor_writes_from_and_reads_into_shared_memory() {
    require!(uring());
    let executors: [(&str, Run); 4] = [
        ("plain", |file, list| run_plain(file, list)),
        ("threads", |file, list| run_threads(file, list, 4)),
        ("aio", |file, list| Aio::new(8).unwrap().run(file, list)),
        ("ring", |file, list| {
            assert!(Ring::new(8).unwrap().run(file, list).is_some());
        }),
    ];
    for (name, run) in executors {
        println!("{name}");
        let file = direct_file();
        let memory = machine();
        let of = |ranges: &[_]| shared(&memory, ranges).unwrap();
        let write = |offset, ranges: &[_]| Call::Write {
            offset,
            from: Memory::Shared(of(ranges)),
            durability: Durability::Durable,
        };
        let writes = vec![
            write(0, &[(16 * BLOCK, BLOCK)]),
            write(BLOCK as u64, &[(3 * BLOCK, 2 * BLOCK), (0, BLOCK)]),
        ];
        let mut list = List::new(writes);
        run(&file, &mut list);
        let results: Vec<_> = list.results().into_iter().map(Result::unwrap).collect();
        assert_eq!(results, [BLOCK, 3 * BLOCK]);
        let read = |offset, ranges: &[_]| Call::Read {
            offset,
            into: Memory::Shared(of(ranges)),
        };
        let reads = vec![
            read(BLOCK as u64, &[(5 * BLOCK, BLOCK)]),
            read(2 * BLOCK as u64, &[(7 * BLOCK, BLOCK), (17 * BLOCK, BLOCK)]),
            // The file ends inside of it.
            read(3 * BLOCK as u64, &[(18 * BLOCK, 2 * BLOCK)]),
        ];
        let mut list = List::new(reads);
        run(&file, &mut list);
        let results: Vec<_> = list.results().into_iter().map(Result::unwrap).collect();
        assert_eq!(results, [BLOCK, 2 * BLOCK, BLOCK]);
        for (block, byte) in [(5, 4), (7, 5), (17, 1), (18, 1)] {
            let mut found = [0; BLOCK];
            shared(&memory, &[(block * BLOCK, BLOCK)])
                .unwrap()
                .copy_to(&mut found);
            assert!(found == [byte; BLOCK], "{name}, block {block}");
        }
    }
}
