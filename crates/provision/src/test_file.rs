//! A host file for the tests of this crate; its map shows only data.

use std::fs::{File, OpenOptions};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;

use extant_space::{
    ByteRange, Error, ErrorKind, Extent, ExtentFlags, ExtentState, FallocateMode, HostIo,
    MapDetail, Result, SpaceFile, SyncMode,
};

pub struct TestFile(File);

impl TestFile {
    pub fn open(path: &Path) -> Self {
        Self(
            OpenOptions::new()
                .read(true)
                .write(true)
                .open(path)
                .unwrap(),
        )
    }
}

impl SpaceFile for TestFile {
    fn size(&self) -> Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        Ok(self.0.read_at(buffer, offset)?)
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()> {
        Ok(self.0.write_all_at(buffer, offset)?)
    }

    fn resize(&self, size_bytes: u64) -> Result<()> {
        Ok(self.0.set_len(size_bytes)?)
    }

    fn fallocate(&self, _: FallocateMode, _: ByteRange) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported))
    }

    fn for_each_extent(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        if let Some(logical) = range.intersection(ByteRange::new(0, self.size()?)) {
            let _ = visit(Extent {
                logical,
                physical: None,
                state: ExtentState::Written,
                flags: ExtentFlags::empty(),
            });
        }
        Ok(())
    }

    fn sync(&self, _: SyncMode) -> Result<()> {
        Ok(self.0.sync_all()?)
    }

    fn map_detail(&self) -> Result<MapDetail> {
        Ok(MapDetail::HolesAndData)
    }

    fn host_io(&self) -> Option<HostIo<'_>> {
        Some(HostIo {
            file: &self.0,
            block_bytes: 4096,
            device: None,
        })
    }
}
