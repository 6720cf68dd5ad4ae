//! NBD URIs: which export of which server.
//!
//! Format: <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/uri.md>. The parameters are
//! those of libnbd; unknown ones are ignored, as the specification wants, unless they are about
//! TLS: a security setting is never dropped in silence.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use extant_space::{Error, ErrorKind, Result};

use crate::wire::STRING_MAX;

const DEFAULT_PORT: u16 = 10809;
const SCHEMES: [&str; 6] = [
    "nbd",
    "nbds",
    "nbd+unix",
    "nbds+unix",
    "nbd+vsock",
    "nbds+vsock",
];

/// The address of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdUri {
    transport: NbdTransport,
    tls: Option<NbdTls>,
    export: String,
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdTransport {
    /// TCP. A literal IPv6 address has no brackets.
    Tcp {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
    },
    /// A Unix socket.
    Unix(PathBuf),
}

/// Parameters of TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NbdTls {
    /// Directory with `ca-cert.pem` and, for servers that want one, `client-cert.pem` and
    /// `client-key.pem`. `None`: the directories that libnbd searches.
    pub certificates: Option<PathBuf>,
    /// The name that the server's certificate must have, if not that of the host.
    pub hostname: Option<String>,
}

impl NbdUri {
    /// An export without TLS.
    ///
    /// # Errors
    /// `InvalidArgument` for an export name that the protocol cannot carry.
    pub fn new(transport: NbdTransport, export: impl Into<String>) -> Result<Self> {
        let export = export.into();
        if export.len() > STRING_MAX || export.contains('\0') {
            return Err(Error::new(ErrorKind::InvalidArgument).detail(format!(
                "the name of an export has at most {STRING_MAX} bytes, and no NUL"
            )));
        }
        Ok(Self {
            transport,
            tls: None,
            export,
        })
    }

    /// The same export over TLS.
    #[must_use]
    pub fn with_tls(self, tls: NbdTls) -> Self {
        Self {
            tls: Some(tls),
            ..self
        }
    }

    /// The same export when the process has changed its directory.
    pub(crate) fn with_absolute_socket(mut self) -> Self {
        if let NbdTransport::Unix(path) = &mut self.transport
            && let Ok(absolute) = std::path::absolute(&*path)
        {
            *path = absolute;
        }
        self
    }

    /// Whether `text` has the scheme of an NBD URI, valid or not.
    pub fn is_uri(text: &str) -> bool {
        let scheme = text.split_once("://").map(|(scheme, _)| scheme);
        scheme.is_some_and(|scheme| {
            SCHEMES
                .iter()
                .any(|known| known.eq_ignore_ascii_case(scheme))
        })
    }

    /// Where the server listens.
    pub fn transport(&self) -> &NbdTransport {
        &self.transport
    }

    /// TLS, if the scheme asks for it.
    pub fn tls(&self) -> Option<&NbdTls> {
        self.tls.as_ref()
    }

    /// The name of the export; empty for the server's default.
    pub fn export(&self) -> &str {
        &self.export
    }
}

impl FromStr for NbdUri {
    type Err = Error;

    /// # Errors
    /// `InvalidArgument` or `Unsupported`, with the part of the URI that is wrong.
    fn from_str(text: &str) -> Result<Self> {
        parse(text).map_err(|error| error.at(text))
    }
}

fn parse(text: &str) -> Result<NbdUri> {
    let (scheme, rest) = text
        .split_once("://")
        .ok_or_else(|| invalid("scheme", "it ends with \"://\""))?;
    let scheme = scheme.to_ascii_lowercase();
    let (is_unix, is_encrypted) = match scheme.as_str() {
        "nbd" => (false, false),
        "nbds" => (false, true),
        "nbd+unix" => (true, false),
        "nbds+unix" => (true, true),
        "nbd+vsock" | "nbds+vsock" => return Err(unsupported("scheme", "no VSOCK")),
        _ => return Err(invalid("scheme", "nbd, nbds, nbd+unix or nbds+unix")),
    };
    if rest.contains('#') {
        return Err(invalid("fragment", "an NBD URI has none"));
    }
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let parameters = Parameters::parse(query)?;
    let transport = if is_unix {
        if !authority.is_empty() {
            let why = "a Unix socket has none: write three slashes";
            return Err(invalid("host", why));
        }
        let socket = parameters.socket;
        let socket = socket.filter(|path| !path.as_os_str().is_empty());
        NbdTransport::Unix(socket.ok_or_else(|| invalid("query", "socket=PATH is missing"))?)
    } else {
        if parameters.socket.is_some() {
            let why = "only nbd+unix and nbds+unix take it";
            return Err(invalid("query, socket", why));
        }
        let (host, port) = parse_authority(authority)?;
        NbdTransport::Tcp { host, port }
    };
    if !is_encrypted && parameters.tls != NbdTls::default() {
        return Err(invalid("query, tls-*", "only nbds and nbds+unix take it"));
    }
    let uri = NbdUri::new(transport, decode("export", path)?)?;
    if is_encrypted {
        return Ok(uri.with_tls(parameters.tls));
    }
    Ok(uri)
}

fn parse_authority(authority: &str) -> Result<(String, u16)> {
    if authority.contains('@') {
        let why = "names are for pre-shared keys, which are not supported; use certificates";
        return Err(unsupported("user name", why));
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(literal) => {
            let (host, rest) = literal
                .split_once(']')
                .ok_or_else(|| invalid("host", "a bracket is not closed"))?;
            if host.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(invalid("host", "no IPv6 address between the brackets"));
            }
            let port = match rest.strip_prefix(':') {
                Some(port) => Some(port),
                None if rest.is_empty() => None,
                None => return Err(invalid("port", "it follows a colon")),
            };
            (host.to_owned(), port)
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (decode("host", host)?, Some(port)),
            None => (decode("host", authority)?, None),
        },
    };
    if host.is_empty() {
        return Err(invalid("host", "it is missing"));
    }
    let port = match port {
        None | Some("") => DEFAULT_PORT,
        Some(port) => port
            .parse()
            .ok()
            .filter(|port| *port != 0)
            .ok_or_else(|| invalid("port", "a number from 1 to 65535"))?,
    };
    Ok((host, port))
}

#[derive(Default)]
struct Parameters {
    socket: Option<PathBuf>,
    tls: NbdTls,
}

impl Parameters {
    fn parse(query: &str) -> Result<Self> {
        let mut parameters = Self::default();
        for part in query.split(['&', ';']).filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let name = decode("query", name)?.to_ascii_lowercase();
            match name.as_str() {
                "socket" => parameters.socket = Some(decode("query, socket", value)?.into()),
                "tls-certificates" => {
                    let directory = decode("query, tls-certificates", value)?;
                    parameters.tls.certificates = Some(directory.into());
                }
                "tls-hostname" => {
                    parameters.tls.hostname = Some(decode("query, tls-hostname", value)?);
                }
                "tls-verify-peer" if matches!(value, "true" | "1" | "on" | "yes") => {}
                "tls-verify-peer" => {
                    let why = "the certificate of the server is always verified";
                    return Err(unsupported("query, tls-verify-peer", why));
                }
                "tls-psk-file" | "tls-username" => {
                    let why = "pre-shared keys are not supported; use tls-certificates";
                    return Err(unsupported("query, tls-psk-file", why));
                }
                other if other.starts_with("tls-") => {
                    return Err(unsupported(
                        "query",
                        &format!("unknown parameter {other:?}"),
                    ));
                }
                _ => {}
            }
        }
        Ok(parameters)
    }
}

/// Decodes `%XX`.
fn decode(part: &'static str, text: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        match (digit(rest.next()), digit(rest.next())) {
            (Some(high), Some(low)) => bytes.push((high * 16 + low) as u8),
            _ => return Err(invalid(part, "two hexadecimal digits follow \"%\"")),
        }
    }
    match String::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text),
        _ => Err(invalid(part, "no UTF-8, or a NUL in it")),
    }
}

/// Encodes all but the characters that every part of a URI may have, and `/`.
fn encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

fn encode_path(path: &Path) -> String {
    encode(&path.to_string_lossy())
}

fn invalid(part: &str, why: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument).detail(format!("invalid NBD URI ({part}): {why}"))
}

fn unsupported(part: &str, why: &str) -> Error {
    Error::new(ErrorKind::Unsupported).detail(format!("unsupported NBD URI ({part}): {why}"))
}

impl fmt::Display for NbdUri {
    /// In a form that parses to the same.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let encrypted = if self.tls.is_some() { "s" } else { "" };
        let export = encode(&self.export);
        let mut query = Vec::new();
        match &self.transport {
            NbdTransport::Tcp { host, port } => {
                write!(f, "nbd{encrypted}://")?;
                if host.contains(':') {
                    write!(f, "[{host}]")?;
                } else {
                    write!(f, "{}", encode(host))?;
                }
                if *port != DEFAULT_PORT {
                    write!(f, ":{port}")?;
                }
            }
            NbdTransport::Unix(path) => {
                write!(f, "nbd{encrypted}+unix://")?;
                query.push(format!("socket={}", encode_path(path)));
            }
        }
        write!(f, "/{export}")?;
        if let Some(tls) = &self.tls {
            let directory = tls.certificates.as_deref();
            query.extend(directory.map(|path| format!("tls-certificates={}", encode_path(path))));
            let hostname = tls.hostname.as_deref();
            query.extend(hostname.map(|name| format!("tls-hostname={}", encode(name))));
        }
        if query.is_empty() {
            return Ok(());
        }
        write!(f, "?{}", query.join("&"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> NbdUri {
        text.parse().unwrap()
    }

    #[test]
    fn forms_of_the_specification_are_understood() {
        let tcp = |host: &str, port| NbdTransport::Tcp {
            host: host.to_owned(),
            port,
        };
        for (text, transport, export) in [
            ("nbd://example.com", tcp("example.com", 10809), ""),
            ("NBD://example.com:/", tcp("example.com", 10809), ""),
            (
                "nbd://example.com:1234/a%20b/c",
                tcp("example.com", 1234),
                "a b/c",
            ),
            ("nbd://[::1]:1/%2Fa", tcp("::1", 1), "/a"),
            (
                "nbd+unix:///disk?socket=/run/a%3Fb",
                NbdTransport::Unix("/run/a?b".into()),
                "disk",
            ),
            (
                "nbd+unix://?socket=s&other=1",
                NbdTransport::Unix("s".into()),
                "",
            ),
        ] {
            assert!(NbdUri::is_uri(text));
            let uri = parsed(text);
            assert_eq!(
                (uri.transport(), uri.export()),
                (&transport, export),
                "{text}"
            );
            assert_eq!(uri.tls(), None);
        }
        let uri = parsed("nbds://h/?tls-certificates=/etc/a&tls-hostname=b&tls-verify-peer=true");
        let tls = uri.tls().unwrap();
        assert_eq!(tls.certificates.as_deref(), Some(Path::new("/etc/a")));
        assert_eq!(tls.hostname.as_deref(), Some("b"));
    }

    #[test]
    fn wrong_part_is_named() {
        for (text, part) in [
            ("disk.img", "scheme"),
            ("http://a/", "scheme"),
            ("nbd+vsock://2/", "scheme"),
            ("nbd:///a", "host"),
            ("nbd://[::1/a", "host"),
            ("nbd://[a]/", "host"),
            ("nbd://a:0/", "port"),
            ("nbd://a:65536/", "port"),
            ("nbd://u@a/", "user name"),
            ("nbd://a/%", "export"),
            ("nbd://a/%g0", "export"),
            ("nbd://a/%ff", "export"),
            ("nbd://a/%00", "export"),
            ("nbd://a/b#c", "fragment"),
            ("nbd://a/?socket=s", "query, socket"),
            ("nbd+unix://a/?socket=s", "host"),
            ("nbd+unix:///a", "query"),
            ("nbd+unix:///a?socket=", "query"),
            ("nbd://a/?tls-hostname=b", "query, tls-"),
            ("nbds://a/?tls-verify-peer=false", "query, tls-verify-peer"),
            ("nbds://a/?tls-psk-file=b", "query, tls-psk-file"),
            ("nbds://a/?tls-priority=b", "query"),
        ] {
            let error = text.parse::<NbdUri>().unwrap_err().to_string();
            assert!(error.contains(&format!("({part}")), "{text}: {error}");
        }
        let long = format!("nbd://a/{}", "b".repeat(STRING_MAX + 1));
        assert!(long.parse::<NbdUri>().is_err());
    }

    #[test]
    fn paths_and_windows_drives_are_no_uris() {
        for text in ["disk.img", "nbd:localhost:10809", "/a://b", "http://a", ""] {
            assert!(!NbdUri::is_uri(text), "{text}");
        }
    }

    proptest! {
        #[test]
        fn shown_uri_parses_to_the_same(export in "[^\0]{0,20}", path in "[^\0]{1,20}") {
            let uri = NbdUri::new(NbdTransport::Unix(path.clone().into()), export).unwrap();
            prop_assert_eq!(&parsed(&uri.to_string()), &uri);
            let tls = NbdTls { certificates: Some(path.clone().into()), hostname: Some(path) };
            let uri = uri.with_tls(tls);
            prop_assert_eq!(&parsed(&uri.to_string()), &uri);
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "\\PC{0,40}") {
            let _ = text.parse::<NbdUri>();
            let _ = format!("nbd://{text}").parse::<NbdUri>();
        }
    }
}
