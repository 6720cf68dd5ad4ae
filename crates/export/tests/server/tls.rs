//! TLS: required use, admission of clients, and that options negotiated before it are discarded.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::sync::Arc;

use extant_export::{Address, ClientCertificates, Server, ServerOptions, Tls, TlsRequirement};
use extant_space::ErrorKind;
use extant_testkit::command::{run_any_status, text, tool};
use extant_testkit::{require, requires};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::client::*;
use crate::server;

const STARTTLS: u32 = 5;

/// An authority, and certificates by it for a server at localhost and a client.
fn certificates(directory: &Path) {
    let authority_key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = authority.self_signed(&authority_key).unwrap();
    fs::write(directory.join("ca-cert.pem"), certificate.pem()).unwrap();
    let issuer = Issuer::new(authority, authority_key);
    for who in ["server", "client"] {
        let key = KeyPair::generate().unwrap();
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let certificate = CertificateParams::new(names)
            .unwrap()
            .signed_by(&key, &issuer);
        fs::write(
            directory.join(format!("{who}-cert.pem")),
            certificate.unwrap().pem(),
        )
        .unwrap();
        fs::write(
            directory.join(format!("{who}-key.pem")),
            key.serialize_pem(),
        )
        .unwrap();
    }
}

fn tls_server(
    directory: &Path,
    clients: ClientCertificates,
    requirement: TlsRequirement,
) -> (Server, u16) {
    let tls = Tls::from_directory(directory, clients, requirement).unwrap();
    let (server, _) = server(ServerOptions {
        tls: Some(tls),
        ..ServerOptions::default()
    });
    let address = Address::Tcp((Ipv4Addr::LOCALHOST, 0).into());
    let Address::Tcp(bound) = server.listen(&address).unwrap() else {
        panic!("another kind of address");
    };
    (server, bound.port())
}

fn connect(port: u16) -> (Client, TcpStream) {
    let tcp = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    tcp.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let mut client = Client::over(Box::new(tcp.try_clone().unwrap()));
    client.greet(3);
    (client, tcp)
}

fn encrypted(directory: &Path, tcp: TcpStream) -> Client {
    let mut roots = RootCertStore::empty();
    let pem = fs::read(directory.join("ca-cert.pem")).unwrap();
    roots
        .add(CertificateDer::from_pem_slice(&pem).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    Client::over(Box::new(StreamOwned::new(connection, tcp)))
}

#[test]
fn requests_large_and_small_pass_through_tls() {
    let directory = tempfile::tempdir().unwrap();
    certificates(directory.path());
    let (server, port) = tls_server(
        directory.path(),
        ClientCertificates::NotAsked,
        TlsRequirement::Optional,
    );
    let (mut client, tcp) = connect(port);
    assert_eq!(client.option(STRUCTURED, &[])[0].0, ACK);
    assert_eq!(client.option(STARTTLS, &[]), [(ACK, vec![])]);
    let mut client = encrypted(directory.path(), tcp);
    assert_eq!(client.option(STARTTLS, &[])[0].0, INVALID);
    // Options negotiated before TLS are forgotten.
    client.negotiate(Some(STRUCTURED), &["base:allocation"]);
    for length in [512, 4096, 300_000 / 512 * 512, 5 << 20] {
        let data: Vec<u8> = (0..length).map(|at| (at % 253) as u8).collect();
        assert_eq!(error_of(&client.write(0, 0, &data)), 0);
        assert!(client.read(0, 0, length as u64) == data);
    }
    let mut bytes = Vec::new();
    for at in 0..100 {
        bytes.extend(client.encode(READ, 0, at * 4096, 4096));
    }
    client.send(&bytes);
    for _ in 0..100 {
        assert_eq!(client.reply()[0].payload.len(), 4104);
    }
    server.shutdown(TEST_TIMEOUT).unwrap();
}

#[test]
fn server_that_requires_tls_reveals_no_export_before_it() {
    let directory = tempfile::tempdir().unwrap();
    certificates(directory.path());
    let (_server, port) = tls_server(
        directory.path(),
        ClientCertificates::NotAsked,
        TlsRequirement::Required,
    );
    let (mut client, _tcp) = connect(port);
    for option in [GO, INFO, 3, STRUCTURED, EXTENDED, SET_CONTEXTS, 99] {
        assert_eq!(
            client.option(option, &name_and_kinds("disk", &[]))[0].0,
            TLS_REQD
        );
    }
    client.send_option(1, b"disk");
    client.expect_end();
    // Bytes that an attacker adds after the start of TLS are not taken for the client's.
    let (mut client, _tcp) = connect(port);
    client.send_option(STARTTLS, &[]);
    client.send_option(GO, &name_and_kinds("disk", &[]));
    assert_eq!(client.answers(STARTTLS), [(ACK, vec![])]);
    let mut rest = Vec::new();
    let _ = std::io::Read::read_to_end(&mut client.wire, &mut rest);
    assert!(!rest.starts_with(&0x0003_e889_0455_65a9u64.to_be_bytes()));
}

#[test]
fn nbdinfo_connects_only_with_a_certificate() {
    require!(requires::tool("nbdinfo"));
    let directory = tempfile::tempdir().unwrap();
    certificates(directory.path());
    let (_server, port) = tls_server(
        directory.path(),
        ClientCertificates::Required,
        TlsRequirement::Required,
    );
    let uri = |directory: &Path| {
        let directory = directory.display();
        format!("nbds://localhost:{port}/disk?tls-certificates={directory}")
    };
    let shown = text(tool("nbdinfo").arg(uri(directory.path())));
    let shown = shown.unwrap_or_else(|failure| panic!("{failure}"));
    assert!(
        shown.contains("with TLS") && shown.contains("export-size: 67108864"),
        "{shown}"
    );
    let other = tempfile::tempdir().unwrap();
    certificates(other.path());
    fs::copy(
        directory.path().join("ca-cert.pem"),
        other.path().join("ca-cert.pem"),
    )
    .unwrap();
    let output = run_any_status(tool("nbdinfo").arg(uri(other.path()))).unwrap();
    assert!(
        !output.status.success(),
        "a certificate by another authority"
    );
}

#[test]
fn unusable_certificates_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let load = || {
        let result = Tls::from_directory(
            directory.path(),
            ClientCertificates::Required,
            TlsRequirement::Required,
        );
        result.unwrap_err()
    };
    assert_eq!(load().kind(), ErrorKind::NotFound);
    fs::write(directory.path().join("keys.psk"), "user:00").unwrap();
    let error = load();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("pre-shared keys"), "{error}");
    certificates(directory.path());
    fs::write(directory.path().join("ca-cert.pem"), "nothing").unwrap();
    let error = load();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("ca-cert.pem"), "{error}");
    certificates(directory.path());
    let other = tempfile::tempdir().unwrap();
    certificates(other.path());
    fs::copy(
        other.path().join("server-key.pem"),
        directory.path().join("server-key.pem"),
    )
    .unwrap();
    assert_eq!(load().kind(), ErrorKind::InvalidArgument);
}
