//! Images that cannot be opened: the line names the cause.

use std::time::{Duration, Instant};

use extant_rbd::{ImageFeatures, ImageLayout, RbdAccess, RbdDevice, RbdName};
use extant_space::{Error, ErrorKind};
use extant_testkit::ceph::Ceph;
use extant_testkit::require;

const MIB: u64 = 1 << 20;

#[track_caller]
fn refused(name: &str, access: RbdAccess, kind: ErrorKind, parts: &[&str]) -> Error {
    let name: RbdName = name.parse().unwrap();
    let error = RbdDevice::open(&name, access).unwrap_err();
    let line = error.to_string();
    assert_eq!(error.kind(), kind, "{line}");
    for part in parts {
        assert!(line.contains(part), "{part:?} not in {line:?}");
    }
    assert!(!line.contains('\n'), "{line:?}");
    error
}

#[test]
fn missing_pool_image_and_snapshot_are_named() {
    require!(Ceph::requirement());
    let ceph = Ceph::shared();
    crate::image(ceph, "there", MIB, &ImageLayout::default());
    let conf = format!("conf={}", ceph.conf().display());
    let read = RbdAccess::ReadOnly;
    for (name, part) in [
        ("rbd:nowhere/there", "the cluster has no pool nowhere"),
        ("rbd:rbd/missing", "the pool rbd has no image missing"),
        ("rbd:rbd/else/there", "the pool rbd has no image there"),
        ("rbd:rbd/there@never", "no such image or snapshot"),
    ] {
        refused(
            &format!("{name}:{conf}"),
            read,
            ErrorKind::NotFound,
            &[name, part],
        );
    }
    let name = format!("rbd:rbd/there@never:{conf}");
    refused(
        &name,
        RbdAccess::ReadWrite,
        ErrorKind::ReadOnly,
        &["a snapshot cannot be changed"],
    );
    let name = format!("{}:no_such_option=1", ceph.name("there"));
    refused(
        &name,
        read,
        ErrorKind::InvalidArgument,
        &["no_such_option=1"],
    );
    let missing = "rbd:rbd/there:conf=/no/such/file";
    refused(missing, read, ErrorKind::NotFound, &["/no/such/file"]);
}

#[test]
fn wrong_key_missing_key_and_missing_rights_are_told_apart() {
    require!(Ceph::requirement());
    let ceph = Ceph::shared();
    crate::image(ceph, "guarded", MIB, &ImageLayout::default());
    let name = ceph.name("guarded");
    let read = RbdAccess::ReadOnly;
    let wrong = format!("{name}:key=AQBBBBBBBBBBBBAAvB2Y1hB1c7Ynb9YvZ9J3cQ==");
    let denied = ErrorKind::PermissionDenied;
    refused(&wrong, read, denied, &["the monitors refuse client.admin"]);
    let stranger = format!("{name}:id=stranger:keyring=/no/such/keyring");
    refused(
        &stranger,
        read,
        denied,
        &["the monitors refuse client.stranger"],
    );
    let keyring = ceph.work().path().join("reader.keyring");
    let caps = ["mon", "profile rbd", "osd", "profile rbd-read-only"];
    let made = ceph.ask(&[&["auth", "get-or-create", "client.reader"], &caps[..]].concat());
    std::fs::write(&keyring, made).unwrap();
    let reader = format!("{name}:id=reader:keyring={}", keyring.display());
    refused(
        &reader,
        RbdAccess::ReadWrite,
        denied,
        &["client.reader may not"],
    );
    RbdDevice::open(&reader.parse().unwrap(), read).unwrap();
}

#[test]
fn image_that_is_written_is_refused_with_its_holder_and_a_snapshot_is_not() {
    require!(Ceph::requirement());
    let ceph = Ceph::shared();
    let plain = ImageLayout {
        features: ImageFeatures::LAYERING,
        ..ImageLayout::default()
    };
    for (image, layout) in [("locked", ImageLayout::default()), ("watched", plain)] {
        let name = crate::image(ceph, image, MIB, &layout);
        let text = name.to_string();
        let holder = RbdDevice::open(&name, RbdAccess::ReadWrite).unwrap();
        let number = holder.image().pool().cluster().client_number();
        let client = format!("client.{number} at 127.0.0.1");
        refused(
            &text,
            RbdAccess::ReadWrite,
            ErrorKind::InUse,
            &["is open in", &client],
        );
        if image == "locked" {
            let parts = [
                "is locked for changes by",
                client.as_str(),
                "rbd:POOL/IMAGE@SNAPSHOT",
            ];
            refused(&text, RbdAccess::ReadOnly, ErrorKind::InUse, &parts);
        }
        RbdDevice::open(&name, RbdAccess::Shared).unwrap();
        holder.image().create_snapshot("now").unwrap();
        let snapshot = RbdName {
            snapshot: Some("now".to_owned()),
            ..name.clone()
        };
        RbdDevice::open(&snapshot, RbdAccess::ReadOnly).unwrap();
        drop(holder);
        let reader = RbdDevice::open(&name, RbdAccess::ReadOnly).unwrap();
        let other = RbdDevice::open(&name, RbdAccess::ReadOnly).unwrap();
        refused(
            &text,
            RbdAccess::ReadWrite,
            ErrorKind::InUse,
            &["is open in"],
        );
        drop((reader, other));
        RbdDevice::open(&name, RbdAccess::ReadWrite).unwrap();
    }
}

#[test]
fn of_two_hosts_that_open_an_image_at_once_never_both_win() {
    require!(Ceph::requirement());
    let ceph = Ceph::shared();
    let name = crate::image(ceph, "contended", MIB, &ImageLayout::default());
    for _ in 0..5 {
        let open = || RbdDevice::open(&name, RbdAccess::ReadWrite);
        let (one, other) = std::thread::scope(|scope| {
            let other = scope.spawn(open);
            (open(), other.join().unwrap())
        });
        assert!(!(one.is_ok() && other.is_ok()));
        for error in [one.as_ref().err(), other.as_ref().err()]
            .into_iter()
            .flatten()
        {
            assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
        }
    }
}

#[test]
fn monitors_that_do_not_answer_are_named_in_bounded_time() {
    require!(Ceph::requirement());
    let started = Instant::now();
    // TEST-NET-1 never answers; port 9 of this host refuses at once.
    for host in ["192.0.2.1", r"127.0.0.1\:9"] {
        let name = format!("rbd:rbd/a:conf=/dev/null:mon_host={host}:client_mount_timeout=2");
        let keyed = format!("{name}:key=AQBBBBBBBBBBBBAAvB2Y1hB1c7Ynb9YvZ9J3cQ==");
        let parts = ["no monitor has answered within 2 s"];
        refused(&keyed, RbdAccess::ReadOnly, ErrorKind::Io, &parts);
    }
    assert!(
        started.elapsed() < Duration::from_secs(12),
        "{:?}",
        started.elapsed()
    );
    let none = "rbd:rbd/a:conf=/dev/null";
    let parts = ["no monitor of a cluster is configured"];
    refused(none, RbdAccess::ReadOnly, ErrorKind::NotFound, &parts);
}
