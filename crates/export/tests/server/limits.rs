//! Numbers of clients, the time of a handshake, and sockets.

use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use extant_export::{Address, BoundSocket, Limits, Server, ServerOptions};
use extant_space::ErrorKind;

use crate::client::*;
use crate::server;

#[test]
fn connections_beyond_the_limit_are_closed_and_a_place_is_free_again_later() {
    let (server, _) = server(limited_to(2));
    let mut clients: Vec<_> = (0..2).map(|_| Client::ready(&server, None, &[])).collect();
    turned_away(&server);
    let mut gone = clients.pop().unwrap();
    let leave = gone.encode(DISC, 0, 0, 0);
    gone.send(&leave);
    gone.expect_end();
    while server.connections() > 1 {
        std::thread::yield_now();
    }
    Client::new(&server).negotiate(None, &[]);
}

/// One more client finds its connection closed.
fn turned_away(server: &Server) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    server.serve(theirs).unwrap();
    Client::over(Box::new(ours)).expect_end();
}

fn limited_to(connections: usize) -> ServerOptions {
    let limits = Limits {
        connections,
        ..Limits::default()
    };
    ServerOptions {
        limits,
        ..ServerOptions::default()
    }
}

#[test]
fn client_without_an_export_makes_way_and_one_with_an_export_stays() {
    let (server, _) = server(limited_to(3));
    let mut first = Client::ready(&server, None, &[]);
    let mut idle = [Client::new(&server), Client::new(&server)];
    let mut newer = Vec::new();
    for idle in &mut idle {
        let mut client = Client::new(&server);
        // The oldest of them.
        idle.expect_end();
        client.negotiate(None, &[]);
        assert_eq!(client.read(0, 0, 512), [0; 512]);
        newer.push(client);
    }
    assert_eq!(server.connections(), 3);
    turned_away(&server);
    assert_eq!(first.read(0, 0, 512), [0; 512]);
}

/// A client that was granted an export keeps it, however many clients connect at that moment.
#[test]
fn client_that_has_its_answer_is_not_cut_off() {
    let (server, _) = server(limited_to(2));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let crowd = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let (_ours, theirs) = UnixStream::pair().unwrap();
                server.serve(theirs).unwrap();
            }
        });
        let mut told = 0;
        let deadline = Instant::now() + TEST_TIMEOUT;
        while told < 200 && Instant::now() < deadline {
            let (ours, theirs) = UnixStream::pair().unwrap();
            ours.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
            server.serve(theirs).unwrap();
            let mut client = Client::over(Box::new(ours));
            // It may be evicted before the reply, not after.
            let mut hello = [&3u32.to_be_bytes()[..], b"IHAVEOPT", &GO.to_be_bytes()].concat();
            let data = name_and_kinds("disk", &[]);
            hello.extend((data.len() as u32).to_be_bytes());
            hello.extend(data);
            let _ = client.wire.write_all(&hello);
            if client.try_until_ack() {
                told += 1;
                assert_eq!(client.read(0, 0, 512), [0; 512]);
            }
        }
        stop.store(true, Ordering::Relaxed);
        crowd.join().unwrap();
        assert!(told > 0, "no client got an export");
    });
}

#[test]
fn one_address_leaves_places_to_others() {
    let (server, _) = server(limited_to(4));
    let port_0 = Address::Tcp((Ipv4Addr::LOCALHOST, 0).into());
    let Address::Tcp(bound) = server.listen(&port_0).unwrap() else {
        panic!("another kind of address");
    };
    let connect = || {
        let tcp = TcpStream::connect(bound).unwrap();
        tcp.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        Client::over(Box::new(tcp))
    };
    let mut clients = [(); 3].map(|()| connect());
    for client in &mut clients {
        client.greet(3);
        client.negotiate(None, &[]);
    }
    connect().expect_end();
    let mut local = Client::ready(&server, None, &[]);
    assert_eq!(local.read(0, 0, 512), [0; 512]);
    for client in &mut clients {
        assert_eq!(client.read(0, 0, 512), [0; 512]);
    }
}

#[test]
fn handshake_that_dawdles_is_cut_off() {
    let limits = Limits {
        handshake: Duration::from_millis(500),
        ..Limits::default()
    };
    let (server, _) = server(ServerOptions {
        limits,
        ..ServerOptions::default()
    });
    let mut client = Client::new(&server);
    client.send(b"IHAVE");
    client.expect_end();
    // A client with an export may be idle without limit.
    let mut client = Client::ready(&server, None, &[]);
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(client.read(0, 0, 512), [0; 512]);
}

#[test]
fn unix_and_tcp_clients_are_served_concurrently() {
    let directory = tempfile::tempdir().unwrap();
    let (server, _) = server(ServerOptions::default());
    let path = directory.path().join("nbd.sock");
    server.listen(&Address::Unix(path.clone())).unwrap();
    let port_0 = Address::Tcp((Ipv4Addr::LOCALHOST, 0).into());
    let Address::Tcp(bound) = server.listen(&port_0).unwrap() else {
        panic!("another kind of address");
    };
    assert_ne!(bound.port(), 0);
    let unix = UnixStream::connect(&path).unwrap();
    let tcp = TcpStream::connect(bound).unwrap();
    unix.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    tcp.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let mut clients = [Client::over(Box::new(unix)), Client::over(Box::new(tcp))];
    for client in &mut clients {
        client.greet(3);
        client.negotiate(Some(STRUCTURED), &[]);
    }
    assert_eq!(error_of(&clients[0].write(0, 0, &[8; 4096])), 0);
    assert_eq!(clients[1].read(0, 0, 4096), [8; 4096]);
    server.shutdown(TEST_TIMEOUT).unwrap();
    assert!(!path.exists(), "the socket is taken away");
}

#[test]
fn socket_of_a_dead_server_is_replaced_and_one_in_use_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nbd.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let (first, _) = server(ServerOptions::default());
    first.listen(&Address::Unix(path.clone())).unwrap();
    let (second, _) = server(ServerOptions::default());
    let error = second.listen(&Address::Unix(path.clone())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    let file = directory.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    let error = second.listen(&Address::Unix(file.clone())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
}

#[test]
fn server_that_ends_leaves_the_socket_of_another_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nbd.sock");
    let (first, _) = server(ServerOptions::default());
    first.listen(&Address::Unix(path.clone())).unwrap();
    std::fs::remove_file(&path).unwrap();
    let (second, _) = server(ServerOptions::default());
    second.listen(&Address::Unix(path.clone())).unwrap();
    first.shutdown(TEST_TIMEOUT).unwrap();
    let unix = UnixStream::connect(&path).unwrap();
    unix.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    Client::over(Box::new(unix)).greet(3);
    second.shutdown(TEST_TIMEOUT).unwrap();
    assert!(!path.exists());
}

#[test]
fn of_servers_that_find_a_dead_socket_at_once_one_gets_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nbd.sock");
    for _ in 0..20 {
        drop(UnixListener::bind(&path).unwrap());
        let servers: Vec<_> = (0..4).map(|_| server(ServerOptions::default()).0).collect();
        let together = Barrier::new(servers.len());
        let results: Vec<_> = std::thread::scope(|scope| {
            let listen = |server: &Server| {
                together.wait();
                server.listen(&Address::Unix(path.clone())).map(drop)
            };
            let threads: Vec<_> = servers
                .iter()
                .map(|server| scope.spawn(move || listen(server)))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        let won = results.iter().filter(|result| result.is_ok()).count();
        assert_eq!(won, 1, "{results:?}");
        let unix = UnixStream::connect(&path).unwrap();
        unix.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        Client::over(Box::new(unix)).greet(3);
        drop(servers);
        assert!(!path.exists());
    }
}

#[test]
fn socket_of_a_server_that_is_being_killed_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nbd.sock");
    // It accepts no more clients, and has not ended yet.
    let dying = UnixListener::bind(&path).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(150));
            drop(dying);
        });
        let (server, _) = server(ServerOptions::default());
        server.listen(&Address::Unix(path.clone())).unwrap();
        let unix = UnixStream::connect(&path).unwrap();
        unix.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        Client::over(Box::new(unix)).greet(3);
    });
}

#[test]
fn adopted_socket_is_served_and_left_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nbd.sock");
    let socket = UnixListener::bind(&path).unwrap();
    for data in [1, 2] {
        let (server, _) = server(ServerOptions::default());
        let ours = BoundSocket::Unix(socket.try_clone().unwrap());
        let address = server.adopt(ours).unwrap();
        assert_eq!(address, Some(Address::Unix(path.clone())));
        let unix = UnixStream::connect(&path).unwrap();
        unix.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let mut client = Client::over(Box::new(unix));
        client.greet(3);
        client.negotiate(None, &[]);
        assert_eq!(error_of(&client.write(0, 0, &[data; 4096])), 0);
        server.shutdown(TEST_TIMEOUT).unwrap();
        assert!(path.exists());
    }
    // Its owner can take clients again.
    let _waiting = UnixStream::connect(&path).unwrap();
    socket.set_nonblocking(false).unwrap();
    socket.accept().unwrap();
}
