//! A file that is open, as the project's layers above see files.

use std::fmt;
use std::ops::ControlFlow;

use extant_ondisk::ext4::inode::FileType;
use extant_space::{
    ByteRange, Error, ErrorKind, Extent, FallocateMode, LayerRange, LayerVisitor, Result,
    SpaceFile, SyncMode, traced,
};

use super::Node;
use crate::file::{WriteTimes, Written};
use crate::options::DeviceZeroes;
use crate::sync::read;

/// The data of a regular file.
pub struct File {
    node: Node,
}

impl Node {
    /// The data of a regular file.
    ///
    /// # Errors
    /// `WrongType` when it is none, `IsDirectory` for a directory.
    pub fn file(&self) -> Result<File> {
        match self.file_type() {
            FileType::Regular => Ok(File { node: self.clone() }),
            FileType::Directory => Err(Error::new(ErrorKind::IsDirectory)),
            _ => Err(Error::new(ErrorKind::WrongType)),
        }
    }
}

impl File {
    /// The inode.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// As [`write_at`](SpaceFile::write_at), where the caller knows the times; after an error it is
    /// known how much was written.
    pub fn write_counted(&self, buffer: &[u8], offset: u64, times: WriteTimes) -> Written {
        let engine = &self.node.engine;
        let written = engine.write_file(&self.node.cell, buffer, offset, times);
        Written {
            bytes: written.bytes,
            result: engine.record_corruption(written.result),
        }
    }
}

impl SpaceFile for File {
    fn size(&self) -> Result<u64> {
        let state = read(&self.node.cell.state);
        Ok(state.inode.size_bytes(&self.node.engine.fs.layout))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let engine = &self.node.engine;
        engine.record_corruption(engine.fs.read_file(&self.node.cell, buffer, offset))
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()> {
        self.write_counted(buffer, offset, WriteTimes::Present)
            .result
    }

    fn resize(&self, size_bytes: u64) -> Result<()> {
        let engine = &self.node.engine;
        traced!(
            DEBUG,
            "resize",
            (inode = self.node.cell.number.0, size_bytes),
            engine.record_corruption(engine.resize(&self.node.cell, size_bytes))
        )
    }

    fn fallocate(&self, mode: FallocateMode, range: ByteRange) -> Result<()> {
        let engine = &self.node.engine;
        engine
            .record_corruption(engine.with_space(|| engine.fallocate(&self.node.cell, mode, range)))
            .map_err(|error| error.during(mode.name()).in_range(range))
    }

    fn for_each_extent(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        let engine = &self.node.engine;
        engine.record_corruption(engine.fs.for_each_extent(&self.node.cell, range, visit))
    }

    fn visit_layers(
        &self,
        at: LayerRange,
        visit: &mut LayerVisitor<'_>,
    ) -> Result<ControlFlow<()>> {
        let engine = &self.node.engine;
        engine.record_corruption(engine.fs.visit_layers(&self.node.cell, at, visit))
    }

    fn open_store(&self) -> Result<Option<std::fs::File>> {
        self.node.engine.fs.device.open_store()
    }

    fn writes_through(&self) -> bool {
        self.node.engine.fs.options.zeroes == DeviceZeroes::Written
    }

    fn write_through(&self, range: ByteRange) -> Result<u64> {
        let engine = &self.node.engine;
        traced!(
            DEBUG,
            "write through",
            (
                inode = self.node.cell.number.0,
                start_bytes = range.start(),
                length_bytes = range.len()
            ),
            engine.record_corruption(engine.write_through(&self.node.cell, range))
        )
    }

    fn sync(&self, mode: SyncMode) -> Result<()> {
        self.node.sync(mode)
    }

    fn allocated_bytes(&self) -> Result<u64> {
        Ok(self.node.attributes().allocated_bytes)
    }

    fn available_bytes(&self) -> Result<Option<u64>> {
        let found = self.node.engine.fs.statistics();
        Ok(Some(found.free_blocks * u64::from(found.block_bytes)))
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "File(inode {})", self.node.number())
    }
}
