//! qcow2 images directly on disks.

use std::fs;

use extant_testkit::oracle::qemu::{assert_checks, qemu_img, qemu_io};
use extant_testkit::scratch::LoopDevice;
use extant_testkit::workdir::Workdir;
use extant_testkit::{require, requires};

use crate::support::{MIB, create, extant, run};

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
    assert_eq!(answer.number("/virtual_bytes"), 64 * MIB);
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
    assert_eq!(answer.number("/states/written"), 20 * MIB, "{answer}");
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
