//! libvirt on our pools and volumes, and Extant on libvirt's.
//!
//! An unprivileged libvirtd, in directories of its own, needs no system service.

use std::fs;

use extant_space::ExtentState;
use extant_testkit::libvirt::Libvirt;
use extant_testkit::{command, oracle, require, requires};
use roxmltree::Document;

use crate::support::{Answer, MIB, as_nobody, extant, run};

/// `extant` by the same user as the daemon.
#[track_caller]
fn by_the_user(libvirt: &Libvirt, arguments: &[&str]) -> Answer {
    let mut inner = extant();
    inner.args(arguments);
    let mut outer = as_nobody(&inner, libvirt.work());
    run(outer.env("XDG_CONFIG_HOME", libvirt.home())).success()
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

/// Both describe the volume `name` alike.
#[track_caller]
fn assert_same(name: &str, ours: &str, theirs: &str) {
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
        assert_eq!(text(ours, path), text(theirs, path), "{path:?} of {name}");
    }
}

/// The attribute `type` of `<target><format>`.
fn format(xml: &str) -> String {
    let document = Document::parse(xml).unwrap_or_else(|error| panic!("{error}: {xml}"));
    let format = document
        .descendants()
        .find(|node| node.has_tag_name("format"));
    format
        .unwrap()
        .attribute("type")
        .unwrap_or_default()
        .to_owned()
}

#[test]
fn libvirt_and_extant_read_each_others_images() {
    require!(Libvirt::requirement(), requires::tool("qemu-img"));
    let libvirt = Libvirt::start();
    let file = |name: &str| libvirt.work().path().join(name);
    let pool = libvirt.directory("pool");
    let ours = |words: &[&str]| by_the_user(&libvirt, words);
    libvirt.ask(&[
        "pool-create-as",
        "vms",
        "dir",
        "--target",
        pool.to_str().unwrap(),
    ]);
    libvirt.ask(&[
        "vol-create-as",
        "vms",
        "theirs.qcow2",
        "8M",
        "--format",
        "qcow2",
    ]);
    libvirt.ask(&["vol-create-as", "vms", "unsaid", "8M", "--format", "qcow2"]);
    ours(&["pool", "define", "vms", pool.to_str().unwrap()]);
    let info = |name: &str| ours(&["vol", "info", "vms", name, "--json"]);
    assert_eq!(info("theirs.qcow2").text("/format"), "qcow2");
    assert_eq!(info("theirs.qcow2").number("/capacity_bytes"), 8 * MIB);
    // Neither its name nor the user states the format.
    assert!(info("unsaid").json()["format"].is_null());
    ours(&["vol", "format", "vms", "unsaid", "qcow2"]);
    assert_eq!(info("unsaid").number("/capacity_bytes"), 8 * MIB);

    // Ours, made of a description that libvirt wrote, in libvirt's eyes; and one with options.
    let described = libvirt.ask(&["vol-dumpxml", "theirs.qcow2", "vms"]);
    let described = described.replace("theirs", "ours");
    fs::write(file("volume.xml"), &described).unwrap();
    let xml = file("volume.xml");
    let create = ["vol", "create", "vms", "--xml", xml.to_str().unwrap()];
    ours(&[&create[..], &["--preallocation", "metadata"]].concat());
    let options = [
        "-o",
        "cluster_size=128k,lazy_refcounts=on",
        "--preallocation",
        "falloc",
    ];
    ours(
        &[
            &["vol", "create", "vms", "full.qcow2", "6MiB"][..],
            &options,
        ]
        .concat(),
    );
    let backed = ["-o", "backing_file=base,backing_fmt=raw"];
    ours(&["vol", "create", "vms", "base", "8MiB"]);
    ours(&[&["vol", "create", "vms", "top.qcow2", "8MiB"][..], &backed].concat());
    ours(&["vol", "resize", "vms", "ours.qcow2", "12MiB"]);
    ours(&["vol", "clone", "vms", "full.qcow2", "clone.qcow2"]);
    ours(&["vol", "wipe", "vms", "theirs.qcow2"]);
    libvirt.ask(&["pool-refresh", "vms"]);
    for (name, capacity) in [
        ("ours.qcow2", 12 * MIB),
        ("full.qcow2", 6 * MIB),
        ("clone.qcow2", 6 * MIB),
        ("theirs.qcow2", 8 * MIB),
        ("unsaid", 8 * MIB),
        ("top.qcow2", 8 * MIB),
    ] {
        let theirs = libvirt.ask(&["vol-dumpxml", name, "vms"]);
        let ours = ours(&["vol", "info", "vms", name, "--xml"]).stdout;
        assert_eq!(text(&ours, &["capacity"]), capacity.to_string());
        assert_same(name, &ours, &theirs);
        // An image of version 2 has no such element.
        let compat = if theirs.contains("<compat>") {
            text(&theirs, &["target", "compat"])
        } else {
            "0.10".to_owned()
        };
        assert_eq!(text(&ours, &["target", "compat"]), compat, "{name}");
        assert_eq!(format(&ours), "qcow2");
        assert_eq!(format(&theirs), "qcow2");
        let lazy = |xml: &str| xml.contains("lazy_refcounts");
        assert_eq!(lazy(&ours), lazy(&theirs), "{name}");
        let backing = |xml: &str| xml.contains("<backingStore>");
        assert_eq!(backing(&ours), backing(&theirs), "{name}");
        let mut check = command::tool("qemu-img");
        check
            .args(["check", "-q", "-f", "qcow2"])
            .arg(pool.join(name));
        command::must(&mut check);
    }

    // And back: libvirt takes the description that we write.
    let described = ours(&["vol", "info", "vms", "full.qcow2", "--xml"]).stdout;
    fs::write(file("again.xml"), described.replace("full", "again")).unwrap();
    libvirt.ask(&["vol-create", "vms", file("again.xml").to_str().unwrap()]);
    let again = info("again.qcow2");
    assert_eq!(again.number("/capacity_bytes"), 6 * MIB);
    assert_eq!(again.json()["qcow2"]["lazy_refcounts"], true);

    // After a wipe by virsh the volume is no image; after ours it is an empty one. Both have lost
    // their data.
    libvirt.ask(&["vol-wipe", "again.qcow2", "vms"]);
    let file = fs::read(pool.join("again.qcow2")).unwrap();
    assert!(file.iter().all(|&byte| byte == 0));
    let mut look = extant();
    look.args(["vol", "info"]).arg(&pool).arg("again.qcow2");
    run(&mut look).refused(1, &["no qcow2 image"]);
}

#[test]
fn libvirt_and_extant_read_each_others_pools_and_volumes() {
    require!(Libvirt::requirement());
    let libvirt = Libvirt::start();
    let file = |name: &str| libvirt.work().path().join(name);
    let pool = libvirt.directory("pool");
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
    // It shows directories as well, including the pool's own, which it cannot remove.
    assert_eq!(names, [".extant", "full", "ours", "theirs"]);
    let mut delete = libvirt.virsh();
    command::run(delete.args(["vol-delete", ".extant", "vms"])).unwrap_err();
    assert!(pool.join(".extant/jobs").exists());

    for name in ["full", "ours", "theirs"] {
        let theirs = libvirt.ask(&["vol-dumpxml", name, "vms"]);
        let ours = by_the_user(&libvirt, &["vol", "info", "vms", name, "--xml"]).stdout;
        assert_same(name, &ours, &theirs);
        assert_eq!(ours.contains("<extra a='1'/>"), name == "ours", "{ours}");
    }
    let ours = by_the_user(&libvirt, &["pool", "info", "vms", "--xml"]).stdout;
    let theirs = libvirt.ask(&["pool-dumpxml", "vms"]);
    for path in [&["name"][..], &["uuid"], &["capacity"], &["target", "path"]] {
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

#[test]
fn volume_made_of_a_description_has_the_space_of_the_described_one() {
    require!(Libvirt::requirement());
    let libvirt = Libvirt::start();
    let pool = libvirt.directory("pool");
    let ours = |words: &[&str]| by_the_user(&libvirt, words);
    let target = pool.to_str().unwrap();
    libvirt.ask(&["pool-create-as", "vms", "dir", "--target", target]);
    ours(&["pool", "define", "vms", target]);
    let xml = libvirt.work().path().join("volume.xml");
    let described = |name: &str| ours(&["vol", "info", "vms", name, "--xml"]).stdout;
    let make = |name: &str, description: &str, more: &[&str]| {
        let old = text(description, &["name"]);
        fs::write(
            &xml,
            description.replace(&format!(">{old}<"), &format!(">{name}<")),
        )
        .unwrap();
        let create = ["vol", "create", "vms", "--xml", xml.to_str().unwrap()];
        ours(&[&create[..], more].concat());
    };
    let space = |name: &str| {
        let info = ours(&["vol", "info", "vms", name, "--json"]);
        let instruction = described(name).lines().nth(1).unwrap().to_owned();
        (instruction, info.number("/written_bytes"))
    };
    for (format, modes) in [
        ("raw", &["off", "falloc", "full"][..]),
        ("qcow2", &["off", "metadata", "falloc", "full"]),
    ] {
        for mode in modes {
            let name = format!("{mode}.{format}");
            let words = [
                "vol",
                "create",
                "vms",
                &name,
                "2MiB",
                "--preallocation",
                mode,
            ];
            ours(&words);
            let wanted = space(&name);
            let instruction = format!("<?extant preallocation='{mode}'?>");
            assert_eq!(wanted.0.trim(), instruction, "{name}");
            make(&format!("again-{name}"), &described(&name), &[]);
            assert_eq!(space(&format!("again-{name}")), wanted, "{name}");
            make(
                &format!("all-{name}"),
                &described(&name),
                &["--preallocation", "full"],
            );
            assert_eq!(space(&format!("all-{name}")).1, 2 * MIB, "{name}");
            // libvirt passes over the instruction, and its own descriptions have none.
            libvirt.ask(&["pool-refresh", "vms"]);
            let theirs = libvirt.ask(&["vol-dumpxml", &name, "vms"]);
            if matches!(*mode, "off" | "full") {
                make(&format!("their-{name}"), &theirs, &[]);
                assert_eq!(space(&format!("their-{name}")), wanted, "{theirs}");
            }
        }
    }
    fs::write(
        &xml,
        described("full.qcow2").replace("full.qcow2", "virsh.qcow2"),
    )
    .unwrap();
    libvirt.ask(&["vol-create", "vms", xml.to_str().unwrap()]);
}
