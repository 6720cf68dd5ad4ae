//! `probe --through` on disks that zero fast and on those that do not, with the reasons: NVMe,
//! SCSI and virtio.
//!
//! The oracle is the kernel: whether util-linux's `fallocate -w` works there.

use extant_testkit::guest::{Bus, Guest};
use extant_testkit::require;
use serde_json::Value;

use crate::sections::Sections;
use crate::support::MIB;

/// The verdict on the lowest device of a probe, with its reasons in one line.
fn verdict(probe: &Value) -> (bool, String) {
    let devices = probe["devices"].as_array().unwrap();
    let zeroing = &devices[devices.len() - 1]["fast_zeroing"];
    let reasons = zeroing["reasons"].as_array().unwrap().iter();
    let reasons: Vec<&str> = reasons.map(|reason| reason.as_str().unwrap()).collect();
    let is_supported = zeroing["is_supported"].as_bool().unwrap();
    (is_supported, reasons.join("; "))
}

#[track_caller]
fn assert_says(probe: &Value, is_fast: bool, words: &[&str]) {
    let (found, reasons) = verdict(probe);
    assert_eq!(found, is_fast, "{probe}");
    for word in words {
        assert!(reasons.contains(word), "no {word:?} in {reasons}");
    }
    // The file system agrees: the mode was tried there.
    let layers = probe["layers"].as_array().unwrap();
    let tried = &layers[layers.len() - 1]["write_zeroes"];
    assert_eq!(tried["is_supported"], is_fast, "{probe}");
}

#[test]
fn nvme_disk_with_deac_qualifies_and_a_loop_device_over_it_does_not() {
    require!(Guest::requirement());
    let script = r#"
mark root; extant probe --through --json /mnt
mark words; extant probe --through /mnt
mark user; setpriv --reuid=65534 --clear-groups extant probe --through --json /mnt
mark off; echo 0 > /sys/block/$(basename $(readlink -f /dev/disk0))/queue/write_zeroes_unmap_max_bytes
extant probe --through --json /mnt
modprobe loop
truncate -s 64M /mnt/image
mkfs.ext4 -q /mnt/image
mkdir /tmp/inner
mount -o loop /mnt/image /tmp/inner
mark loop; extant probe --through --json /tmp/inner
umount /tmp/inner
"#;
    let said = Sections::of(Bus::Nvme, 256 * MIB, script);
    let root = said.json("root");
    assert_says(&root, true, &["read as zeros (DLFEAT 0x09)", "(DEAC)"]);
    assert_eq!(root["layers"][0]["allocate"]["is_supported"], true);
    assert_eq!(root["layers"][0]["can_assign"], true);
    assert_eq!(root["layers"][0]["map_source"], "fiemap");
    let device = &root["devices"][0];
    assert_eq!(device["kind"], "disk");
    assert_eq!(device["fast_zeroing"]["nvme"]["has_deac"], true);
    assert!(device["limits"]["write_zeroes_unmap_max_hw_bytes"].as_u64() > Some(0));
    let words = said.get("words");
    assert!(words.contains("zeroing   fast: NVMe"), "{words}");
    // The disk cannot be asked, and the kernel's answer stands.
    let user = said.json("user");
    let (is_fast, reasons) = verdict(&user);
    assert!(is_fast && reasons.contains("needs root"), "{user}");
    assert_says(&said.json("off"), false, &["turned off", "(DEAC)"]);

    let inner = said.json("loop");
    let devices = inner["devices"].as_array().unwrap();
    let kinds: Vec<&Value> = devices.iter().map(|device| &device["kind"]).collect();
    assert_eq!(kinds, ["loop", "disk"]);
    let reasons = devices[0]["fast_zeroing"]["reasons"].to_string();
    assert!(reasons.contains("unwritten"), "{reasons}");
    assert_eq!(inner["layers"][0]["write_zeroes"]["answer"], "EOPNOTSUPP");
    assert_eq!(inner["layers"][1]["layer"], "/mnt/image");
    assert_eq!(inner["layers"][0]["can_assign"], true, "{inner}");
}

#[test]
fn scsi_disk_qualifies_by_lbprz_and_virtio_never_does() {
    require!(Guest::requirement());
    let script = r#"
mark virtio; extant probe --through --json /mnt
# scsi ARGUMENTS: probes a file system on the SCSI disk that the kernel emulates so.
modprobe sd_mod
scsi() {
    modprobe scsi_debug dev_size_mb=64 $*
    for _ in $(seq 200); do [ -b /dev/sda ] && break; sleep 0.05; done
    mkfs.ext4 -q /dev/sda
    mkdir -p /tmp/scsi
    mount /dev/sda /tmp/scsi
    extant probe --through --json /tmp/scsi
    umount /tmp/scsi
    modprobe -r scsi_debug
}
mark zeros; scsi lbpu=1 lbpws=1 lbprz=1
mark anything; scsi lbpu=1 lbpws=1 lbprz=0
mark thick; scsi lbpu=0
"#;
    let said = Sections::of(Bus::Virtio, 256 * MIB, script);
    assert_says(&said.json("virtio"), false, &["virtio: "]);
    let zeros = said.json("zeros");
    assert_says(
        &zeros,
        true,
        &["read as zeros (LBPRZ)", "LBPWS", "UNMAP of up to"],
    );
    let scsi = &zeros["devices"][0]["fast_zeroing"]["scsi"];
    assert_eq!(scsi["zeroing_mode"], "writesame_16_unmap", "{scsi}");
    assert_says(&said.json("anything"), false, &["no LBPRZ"]);
    assert_says(&said.json("thick"), false, &["SCSI: "]);
}
