//! Export information: `NBD_OPT_INFO`, `NBD_OPT_GO` and the older `NBD_OPT_EXPORT_NAME`.

use std::sync::Arc;

use extant_space::Result;
use zerocopy::IntoBytes;

use super::data::{Data, text};
use super::{Agreement, Handshake, Refusal, Zeroes, against_protocol};
use crate::export::Export;
use extant_nbd::wire::negotiation::{self as wire, answer, information};

impl Handshake<'_> {
    /// Replies with the requested information; returns the agreement that `GO` would make.
    pub(super) fn information(
        &mut self,
        option: u32,
        data: &[u8],
    ) -> Result<Result<Agreement, Refusal>> {
        let (export, wanted) = match self.look_up(data) {
            Ok(found) => found,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if export.needs_block_sizes() && !wanted.contains(&information::BLOCK_SIZE) {
            let words = "the export has large blocks: ask for block sizes";
            return Ok(Err((answer::ERR_BLOCK_SIZE_REQD, words)));
        }
        let about = self.export_information(&export);
        self.reply(option, answer::INFO, &[about.as_bytes()])?;
        let (minimum, preferred) = export.block_sizes();
        let sizes = wire::BlockSizeInformation {
            information: information::BLOCK_SIZE.into(),
            minimum: minimum.into(),
            preferred: preferred.into(),
            maximum: self.terms.request_max.into(),
        };
        self.reply(option, answer::INFO, &[sizes.as_bytes()])?;
        for (kind, text) in [
            (information::NAME, export.name()),
            (information::DESCRIPTION, export.description()),
        ] {
            if wanted.contains(&kind) && !text.is_empty() {
                let parts = [&kind.to_be_bytes(), text.as_bytes()];
                self.reply(option, answer::INFO, &parts)?;
            }
        }
        if option == wire::option::GO {
            self.claim_slot()?;
        }
        self.reply(option, answer::ACK, &[])?;
        // `NBD_OPT_INFO` leaves the selected contexts for a later `NBD_OPT_GO`.
        Ok(Ok(match option {
            wire::option::GO => self.agree(&export),
            _ => Agreement {
                export,
                style: self.style,
                contexts: Vec::new(),
            },
        }))
    }

    /// The reply cannot carry an error: the connection ends instead.
    pub(super) fn export_name(&mut self, data: &[u8]) -> Result<Agreement> {
        let name = text(data).map_err(|(_, words)| against_protocol(words))?;
        let export = self.terms.exports.find(name);
        let export = export.ok_or_else(|| against_protocol("no export of that name"))?;
        if export.needs_block_sizes() {
            return Err(against_protocol(
                "the client cannot know the export's block sizes",
            ));
        }
        let about = self.export_information(export);
        let zeroes = [0; wire::EXPORT_NAME_ZEROES];
        let zeroes = match self.zeroes {
            Zeroes::Sent => &zeroes[..],
            Zeroes::Omitted => &[],
        };
        self.claim_slot()?;
        // All but the type.
        self.send(&[&about.as_bytes()[2..], zeroes])?;
        Ok(self.agree(export))
    }

    fn look_up(&self, data: &[u8]) -> Result<(Arc<Export>, Vec<u16>), Refusal> {
        let mut data = Data(data);
        let name = data.string()?;
        let count = data.u16()?;
        let wanted = (0..count)
            .map(|_| data.u16())
            .collect::<Result<Vec<_>, _>>()?;
        data.end()?;
        let export = self.terms.exports.find(name);
        let export = export.ok_or((answer::ERR_UNKNOWN, "no export of that name"))?;
        Ok((export.clone(), wanted))
    }

    fn export_information(&self, export: &Export) -> wire::ExportInformation {
        // If this fails, the last known size is sent and requests will return the error.
        let _ = export.device().refresh();
        wire::ExportInformation {
            information: information::EXPORT.into(),
            size: export.device().geometry().size.into(),
            transmission_flags: export.transmission_flags(self.style).into(),
        }
    }
}
