//! A file of the host as a [`SpaceFile`].

use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;

use extant_space::{
    ByteRange, Error, ErrorKind, Extent, ExtentFlags, ExtentState, FallocateMode, HostIo,
    LayerRange, LayerVisitor, MapDetail, Result, SpaceFile, SyncMode, traced,
};
use extant_sys::stack::Stack;
use extant_sys::{extents, mounted};
use rustix::fs::SeekFrom;

use crate::detached;
use crate::file::HostFile;
use crate::filesystem::{FileSystem, FileSystemKind};

/// Longest time between two checks for a cancel during a sync.
const CANCEL_CHECK_INTERVAL: Duration = Duration::from_millis(20);

impl SpaceFile for HostFile {
    fn size(&self) -> Result<u64> {
        if self.is_disk() {
            // `stat` reports no size for a block device. No code uses the offset of the descriptor.
            return rustix::fs::seek(self.as_file(), SeekFrom::End(0))
                .map_err(|errno| self.error(errno).during("size"));
        }
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self
                .as_file()
                .read_at(&mut buffer[filled..], offset + filled as u64)
            {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let range = ByteRange::at(offset, buffer.len() as u64).unwrap_or_default();
                    return Err(self.error(error).during("read").in_range(range));
                }
            }
        }
        Ok(filled)
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()> {
        self.as_file()
            .write_all_at(buffer, offset)
            .map_err(|source| {
                let range = ByteRange::at(offset, buffer.len() as u64).unwrap_or_default();
                self.error(source).during("write").in_range(range)
            })
    }

    fn resize(&self, size_bytes: u64) -> Result<()> {
        self.as_file()
            .set_len(size_bytes)
            .map_err(|source| self.error(source).during("resize"))
    }

    fn fallocate(&self, mode: FallocateMode, range: ByteRange) -> Result<()> {
        let bits =
            mounted::fallocate_bits(mode).ok_or_else(|| Error::new(ErrorKind::Unsupported))?;
        traced!(
            DEBUG,
            "fallocate",
            (
                path = %self.path().display(),
                mode = mode.name(),
                start_bytes = range.start(),
                length_bytes = range.len()
            ),
            self.fallocate_bits(bits, range)
        )
        .map_err(|source| self.error(source).during(mode.name()).in_range(range))
    }

    fn for_each_extent(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        if self.is_disk() {
            // There is nothing that it would have to allocate.
            if let Some(logical) = range.intersection(ByteRange::new(0, self.size()?)) {
                let _ = visit(Extent {
                    logical,
                    physical: None,
                    state: ExtentState::Written,
                    flags: ExtentFlags::empty(),
                });
            }
            return Ok(());
        }
        extents::for_each(self.as_file(), self.map_source(), range, visit)
            .map_err(|source| self.error(source).during("map").in_range(range))
    }

    fn visit_layers(
        &self,
        at: LayerRange,
        visit: &mut LayerVisitor<'_>,
    ) -> Result<ControlFlow<()>> {
        let fail = |source| self.error(source).during("map").in_range(at.range);
        let stack = Stack::below(self.as_file()).map_err(fail)?;
        if stack.files().is_empty() {
            return Ok(ControlFlow::Continue(()));
        }
        let mut places = Vec::new();
        self.for_each_extent(at.range, &mut |extent| {
            places.extend(extent.clip(at.range).and_then(|extent| at.below(&extent)));
            ControlFlow::Continue(())
        })?;
        for place in places {
            let place = LayerRange {
                depth: at.depth,
                ..place
            };
            if stack.visit(place, visit).map_err(fail)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn sync(&self, mode: SyncMode) -> Result<()> {
        let sync = || match mode {
            SyncMode::Data => self.as_file().sync_data(),
            SyncMode::All => self.as_file().sync_all(),
        };
        traced!(DEBUG, "sync", (path = %self.path().display()), sync())
            .map_err(|source| self.error(source).during("sync"))
    }

    fn allocated_bytes(&self) -> Result<u64> {
        Ok(self.metadata()?.blocks() * 512)
    }

    fn sync_checked(&self, check: &dyn Fn() -> Result<()>) -> Result<()> {
        check()?;
        let fail = |source| self.error(source).during("sync");
        let sync = || {
            let mut sync = detached::Sync::start(self.as_file()).map_err(fail)?;
            loop {
                if let Some(result) = sync.wait(CANCEL_CHECK_INTERVAL) {
                    return result.map_err(fail);
                }
                check()?;
            }
        };
        traced!(DEBUG, "sync", (path = %self.path().display()), sync())
    }

    fn map_detail(&self) -> Result<MapDetail> {
        Ok(if self.map_source().distinguishes_unwritten() {
            MapDetail::States
        } else if FileSystem::of(self.as_file())?.kind == FileSystemKind::Memory {
            MapDetail::Pages
        } else {
            MapDetail::HolesAndData
        })
    }

    fn available_bytes(&self) -> Result<Option<u64>> {
        let filesystem = FileSystem::of(self.as_file()).map_err(|error| error.at(self.path()))?;
        // A file system that does not count (some FUSE) shows a size of 0.
        Ok((filesystem.total_bytes > 0).then_some(filesystem.available_bytes))
    }

    fn check_written_stays(&self) -> Result<()> {
        FileSystem::under(self)?.check_written_stays(self)
    }

    fn host_io(&self) -> Option<HostIo<'_>> {
        let filesystem = FileSystem::of(self.as_file()).ok();
        Some(HostIo {
            file: self.as_file(),
            block_bytes: filesystem.as_ref().map_or(0, |found| found.block_bytes),
            device: filesystem.and_then(|found| found.device),
        })
    }
}
