//! Contexts on files, with and without direct I/O.

use std::fs::OpenOptions;
use std::panic::{AssertUnwindSafe, catch_unwind};

use extant_testkit::require;
use extant_testkit::requires::Requirement;

use super::*;
use crate::call::{Durability, Memory};
use crate::call_list::{BLOCK, Fed, List, block, direct_file, read, write};

fn aio() -> Requirement {
    Requirement::new("Linux AIO in the kernel", Aio::new(1).is_ok())
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

#[test]
fn queue_with_an_input_is_run_until_neither_calls_nor_input_are_left() {
    require!(aio());
    let file = direct_file();
    let mut aio = Aio::new(16).unwrap();
    // Once more with a signal left over from the first time.
    for _ in 0..2 {
        Fed::check(&file, 16, |fed| aio.run(&file, fed));
    }
}
