//! The windows of one owner.
//!
//! One for each place where the file grows, the most recently used one at the end. Requests inside
//! a window split it, so that blocks written in any order are in file order.

use smallvec::SmallVec;

use crate::request::{Alignment, Goal, RequestFlags};
use crate::{Block, BlockRange, Request};

/// More places at a time are not tracked: the oldest window is released.
const WINDOWS_MAX: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Windows {
    windows: SmallVec<[BlockRange; 2]>,
}

impl Windows {
    pub(super) fn iter(&self) -> impl Iterator<Item = BlockRange> {
        self.windows.iter().copied()
    }

    /// Answers a request from a window, when it has all that is wanted.
    pub(super) fn take(&mut self, request: &Request) -> Option<BlockRange> {
        let (at, start) = self.find(request)?;
        let end = self.windows[at].end();
        if end.0 - start.0 < request.wanted.into() {
            return None;
        }
        self.take_from(at, start, request)
    }

    /// Answers a request from a window, with less than wanted when that is all there is.
    pub(super) fn take_up_to(&mut self, request: &Request) -> Option<BlockRange> {
        let (at, start) = self.find(request)?;
        self.take_from(at, start, request)
    }

    /// The part of a window from `block` to its end.
    pub(super) fn ending_run(&self, block: Block) -> Option<BlockRange> {
        let window = self.iter().find(|window| window.contains(block))?;
        window.split_at(block).1
    }

    /// Adds a window; returns those that have to make room. Several, when requests inside windows
    /// split them.
    pub(super) fn add(&mut self, window: BlockRange) -> SmallVec<[BlockRange; 2]> {
        let over = (self.windows.len() + 1).saturating_sub(WINDOWS_MAX);
        let old = self.windows.drain(..over).collect();
        self.windows.push(window);
        old
    }

    /// Makes the window that ends with `rest` longer by `more`, which follows it.
    pub(super) fn extend(&mut self, rest: BlockRange, more: BlockRange) {
        debug_assert_eq!(rest.end(), more.start());
        let mut windows = self.windows.iter_mut();
        let window = windows.find(|window| window.end() == rest.end());
        let window = window.expect("the window that was to be extended");
        *window = window.joined(more);
    }

    /// The window beside freed blocks, and the two joined; `None` where that is longer than
    /// `largest`.
    pub(super) fn beside(&self, range: BlockRange, largest: u32) -> Option<(usize, BlockRange)> {
        let beside =
            |window: BlockRange| window.start() == range.end() || window.end() == range.start();
        let at = self.iter().position(beside)?;
        let window = self.windows[at];
        if u64::from(window.count()) + u64::from(range.count()) > largest.into() {
            return None;
        }
        let joined = match window.start() == range.end() {
            true => range.joined(window),
            false => window.joined(range),
        };
        Some((at, joined))
    }

    /// Puts another window in the place of one.
    pub(super) fn replace(&mut self, at: usize, window: BlockRange) {
        self.windows[at] = window;
    }

    pub(super) fn take_all(&mut self) -> SmallVec<[BlockRange; 2]> {
        std::mem::take(&mut self.windows)
    }

    /// The window and block where a request is to be answered.
    fn find(&self, request: &Request) -> Option<(usize, Block)> {
        if !may_answer(request) {
            return None;
        }
        match request.goal {
            Goal::Follow(block) | Goal::Near(block) => {
                let at = self
                    .windows
                    .iter()
                    .rposition(|window| window.contains(block))?;
                Some((at, block))
            }
            Goal::Anywhere => {
                let at = self.windows.len().checked_sub(1)?;
                Some((at, self.windows[at].start()))
            }
        }
    }

    fn take_from(&mut self, at: usize, start: Block, request: &Request) -> Option<BlockRange> {
        let window = self.windows[at];
        let mut end = Block(window.end().0.min(start.0 + u64::from(request.wanted)));
        if let Some(limit) = request.limit {
            end = end.min(limit);
        }
        let taken = BlockRange::between(start, end.max(start))?;
        if taken.count() < request.minimum {
            return None;
        }
        let (before, _) = window.split_at(start);
        let (_, after) = window.split_at(end);
        match (before, after) {
            (None, None) => {
                self.windows.remove(at);
            }
            (Some(one), None) | (None, Some(one)) => self.windows[at] = one,
            (Some(before), Some(after)) => {
                self.windows[at] = before;
                self.windows.insert(at + 1, after);
            }
        }
        Some(taken)
    }
}

/// Whether a request may be answered from windows.
pub(super) fn may_answer(request: &Request) -> bool {
    request.minimum > 0
        && request.alignment == Alignment::Any
        && !request.flags.contains(RequestFlags::METADATA)
}
