//! Pools of kind `lvm` where there is no volume group: refusals. The rest is tested in the guest.

use std::fs;

use extant_testkit::workdir::Workdir;

use crate::support::{Answer, extant, run};

fn define(words: &[&str]) -> Answer {
    let work = Workdir::new();
    let mut define = extant();
    define
        .args(["pool", "define", "thick", "--config-dir"])
        .arg(work.path())
        .arg("--state")
        .arg(work.path().join("state"));
    run(define.args(words))
}

#[test]
fn words_that_do_not_fit_a_volume_group_are_refused() {
    let group = "--volume-group=vg";
    for (words, reason) in [
        (&["--kind", "lvm"][..], "--volume-group"),
        (&["--kind", "lvm", "/dev/vg"], "--volume-group"),
        (&[group], "--kind lvm"),
        (&["--kind", "disk", group], "--kind lvm"),
        (&["--kind", "lvm", group, "--adopt"], "--adopt"),
        (&["--kind", "lvm", group, "--directory=d"], "--directory"),
        (&["--kind", "lvm", group, "--preallocation=off"], "full"),
    ] {
        let refused = define(words);
        assert_eq!(refused.code, Some(2), "{words:?}: {refused}");
        assert!(refused.stderr.contains(reason), "{words:?}: {refused}");
    }
}

#[test]
fn group_that_does_not_exist_and_kernel_without_device_mapper_are_refused_by_name() {
    let refused = define(&["--kind", "lvm", "--volume-group", "extant-nosuch"]);
    let misc = fs::read_to_string("/proc/misc").unwrap_or_default();
    assert_ne!(refused.code, Some(0), "{refused}");
    let place = "/dev/extant-nosuch: ";
    assert!(refused.stderr.contains(place), "{refused}");
    if !misc.contains("device-mapper") && fs::metadata("/dev/mapper/control").is_err() {
        assert_eq!(refused.code, Some(5), "{refused}");
        assert!(refused.stderr.contains("no device mapper"), "{refused}");
    }
}
