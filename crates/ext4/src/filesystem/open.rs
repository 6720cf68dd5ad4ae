//! Opening: the superblock, journal recovery, the groups, the orphans.
//!
//! Order: before the journal is replayed, only the structures that locate it are trusted:
//! superblock, one descriptor, the journal's inode. A read-only opening reads through the journal
//! without replaying it, and writes nothing (`recover.rs`).

use std::ops::{ControlFlow, Range};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use extant_blockdev::{Device, StoppableDevice};
use extant_jbd2::{
    BlockNumbers, Checksums, CommitTarget, FastCommits, InPlace, Journal, JournalLocation,
    JournalOptions, LogFormat, Run, TransactionOptions, Transactions,
};
use extant_mballoc::{self as mballoc, Allocator, Block as AllocatorBlock, Reuse};
use extant_ondisk::ext4::inode::FileType;
use extant_ondisk::ext4::orphan::FILE_BLOCKS_MAX;
use extant_ondisk::ext4::superblock::{JournalPlace, State};
use extant_ondisk::ext4::{
    Access, Compat, GroupDescriptor, GroupNumber, Incompat, InodeNumber, PhysicalBlock, Superblock,
};
use extant_space::{Error, ErrorKind, Result};

use super::Filesystem;
use super::recover::{recover, recovered};
use crate::cache::BlockCache;
use crate::commit_notes::Writing;
use crate::engine::Engine;
use crate::groups::{FreeSums, Groups, Source};
use crate::inode::InodeTable;
use crate::mapping;
use crate::options::{Options, Replay, check_features};
use crate::orphan_list::Orphans;
use crate::state::{AssignedBlocks, FsState, read_superblock};
use crate::sync::{lock, read};
use crate::system_zone::{SystemZone, ZoneBuilder};
use crate::time::Clock;
use crate::transaction::Running;
use crate::tree::{Mapping, TreeFormat};

/// Bytes of the descriptor table that are read at a time.
const TABLE_WINDOW: usize = 1 << 20;
/// Blocks of descriptors that are worth a thread.
const PART_BLOCKS_MIN: u32 = 256;
/// Blocks and inodes cached while the journal is located.
const THREADED_GROUPS_MIN: usize = 64;

impl Filesystem {
    /// Opens the file system on `device`. Its journal is replayed after a crash, or with read-only
    /// access read as an overlay.
    ///
    /// # Errors
    /// `Unsupported` for an unsupported feature, with its name: with [`Access::ReadOnly`] it may
    /// open; `Corrupt` naming the structure, `ReadOnly` for changes of a read-only device,
    /// `InvalidArgument` for changes with [`Replay::Off`]; errors of the device.
    pub fn open(device: Arc<dyn Device>, options: Options) -> Result<Self> {
        if options.access == Access::ReadWrite && options.replay == Replay::Off {
            return Err(Error::new(ErrorKind::InvalidArgument)
                .detail("without its journal a file system is opened read-only"));
        }
        let superblock = read_superblock(&*device)?;
        check_features(superblock.features(), options.access)?;
        match options.access {
            Access::ReadOnly => open_read_only(device, superblock, options),
            Access::ReadWrite => open_read_write(device, superblock, options),
        }
    }
}

fn open_read_only(
    device: Arc<dyn Device>,
    superblock: Superblock,
    options: Options,
) -> Result<Filesystem> {
    let (device, superblock) = match options.replay {
        Replay::On => recovered(device, superblock, &options).map_err(pass_journal)?,
        Replay::Off => (device, superblock),
    };
    let fs = FsState::new(device, None, superblock, options)?;
    Ok(Filesystem {
        engine: Arc::new(Engine {
            fs: Arc::new(fs),
            journal: None,
        }),
    })
}

/// Adds advice on reading a file system whose journal is unreadable.
fn pass_journal(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Corrupt | ErrorKind::Unsupported => {
            error.advice("check the file system, or read it without its journal (noload)")
        }
        _ => error,
    }
}

/// Adds advice on a file system that cannot be changed because its journal is damaged.
fn check_journal(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Corrupt => error.advice("check the file system"),
        _ => error,
    }
}

fn open_read_write(
    device: Arc<dyn Device>,
    superblock: Superblock,
    options: Options,
) -> Result<Filesystem> {
    let stoppable = Arc::new(StoppableDevice::new(device));
    let device: Arc<dyn Device> = stoppable.clone();
    let Some(place) = journal_place(&device, &superblock).map_err(check_journal)? else {
        if !superblock.state().contains(State::VALID) {
            return Err(Error::new(ErrorKind::Unsupported)
                .detail("the file system has no journal and was not closed cleanly")
                .advice("check it with e2fsck, or open it read-only"));
        }
        let in_place = InPlace::new(Arc::clone(&device), superblock.layout().block_bytes())?;
        let fs = FsState::new(device, None, superblock, options)?;
        return start(fs, stoppable, in_place);
    };
    recover(&device, place.clone(), &options).map_err(check_journal)?;
    let superblock = read_superblock(&*device)?;
    check_features(superblock.features(), options.access)?;
    let journal = Arc::new(Journal::open(
        Arc::clone(&device),
        place,
        journal_options(&superblock),
    )?);
    let fs = FsState::new(device, Some(Arc::clone(&journal)), superblock, options)?;
    start(fs, stoppable, journal)
}

/// Lets changes begin.
fn start(
    mut fs: FsState,
    stoppable: Arc<StoppableDevice<Arc<dyn Device>>>,
    target: impl Into<CommitTarget>,
) -> Result<Filesystem> {
    fs.stoppable = Some(stoppable);
    let fs = Arc::new(fs);
    fs.check_root()?;
    fs.assign_system()?;
    fs.mark_open()?;
    let transactions = TransactionOptions {
        interval: fs.options.commit_interval,
        ..TransactionOptions::default()
    };
    let engine = Engine {
        journal: Some(Transactions::new(target, Arc::clone(&fs), transactions)?),
        fs,
    };
    engine.clear_orphans()?;
    Ok(Filesystem {
        engine: Arc::new(engine),
    })
}

fn journal_options(superblock: &Superblock) -> JournalOptions {
    let features = superblock.features();
    JournalOptions {
        format: Some(LogFormat {
            checksums: if features.has_metadata_checksums() {
                Checksums::V3
            } else {
                Checksums::None
            },
            block_numbers: if features.incompat.contains(Incompat::BIT64) {
                BlockNumbers::Bits64
            } else {
                BlockNumbers::Bits32
            },
        }),
        fast_commits: if features.compat.contains(Compat::FAST_COMMIT) {
            FastCommits::On
        } else {
            FastCommits::Off
        },
    }
}

/// Location of the journal; `None` without one.
pub(super) fn journal_place(
    device: &Arc<dyn Device>,
    superblock: &Superblock,
) -> Result<Option<JournalLocation>> {
    if !superblock.features().compat.contains(Compat::HAS_JOURNAL) {
        return Ok(None);
    }
    let number = match superblock.journal() {
        Some(JournalPlace::Inode(number)) => number,
        _ => {
            return Err(
                Error::new(ErrorKind::Unsupported).detail("the journal is on an external device")
            );
        }
    };
    let layout = superblock.layout();
    let cache = Arc::new(BlockCache::new(
        Arc::clone(device),
        None,
        layout.block_bytes() as usize,
        THREADED_GROUPS_MIN,
    ));
    // The locations of metadata are not known yet.
    let zone = SystemZone::default();
    let sums = FreeSums::default();
    let groups = Groups::new(Arc::clone(&cache), superblock.clone(), sums, zone);
    let inodes = InodeTable::new(
        Arc::clone(&cache),
        Arc::new(groups),
        superblock.seed(),
        THREADED_GROUPS_MIN,
    );
    let runs = journal_runs(&cache, &inodes, superblock, number)?;
    JournalLocation::new(layout.block_bytes(), &runs).map(Some)
}

fn journal_runs(
    cache: &BlockCache,
    inodes: &InodeTable,
    superblock: &Superblock,
    number: InodeNumber,
) -> Result<Vec<Run>> {
    let layout = superblock.layout();
    // The caller does not ask for an inode by its number.
    let cell = inodes.get(number).map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            Error::new(ErrorKind::Corrupt).detail(format!("journal: inode {number} is not in use"))
        }
        _ => error,
    })?;
    let state = read(&cell.state);
    let blocks = state.inode.size_bytes(layout) >> layout.block_bits();
    let format = TreeFormat {
        layout,
        seed: state.seed,
        off_limits: None,
    };
    let mut runs: Vec<Run> = Vec::new();
    let mut hole = None;
    let _ = mapping::walk(&state.inode, cache, format, 0..blocks, |part| {
        match part {
            Mapping::Hole(range) => hole = Some(range.start),
            Mapping::Extent(extent) => match runs.last_mut() {
                Some(last) if last.first.0 + u64::from(last.blocks) == extent.physical.0 => {
                    last.blocks += u32::from(extent.blocks);
                }
                _ => runs.push(Run {
                    first: extent.physical,
                    blocks: extent.blocks.into(),
                }),
            },
        }
        ControlFlow::<()>::Continue(())
    })?;
    match hole {
        Some(block) => Err(Error::new(ErrorKind::Corrupt)
            .detail(format!("journal inode {number}: block {block} is a hole"))),
        None => Ok(runs),
    }
}

impl FsState {
    pub(crate) fn new(
        device: Arc<dyn Device>,
        journal: Option<Arc<Journal>>,
        superblock: Superblock,
        options: Options,
    ) -> Result<Self> {
        let layout = *superblock.layout();
        let seed = superblock.seed();
        let has_log = superblock.journal().is_some();
        let block_bytes = layout.block_bytes() as usize;
        let area = journal.as_ref().map(|journal| journal.fast_commits());
        let writing = if area.is_some_and(|area| !area.is_empty()) {
            Writing::On
        } else {
            Writing::Off
        };
        let cache = Arc::new(BlockCache::new(
            Arc::clone(&device),
            journal,
            block_bytes,
            options.cached_blocks,
        ));
        let table = read_descriptors(&*device, &superblock)?;
        let place = match options.replay {
            Replay::On => journal_place(&device, &superblock)?,
            Replay::Off => None,
        };
        let zone = table.zone.finish(&superblock, place.as_ref())?;
        let groups = Arc::new(Groups::new(
            Arc::clone(&cache),
            superblock.clone(),
            table.sums,
            zone,
        ));
        let at_start = Arc::new(Mutex::new(table.free));
        let allocator = Allocator::open(
            mballoc::Geometry {
                first: AllocatorBlock(layout.first_data_block().0),
                end: AllocatorBlock(layout.blocks()),
                blocks_per_group: layout.blocks_per_group(),
            },
            mballoc::Options {
                reserved_blocks: superblock.reserved_blocks(),
                reuse: match (writing, has_log) {
                    (Writing::Off, true) => Reuse::InsideTransaction,
                    // A fast commit may refer to blocks freed in the same transaction, and so may a
                    // transaction without a log that a power cut has cut off.
                    _ => Reuse::AfterCommit,
                },
                ..mballoc::Options::default()
            },
            Source::new(Arc::clone(&groups), Arc::clone(&at_start)),
        )?;
        // The descriptors are asked from now on.
        *lock(&at_start) = Vec::new();
        let superblock_block = PhysicalBlock(Superblock::OFFSET / u64::from(layout.block_bytes()));
        let held = cache.hold(superblock_block);
        cache.read(superblock_block, &|_| Ok(()))?;
        let inodes = InodeTable::new(
            Arc::clone(&cache),
            Arc::clone(&groups),
            seed,
            options.cached_inodes,
        );
        let orphans = orphans(&cache, &inodes, &superblock, groups.zone())?;
        let fs = Self {
            orphans,
            device,
            layout,
            has_log,
            seed,
            superblock_given: Mutex::new(superblock.clone()),
            superblock: Mutex::new(superblock),
            superblock_block: held,
            cache,
            groups,
            inodes,
            allocator,
            assigned: AssignedBlocks::new(&layout),
            running: Running::new(writing),
            clock: Clock::new(options.clock),
            options,
            frozen: Mutex::default(),
            rename_lock: Mutex::default(),
            stopped: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            shut_down: AtomicBool::new(false),
            stoppable: None,
            overhead: OnceLock::new(),
        };
        fs.set_allocator_policy(fs.options.allocator);
        Ok(fs)
    }

    /// Refuses a file system without a root directory.
    pub(crate) fn check_root(&self) -> Result<()> {
        let is_directory = match self.inodes.get(InodeNumber::ROOT) {
            Ok(cell) => {
                let inode = &read(&cell.state).inode;
                inode.links() > 0 && inode.mode().file_type() == Some(FileType::Directory)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        if is_directory {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Corrupt)
            .detail("the root inode is no directory")
            .advice("check the file system"))
    }
}

/// The orphan file, where there is one.
fn orphans(
    cache: &BlockCache,
    inodes: &InodeTable,
    superblock: &Superblock,
    zone: &SystemZone,
) -> Result<Orphans> {
    let Some(number) = superblock.orphan_file() else {
        return Ok(Orphans::default());
    };
    let layout = superblock.layout();
    let cell = inodes.get(number)?;
    let state = read(&cell.state);
    let count = state.inode.size_bytes(layout) >> layout.block_bits();
    let seed = state.seed;
    if count > FILE_BLOCKS_MAX {
        return Err(Error::new(ErrorKind::Corrupt)
            .detail(format!(
                "orphan file, inode {number}: {count} blocks, where {FILE_BLOCKS_MAX} are the most"
            ))
            .advice("check the file system"));
    }
    let mut blocks = Vec::new();
    let walked = mapping::walk(
        &state.inode,
        cache,
        TreeFormat {
            layout,
            seed,
            off_limits: zone.for_inode(number),
        },
        0..count,
        |part| match part {
            Mapping::Hole(range) => ControlFlow::Break(range.start),
            Mapping::Extent(extent) => {
                let start = extent.physical.0;
                blocks.extend((start..start + u64::from(extent.blocks)).map(PhysicalBlock));
                ControlFlow::Continue(())
            }
        },
    )?;
    match walked {
        ControlFlow::Continue(()) => Ok(Orphans::new(&blocks, seed)),
        ControlFlow::Break(hole) => Err(Error::new(ErrorKind::Corrupt).detail(format!(
            "orphan file, inode {number}: block {hole} is a hole"
        ))),
    }
}

/// Totals of all descriptors.
struct Table {
    /// Free blocks of every group.
    free: Vec<u32>,
    sums: FreeSums,
    zone: ZoneBuilder,
}

impl Table {
    /// Adds the values of the descriptors right behind these.
    fn append(mut self, next: Self) -> Self {
        self.free.extend(next.free);
        self.sums.blocks += next.sums.blocks;
        self.sums.inodes += next.sums.inodes;
        self.zone.append(next.zone);
        self
    }
}

/// Reads the descriptors, in one pass: a large table by every processor a part.
fn read_descriptors(device: &dyn Device, superblock: &Superblock) -> Result<Table> {
    let blocks = superblock.layout().descriptor_blocks();
    let cpus = thread::available_parallelism().map_or(1, usize::from) as u32;
    let parts = cpus.min(blocks / PART_BLOCKS_MIN).max(1);
    let part = |at: u32| {
        let edge = |at: u32| (u64::from(blocks) * u64::from(at) / u64::from(parts)) as u32;
        read_descriptor_blocks(device, superblock, edge(at)..edge(at + 1))
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..parts).map(|at| scope.spawn(move || part(at))).collect();
        others.into_iter().try_fold(part(0)?, |table, other| {
            Ok(table.append(other.join().expect("reading does not panic")?))
        })
    })
}

/// Reads the descriptors in some blocks of their table.
fn read_descriptor_blocks(
    device: &dyn Device,
    superblock: &Superblock,
    blocks: Range<u32>,
) -> Result<Table> {
    let layout = superblock.layout();
    let block_bytes = layout.block_bytes() as usize;
    let per_block = layout.descriptors_per_block();
    let descriptor_bytes = usize::from(layout.descriptor_bytes());
    let end = u64::from(blocks.end) * u64::from(per_block);
    let groups = blocks.start * per_block..end.min(layout.groups().into()) as u32;
    let mut free = Vec::with_capacity(groups.len());
    let mut sums = FreeSums::default();
    let mut zone = ZoneBuilder::default();
    let mut buffer = Vec::new();
    let mut index = blocks.start;
    while index < blocks.end {
        let first = layout.descriptor_block(index);
        let most = (TABLE_WINDOW / block_bytes) as u32;
        let count = (1..most.min(blocks.end - index))
            .take_while(|&more| {
                layout.descriptor_block(index + more).0 == first.0 + u64::from(more)
            })
            .count() as u32
            + 1;
        buffer.resize(count as usize * block_bytes, 0);
        device.read_at(&mut buffer, first.0 << layout.block_bits())?;
        for block in buffer.chunks_exact(block_bytes) {
            let left = groups.len() - free.len();
            for bytes in block
                .chunks_exact(descriptor_bytes)
                .take(left.min(per_block as usize))
            {
                let group = GroupNumber(groups.start + free.len() as u32);
                let descriptor = GroupDescriptor::parse(bytes, group, superblock)?;
                free.push(descriptor.free_blocks());
                sums.blocks += u64::from(descriptor.free_blocks());
                sums.inodes += u64::from(descriptor.free_inodes());
                zone.add_group(group, &descriptor, layout);
            }
        }
        index += count;
    }
    Ok(Table { free, sums, zone })
}
