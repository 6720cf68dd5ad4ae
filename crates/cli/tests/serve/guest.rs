//! A virtual machine whose disk is an export, and in it the kernel's own client on another export.

use std::fs;

use extant_testkit::guest::{Bus, Disk, Guest, Options};
use extant_testkit::{oracle, require};

use crate::stand::Stand;
use crate::support::extant;

/// The machine makes a file system on its disk and, in a file there that it serves to itself,
/// another one.
const SCRIPT: &str = r#"#!/bin/bash
set -ex
export PATH=/host:$PATH
mkfs.ext4 -q /dev/disk0
mount /dev/disk0 /mnt
extant create /mnt/a.raw 32MiB
extant serve /mnt/a.raw --socket /run/s --fork --pid-file /run/p
modprobe nbd
nbd-client -unix /run/s /dev/nbd0 -N a.raw -C 2
test $(blockdev --getsize64 /dev/nbd0) = $((32 << 20))
mkfs.ext4 -q /dev/nbd0
mkdir /n
mount /dev/nbd0 /n
head -c 4M /dev/urandom > /n/file
sync /n/file
sum=$(sha256sum < /n/file)
umount /n
e2fsck -fn /dev/nbd0
nbd-client -d /dev/nbd0
kill $(cat /run/p)
while test -e /run/p; do sleep 0.1; done
test "$(extant fs cat /mnt/a.raw /file | sha256sum)" = "$sum"
extant fs check /mnt/a.raw
umount /mnt
"#;

#[test]
fn machine_works_on_an_export_and_its_kernel_on_another() {
    require!(Guest::requirement());
    let stand = Stand::new();
    let disk = stand.sparse("vm.raw", 128);
    let shared = stand.work.directory("shared");
    fs::copy(extant().get_program(), shared.join("extant")).unwrap();
    let serving = stand.serve(&["vm.raw"]);
    let options = Options {
        disks: vec![Disk {
            file: serving.uri("vm.raw").into(),
            bus: Bus::Virtio,
        }],
        shared: Some(shared),
        ..Options::default()
    };
    let output = Guest::run(SCRIPT, &options);
    assert_eq!(output.status, 0, "{}", output.text);
    serving.end();
    oracle::assert_e2fsck_clean(&disk);
}
