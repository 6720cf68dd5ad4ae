//! The device seen by the journal: its superblock, blocks of the log, blocks in place.

use std::sync::Arc;

use extant_blockdev::{Device, Features, Operation, Persistence, Request, WriteBuffers};
use extant_ondisk::ext4::PhysicalBlock;
use extant_ondisk::jbd2::JournalSuperblock;
use extant_space::{ByteRange, Error, ErrorKind, Result};

use crate::JournalLocation;

/// A device and the location of the journal on it.
#[derive(Clone)]
pub(crate) struct Disk {
    device: Arc<dyn Device>,
    location: Arc<JournalLocation>,
    /// Whole blocks of the device, where homes are.
    home_blocks: u64,
}

impl Disk {
    /// # Errors
    /// `Corrupt` if the location is outside the device, `Unsupported` if a block is smaller than
    /// the device can write.
    pub(crate) fn new(device: Arc<dyn Device>, location: JournalLocation) -> Result<Self> {
        let geometry = device.geometry();
        if location.end_bytes() > geometry.size {
            return Err(Error::new(ErrorKind::Corrupt).detail(format!(
                "journal ends at byte {}, past the end of the device, {}",
                location.end_bytes(),
                geometry.size
            )));
        }
        if geometry.logical_block > location.block_bytes() {
            return Err(Error::new(ErrorKind::Unsupported).detail(format!(
                "journal in blocks of {} bytes on a device with blocks of {}",
                location.block_bytes(),
                geometry.logical_block
            )));
        }
        Ok(Self {
            home_blocks: geometry.size / u64::from(location.block_bytes()),
            device,
            location: Arc::new(location),
        })
    }

    pub(crate) fn location(&self) -> &JournalLocation {
        &self.location
    }

    pub(crate) fn block_bytes(&self) -> usize {
        self.location.block_bytes() as usize
    }

    /// Whether the journal may keep copies of the block: it is on the device, and not the journal's
    /// own.
    pub(crate) fn is_home(&self, block: PhysicalBlock) -> bool {
        block.0 < self.home_blocks && !self.location.contains(block)
    }

    /// The largest number of a block on the device.
    pub(crate) fn last_block(&self) -> PhysicalBlock {
        PhysicalBlock(self.home_blocks.saturating_sub(1))
    }

    /// The first byte of a block in place.
    fn offset(&self, block: PhysicalBlock) -> u64 {
        block.0 * u64::from(self.location.block_bytes())
    }

    /// # Errors
    /// As [`JournalSuperblock::parse`], and `Corrupt` if the superblock describes another journal
    /// than this location.
    pub(crate) fn read_superblock(&self) -> Result<JournalSuperblock> {
        let mut block = vec![0; self.block_bytes()];
        self.read(0, 1, &mut block)?;
        let at = self.superblock_range();
        let superblock = JournalSuperblock::parse(&block).map_err(|error| error.in_range(at))?;
        let problem = if superblock.format().block_bytes != self.location.block_bytes() {
            format!(
                "s_blocksize is {}, the file system's block {}",
                superblock.format().block_bytes,
                self.location.block_bytes()
            )
        } else if superblock.blocks() > self.location.blocks() {
            format!(
                "s_maxlen is {}, the journal has {} blocks",
                superblock.blocks(),
                self.location.blocks()
            )
        } else {
            return Ok(superblock);
        };
        Err(Error::new(ErrorKind::Corrupt)
            .detail(format!("journal superblock: {problem}"))
            .in_range(at))
    }

    /// Writes the superblock; it is durable when this returns.
    pub(crate) fn write_superblock(&self, superblock: &JournalSuperblock) -> Result<()> {
        // Whole blocks of the device. The rest of the superblock's block is unused.
        let unit = self.device.geometry().logical_block as usize;
        let mut bytes = superblock.as_bytes().to_vec();
        bytes.resize(bytes.len().next_multiple_of(unit), 0);
        let offset = self.superblock_range().start();
        self.device.write_at(&bytes, offset, Persistence::Fua)
    }

    fn superblock_range(&self) -> ByteRange {
        let run = self.location.runs(0, 1).next().expect("one block");
        let start = self.offset(run.first);
        ByteRange::new(start, start + JournalSuperblock::BYTES as u64)
    }

    /// Reads `count` blocks of the journal from `first` on, which do not wrap.
    pub(crate) fn read(&self, first: u32, count: u32, mut into: &mut [u8]) -> Result<()> {
        let mut requests = Vec::new();
        for run in self.location.runs(first, count) {
            let (part, rest) = into.split_at_mut(run.blocks as usize * self.block_bytes());
            requests.push(Request::read(self.offset(run.first), part));
            into = rest;
        }
        self.submit(requests)
    }

    /// Reads single blocks of the journal concurrently.
    pub(crate) fn read_blocks<'a>(
        &self,
        blocks: impl IntoIterator<Item = (u32, &'a mut [u8])>,
    ) -> Result<()> {
        let requests = blocks.into_iter().map(|(block, into)| {
            let run = self.location.runs(block, 1).next().expect("one block");
            Request::read(self.offset(run.first), into)
        });
        self.submit(requests.collect())
    }

    /// Writes blocks of the journal from `first` on, which do not wrap. `parts` are blocks.
    pub(crate) fn write_requests<'a>(
        &self,
        first: u32,
        parts: &[&'a [u8]],
        persistence: Persistence,
        requests: &mut Vec<Request<'a>>,
    ) {
        let mut rest = parts;
        for run in self.location.runs(first, parts.len() as u32) {
            let (these, others) = rest.split_at(run.blocks as usize);
            rest = others;
            requests.push(Request::new(Operation::Write {
                offset: self.offset(run.first),
                from: WriteBuffers::from_slice(these),
                persistence,
            }));
        }
    }

    /// Writes blocks to their homes. Sorted, neighbours become one request.
    pub(crate) fn write_back<'a>(
        &self,
        blocks: impl IntoIterator<Item = (PhysicalBlock, &'a [u8])>,
    ) -> Result<()> {
        write_blocks(&*self.device, self.location.block_bytes(), blocks)
    }

    /// Makes durable what has been written, where that is not so already.
    pub(crate) fn flush(&self) -> Result<()> {
        flush(&*self.device)
    }

    /// Runs requests concurrently; the first error is the answer.
    pub(crate) fn submit(&self, requests: Vec<Request<'_>>) -> Result<()> {
        submit(&*self.device, requests)
    }
}

/// Writes blocks where they belong. Sorted, neighbours become one request.
pub(crate) fn write_blocks<'a>(
    device: &dyn Device,
    block_bytes: u32,
    blocks: impl IntoIterator<Item = (PhysicalBlock, &'a [u8])>,
) -> Result<()> {
    let mut requests: Vec<Request<'a>> = Vec::new();
    let mut next = None;
    for (block, contents) in blocks {
        let open = requests.last_mut().map(|request| &mut request.operation);
        match open {
            Some(Operation::Write { from, .. }) if next == Some(block) => from.push(contents),
            _ => requests.push(Request::write(
                block.0 * u64::from(block_bytes),
                contents,
                Persistence::Cached,
            )),
        }
        next = Some(PhysicalBlock(block.0 + 1));
    }
    submit(device, requests)
}

/// Makes durable what has been written, where that is not so already.
pub(crate) fn flush(device: &dyn Device) -> Result<()> {
    let features = device.geometry().features;
    if features.contains(Features::VOLATILE_CACHE) {
        device.flush()
    } else {
        Ok(())
    }
}

fn submit(device: &dyn Device, mut requests: Vec<Request<'_>>) -> Result<()> {
    device.submit(&mut requests);
    requests.into_iter().try_for_each(Request::into_result)
}
