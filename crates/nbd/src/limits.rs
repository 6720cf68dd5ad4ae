//! Geometry and features of a device, from what was agreed on.

use extant_blockdev::{Features, Geometry, Limits, RangeLimit, WriteBuffers};

use crate::handshake::Agreement;
use crate::options::NbdAccess;
use crate::wire::negotiation::transmission_flag as flag;

/// Most bytes of a read or write. Larger transfers gain nothing, as many are in flight, and this is
/// the unit of memory for replies.
const TRANSFER_BYTES_MAX: u64 = 1 << 20;
/// Most zeros that are sent as data by one write.
pub(crate) const ZEROES_BYTES_MAX: u64 = 8 << 20;
/// A server may take long for a write zeroes that has no offload.
const WRITE_ZEROES_BYTES_MAX: u64 = 128 << 20;
const DISCARD_BYTES_MAX: u64 = 1 << 30;
const ASSIGN_BYTES_MAX: u64 = 256 << 20;
/// Most bytes of a request to a server that says nothing about block sizes.
const ASSUMED_MAXIMUM: u32 = 32 << 20;

/// The properties of the device; the size is that of the agreement, in whole blocks.
pub(crate) fn geometry(agreement: &Agreement, access: NbdAccess) -> Geometry {
    let (logical_block, physical_block) = match agreement.blocks {
        Some(blocks) => (blocks.minimum, blocks.preferred),
        // Such a server takes any byte; whole sectors are what it is good at.
        None if agreement.size.is_multiple_of(512) => (512, 4096),
        None => (1, 4096),
    };
    let block = u64::from(logical_block);
    let whole = |bytes: u64| bytes / block * block;
    let limit = |bytes| RangeLimit {
        bytes: whole(bytes),
        granularity: block,
    };
    let has = |flag| agreement.flags & flag != 0;
    let mut features = Features::empty();
    features.set(Features::VOLATILE_CACHE, has(flag::SEND_FLUSH));
    features.set(Features::FUA, has(flag::SEND_FUA));
    features.set(Features::STATUS, agreement.contexts.allocation.is_some());
    features.set(Features::EXTENTS, agreement.contexts.state.is_some());
    if has(flag::READ_ONLY) || access == NbdAccess::ReadOnly {
        features |= Features::READ_ONLY;
    } else {
        let zeroes = Features::WRITE_ZEROES | Features::WRITE_ZEROES_UNMAP;
        features.set(zeroes, has(flag::SEND_WRITE_ZEROES));
        features |= Features::WRITE_ZEROES_ALLOCATE;
        features.set(Features::DISCARD, has(flag::SEND_TRIM));
        features.set(Features::ASSIGN, agreement.contexts.assign.is_some());
    }
    Geometry {
        size: whole(agreement.size),
        logical_block,
        physical_block,
        limits: Limits {
            transfer: whole(TRANSFER_BYTES_MAX.min(maximum(agreement))),
            discard: limit(DISCARD_BYTES_MAX),
            write_zeroes: limit(WRITE_ZEROES_BYTES_MAX),
            assign: limit(ASSIGN_BYTES_MAX),
        },
        features,
    }
}

/// Most bytes that the server takes as the data of one request.
pub(crate) fn maximum(agreement: &Agreement) -> u64 {
    let blocks = agreement.blocks.map(|blocks| blocks.maximum);
    u64::from(blocks.unwrap_or(ASSUMED_MAXIMUM).min(ASSUMED_MAXIMUM))
}

/// `length` bytes of zeros.
pub(crate) fn zeroes<'a>(length: u64) -> WriteBuffers<'a> {
    static ZEROES: [u8; 64 << 10] = [0; 64 << 10];
    let parts = (0..length).step_by(ZEROES.len());
    let part = |start: u64| &ZEROES[..(length - start).min(ZEROES.len() as u64) as usize];
    parts.map(part).collect()
}
