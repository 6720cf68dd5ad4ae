//! A server that follows a script, on a Unix socket.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;

use extant_nbd::NbdUri;
use tempfile::TempDir;

pub const STRUCTURED: u32 = 8;
pub const CONTEXTS: u32 = 10;
pub const EXTENDED: u32 = 11;
pub const GO: u32 = 7;

const ACK: u32 = 1;
const INFO: u32 = 3;
const META_CONTEXT: u32 = 4;
const UNSUPPORTED: u32 = (1 << 31) + 1;

/// Bytes of the export.
pub const SIZE: u64 = 1 << 20;

/// A server; each connection runs the script.
pub struct Scripted {
    _directory: TempDir,
    uri: NbdUri,
}

impl Scripted {
    pub fn new(script: impl Fn(&mut Peer) + Send + Sync + 'static) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let uri = format!("nbd+unix:///disk?socket={}", socket.display());
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                script(&mut Peer { stream });
            }
        });
        Self {
            _directory: directory,
            uri: uri.parse().unwrap(),
        }
    }

    pub fn uri(&self) -> &NbdUri {
        &self.uri
    }
}

/// The client, as the script sees it. What fails because the client has disconnected is ignored.
pub struct Peer {
    stream: UnixStream,
}

/// A request with a compact header.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub cookie: u64,
    pub offset: u64,
    pub length: u32,
}

impl Peer {
    pub fn send(&mut self, parts: &[&[u8]]) {
        let _ = self.stream.write_all(&parts.concat());
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).ok()?;
        Some(bytes)
    }

    pub fn greet(&mut self) {
        self.send(&[b"NBDMAGICIHAVEOPT", &[0, 3]]);
        let _: Option<[u8; 4]> = self.take();
    }

    /// The next option; its data is dropped.
    pub fn option(&mut self) -> Option<u32> {
        let [_, _, _, _, _, _, _, _, option @ .., a, b, c, d]: [u8; 16] = self.take()?;
        let mut data = vec![0; u32::from_be_bytes([a, b, c, d]) as usize];
        self.stream.read_exact(&mut data).ok()?;
        Some(u32::from_be_bytes(option))
    }

    pub fn answer(&mut self, option: u32, answer: u32, data: &[u8]) {
        self.send(&[
            &0x0003_e889_0455_65a9_u64.to_be_bytes(),
            &option.to_be_bytes(),
            &answer.to_be_bytes(),
            &(data.len() as u32).to_be_bytes(),
            data,
        ]);
    }

    /// Answers an option as a server with structured replies and `base:allocation` as context 1.
    /// Returns whether the transmission begins.
    pub fn answer_well(&mut self, option: u32) -> bool {
        match option {
            STRUCTURED => self.answer(option, ACK, &[]),
            CONTEXTS => {
                let data = [&1_u32.to_be_bytes()[..], b"base:allocation"].concat();
                self.answer(option, META_CONTEXT, &data);
                self.answer(option, ACK, &[]);
            }
            GO => {
                // Flags, flush, FUA, trim, zeroes.
                let flags = 1 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6_u16;
                self.answer(option, INFO, &export(SIZE, flags));
                self.answer(option, ACK, &[]);
                return true;
            }
            _ => self.answer(option, UNSUPPORTED, b"not here"),
        }
        false
    }

    /// Negotiates well.
    pub fn negotiate(&mut self) {
        self.greet();
        while let Some(option) = self.option() {
            if self.answer_well(option) {
                return;
            }
        }
    }

    /// The next request, without the data of a write.
    pub fn request(&mut self) -> Option<Asked> {
        let bytes: [u8; 28] = self.take()?;
        let number = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap());
        Some(Asked {
            cookie: number(8),
            offset: number(16),
            length: u32::from_be_bytes(bytes[24..].try_into().unwrap()),
        })
    }

    pub fn chunk(&mut self, cookie: u64, flags: u16, kind: u16, payload: &[u8]) {
        self.chunk_header(cookie, flags, kind, payload.len() as u32);
        self.send(&[payload]);
    }

    pub fn chunk_header(&mut self, cookie: u64, flags: u16, kind: u16, length: u32) {
        self.send(&[
            &0x668e_33ef_u32.to_be_bytes(),
            &flags.to_be_bytes(),
            &kind.to_be_bytes(),
            &cookie.to_be_bytes(),
            &length.to_be_bytes(),
        ]);
    }

    pub fn simple_reply(&mut self, cookie: u64, error: u32) {
        let magic = 0x6744_6698_u32.to_be_bytes();
        self.send(&[&magic, &error.to_be_bytes(), &cookie.to_be_bytes()]);
    }

    pub fn read(&mut self, into: &mut [u8]) {
        let _ = self.stream.read_exact(into);
    }

    /// Waits until the client has disconnected.
    pub fn wait_for_end(&mut self) {
        let mut rest = [0; 4096];
        while matches!(self.stream.read(&mut rest), Ok(1..)) {}
    }
}

/// `NBD_INFO_EXPORT`.
pub fn export(size: u64, flags: u16) -> Vec<u8> {
    let parts = [&[0, 0][..], &size.to_be_bytes(), &flags.to_be_bytes()];
    parts.concat()
}
