//! vhost-user: messages of a client, and rings in the memory of a guest.
//!
//! The server survives and takes the next client, and a ring can be stopped.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use extant_blockdev::MemoryDevice;
use extant_testkit::vhost_client::{Client, Options, Queue, Ram, feature};
use extant_vhost::{Access, Server, ServerOptions, Volume};
use parking_lot::Mutex;
use tempfile::TempDir;

use crate::input::{list, parse};

const DISK: u64 = 1 << 20;
const TIMEOUT: Duration = Duration::from_secs(4);

struct Place {
    _directory: TempDir,
    _server: Mutex<Server>,
    socket: PathBuf,
    ram: Ram,
}

static PLACE: LazyLock<Place> = LazyLock::new(|| {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("s");
    let device = Arc::new(MemoryDevice::new(DISK));
    let volume = Volume::new("disk", device, Access::ReadWrite);
    let server = Server::listen(volume, &socket, ServerOptions::default());
    Place {
        _directory: directory,
        _server: Mutex::new(server.expect("a new socket")),
        socket,
        ram: Ram::new(1),
    }
});

#[derive(Debug)]
struct Message {
    request: u8,
    flags: u8,
    wrong: Option<u32>,
    payload: Vec<u8>,
}

impl<'a> Arbitrary<'a> for Message {
    fn arbitrary(from: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        let (request, flags, wrong) = (from.arbitrary()?, from.arbitrary()?, from.arbitrary()?);
        let length = usize::from(from.arbitrary::<u8>()?).min(from.len());
        let payload = from.bytes(length)?.to_vec();
        Ok(Self {
            request,
            flags,
            wrong,
            payload,
        })
    }
}

/// An address: of memory of the ring, or any.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Address {
    Header,
    Status,
    Data(u16),
    Table,
    Any(u64),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
struct Descriptor {
    address: Address,
    length: u16,
    long: bool,
    flags: u8,
    next: u8,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Step {
    Header {
        kind: u8,
        sector: u32,
        far: bool,
    },
    Table {
        indirect: bool,
        first: u8,
        descriptor: Descriptor,
    },
    /// Header, one part, status.
    Usual {
        kind: u8,
        sector: u16,
        part: Descriptor,
    },
    Head(u16),
    Available(u16),
    Kick,
}

enum Input {
    Messages(Vec<Message>),
    Ring {
        indirect: bool,
        size: u8,
        steps: Vec<Step>,
    },
}

impl<'a> Arbitrary<'a> for Input {
    fn arbitrary(from: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        if from.arbitrary::<u8>()? == 0 {
            return list(from, 16).map(Self::Messages);
        }
        Ok(Self::Ring {
            indirect: from.arbitrary()?,
            size: from.arbitrary()?,
            steps: list(from, 24)?,
        })
    }
}

pub(crate) fn target(data: &[u8]) {
    match parse(data) {
        Some(Input::Messages(messages)) => exchange(&messages),
        Some(Input::Ring {
            indirect,
            size,
            steps,
        }) => run(indirect, size, &steps),
        None => {}
    }
}

fn exchange(messages: &[Message]) {
    let mut stream = UnixStream::connect(&PLACE.socket).expect("the server listens");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
    for message in messages {
        let mut bytes = u32::from(message.request % 48).to_ne_bytes().to_vec();
        bytes.extend((u32::from(message.flags & 0xC) | 1).to_ne_bytes());
        let length = message.wrong.unwrap_or(message.payload.len() as u32);
        bytes.extend(length.to_ne_bytes());
        bytes.extend(&message.payload);
        // The server may have ended the connection.
        if stream.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = stream.shutdown(Shutdown::Write);
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
            Err(error) => panic!("the connection does not end: {error}"),
        }
    }
}

fn resolve(queue: &Queue, address: Address) -> u64 {
    match address {
        Address::Header => queue.header_address(0),
        Address::Status => queue.status_address(0),
        Address::Data(offset) => queue.data_address(0) + u64::from(offset),
        Address::Table => queue.table_address(0),
        Address::Any(address) => address,
    }
}

fn raw(queue: &Queue, descriptor: Descriptor) -> (u64, u32, u16, u16) {
    let length = u32::from(descriptor.length) << if descriptor.long { 12 } else { 0 };
    let address = resolve(queue, descriptor.address);
    (
        address,
        length,
        u16::from(descriptor.flags % 8),
        descriptor.next.into(),
    )
}

fn run(indirect: bool, size: u8, steps: &[Step]) {
    let options = Options {
        queue_size: 1 << (size % 9),
        without: if indirect {
            Vec::new()
        } else {
            vec![feature::INDIRECT]
        },
        ..Options::default()
    };
    let mut client = Client::connect(&PLACE.socket, &PLACE.ram, options);
    for step in steps {
        let queue = &mut client.queues[0];
        match *step {
            Step::Header { kind, sector, far } => {
                let sector = u64::from(sector) << if far { 32 } else { 0 };
                queue.set_header(0, u32::from(kind % 16), sector);
            }
            Step::Table {
                indirect,
                first,
                descriptor,
            } => {
                let table = if indirect {
                    queue.table_address(0)
                } else {
                    queue.address(0)
                };
                queue.set_table(table, u16::from(first % 128), &[raw(queue, descriptor)]);
            }
            Step::Usual { kind, sector, part } => {
                queue.set_header(0, u32::from(kind % 16), sector.into());
                let (address, length, flags, _) = raw(queue, part);
                let chain = [
                    (queue.header_address(0), 16, 1, 1),
                    (address, length, flags & 2 | 1, 2),
                    (queue.status_address(0), 1, 2, 0),
                ];
                queue.add_chain(&chain);
                queue.kick_anyway();
            }
            Step::Head(head) => queue.add_head(head),
            Step::Available(index) => queue.set_available(index),
            Step::Kick => queue.kick_anyway(),
        }
    }
    client.queues[0].kick_anyway();
    client.stop(0);
}
