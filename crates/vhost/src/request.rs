//! A descriptor chain as a request of a virtio block device.
//!
//! Everything here is written by the guest, which may change it at any time: descriptors are read
//! once, lengths are summed with care, and every address is checked when it is used.
//!
//! A chain that can be answered becomes a request; what is wrong with it becomes its status. A
//! chain without a place for the status, or that is no chain (a loop, an index or table outside of
//! memory), cannot be answered: the queue is stopped.
//!
//! Format: virtio 1.2, 5.2.6 "Device operation", and 2.7 "Split virtqueues".

use extant_blockdev::{Persistence, SECTOR_BYTES, Speed, ZeroedSpace, Zeroing};
use extant_space::ByteRange;
use smallvec::SmallVec;
use virtio_bindings::virtio_blk as blk;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestAddress, GuestMemory, GuestMemoryMmap, Permissions};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::volume::{RANGE_BYTES_MAX, RANGES_MAX, Volume};

/// Descriptors of a chain; virtio allows no more than the queue has.
pub(crate) const DESCRIPTORS_MAX: usize = 1024;
const DESCRIPTOR_BYTES: u32 = size_of::<Descriptor>() as u32;

/// Result of a request, as the guest reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Status {
    Done = blk::VIRTIO_BLK_S_OK as u8,
    Failed = blk::VIRTIO_BLK_S_IOERR as u8,
    Unsupported = blk::VIRTIO_BLK_S_UNSUPP as u8,
}

/// A range of guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub address: GuestAddress,
    pub length: u32,
}

pub(crate) type Parts = SmallVec<[Part; 4]>;

/// Effect of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Fills the data from this offset.
    Read(u64),
    /// Writes the data at this offset.
    Write(u64),
    Flush,
    Discard(Vec<ByteRange>),
    WriteZeroes(Vec<(ByteRange, Zeroing)>),
    /// Fills the data with the serial number.
    Identify,
    /// It has this result.
    Refuse(Status),
}

/// A request, with the places of its data and status in guest memory.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Index of the first descriptor.
    pub head: u16,
    pub action: Action,
    pub data: Parts,
    /// Bytes of the data.
    pub length: u64,
    pub status: GuestAddress,
}

/// Why a ring cannot be served any further.
pub(crate) type Broken = &'static str;

/// `struct virtio_blk_req` up to its data.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
struct Header {
    kind: U32,
    reserved: U32,
    sector: U64,
}

/// `struct virtio_blk_discard_write_zeroes`.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
struct RangeOfSectors {
    sector: U64,
    num_sectors: U32,
    flags: U32,
}

impl Request {
    /// Reads the chain that starts at `head` of the table.
    pub(crate) fn read(
        memory: &GuestMemoryMmap,
        table: GuestAddress,
        queue_size: u16,
        head: u16,
        volume: &Volume,
    ) -> Result<Self, Broken> {
        let (mut readable, mut writable) = (Parts::new(), Parts::new());
        let mut total = 0_u64;
        walk(memory, table, queue_size, head, |descriptor| {
            let part = Part {
                address: descriptor.addr(),
                length: descriptor.len(),
            };
            total += u64::from(part.length);
            if descriptor.is_write_only() {
                writable.push(part);
            } else if writable.is_empty() {
                readable.push(part);
            } else {
                return Err("a descriptor for reading follows one for writing");
            }
            Ok(())
        })?;
        if total > u64::from(u32::MAX) {
            return Err("a chain of more than 4 GiB");
        }
        let mut header = Header::new_zeroed();
        take_front(memory, &mut readable, header.as_mut_bytes())
            .ok_or("a request without a header")?;
        let status = take_last_byte(&mut writable).ok_or("a request without a status")?;
        if !memory.check_range(status, 1, Permissions::Write) {
            return Err("a status outside of memory");
        }
        let action = action(memory, header, &readable, &writable, volume);
        let (action, data) = match action {
            Ok(action @ (Action::Read(_) | Action::Identify)) => (action, writable),
            Ok(action @ Action::Write(_)) => (action, readable),
            Ok(action) => (action, Parts::new()),
            Err(status) => (Action::Refuse(status), Parts::new()),
        };
        Ok(Self {
            head,
            length: length(&data),
            action,
            data,
            status,
        })
    }

    /// Bytes that the device has written to the chain when it ends with `status`.
    pub(crate) fn used_length(&self, status: Status) -> u32 {
        let is_filled = matches!(self.action, Action::Read(_) | Action::Identify);
        match status {
            Status::Done if is_filled => self.length as u32 + 1,
            _ => 1,
        }
    }

    /// Calls `copy` for the pieces of memory of the data's bytes from `start`, as many as `bytes`.
    pub(crate) fn copy(
        &self,
        mut start: u64,
        bytes: usize,
        mut copy: impl FnMut(GuestAddress, std::ops::Range<usize>) -> Option<()>,
    ) -> Option<()> {
        let mut done = 0;
        for part in &self.data {
            let length = u64::from(part.length);
            if start >= length {
                start -= length;
                continue;
            }
            if done == bytes {
                break;
            }
            let count = ((length - start) as usize).min(bytes - done);
            let address = part.address.0.checked_add(start)?;
            copy(GuestAddress(address), done..done + count)?;
            done += count;
            start = 0;
        }
        (done == bytes).then_some(())
    }
}

/// Visits the descriptors of a chain.
fn walk(
    memory: &GuestMemoryMmap,
    mut table: GuestAddress,
    queue_size: u16,
    head: u16,
    mut visit: impl FnMut(Descriptor) -> Result<(), Broken>,
) -> Result<(), Broken> {
    let mut size = u32::from(queue_size);
    let mut next = head;
    let mut is_indirect = false;
    let mut visited = 0;
    loop {
        if u32::from(next) >= size {
            return Err("a descriptor outside of its table");
        }
        let offset = u64::from(next) * u64::from(DESCRIPTOR_BYTES);
        let address = table.0.checked_add(offset).map(GuestAddress);
        let descriptor: Descriptor = address
            .and_then(|address| memory.read_obj(address).ok())
            .ok_or("a descriptor table outside of memory")?;
        if descriptor.refers_to_indirect_table() {
            let bytes = descriptor.len();
            if is_indirect || descriptor.has_next() {
                return Err("an indirect table that is not the end of a chain");
            }
            if bytes == 0 || !bytes.is_multiple_of(DESCRIPTOR_BYTES) {
                return Err("an indirect table of a wrong length");
            }
            is_indirect = true;
            (table, size, next) = (descriptor.addr(), bytes / DESCRIPTOR_BYTES, 0);
            continue;
        }
        visited += 1;
        if visited > DESCRIPTORS_MAX {
            return Err("a chain that is too long, or a loop");
        }
        visit(descriptor)?;
        if !descriptor.has_next() {
            return Ok(());
        }
        next = descriptor.next();
    }
}

/// Takes bytes from the front of the parts; `None` if there are fewer, or not in memory.
fn take_front(memory: &GuestMemoryMmap, parts: &mut Parts, into: &mut [u8]) -> Option<()> {
    let mut done = 0;
    let mut used = 0;
    while done < into.len() {
        let part = parts.get_mut(used)?;
        let count = (part.length as usize).min(into.len() - done);
        memory
            .read_slice(&mut into[done..done + count], part.address)
            .ok()?;
        done += count;
        if count == part.length as usize {
            used += 1;
        } else {
            part.address = GuestAddress(part.address.0.checked_add(count as u64)?);
            part.length -= count as u32;
        }
    }
    parts.drain(..used);
    Some(())
}

fn take_last_byte(parts: &mut Parts) -> Option<GuestAddress> {
    while parts.last()?.length == 0 {
        parts.pop();
    }
    let last = parts.last_mut()?;
    last.length -= 1;
    let address = last.address.0.checked_add(u64::from(last.length))?;
    if last.length == 0 {
        parts.pop();
    }
    Some(GuestAddress(address))
}

fn length(parts: &Parts) -> u64 {
    parts.iter().map(|part| u64::from(part.length)).sum()
}

fn action(
    memory: &GuestMemoryMmap,
    header: Header,
    readable: &Parts,
    writable: &Parts,
    volume: &Volume,
) -> Result<Action, Status> {
    let action = match header.kind.get() {
        blk::VIRTIO_BLK_T_IN => {
            Action::Read(transfer(memory, header, writable, Permissions::Write)?)
        }
        blk::VIRTIO_BLK_T_OUT if volume.is_read_only() => return Err(Status::Failed),
        blk::VIRTIO_BLK_T_OUT => {
            Action::Write(transfer(memory, header, readable, Permissions::Read)?)
        }
        blk::VIRTIO_BLK_T_FLUSH => Action::Flush,
        blk::VIRTIO_BLK_T_GET_ID => Action::Identify,
        blk::VIRTIO_BLK_T_DISCARD if volume.offers_discard() => {
            let ranges = ranges(memory, readable)?;
            let discard = |&(range, flags): &(ByteRange, u32)| match flags {
                0 => Ok(range),
                _ => Err(Status::Unsupported),
            };
            Action::Discard(ranges.iter().map(discard).collect::<Result<_, _>>()?)
        }
        blk::VIRTIO_BLK_T_WRITE_ZEROES if !volume.is_read_only() => {
            let ranges = ranges(memory, readable)?;
            let zeroing = |&(range, flags): &(ByteRange, u32)| {
                let may_unmap = match flags {
                    0 => false,
                    blk::VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP => true,
                    _ => return Err(Status::Unsupported),
                };
                Ok((range, zeroing(volume.zeroed_space(may_unmap))))
            };
            Action::WriteZeroes(ranges.iter().map(zeroing).collect::<Result<_, _>>()?)
        }
        _ => return Err(Status::Unsupported),
    };
    Ok(action)
}

fn zeroing(space: ZeroedSpace) -> Zeroing {
    Zeroing {
        space,
        speed: Speed::Any,
        persistence: Persistence::Cached,
    }
}

/// The offset of a read or write, whose data is in whole sectors and in memory.
fn transfer(
    memory: &GuestMemoryMmap,
    header: Header,
    data: &Parts,
    permissions: Permissions,
) -> Result<u64, Status> {
    let is_valid = |part: &Part| {
        memory.check_range(part.address, part.length as usize, permissions) || part.length == 0
    };
    let offset = header.sector.get().checked_mul(SECTOR_BYTES);
    let length = length(data);
    offset
        .filter(|offset| offset.checked_add(length).is_some())
        .filter(|_| length.is_multiple_of(SECTOR_BYTES) && data.iter().all(is_valid))
        .ok_or(Status::Failed)
}

/// The ranges of a discard or write zeroes, with their flags.
fn ranges(memory: &GuestMemoryMmap, data: &Parts) -> Result<Vec<(ByteRange, u32)>, Status> {
    const BYTES: u64 = size_of::<RangeOfSectors>() as u64;
    let length = length(data);
    let count = (length / BYTES) as usize;
    if length == 0 || !length.is_multiple_of(BYTES) || count > RANGES_MAX {
        return Err(Status::Failed);
    }
    let mut entries = vec![RangeOfSectors::new_zeroed(); count];
    take_front(memory, &mut data.clone(), entries.as_mut_bytes()).ok_or(Status::Failed)?;
    let range = |entry: RangeOfSectors| {
        let length = u64::from(entry.num_sectors.get()) * SECTOR_BYTES;
        let start = entry.sector.get().checked_mul(SECTOR_BYTES);
        start
            .filter(|_| length <= RANGE_BYTES_MAX)
            .and_then(|start| ByteRange::at(start, length))
            .map(|range| (range, entry.flags.get()))
            .ok_or(Status::Failed)
    };
    entries.into_iter().map(range).collect()
}
