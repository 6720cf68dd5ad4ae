//! The end of a server, and of a connection whose device fails badly.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use extant_export::ServerOptions;
use extant_space::ErrorKind;

use crate::client::*;
use crate::probe::ALL;
use crate::{server, server_on};

const ESHUTDOWN: u32 = 108;
/// Another thread of the connection may read the second request before the end.
const TRIES: u32 = 100;

#[test]
fn shutdown_completes_received_requests_refuses_the_rest_and_flushes() {
    assert!((0..TRIES).any(|_| shut_down_beside_a_write() == ESHUTDOWN));
}

/// Shuts a server down while a write runs and a flush waits in the socket. Returns the error of the
/// flush: 0 if it was received before the shutdown.
fn shut_down_beside_a_write() -> u32 {
    let (server, device) = server(ServerOptions::default());
    let mut client = Client::ready(&server, None, &[]);
    device.hold("write");
    let mut first = client.encode(WRITE, 0, 0, 512);
    first.extend([6; 512]);
    client.send(&first);
    device.wait_for_held();
    let later = client.encode(FLUSH, 0, 0, 0);
    client.send(&later);
    let mut replies = std::thread::scope(|scope| {
        let shutdown = scope.spawn(|| server.shutdown(TEST_TIMEOUT));
        // When a new connection is refused, the first one has the flag too.
        loop {
            let (ours, theirs) = UnixStream::pair().unwrap();
            server.serve(theirs).unwrap();
            let mut probe = Client::over(Box::new(ours));
            let _greeting: [u8; 18] = probe.take();
            if probe.wire.write_all(&3u32.to_be_bytes()).is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        device.release();
        let replies = [client.reply(), client.reply()];
        client.expect_end();
        shutdown.join().unwrap().unwrap();
        replies
    });
    replies.sort_by_key(|reply| reply[0].cookie);
    let [write, flush] = replies.map(|reply| error_of(&reply));
    assert_eq!(write, 0);
    assert!([0, ESHUTDOWN].contains(&flush), "{flush}");
    assert_eq!(device.take_seen().last().unwrap(), "flush");
    flush
}

#[test]
fn shutdown_does_not_wait_for_idle_or_stalled_clients() {
    let (server, _) = server(ServerOptions::default());
    let _idle = Client::ready(&server, None, &[]);
    let _greeted = Client::new(&server);
    let mut deaf = Client::ready(&server, None, &[]);
    let reads: Vec<u8> = (0..8)
        .flat_map(|_| deaf.encode(READ, 0, 0, 4 << 20))
        .collect();
    deaf.send(&reads);
    server.shutdown(Duration::from_millis(100)).unwrap();
    assert_eq!(server.connections(), 0);
}

#[test]
fn shutdown_reports_a_hanging_device_and_a_failed_flush() {
    let (server, device) = server(ServerOptions::default());
    device.fail_at(u64::MAX, ErrorKind::Io);
    assert_eq!(
        server.shutdown(TEST_TIMEOUT).unwrap_err().kind(),
        ErrorKind::Io
    );

    let (server, device) = crate::server(ServerOptions::default());
    let mut client = Client::ready(&server, None, &[]);
    device.hold("discard");
    let trim = client.encode(TRIM, 0, 0, 512);
    client.send(&trim);
    device.wait_for_held();
    let error = server.shutdown(Duration::from_millis(10)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    device.release();
}

#[test]
fn panic_of_a_device_ends_its_connection_and_no_other() {
    for takes in ALL {
        let (server, device) = server_on(takes, ServerOptions::default());
        let mut other = Client::ready(&server, None, &[]);
        let mut client = Client::ready(&server, None, &[]);
        device.panic_next();
        let read = client.encode(READ, 0, 0, 512);
        client.send(&read);
        client.expect_end();
        assert_eq!(other.read(0, 0, 512), [0; 512]);
        while server.connections() > 1 {
            std::thread::yield_now();
        }
    }
}
