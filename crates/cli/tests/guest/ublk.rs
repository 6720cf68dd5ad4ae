//! Disks of the ublk driver, on the guest's kernel.
//!
//! Oracles are the guest's own tools: mkfs, e2fsck, cmp, blockdev, dmesg.

use extant_testkit::guest::{Bus, Guest};
use extant_testkit::require;

use crate::sections::Sections;
use crate::support::{MIB, schema};

/// Functions of the scripts.
const FUNCTIONS: &str = r#"
modprobe ublk_drv
# serve FILE OPTIONS: a server in the background; $server is its process, $disk its disk.
serve() {
    extant serve "$@" --fork --json --pid-file /tmp/pid > /tmp/ready
    server=$(cat /tmp/pid)
    disk=$(python3 -c 'import json; print(json.load(open("/tmp/ready"))["exports"][0]["device"])')
}
# ends: waits until the server has ended, and prints whether its disk is gone.
ends() {
    for try in $(seq 100); do kill -0 $server 2>/dev/null || break; sleep 0.1; done
    kill -0 $server 2>/dev/null && echo "still there"
    test -e $disk && echo "disk left" || echo gone
}
"#;

#[test]
fn disk_of_a_qcow2_image_has_a_file_system_and_ends_in_order() {
    require!(Guest::requirement());
    let script = r#"
extant image create /mnt/vm.qcow2 256MiB -q
serve /mnt/vm.qcow2 --ublk --discard unmap
mark disk; echo $disk; blockdev --getsize64 $disk; cat /sys/block/${disk#/dev/}/queue/fua
mark list; extant ublk list --json
mkfs.ext4 -q $disk
mkdir -p /tmp/m; mount $disk /tmp/m
head -c 40000000 /dev/urandom > /tmp/m/data
cp /tmp/m/data /tmp/m/copy; rm /tmp/m/copy; fstrim /tmp/m
sha256sum < /tmp/m/data > /tmp/before
mark busy; kill $server; sleep 1; kill -0 $server && echo serving; head -c 1000 /tmp/m/data | wc -c
umount /tmp/m
mark ended; ends
mark check; extant image check /mnt/vm.qcow2
serve /mnt/vm.qcow2 --ublk=7 --read-only
mark again; echo $disk; blockdev --getro $disk
mark fsck; e2fsck -fn $disk
mount -o ro,noload $disk /tmp/m
mark same; sha256sum < /tmp/m/data | cmp - /tmp/before && echo same
umount /tmp/m
mark fresh; kill $server; ends
mark errors; dmesg | grep -E 'I/O error|BUG:|WARNING:|ublk.*fail' || echo none
"#;
    let said = Sections::of(Bus::Virtio, 600 * MIB, &format!("{FUNCTIONS}{script}"));
    assert_eq!(
        said.get("disk"),
        format!("/dev/ublkb0\n{}\n1", 256 * MIB),
        "{}",
        said.text()
    );
    let list = said.json("list");
    let disk = &list["disks"][0];
    assert_eq!(disk["state"], "live");
    assert_eq!(disk["is_extant"], true);
    assert_eq!(disk["capacity_bytes"], 256 * MIB);
    schema::assert_valid([("ublk list", &list)]);
    assert_eq!(said.get("busy"), "serving\n1000");
    assert_eq!(said.get("ended"), "gone");
    assert_eq!(said.get("again"), "/dev/ublkb7\n1");
    assert_eq!(said.get("same"), "same");
    assert_eq!(said.get("fresh"), "gone");
    assert_eq!(said.get("errors"), "none");
}

#[test]
fn killed_server_is_continued_and_acknowledged_writes_survive() {
    require!(Guest::requirement());
    // The writer never sees an error: its requests wait for the next server.
    let script = r#"
cat > /tmp/writer.py <<'PY'
import os, mmap, sys, time
disk = os.open(sys.argv[1], os.O_RDWR | os.O_DIRECT)
page = mmap.mmap(-1, 65536)
for number in range(400):
    page[:] = bytes([number % 251 + 1]) * 65536
    os.pwrite(disk, page, number * 65536)
    if number % 20 == 0:
        os.fsync(disk)
    time.sleep(0.005)
os.fsync(disk)
for number in range(400):
    os.preadv(disk, [page], number * 65536)
    assert page[:] == bytes([number % 251 + 1]) * 65536, number
print("verified")
PY
truncate -s 64M /mnt/a.raw /mnt/b.raw
serve /mnt/a.raw --ublk=3
python3 /tmp/writer.py $disk > /tmp/writer.out 2>&1 & writer=$!
for round in 1 2 3; do
    sleep 0.7
    kill -9 $server
    sleep 0.5
    if [ $round = 1 ]; then
        mark waiting; extant ublk list
        mark other; extant serve /mnt/b.raw --ublk=3 2>&1 || echo "status $?"
        kill -0 $writer
    fi
    serve /mnt/a.raw --ublk=3
done
mark living; extant serve /mnt/a.raw --ublk=3 2>&1 || echo "status $?"
mark delete; extant ublk delete 3 2>&1 || echo "status $?"
wait $writer
mark writer; cat /tmp/writer.out
truncate -s 80M /mnt/a.raw; sleep 1
mark grown; blockdev --getsize64 $disk
kill $server
mark ended; ends
serve /mnt/b.raw --ublk
kill -9 $server; sleep 1
mark removed; extant ublk delete 0; extant ublk list --json
serve /mnt/b.raw --ublk --no-recovery
kill -9 $server; sleep 1
mark unrecovered; test -e $disk && echo left || echo gone
"#;
    let said = Sections::of(Bus::Virtio, 600 * MIB, &format!("{FUNCTIONS}{script}"));
    assert!(said.get("waiting").contains("waiting"), "{}", said.text());
    let other = said.get("other");
    assert!(other.contains("serves another file"), "{other}");
    assert!(other.ends_with("status 2"), "{other}");
    for mark in ["living", "delete"] {
        let refused = said.get(mark);
        assert!(refused.ends_with("status 4"), "{refused}");
    }
    assert_eq!(said.get("writer"), "verified");
    assert_eq!(said.get("grown"), (80 * MIB).to_string());
    assert_eq!(said.get("ended"), "gone");
    assert_eq!(said.json("removed")["disks"], serde_json::json!([]));
    assert_eq!(said.get("unrecovered"), "gone");
}

#[test]
fn discards_and_zeros_reach_the_file_below() {
    require!(Guest::requirement());
    let script = r#"
extant create /mnt/a.raw 64MiB -q
serve /mnt/a.raw --ublk --discard unmap
queue=/sys/block/${disk#/dev/}/queue
mark limits; cat $queue/discard_max_bytes $queue/write_zeroes_max_bytes
mark unmap; cat $queue/write_zeroes_unmap_max_hw_bytes
yes | dd of=$disk bs=1M count=64 iflag=fullblock oflag=direct status=none
blkdiscard -o 8M -l 8M $disk
blkdiscard -z -o 32M -l 8M $disk
mark zeros; cmp -n 8388608 -i 33554432:0 $disk /dev/zero && echo zeros
sync; mark map; extant map --json /mnt/a.raw
mark ended; kill $server; ends
serve /mnt/a.raw --ublk
queue=/sys/block/${disk#/dev/}/queue
mark kept; cat $queue/discard_max_bytes
blkdiscard -z -o 0 -l 4M $disk
sync; mark kept-map; extant map --json /mnt/a.raw
mark ended; kill $server; ends
mark file; mkfs.ext4 -q -F /mnt/a.raw; serve /mnt/a.raw --ublk --discard unmap
mkdir -p /tmp/m; mount $disk /tmp/m
mark written; extant fallocate -w -l 8MiB /tmp/m/x 2>&1 && echo done || echo "status $?"
umount /tmp/m; mark ended; kill $server; ends
"#;
    let said = Sections::of(Bus::Virtio, 600 * MIB, &format!("{FUNCTIONS}{script}"));
    let granted = (1_u64 << 30).to_string();
    assert_eq!(
        said.get("limits"),
        format!("{granted}\n{granted}"),
        "{}",
        said.text()
    );
    // The driver passes no limit for unmapping write zeroes on, so the kernel's file systems do not
    // use them; `extant fallocate -w` writes zeros instead.
    assert_eq!(said.get("unmap"), "0");
    assert_eq!(said.get("zeros"), "zeros");
    let states = |name: &str| {
        let map = said.json(name);
        let extents = map["files"][0]["extents"].as_array().unwrap();
        let state = |extent: &serde_json::Value| {
            let start = extent["logical"]["start"].as_u64().unwrap() / MIB;
            (start, extent["state"].as_str().unwrap().to_owned())
        };
        extents.iter().map(state).collect::<Vec<_>>()
    };
    // A discard frees space; blkdiscard -z has the kernel's no-unmap flag.
    let (written, hole, unwritten) = ("written", "hole", "unwritten");
    let own = |list: &[(u64, &str)]| -> Vec<(u64, String)> {
        list.iter()
            .map(|&(at, state)| (at, state.to_owned()))
            .collect()
    };
    assert_eq!(
        states("map"),
        own(&[
            (0, written),
            (8, hole),
            (16, written),
            (32, unwritten),
            (40, written)
        ])
    );
    assert_eq!(said.get("kept"), "0");
    assert_eq!(
        states("kept-map")[..2],
        own(&[(0, unwritten), (4, written)])
    );
    assert_eq!(said.get("written"), "done");
}

#[test]
fn user_without_privileges_has_a_disk_of_its_own() {
    require!(Guest::requirement());
    // The guest has no udev: what its rules do is done here.
    let script = r#"
chmod 666 /dev/ublk-control
mkdir -m 777 /mnt/user
as() { setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=/mnt/user "$@"; }
give() { until test -e $1; do sleep 0.1; done; chown 65534 $1; }
as truncate -s 64M /mnt/user/a.raw
give /dev/ublkc0 & give /dev/ublkb0 &
as extant serve /mnt/user/a.raw --ublk --fork --json --pid-file /mnt/user/pid > /tmp/ready
server=$(cat /mnt/user/pid); disk=/dev/ublkb0
wait %1 %2
mark owner; stat -c %u /proc/$server
mark list; as extant ublk list --json
as head -c 1000000 /dev/urandom > /mnt/user/data
as dd if=/mnt/user/data of=$disk conv=fsync status=none
mark same; as cmp -n 1000000 /mnt/user/a.raw /mnt/user/data && echo same
kill -9 $server
# The driver removes the disk some time after the process has ended.
for try in $(seq 300); do test -e $disk || break; sleep 0.1; done
mark killed; ends
mark others; chown 0 /mnt/user/a.raw; as extant serve /mnt/user/a.raw --ublk 2>&1 || echo "status $?"
"#;
    let said = Sections::of(Bus::Virtio, 600 * MIB, &format!("{FUNCTIONS}{script}"));
    assert_eq!(said.get("owner"), "65534", "{}", said.text());
    assert_eq!(said.json("list")["disks"][0]["state"], "live");
    assert_eq!(said.get("same"), "same");
    // The driver does not keep the disk of such a user for another server.
    assert_eq!(said.get("killed"), "gone");
    assert!(said.get("others").ends_with("status 4"), "{}", said.text());
}
