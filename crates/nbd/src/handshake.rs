//! The handshake phase, client's side: from the greeting to an export.
//!
//! - One deadline for the whole handshake.
//! - The length of every answer is checked before memory is allocated, and the number of answers
//!   to one option is limited.
//! - What the server offers is used: extended headers, else structured replies, else simple ones.
//!   With TLS nothing is asked for before it is on.

use std::io::{self, IoSlice};
use std::mem::size_of;
use std::time::Instant;

use extant_space::{Error, ErrorKind, Result};
use zerocopy::{FromBytes, IntoBytes};

use crate::options::NbdAssign;
use crate::socket::Wait;
use crate::stream::Stream;
use crate::tls::ClientTls;
use crate::wire::STRING_MAX;
use crate::wire::negotiation::{self as wire, answer, information, option};
use crate::wire::reply::ReplyStyle;

/// Most bytes of one answer.
const ANSWER_BYTES_MAX: u32 = 64 << 10;
/// Most answers to one option.
const ANSWERS_MAX: usize = 64;
/// The first bytes of servers without options, as of 2012.
const OLDSTYLE_MAGIC: u64 = 0x0000_4202_8186_1253;

/// Result of the negotiation with a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Agreement {
    pub style: ReplyStyle,
    /// Bytes of the export.
    pub size: u64,
    /// `NBD_FLAG_*`.
    pub flags: u16,
    pub blocks: Option<BlockSizes>,
    pub contexts: Contexts,
}

/// `NBD_INFO_BLOCK_SIZE`, validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockSizes {
    pub minimum: u32,
    pub preferred: u32,
    pub maximum: u32,
}

/// The ids of the metadata contexts that the server has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contexts {
    /// `base:allocation`.
    pub allocation: Option<u32>,
    /// `extant:state`.
    pub state: Option<u32>,
    /// `extant:assign`.
    pub assign: Option<u32>,
}

impl Contexts {
    pub(crate) fn has(&self, id: u32) -> bool {
        [self.allocation, self.state, self.assign].contains(&Some(id))
    }

    fn slot(&mut self, name: &[u8]) -> Option<&mut Option<u32>> {
        match name {
            b"base:allocation" => Some(&mut self.allocation),
            b"extant:state" => Some(&mut self.state),
            b"extant:assign" => Some(&mut self.assign),
            _ => None,
        }
    }
}

/// Requests of a client.
pub(crate) struct Wishes<'a> {
    pub export: &'a str,
    pub tls: Option<&'a ClientTls>,
    pub assign: NbdAssign,
    pub deadline: Instant,
}

/// Negotiates for transmission.
///
/// # Errors
/// `InvalidArgument` when the server violates the protocol, `NotFound` without that export,
/// `Unsupported` for a server that is too old, `PermissionDenied` if TLS is missing or refused, and
/// errors of the socket.
pub(crate) fn negotiate(stream: &mut Stream, wishes: &Wishes<'_>) -> Result<Agreement> {
    let mut handshake = Handshake::begin(stream, wishes)?;
    let style = handshake.choose_style()?;
    let contexts = match style {
        ReplyStyle::Simple => Contexts::default(),
        _ => handshake.choose_contexts()?,
    };
    let export = match handshake.export(option::GO)? {
        Some(export) => export,
        None => handshake.export_by_name()?,
    };
    Ok(Agreement {
        style,
        size: export.size,
        flags: export.flags,
        blocks: export.blocks,
        contexts,
    })
}

/// The current size of the export.
///
/// # Errors
/// As [`negotiate`]; `Unsupported` for a server that does not say it.
pub(crate) fn query_size(stream: &mut Stream, wishes: &Wishes<'_>) -> Result<u64> {
    let mut handshake = Handshake::begin(stream, wishes)?;
    let export = handshake.export(option::INFO)?;
    // The server may have disconnected.
    let _ = handshake.send_option(option::ABORT, &[]);
    let export = export.ok_or_else(|| {
        Error::new(ErrorKind::Unsupported).detail("the server reports no size without an export")
    })?;
    Ok(export.size)
}

struct ExportInformation {
    size: u64,
    flags: u16,
    blocks: Option<BlockSizes>,
}

struct Handshake<'a> {
    stream: &'a mut Stream,
    wishes: &'a Wishes<'a>,
    has_zeroes: bool,
}

/// The last answer to an option.
enum Answer {
    Acknowledged,
    /// An error: type and message.
    Refused(u32, String),
}

impl<'a> Handshake<'a> {
    fn begin(stream: &'a mut Stream, wishes: &'a Wishes<'a>) -> Result<Self> {
        let mut handshake = Self {
            stream,
            wishes,
            has_zeroes: true,
        };
        handshake.greet()?;
        if let Some(tls) = wishes.tls {
            handshake.start_tls(tls)?;
        }
        Ok(handshake)
    }

    fn greet(&mut self) -> Result<()> {
        let mut bytes = [0; size_of::<wire::Greeting>()];
        let (first, rest) = bytes.split_at_mut(16);
        self.receive(first)?;
        let magic = u64::from_be_bytes(first[..8].try_into().expect("eight bytes"));
        let style = u64::from_be_bytes(first[8..].try_into().expect("eight bytes"));
        if magic != wire::NBDMAGIC {
            return Err(violation("the greeting is none of an NBD server"));
        }
        if style != wire::IHAVEOPT {
            return Err(match style {
                OLDSTYLE_MAGIC => too_old(),
                _ => violation("an unknown kind of greeting"),
            });
        }
        self.receive(rest)?;
        let flags = u16::from_be_bytes([bytes[16], bytes[17]]);
        if flags & wire::NBD_FLAG_FIXED_NEWSTYLE == 0 {
            return Err(too_old());
        }
        let mut own = wire::NBD_FLAG_C_FIXED_NEWSTYLE;
        if flags & wire::NBD_FLAG_NO_ZEROES != 0 {
            own |= wire::NBD_FLAG_C_NO_ZEROES;
            self.has_zeroes = false;
        }
        self.send(&[&own.to_be_bytes()])
    }

    fn start_tls(&mut self, tls: &ClientTls) -> Result<()> {
        self.send_option(option::STARTTLS, &[])?;
        if let Answer::Refused(_, message) = self.answers(option::STARTTLS, &mut |_, _| Ok(()))? {
            return Err(Error::new(ErrorKind::PermissionDenied)
                .detail(format!("the server refuses TLS{message}")));
        }
        let failed = |error: &dyn std::fmt::Display| {
            Error::new(ErrorKind::PermissionDenied)
                .detail(format!("TLS: {error}"))
                .during("connect")
        };
        let connection = tls.connection().map_err(|error| failed(&error))?;
        let started = self
            .stream
            .start_tls(connection.into(), self.wishes.deadline);
        started.map_err(|source| match source.kind() {
            io::ErrorKind::InvalidData | io::ErrorKind::Other => failed(&source),
            _ => broken(source),
        })
    }

    fn choose_style(&mut self) -> Result<ReplyStyle> {
        for (option, style) in [
            (option::EXTENDED_HEADERS, ReplyStyle::Extended),
            (option::STRUCTURED_REPLY, ReplyStyle::Structured),
        ] {
            self.send_option(option, &[])?;
            match self.answers(option, &mut |_, _| Ok(()))? {
                Answer::Acknowledged => return Ok(style),
                Answer::Refused(kind, message) => refuse_access(kind, &message)?,
            }
        }
        Ok(ReplyStyle::Simple)
    }

    fn choose_contexts(&mut self) -> Result<Contexts> {
        let mut names = vec!["base:allocation", "extant:state"];
        if self.wishes.assign == NbdAssign::Negotiate {
            names.push("extant:assign");
        }
        let mut data = Vec::new();
        push_string(&mut data, self.wishes.export);
        data.extend((names.len() as u32).to_be_bytes());
        names.iter().for_each(|name| push_string(&mut data, name));
        self.send_option(option::SET_META_CONTEXT, &data)?;
        let mut contexts = Contexts::default();
        let answer = self.answers(option::SET_META_CONTEXT, &mut |kind, data| {
            let (answer::META_CONTEXT, Some((id, name))) = (kind, data.split_first_chunk()) else {
                return Err(violation("a metadata context without an id"));
            };
            let id = u32::from_be_bytes(*id);
            let is_asked_for = names.iter().any(|asked| asked.as_bytes() == name);
            if !is_asked_for || contexts.has(id) {
                return Err(violation(
                    "a metadata context that was not asked for, or two of one id",
                ));
            }
            match contexts.slot(name) {
                Some(slot) if slot.is_none() => *slot = Some(id),
                _ => return Err(violation("a metadata context twice")),
            }
            Ok(())
        })?;
        Ok(match answer {
            Answer::Acknowledged => contexts,
            Answer::Refused(..) => Contexts::default(),
        })
    }

    /// `NBD_OPT_GO` or `NBD_OPT_INFO`; `None` from a server that does not know the option.
    fn export(&mut self, option: u32) -> Result<Option<ExportInformation>> {
        let mut data = Vec::new();
        push_string(&mut data, self.wishes.export);
        data.extend(1_u16.to_be_bytes());
        data.extend(information::BLOCK_SIZE.to_be_bytes());
        self.send_option(option, &data)?;
        let mut about = None;
        let mut blocks = None;
        let answer = self.answers(option, &mut |kind, data| {
            let (answer::INFO, Some((information, _))) = (kind, data.split_first_chunk()) else {
                return Err(violation("an answer that is no information"));
            };
            match u16::from_be_bytes(*information) {
                information::EXPORT => {
                    let raw = wire::ExportInformation::ref_from_bytes(data)
                        .map_err(|_| violation("information on an export of another size"))?;
                    about = Some((raw.size.get(), raw.transmission_flags.get()));
                }
                information::BLOCK_SIZE => {
                    let raw = wire::BlockSizeInformation::ref_from_bytes(data)
                        .map_err(|_| violation("information on block sizes of another size"))?;
                    blocks = Some(BlockSizes::validated(raw)?);
                }
                _ => {}
            }
            Ok(())
        })?;
        match answer {
            Answer::Refused(answer::ERR_UNSUP, _) => Ok(None),
            Answer::Refused(kind, message) => {
                Err(refused_export(self.wishes.export, kind, &message))
            }
            Answer::Acknowledged => {
                let (size, flags) = about.ok_or_else(|| violation("an export without a size"))?;
                check_size(size)?;
                Ok(Some(ExportInformation {
                    size,
                    flags,
                    blocks,
                }))
            }
        }
    }

    /// `NBD_OPT_EXPORT_NAME`, for servers of before 2017. An unknown name ends the connection.
    fn export_by_name(&mut self) -> Result<ExportInformation> {
        self.send_option(option::EXPORT_NAME, self.wishes.export.as_bytes())?;
        let mut about = [0; size_of::<wire::ExportInformation>() - size_of::<u16>()];
        self.receive(&mut about).map_err(|error| {
            let detail = format!("the server refuses the export {:?}", self.wishes.export);
            error.detail(detail)
        })?;
        if self.has_zeroes {
            self.receive(&mut [0; wire::EXPORT_NAME_ZEROES])?;
        }
        let (size, flags) = about.split_first_chunk().expect("ten bytes");
        let size = u64::from_be_bytes(*size);
        check_size(size)?;
        Ok(ExportInformation {
            size,
            flags: u16::from_be_bytes([flags[0], flags[1]]),
            blocks: None,
        })
    }

    fn send_option(&mut self, option: u32, data: &[u8]) -> Result<()> {
        let header = wire::OptionHeader {
            magic: wire::IHAVEOPT.into(),
            option: option.into(),
            length: (data.len() as u32).into(),
        };
        self.send(&[header.as_bytes(), data])
    }

    /// The answers to `option`, up to the last one.
    fn answers(
        &mut self,
        option: u32,
        visit: &mut dyn FnMut(u32, &[u8]) -> Result<()>,
    ) -> Result<Answer> {
        for _ in 0..ANSWERS_MAX {
            let mut bytes = [0; size_of::<wire::OptionReplyHeader>()];
            self.receive(&mut bytes)?;
            let header = wire::OptionReplyHeader::ref_from_bytes(&bytes).expect("as many bytes");
            if header.magic.get() != wire::OPTION_REPLY_MAGIC || header.option.get() != option {
                return Err(violation("no answer to the option"));
            }
            let length = header.length.get();
            if length > ANSWER_BYTES_MAX {
                return Err(violation(format!("an answer of {length} bytes")));
            }
            let mut data = vec![0; length as usize];
            self.receive(&mut data)?;
            match header.reply.get() {
                answer::ACK if data.is_empty() => return Ok(Answer::Acknowledged),
                answer::ACK => return Err(violation("an acknowledgement with data")),
                kind if kind & answer::ERROR != 0 => {
                    return Ok(Answer::Refused(kind, message(&data)));
                }
                kind => visit(kind, &data)?,
            }
        }
        Err(violation(format!(
            "more than {ANSWERS_MAX} answers to an option"
        )))
    }

    fn send(&mut self, parts: &[&[u8]]) -> Result<()> {
        let mut parts: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
        self.stream.write(&mut parts).map_err(broken)
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<()> {
        let wait = Wait::Until(self.wishes.deadline);
        self.stream.read_exact(into, wait).map_err(broken)
    }
}

impl BlockSizes {
    /// Checks the rules of the specification, "Block size constraints".
    fn validated(raw: &wire::BlockSizeInformation) -> Result<Self> {
        const MINIMUM_MAX: u32 = 64 << 10;
        let sizes = Self {
            minimum: raw.minimum.get(),
            preferred: raw.preferred.get(),
            maximum: raw.maximum.get(),
        };
        let is_valid = sizes.minimum.is_power_of_two()
            && sizes.minimum <= MINIMUM_MAX
            && sizes.preferred.is_power_of_two()
            && sizes.preferred >= sizes.minimum
            && sizes.maximum >= sizes.minimum
            && (sizes.maximum == u32::MAX || sizes.maximum.is_multiple_of(sizes.minimum));
        if !is_valid {
            return Err(violation(format!("invalid block sizes: {sizes:?}")));
        }
        Ok(sizes)
    }
}

/// Offsets past it are no file offsets anywhere.
fn check_size(size: u64) -> Result<()> {
    if i64::try_from(size).is_err() {
        return Err(violation(format!("an export of {size} bytes")));
    }
    Ok(())
}

fn push_string(data: &mut Vec<u8>, text: &str) {
    data.extend((text.len() as u32).to_be_bytes());
    data.extend(text.as_bytes());
}

/// A message of the server as part of a line: nothing, or text without control characters.
pub(crate) fn message(bytes: &[u8]) -> String {
    let bytes = &bytes[..bytes.len().min(STRING_MAX)];
    let text = String::from_utf8_lossy(bytes);
    let printable = text.chars().filter(|c| !c.is_control());
    let text: String = printable.collect();
    match text.trim() {
        "" => String::new(),
        text => format!(" (server: {text})"),
    }
}

/// Errors after which no other option is tried.
fn refuse_access(kind: u32, message: &str) -> Result<()> {
    match kind {
        answer::ERR_TLS_REQD => Err(Error::new(ErrorKind::PermissionDenied)
            .detail(format!("the server requires TLS{message}"))
            .advice("use nbds:// or nbds+unix://")),
        answer::ERR_SHUTDOWN => {
            let detail = format!("the server is shutting down{message}");
            Err(broken(io::ErrorKind::ConnectionRefused.into()).detail(detail))
        }
        _ => Ok(()),
    }
}

fn refused_export(name: &str, kind: u32, message: &str) -> Error {
    if let Err(error) = refuse_access(kind, message) {
        return error;
    }
    let (kind, why) = match kind {
        answer::ERR_UNKNOWN => (ErrorKind::NotFound, "the server has no export".to_owned()),
        answer::ERR_POLICY => (
            ErrorKind::PermissionDenied,
            "the server denies access to the export".to_owned(),
        ),
        kind => (
            ErrorKind::Unsupported,
            format!(
                "the server refuses, with error {:#x}, the export",
                kind & !answer::ERROR
            ),
        ),
    };
    Error::new(kind).detail(format!("{why} {name:?}{message}"))
}

fn too_old() -> Error {
    Error::new(ErrorKind::Unsupported).detail("the server does not speak fixed newstyle NBD")
}

fn broken(source: io::Error) -> Error {
    let detail = match source.kind() {
        io::ErrorKind::TimedOut => "the server took too long".to_owned(),
        io::ErrorKind::UnexpectedEof => "the server disconnected".to_owned(),
        _ => source.to_string(),
    };
    Error::from(source).detail(detail).during("connect")
}

/// The error for a server that breaks a rule of the protocol.
pub(crate) fn violation(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument).detail(format!(
        "the server violates the protocol: {}",
        detail.into()
    ))
}
