//! A request of the kernel as an operation of the device, and its result as the kernel's.
//!
//! The kernel splits requests at the limits that [`parameters`] states. A request that does not
//! fit all the same fails; nothing outside its buffer is touched.

use extant_blockdev::{
    DiscardPolicy, Features, Geometry, Operation, Persistence, SECTOR_BYTES, Speed, Transfer,
    TransferKind, Zeroing,
};
use extant_space::{ByteRange, ErrorKind, Result};
use extant_sys::buffer::AlignedBuffer;
use smallvec::smallvec;

use crate::protocol::{
    Attributes, BasicParameters, Descriptor, DiscardParameters, ParameterTypes, Parameters,
    RequestFlags, operation,
};

/// Most bytes of one discard or write zeroes; all of them at once would occupy the device for long.
const RANGE_BYTES_MAX: u64 = 1 << 30;
/// The same where zeros are written as data.
const WRITTEN_ZEROES_BYTES_MAX: u64 = 16 << 20;

/// The parameters of a disk with this geometry, whose requests have at most `buffer_bytes`.
pub(crate) fn parameters(
    geometry: &Geometry,
    is_read_only: bool,
    discard: DiscardPolicy,
    buffer_bytes: u32,
) -> Parameters {
    let logical_block = geometry.logical_block.max(SECTOR_BYTES as u32);
    let physical_block = geometry.physical_block.clamp(logical_block, buffer_bytes);
    let mut attributes = Attributes::VOLATILE_CACHE | Attributes::FUA;
    attributes.set(Attributes::READ_ONLY, is_read_only);
    let has_fast_zeroes = geometry.features.contains(Features::WRITE_ZEROES);
    let sectors = |bytes: u64| {
        let bytes = bytes / u64::from(logical_block) * u64::from(logical_block);
        (bytes / SECTOR_BYTES) as u32
    };
    let granularity = geometry.limits.discard.granularity;
    Parameters {
        len: size_of::<Parameters>() as u32,
        types: (ParameterTypes::BASIC | ParameterTypes::DISCARD).bits(),
        basic: BasicParameters {
            attrs: attributes.bits(),
            logical_bs_shift: logical_block.ilog2() as u8,
            physical_bs_shift: physical_block.ilog2() as u8,
            io_opt_shift: physical_block.ilog2() as u8,
            io_min_shift: physical_block.ilog2() as u8,
            max_sectors: sectors(buffer_bytes.into()),
            chunk_sectors: 0,
            dev_sectors: geometry.whole_sectors(),
            virt_boundary_mask: 0,
        },
        discard: DiscardParameters {
            discard_alignment: 0,
            discard_granularity: u32::try_from(granularity)
                .map_or(logical_block, |bytes| bytes.max(logical_block)),
            max_discard_sectors: if discard.offers_discard(geometry) {
                sectors(geometry.limits.discard.bytes.min(RANGE_BYTES_MAX))
            } else {
                0
            },
            max_write_zeroes_sectors: if has_fast_zeroes {
                sectors(geometry.limits.write_zeroes.bytes.min(RANGE_BYTES_MAX))
            } else {
                sectors(WRITTEN_ZEROES_BYTES_MAX)
            },
            max_discard_segments: 1,
            reserved0: 0,
        },
        rest: [0; 13],
    }
}

impl Descriptor {
    fn flags(&self) -> RequestFlags {
        RequestFlags::from_bits_retain(self.op_flags & !0xff)
    }

    fn code(&self) -> u8 {
        self.op_flags as u8
    }

    /// First byte on the device.
    fn offset(&self) -> u64 {
        self.start_sector.saturating_mul(SECTOR_BYTES)
    }

    pub(crate) fn length(&self) -> u64 {
        u64::from(self.nr_sectors) * SECTOR_BYTES
    }

    /// A read, or a write that need not be durable yet: what a stream of the device may carry.
    pub(crate) fn transfer_kind(&self) -> Option<TransferKind> {
        match self.code() {
            operation::READ => Some(TransferKind::Read),
            operation::WRITE if !self.flags().contains(RequestFlags::FUA) => {
                Some(TransferKind::Write)
            }
            _ => None,
        }
    }

    /// The request as a transfer of a stream.
    pub(crate) fn transfer(&self, kind: TransferKind, tag: u16, buffer: AlignedBuffer) -> Transfer {
        Transfer {
            tag: tag.into(),
            kind,
            offset: self.offset(),
            length: self.length() as usize,
            memory: buffer.into(),
        }
    }

    /// The request as an operation with the data in `buffer`. `None`: the server does not know it,
    /// or it does not fit.
    pub(crate) fn operation<'b>(
        &self,
        buffer: &'b mut [u8],
        discard: DiscardPolicy,
    ) -> Option<Operation<'b>> {
        let persistence = if self.flags().contains(RequestFlags::FUA) {
            Persistence::Fua
        } else {
            Persistence::Cached
        };
        let range = || ByteRange::at(self.offset(), self.length());
        let data = buffer.get_mut(..self.length() as usize);
        Some(match self.code() {
            operation::READ => Operation::Read {
                offset: self.offset(),
                into: smallvec![data?],
            },
            operation::WRITE => Operation::Write {
                offset: self.offset(),
                from: smallvec![&*data?],
                persistence,
            },
            operation::FLUSH => Operation::Flush,
            operation::DISCARD => Operation::Discard(range()?),
            operation::WRITE_ZEROES => {
                let may_unmap = !self.flags().contains(RequestFlags::NO_UNMAP);
                let zeroing = Zeroing {
                    space: discard.zeroed_space(may_unmap),
                    speed: Speed::Any,
                    persistence,
                };
                Operation::WriteZeroes(range()?, zeroing)
            }
            _ => return None,
        })
    }

    /// The result for the kernel: the bytes of a read or write, 0 for others, or an error number.
    pub(crate) fn result(&self, result: &Result<()>) -> i32 {
        match (result, self.code()) {
            (Err(error), _) => -error.kind().errno(),
            (Ok(()), operation::READ | operation::WRITE) => self.length() as i32,
            (Ok(()), _) => 0,
        }
    }
}

/// The result of a request that [`Descriptor::operation`] refuses.
pub(crate) fn refused() -> i32 {
    -ErrorKind::Unsupported.errno()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor(code: u8, flags: RequestFlags, sectors: u32) -> Descriptor {
        Descriptor {
            op_flags: u32::from(code) | flags.bits(),
            nr_sectors: sectors,
            start_sector: 8,
            addr: 0,
        }
    }

    #[test]
    fn requests_become_operations_of_the_same_range() {
        let mut buffer = vec![0; 4096];
        let none = RequestFlags::empty();
        let range = ByteRange::new(4096, 8192);
        for code in [
            operation::READ,
            operation::WRITE,
            operation::DISCARD,
            operation::WRITE_ZEROES,
        ] {
            let request = descriptor(code, none, 8);
            let made = request.operation(&mut buffer, DiscardPolicy::Unmap);
            assert_eq!(made.unwrap().range(), Some(range), "{code}");
        }
        let flush = descriptor(operation::FLUSH, none, 0);
        let made = flush.operation(&mut buffer, DiscardPolicy::Unmap);
        assert!(matches!(made, Some(Operation::Flush)));
    }

    #[test]
    fn request_that_does_not_fit_or_is_unknown_is_no_operation() {
        let mut buffer = vec![0; 4096];
        let none = RequestFlags::empty();
        for request in [
            descriptor(operation::READ, none, 9),
            descriptor(operation::WRITE, none, u32::MAX),
            descriptor(77, none, 1),
        ] {
            let made = request.operation(&mut buffer, DiscardPolicy::Unmap);
            assert!(made.is_none(), "{request:?}");
        }
    }

    #[test]
    fn zeroed_space_stays_allocated_by_the_flag_or_by_the_policy() {
        let space = |flags, policy| {
            let request = descriptor(operation::WRITE_ZEROES, flags, 8);
            match request.operation(&mut [], policy) {
                Some(Operation::WriteZeroes(_, zeroing)) => zeroing.space,
                other => panic!("{other:?}"),
            }
        };
        let none = RequestFlags::empty();
        let (unmap, ignore) = (DiscardPolicy::Unmap, DiscardPolicy::Ignore);
        assert_eq!(space(none, unmap), Zeroing::ANY.space);
        assert_eq!(space(none, ignore), Zeroing::ALLOCATED.space);
        assert_eq!(
            space(RequestFlags::NO_UNMAP, unmap),
            Zeroing::ALLOCATED.space
        );
    }

    #[test]
    fn durable_write_is_no_transfer_and_keeps_its_flag() {
        let mut buffer = vec![0; 4096];
        let request = descriptor(operation::WRITE, RequestFlags::FUA, 8);
        assert_eq!(request.transfer_kind(), None);
        let made = request.operation(&mut buffer, DiscardPolicy::Unmap);
        let fua = Persistence::Fua;
        assert!(matches!(made, Some(Operation::Write { persistence, .. }) if persistence == fua));
    }
}
