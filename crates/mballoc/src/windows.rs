//! The windows of one owner.
//!
//! There is one for each position at which the file grows; the one used last is at the end of the
//! list. A request inside a window splits it, so that blocks written in random order are laid out
//! in file order.

use smallvec::SmallVec;

use crate::request::{Alignment, Goal, RequestFlags};
use crate::{Block, BlockRange, Request};

/// Windows of one owner; the oldest is freed when one more is added.
const WINDOWS_MAX: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct Windows {
    windows: SmallVec<[BlockRange; 2]>,
}

impl Windows {
    pub(crate) fn iter(&self) -> impl Iterator<Item = BlockRange> {
        self.windows.iter().copied()
    }

    /// Serves a request from a window that has all the wanted blocks.
    pub(crate) fn take(&mut self, request: &Request) -> Option<BlockRange> {
        let (at, start) = self.find(request)?;
        let end = self.windows[at].end();
        if end.0 - start.0 < request.wanted.into() {
            return None;
        }
        self.take_from(at, start, request)
    }

    /// Serves a request from a window, with fewer blocks than wanted if it has fewer.
    pub(crate) fn take_up_to(&mut self, request: &Request) -> Option<BlockRange> {
        let (at, start) = self.find(request)?;
        self.take_from(at, start, request)
    }

    /// The part of a window from `block` to its end.
    pub(crate) fn ending_run(&self, block: Block) -> Option<BlockRange> {
        let window = self.iter().find(|window| window.contains(block))?;
        window.split_at(block).1
    }

    /// Adds a window; returns the oldest ones beyond the maximum. There can be several, because
    /// requests inside windows split them.
    pub(crate) fn add(&mut self, window: BlockRange) -> SmallVec<[BlockRange; 2]> {
        let over = (self.windows.len() + 1).saturating_sub(WINDOWS_MAX);
        let old = self.windows.drain(..over).collect();
        self.windows.push(window);
        old
    }

    /// Extends the window that ends with `rest` by the adjacent run `more`.
    pub(crate) fn extend(&mut self, rest: BlockRange, more: BlockRange) {
        debug_assert_eq!(rest.end(), more.start());
        let mut windows = self.windows.iter_mut();
        let window = windows.find(|window| window.end() == rest.end());
        let window = window.expect("the window that was to be extended");
        *window = window.joined(more);
    }

    /// The window adjacent to freed blocks, and both joined; `None` when that is longer than
    /// `largest`.
    pub(crate) fn beside(&self, range: BlockRange, largest: u32) -> Option<(usize, BlockRange)> {
        let beside =
            |window: BlockRange| window.start() == range.end() || window.end() == range.start();
        let at = self.iter().position(beside)?;
        let window = self.windows[at];
        if u64::from(window.count()) + u64::from(range.count()) > largest.into() {
            return None;
        }
        let joined = if window.start() == range.end() {
            range.joined(window)
        } else {
            window.joined(range)
        };
        Some((at, joined))
    }

    /// Replaces a window.
    pub(crate) fn replace(&mut self, at: usize, window: BlockRange) {
        self.windows[at] = window;
    }

    pub(crate) fn take_all(&mut self) -> SmallVec<[BlockRange; 2]> {
        std::mem::take(&mut self.windows)
    }

    /// The window and block from which a request is served.
    fn find(&self, request: &Request) -> Option<(usize, Block)> {
        if !may_serve(request) {
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

/// Whether a request may be served from windows.
pub(crate) fn may_serve(request: &Request) -> bool {
    request.minimum > 0
        && request.alignment == Alignment::Any
        && !request.flags.contains(RequestFlags::METADATA)
}
