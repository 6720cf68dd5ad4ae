//! A server that is killed and started again.
//!
//! A server that keeps its data in memory stands for one that loses acknowledged data that is
//! not durable: data read afterwards was repeated by the device.

use std::fs::{self, File};
use std::thread;
use std::time::Duration;

use extant_blockdev::{Device, Persistence, Request, Zeroing};
use extant_nbd::{NbdDevice, NbdOptions, NbdReconnect};
use extant_space::{ByteRange, ErrorKind};
use extant_testkit::{require, requires};

use crate::model::Model;
use crate::servers::Served;
use crate::{MIB, options};

fn reconnecting() -> NbdOptions {
    NbdOptions {
        reconnect: NbdReconnect::Retry {
            give_up_after: Duration::from_secs(60),
            unflushed_bytes_max: 8 * MIB,
        },
        ..options()
    }
}

#[test]
fn changes_since_the_flush_are_repeated_in_order_after_a_restart() {
    require!(requires::tool("nbdkit"));
    let directory = tempfile::tempdir().unwrap();
    let mut served = Served::nbdkit(directory.path(), &["memory", "16M"]);
    let device = NbdDevice::connect(&served.uri(""), reconnecting()).unwrap();
    let write = |byte: u8, offset: u64, length: usize| {
        let data = vec![byte; length];
        device.write_at(&data, offset, Persistence::Cached).unwrap();
    };
    write(1, 0, 4096);
    write(2, 2048, 4096);
    write(3, 1024, 2048);
    let zeroed = ByteRange::new(4096, 5120);
    device.write_zeroes(zeroed, Zeroing::ALLOCATED).unwrap();
    write(4, MIB, 3 << 20);
    served.kill();
    let _again = Served::nbdkit(directory.path(), &["memory", "16M"]);
    let mut read = vec![0xa5; 8192];
    device.read_at(&mut read, 0).unwrap();
    let mut expected = vec![0; 8192];
    expected[..4096].fill(1);
    expected[2048..6144].fill(2);
    expected[1024..3072].fill(3);
    expected[4096..5120].fill(0);
    assert!(read == expected);
    let mut read = vec![0; 3 << 20];
    device.read_at(&mut read, MIB).unwrap();
    assert!(read.iter().all(|byte| *byte == 4));
    device.flush().unwrap();
}

#[test]
fn flush_is_not_repeated_with_what_it_made_durable() {
    require!(requires::tool("nbdkit"));
    let directory = tempfile::tempdir().unwrap();
    let mut served = Served::nbdkit(directory.path(), &["memory", "1M"]);
    let device = NbdDevice::connect(&served.uri(""), reconnecting()).unwrap();
    device.write_at(&[1; 512], 0, Persistence::Cached).unwrap();
    device.flush().unwrap();
    device
        .write_at(&[2; 512], 512, Persistence::Cached)
        .unwrap();
    served.kill();
    // This server says that it has flushed, and has forgotten: the device has, too.
    let _again = Served::nbdkit(directory.path(), &["memory", "1M"]);
    let mut read = [9; 1024];
    device.read_at(&mut read, 0).unwrap();
    assert_eq!((read[0], read[512]), (0, 2));
}

#[test]
fn device_flushes_before_it_remembers_more_than_its_limit() {
    require!(requires::tool("nbdkit"));
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let parameter = format!("logfile={}", log.display());
    let served = Served::nbdkit(
        directory.path(),
        &["--filter=log", "memory", "64M", &parameter],
    );
    let device = NbdDevice::connect(&served.uri(""), reconnecting()).unwrap();
    let data = vec![1; 40 << 20];
    device.write_at(&data, 0, Persistence::Cached).unwrap();
    drop((device, served));
    let log = fs::read_to_string(log).unwrap();
    // 40 MiB, with at most 8 MiB remembered.
    assert!(log.matches(" Flush ").count() >= 4, "{log}");
}

#[test]
fn random_changes_survive_a_server_that_is_killed_again_and_again() {
    require!(requires::tool("nbdkit"));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk.raw");
    File::create(&path).unwrap().set_len(16 * MIB).unwrap();
    let start = || Served::nbdkit(directory.path(), &["file", path.to_str().unwrap()]);
    let mut served = start();
    let device = NbdDevice::connect(&served.uri(""), reconnecting()).unwrap();
    let mut model = Model::new(&device, 21);
    thread::scope(|scope| {
        let changes = scope.spawn(|| {
            for _ in 0..20 {
                model.run(&device, 20);
            }
        });
        let mut kills = 0;
        while !changes.is_finished() {
            thread::sleep(Duration::from_millis(300));
            served.kill();
            served = start();
            kills += 1;
        }
        assert!(kills > 2, "the server was killed {kills} times");
    });
    model.check(&device);
    device.flush().unwrap();
    let mut bytes = vec![0; 16 << 20];
    device.read_at(&mut bytes, 0).unwrap();
    drop(device);
    assert!(fs::read(&path).unwrap() == bytes);
}

#[test]
fn threads_on_several_connections_share_one_reconnect() {
    require!(requires::tool("nbdkit"));
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["--filter=delay", "memory", "16M", "wdelay=5ms"];
    let mut served = Served::nbdkit(directory.path(), &arguments);
    let device = NbdDevice::connect(&served.uri(""), reconnecting()).unwrap();
    let again = thread::scope(|scope| {
        for number in 0..8_u64 {
            let device = &device;
            scope.spawn(move || {
                for round in 0..100_u64 {
                    let data = [number as u8 * 16 + (round % 16) as u8; 4096];
                    let offset = number * MIB + round % 7 * 4096;
                    let write = Request::write(offset, &data, Persistence::Cached);
                    let mut requests = [write];
                    device.submit(&mut requests);
                    let [request] = requests;
                    request.into_result().unwrap();
                    let mut read = [0; 4096];
                    device.read_at(&mut read, offset).unwrap();
                    assert!(read == data, "thread {number}, round {round}");
                }
            });
        }
        thread::sleep(Duration::from_millis(100));
        served.kill();
        let mut again = Served::nbdkit(directory.path(), &arguments);
        thread::sleep(Duration::from_millis(100));
        again.kill();
        Served::nbdkit(directory.path(), &arguments)
    });
    for number in 0..8_u64 {
        for block in 0..7_u64 {
            let round = (0..100).rev().find(|round| round % 7 == block).unwrap();
            let mut read = [0; 4096];
            let offset = number * MIB + block * 4096;
            device.read_at(&mut read, offset).unwrap();
            assert_eq!(read, [number as u8 * 16 + (round % 16) as u8; 4096]);
        }
    }
    drop(again);
}

#[test]
fn server_that_stays_away_fails_every_request_after_the_limit() {
    require!(requires::tool("nbdkit"));
    let directory = tempfile::tempdir().unwrap();
    let mut served = Served::nbdkit(directory.path(), &["memory", "1M"]);
    let uri = served.uri("");
    let device = NbdDevice::connect(
        &uri,
        NbdOptions {
            reconnect: NbdReconnect::Retry {
                give_up_after: Duration::from_millis(300),
                unflushed_bytes_max: MIB,
            },
            ..options()
        },
    )
    .unwrap();
    device.write_at(&[1; 512], 0, Persistence::Cached).unwrap();
    served.kill();
    for _ in 0..2 {
        let error = device.flush().unwrap_err().to_string();
        assert!(error.starts_with(&uri.to_string()), "{error}");
        assert!(error.contains("in doubt"), "{error}");
    }
    // A device that has given up does not come back with data missing.
    let _again = Served::nbdkit(directory.path(), &["memory", "1M"]);
    device.read_at(&mut [0; 512], 0).unwrap_err();
}

#[test]
fn without_reconnect_the_first_loss_fails_every_request() {
    require!(requires::tool("nbdkit"));
    let directory = tempfile::tempdir().unwrap();
    let mut served = Served::nbdkit(directory.path(), &["memory", "1M"]);
    let device = NbdDevice::connect(&served.uri(""), options()).unwrap();
    served.kill();
    let _again = Served::nbdkit(directory.path(), &["memory", "1M"]);
    for _ in 0..2 {
        let error = device.read_at(&mut [0; 512], 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("connection is lost"), "{error}");
    }
}

#[test]
fn export_of_another_size_after_a_restart_is_refused() {
    require!(requires::tool("nbdkit"));
    let directory = tempfile::tempdir().unwrap();
    let mut served = Served::nbdkit(directory.path(), &["memory", "2M"]);
    let device = NbdDevice::connect(&served.uri(""), reconnecting()).unwrap();
    served.kill();
    let _again = Served::nbdkit(directory.path(), &["memory", "1M"]);
    let error = device.read_at(&mut [0; 512], 0).unwrap_err();
    assert!(error.to_string().contains("another size"), "{error}");
}
