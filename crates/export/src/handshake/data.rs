//! Parser of an option's data.

use super::Refusal;
use extant_nbd::wire::STRING_MAX;
use extant_nbd::wire::negotiation::answer;

/// The bytes that are not parsed yet.
pub(super) struct Data<'a>(pub &'a [u8]);

impl<'a> Data<'a> {
    pub(super) fn u16(&mut self) -> Result<u16, Refusal> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    pub(super) fn u32(&mut self) -> Result<u32, Refusal> {
        let bytes = self.take(4)?;
        Ok(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// A string preceded by its length.
    pub(super) fn string(&mut self) -> Result<&'a str, Refusal> {
        let length = self.u32()? as usize;
        text(self.take(length)?)
    }

    /// Fails if bytes are left.
    pub(super) fn end(self) -> Result<(), Refusal> {
        match self.0 {
            [] => Ok(()),
            _ => Err((answer::ERR_INVALID, "more data than belongs there")),
        }
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Refusal> {
        let (now, later) = self
            .0
            .split_at_checked(bytes)
            .ok_or((answer::ERR_INVALID, "less data than it says"))?;
        self.0 = later;
        Ok(now)
    }
}

/// A string of the protocol: UTF-8 of bounded length without NUL.
pub(super) fn text(bytes: &[u8]) -> Result<&str, Refusal> {
    if bytes.len() > STRING_MAX {
        return Err((answer::ERR_TOO_BIG, "a text of more than 4096 bytes"));
    }
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text),
        _ => Err((
            answer::ERR_INVALID,
            "a text that is no UTF-8, or has a NUL in it",
        )),
    }
}
