//! TLS, with nbdkit and qemu-nbd as servers.

use std::fs;
use std::path::Path;

use extant_blockdev::{Device, Persistence};
use extant_nbd::{NbdDevice, NbdTls, NbdUri};
use extant_space::ErrorKind;
use extant_testkit::{require, requires};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use crate::model::Model;
use crate::options;
use crate::servers::Served;

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
        let parameters = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = parameters.signed_by(&key, &issuer).unwrap();
        let path = |what: &str| directory.join(format!("{who}-{what}.pem"));
        fs::write(path("cert"), certificate.pem()).unwrap();
        fs::write(path("key"), key.serialize_pem()).unwrap();
    }
}

fn encrypted(uri: NbdUri, directory: &Path, hostname: Option<&str>) -> NbdUri {
    uri.with_tls(NbdTls {
        certificates: Some(directory.to_path_buf()),
        hostname: hostname.map(str::to_owned),
    })
}

fn tls_server(directory: &Path) -> Served {
    let certificates = format!("--tls-certificates={}", directory.display());
    let flags = ["--tls=require", "--tls-verify-peer", &certificates];
    Served::nbdkit(directory, &[&flags[..], &["memory", "16M"]].concat())
}

#[test]
fn nbdkit_over_tls_agrees_with_the_model() {
    require!(requires::tool("nbdkit"));
    let directory = tempfile::tempdir().unwrap();
    certificates(directory.path());
    let served = tls_server(directory.path());
    let uri = encrypted(served.uri(""), directory.path(), None);
    let again: NbdUri = uri.to_string().parse().unwrap();
    let device = NbdDevice::connect(&again, options()).unwrap();
    let mut model = Model::new(&device, 31);
    model.run(&device, 40);
    model.check(&device);
}

#[test]
fn server_that_requires_tls_says_so() {
    require!(requires::tool("nbdkit"));
    let directory = tempfile::tempdir().unwrap();
    certificates(directory.path());
    let served = tls_server(directory.path());
    let error = NbdDevice::connect(&served.uri(""), options()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(error.to_string().contains("nbds"), "{error}");
}

#[test]
fn server_of_another_authority_or_name_is_refused() {
    require!(requires::tool("nbdkit"));
    let directory = tempfile::tempdir().unwrap();
    certificates(directory.path());
    let served = tls_server(directory.path());
    let other = tempfile::tempdir().unwrap();
    certificates(other.path());
    for uri in [
        encrypted(served.uri(""), other.path(), None),
        encrypted(served.uri(""), directory.path(), Some("example.com")),
    ] {
        let error = NbdDevice::connect(&uri, options()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert!(error.to_string().contains("certificate"), "{error}");
    }
}

#[test]
fn server_without_tls_is_refused() {
    require!(requires::tool("nbdkit"));
    let directory = tempfile::tempdir().unwrap();
    certificates(directory.path());
    let served = Served::nbdkit(directory.path(), &["memory", "1M"]);
    let uri = encrypted(served.uri(""), directory.path(), None);
    let error = NbdDevice::connect(&uri, options()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
}

#[test]
fn missing_authority_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let uri: NbdUri = format!(
        "nbds+unix:///?socket=s&tls-certificates={}",
        directory.path().display()
    )
    .parse()
    .unwrap();
    let error = NbdDevice::connect(&uri, options()).unwrap_err();
    assert!(error.to_string().contains("ca-cert.pem"), "{error}");
}

#[test]
fn qemu_nbd_over_tls_is_read_and_written() {
    require!(requires::tool("qemu-nbd"));
    let directory = tempfile::tempdir().unwrap();
    certificates(directory.path());
    let image = directory.path().join("disk.raw");
    fs::write(&image, vec![0; 1 << 20]).unwrap();
    let object = format!(
        "tls-creds-x509,id=tls0,endpoint=server,verify-peer=yes,dir={}",
        directory.path().display()
    );
    let arguments = ["--format=raw", "--object", &object, "--tls-creds=tls0"];
    let served = Served::qemu(directory.path(), &image, &arguments);
    let uri = encrypted(served.uri("disk"), directory.path(), None);
    let device = NbdDevice::connect(&uri, options()).unwrap();
    device.write_at(&[3; 4096], 8192, Persistence::Fua).unwrap();
    assert_eq!(fs::read(&image).unwrap()[8192..12288], [3; 4096]);
}
