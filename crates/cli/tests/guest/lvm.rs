//! Pools of kind `lvm`: a volume group on loop devices of the guest, whose space held other data.
//!
//! Oracles are the LVM tools, cmp against /dev/zero, sha256sum of a foreign volume, and qemu-io.

use extant_testkit::guest::{Bus, Guest};
use extant_testkit::require;
use serde_json::Value;

use crate::sections::Sections;
use crate::support::{MIB, schema};

/// Functions of the scripts.
const FUNCTIONS: &str = r#"
export DM_DISABLE_UDEV=1
modprobe -a loop dm-mod
mkdir -p /run/lock/lvm

# loop FILE SIZE: a loop device over a new file.
loop() { truncate -s $2 $1; losetup --find --show $1; }

# group NAME DEVICES: a volume group whose free space has the byte 0xee everywhere.
group() {
    pvcreate -q "${@:2}" > /dev/null
    vgcreate -q $1 "${@:2}" > /dev/null
    lvcreate -q -y -Zn -Wn -l 100%FREE -n old $1 > /dev/null
    tr '\0' '\356' < /dev/zero | dd of=/dev/$1/old bs=1M iflag=fullblock oflag=direct status=none || true
    lvremove -q -y $1/old
}

# fails COMMAND: its output and status.
fails() { "$@" 2>&1 && echo succeeded || echo "status $?"; }

# zeros NAME SIZE: the volume has this size and only zeros.
zeros() {
    test $(blockdev --getsize64 /dev/vg/$1) = $2 && cmp -n $2 /dev/vg/$1 /dev/zero && echo zeros
}

# hidden: the number of volumes with hidden names.
hidden() { lvs --noheadings -o lv_name vg | grep -c extant || true; }

# reserved: what the pool still promises to jobs.
reserved() {
    extant pool info thick --json |
        python3 -c 'import json,sys; pool = json.load(sys.stdin); print(pool["jobs"], pool["space"]["reserved_bytes"])'
}

# killed SECONDS COMMAND: kill -9 so long after a volume got a hidden name; the number of the job.
killed() {
    "${@:2}" > /tmp/out 2>&1 & local process=$!
    for try in $(seq 1000); do ls /dev/mapper | grep -q extant && break; sleep 0.02; done
    sleep $1
    kill -9 $process 2> /dev/null || true
    wait $process 2> /dev/null || true
    extant pool refresh thick --json |
        python3 -c 'import json,sys; [print(job["job"]) for job in json.load(sys.stdin)["interrupted"]]'
}
"#;

#[test]
fn volume_group_is_a_pool_of_zeroed_volumes() {
    require!(Guest::requirement());
    let script = format!(
        "{FUNCTIONS}{}",
        r#"
group vg $(loop /mnt/one 64M) $(loop /mnt/two 32M)
lvcreate -q -y -L 8M -n foreign vg
head -c 8M /dev/urandom > /tmp/foreign; dd if=/tmp/foreign of=/dev/vg/foreign oflag=direct bs=1M status=none

mark define; extant pool define thick --kind lvm --volume-group vg --json
mark no-group; fails extant pool define other --kind lvm --volume-group nosuch
mark create; extant vol create thick web 10MiB --verify full --json
mark contents; zeros web 12582912
mark volumes; lvs --noheadings -o lv_name,lv_tags,lv_attr,seg_pe_ranges vg
mark names; for name in snapshot a_tdata 'a b' a@b; do fails extant vol create thick "$name" 4MiB; done
mark taken; fails extant vol create thick foreign 4MiB; fails extant vol delete thick foreign
mark thin; fails extant vol create thick thin 4MiB --preallocation off
fails extant vol create thick thin.qcow2 4MiB

mark two; extant vol create thick large 40MiB --rate 8M --detach > /tmp/job; fails extant vol create thick other 40MiB
mark cancel; extant job cancel thick $(cat /tmp/job); hidden; reserved
# Extents of two disks.
mark large; extant vol create thick large 64MiB -q; zeros large 67108864; hidden
mark deleted; extant vol delete thick large --wipe; lvs --noheadings -o lv_name vg

head -c 9M /dev/urandom > /tmp/data
mark upload; extant vol upload thick data /tmp/data -q; cmp -n 9437184 /tmp/data /dev/vg/data && echo same
cmp -n 3145728 -i 9437184:0 /dev/vg/data /dev/zero && echo zeros
mark clone; extant vol clone thick data copy -q; cmp /dev/vg/data /dev/vg/copy && echo same
mark replace; extant vol upload thick copy /tmp/foreign --force -q; cmp -n 8388608 /tmp/foreign /dev/vg/copy && echo same
blockdev --getsize64 /dev/vg/copy; hidden; lvs --noheadings -o lv_tags vg/copy
mark download; extant vol download thick data /tmp/back -q; cmp -n 9437184 /tmp/data /tmp/back && echo same
mark grow; extant vol resize thick data 30MiB -q
cmp -n 9437184 /tmp/data /dev/vg/data && cmp -n 24117248 -i 9437184:0 /dev/vg/data /dev/zero && echo zeros
blockdev --getsize64 /dev/vg/data; hidden; lvs --noheadings -o lv_tags vg/data
mark shrink; mkfs.ext4 -q /dev/vg/web; extant vol resize thick web 4MiB --shrink -q; blockdev --getsize64 /dev/vg/web
mark wipe; extant vol wipe thick web -q; zeros web 4194304
mark materialize; extant vol materialize thick web -q && echo written

mark mounted; mkfs.ext4 -q /dev/vg/web; mkdir /tmp/m; mount /dev/vg/web /tmp/m
fails extant vol delete thick web; umount /tmp/m
mark opened; sleep 1000 < /dev/vg/web & holder=$!
sleep 0.2; fails extant vol resize thick web 8MiB; fails extant vol delete thick web --force; kill $holder; wait $holder || true
mark stacked; echo "0 2048 linear /dev/vg/web 0" | dmsetup create above; fails extant vol delete thick web; dmsetup remove above
mark inactive; lvchange -an vg/data; extant vol download thick data /tmp/again --force -q; cmp -n 9437184 /tmp/data /tmp/again && echo same

mark serve; extant serve --pool thick data --socket /tmp/socket & server=$!
for try in $(seq 100); do test -S /tmp/socket && break; sleep 0.1; done
qemu-io -f raw -c 'write -P 5 16M 64k' -c flush 'nbd+unix:///data?socket=/tmp/socket' | grep -c wrote
fails extant vol wipe thick data
kill $server; wait $server || true
head -c 65536 /dev/zero | tr '\0' '\5' > /tmp/five; cmp -n 65536 -i 16777216:0 /dev/vg/data /tmp/five && echo served

mark list; extant vol list thick --json
mark info; extant vol info thick web --json
mark pool; extant pool info thick --json
mark foreign; cmp -n 8388608 /tmp/foreign /dev/vg/foreign && echo same; lvs --noheadings -o lv_tags,lv_size --units b vg/foreign

vgrename -q vg gone
group vg $(loop /mnt/three 16M)
mark other-group; fails extant vol list thick; fails extant vol create thick a 4MiB
vgremove -q -y vg; vgrename -q gone vg
mark undefine; extant pool delete thick; extant vol list ./nosuch 2>/dev/null || lvs --noheadings -o lv_name vg
mark removed; vgremove -q -y vg; losetup --detach-all
"#
    );
    let said = Sections::of(Bus::Virtio, 1024 * MIB, &script);
    let contains = |section: &str, words: &[&str]| {
        for word in words {
            let text = said.get(section);
            assert!(text.contains(word), "{section}: no {word:?} in {text}");
        }
    };
    let pool = said.json("define");
    assert_eq!(
        (&pool["kind"], &pool["path"]),
        (&"lvm".into(), &"/dev/vg".into())
    );
    contains("no-group", &["nosuch", "not found", "status 4"]);
    assert_eq!(said.json("create")["capacity_bytes"], 12 * MIB);
    assert_eq!(said.get("contents"), "zeros");
    let volumes = said.get("volumes");
    let web = volumes.lines().find(|line| line.trim().starts_with("web "));
    let words: Vec<&str> = web.unwrap().split_whitespace().collect();
    assert_eq!(words[1], "extant.format=raw", "{volumes}");
    assert!(words[2].starts_with("-wi-a"), "{volumes}");
    assert_eq!(words.len(), 4, "one range of extents: {volumes}");
    assert_eq!(
        said.get("names").matches("status 2").count(),
        4,
        "{}",
        said.get("names")
    );
    contains(
        "names",
        &["begin with snapshot", "contain _tdata", "letters, digits"],
    );
    contains("taken", &["/dev/vg/foreign", "was not made by a pool"]);
    assert!(
        !said.get("taken").contains("succeeded"),
        "{}",
        said.get("taken")
    );
    assert_eq!(
        said.get("thin").matches("kind lvm").count(),
        2,
        "{}",
        said.get("thin")
    );
    contains("two", &["missing", "status"]);
    assert!(
        said.get("cancel").contains("/dev/vg/large: cancelled")
            && said.get("cancel").ends_with("0\n0 0"),
        "{}",
        said.get("cancel")
    );
    assert_eq!(said.get("large"), "zeros\n0");
    assert!(
        !said.get("deleted").contains("  large"),
        "{}",
        said.get("deleted")
    );
    assert_eq!(said.get("upload"), "same\nzeros");
    assert_eq!(said.get("clone"), "same");
    assert_eq!(said.get("replace"), "same\n8388608\n0\n  extant.format=raw");
    assert_eq!(said.get("download"), "same");
    assert_eq!(said.get("grow"), "zeros\n33554432\n0\n  extant.format=raw");
    assert_eq!(said.get("shrink"), "4194304");
    assert_eq!(said.get("wipe"), "zeros");
    assert_eq!(said.get("materialize"), "written");
    contains("mounted", &["mounted at /tmp/m", "status"]);
    assert_eq!(
        said.get("opened").matches("sleep (pid ").count(),
        2,
        "{}",
        said.get("opened")
    );
    contains("stacked", &["(above) is on", "status"]);
    assert_eq!(said.get("inactive"), "same");
    contains("serve", &["1\n", "extant (pid ", "served"]);
    let list = said.json("list");
    let names: Vec<&Value> = list["volumes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["name"])
        .collect();
    assert_eq!(names, ["copy", "data", "web"], "{list}");
    let info = said.json("info");
    assert_eq!(info["written_bytes"], 4 * MIB, "{info}");
    let pool = said.json("pool");
    assert_eq!(pool["space"]["volumes"], 3, "{pool}");
    assert_eq!(pool["space"]["allocated_bytes"], 44 * MIB, "{pool}");
    schema::assert_valid([
        ("pool define", &said.json("define")),
        ("vol list", &list),
        ("vol info", &info),
        ("pool info", &pool),
    ]);
    assert!(
        said.get("foreign").starts_with("same"),
        "{}",
        said.get("foreign")
    );
    assert_eq!(
        said.get("other-group").matches("is another one").count(),
        2,
        "{}",
        said.get("other-group")
    );
    contains("undefine", &["web", "foreign"]);
}

#[test]
fn killed_jobs_of_a_volume_group_are_resumed_or_undone() {
    require!(Guest::requirement());
    let script = format!(
        "{FUNCTIONS}{}",
        r#"
group vg $(loop /mnt/one 80M)
extant pool define thick --kind lvm --volume-group vg > /dev/null
head -c 8M /dev/urandom > /tmp/data; head -c 16M /dev/urandom > /tmp/more
extant vol upload thick data /tmp/data -q

# Each job is killed at work, and resumed or cancelled.
round=0
for end in resume cancel; do
    round=$((round + 1)) delay=0.$((round * 3))
    mark "create $round"
    job=$(killed $delay extant vol create thick new 16MiB --rate 8M)
    lvs --noheadings -o lv_name vg/new 2> /dev/null || echo absent
    extant job $end thick $job > /dev/null
    zeros new 16777216 2> /dev/null || echo none; hidden; reserved
    mark ready; extant vol delete thick new 2> /dev/null || true

    mark "grow $round"
    job=$(killed $delay extant vol resize thick data 24MiB --rate 8M)
    extant vol list thick --json | python3 -c 'import json,sys; [print(one["name"], one["capacity_bytes"]) for one in json.load(sys.stdin)["volumes"]]'
    extant job $end thick $job > /dev/null
    size=$(blockdev --getsize64 /dev/vg/data); echo $size
    cmp -n 8388608 /tmp/data /dev/vg/data && echo same
    test $size = 8388608 || cmp -n $((size - 8388608)) -i 8388608:0 /dev/vg/data /dev/zero && echo zeros
    hidden; reserved
    mark ready; test $size = 8388608 || extant vol resize thick data 8MiB --shrink -q

    mark "replace $round"
    job=$(killed $delay extant vol upload thick data /tmp/more --force --rate 8M)
    extant job $end thick $job > /dev/null
    cmp -sn 8388608 /tmp/data /dev/vg/data && echo old || cmp /tmp/more /dev/vg/data && echo whole
    hidden; reserved; lvs --noheadings -o lv_tags vg/data
    mark ready
    cmp -sn 8388608 /tmp/data /dev/vg/data || extant vol upload thick data /tmp/data --force -q
done

mark made
# A kill between the two renames of a replacement, and after the second one.
identifier=$(python3 -c 'import json; print(json.load(open("/etc/extant/pools/thick.json"))["identifier"])')
lvchange -q --addtag extant.replaced=data vg/data; lvrename -q vg data .extant-$identifier-replaced.7
mark between; extant pool refresh thick > /dev/null; lvs --noheadings -o lv_name,lv_tags vg
mark made again
lvrename -q vg data .extant-$identifier-replaced.8
lvchange -q --addtag extant.replaced=data vg/.extant-$identifier-replaced.8
extant vol create thick data 4MiB -q; lvchange -q --addtag extant.replaced=data vg/data
mark after; extant pool refresh thick > /dev/null; lvs --noheadings -o lv_name,lv_size,lv_tags vg
mark made last
# Volumes that were made without a record of a job.
lvcreate -q -y -L 4M -n .extant-$identifier-99.copy --addtag extant.format=raw vg
mark strays; extant pool refresh thick --json; hidden
mark removed; vgremove -q -y vg; losetup --detach-all
"#
    );
    let said = Sections::of(Bus::Virtio, 600 * MIB, &script);
    // Resumed and cancelled.
    for (round, content, size, replaced) in [
        (1, "zeros", "25165824", "whole"),
        (2, "none", "8388608", "old\nwhole"),
    ] {
        let create: Vec<&str> = said.get(&format!("create {round}")).lines().collect();
        assert_eq!(create, ["absent", content, "0", "0 0"], "{}", said.text());
        let grow: Vec<&str> = said.get(&format!("grow {round}")).lines().collect();
        let wanted = ["data 8388608", size, "same", "zeros", "0", "0 0"];
        assert_eq!(grow, wanted, "{}", said.text());
        let replace = said.get(&format!("replace {round}"));
        let wanted = format!("{replaced}\n0\n0 0\n  extant.format=raw");
        assert_eq!(replace, wanted, "{}", said.text());
    }
    assert_eq!(said.get("between"), "data extant.format=raw");
    assert_eq!(said.get("after"), "data 4.00m extant.format=raw");
    let strays = said.get("strays");
    assert!(
        strays.contains("\"removed_files\": 1") && strays.ends_with('0'),
        "{strays}"
    );
}
