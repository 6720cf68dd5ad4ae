//! The device on this server reports and does the same as the device below.

use std::fs;
use std::net::Ipv4Addr;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use extant_blockdev::{
    Device, Features, MemoryDevice, MemoryOptions, Persistence, RangeStatus, Request, Zeroing,
};
use extant_export::{Address, ClientCertificates, ServerOptions, Tls, TlsRequirement};
use extant_nbd::{NbdDevice, NbdOptions};
use extant_space::{ByteRange, ErrorKind, Extent};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use crate::{MIB, Served, TEST_TIMEOUT, listen, uri};

fn extents(device: &dyn Device, range: ByteRange) -> Vec<Extent> {
    let mut found: Vec<Extent> = Vec::new();
    device
        .extents(range, &mut |extent| {
            match found.last_mut() {
                Some(last) if last.state == extent.state && last.flags == extent.flags => {
                    let start = last.logical.start();
                    last.logical = ByteRange::new(start, extent.logical.end());
                }
                _ => found.push(extent),
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    found
}

fn statuses(device: &dyn Device, range: ByteRange) -> Vec<(ByteRange, RangeStatus)> {
    let mut found = Vec::new();
    device
        .status(range, &mut |range, status| {
            found.push((range, status));
            ControlFlow::Continue(())
        })
        .unwrap();
    found
}

#[test]
fn geometry_is_that_of_the_device_below() {
    let below = Arc::new(MemoryDevice::with_options(MemoryOptions {
        logical_block: 4096,
        ..MemoryOptions::new(64 * MIB)
    }));
    let served = Served::new(below);
    let geometry = served.connect().geometry();
    assert_eq!((geometry.size, geometry.logical_block), (64 * MIB, 4096));
    let expected = Features::FUA
        | Features::VOLATILE_CACHE
        | Features::DISCARD
        | Features::WRITE_ZEROES
        | Features::WRITE_ZEROES_UNMAP
        | Features::WRITE_ZEROES_ALLOCATE
        | Features::STATUS
        | Features::EXTENTS;
    assert!(geometry.features.contains(expected), "{geometry:?}");
}

#[test]
fn status_and_extents_are_those_of_the_device_below() {
    let below = Arc::new(MemoryDevice::new(3 << 30));
    // More pieces than one reply has, and a range longer than one request's.
    for at in 0..5000 {
        let data = [1; 4096];
        below
            .write_at(&data, at * 16384, Persistence::Cached)
            .unwrap();
    }
    below
        .assign(ByteRange::new(2 << 30, (2 << 30) + MIB))
        .unwrap();
    let served = Served::new(below.clone());
    let device = served.connect();
    for range in [
        ByteRange::new(0, 3 << 30),
        ByteRange::new(512, 100 * 16384 + 1024),
        ByteRange::new((2 << 30) + 4096, (2 << 30) + 8192),
        ByteRange::new(7, 7),
    ] {
        assert_eq!(extents(&device, range), extents(&*below, range));
        let merge = |found: Vec<(ByteRange, RangeStatus)>| {
            let mut merged: Vec<(ByteRange, RangeStatus)> = Vec::new();
            for (range, status) in found {
                match merged.last_mut() {
                    Some((last, same)) if *same == status => {
                        *last = ByteRange::new(last.start(), range.end());
                    }
                    _ => merged.push((range, status)),
                }
            }
            merged
        };
        let found = merge(statuses(&device, range));
        assert_eq!(found, merge(statuses(&*below, range)));
    }
    let past = ByteRange::new(0, (3 << 30) + 1);
    let error = device
        .status(past, &mut |_, _| ControlFlow::Continue(()))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn requests_larger_than_any_limit_are_split_and_put_together() {
    let below = Arc::new(MemoryDevice::new(256 * MIB));
    let served = Served::new(below.clone());
    let device = served.connect();
    let data: Vec<u8> = (0..100 << 20_u32).map(|at: u32| (at / 509) as u8).collect();
    device.write_at(&data, 512, Persistence::Cached).unwrap();
    let mut read = vec![0; data.len()];
    let (first, second) = read.split_at_mut(33 << 20);
    let mut requests = [
        Request::read(512, first),
        Request::read(512 + (33 << 20), second),
    ];
    device.submit(&mut requests);
    requests
        .into_iter()
        .for_each(|request| request.into_result().unwrap());
    assert!(read == data);
    let all = device.geometry().range();
    device.write_zeroes(all, Zeroing::ANY).unwrap();
    assert_eq!(statuses(&*below, all), [(all, RangeStatus::Hole)]);
}

#[test]
fn space_that_runs_out_is_reported_with_its_range() {
    let below = Arc::new(MemoryDevice::with_options(MemoryOptions {
        capacity: Some(MIB),
        ..MemoryOptions::new(64 * MIB)
    }));
    let served = Served::new(below);
    let device = served.connect();
    device
        .write_at(&vec![1; 1 << 20], 0, Persistence::Cached)
        .unwrap();
    let error = device
        .write_at(&[1; 4096], 8 * MIB, Persistence::Cached)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    let expected = Some(ByteRange::new(8 * MIB, 8 * MIB + 4096));
    assert_eq!(error.range(), expected);
}

#[test]
fn threads_at_once_each_get_their_own_data() {
    let served = Served::new(Arc::new(MemoryDevice::new(64 * MIB)));
    let device = served.connect();
    thread::scope(|scope| {
        for number in 0..16_u64 {
            let device = &device;
            scope.spawn(move || {
                for round in 0..200_u64 {
                    let data = [(number * 13 + round) as u8; 4096];
                    let offset = number * 4 * MIB + round % 50 * 4096;
                    device.write_at(&data, offset, Persistence::Cached).unwrap();
                    let mut read = [0; 4096];
                    device.read_at(&mut read, offset).unwrap();
                    assert!(read == data, "thread {number}, round {round}");
                    if round % 50 == 0 {
                        device.flush().unwrap();
                    }
                }
            });
        }
    });
}

#[test]
fn server_that_shuts_down_and_starts_again_is_not_noticed() {
    let below = Arc::new(MemoryDevice::new(64 * MIB));
    let directory = tempfile::tempdir().unwrap();
    let start = || listen(directory.path(), below.clone(), ServerOptions::default());
    let mut server = Some(start());
    let device = NbdDevice::connect(&uri(directory.path()), NbdOptions::default()).unwrap();
    thread::scope(|scope| {
        let changes = scope.spawn(|| {
            for round in 0..2000_u64 {
                let data = [(round % 251) as u8; 8192];
                let offset = round % 512 * 8192;
                device.write_at(&data, offset, Persistence::Cached).unwrap();
            }
        });
        while !changes.is_finished() {
            thread::sleep(Duration::from_millis(100));
            // The old server removes its socket before the next one binds it.
            let old = server.take().expect("a server");
            old.shutdown(TEST_TIMEOUT).unwrap();
            drop(old);
            server = Some(start());
        }
    });
    for at in 0..512_u64 {
        let round = (0..2000).rev().find(|round| round % 512 == at).unwrap();
        let mut read = [0; 8192];
        below.read_at(&mut read, at * 8192).unwrap();
        assert_eq!(read, [(round % 251) as u8; 8192]);
    }
}

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

#[test]
fn device_over_tcp_with_and_without_tls_gets_its_data() {
    let directory = tempfile::tempdir().unwrap();
    certificates(directory.path());
    let clients = ClientCertificates::Required;
    let requirement = TlsRequirement::Optional;
    let tls = Tls::from_directory(directory.path(), clients, requirement).unwrap();
    let options = ServerOptions {
        tls: Some(tls),
        ..ServerOptions::default()
    };
    let server = listen(
        directory.path(),
        Arc::new(MemoryDevice::new(64 * MIB)),
        options,
    );
    let any_port = Address::Tcp((Ipv4Addr::LOCALHOST, 0).into());
    let Address::Tcp(bound) = server.listen(&any_port).unwrap() else {
        panic!("another kind of address");
    };
    let port = bound.port();
    let path = directory.path().display();
    for (number, uri) in [
        format!("nbd://127.0.0.1:{port}/disk"),
        format!("nbds://127.0.0.1:{port}/disk?tls-certificates={path}&tls-hostname=localhost"),
        format!("nbds+unix:///disk?socket={path}/s&tls-certificates={path}"),
    ]
    .into_iter()
    .enumerate()
    {
        let device = NbdDevice::connect(&uri.parse().unwrap(), NbdOptions::default()).unwrap();
        let data: Vec<u8> = (0..5 << 20_u32)
            .map(|at: u32| ((at / 7) as u8).wrapping_add(number as u8))
            .collect();
        device.write_at(&data, 512, Persistence::Fua).unwrap();
        let mut read = vec![0; data.len()];
        device.read_at(&mut read, 512).unwrap();
        assert!(read == data, "{uri}");
    }
}
