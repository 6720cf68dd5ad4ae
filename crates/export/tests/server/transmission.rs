//! Requests in each style of replies, and their errors.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use extant_blockdev::{Device, Geometry, MemoryDevice, RangeStatus, Request};
use extant_export::{Access, DiscardPolicy, Export, Exports, Server, ServerOptions};
use extant_space::{ByteRange, ErrorKind, Result};

use crate::client::*;
use crate::probe::{ALL, Probe, Takes};
use crate::{MIB, server, server_on};

const STYLES: [Option<u32>; 3] = [None, Some(STRUCTURED), Some(EXTENDED)];

#[test]
fn written_data_is_read_back_at_any_size_and_style() {
    for takes in ALL {
        let (server, _) = server_on(takes, ServerOptions::default());
        for (at, style) in STYLES.into_iter().enumerate() {
            let mut client = Client::ready(&server, style, &[]);
            for length in [0, 512, 4096, 40_960, 131_072, 3 * MIB, 20 * MIB] {
                let data: Vec<u8> = (0..length)
                    .map(|byte| (byte / 7) as u8 ^ at as u8)
                    .collect();
                assert_eq!(error_of(&client.write(0, 512, &data)), 0);
                if length == 0 {
                    assert_eq!(error_of(&client.request(READ, 0, 512, 0)), 0);
                } else {
                    assert!(client.read(0, 512, length) == data, "{length} bytes");
                }
            }
        }
    }
}

#[test]
fn zeros_are_sent_without_data_where_replies_are_structured() {
    for takes in ALL {
        let (server, _) = server_on(takes, ServerOptions::default());
        for style in [STRUCTURED, EXTENDED] {
            let (zeros, mut data) = ([0; 512], [0; 512]);
            data[511] = 1;
            let mut client = Client::ready(&server, Some(style), &[]);
            let mut kinds_of = |last: [u8; 512], length| {
                assert_eq!(error_of(&client.write(0, length - 512, &last)), 0);
                let reply = client.request(READ, DF, 0, length);
                reply.iter().map(|chunk| chunk.kind).collect::<Vec<_>>()
            };
            for length in [512, 4096, 131_072, 3 * MIB] {
                assert_eq!(kinds_of(zeros, length), [Some(HOLE)], "{length}");
                assert_eq!(kinds_of(data, length), [Some(DATA)], "{length}");
                assert_eq!(kinds_of(zeros, length), [Some(HOLE)], "{length}");
            }
        }
    }
}

#[test]
fn many_requests_in_one_go_are_all_answered() {
    for takes in ALL {
        let (server, _) = server_on(takes, ServerOptions::default());
        for style in STYLES {
            let mut client = Client::ready(&server, style, &[]);
            let mut bytes = Vec::new();
            for at in 0..500u64 {
                bytes.extend(client.encode(
                    WRITE,
                    if style == STYLES[2] { PAYLOAD } else { 0 },
                    at * 512,
                    512,
                ));
                bytes.extend([at as u8; 512]);
                if at % 50 == 0 {
                    bytes.extend(client.encode(FLUSH, 0, 0, 0));
                }
            }
            client.send(&bytes);
            let mut cookies: Vec<_> = (0..510)
                .map(|_| {
                    let reply = client.reply();
                    assert_eq!(error_of(&reply), 0);
                    reply[0].cookie
                })
                .collect();
            cookies.sort_unstable();
            cookies.dedup();
            assert_eq!(cookies.len(), 510);
            for at in [0u64, 77, 499] {
                assert_eq!(client.read(0, at * 512, 512), [at as u8; 512]);
            }
        }
    }
}

#[test]
fn flags_reach_the_device() {
    let (server, device) = server(ServerOptions::default());
    let mut client = Client::ready(&server, None, &[]);
    let mut seen = |command, flags| {
        let reply = match command {
            WRITE => client.write(flags, 0, &[1; 512]),
            FLUSH => client.request(FLUSH, flags, 0, 0),
            _ => client.request(command, flags, 0, 4096),
        };
        assert_eq!(error_of(&reply), 0);
        device.take_seen()
    };
    assert_eq!(seen(WRITE, 0), ["write Cached"]);
    assert_eq!(seen(WRITE, FUA), ["write Fua"]);
    assert_eq!(seen(FLUSH, 0), ["flush"]);
    assert_eq!(seen(TRIM, 0), ["discard"]);
    assert_eq!(seen(TRIM, FUA), ["discard", "flush"]);
    assert_eq!(seen(ZEROES, 0), ["zeroes MayUnmap Any Cached"]);
    assert_eq!(seen(ZEROES, NO_HOLE), ["zeroes Allocated Any Cached"]);
    let all = seen(ZEROES, NO_HOLE | FAST_ZERO | FUA);
    assert_eq!(all, ["zeroes Allocated OnlyIfFast Fua"]);
    assert_eq!(seen(CACHE, 0), [""; 0]);
}

#[test]
fn export_that_keeps_space_offers_no_trim_and_leaves_space_behind_zeros() {
    let device = Arc::new(Probe::new(MIB, Takes::Batches));
    let export = Export::new("disk", "", device.clone(), Access::ReadWrite).unwrap();
    let export = export.with_discard_policy(DiscardPolicy::Ignore);
    let exports = Exports::new(vec![export]).unwrap();
    let server = Server::new(exports, ServerOptions::default());
    let mut client = Client::new(&server);
    let answers = client.option(GO, &name_and_kinds("disk", &[]));
    let flags = u16::from_be_bytes(answers[0].1[10..12].try_into().unwrap());
    // NBD_FLAG_SEND_TRIM, NBD_FLAG_SEND_WRITE_ZEROES
    assert_eq!(flags & (1 << 5 | 1 << 6), 1 << 6);
    assert_eq!(error_of(&client.request(TRIM, 0, 0, 512)), 22);
    assert_eq!(error_of(&client.request(ZEROES, 0, 0, 512)), 0);
    assert_eq!(device.take_seen(), ["zeroes Allocated Any Cached"]);
}

#[test]
fn zeroes_and_trim_change_read_data() {
    let (server, _) = server(ServerOptions::default());
    let mut client = Client::ready(&server, Some(STRUCTURED), &[]);
    for (command, flags) in [(ZEROES, 0), (ZEROES, NO_HOLE), (TRIM, 0)] {
        client.write(0, 0, &[9; 12288]);
        assert_eq!(error_of(&client.request(command, flags, 4096, 4096)), 0);
        let expected = [&[9; 4096][..], &[0; 4096], &[9; 4096]].concat();
        assert_eq!(client.read(DF, 0, 12288), expected);
    }
}

#[test]
fn requests_that_cannot_be_right_are_refused_and_the_next_one_is_heard() {
    for takes in ALL {
        let (server, device) = server_on(takes, ServerOptions::default());
        let size = 64 * MIB;
        let refused: &[(u16, u16, u64, u64, u32)] = &[
            (READ, 0, size, 512, 22),
            (READ, 0, u64::MAX - 511, 512, 22),
            (READ, 0, 1, 512, 22),
            (READ, NO_HOLE, 0, 512, 22),
            (READ, 0, 0, 32 * MIB + 512, 22),
            (FLUSH, 0, 512, 0, 22),
            (TRIM, 0, size - 512, 1024, 22),
            (TRIM, DF, 0, 512, 22),
            (ZEROES, 0, size - 512, 1024, 28),
            (CACHE, 0, size, 512, 22),
            (STATUS, 0, 0, 512, 22),
            (77, 0, 0, 512, 22),
            (8, 0, 0, 512, 22),
        ];
        for style in STYLES {
            let mut client = Client::ready(&server, style, &[]);
            for (command, flags, offset, length, error) in refused {
                let reply = client.request(*command, *flags, *offset, *length);
                assert_eq!(
                    error_of(&reply),
                    *error,
                    "{command} {flags} {offset} {length}"
                );
            }
            if style.is_some() {
                let reply = client.request(READ, DF, 0, 32 * MIB + 512);
                assert_eq!(error_of(&reply), 75);
            } else {
                assert_eq!(error_of(&client.request(READ, DF, 0, 512)), 22);
            }
            // The data of refused writes is read past.
            assert_eq!(error_of(&client.write(0, size - 512, &[1; 1024])), 28);
            assert_eq!(error_of(&client.write(NO_HOLE, 0, &[1; 100_000])), 22);
            assert_eq!(error_of(&client.write(0, 0, &vec![1; 33 << 20])), 22);
            assert_eq!(client.read(0, 0, 512), [0; 512]);
        }
        assert_eq!(device.take_seen(), [""; 0]);
    }
}

#[test]
fn errors_of_the_device_arrive_with_number_and_place_but_no_path() {
    for takes in ALL {
        let (server, device) = server_on(takes, ServerOptions::default());
        let expected = [
            (ErrorKind::NoSpace, 28),
            (ErrorKind::QuotaExceeded, 28),
            (ErrorKind::Io, 5),
            (ErrorKind::Corrupt, 5),
            (ErrorKind::PermissionDenied, 1),
            (ErrorKind::Unsupported, 95),
            (ErrorKind::InvalidArgument, 22),
        ];
        for style in STYLES {
            let mut client = Client::ready(&server, style, &[]);
            for (kind, error) in expected {
                device.fail_at(8192, kind);
                for command in [READ, WRITE, TRIM, ZEROES] {
                    let reply = match command {
                        WRITE => client.write(0, 4096, &[1; 8192]),
                        _ => client.request(command, 0, 4096, 8192),
                    };
                    assert_eq!(error_of(&reply), error, "{kind:?} {command}");
                    let chunk = reply.last().unwrap();
                    if style.is_some() {
                        assert_eq!(chunk.kind, Some(ERROR_OFFSET));
                        assert!(chunk.payload.ends_with(&8192u64.to_be_bytes()));
                        let text = String::from_utf8_lossy(&chunk.payload[6..]).into_owned();
                        assert!(text.starts_with(kind.description()), "{text}");
                        assert!(!text.contains("secret"), "{text}");
                    }
                }
                device.fail_at(u64::MAX, kind);
                let reply = client.request(FLUSH, 0, 0, 0);
                assert_eq!(error_of(&reply), error);
                assert_eq!(reply[0].kind, style.map(|_| ERROR));
                device.fail_at(u64::MAX - 1, kind);
            }
            // Of several at once, only the failed ones return an error.
            device.fail_at(0, ErrorKind::Io);
            let (first, second) = (
                client.encode(TRIM, 0, 0, 512),
                client.encode(TRIM, 0, 512, 512),
            );
            client.send(&[first, second].concat());
            assert_eq!(
                [error_of(&client.reply()), error_of(&client.reply())],
                [5, 0]
            );
            device.fail_at(u64::MAX - 1, ErrorKind::Io);
        }
    }
}

#[test]
fn size_of_the_device_is_followed() {
    for takes in ALL {
        let (server, device) = server_on(takes, ServerOptions::default());
        let mut client = Client::ready(&server, None, &[]);
        device.set_size(MIB);
        assert_eq!(error_of(&client.request(READ, 0, MIB, 512)), 22);
        assert_eq!(error_of(&client.write(0, MIB, &[1; 512])), 28);
        let mut other = Client::new(&server);
        let answers = other.option(INFO, &name_and_kinds("disk", &[]));
        assert_eq!(answers[0].1[2..10], MIB.to_be_bytes());
        device.set_size(2 * MIB);
        assert_eq!(error_of(&client.write(0, MIB, &[1; 512])), 0);
    }
}

#[test]
fn slow_flush_does_not_hold_up_reads() {
    for takes in ALL {
        let (server, device) = server_on(takes, ServerOptions::default());
        let mut client = Client::ready(&server, None, &[]);
        device.hold("flush");
        let flush = client.encode(FLUSH, 0, 0, 0);
        client.send(&flush);
        device.wait_for_held();
        for _ in 0..10 {
            assert_eq!(client.read(0, 0, 512), [0; 512]);
        }
        device.release();
        assert_eq!(client.reply()[0].cookie, 1);
    }
}

#[test]
fn flush_covers_writes_of_another_connection() {
    let (server, device) = server(ServerOptions::default());
    let mut writer = Client::ready(&server, None, &[]);
    let mut flusher = Client::ready(&server, None, &[]);
    writer.write(0, 0, &[5; 512]);
    assert_eq!(error_of(&flusher.request(FLUSH, 0, 0, 0)), 0);
    assert_eq!(device.take_seen(), ["write Cached", "flush"]);
    assert_eq!(flusher.read(0, 0, 512), [5; 512]);
}

#[test]
fn disconnect_completes_earlier_requests() {
    for takes in ALL {
        let (server, _) = server_on(takes, ServerOptions::default());
        let mut client = Client::ready(&server, None, &[]);
        let mut bytes = client.encode(WRITE, 0, 0, 512);
        bytes.extend([3; 512]);
        bytes.extend(client.encode(FLUSH, 0, 0, 0));
        bytes.extend(client.encode(DISC, 0, 0, 0));
        client.send(&bytes);
        assert_eq!(error_of(&client.reply()), 0);
        assert_eq!(error_of(&client.reply()), 0);
        client.expect_end();
        let mut client = Client::ready(&server, None, &[]);
        assert_eq!(client.read(0, 0, 512), [3; 512]);
    }
}

/// A device that takes longer than a wake-up, and notes by which threads it is asked.
struct Slow {
    inner: MemoryDevice,
    threads: Mutex<Vec<ThreadId>>,
}

impl Device for Slow {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        self.threads.lock().unwrap().push(thread::current().id());
        thread::sleep(Duration::from_micros(200));
        self.inner.submit(requests);
    }

    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()> {
        self.inner.status(range, visit)
    }
}

#[test]
fn client_that_waits_for_each_reply_is_served_by_one_thread() {
    let device = Arc::new(Slow {
        inner: MemoryDevice::new(MIB),
        threads: Mutex::default(),
    });
    let export = Export::new("disk", "", device.clone(), Access::ReadWrite).unwrap();
    let server = Server::new(
        Exports::new(vec![export]).unwrap(),
        ServerOptions::default(),
    );
    let mut client = Client::ready(&server, Some(STRUCTURED), &[]);
    // Several requests at once are served by several workers.
    let several: Vec<u8> = (0..64)
        .flat_map(|at| client.encode(READ, 0, at * 512, 512))
        .collect();
    client.send(&several);
    for _ in 0..64 {
        client.reply();
    }
    for _ in 0..4 {
        client.read(0, 0, 512);
    }
    device.threads.lock().unwrap().clear();
    for _ in 0..100 {
        client.read(0, 0, 512);
    }
    let threads: HashSet<_> = device.threads.lock().unwrap().drain(..).collect();
    assert_eq!(threads.len(), 1);
}

#[test]
fn refused_write_is_answered_when_its_data_has_come() {
    for takes in ALL {
        let (server, _) = server_on(takes, ServerOptions::default());
        for style in STYLES {
            let (ours, theirs) = UnixStream::pair().unwrap();
            ours.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
            server.serve(theirs).unwrap();
            let look = ours.try_clone().unwrap();
            let mut client = Client::over(Box::new(ours));
            client.greet(3);
            client.negotiate(style, &[]);
            // Longer than a request may be, and past the end.
            for (offset, length) in [(0, 33 * MIB), (64 * MIB, 200 << 10)] {
                let flags = if style == STYLES[2] { PAYLOAD } else { 0 };
                let header = client.encode(WRITE, flags, offset, length);
                let (most, rest) = (vec![1; length as usize - 512], [1; 512]);
                client.send(&header);
                client.send(&most);
                let wait = Some(Duration::from_millis(50));
                look.set_read_timeout(wait).unwrap();
                let early = client.wire.read(&mut [0]);
                let error = early.expect_err("a reply before the data");
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}");
                look.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
                client.send(&rest);
                assert_ne!(error_of(&client.reply()), 0);
                assert_eq!(client.read(0, 0, 512), [0; 512]);
            }
        }
    }
}
