//! Metadata contexts: listing and selection.

use extant_space::Result;

use super::data::Data;
use super::{Handshake, Next, Refusal};
use crate::export::Export;
use extant_nbd::wire::negotiation::{answer, option};
use extant_nbd::wire::reply::ReplyStyle;

/// A metadata context for block status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Context {
    /// `base:allocation`: holes and zeros, as the protocol defines them.
    Allocation,
    /// `extant:state`: extent states and flags (docs/formats/nbd.md).
    State,
    /// `extant:assign`: permits the commands of the extension (docs/formats/nbd.md).
    Assign,
}

impl Context {
    const ALL: [Self; 3] = [Self::Allocation, Self::State, Self::Assign];

    /// Its id in replies.
    pub(crate) fn id(self) -> u32 {
        match self {
            Self::Allocation => 1,
            Self::State => 2,
            Self::Assign => 3,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Allocation => "base:allocation",
            Self::State => "extant:state",
            Self::Assign => "extant:assign",
        }
    }

    fn is_offered(self, export: &Export) -> bool {
        match self {
            Self::Allocation => true,
            Self::State => export.reports_extents(),
            Self::Assign => !export.is_read_only(&export.device().geometry()),
        }
    }

    /// A namespace alone ("base:") matches all its contexts in a list request, and none in a
    /// selection.
    fn is_meant(self, option: u32, query: &str) -> bool {
        let is_listing = option == option::LIST_META_CONTEXT;
        query == self.name() || is_listing && query.ends_with(':') && self.name().starts_with(query)
    }
}

impl Handshake<'_> {
    pub(super) fn meta_context(
        &mut self,
        option: u32,
        data: &[u8],
    ) -> Result<Result<Next, Refusal>> {
        if self.style == ReplyStyle::Simple {
            let words = "contexts need structured replies";
            return Ok(Err((answer::ERR_INVALID, words)));
        }
        if option == option::SET_META_CONTEXT {
            self.contexts = None;
        }
        let (export, found) = match self.query(option, data) {
            Ok(found) => found,
            Err(refusal) => return Ok(Err(refusal)),
        };
        for &context in &found {
            let id = match option {
                option::SET_META_CONTEXT => context.id(),
                _ => 0,
            };
            let parts = [&id.to_be_bytes(), context.name().as_bytes()];
            self.reply(option, answer::META_CONTEXT, &parts)?;
        }
        if option == option::SET_META_CONTEXT {
            self.contexts = Some((export, found));
        }
        self.acknowledge(option)
    }

    /// The name of the export, and the matches of the queries.
    fn query(&self, option: u32, data: &[u8]) -> Result<(String, Vec<Context>), Refusal> {
        let mut data = Data(data);
        let name = data.string()?;
        let export = self.terms.exports.find(name);
        let export = export.ok_or((answer::ERR_UNKNOWN, "no export of that name"))?;
        let count = data.u32()?;
        let mut found = Vec::new();
        let mut add = |is_meant: &dyn Fn(Context) -> bool| {
            for context in Context::ALL {
                if is_meant(context) && context.is_offered(export) && !found.contains(&context) {
                    found.push(context);
                }
            }
        };
        if count == 0 && option == option::LIST_META_CONTEXT {
            add(&|_| true);
        }
        for _ in 0..count {
            let query = data.string()?;
            if !query.contains(':') {
                return Err((answer::ERR_INVALID, "a query names a namespace first"));
            }
            add(&|context| context.is_meant(option, query));
        }
        data.end()?;
        Ok((export.name().to_owned(), found))
    }
}
