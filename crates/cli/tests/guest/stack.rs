//! `assign` and `materialize --through` on volumes and arrays over loop devices: the device mapper
//! and md, two and three levels deep.
//!
//! Oracles are the guest's filefrag and sha256sum on the files below: how much of them is
//! allocated, and how much of that is unwritten, whatever the tables in between.

use extant_space::ExtentState;
use extant_testkit::guest::{Bus, Guest};
use extant_testkit::oracle::{FileMap, filefrag_map};
use extant_testkit::require;

use crate::sections::Sections;
use crate::support::MIB;

const FILE_BYTES: u64 = 40 * MIB;
/// Metadata of the file system in between that is allocated or written besides the file.
const SLACK: u64 = 2 * MIB;

/// Functions of the scripts.
const FUNCTIONS: &str = r#"
export DM_DISABLE_UDEV=1
modprobe -a loop dm-mod dm-crypt raid0 raid1 raid456
mkdir -p /run/lock/lvm

# sparse FILE: a loop device over a new sparse file.
sparse() { truncate -s 64M $1; losetup --find --show $1; }

# maps NAME FILES: the maps of the files below.
maps() {
    local name=$1 number=0 each; shift
    sync
    for each; do
        mark "$name $number"; filefrag -s -v -b1 $each
        number=$((number + 1))
    done
}

# formatted NAME DEVICE: ext4 on it, mounted at /tmp/NAME.
formatted() {
    mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 $2
    mkdir /tmp/$1
    mount $2 /tmp/$1
}

# through NAME FILES: assign and materialize /tmp/NAME/file, stored in the files below.
through() {
    local name=$1 file=/tmp/$1/file; shift
    truncate -s 40M $file
    head -c 1000001 /dev/urandom | dd of=$file bs=1M seek=7 conv=notrunc status=none
    maps "$name before" $*
    mark "$name sum"; sha256sum < $file
    mark "$name assign"; extant assign $file --json
    maps "$name assigned" $*
    mark "$name again"; extant assign $file --json
    maps "$name assigned again" $*
    mark "$name materialize"; extant materialize --through $file --json
    maps "$name written" $*
    mark "$name same"; sha256sum < $file
    mark "$name map"; extant map --through --json $file
}
"#;

/// The maps of the files below after a step.
fn maps(said: &Sections, step: &str, files: usize) -> Vec<FileMap> {
    let map = |number| filefrag_map(said.get(&format!("{step} {number}")));
    (0..files).map(map).collect()
}

fn bytes(maps: &[FileMap], state: ExtentState) -> u64 {
    maps.iter().map(|map| map.bytes(state)).sum()
}

fn allocated(maps: &[FileMap]) -> u64 {
    bytes(maps, ExtentState::Written) + bytes(maps, ExtentState::Unwritten)
}

/// Checks the script's `through NAME` with `files` files below, which store `copies` of the file.
#[track_caller]
fn check_through(said: &Sections, name: &str, files: usize, copies: u64) {
    let at = |step: &str| maps(said, &format!("{name} {step}"), files);
    let (before, assigned) = (at("before"), at("assigned"));
    // The data of the file was allocated before.
    let wanted = copies * (FILE_BYTES - MIB) - SLACK;
    let new = allocated(&assigned) - allocated(&before);
    assert!(
        new >= wanted,
        "{name}: {new} bytes allocated\n{}",
        said.text()
    );
    let unwritten = bytes(&assigned, ExtentState::Unwritten);
    assert!(unwritten >= wanted, "{name}: {unwritten} bytes unwritten");
    let again = allocated(&at("assigned again")) - allocated(&assigned);
    assert!(
        again <= SLACK,
        "{name}: {again} bytes allocated by the second"
    );

    let report = said.json(&format!("{name} assign"));
    let layers = report["layers"].as_array().unwrap();
    let holes = layers.iter().map(|layer| layer["hole_bytes"].as_u64());
    assert!(holes.clone().all(|bytes| bytes == Some(0)), "{report}");
    assert_eq!(report["disks"].as_array().unwrap().len(), 1, "{report}");

    // The rest was allocated and not written before the file was.
    let unwritten_before = bytes(&before, ExtentState::Unwritten);
    let unwritten = bytes(&at("written"), ExtentState::Unwritten);
    assert!(
        unwritten <= unwritten_before + SLACK,
        "{name}: {unwritten} bytes unwritten"
    );
    assert_eq!(
        said.get(&format!("{name} sum")),
        said.get(&format!("{name} same"))
    );
}

/// The devices below a file of `map --through --json`, as `KIND NAME`.
fn written_at_depth(said: &Sections, name: &str, depth: u64) -> u64 {
    let map = said.json(&format!("{name} map"));
    let files = map["files"].as_array().unwrap().iter();
    let at_depth = files.filter(|file| file["depth"] == depth);
    at_depth
        .map(|file| file["summary"]["written_bytes"].as_u64().unwrap())
        .sum()
}

#[test]
fn space_reaches_the_files_below_volumes_of_the_device_mapper() {
    require!(Guest::requirement());
    let script = format!(
        "{FUNCTIONS}{}",
        r#"
one=$(sparse /mnt/one) two=$(sparse /mnt/two)
dmsetup create pieces <<END
0 65536 linear $one 16384
65536 65536 linear $two 2048
END
formatted pieces /dev/mapper/pieces
through pieces /mnt/one /mnt/two
umount /tmp/pieces

# Three levels: a file system in a file of one on stripes.
three=$(sparse /mnt/three) four=$(sparse /mnt/four)
echo "0 245760 striped 2 128 $three 0 $four 2048" | dmsetup create striped
formatted striped /dev/mapper/striped
truncate -s 100M /tmp/striped/disk
formatted deep $(losetup --find --show --direct-io=on /tmp/striped/disk)
through deep /mnt/three /mnt/four

five=$(sparse /mnt/five) six=$(sparse /mnt/six)
mark volumes
pvcreate -q $five $six
vgcreate -q vg $five $six
lvcreate -q -y --noudevsync -Zn -Wn -l 100%FREE -n volume vg
mark table; dmsetup table vg-volume
formatted volume /dev/mapper/vg-volume
through volume /mnt/five /mnt/six

seven=$(sparse /mnt/seven)
key=00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff
echo "0 131072 crypt aes-xts-plain64 $key 0 $seven 0" | dmsetup create secret
formatted secret /dev/mapper/secret
truncate -s 1M /tmp/secret/file
trap - ERR
mark crypt; extant assign /tmp/secret/file; echo status $?
mark blocks; stat -c %b /tmp/secret/file
umount /tmp/secret /tmp/volume /tmp/deep
losetup --detach-all
umount /tmp/striped
dmsetup remove_all
losetup --detach-all
"#
    );
    let said = Sections::of(Bus::Virtio, 1024 * MIB, &script);
    check_through(&said, "pieces", 2, 1);
    check_through(&said, "deep", 2, 1);
    check_through(&said, "volume", 2, 1);
    assert_eq!(said.get("table").lines().count(), 2, "{}", said.text());
    assert_eq!(written_at_depth(&said, "pieces", 1), FILE_BYTES);
    for depth in [1, 2] {
        assert_eq!(written_at_depth(&said, "deep", depth), FILE_BYTES);
    }
    let crypt = said.get("crypt");
    assert!(crypt.contains("/dev/mapper/secret"), "{crypt}");
    assert!(crypt.contains("target crypt"), "{crypt}");
    assert!(crypt.ends_with("status 5"), "{crypt}");
    assert_eq!(said.get("blocks"), "0");
}

#[test]
fn space_reaches_every_member_of_an_array() {
    require!(Guest::requirement());
    let script = format!(
        "{FUNCTIONS}{}",
        r#"
# array DEVICE LEVEL MEMBERS: a new array.
array() {
    local device=$1 level=$2; shift 2
    mdadm --create $device --quiet --run --assume-clean --metadata=1.2 --level=$level \
        --raid-devices=$# $(test $level = 0 && echo --chunk=64 || echo --bitmap=none) $*
}
array /dev/md0 0 $(sparse /mnt/one) $(sparse /mnt/two)
formatted raid0 /dev/md0
through raid0 /mnt/one /mnt/two

array /dev/md1 1 $(sparse /mnt/three) $(sparse /mnt/four)
formatted raid1 /dev/md1
through raid1 /mnt/three /mnt/four

array /dev/md5 5 $(sparse /mnt/five) $(sparse /mnt/six) $(sparse /mnt/seven)
formatted raid5 /dev/md5
truncate -s 1M /tmp/raid5/file
trap - ERR
mark raid5; extant assign /tmp/raid5/file; echo status $?
umount /tmp/raid5 /tmp/raid1 /tmp/raid0
mdadm --quiet --stop /dev/md0 /dev/md1 /dev/md5
losetup --detach-all
"#
    );
    let said = Sections::of(Bus::Virtio, 1024 * MIB, &script);
    check_through(&said, "raid0", 2, 1);
    check_through(&said, "raid1", 2, 2);
    assert_eq!(written_at_depth(&said, "raid0", 1), FILE_BYTES);
    // Each copy has a map of its own.
    assert_eq!(written_at_depth(&said, "raid1", 1), 2 * FILE_BYTES);
    let refused = said.get("raid5");
    assert!(refused.contains("/dev/md5"), "{refused}");
    assert!(refused.contains("md raid5"), "{refused}");
    assert!(refused.ends_with("status 5"), "{refused}");
}
