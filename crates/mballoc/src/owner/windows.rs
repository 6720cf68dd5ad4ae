//! The windows of one owner.
//!
//! One for each place where the file grows, the one used last at the end. Requests that fall inside a window
//! split it, so that blocks written in any order lie in the order of the file.

use smallvec::SmallVec;

use crate::request::{Alignment, Goal, RequestFlags};
use crate::{Block, BlockRange, Request};

/// More places at a time are not followed: the oldest window is given back.
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

    /// Adds a window; returns one that has to make room.
    pub(super) fn add(&mut self, window: BlockRange) -> Option<BlockRange> {
        let old = (self.windows.len() == WINDOWS_MAX).then(|| self.windows.remove(0));
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

    /// Joins freed blocks to the window beside them, unless it would be longer than `largest`.
    pub(super) fn absorb(&mut self, range: BlockRange, largest: u32) -> bool {
        let beside = self
            .windows
            .iter_mut()
            .find(|window| window.start() == range.end() || window.end() == range.start());
        match beside {
            Some(window)
                if u64::from(window.count()) + u64::from(range.count()) <= largest.into() =>
            {
                *window = if window.start() == range.end() {
                    range.joined(*window)
                } else {
                    window.joined(range)
                };
                true
            }
            _ => false,
        }
    }

    pub(super) fn take_all(&mut self) -> SmallVec<[BlockRange; 2]> {
        std::mem::take(&mut self.windows)
    }

    /// The window and block where a request is to be answered.
    fn find(&self, request: &Request) -> Option<(usize, Block)> {
        if request.alignment != Alignment::Any || request.flags.contains(RequestFlags::METADATA) {
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
