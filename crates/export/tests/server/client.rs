//! A client that sends arbitrary bytes and parses every kind of reply.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use extant_export::Server;

/// A test that would hang fails instead.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(20);

pub const STRUCTURED: u32 = 8;
pub const EXTENDED: u32 = 11;
pub const GO: u32 = 7;
pub const INFO: u32 = 6;
pub const LIST_CONTEXTS: u32 = 9;
pub const SET_CONTEXTS: u32 = 10;

pub const ACK: u32 = 1;
pub const UNSUP: u32 = (1 << 31) + 1;
pub const POLICY: u32 = (1 << 31) + 2;
pub const INVALID: u32 = (1 << 31) + 3;
pub const TLS_REQD: u32 = (1 << 31) + 5;
pub const UNKNOWN: u32 = (1 << 31) + 6;
pub const TOO_BIG: u32 = (1 << 31) + 9;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const ZEROES: u16 = 6;
pub const STATUS: u16 = 7;

pub const FUA: u16 = 1;
pub const NO_HOLE: u16 = 2;
pub const DF: u16 = 4;
pub const REQ_ONE: u16 = 8;
pub const FAST_ZERO: u16 = 16;
pub const PAYLOAD: u16 = 32;

pub const DATA: u16 = 1;
pub const HOLE: u16 = 2;
pub const ERROR: u16 = 0x8001;
pub const ERROR_OFFSET: u16 = 0x8002;

pub trait Wire: Read + Write {}
impl<T: Read + Write> Wire for T {}

pub struct Client {
    pub wire: Box<dyn Wire>,
    extended: bool,
    cookie: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// None in a simple reply.
    pub kind: Option<u16>,
    pub cookie: u64,
    pub is_last: bool,
    /// Error number of a simple reply or an error chunk; 0 for none.
    pub error: u32,
    pub payload: Vec<u8>,
}

impl Client {
    /// A client of `server` that has negotiated fixed newstyle.
    pub fn new(server: &Server) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        ours.set_write_timeout(Some(TEST_TIMEOUT)).unwrap();
        server.serve(theirs).unwrap();
        let mut client = Self::over(Box::new(ours));
        client.greet(3);
        client
    }

    pub fn over(wire: Box<dyn Wire>) -> Self {
        Self {
            wire,
            extended: false,
            cookie: 0,
        }
    }

    pub fn greet(&mut self, flags: u32) {
        let greeting: [u8; 18] = self.take();
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        assert_eq!(greeting[16..], [0, 3]);
        self.send(&flags.to_be_bytes());
    }

    /// In transmission, with the style and contexts that were agreed on.
    pub fn ready(server: &Server, style: Option<u32>, contexts: &[&str]) -> Self {
        let mut client = Self::new(server);
        client.negotiate(style, contexts);
        client
    }

    pub fn negotiate(&mut self, style: Option<u32>, contexts: &[&str]) {
        if let Some(style) = style {
            assert_eq!(self.option(style, &[]), [(ACK, vec![])]);
            self.extended = style == EXTENDED;
        }
        if !contexts.is_empty() {
            let answers = self.option(SET_CONTEXTS, &queries("disk", contexts));
            assert_eq!(answers.len(), contexts.len() + 1, "{answers:?}");
        }
        let answers = self.option(GO, &name_and_kinds("disk", &[]));
        assert_eq!(answers.last(), Some(&(ACK, vec![])), "{answers:?}");
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.wire.write_all(bytes).unwrap();
    }

    pub fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.wire.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn take_vec(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.wire.read_exact(&mut bytes).unwrap();
        bytes
    }

    pub fn send_option(&mut self, option: u32, data: &[u8]) {
        // At once: a server closes the connection when it refuses the client.
        let length = data.len() as u32;
        self.send(
            &[
                b"IHAVEOPT",
                &option.to_be_bytes()[..],
                &length.to_be_bytes(),
                data,
            ]
            .concat(),
        );
    }

    /// The answers, up to an acknowledgement or an error.
    pub fn option(&mut self, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.send_option(option, data);
        self.answers(option)
    }

    pub fn answers(&mut self, option: u32) -> Vec<(u32, Vec<u8>)> {
        let mut answers = Vec::new();
        loop {
            assert_eq!(self.take(), 0x0003_e889_0455_65a9u64.to_be_bytes());
            assert_eq!(self.take(), option.to_be_bytes());
            let answer = u32::from_be_bytes(self.take());
            let length = u32::from_be_bytes(self.take());
            let data = self.take_vec(length as usize);
            let is_last = answer == ACK || answer >= 1 << 31;
            answers.push((answer, data));
            if is_last {
                return answers;
            }
        }
    }

    /// The bytes of a request.
    pub fn encode(&mut self, command: u16, flags: u16, offset: u64, length: u64) -> Vec<u8> {
        self.cookie += 1;
        let magic: u32 = if self.extended {
            0x21e4_1c71
        } else {
            0x2560_9513
        };
        let mut bytes = magic.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(command.to_be_bytes());
        bytes.extend(self.cookie.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        if self.extended {
            bytes.extend(length.to_be_bytes())
        } else {
            bytes.extend((length as u32).to_be_bytes())
        }
        bytes
    }

    pub fn request(&mut self, command: u16, flags: u16, offset: u64, length: u64) -> Vec<Chunk> {
        let bytes = self.encode(command, flags, offset, length);
        self.send(&bytes);
        self.reply()
    }

    pub fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> Vec<Chunk> {
        let flags = if self.extended {
            flags | PAYLOAD
        } else {
            flags
        };
        let mut bytes = self.encode(WRITE, flags, offset, data.len() as u64);
        bytes.extend(data);
        self.send(&bytes);
        self.reply()
    }

    /// The data, which must be one chunk; in a simple reply of the requested length.
    pub fn read(&mut self, flags: u16, offset: u64, length: u64) -> Vec<u8> {
        let bytes = self.encode(READ, flags, offset, length);
        self.send(&bytes);
        let chunk = self.chunk();
        assert_eq!(chunk.error, 0, "{chunk:?}");
        match chunk.kind {
            None => self.take_vec(length as usize),
            Some(kind) => {
                assert!(chunk.is_last);
                assert_eq!(chunk.payload[..8], offset.to_be_bytes());
                match kind {
                    DATA => chunk.payload[8..].to_vec(),
                    HOLE => {
                        assert_eq!(chunk.payload[8..], (length as u32).to_be_bytes());
                        vec![0; length as usize]
                    }
                    _ => panic!("{chunk:?}"),
                }
            }
        }
    }

    /// One reply; not for data in a simple one.
    pub fn reply(&mut self) -> Vec<Chunk> {
        let mut chunks = Vec::new();
        loop {
            chunks.push(self.chunk());
            if chunks.last().unwrap().is_last {
                return chunks;
            }
        }
    }

    fn chunk(&mut self) -> Chunk {
        let magic = u32::from_be_bytes(self.take());
        match magic {
            0x6744_6698 => Chunk {
                kind: None,
                error: u32::from_be_bytes(self.take()),
                cookie: u64::from_be_bytes(self.take()),
                is_last: true,
                payload: Vec::new(),
            },
            0x668e_33ef | 0x6e8a_278c => {
                assert_eq!(self.extended, magic == 0x6e8a_278c);
                let flags = u16::from_be_bytes(self.take());
                let kind = u16::from_be_bytes(self.take());
                let cookie = u64::from_be_bytes(self.take());
                let length = if self.extended {
                    let _offset: [u8; 8] = self.take();
                    u64::from_be_bytes(self.take())
                } else {
                    u32::from_be_bytes(self.take()).into()
                };
                let payload = self.take_vec(length as usize);
                let error = if kind >= 0x8000 {
                    u32::from_be_bytes(payload[..4].try_into().unwrap())
                } else {
                    0
                };
                Chunk {
                    kind: Some(kind),
                    cookie,
                    is_last: flags & 1 != 0,
                    error,
                    payload,
                }
            }
            other => panic!("a reply that starts with {other:#x}"),
        }
    }

    /// Reads up to the acknowledgement of an export; false when the server closes before.
    pub fn try_until_ack(&mut self) -> bool {
        let mut bytes = Vec::new();
        let mut more = [0; 256];
        // The acknowledgement is twenty bytes, the last ones.
        let is_acknowledged = |bytes: &[u8]| {
            let end = [&GO.to_be_bytes()[..], &ACK.to_be_bytes(), &[0; 4]].concat();
            bytes.len() > 38 && bytes.ends_with(&end)
        };
        while !is_acknowledged(&bytes) {
            match self.wire.read(&mut more) {
                Ok(0) | Err(_) => return false,
                Ok(count) => bytes.extend(&more[..count]),
            }
        }
        true
    }

    /// The server has nothing more to say, and closes.
    pub fn expect_end(&mut self) {
        let mut byte = [0];
        match self.wire.read(&mut byte) {
            Ok(0) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            other => panic!("{other:?} instead of the end"),
        }
    }
}

pub fn error_of(reply: &[Chunk]) -> u32 {
    reply.last().unwrap().error
}

/// The data of `NBD_OPT_INFO` and `NBD_OPT_GO`.
pub fn name_and_kinds(name: &str, kinds: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend((kinds.len() as u16).to_be_bytes());
    kinds
        .iter()
        .for_each(|kind| data.extend(kind.to_be_bytes()));
    data
}

/// The data of the options about metadata contexts.
pub fn queries(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend((queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend((query.len() as u32).to_be_bytes());
        data.extend(query.as_bytes());
    }
    data
}
