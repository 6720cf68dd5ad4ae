//! What libvirt makes of our pools and volumes, and we of its.
//!
//! A libvirtd of a user without rights, in folders of its own, as no system service is needed for that.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use extant_space::ExtentState;
use extant_testkit::require;
use extant_testkit::requires::{root, tool};
use extant_testkit::workdir::Workdir;
use extant_testkit::{command, oracle};
use roxmltree::Document;

use crate::support::{Answer, MIB, NOBODY, as_nobody, extant, run, wait_until};

/// A libvirtd, and what it needs.
struct Libvirt {
    work: Workdir,
    daemon: Child,
}

impl Libvirt {
    fn start() -> Self {
        let work = Workdir::new();
        fs::set_permissions(work.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["run", "home", "pool"] {
            let folder = work.folder(name);
            chown(&folder, Some(NOBODY), Some(NOBODY)).unwrap();
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let log = fs::File::create(work.path().join("log")).unwrap();
        let daemon = Self::command(&work, "libvirtd", &[])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let libvirt = Self { work, daemon };
        wait_until("libvirtd", || {
            libvirt.try_virsh(&["pool-list"]).code == Some(0)
        });
        libvirt
    }

    fn command(work: &Workdir, program: &str, arguments: &[&str]) -> Command {
        let id = NOBODY.to_string();
        let mut wrapped = command::tool("setpriv");
        wrapped
            .args([format!("--reuid={id}"), format!("--regid={id}")])
            .args(["--clear-groups", "--inh-caps=-all", "--"])
            .arg(command::find(program).unwrap())
            .args(arguments)
            .stdin(Stdio::null());
        for variable in ["HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"] {
            wrapped.env(variable, work.path().join("home"));
        }
        wrapped.env("XDG_RUNTIME_DIR", work.path().join("run"));
        wrapped
    }

    fn try_virsh(&self, arguments: &[&str]) -> Answer {
        let connection = ["-q", "-c", "storage:///session"];
        run(Self::command(&self.work, "virsh", &connection).args(arguments))
    }

    #[track_caller]
    fn virsh(&self, arguments: &[&str]) -> String {
        let answer = self.try_virsh(arguments);
        assert_eq!(answer.code, Some(0), "{answer}");
        answer.stdout
    }

    fn pool(&self) -> PathBuf {
        self.work.path().join("pool")
    }

    /// `extant` by the same user.
    #[track_caller]
    fn extant(&self, arguments: &[&str]) -> Answer {
        let mut inner = extant();
        inner.args(arguments);
        let config = self.work.path().join("home");
        run(as_nobody(&inner, &self.work).env("XDG_CONFIG_HOME", config)).success()
    }
}

impl Drop for Libvirt {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.daemon);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.daemon.wait();
    }
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
    require!(root(), tool("libvirtd"), tool("virsh"), tool("setpriv"));
    let libvirt = Libvirt::start();
    let (pool, file) = (libvirt.pool(), |name: &str| libvirt.work.path().join(name));
    let shown = pool.to_str().unwrap();

    // Theirs: the pool, and a volume in it.
    libvirt.virsh(&["pool-create-as", "vms", "dir", "--target", shown]);
    libvirt.virsh(&["vol-create-as", "vms", "theirs", "3M", "--allocation", "1M"]);
    fs::write(file("pool.xml"), libvirt.virsh(&["pool-dumpxml", "vms"])).unwrap();
    libvirt.extant(&[
        "pool",
        "define",
        "--xml",
        file("pool.xml").to_str().unwrap(),
    ]);
    let info = libvirt.extant(&["vol", "info", "vms", "theirs", "--json"]);
    assert_eq!(info.number("/capacity_bytes"), 3 * MIB);

    // Ours, made of a description that libvirt wrote, in libvirt's eyes.
    let described = libvirt.virsh(&["vol-dumpxml", "theirs", "vms"]);
    let described = described
        .replace("theirs", "ours")
        .replace("</volume>", "<extra a='1'/></volume>")
        .replace("<mode>0600</mode>", "<mode>0640</mode>");
    fs::write(file("volume.xml"), &described).unwrap();
    libvirt.extant(&[
        "vol",
        "create",
        "vms",
        "--xml",
        file("volume.xml").to_str().unwrap(),
    ]);
    libvirt.extant(&["vol", "create", "vms", "full", "2MiB"]);
    assert_eq!(
        oracle::filefrag(&pool.join("full")).bytes(ExtentState::Written),
        2 * MIB
    );
    libvirt.virsh(&["pool-refresh", "vms"]);
    let list = libvirt.virsh(&["vol-list", "vms"]);
    let mut names: Vec<&str> = list
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    names.sort_unstable();
    // It shows folders as well, the pool's own among them.
    assert_eq!(names, [".extant", "full", "ours", "theirs"]);

    for name in ["full", "ours", "theirs"] {
        let theirs = libvirt.virsh(&["vol-dumpxml", name, "vms"]);
        let ours = libvirt
            .extant(&["vol", "info", "vms", name, "--xml"])
            .stdout;
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
    let ours = libvirt.extant(&["pool", "info", "vms", "--xml"]).stdout;
    let theirs = libvirt.virsh(&["pool-dumpxml", "vms"]);
    for path in [&["name"][..], &["uuid"], &["target", "path"]] {
        assert_eq!(text(&ours, path), text(&theirs, path), "{path:?}");
    }

    // And back: libvirt takes the descriptions that we write.
    libvirt.virsh(&["pool-destroy", "vms"]);
    fs::write(file("again.xml"), &ours).unwrap();
    libvirt.virsh(&["pool-create", file("again.xml").to_str().unwrap()]);
    let described = libvirt
        .extant(&["vol", "info", "vms", "full", "--xml"])
        .stdout;
    fs::write(file("again.xml"), described.replace("full", "again")).unwrap();
    libvirt.virsh(&["vol-create", "vms", file("again.xml").to_str().unwrap()]);
    let info = libvirt.extant(&["vol", "info", "vms", "again", "--json"]);
    assert_eq!(info.number("/capacity_bytes"), 2 * MIB);
}
