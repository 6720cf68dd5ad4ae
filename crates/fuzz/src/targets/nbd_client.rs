//! The NBD client: anything that a server sends.
//!
//! Every request has a result, and the client ends. The input is the server's side of the
//! connection; or a real server's replies are changed on their way, so that cookies fit.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::ops::ControlFlow;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use extant_blockdev::{Device, MemoryDevice, Persistence, Request, Zeroing};
use extant_export::{Access, Export, Exports, Server, ServerOptions};
use extant_nbd::{NbdAccess, NbdAssign, NbdDevice, NbdOptions, NbdReconnect, NbdTimeouts, NbdUri};
use extant_space::ByteRange;
use tempfile::TempDir;

use crate::input::{list, parse};

const DISK: u64 = 256 << 10;
const TIMEOUT: Duration = Duration::from_secs(4);
/// After a change both sides may wait for the other: then the connection ends.
const IDLE_TIMEOUT: Duration = Duration::from_millis(15);

struct Place {
    _directory: TempDir,
    listener: UnixListener,
    uri: NbdUri,
    server: Server,
}

static PLACE: LazyLock<Place> = LazyLock::new(|| {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("nbd.sock");
    let listener = UnixListener::bind(&path).expect("a socket");
    let uri = format!("nbd+unix:///disk?socket={}", path.display());
    let device = Arc::new(MemoryDevice::new(DISK));
    let written = device.write_at(&[7; 8192], 4096, Persistence::Cached);
    written.expect("memory");
    let export = Export::new("disk", "a disk", device, Access::ReadWrite).expect("an export");
    let exports = Exports::new(vec![export]).expect("one export");
    Place {
        _directory: directory,
        listener,
        uri: uri.parse().expect("a URI"),
        server: Server::new(exports, ServerOptions::default()),
    }
});

/// A change of the server's bytes.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Change {
    Byte { skip: u16, value: u8 },
    Word { skip: u16, value: u32 },
    Insert { skip: u16, value: u8 },
    Remove { skip: u16, count: u8 },
    End { skip: u16 },
}

impl Change {
    fn skip(self) -> usize {
        let (Self::Byte { skip, .. }
        | Self::Word { skip, .. }
        | Self::Insert { skip, .. }
        | Self::Remove { skip, .. }
        | Self::End { skip }) = self;
        skip.into()
    }
}

#[derive(Debug)]
struct Input {
    assign: bool,
    read_only: bool,
    changes: Vec<Change>,
}

impl<'a> Arbitrary<'a> for Input {
    fn arbitrary(from: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        Ok(Self {
            assign: from.arbitrary()?,
            read_only: from.arbitrary()?,
            changes: list(from, 6)?,
        })
    }
}

pub(crate) fn target(data: &[u8]) {
    match data.split_first() {
        Some((0, bytes)) => {
            let bytes = bytes.to_vec();
            converse(true, NbdAccess::ReadWrite, move |stream| {
                recite(stream, &bytes)
            });
        }
        Some((_, data)) => {
            if let Some(input) = parse::<Input>(data) {
                let access = if input.read_only {
                    NbdAccess::ReadOnly
                } else {
                    NbdAccess::ReadWrite
                };
                converse(input.assign, access, move |stream| {
                    relay(stream, &input.changes)
                });
            }
        }
        None => {}
    }
}

/// Connects a client to `serve` and uses it.
fn converse(assign: bool, access: NbdAccess, serve: impl FnOnce(UnixStream) + Send + 'static) {
    let serving = thread::spawn(move || {
        let (stream, _) = PLACE.listener.accept().expect("a client");
        serve(stream);
    });
    let options = NbdOptions {
        access,
        connections: 1,
        timeouts: NbdTimeouts {
            connect: TIMEOUT,
            handshake: TIMEOUT,
            silence: TIMEOUT,
        },
        reconnect: NbdReconnect::Never,
        assign: if assign {
            NbdAssign::Negotiate
        } else {
            NbdAssign::Off
        },
    };
    if let Ok(device) = NbdDevice::connect(&PLACE.uri, options) {
        use_device(&device);
    }
    serving.join().expect("it does not fail");
}

fn use_device(device: &NbdDevice) {
    let size = device.geometry().size;
    if size < 16384 {
        return;
    }
    let mut buffers = [[0; 4096]; 3];
    let mut requests: Vec<_> = (0..)
        .zip(&mut buffers)
        .map(|(at, buffer)| Request::read(at * 4096, buffer))
        .collect();
    device.submit(&mut requests);
    for request in requests {
        let _ = request.into_result();
    }
    let range = ByteRange::new(0, 16384);
    let mut at = 0;
    let _ = device.status(range, &mut |part, _| {
        assert_eq!(part.start(), at, "without gaps");
        at = part.end();
        ControlFlow::Continue(())
    });
    assert!(at <= range.end());
    let _ = device.extents(range, &mut |_| ControlFlow::Continue(()));
    let _ = device.write_at(&[7; 4096], 8192, Persistence::Fua);
    let _ = device.write_zeroes(ByteRange::new(0, 4096), Zeroing::WRITTEN);
    let _ = device.discard(ByteRange::new(12288, 16384));
    let _ = device.assign(range);
    let _ = device.flush();
}

/// Sends the bytes, whatever the client asks, and receives to the end.
fn recite(mut stream: UnixStream, bytes: &[u8]) {
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let _ = std::io::copy(&mut stream, &mut std::io::sink());
}

/// Connects the client to the server, and changes what the server sends.
fn relay(client: UnixStream, changes: &[Change]) {
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    PLACE.server.serve(theirs).expect("a thread");
    let (mut from_client, mut to_server) = (
        client.try_clone().expect("a socket"),
        ours.try_clone().expect("a socket"),
    );
    thread::scope(|scope| {
        scope.spawn(move || {
            let _ = std::io::copy(&mut from_client, &mut to_server);
            let _ = to_server.shutdown(Shutdown::Write);
        });
        pass_on(ours, &client, changes);
        let _ = client.shutdown(Shutdown::Both);
    });
}

/// Passes bytes on until the stream ends, or a change ends it.
fn pass_on(mut from: UnixStream, mut to: &UnixStream, changes: &[Change]) {
    let mut changes = changes.iter().copied();
    let mut next = changes.next();
    let mut until_next = next.map_or(usize::MAX, Change::skip);
    let mut buffer = vec![0; 64 << 10];
    let mut remove = 0;
    loop {
        let length = match from.read(&mut buffer) {
            Ok(length @ 1..) => length,
            // The timer of libFuzzer.
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Ok(0) | Err(_) => return,
        };
        let mut out = Vec::with_capacity(length + 8);
        let mut ended = false;
        for &byte in &buffer[..length] {
            if remove > 0 {
                remove -= 1;
                continue;
            }
            if until_next > 0 {
                until_next -= 1;
                out.push(byte);
                continue;
            }
            match next.take() {
                Some(Change::Byte { value, .. }) => out.push(value),
                Some(Change::Word { value, .. }) => {
                    out.extend(value.to_be_bytes());
                    remove = 3;
                }
                Some(Change::Insert { value, .. }) => out.extend([value, byte]),
                Some(Change::Remove { count, .. }) => remove = count.into(),
                Some(Change::End { .. }) => {
                    ended = true;
                    break;
                }
                None => out.push(byte),
            }
            let _ = from.set_read_timeout(Some(IDLE_TIMEOUT));
            next = changes.next();
            until_next = next.map_or(usize::MAX, Change::skip);
        }
        if to.write_all(&out).is_err() || ended {
            return;
        }
    }
}
