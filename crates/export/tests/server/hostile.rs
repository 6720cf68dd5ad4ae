//! Clients that send garbage, stop in the middle, flood and vanish: the server disconnects them,
//! bounds its memory, and serves the next one.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use extant_export::{Server, ServerOptions};
use proptest::prelude::*;

use crate::client::*;
use crate::probe::ALL;
use crate::{MIB, server, server_on};

/// Sends `bytes` and reads until the server closes.
fn run_connection(server: &Server, bytes: &[u8]) -> usize {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    server.serve(theirs).unwrap();
    let mut reader = ours.try_clone().unwrap();
    std::thread::scope(|scope| {
        let reading = scope.spawn(move || {
            let mut read = 0;
            let mut buffer = [0; 4096];
            loop {
                match reader.read(&mut buffer) {
                    Ok(0) => return read,
                    Ok(bytes) => read += bytes,
                    Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                        return read;
                    }
                    Err(error) => panic!("{error} instead of the end"),
                }
            }
        });
        // The server may close before all is sent.
        let _ = ours.write_all(bytes);
        let _ = ours.shutdown(Shutdown::Write);
        reading.join().unwrap()
    })
}

/// Bytes that are close to a conversation.
fn conversation() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![Just(0u32), 1..64u32, Just(u32::MAX), any::<u32>()];
    let option = (
        0..13u32,
        number,
        prop::collection::vec(any::<u8>(), 0..64),
        any::<bool>(),
    )
        .prop_map(|(option, length, data, is_honest)| {
            let length = if is_honest { data.len() as u32 } else { length };
            [
                b"IHAVEOPT",
                &option.to_be_bytes()[..],
                &length.to_be_bytes(),
                &data,
            ]
            .concat()
        });
    let known = (0..5u8).prop_map(|kind| {
        let (option, data) = match kind {
            0 => (STRUCTURED, Vec::new()),
            1 => (EXTENDED, Vec::new()),
            2 => (
                SET_CONTEXTS,
                queries("disk", &["base:allocation", "extant:state"]),
            ),
            3 => (INFO, name_and_kinds("disk", &[0, 1, 2, 3])),
            _ => (GO, name_and_kinds("disk", &[3])),
        };
        let length = data.len() as u32;
        [
            b"IHAVEOPT",
            &option.to_be_bytes()[..],
            &length.to_be_bytes(),
            &data,
        ]
        .concat()
    });
    let offset = prop_oneof![
        (0..131_072u64).prop_map(|at| at * 512),
        Just(64 * MIB),
        any::<u64>()
    ];
    let length = prop_oneof![
        (0..300u32).prop_map(|at| at * 512),
        Just(u32::MAX),
        any::<u32>()
    ];
    let request = (0..9u16, 0..64u16, offset, length, any::<bool>()).prop_map(
        |(command, flags, offset, length, is_extended)| {
            let mut bytes = if is_extended {
                0x21e4_1c71u32.to_be_bytes().to_vec()
            } else {
                0x2560_9513u32.to_be_bytes().to_vec()
            };
            bytes.extend(flags.to_be_bytes());
            bytes.extend(command.to_be_bytes());
            bytes.extend(7u64.to_be_bytes());
            bytes.extend(offset.to_be_bytes());
            if is_extended {
                bytes.extend([0; 4]);
            }
            bytes.extend(length.to_be_bytes());
            if command == WRITE {
                bytes.resize(bytes.len() + length.min(200_000) as usize, 0x55);
            }
            bytes
        },
    );
    let noise = prop::collection::vec(any::<u8>(), 0..40);
    let piece = prop_oneof![2 => option, 4 => known, 12 => request, 1 => noise];
    (any::<bool>(), prop::collection::vec(piece, 0..24)).prop_map(|(is_polite, pieces)| {
        let mut bytes = if is_polite {
            3u32.to_be_bytes().to_vec()
        } else {
            Vec::new()
        };
        pieces.iter().for_each(|piece| bytes.extend(piece));
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn any_conversation_comes_to_an_end(bytes in conversation()) {
        let (server, _) = server(ServerOptions::default());
        prop_assert!(run_connection(&server, &bytes) >= 18);
        server.shutdown(TEST_TIMEOUT).unwrap();
        prop_assert_eq!(server.connections(), 0);
    }

    #[test]
    fn any_requests_in_any_style_come_to_an_end(
        style in 0..3u8,
        bytes in conversation(),
    ) {
        let (server, _) = server(ServerOptions::default());
        let mut start = 3u32.to_be_bytes().to_vec();
        let mut option = |option: u32, data: &[u8]| {
            start.extend(b"IHAVEOPT");
            start.extend(option.to_be_bytes());
            start.extend((data.len() as u32).to_be_bytes());
            start.extend(data);
        };
        match style {
            0 => {}
            1 => option(STRUCTURED, &[]),
            _ => option(EXTENDED, &[]),
        }
        option(SET_CONTEXTS, &queries("disk", &["base:allocation", "extant:state"]));
        option(GO, &name_and_kinds("disk", &[3]));
        start.extend(bytes);
        run_connection(&server, &start);
        server.shutdown(TEST_TIMEOUT).unwrap();
    }
}

#[test]
fn client_that_vanishes_in_the_middle_of_a_request_changes_nothing() {
    for takes in ALL {
        let (server, device) = server_on(takes, ServerOptions::default());
        for sent in [1, 27, 28, 29, 28 + 4095] {
            let mut client = Client::ready(&server, None, &[]);
            let mut bytes = client.encode(WRITE, 0, 0, 4096);
            bytes.extend([1; 4096]);
            client.send(&bytes[..sent]);
        }
        let mut client = Client::ready(&server, None, &[]);
        let large = client.encode(WRITE, 0, 0, 16 * MIB);
        client.send(&large);
        client.send(&[1; 100_000]);
        drop(client);
        while server.connections() > 0 {
            std::thread::yield_now();
        }
        assert_eq!(device.take_seen(), [""; 0]);
    }
}

#[test]
fn garbage_after_requests_closes_the_connection_after_their_replies() {
    for takes in ALL {
        let (server, device) = server_on(takes, ServerOptions::default());
        let mut client = Client::ready(&server, None, &[]);
        device.hold("flush");
        let mut bytes = client.encode(FLUSH, 0, 0, 0);
        bytes.extend(client.encode(WRITE, 0, 0, 512));
        bytes.extend([4; 512]);
        bytes.extend([0xAA; 28]);
        client.send(&bytes);
        // The write; by now the garbage is next, while the flush is at work.
        assert_eq!(client.reply()[0].cookie, 2);
        device.release();
        assert_eq!(client.reply()[0].cookie, 1);
        client.expect_end();
    }
}

#[test]
fn flood_of_a_client_that_reads_no_replies_is_bounded() {
    let (server, _) = server(ServerOptions::default());
    let mut client = Client::ready(&server, None, &[]);
    let read = client.encode(READ, 0, 0, MIB);
    let flood = read.repeat(100_000);
    let before = resident();
    let (ours, theirs) = UnixStream::pair().unwrap();
    server.serve(theirs).unwrap();
    let mut flooder = Client::over(Box::new(ours.try_clone().unwrap()));
    flooder.greet(3);
    flooder.negotiate(None, &[]);
    ours.set_nonblocking(true).unwrap();
    let mut sent = 0;
    let mut refused = 0;
    while sent < flood.len() && refused < 200 {
        match (&ours).write(&flood[sent..]) {
            Ok(bytes) => sent += bytes,
            Err(_) => {
                refused += 1;
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    }
    assert!(sent < flood.len(), "the server stops reading");
    assert!(
        resident() - before < 64 * MIB as i64,
        "memory stays bounded"
    );
    // Other clients are served.
    assert_eq!(client.read(0, 0, 512), [0; 512]);
}

/// Bytes of memory this process has.
fn resident() -> i64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: i64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[test]
fn announced_gigabytes_take_no_memory() {
    let (server, _) = server(ServerOptions::default());
    let before = resident();
    let clients: Vec<_> = (0..20)
        .map(|_| {
            let mut client = Client::ready(&server, Some(EXTENDED), &[]);
            let write = client.encode(WRITE, PAYLOAD, 0, u64::MAX);
            client.send(&write);
            // A reply would follow the last of it.
            client.send(&[0; 65536]);
            client
        })
        .collect();
    assert!(resident() - before < 200 * MIB as i64);
    drop(clients);
    server.shutdown(TEST_TIMEOUT).unwrap();
}
