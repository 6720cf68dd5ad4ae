//! The space of files: `fallocate`, data and holes.
//!
//! Unwritten extents count as holes. Data that the kernel has not written back yet is unknown here,
//! and a copy must not skip it as a hole: so the kernel is made to write it back before the reply.

use std::ops::ControlFlow;

use extant_space::{ByteRange, Extent, ExtentState, FallocateMode, SpaceFile};
use rustix::io::Errno;

use super::Volume;
use super::handles::FileHandle;
use super::nodes::NodeEntry;
use crate::ioctl;
use extant_fuse::operations::{Caller, Fallocate, NodeId, Request, Result, Seek};

impl Volume {
    pub(super) fn change_space(
        &self,
        request: &Request<'_>,
        node: NodeId,
        fallocate: &Fallocate,
    ) -> Result<()> {
        let known = self.nodes.get(node)?;
        let mode = ioctl::fallocate_mode(fallocate.mode.bits()).ok_or(Errno::OPNOTSUPP)?;
        let range = range_of(fallocate.offset, fallocate.length)?;
        // The kernel has written back the range, but the file may be longer than is known here.
        if mode == FallocateMode::PunchHole && known.may_be_dirty() {
            self.flush_cache(node, 0, None)?;
        }
        self.fallocate_range(request.caller, &known, mode, range)?;
        self.sync_changed(known.node(), FileHandle::parse(fallocate.handle).sync())
    }

    pub(super) fn fallocate_range(
        &self,
        caller: Caller,
        known: &NodeEntry,
        mode: FallocateMode,
        range: ByteRange,
    ) -> Result<()> {
        let file = known.file()?;
        self.before_change_by(known, caller)?;
        if mode == FallocateMode::PunchHole {
            return self.punch(known, range);
        }
        self.reply_errno(file.fallocate(mode, range))
    }

    /// As in the kernel's ext4, space allocated after the end of a file remains; a truncation frees
    /// it.
    fn punch(&self, known: &NodeEntry, range: ByteRange) -> Result<()> {
        let file = known.file()?;
        let size = self.reply_errno(file.size())?;
        let block = u64::from(self.filesystem.block_bytes());
        let inside = ByteRange::new(0, size.next_multiple_of(block));
        match range.intersection(inside) {
            Some(range) => self.reply_errno(file.fallocate(FallocateMode::PunchHole, range)),
            None => Ok(()),
        }
    }

    pub(super) fn seek_from(&self, node: NodeId, offset: u64, what: Seek) -> Result<u64> {
        let known = self.nodes.get(node)?;
        let file = known.file()?;
        if known.may_be_dirty() {
            self.flush_cache(node, 0, None)?;
        }
        let size = self.reply_errno(file.size())?;
        if offset >= size {
            return Err(Errno::NXIO);
        }
        let mut found = None;
        let mut visit = |extent: Extent| {
            let is_data = extent.state == ExtentState::Written;
            if is_data == (what == Seek::Data) {
                found = Some(extent.logical.start());
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let range = ByteRange::new(offset, size);
        self.reply_errno(file.for_each_extent(range, &mut visit))?;
        match (found, what) {
            (Some(at), _) => Ok(at),
            (None, Seek::Hole) => Ok(size),
            (None, Seek::Data) => Err(Errno::NXIO),
        }
    }
}

/// An untrusted range.
pub(super) fn range_of(offset: u64, length: u64) -> Result<ByteRange> {
    if length == 0 || offset > i64::MAX as u64 || length > i64::MAX as u64 {
        return Err(Errno::INVAL);
    }
    ByteRange::at(offset, length).ok_or(Errno::FBIG)
}
