//! The blocks of a directory: the interface of the store, and how blocks are read and changed.
//!
//! Invariants:
//! - a block's checksum is verified when it is read from the disk; its structure whenever it is
//!   used, since a damaged tree may lead to a node as if it were a leaf;
//! - every change ends with the block sealed;
//! - a block that is changed is read again: in a damaged file system it may be a part of another
//!   structure too, and differ from the bytes read.

use std::fmt::Display;
use std::sync::Arc;

use extant_ondisk::ext4::LogicalBlock;
use extant_ondisk::ext4::directory::{BlockKind, IndexShape, block_kind, seal, verify};
use extant_space::{ByteRange, Corruption, Error, ErrorKind, Result};

use super::{Directory, DirectoryContext, Shape};

/// The blocks of one directory, to be read.
pub(crate) trait DirectoryBlocks {
    /// Number: the size of the directory in blocks.
    fn blocks(&self) -> u32;

    /// A whole block. `validate` checks bytes read from the disk; its error is returned. A hole
    /// reads as zeros, which no validator accepts.
    ///
    /// # Errors
    /// Those of the validator and of the device.
    fn read(
        &self,
        index: LogicalBlock,
        validate: &dyn Fn(&[u8]) -> Result<()>,
    ) -> Result<Arc<[u8]>>;
}

/// The blocks of one directory, to be changed within a transaction.
pub(crate) trait DirectoryBlocksMut: DirectoryBlocks {
    /// Runs `change` once on the bytes of a block that was read or appended before, in the same
    /// operation.
    ///
    /// # Errors
    /// Only such after which nothing of the transaction reaches the disk.
    fn change(&mut self, index: LogicalBlock, change: &mut dyn FnMut(&mut [u8])) -> Result<()>;

    /// A new block of zeros at the end, counted in the inode's size.
    ///
    /// # Errors
    /// `NoSpace` and others; nothing has changed then.
    fn append(&mut self) -> Result<LogicalBlock>;

    /// The inode's `INDEX` flag becomes this. It is to be written in the same transaction, also
    /// when the operation fails later.
    fn set_shape(&mut self, shape: Shape);
}

impl<B: DirectoryBlocks> Directory<B> {
    /// A block of records with a valid checksum. The records are validated as they are read.
    pub(super) fn leaf(&self, index: LogicalBlock) -> Result<Arc<[u8]>> {
        let context = &self.context;
        self.read(index, &|block| verify(block, &context.format, context.seed))
    }

    /// A block of any kind, and its kind.
    pub(super) fn any(&self, index: LogicalBlock) -> Result<(BlockKind, Arc<[u8]>)> {
        let context = &self.context;
        let kind = |block: &[u8]| match self.shape() {
            Shape::Linear => BlockKind::Records,
            Shape::Tree => block_kind(block, index, &context.format),
        };
        let block = self.read(index, &|block| match kind(block) {
            BlockKind::Records => verify(block, &context.format, context.seed),
            BlockKind::Root => self.judge_node(IndexShape::Root, block),
            BlockKind::Node => self.judge_node(IndexShape::Node, block),
        })?;
        Ok((kind(&block), block))
    }

    /// A node of the tree with a valid checksum.
    pub(super) fn node(&self, index: LogicalBlock, shape: IndexShape) -> Result<Arc<[u8]>> {
        self.read(index, &|block| self.judge_node(shape, block))
    }

    fn read(
        &self,
        index: LogicalBlock,
        validate: &dyn Fn(&[u8]) -> Result<()>,
    ) -> Result<Arc<[u8]>> {
        let blocks = self.blocks.blocks();
        if index.0 >= blocks {
            return Err(self.corrupt(index, format_args!("past the last of {blocks} blocks")));
        }
        let block = self.blocks.read(index, validate);
        block.map_err(|error| self.at(index, error))
    }

    /// `error` with its place in the directory.
    pub(super) fn at(&self, index: LogicalBlock, error: Error) -> Error {
        let bytes = u64::from(self.context.format.block_bytes);
        let start = u64::from(index.0) * bytes;
        error.in_range(ByteRange::new(start, start + bytes))
    }

    /// A fault of the directory as a whole that shows in one block.
    pub(super) fn corrupt(&self, index: LogicalBlock, problem: impl Display) -> Error {
        let corruption = Corruption::other("directory", problem.to_string());
        let error = Error::corrupt(corruption, format!("directory: {problem}"));
        self.at(index, error)
    }
}

impl DirectoryContext {
    fn seal(&self, kind: BlockKind, block: &mut [u8]) -> Result<()> {
        let shape = match kind {
            BlockKind::Records => {
                seal(block, &self.format, self.seed);
                return Ok(());
            }
            BlockKind::Root => IndexShape::Root,
            BlockKind::Node => IndexShape::Node,
        };
        self.reread_mut(shape, block)?.seal(&self.format, self.seed);
        Ok(())
    }
}

impl<B: DirectoryBlocksMut> Directory<B> {
    /// A new block of zeros at the end.
    pub(super) fn append(&mut self) -> Result<LogicalBlock> {
        let most = self.context.blocks_max;
        if self.blocks.blocks() >= most {
            let problem = format!("directory: its size does not go beyond {most} blocks");
            return Err(Error::new(ErrorKind::NoSpace).detail(problem));
        }
        self.blocks.append()
    }

    /// Changes a block and seals it. `change` must return errors before it changes anything; it
    /// must not rely on bytes read before.
    pub(super) fn change<T>(
        &mut self,
        index: LogicalBlock,
        kind: BlockKind,
        change: impl FnOnce(&mut [u8]) -> Result<T>,
    ) -> Result<T> {
        let (mut change, mut result) = (Some(change), None);
        let context = self.context;
        self.blocks.change(index, &mut |block| {
            let change = change.take().expect("a store changes a block once");
            let outcome = change(block).and_then(|outcome| {
                context.seal(kind, block)?;
                Ok(outcome)
            });
            result = Some(outcome);
        })?;
        let result = result.expect("a store changes a block or says why not");
        result.map_err(|error| self.at(index, error))
    }

    /// Gives a block other bytes and seals it.
    pub(super) fn replace(
        &mut self,
        index: LogicalBlock,
        kind: BlockKind,
        bytes: &[u8],
    ) -> Result<()> {
        self.change(index, kind, |block| {
            block.copy_from_slice(bytes);
            Ok(())
        })
    }
}

/// A block has changed since it was read, although the directory is locked.
pub(super) fn changed_meanwhile() -> Error {
    Error::new(ErrorKind::Corrupt)
        .detail("directory: a block has changed meanwhile, as if it were also something else's")
}
