//! What libvirt makes of our pools and volumes, and we of its.
//!
//! A libvirtd of a user without rights, in folders of its own, as no system service is needed for that.

use std::fs;

use extant_space::ExtentState;
use extant_testkit::libvirt::Libvirt;
use extant_testkit::{oracle, require};
use roxmltree::Document;

use crate::support::{Answer, MIB, as_nobody, extant, run};

/// `extant` by the same user as the daemon.
#[track_caller]
fn by_the_user(libvirt: &Libvirt, arguments: &[&str]) -> Answer {
    let mut inner = extant();
    inner.args(arguments);
    let mut command = as_nobody(&inner, libvirt.work());
    run(command.env("XDG_CONFIG_HOME", libvirt.home())).success()
}

/// The text of the element at the end of a path of names.
fn text(xml: &str, path: &[&str]) -> String {
    let document = Document::parse(xml).unwrap_or_else(|error| panic!("{error}: {xml}"));
    let mut node = document.root_element();
    for name in path {
        let found = node.children().find(|child| child.has_tag_name(*name));
        node = found.unwrap_or_else(|| panic!("no <{name}> in {xml}"));
    }
    node.text().unwrap_or_default().trim().to_owned()
}

#[test]
fn libvirt_and_extant_read_each_others_pools_and_volumes() {
    require!(Libvirt::requirement());
    let libvirt = Libvirt::start();
    let file = |name: &str| libvirt.work().path().join(name);
    let pool = libvirt.folder("pool");
    let shown = pool.to_str().unwrap();

    // Theirs: the pool, and a volume in it.
    libvirt.ask(&["pool-create-as", "vms", "dir", "--target", shown]);
    libvirt.ask(&["vol-create-as", "vms", "theirs", "3M", "--allocation", "1M"]);
    fs::write(file("pool.xml"), libvirt.ask(&["pool-dumpxml", "vms"])).unwrap();
    by_the_user(
        &libvirt,
        &[
            "pool",
            "define",
            "--xml",
            file("pool.xml").to_str().unwrap(),
        ],
    );
    let info = by_the_user(&libvirt, &["vol", "info", "vms", "theirs", "--json"]);
    assert_eq!(info.number("/capacity_bytes"), 3 * MIB);

    // Ours, made of a description that libvirt wrote, in libvirt's eyes.
    let described = libvirt.ask(&["vol-dumpxml", "theirs", "vms"]);
    let described = described
        .replace("theirs", "ours")
        .replace("</volume>", "<extra a='1'/></volume>")
        .replace("<mode>0600</mode>", "<mode>0640</mode>");
    fs::write(file("volume.xml"), &described).unwrap();
    by_the_user(
        &libvirt,
        &[
            "vol",
            "create",
            "vms",
            "--xml",
            file("volume.xml").to_str().unwrap(),
        ],
    );
    by_the_user(&libvirt, &["vol", "create", "vms", "full", "2MiB"]);
    assert_eq!(
        oracle::filefrag(&pool.join("full")).bytes(ExtentState::Written),
        2 * MIB
    );
    libvirt.ask(&["pool-refresh", "vms"]);
    let list = libvirt.ask(&["vol-list", "vms"]);
    let mut names: Vec<&str> = list
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    names.sort_unstable();
    // It shows folders as well, the pool's own among them.
    assert_eq!(names, [".extant", "full", "ours", "theirs"]);

    for name in ["full", "ours", "theirs"] {
        let theirs = libvirt.ask(&["vol-dumpxml", name, "vms"]);
        let ours = by_the_user(&libvirt, &["vol", "info", "vms", name, "--xml"]).stdout;
        for path in [
            &["name"][..],
            &["key"],
            &["capacity"],
            &["allocation"],
            &["physical"],
            &["target", "path"],
            &["target", "permissions", "mode"],
            &["target", "permissions", "owner"],
            &["target", "permissions", "group"],
        ] {
            assert_eq!(text(&ours, path), text(&theirs, path), "{path:?} of {name}");
        }
        assert_eq!(ours.contains("<extra a='1'/>"), name == "ours", "{ours}");
    }
    let ours = by_the_user(&libvirt, &["pool", "info", "vms", "--xml"]).stdout;
    let theirs = libvirt.ask(&["pool-dumpxml", "vms"]);
    for path in [&["name"][..], &["uuid"], &["target", "path"]] {
        assert_eq!(text(&ours, path), text(&theirs, path), "{path:?}");
    }

    // And back: libvirt takes the descriptions that we write.
    libvirt.ask(&["pool-destroy", "vms"]);
    fs::write(file("again.xml"), &ours).unwrap();
    libvirt.ask(&["pool-create", file("again.xml").to_str().unwrap()]);
    let described = by_the_user(&libvirt, &["vol", "info", "vms", "full", "--xml"]).stdout;
    fs::write(file("again.xml"), described.replace("full", "again")).unwrap();
    libvirt.ask(&["vol-create", "vms", file("again.xml").to_str().unwrap()]);
    let info = by_the_user(&libvirt, &["vol", "info", "vms", "again", "--json"]);
    assert_eq!(info.number("/capacity_bytes"), 2 * MIB);
}
