//! A virtual machine with a vhost-user disk, while the file grows and the server is killed.

use std::fs;
use std::thread;

use extant_testkit::guest::{Bus, Disk, Guest, Options};
use extant_testkit::{oracle, require};
use rustix::process::Signal;

use crate::stand::Stand;
use crate::support::{MIB, lengthen, wait_until};

/// A file in /host marks how far the machine is.
const SCRIPT: &str = r#"#!/bin/bash
set -ex
disk=$(readlink -f /dev/disk0)
queue=/sys/block/${disk##*/}/queue
test "$(cat $queue/logical_block_size)" = 512
test "$(cat $queue/discard_max_bytes)" -gt 0
test "$(cat $queue/write_zeroes_max_bytes)" -gt 0
test "$(cat $queue/write_cache)" = "write back"
test "$(ls /sys/block/${disk##*/}/mq | wc -l)" = 2
badblocks -sw -b 65536 -c 64 -t random $disk 1024 0
blkdiscard -o 0 -l 16M $disk
blkdiscard -z -o 16M -l 16M $disk
cmp -n 16777216 -i 16777216:0 $disk /dev/zero
mkfs.ext4 -q $disk
mount -o discard $disk /mnt
head -c 20M /dev/urandom > /mnt/first
sync
sha256sum /mnt/first > /tmp/sums
touch /host/grow
until test $(blockdev --getsize64 $disk) = $((256 << 20)); do sleep 0.1; done
resize2fs $disk
touch /host/kill
for at in $(seq 20); do
    head -c 3M /dev/urandom > /mnt/$at
    sha256sum /mnt/$at >> /tmp/sums
    sync /mnt/$at
done
until test -e /host/killed; do sleep 0.1; done
rm /mnt/first
sed -i 1d /tmp/sums
fstrim /mnt
echo 3 > /proc/sys/vm/drop_caches
sha256sum -c --quiet /tmp/sums
umount /mnt
e2fsck -fn $disk
"#;

#[test]
fn machine_continues_with_a_larger_disk_and_a_replaced_server() {
    require!(Guest::requirement());
    let stand = Stand::new();
    let file = stand.sparse("vm.raw", 128);
    let shared = stand.work.directory("shared");
    let words = [
        "disk0=vm.raw",
        "--vhost-user",
        "v",
        "--cache",
        "none",
        "--discard",
        "unmap",
    ];
    let first = stand.serve(&words);
    let options = Options {
        disks: vec![Disk {
            file: stand.path("v"),
            bus: Bus::VhostUser,
        }],
        shared: Some(shared.clone()),
        ..Options::default()
    };
    let (output, serving) = thread::scope(|scope| {
        let mut serving = first;
        let machine = scope.spawn(|| Guest::run(SCRIPT, &options));
        let reached = |name: &str| machine.is_finished() || shared.join(name).exists();
        while !reached("grow") {
            thread::sleep(std::time::Duration::from_millis(50));
        }
        lengthen(&file, 256 * MIB);
        while !reached("kill") {
            thread::sleep(std::time::Duration::from_millis(50));
        }
        for _ in 0..3 {
            serving.running.stop(Signal::KILL);
            fs::remove_file(stand.path("s.pid")).unwrap();
            serving = stand.serve(&words);
        }
        fs::write(shared.join("killed"), "").unwrap();
        (machine.join().unwrap(), serving)
    });
    assert_eq!(output.status, 0, "{}", output.text);
    serving.end();
    oracle::assert_e2fsck_clean(&file);
    wait_until("the end of the socket", || !stand.path("v").exists());
}
