//! Refcounts: a table of blocks in memory, the blocks in a cache.
//!
//! A block is made when a region without one is first allocated from, in the first cluster of the
//! region, which it counts itself. It is durable before the table names it, and the table is
//! durable before anything counts on the block.

use extant_space::{Error, ErrorKind, Result};

use super::cluster_cache::ClusterCache;
use super::file::MetadataFile;
use super::space::Run;
use crate::format::{Geometry, Header, RefcountBlock, RefcountTableEntry};

/// Memory for blocks: 128 GiB of image at the usual sizes.
const CACHE_BYTES: u64 = 4 << 20;
/// The largest table that QEMU reads.
const TABLE_BYTES_MAX: u64 = 8 << 20;

pub(super) struct Refcounts {
    geometry: Geometry,
    piece_bytes: u64,
    /// Entries in file format.
    table: Vec<u64>,
    table_offset: u64,
    /// A write of the header failed: which table it names is not known.
    is_doubtful: bool,
    pub(super) blocks: ClusterCache,
}

/// Offset of a larger table.
pub(super) struct Growth {
    /// The first cluster that the table has no entry for.
    first: u64,
    blocks: u64,
    table_clusters: u64,
}

impl Growth {
    pub(super) fn run(&self) -> Run {
        Run {
            first: self.first,
            clusters: self.blocks + self.table_clusters,
        }
    }
}

impl Refcounts {
    pub(super) fn load(file: &MetadataFile, header: &Header, piece_bytes: u64) -> Result<Self> {
        let range = header.refcount_table_range();
        let mut bytes = vec![0; range.len() as usize];
        file.read(range.start(), &mut bytes)?;
        let (entries, _) = bytes.as_chunks();
        let geometry = header.geometry;
        Ok(Self {
            geometry,
            piece_bytes,
            table: entries.iter().copied().map(u64::from_be_bytes).collect(),
            table_offset: range.start(),
            is_doubtful: false,
            blocks: ClusterCache::new(geometry.cluster_bytes(), piece_bytes, CACHE_BYTES),
        })
    }

    /// Clusters that one block counts.
    pub(super) fn region(&self) -> u64 {
        self.geometry.refcount_block_entries()
    }

    /// Regions that the table has room for.
    pub(super) fn regions(&self) -> u64 {
        self.table.len() as u64
    }

    /// Offset and size of the blocks and of the table, in bytes.
    pub(super) fn places(&self) -> impl Iterator<Item = (u64, u64)> {
        let cluster_bytes = self.geometry.cluster_bytes();
        let table = (self.table_offset, self.table.len() as u64 * 8);
        let entries = self.table.iter().map(|raw| RefcountTableEntry(*raw));
        let blocks = entries.map(RefcountTableEntry::offset);
        let blocks = blocks.filter(|offset| *offset != 0);
        std::iter::once(table).chain(blocks.map(move |offset| (offset, cluster_bytes)))
    }

    pub(super) fn has_block(&self, region: u64) -> bool {
        let entry = self.table.get(region as usize);
        entry.is_some_and(|raw| RefcountTableEntry(*raw).offset() != 0)
    }

    /// The count of `cluster`; 0 where no block counts it.
    pub(super) fn get(&mut self, file: &MetadataFile, cluster: u64) -> Result<u64> {
        let (region, index) = (cluster / self.region(), cluster % self.region());
        let geometry = self.geometry;
        Ok(match self.block(file, region)? {
            Some((_, bytes)) => RefcountBlock::new(bytes, geometry).get(index as usize),
            None => 0,
        })
    }

    /// Sets the count of `cluster`.
    ///
    /// # Errors
    /// `Corrupt` where no block counts it.
    pub(super) fn set(&mut self, file: &MetadataFile, cluster: u64, count: u64) -> Result<()> {
        let (region, index) = (cluster / self.region(), (cluster % self.region()) as usize);
        let geometry = self.geometry;
        let Some((offset, _)) = self.block(file, region)? else {
            let offset = cluster << geometry.cluster_bits();
            return Err(Error::new(ErrorKind::Corrupt).detail(format!(
                "qcow2 cluster at {offset:#x}: no refcount block counts it"
            )));
        };
        let at = (index << geometry.refcount_order()) / 8;
        self.blocks.change(offset, at, |bytes| {
            RefcountBlock::new(bytes, geometry).set(index, count);
        });
        Ok(())
    }

    /// The first clusters of `region` from `cluster` on that nothing uses, up to `end`.
    pub(super) fn free_run(
        &mut self,
        file: &MetadataFile,
        cluster: u64,
        end: u64,
    ) -> Result<(u64, u64)> {
        let region = cluster / self.region();
        let first = region * self.region();
        let end = end.min(first + self.region());
        let geometry = self.geometry;
        let Some((_, bytes)) = self.block(file, region)? else {
            return Ok((cluster, end));
        };
        let block = RefcountBlock::new(bytes, geometry);
        let is_free = |cluster: &u64| block.get((cluster - first) as usize) == 0;
        let start = (cluster..end).find(is_free).unwrap_or(end);
        let stop = (start..end).find(|cluster| !is_free(cluster));
        Ok((start, stop.unwrap_or(end)))
    }

    /// Makes the missing block of a region, in the region's first cluster.
    pub(super) fn make_block(&mut self, file: &MetadataFile, region: u64) -> Result<()> {
        assert!(!self.has_block(region));
        self.check_doubt()?;
        let offset = (region * self.region()) << self.geometry.cluster_bits();
        let bytes = self.new_block(&[0]);
        file.write(offset, &bytes)?;
        file.flush()?;
        self.table[region as usize] = offset;
        if let Err(error) = self.write_entry(file, region).and_then(|()| file.flush()) {
            // If the entry did reach the file, it names a block with correct refcounts.
            self.table[region as usize] = 0;
            return Err(error);
        }
        self.blocks.insert(offset, bytes);
        Ok(())
    }

    /// Cost of a larger table: new blocks, which count themselves and the table, and the table
    /// after them.
    pub(super) fn growth(&self) -> Result<Growth> {
        let region = self.regions();
        let cluster_bytes = self.geometry.cluster_bytes();
        let old_bytes = self.table.len() as u64 * 8;
        let mut table_bytes = old_bytes + (old_bytes / 2).max(cluster_bytes);
        let (mut blocks, mut table_clusters) = (0, 0);
        while blocks == 0 || (region + blocks) * 8 > table_bytes {
            table_bytes = table_bytes
                .max((region + blocks) * 8)
                .next_multiple_of(cluster_bytes);
            table_clusters = table_bytes / cluster_bytes;
            blocks = (1..)
                .find(|blocks| blocks * self.region() >= blocks + table_clusters)
                .expect("u64");
        }
        if table_bytes > TABLE_BYTES_MAX {
            return Err(Error::new(ErrorKind::TooLarge)
                .detail("the image has as many clusters as refcounts can count")
                .advice("convert it to larger clusters"));
        }
        Ok(Growth {
            first: region * self.region(),
            blocks,
            table_clusters,
        })
    }

    /// Makes a larger table. Returns where the old one was.
    pub(super) fn grow(&mut self, file: &MetadataFile, growth: &Growth) -> Result<Run> {
        self.check_doubt()?;
        let region = self.regions();
        let cluster_bytes = self.geometry.cluster_bytes();
        let Run { first, clusters } = growth.run();
        let mut table = self.table.clone();
        table.resize((growth.table_clusters * cluster_bytes / 8) as usize, 0);
        for number in 0..growth.blocks {
            let counted = number * self.region();
            let used = clusters.saturating_sub(counted).min(self.region()) as usize;
            let bytes = self.new_block(&Vec::from_iter(0..used));
            let offset = (first + number) * cluster_bytes;
            file.write(offset, &bytes)?;
            table[(region + number) as usize] = offset;
        }
        let new_offset = (first + growth.blocks) * cluster_bytes;
        let bytes: Vec<u8> = table.iter().flat_map(|raw| raw.to_be_bytes()).collect();
        file.write(new_offset, &bytes)?;
        file.flush()?;
        let mut header = vec![0; self.piece_bytes as usize];
        file.read(0, &mut header)?;
        header[0x30..0x38].copy_from_slice(&new_offset.to_be_bytes());
        header[0x38..0x3c].copy_from_slice(&(growth.table_clusters as u32).to_be_bytes());
        self.is_doubtful = true;
        file.write(0, &header)?;
        file.flush()?;
        self.is_doubtful = false;
        let old = Run {
            first: self.table_offset / cluster_bytes,
            clusters: self.table.len() as u64 * 8 / cluster_bytes,
        };
        self.table = table;
        self.table_offset = new_offset;
        Ok(old)
    }

    fn check_doubt(&self) -> Result<()> {
        if self.is_doubtful {
            Err(Error::new(ErrorKind::Io)
                .detail("the header could not be written")
                .advice("open the image again"))
        } else {
            Ok(())
        }
    }

    fn new_block(&self, used: &[usize]) -> Box<[u8]> {
        let bytes = vec![0; self.geometry.cluster_bytes() as usize];
        let mut bytes = bytes.into_boxed_slice();
        let mut block = RefcountBlock::new(&mut bytes, self.geometry);
        used.iter().for_each(|index| block.set(*index, 1));
        bytes
    }

    fn write_entry(&self, file: &MetadataFile, region: u64) -> Result<()> {
        let entries = (self.piece_bytes / 8) as usize;
        let first = region as usize / entries * entries;
        let piece = &self.table[first..(first + entries).min(self.table.len())];
        let bytes: Vec<u8> = piece.iter().flat_map(|raw| raw.to_be_bytes()).collect();
        file.write(self.table_offset + first as u64 * 8, &bytes)
    }

    /// The block of a region and its place; `None` where all counts are 0.
    fn block(&mut self, file: &MetadataFile, region: u64) -> Result<Option<(u64, &[u8])>> {
        let Some(raw) = self.table.get(region as usize) else {
            return Ok(None);
        };
        let entry = RefcountTableEntry(*raw);
        // Validated each time: it is one comparison.
        let Some(offset) = entry.block(self.geometry, region, file.0.geometry().size)? else {
            return Ok(None);
        };
        let bytes = self.blocks.get(offset, |bytes| file.read(offset, bytes))?;
        Ok(Some((offset, bytes)))
    }
}
