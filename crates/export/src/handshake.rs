//! The handshake phase (fixed newstyle): from the greeting to the choice of an export.
//!
//! - The length of an option is checked before its data is read.
//! - The whole handshake has one deadline.
//! - `NBD_OPT_STARTTLS` discards everything that was negotiated before it.

mod contexts;
mod data;
mod information;

use std::io::{self, IoSlice};
use std::mem::size_of;
use std::sync::Arc;
use std::time::Instant;

use extant_space::{Error, ErrorKind, Result};
use rustls::ServerConnection;
use zerocopy::{FromBytes, IntoBytes};

use crate::export::{Export, Exports};
use crate::tls::{Tls, TlsRequirement};
use extant_nbd::socket::Wait;
use extant_nbd::stream::Stream;
use extant_nbd::wire::negotiation::{self as wire, answer, option};
use extant_nbd::wire::reply::ReplyStyle;

pub(crate) use contexts::Context;

/// Most bytes of an option's data that are parsed.
const OPTION_BYTES_MAX: u32 = 64 << 10;
/// Longer data than that is skipped up to this limit, to reply `NBD_REP_ERR_TOO_BIG`.
const SKIPPED_BYTES_MAX: u32 = 16 << 20;

/// Result of the negotiation.
#[derive(Debug)]
pub(crate) struct Agreement {
    pub export: Arc<Export>,
    pub style: ReplyStyle,
    pub contexts: Vec<Context>,
}

/// Properties that the server offers in the handshake.
pub(crate) struct Terms<'a> {
    pub exports: &'a Exports,
    pub tls: Option<&'a Tls>,
    /// Bytes of the largest request.
    pub request_max: u32,
    pub deadline: Instant,
    pub is_stopping: &'a dyn Fn() -> bool,
    /// Called before the reply that grants an export; false: the client was evicted.
    pub claim_slot: &'a dyn Fn() -> bool,
}

/// Negotiates; `None` when the client disconnects without choosing an export.
///
/// # Errors
/// `InvalidArgument` for a protocol violation, and errors of the socket.
pub(crate) fn negotiate(stream: &mut Stream, terms: &Terms<'_>) -> Result<Option<Agreement>> {
    let mut handshake = Handshake {
        stream,
        terms,
        style: ReplyStyle::Simple,
        contexts: None,
        zeroes: Zeroes::Sent,
    };
    handshake.greet()?;
    loop {
        let (option, length) = handshake.next_option()?;
        match handshake.answer(option, length)? {
            Next::Option => {}
            Next::Transmission(agreement) => return Ok(Some(agreement)),
            Next::End => return Ok(None),
        }
    }
}

/// The padding of the reply to `NBD_OPT_EXPORT_NAME`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Zeroes {
    Sent,
    Omitted,
}

enum Next {
    Option,
    Transmission(Agreement),
    End,
}

struct Handshake<'a> {
    stream: &'a mut Stream,
    terms: &'a Terms<'a>,
    style: ReplyStyle,
    /// The contexts selected for one export, and its name.
    contexts: Option<(String, Vec<Context>)>,
    zeroes: Zeroes,
}

/// Why an option is refused: the reply type and a message for the user.
type Refusal = (u32, &'static str);

impl Handshake<'_> {
    fn greet(&mut self) -> Result<()> {
        let greeting = wire::Greeting {
            magic: wire::NBDMAGIC.into(),
            option_magic: wire::IHAVEOPT.into(),
            handshake_flags: (wire::NBD_FLAG_FIXED_NEWSTYLE | wire::NBD_FLAG_NO_ZEROES).into(),
        };
        self.send(&[greeting.as_bytes()])?;
        let mut flags = [0; 4];
        self.receive(&mut flags)?;
        let flags = u32::from_be_bytes(flags);
        if flags & !(wire::NBD_FLAG_C_FIXED_NEWSTYLE | wire::NBD_FLAG_C_NO_ZEROES) != 0 {
            return Err(against_protocol("unknown client flags"));
        }
        if flags & wire::NBD_FLAG_C_FIXED_NEWSTYLE == 0 {
            return Err(against_protocol("the client does not speak fixed newstyle"));
        }
        if flags & wire::NBD_FLAG_C_NO_ZEROES != 0 {
            self.zeroes = Zeroes::Omitted;
        }
        Ok(())
    }

    fn next_option(&mut self) -> Result<(u32, u32)> {
        let mut bytes = [0; size_of::<wire::OptionHeader>()];
        self.receive(&mut bytes)?;
        let header = wire::OptionHeader::ref_from_bytes(&bytes).expect("as many bytes");
        if header.magic.get() != wire::IHAVEOPT {
            return Err(against_protocol("no option where one is expected"));
        }
        Ok((header.option.get(), header.length.get()))
    }

    fn answer(&mut self, option: u32, length: u32) -> Result<Next> {
        if length > OPTION_BYTES_MAX {
            if length > SKIPPED_BYTES_MAX || option == option::EXPORT_NAME {
                return Err(against_protocol("an option of too many bytes"));
            }
            self.skip(length)?;
            return self.refuse(option, (answer::ERR_TOO_BIG, "too many bytes"));
        }
        let mut data = vec![0; length as usize];
        self.receive(&mut data)?;
        if option == option::ABORT {
            // The client may have disconnected already.
            let _ = self.reply(option, answer::ACK, &[]);
            return Ok(Next::End);
        }
        if (self.terms.is_stopping)() {
            if option != option::EXPORT_NAME {
                self.refuse(
                    option,
                    (answer::ERR_SHUTDOWN, "the server is shutting down"),
                )?;
            }
            return Ok(Next::End);
        }
        if self.needs_tls() && option != option::STARTTLS {
            if option == option::EXPORT_NAME {
                return Err(against_protocol("an export was asked for without TLS"));
            }
            return self.refuse(option, (answer::ERR_TLS_REQD, "TLS is required"));
        }
        let result = match option {
            option::EXPORT_NAME => return self.export_name(&data).map(Next::Transmission),
            option::STARTTLS => self.start_tls(&data)?,
            option::LIST => self.list(&data)?,
            option::INFO => self.information(option, &data)?.map(|_| Next::Option),
            option::GO => self.information(option, &data)?.map(Next::Transmission),
            option::STRUCTURED_REPLY => self.choose(option, ReplyStyle::Structured, &data)?,
            option::EXTENDED_HEADERS => self.choose(option, ReplyStyle::Extended, &data)?,
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.meta_context(option, &data)?
            }
            _ => Err((answer::ERR_UNSUP, "unknown option")),
        };
        match result {
            Ok(next) => Ok(next),
            Err(refusal) => self.refuse(option, refusal),
        }
    }

    fn needs_tls(&self) -> bool {
        let is_required = |tls: &Tls| tls.requirement == TlsRequirement::Required;
        !self.stream.is_encrypted() && self.terms.tls.is_some_and(is_required)
    }

    fn start_tls(&mut self, data: &[u8]) -> Result<Result<Next, Refusal>> {
        let Some(tls) = self.terms.tls else {
            return Ok(Err((answer::ERR_POLICY, "TLS is not configured")));
        };
        if !data.is_empty() || self.stream.is_encrypted() {
            return Ok(Err((answer::ERR_INVALID, "TLS starts once, without data")));
        }
        self.reply(option::STARTTLS, answer::ACK, &[])?;
        let connection = ServerConnection::new(tls.config.clone()).map_err(io::Error::other);
        connection
            .and_then(|connection| {
                self.stream
                    .start_tls(connection.into(), self.terms.deadline)
            })
            .map_err(|source| failed("start TLS", source))?;
        self.style = ReplyStyle::Simple;
        self.contexts = None;
        Ok(Ok(Next::Option))
    }

    fn list(&mut self, data: &[u8]) -> Result<Result<Next, Refusal>> {
        if !data.is_empty() {
            return Ok(Err((answer::ERR_INVALID, "a list takes no data")));
        }
        for export in self.terms.exports.iter() {
            let name = export.name().as_bytes();
            let length = (name.len() as u32).to_be_bytes();
            let parts = [&length, name, export.description().as_bytes()];
            self.reply(option::LIST, answer::SERVER, &parts)?;
        }
        self.acknowledge(option::LIST)
    }

    fn choose(
        &mut self,
        option: u32,
        style: ReplyStyle,
        data: &[u8],
    ) -> Result<Result<Next, Refusal>> {
        if !data.is_empty() {
            return Ok(Err((answer::ERR_INVALID, "the option takes no data")));
        }
        if self.style == style {
            return Ok(Err((answer::ERR_INVALID, "it was agreed on before")));
        }
        if self.style == ReplyStyle::Extended {
            let refusal = (answer::ERR_EXT_HEADER_REQD, "extended headers are in use");
            return Ok(Err(refusal));
        }
        self.style = style;
        self.acknowledge(option)
    }

    fn acknowledge(&mut self, option: u32) -> Result<Result<Next, Refusal>> {
        self.reply(option, answer::ACK, &[])?;
        Ok(Ok(Next::Option))
    }

    fn refuse(&mut self, option: u32, (answer, words): Refusal) -> Result<Next> {
        self.reply(option, answer, &[words.as_bytes()])?;
        Ok(Next::Option)
    }

    fn claim_slot(&self) -> Result<()> {
        if (self.terms.claim_slot)() {
            Ok(())
        } else {
            Err(Error::new(ErrorKind::InUse)
                .detail("the client was disconnected in favour of a newer one")
                .during("negotiate"))
        }
    }

    fn agree(&mut self, export: &Arc<Export>) -> Agreement {
        let contexts = match self.contexts.take() {
            Some((name, contexts)) if name == export.name() => contexts,
            _ => Vec::new(),
        };
        Agreement {
            export: export.clone(),
            style: self.style,
            contexts,
        }
    }

    fn reply(&mut self, option: u32, reply: u32, data: &[&[u8]]) -> Result<()> {
        let length: usize = data.iter().map(|part| part.len()).sum();
        let header = wire::OptionReplyHeader {
            magic: wire::OPTION_REPLY_MAGIC.into(),
            option: option.into(),
            reply: reply.into(),
            length: u32::try_from(length).expect("names are short").into(),
        };
        let mut parts = vec![header.as_bytes()];
        parts.extend(data);
        self.send(&parts)
    }

    fn send(&mut self, parts: &[&[u8]]) -> Result<()> {
        let mut parts: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let result = self.stream.write(&mut parts);
        result.map_err(|source| failed("negotiate", source))
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<()> {
        let wait = Wait::Until(self.terms.deadline);
        let result = self.stream.read_exact(into, wait);
        result.map_err(|source| failed("negotiate", source))
    }

    fn skip(&mut self, length: u32) -> Result<()> {
        let mut scratch = [0; 4096];
        let mut left = length as usize;
        while left > 0 {
            let now = left.min(scratch.len());
            self.receive(&mut scratch[..now])?;
            left -= now;
        }
        Ok(())
    }
}

fn against_protocol(detail: &'static str) -> Error {
    Error::new(ErrorKind::InvalidArgument)
        .detail(detail)
        .during("negotiate")
}

fn failed(operation: &'static str, source: io::Error) -> Error {
    let detail = match source.kind() {
        io::ErrorKind::TimedOut => "the client took too long".to_owned(),
        io::ErrorKind::UnexpectedEof => "the client left".to_owned(),
        _ => source.to_string(),
    };
    Error::from(source).detail(detail).during(operation)
}
