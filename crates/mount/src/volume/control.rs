//! `ioctl` on open files: Extant's own (`ioctl`), and those of the kernel's file systems that FUSE
//! passes.
//!
//! | ioctl | effect |
//! |---|---|
//! | `FS_IOC_GETFLAGS`, `FS_IOC_SETFLAGS` | the flags of `lsattr` and `chattr`; for the owner and root, `i` and `a` for root only |
//! | `FS_IOC_FSGETXATTR`, `FS_IOC_FSSETXATTR` | the same in another encoding (`flags`); the kernel reads before it sets |
//! | `FS_IOC_GETVERSION` | the generation of the inode |
//! | `FS_IOC_GETFSLABEL` | the label of the file system |
//! | `FITRIM` | discards free space; for root, and for the user who serves the mount (`trim`) |
//! | `FS_IOC_SHUTDOWN` | ends the file system in use; for `CAP_SYS_ADMIN` (`shutdown`) |
//! | `PROBE`, `FALLOCATE`, `EXTENTS`, `STATISTICS`, `ALLOCATOR` | docs/formats/ioctl.md |
//!
//! `FS_IOC_FIEMAP` never arrives: the kernel answers it itself. The project id of a file is always
//! 0.

use std::ops::ControlFlow;

use extant_ext4::{AttributeChange, InodeFlags};
use extant_space::{ByteRange, Extent, FallocateMode, SpaceFile};
use rustix::io::Errno;
use rustix::ioctl::opcode;
use zerocopy::{FromBytes, IntoBytes};

use super::Volume;
use super::caller::{file_size_limit, is_privileged};
use super::flags::ExtendedFlags;
use super::handles::FileHandle;
use super::nodes::NodeEntry;
use super::shutdown::SHUTDOWN;
use super::space::range_of;
use super::trim::{self, TrimRange};
use crate::ioctl::{self, ExtentsPage, MappedExtent, Probe};
use extant_fuse::operations::{Caller, FileKind, Ioctl, IoctlReply, NodeId, Request, Result};
use extant_fuse::options::WriteCache;

// The numbers encode the size of `long`; the flags have 4 bytes.
const GET_FLAGS: u32 = opcode::read::<u64>(b'f', 1) as u32;
const SET_FLAGS: u32 = opcode::write::<u64>(b'f', 2) as u32;
const GET_VERSION: u32 = opcode::read::<u64>(b'v', 1) as u32;
const GET_LABEL: u32 = opcode::read::<[u8; LABEL_BYTES]>(0x94, 49) as u32;
const LABEL_BYTES: usize = 256;

const GET_EXTENDED: u32 = opcode::read::<ExtendedFlags>(b'X', 31) as u32;
const SET_EXTENDED: u32 = opcode::write::<ExtendedFlags>(b'X', 32) as u32;

/// Flags that `chattr` may change, and that the engine implements.
const CHANGEABLE: InodeFlags = InodeFlags::SYNC
    .union(InodeFlags::IMMUTABLE)
    .union(InodeFlags::APPEND)
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::DIRSYNC)
    .union(InodeFlags::TOPDIR)
    .union(InodeFlags::PROJINHERIT);

/// Flags that restrict writes to a file.
const TAKES_LESS: InodeFlags = InodeFlags::IMMUTABLE.union(InodeFlags::APPEND);

impl Volume {
    pub(super) fn control(
        &self,
        request: &Request<'_>,
        node: NodeId,
        ioctl: &Ioctl<'_>,
        output: &mut [u8],
    ) -> Result<IoctlReply> {
        let known = self.nodes.get(node)?;
        match ioctl.command {
            GET_FLAGS => {
                let flags = known.node().attributes().flags & InodeFlags::USER_VISIBLE;
                answer(&flags.bits().to_ne_bytes(), output)
            }
            SET_FLAGS => {
                let bits = ioctl.input.first_chunk().ok_or(Errno::INVAL)?;
                let flags = InodeFlags::from_bits_retain(u32::from_ne_bytes(*bits));
                self.set_flags(request.caller, node, &known, flags)?;
                answer(&[], output)
            }
            GET_EXTENDED => {
                let flags = known.node().attributes().flags;
                answer(ExtendedFlags::of(flags).as_bytes(), output)
            }
            SET_EXTENDED => {
                let wanted = parse::<ExtendedFlags>(ioctl.input)?;
                let now = known.node().attributes().flags & InodeFlags::USER_VISIBLE;
                self.set_flags(request.caller, node, &known, wanted.applied_to(now)?)?;
                answer(&[], output)
            }
            GET_VERSION => {
                let generation = known.node().attributes().generation;
                answer(&generation.to_ne_bytes(), output)
            }
            GET_LABEL => {
                let mut label = [0; LABEL_BYTES];
                let stored = self.filesystem.statistics().label;
                label[..stored.len()].copy_from_slice(&stored);
                answer(&label, output)
            }
            trim::FITRIM => {
                let mut range = parse::<TrimRange>(ioctl.input)?;
                self.trim(request, &mut range)?;
                answer(range.as_bytes(), output)
            }
            SHUTDOWN => {
                self.shut_down(request.caller, ioctl.argument)?;
                answer(&[], output)
            }
            ioctl::PROBE => answer(self.probe().as_bytes(), output),
            ioctl::FALLOCATE => {
                let mut call = parse::<ioctl::Fallocate>(ioctl.input)?;
                self.fallocate_call(request, node, &known, ioctl, &mut call)?;
                answer(call.as_bytes(), output)
            }
            ioctl::EXTENTS => {
                let mut page = parse::<ExtentsPage>(ioctl.input)?;
                self.fill_page(node, &known, &mut page)?;
                answer(page.as_bytes(), output)
            }
            ioctl::STATISTICS => {
                if output.len() < size_of::<ioctl::Statistics>() {
                    return Err(Errno::INVAL);
                }
                answer(self.statistics_call().as_bytes(), output)
            }
            ioctl::ALLOCATOR => {
                let call = parse::<ioctl::Allocator>(ioctl.input)?;
                let policy = self.allocator_call(request.caller, &call)?;
                answer(policy.as_bytes(), output)
            }
            _ => Err(Errno::NOTTY),
        }
    }

    fn probe(&self) -> Probe {
        let mut flags = 0;
        if self.options.write_cache == WriteCache::Back {
            flags |= ioctl::probe_flags::WRITEBACK;
        }
        if self.filesystem.check_changeable().is_err() {
            flags |= ioctl::probe_flags::READ_ONLY;
        }
        Probe {
            magic: ioctl::MAGIC,
            version: ioctl::VERSION,
            block_bytes: self.filesystem.block_bytes(),
            flags,
            server_pid: std::process::id().into(),
            reserved: [0; 4],
        }
    }

    fn set_flags(
        &self,
        caller: Caller,
        node: NodeId,
        known: &NodeEntry,
        flags: InodeFlags,
    ) -> Result<()> {
        let attributes = known.node().attributes();
        let now = attributes.flags & InodeFlags::USER_VISIBLE;
        let changed = flags ^ now;
        // Before Linux 5.13 the kernel does not check the caller.
        let is_owner = caller.uid == self.options.owners.users.other(attributes.uid);
        let may_change = is_owner && !changed.intersects(TAKES_LESS);
        if !may_change && !is_privileged(caller) {
            return Err(Errno::PERM);
        }
        if !(CHANGEABLE | InodeFlags::EXTENTS).contains(changed) {
            return Err(Errno::OPNOTSUPP);
        }
        let flags = flags & !InodeFlags::EXTENTS | now & InodeFlags::EXTENTS;
        // Dirty data must be written back before the file rejects writes.
        if flags.intersects(TAKES_LESS) && known.may_be_dirty() {
            self.flush_cache(node, 0, None)?;
        }
        self.reply_errno(known.node().set_attributes(&AttributeChange {
            flags: Some(flags),
            ..AttributeChange::default()
        }))?;
        // The change time has changed.
        self.attributes_changed(node)?;
        // As in ext4, the other flags have changed by then, so that clearing all permits a removal.
        if changed.contains(InodeFlags::EXTENTS) {
            Err(Errno::OPNOTSUPP)
        } else {
            Ok(())
        }
    }

    /// Does the kernel's checks of `fallocate(2)`, in the same order.
    fn fallocate_call(
        &self,
        request: &Request<'_>,
        node: NodeId,
        known: &NodeEntry,
        ioctl: &Ioctl<'_>,
        call: &mut ioctl::Fallocate,
    ) -> Result<()> {
        let range = range_of(call.offset, call.length)?;
        let mode = ioctl::fallocate_mode(call.mode).ok_or(Errno::OPNOTSUPP)?;
        if call.reserved != 0 {
            return Err(Errno::INVAL);
        }
        let may_write = ioctl.kind == FileKind::File
            && FileHandle::parse(ioctl.handle).contains(FileHandle::WRITE);
        if !may_write {
            return Err(Errno::BADF);
        }
        // Dirty data must be written back before other data moves to its offset.
        if known.may_be_dirty() {
            self.flush_cache(node, 0, None)?;
        }
        let before = self.reply_errno(known.file()?.size())?;
        let after = size_after(mode, range, before)?;
        if after > before && after > file_size_limit(request.caller) {
            return Err(Errno::FBIG);
        }
        if self.options.write_cache == WriteCache::Back {
            known.note_unseen_change();
        }
        self.fallocate_range(request.caller, known, mode, range)?;
        self.sync_changed(known.node(), FileHandle::parse(ioctl.handle).sync())?;
        call.size = self.reply_errno(known.file()?.size())?;
        // Without a writeback cache the kernel requests the size itself.
        if call.size != before && self.options.write_cache == WriteCache::Back {
            known.note_unreported_size(call.size);
        }
        match Changed::by(mode) {
            Changed::Nothing => self.attributes_changed(node),
            Changed::Range => self.flush_cache(node, range.start(), Some(range.len())),
            Changed::AllBehind => self.flush_cache(node, range.start(), None),
        }
    }

    fn fill_page(&self, node: NodeId, known: &NodeEntry, page: &mut ExtentsPage) -> Result<()> {
        let file = known.file()?;
        if known.may_be_dirty() {
            self.flush_cache(node, 0, None)?;
        }
        if page.offset > i64::MAX as u64 {
            return Err(Errno::INVAL);
        }
        let end = page.offset.saturating_add(page.length).min(i64::MAX as u64);
        let range = ByteRange::new(page.offset, end);
        let mut filled = ExtentsPage::new(end, 0);
        filled.size = self.reply_errno(file.size())?;
        let mut visit = |extent: Extent| {
            let Some(mapped) = MappedExtent::of(&extent) else {
                return ControlFlow::Continue(());
            };
            if filled.count as usize == ioctl::EXTENTS_MAX {
                filled.offset = extent.logical.start();
                filled.length = end - filled.offset;
                return ControlFlow::Break(());
            }
            filled.extents[filled.count as usize] = mapped;
            filled.count += 1;
            ControlFlow::Continue(())
        };
        if !range.is_empty() {
            self.reply_errno(file.for_each_extent(range, &mut visit))?;
        }
        *page = filled;
        Ok(())
    }
}

/// The data that the mode changes for programs.
enum Changed {
    Nothing,
    Range,
    AllBehind,
}

impl Changed {
    fn by(mode: FallocateMode) -> Self {
        match mode {
            FallocateMode::Allocate
            | FallocateMode::AllocateKeepSize
            | FallocateMode::UnshareRange => Self::Nothing,
            FallocateMode::CollapseRange | FallocateMode::InsertRange => Self::AllBehind,
            _ => Self::Range,
        }
    }
}

/// Length of the file afterwards, in bytes.
fn size_after(mode: FallocateMode, range: ByteRange, before: u64) -> Result<u64> {
    Ok(match mode {
        FallocateMode::Allocate
        | FallocateMode::UnshareRange
        | FallocateMode::ZeroRange
        | FallocateMode::WriteZeroes => before.max(range.end()),
        FallocateMode::InsertRange => before.checked_add(range.len()).ok_or(Errno::FBIG)?,
        _ => before,
    })
}

fn parse<T: FromBytes>(input: &[u8]) -> Result<T> {
    T::read_from_bytes(input).map_err(|_| Errno::INVAL)
}

/// Copies as much as there is room for: some callers pass a shorter buffer than the command number
/// encodes.
fn answer(bytes: &[u8], output: &mut [u8]) -> Result<IoctlReply> {
    let length = bytes.len().min(output.len());
    output[..length].copy_from_slice(&bytes[..length]);
    Ok(IoctlReply {
        result: 0,
        output_length: length,
    })
}
