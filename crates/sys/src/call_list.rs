//! A queue of calls for tests of the queue runners.

use std::io::{self, IoSlice, IoSliceMut};

use crate::call::{Call, Durability, Memory};
use crate::queue::CallQueue;

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
