//! qcow2 images directly on disks.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use extant_testkit::oracle::qemu::{assert_checks, qemu_img, qemu_io};
use extant_testkit::scratch::LoopDevice;
use extant_testkit::workdir::Workdir;
use extant_testkit::{require, requires, seeds};
use rustix::process::Signal;

use crate::support::{MIB, Random, Running, create, extant, run};

#[test]
fn image_is_made_on_a_disk_looked_at_changed_and_copied() {
    require!(qemu_img(), requires::tool("qemu-io"), requires::root());
    let work = Workdir::new();
    let file = work.path().join("disk");
    fs::write(&file, vec![0xee; 32 << 20]).unwrap();
    let disk = LoopDevice::attach(&file);
    let words = ["--format", "qcow2", "--preallocation", "off"];
    create(disk.path(), "64MiB", &words).refused(4, &["is a disk", "--force"]);
    let forced = [&words[..], &["--force"]].concat();
    let answer = create(disk.path(), "64MiB", &forced).success();
    assert!(answer.stdout.contains("qcow2 image of 64 MiB"), "{answer}");
    assert_checks(disk.path());
    qemu_io(disk.path(), "qcow2", &["write -P 5 3M 2M"]);
    let image = |words: &[&str], more: &[&str]| {
        let mut command = extant();
        command.arg("image").args(words).arg(disk.path());
        run(command.args(more))
    };
    let answer = image(&["info", "--json"], &[]).success();
    assert_eq!(answer.number("/capacity_bytes"), 64 * MIB);
    image(&["check"], &[]).success();
    // It may promise more than the disk has, and is full only where that has room.
    image(&["materialize"], &[]).refused(3, &["no space", "missing"]);
    image(&["resize", "--rate", "1M", "--shrink"], &["16MiB"]).refused(5, &["--rate"]);
    let answer = image(&["resize", "--shrink", "--json"], &["16MiB"]).success();
    assert_eq!(answer.text("/preallocation"), "off", "{answer}");
    image(&["materialize"], &[]).success();
    image(&["resize"], &["64MiB"]).refused(3, &["no space", "missing"]);
    let answer = image(&["resize", "--json"], &["+4MiB"]).success();
    assert_eq!(answer.text("/preallocation"), "full", "{answer}");
    image(&["resize", "--preallocation", "off"], &["64MiB"]).success();
    assert_checks(disk.path());
    let answer = image(&["info", "--json"], &[]).success();
    assert_eq!(answer.number("/states/written_bytes"), 20 * MIB, "{answer}");
    let copy = work.path().join("copy.raw");
    run(extant()
        .args(["image", "convert"])
        .arg(disk.path())
        .arg(&copy))
    .success();
    qemu_io(
        &copy,
        "raw",
        &["read -P 0 0 3M", "read -P 5 3M 2M", "read -P 0 5M 59M"],
    );
}

#[test]
fn killed_changes_on_a_disk_cost_space_at_worst() {
    require!(qemu_img(), requires::tool("qemu-io"), requires::root());
    let work = Workdir::new();
    let file = work.path().join("disk");
    fs::write(&file, vec![0xee; 256 << 20]).unwrap();
    let disk = LoopDevice::attach(&file);
    let on = |words: &[&str], more: &[&str]| {
        let mut command = extant();
        command.arg("image").args(words).arg(disk.path()).args(more);
        command
    };
    let made = || {
        let words = ["--format", "qcow2", "--preallocation", "off", "--force"];
        let small = ["-o", "cluster_size=512"];
        create(disk.path(), "64MiB", &[&words[..], &small].concat()).success();
        qemu_io(disk.path(), "qcow2", &["write -P 5 3M 2M"]);
    };
    let mut random = Random::seeded("--test image killed_changes");
    let mut killed = 0;
    for mut change in [
        on(&["materialize"], &[]),
        on(&["resize", "--preallocation", "full"], &["80MiB"]),
    ] {
        made();
        let started = Instant::now();
        run(&mut change).success();
        let whole = started.elapsed().as_millis() as u64;
        for _ in 0..6 {
            made();
            let running = Running::start(&mut change);
            sleep(Duration::from_millis(random.below(whole)));
            let (answer, _) = running.stop(Signal::KILL);
            killed += u32::from(answer.signal == Some(9));
            let answer = run(&mut on(&["check"], &[]));
            assert!(matches!(answer.code, Some(0 | 3)), "{answer}");
            run(&mut on(&["check", "--repair", "leaks"], &[])).success();
            run(&mut on(&["resize"], &["80MiB"])).success();
            run(&mut on(&["materialize"], &[])).success();
            assert_checks(disk.path());
            let reads = ["read -P 0 0 3M", "read -P 5 3M 2M", "read -P 0 5M 75M"];
            qemu_io(disk.path(), "qcow2", &reads);
        }
    }
    seeds::counted(killed, "kills");
    assert!(killed > 0, "every change was complete before it was killed");
}
