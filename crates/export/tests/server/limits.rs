//! Numbers of clients, the time of a handshake, and sockets.

use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use extant_export::{Address, BoundSocket, Limits, ServerOptions};
use extant_space::ErrorKind;

use crate::client::*;
use crate::server;

#[test]
fn connections_beyond_the_limit_are_closed_and_a_place_is_free_again_later() {
    let limits = Limits {
        connections: 2,
        ..Limits::default()
    };
    let (server, _) = server(ServerOptions {
        limits,
        ..ServerOptions::default()
    });
    let mut clients: Vec<_> = (0..2).map(|_| Client::new(&server)).collect();
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(PATIENCE)).unwrap();
    server.serve(theirs).unwrap();
    Client::over(Box::new(ours)).expect_end();
    let mut gone = clients.pop().unwrap();
    gone.option(2, &[]);
    gone.expect_end();
    while server.connections() > 1 {
        std::thread::yield_now();
    }
    Client::new(&server).negotiate(None, &[]);
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
    // Once there is an export, a client may think as long as it likes.
    let mut client = Client::ready(&server, None, &[]);
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(client.read(0, 0, 512), [0; 512]);
}

#[test]
fn unix_and_tcp_clients_are_served_side_by_side() {
    let folder = tempfile::tempdir().unwrap();
    let (server, _) = server(ServerOptions::default());
    let path = folder.path().join("nbd.sock");
    server.listen(&Address::Unix(path.clone())).unwrap();
    let port_0 = Address::Tcp((Ipv4Addr::LOCALHOST, 0).into());
    let Address::Tcp(bound) = server.listen(&port_0).unwrap() else {
        panic!("another kind of address");
    };
    assert_ne!(bound.port(), 0);
    let unix = UnixStream::connect(&path).unwrap();
    let tcp = TcpStream::connect(bound).unwrap();
    unix.set_read_timeout(Some(PATIENCE)).unwrap();
    tcp.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut clients = [Client::over(Box::new(unix)), Client::over(Box::new(tcp))];
    for client in &mut clients {
        client.greet(3);
        client.negotiate(Some(STRUCTURED), &[]);
    }
    assert_eq!(error_of(&clients[0].write(0, 0, &[8; 4096])), 0);
    assert_eq!(clients[1].read(0, 0, 4096), [8; 4096]);
    server.shutdown(PATIENCE).unwrap();
    assert!(!path.exists(), "the socket is taken away");
}

#[test]
fn socket_of_a_dead_server_is_replaced_and_one_in_use_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nbd.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let (first, _) = server(ServerOptions::default());
    first.listen(&Address::Unix(path.clone())).unwrap();
    let (second, _) = server(ServerOptions::default());
    let error = second.listen(&Address::Unix(path.clone())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    let file = folder.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    let error = second.listen(&Address::Unix(file.clone())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
}

#[test]
fn adopted_socket_is_served_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nbd.sock");
    let socket = UnixListener::bind(&path).unwrap();
    for data in [1, 2] {
        let (server, _) = server(ServerOptions::default());
        let ours = BoundSocket::Unix(socket.try_clone().unwrap());
        let address = server.adopt(ours).unwrap();
        assert_eq!(address, Some(Address::Unix(path.clone())));
        let unix = UnixStream::connect(&path).unwrap();
        unix.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut client = Client::over(Box::new(unix));
        client.greet(3);
        client.negotiate(None, &[]);
        assert_eq!(error_of(&client.write(0, 0, &[data; 4096])), 0);
        server.shutdown(PATIENCE).unwrap();
        assert!(path.exists());
    }
    // Its owner can take clients again.
    let _waiting = UnixStream::connect(&path).unwrap();
    socket.set_nonblocking(false).unwrap();
    socket.accept().unwrap();
}
