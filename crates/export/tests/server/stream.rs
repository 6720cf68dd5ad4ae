//! Reads and writes that a device takes as a stream.

use extant_export::ServerOptions;
use extant_space::ErrorKind;

use crate::client::*;
use crate::probe::Takes::{self, Streams, StreamsAtOnce};
use crate::{MIB, server_on};

const STREAMS: [Takes; 2] = [Streams, StreamsAtOnce];

/// The cookies of the next `count` replies, which have no error.
fn cookies(client: &mut Client, count: usize) -> Vec<u64> {
    let cookie = |_| {
        let reply = client.reply();
        assert_eq!(error_of(&reply), 0);
        reply[0].cookie
    };
    let mut cookies: Vec<_> = (0..count).map(cookie).collect();
    cookies.sort_unstable();
    cookies
}

#[test]
fn replies_do_not_wait_for_the_slowest() {
    for takes in STREAMS {
        let (server, device) = server_on(takes, ServerOptions::default());
        let mut client = Client::ready(&server, Some(STRUCTURED), &[]);
        device.hold_transfers_at(10 * 4096);
        let reads: Vec<u8> = (0..64)
            .flat_map(|at| client.encode(READ, 0, at * 4096, 4096))
            .collect();
        client.send(&reads);
        let all_but_one: Vec<_> = (1..=64).filter(|cookie| *cookie != 11).collect();
        assert_eq!(cookies(&mut client, 63), all_but_one);
        // Nor do the next ones.
        for _ in 65..=100 {
            assert_eq!(error_of(&client.write(0, 0, &[1; 4096])), 0);
        }
        device.release();
        assert_eq!(client.reply()[0].cookie, 11);
        assert_eq!(device.streamed(), 100);
    }
}

#[test]
fn other_requests_continue_during_a_stream() {
    for takes in STREAMS {
        let (server, device) = server_on(takes, ServerOptions::default());
        let mut client = Client::ready(&server, Some(STRUCTURED), &[]);
        device.hold_transfers_at(0);
        let mut bytes = client.encode(WRITE, 0, 0, 4096);
        bytes.extend([1; 4096]);
        bytes.extend(client.encode(WRITE, 0, 4096, 4096));
        bytes.extend([2; 4096]);
        bytes.extend(client.encode(FLUSH, 0, 0, 0));
        bytes.extend(client.encode(READ, 0, 4096, 512));
        client.send(&bytes);
        let mut seen = [0; 3].map(|_| client.reply()[0].cookie);
        seen.sort_unstable();
        assert_eq!(seen, [2, 3, 4]);
        // A large write and a FUA write are no transfers of a stream either.
        assert_eq!(error_of(&client.write(0, MIB, &vec![3; 1 << 20])), 0);
        assert_eq!(error_of(&client.write(FUA, 4096, &[4; 512])), 0);
        assert_eq!(client.read(0, 2 * MIB - 512, 512), [3; 512]);
        device.release();
        assert_eq!(client.reply()[0].cookie, 1);
        let seen = device.take_seen();
        assert_eq!(seen.iter().filter(|seen| *seen == "flush").count(), 1);
        assert_eq!(seen.last().unwrap(), "write Cached");
        let expected = [vec![1; 4096], vec![4; 512], vec![2; 3584]].concat();
        assert_eq!(client.read(0, 0, 8192), expected);
    }
}

#[test]
fn client_that_waits_for_each_reply_needs_no_stream() {
    for takes in STREAMS {
        let (server, device) = server_on(takes, ServerOptions::default());
        let mut client = Client::ready(&server, Some(STRUCTURED), &[]);
        let mut begun = 0;
        for burst in 1..=3 {
            let reads: Vec<u8> = (0..32)
                .flat_map(|at| client.encode(READ, 0, at * 512, 512))
                .collect();
            client.send(&reads);
            cookies(&mut client, 32);
            for _ in 0..100 {
                client.read(0, 0, 512);
            }
            let streamed = device.streamed() - begun;
            // Every 16th reply checks the queue depth; the second check at the latest sees a burst.
            assert!((1..=48).contains(&streamed), "{streamed} of {burst}");
            begun += streamed;
        }
    }
}

#[test]
fn more_transfers_than_a_stream_holds_are_all_made() {
    for takes in STREAMS {
        let (server, device) = server_on(takes, ServerOptions::default());
        let mut client = Client::ready(&server, Some(STRUCTURED), &[]);
        // The first of them stays, so that its slot is not free.
        device.hold_transfers_at(0);
        for round in 0..3u8 {
            let first = u64::from(round) * 300;
            let writes: Vec<u8> = (first..first + 300)
                .flat_map(|at| {
                    let mut bytes = client.encode(WRITE, 0, at * 512, 512);
                    bytes.extend([at as u8; 512]);
                    bytes
                })
                .collect();
            client.send(&writes);
            cookies(&mut client, if round == 0 { 299 } else { 300 });
        }
        device.release();
        assert_eq!(client.reply()[0].cookie, 1);
        for at in [0, 77, 299, 300, 899] {
            assert_eq!(client.read(0, at * 512, 512), [at as u8; 512]);
        }
    }
}

#[test]
fn requests_of_a_disconnected_client_are_completed() {
    for takes in STREAMS {
        let (server, device) = server_on(takes, ServerOptions::default());
        let mut client = Client::ready(&server, None, &[]);
        device.hold_transfers_at(0);
        let mut bytes = Vec::new();
        for at in 0..100u64 {
            bytes.extend(client.encode(WRITE, 0, at * 4096, 4096));
            bytes.extend([7; 4096]);
        }
        client.send(&bytes);
        cookies(&mut client, 99);
        drop(client);
        device.release();
        while server.connections() > 0 {
            std::thread::yield_now();
        }
        let mut client = Client::ready(&server, None, &[]);
        assert!(client.read(0, 0, 400 << 10).iter().all(|byte| *byte == 7));
    }
}

#[test]
fn error_of_one_transfer_is_no_error_of_others() {
    for takes in STREAMS {
        let (server, device) = server_on(takes, ServerOptions::default());
        let mut client = Client::ready(&server, Some(STRUCTURED), &[]);
        device.fail_at(20 * 512, ErrorKind::NoSpace);
        let mut bytes = Vec::new();
        for at in 0..40u64 {
            bytes.extend(client.encode(WRITE, 0, at * 512, 512));
            bytes.extend([7; 512]);
        }
        client.send(&bytes);
        for _ in 0..40 {
            let reply = client.reply();
            let expected = if reply[0].cookie == 21 { 28 } else { 0 };
            assert_eq!(error_of(&reply), expected);
        }
        assert!(device.streamed() > 0);
    }
}
