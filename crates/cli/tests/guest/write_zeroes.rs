//! The kernel's own write zeroes, on an NVMe disk that unmaps for them.
//!
//! Oracles are the guest's filefrag and sha256sum.

use extant_testkit::guest::{Bus, Guest};
use extant_testkit::require;
use serde_json::Value;

use crate::sections::Sections;
use crate::support::MIB;

#[test]
fn create_lets_the_kernel_write_zeroes() {
    require!(Guest::requirement());
    let script = r#"
mark probe; extant probe /mnt --json
mark create; extant create /mnt/a 512MiB --json
mark map; filefrag -v /mnt/a
mark zeros; cmp -n 536870912 /mnt/a /dev/zero && stat -c '%s %b' /mnt/a
mark words; extant create /mnt/words 1MiB -v
for size in 1 4095 123457 33554433; do
    mark "odd $size"; extant create /mnt/odd $size --json
    mark "odd map $size"; filefrag -v /mnt/odd
    mark "odd zeros $size"; cmp -n $size /mnt/odd /dev/zero && stat -c %s /mnt/odd
    rm /mnt/odd
done
mark part; extant create /mnt/part 1GiB --allocation 5000001 --json
mark part-map; filefrag -v -b1 /mnt/part
"#;
    let said = Sections::of(Bus::Nvme, 1200 * MIB, script);

    let probe = said.json("probe");
    let mode = |name: &str| {
        let modes = probe["modes"].as_array().unwrap();
        let found = modes.iter().find(|mode| mode["mode"] == name);
        found.unwrap_or_else(|| panic!("no {name} in {probe}"))["is_supported"].clone()
    };
    assert_eq!(mode("write zeroes"), true, "{probe}");
    assert_eq!(probe["plan"]["strategy"], "write-zeroes");
    assert!(
        probe["disk"]["write_zeroes_unmap_max_bytes"]
            .as_u64()
            .unwrap()
            > 0
    );

    let report = said.json("create");
    assert_eq!(report["plan"]["strategy"], "write-zeroes", "{report}");
    assert_eq!(report["written_bytes"], 512 * MIB);
    assert_eq!(report["map"]["extant_bytes"], 512 * MIB);
    assert_eq!(report["verified"], "extent-map");
    said.assert_written("map");
    assert!(said.get("zeros").starts_with("536870912 "));
    assert!(
        said.get("words").contains("write zeroes"),
        "{}",
        said.text()
    );

    for size in [1, 4095, 123_457, 33_554_433_u64] {
        let report = said.json(&format!("odd {size}"));
        assert_eq!(report["map"]["extant_bytes"], size, "{report}");
        said.assert_written(&format!("odd map {size}"));
        assert_eq!(said.get(&format!("odd zeros {size}")), size.to_string());
    }
    assert_eq!(said.json("part")["map"]["written_bytes"], 5_001_216);
    assert!(!said.get("part-map").contains("unwritten"));
}

#[test]
fn materialize_and_fallocate_let_the_kernel_write_zeroes_and_keep_data() {
    require!(Guest::requirement());
    let script = r#"
truncate -s 64M /mnt/a
for at in 0 7 21 50; do
    head -c 300001 /dev/urandom | dd of=/mnt/a bs=1M seek=$at conv=notrunc status=none
done
fallocate -o 30M -l 4M /mnt/a
sync
mark before; sha256sum < /mnt/a
mark materialize; extant materialize /mnt/a --json
mark after; sha256sum < /mnt/a
mark map; filefrag -v /mnt/a

head -c 8M /dev/urandom > /mnt/b
{ head -c 1000001 /mnt/b; head -c 3000000 /dev/zero; tail -c +4000002 /mnt/b; } > /tmp/wanted
mark fallocate; extant fallocate -w -o 1000001 -l 3000000 /mnt/b
mark same; cmp /mnt/b /tmp/wanted && echo yes
mark native; extant fallocate -w --no-fallback -l 16M /mnt/c && filefrag -v /mnt/c
"#;
    let said = Sections::of(Bus::Nvme, 256 * MIB, script);
    let report = said.json("materialize");
    assert_eq!(report["plan"]["strategy"], "write-zeroes", "{report}");
    let sum = |name: &str| report[name].as_u64().unwrap();
    assert_eq!(sum("already_written_bytes") + sum("zeroed_bytes"), 64 * MIB);
    assert!(sum("already_written_bytes") < 2 * MIB, "{report}");
    assert_eq!(said.get("before"), said.get("after"));
    said.assert_written("map");
    assert_eq!(said.get("same"), "yes");
    said.assert_written("native");
}

#[test]
fn killed_and_paced_runs_hold_in_the_guest_as_well() {
    require!(Guest::requirement());
    let script = r#"
# stop SIGNAL SECONDS PATH: runs create, signals it so long after its first trace, prints its status.
stop() {
    local partial=$(dirname $3)/.$(basename $3).extant-partial
    extant create $3 64MiB --rate 16M & local pid=$!
    until [ -e $partial ]; do sleep 0.01; done
    sleep $2
    kill -s $1 $pid
    wait $pid && echo status 0 || echo status $?
}
mark kills
for delay in 0.3 0.2 0.4 0.1; do
    stop KILL $delay /mnt/a
    ls -A /mnt
done
mark resumed; extant create /mnt/a 64MiB --json
mark map; filefrag -v /mnt/a
mark names; ls -A /mnt
mark rate
start=$(date +%s%N)
extant create /mnt/paced 24MiB --rate 16M --json
end=$(date +%s%N)
mark paced; echo $(((end - start) / 1000000))
mark cancel
stop INT 0.5 /mnt/never
ls -A /mnt
"#;
    let said = Sections::of(Bus::Nvme, 256 * MIB, script);
    let kills = said.get("kills");
    let count = |wanted: &str| kills.lines().filter(|line| *line == wanted).count();
    assert_eq!(count("status 137"), 4, "{kills}");
    assert_eq!(count(".a.extant-partial"), 4, "{kills}");
    assert_eq!(count("a"), 0, "{kills}");
    let report = said.json("resumed");
    let sum = |name: &str| report[name].as_u64().unwrap();
    assert!(sum("resumed_bytes") > 0, "{report}");
    assert_eq!(sum("resumed_bytes") + sum("zeroed_bytes"), 64 * MIB);
    said.assert_written("map");
    assert_eq!(said.get("names"), "a\nlost+found");

    assert_eq!(said.json("rate")["plan"]["strategy"], "write-zeroes");
    let milliseconds: u64 = said.get("paced").parse().unwrap();
    assert!(milliseconds >= 1500 * 10 / 12, "{milliseconds} ms");

    let cancel = said.get("cancel");
    assert!(cancel.contains("status 130"), "{cancel}");
    assert!(cancel.contains("extant: /mnt/never: "), "{cancel}");
    assert!(cancel.ends_with("a\nlost+found\npaced"), "{cancel}");
}

#[test]
fn create_on_virtio_and_network_falls_back_with_a_reason() {
    require!(Guest::requirement());
    let script = "mark create; extant create /mnt/a 32MiB --json\n\
                  mark map; filefrag -v /mnt/a\n\
                  trap - ERR\n\
                  mark native; extant fallocate -w --no-fallback -l 1M /mnt/b; echo status $?\n\
                  mark network; extant create /host/n 3MiB --json; stat -c '%s %b' /host/n\n\
                  mark left; ls -A /host\n";
    let said = Sections::of(Bus::Virtio, 128 * MIB, script);
    let report = said.json("create");
    assert_eq!(report["plan"]["strategy"], "overwrite", "{report}");
    assert_eq!(report["plan"]["rejected"][0]["strategy"], "write-zeroes");
    assert_eq!(report["plan"]["rejected"][0]["reason"], "EOPNOTSUPP");
    said.assert_written("map");
    assert!(said.get("native").ends_with("status 1"), "{}", said.text());

    // The shared directory is a network file system: another machine decides, and that is reported.
    let network = said.get("network").rsplit_once('\n');
    let (report, stat) = network.unwrap_or_else(|| panic!("{}", said.text()));
    let report: Value = serde_json::from_str(report).unwrap();
    assert_eq!(report["plan"]["strategy"], "write-in-order", "{report}");
    assert_eq!(report["written_bytes"], 3 * MIB, "{report}");
    let note = report["notes"][0].as_str().unwrap_or_default();
    assert!(note.contains("server decides"), "{report}");
    assert_eq!(stat, "3145728 6144");
    assert_eq!(said.get("left"), "extant\nn");
}
