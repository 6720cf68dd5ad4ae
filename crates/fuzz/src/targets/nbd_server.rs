//! The NBD server: anything that a client sends.
//!
//! The connection ends when the client has sent everything, and the replies are bounded. The input
//! is the client's side of the connection, or a list of options and requests after a handshake.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use extant_blockdev::MemoryDevice;
use extant_export::{Access, Export, Exports, Limits, Server, ServerOptions};

use crate::input::{list, parse};

const DISK: u64 = 256 << 10;
/// Most bytes of replies: far less than the requests of an input can ask for would be a defect.
const REPLIES_MAX: usize = 64 << 20;
const TIMEOUT: Duration = Duration::from_secs(4);

/// One server, whose disk keeps what clients write.
static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let device = Arc::new(MemoryDevice::new(DISK));
    let export = |name: &str, access| Export::new(name, "a disk", device.clone(), access).unwrap();
    let exports = vec![
        export("disk", Access::ReadWrite),
        export("read-only", Access::ReadOnly),
    ];
    let options = ServerOptions {
        limits: Limits {
            request_bytes: 1 << 17,
            ..Limits::default()
        },
        ..ServerOptions::default()
    };
    Server::new(Exports::new(exports).unwrap(), options)
});

#[derive(Arbitrary, Debug)]
enum Step {
    /// An option of haggling, with a length that may be wrong.
    Option {
        number: u8,
        data: Data,
        wrong: Option<u32>,
    },
    Request {
        magic: Option<u32>,
        flags: u16,
        kind: u8,
        offset: u32,
        length: u16,
        more: Option<u64>,
    },
    Bytes(Data),
}

#[derive(Debug)]
struct Data(Vec<u8>);

impl<'a> Arbitrary<'a> for Data {
    fn arbitrary(from: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        let length = usize::from(from.arbitrary::<u8>()?).min(from.len());
        Ok(Self(from.bytes(length)?.to_vec()))
    }
}

#[derive(Debug)]
struct Input {
    /// Number of the option for the style of replies: 8 structured, 11 extended.
    style: u8,
    contexts: bool,
    read_only: bool,
    is_ready: bool,
    steps: Vec<Step>,
}

impl<'a> Arbitrary<'a> for Input {
    fn arbitrary(from: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        Ok(Self {
            style: from.arbitrary()?,
            contexts: from.arbitrary()?,
            read_only: from.arbitrary()?,
            is_ready: from.arbitrary()?,
            steps: list(from, 24)?,
        })
    }
}

pub(crate) fn target(data: &[u8]) {
    match data.split_first() {
        Some((0, bytes)) => exchange(bytes),
        Some((_, data)) => {
            if let Some(input) = parse::<Input>(data) {
                exchange(&encode(&input));
            }
        }
        None => {}
    }
}

fn option(into: &mut Vec<u8>, number: u32, data: &[u8], length: u32) {
    into.extend(b"IHAVEOPT");
    into.extend(number.to_be_bytes());
    into.extend(length.to_be_bytes());
    into.extend(data);
}

fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text].concat()
}

fn encode(input: &Input) -> Vec<u8> {
    let mut bytes = 3_u32.to_be_bytes().to_vec();
    let name: &[u8] = if input.read_only {
        b"read-only"
    } else {
        b"disk"
    };
    let is_extended = input.style % 3 == 2;
    if input.is_ready {
        match input.style % 3 {
            0 => {}
            1 => option(&mut bytes, 8, &[], 0),
            _ => option(&mut bytes, 11, &[], 0),
        }
        if input.contexts {
            let contexts = [&b"base:allocation"[..], b"extant:state", b"extant:assign"];
            let mut data = string(name);
            data.extend((contexts.len() as u32).to_be_bytes());
            for context in contexts {
                data.extend(string(context));
            }
            option(&mut bytes, 10, &data, data.len() as u32);
        }
        let data = [&string(name)[..], &[0, 0]].concat();
        option(&mut bytes, 7, &data, data.len() as u32);
    }
    for (cookie, step) in (1_u64..).zip(&input.steps) {
        match step {
            Step::Option {
                number,
                data,
                wrong,
            } => {
                let length = wrong.unwrap_or(data.0.len() as u32);
                option(&mut bytes, (*number).into(), &data.0, length);
            }
            Step::Request {
                magic,
                flags,
                kind,
                offset,
                length,
                more,
            } => {
                let usual = if is_extended {
                    0x21e4_1c71
                } else {
                    0x2560_9513
                };
                bytes.extend(magic.unwrap_or(usual).to_be_bytes());
                bytes.extend(flags.to_be_bytes());
                bytes.extend(u16::from(*kind % 10).to_be_bytes());
                bytes.extend(cookie.to_be_bytes());
                let offset = u64::from(*offset) & (2 * DISK - 1);
                bytes.extend((offset | more.unwrap_or(0)).to_be_bytes());
                if is_extended {
                    bytes.extend(u64::from(*length).to_be_bytes());
                } else {
                    bytes.extend(u32::from(*length).to_be_bytes());
                }
                let has_payload = kind % 10 == 1 || (is_extended && flags & 32 != 0);
                if has_payload {
                    bytes.resize(bytes.len() + usize::from(*length), *kind);
                }
            }
            Step::Bytes(data) => bytes.extend(&data.0),
        }
    }
    bytes
}

/// Sends everything, and reads to the end of the connection.
fn exchange(bytes: &[u8]) {
    let (mut ours, theirs) = UnixStream::pair().expect("sockets");
    ours.set_read_timeout(Some(TIMEOUT)).expect("a socket");
    ours.set_write_timeout(Some(TIMEOUT)).expect("a socket");
    SERVER.serve(theirs).expect("a thread");
    let mut sending = ours.try_clone().expect("a socket");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // The server may have ended the connection.
            let _ = sending.write_all(bytes);
            let _ = sending.shutdown(Shutdown::Write);
        });
        let mut buffer = vec![0; 64 << 10];
        let mut received = 0;
        loop {
            match ours.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => received += length,
                // The timer of libFuzzer.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
                Err(error) => panic!("the connection does not end: {error}"),
            }
            assert!(received < REPLIES_MAX, "{received} bytes of replies");
        }
    });
    // The next input finds the memory of this connection freed.
    while SERVER.connections() > 0 {
        std::thread::yield_now();
    }
}
