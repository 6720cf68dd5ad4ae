//! `NBD_CMD_BLOCK_STATUS`: the status of blocks in each negotiated metadata context.
//!
//! `base:allocation` has the protocol's two flags. `extant:state` is 0 for written space that an
//! overwrite can use as it is; its flags are listed in docs/formats/nbd.md. `extant:assign` is
//! always 0: it permits commands.

use std::ops::ControlFlow;

use extant_blockdev::RangeStatus;
use extant_space::{ByteRange, Error, ErrorKind, Result};

use super::command::{Action, Command, Descriptors, Selection, is_inside};
use crate::export::Export;
use crate::handshake::{Agreement, Context};
use extant_nbd::wire::reply::Descriptor;
use extant_nbd::wire::status::{NBD_STATE_HOLE, NBD_STATE_ZERO, state_flags};

/// Descriptors of one context in a reply; the client requests the rest again.
const DESCRIPTORS_MAX: usize = 4096;

/// Context ids and their descriptors, from the start of the requested range.
pub(super) type ContextDescriptors = Vec<(u32, Vec<Descriptor>)>;

/// Queries the contexts that `command` selects.
pub(super) fn query(
    agreement: &Agreement,
    command: &Command,
    payload: &[u8],
) -> Result<ContextDescriptors> {
    let Action::BlockStatus {
        descriptors,
        selection,
    } = command.action
    else {
        unreachable!("a command of another kind");
    };
    let (range, contexts) = match selection {
        Selection::All => (command.range(), agreement.contexts.clone()),
        Selection::Payload => select(agreement, command.to.offset, payload)?,
    };
    let descriptors_max = match descriptors {
        Descriptors::One => 1,
        Descriptors::Many => DESCRIPTORS_MAX,
    };
    let query_context = |context: &Context| {
        let mut list = DescriptorList::new(descriptors_max);
        match context {
            Context::Allocation => allocation(&agreement.export, range, &mut list)?,
            Context::State => state(&agreement.export, range, &mut list)?,
            Context::Assign => {
                let _ = list.push(range.len(), 0);
            }
        }
        if list.descriptors.is_empty() {
            return Err(Error::new(ErrorKind::Io)
                .detail("the device returned no status for the range")
                .in_range(range));
        }
        Ok((context.id(), list.descriptors))
    };
    contexts.iter().map(query_context).collect()
}

/// Parses the payload: the length (64 bits), then context ids (32 bits each).
fn select(agreement: &Agreement, offset: u64, payload: &[u8]) -> Result<(ByteRange, Vec<Context>)> {
    let invalid = |detail| Error::new(ErrorKind::InvalidArgument).detail(detail);
    let (length, ids) = payload
        .split_first_chunk()
        .expect("the payload length is validated");
    let length = u64::from_be_bytes(*length);
    if length == 0 || !is_inside(offset, length, &agreement.export.device().geometry()) {
        return Err(invalid("no bytes, or some past the end of the export"));
    }
    let mut contexts = Vec::new();
    for id in ids.chunks_exact(4) {
        let id = u32::from_be_bytes([id[0], id[1], id[2], id[3]]);
        let context = agreement.contexts.iter().find(|context| context.id() == id);
        let context = *context.ok_or_else(|| invalid("a context that was not chosen"))?;
        if contexts.contains(&context) {
            return Err(invalid("a context is named twice"));
        }
        contexts.push(context);
    }
    if contexts.is_empty() {
        return Err(invalid("no context is named"));
    }
    Ok((ByteRange::new(offset, offset + length), contexts))
}

fn allocation(export: &Export, range: ByteRange, list: &mut DescriptorList) -> Result<()> {
    export.device().status(range, &mut |part, status| {
        let flags = match status {
            RangeStatus::Hole => NBD_STATE_HOLE | NBD_STATE_ZERO,
            RangeStatus::Zero => NBD_STATE_ZERO,
            RangeStatus::Data => 0,
        };
        list.push(part.len(), flags)
    })
}

fn state(export: &Export, range: ByteRange, list: &mut DescriptorList) -> Result<()> {
    export.device().extents(range, &mut |extent| {
        list.push(extent.logical.len(), state_flags(&extent))
    })
}

/// Descriptors; adjacent ones with the same flags are merged.
struct DescriptorList {
    descriptors: Vec<Descriptor>,
    descriptors_max: usize,
}

impl DescriptorList {
    fn new(descriptors_max: usize) -> Self {
        Self {
            descriptors: Vec::new(),
            descriptors_max,
        }
    }

    fn push(&mut self, length: u64, flags: u32) -> ControlFlow<()> {
        let is_full = self.descriptors.len() == self.descriptors_max;
        match self.descriptors.last_mut() {
            _ if length == 0 => {}
            Some(last) if last.flags == flags => last.length += length,
            _ if is_full => return ControlFlow::Break(()),
            _ => self.descriptors.push(Descriptor { length, flags }),
        }
        ControlFlow::Continue(())
    }
}
