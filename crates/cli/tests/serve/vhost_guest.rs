//! A virtual machine with a vhost-user disk, while the file grows and the server is killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use extant_testkit::command::tool;
use extant_testkit::guest::{Bus, Disk, Guest, Options};
use extant_testkit::{oracle, require, requires};
use rustix::process::Signal;

use crate::stand::{Stand, said};
use crate::support::{MIB, lengthen, wait_until};

/// Of a machine of a test's own.
const TIMEOUT: Duration = Duration::from_secs(60);

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
            thread::sleep(Duration::from_millis(50));
        }
        lengthen(&file, 256 * MIB);
        while !reached("kill") {
            thread::sleep(Duration::from_millis(50));
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

/// A boot sector for x86: reads one sector at [`MESSAGE_SECTOR`] by the firmware (INT 13h, function
/// 42h), sends the text in it to the serial port, and ends the machine by `isa-debug-exit`.
const BOOT_SECTOR: [u8; 48] = [
    0x31, 0xc0, 0x8e, 0xd8, // xor ax, ax; mov ds, ax
    0xbe, 0x20, 0x7c, // mov si, packet
    0xb4, 0x42, 0xcd, 0x13, // mov ah, 42h; int 13h
    0xbe, 0x00, 0x7e, // mov si, 7e00h
    0xac, 0x84, 0xc0, 0x74, 0x06, // next: lodsb; test al, al; jz end
    0xba, 0xf8, 0x03, 0xee, 0xeb, 0xf5, // mov dx, 3f8h; out dx, al; jmp next
    0xba, 0x01, 0x05, 0xee, // end: mov dx, 501h; out dx, al
    0xf4, 0xeb, 0xfd, // hlt
    0x10, 0, 1, 0, 0x00, 0x7e, 0, 0, // packet: one sector to 0:7e00h
    0x34, 0x12, 0, 0, 0, 0, 0, 0, // from this sector
];
const MESSAGE_SECTOR: usize = 0x1234;
const MESSAGE: &[u8] = b"booted from vhost-user\0";

/// A disk in whose boot sector that program is, as a qcow2 image made by QEMU.
fn boot_image(directory: &Path) -> PathBuf {
    let mut disk = vec![0; 8 << 20];
    disk[..BOOT_SECTOR.len()].copy_from_slice(&BOOT_SECTOR);
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk[MESSAGE_SECTOR * 512..][..MESSAGE.len()].copy_from_slice(MESSAGE);
    let (raw, image) = (directory.join("boot.raw"), directory.join("boot.qcow2"));
    fs::write(&raw, disk).unwrap();
    said(
        tool("qemu-img")
            .args(["convert", "-O", "qcow2"])
            .args([&raw, &image]),
    );
    image
}

#[test]
fn firmware_boots_a_machine_from_a_qcow2_image() {
    require!(Guest::requirement(), requires::tool("qemu-img"));
    let stand = Stand::new();
    boot_image(stand.work.path());
    let serving = stand.serve(&["boot.qcow2", "-r", "--vhost-user", "v"]);
    let machine = Guest::qemu(TIMEOUT)
        .args(["-m", "64", "-nodefaults"])
        .args(["-accel", "tcg", "-display", "none"])
        .args(["-object", "memory-backend-memfd,id=mem,size=64M,share=on"])
        .args(["-machine", "q35,memory-backend=mem"])
        .args(["-chardev", "socket,id=disk,path=v"])
        .args(["-device", "vhost-user-blk-pci,chardev=disk,bootindex=1"])
        .args(["-device", "isa-debug-exit", "-serial", "stdio"])
        .current_dir(stand.work.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&machine.stdout);
    let error = String::from_utf8_lossy(&machine.stderr);
    assert!(text.contains("booted from vhost-user"), "{text}{error}");
    // The value 0, as the device reports it.
    assert_eq!(machine.status.code(), Some(1), "{error}");
    serving.end();
}

/// The schema is libvirt's own. (Its daemon of Debian 12 cannot start the QEMU of the guest.)
#[test]
fn machine_of_the_guide_fits_the_schema_of_libvirt() {
    require!(
        requires::tool("virt-xml-validate"),
        requires::tool("xmllint")
    );
    let guide = include_str!("../../../../docs/guide/vhost-user.md");
    let xml = guide.split("```xml").nth(1).unwrap();
    let xml = xml.split("```").next().unwrap().trim_start();
    let machine = "<name>m</name><memory unit='GiB'>4</memory>\
        <os><type arch='x86_64' machine='q35'>hvm</type></os><devices>";
    let stand = Stand::new();
    let file = stand.path("m.xml");
    let validate = || {
        let mut command = tool("virt-xml-validate");
        command.arg(&file).arg("domain").output().unwrap()
    };
    let whole = xml.replacen("<devices>", machine, 1);
    fs::write(&file, &whole).unwrap();
    let said = validate();
    assert!(said.status.success(), "{said:?}");
    fs::write(&file, whole.replace("'vhostuser'", "'vhost-user'")).unwrap();
    assert!(!validate().status.success());
}
