//! The playbook for Ansible, on this machine.

use std::path::{Path, PathBuf};

use extant_testkit::command::{self, must, tool};
use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::{require, requires};
use serde_json::{Value, json};

use crate::support::{extant, run};
use crate::{contrib, programs};

struct Host {
    scratch: Scratch,
}

impl Host {
    fn new() -> Self {
        Self {
            scratch: Scratch::new(Filesystem::Ext4, 256 << 20),
        }
    }

    fn pool(&self) -> PathBuf {
        self.scratch.path().join("vms")
    }

    /// Runs the playbook with these volumes; the number of tasks that changed something.
    #[track_caller]
    fn play(&self, volumes: Value, more: &[&str]) -> Result<u64, String> {
        self.play_with(programs(), volumes, more)
    }

    /// The same, with the programs of a directory before others.
    #[track_caller]
    fn play_with(&self, first: &Path, volumes: Value, more: &[&str]) -> Result<u64, String> {
        let path = std::env::var("PATH").unwrap();
        let path = format!("{}:{path}", first.display());
        let variables = json!({
            "program": programs().join("extant"),
            "config_dir": self.scratch.path().join("definitions"),
            "pool_path": self.pool(),
            "volumes": volumes,
        });
        let mut play = tool("ansible-playbook");
        play.args(["-i", "localhost,", "-c", "local", "-e"])
            .arg(variables.to_string())
            .args(["-e", "ansible_python_interpreter=/usr/bin/python3"])
            .arg(contrib("ansible/site.yml"))
            .args(more)
            .env("ANSIBLE_LOCALHOST_WARNING", "false")
            .env("ANSIBLE_HOME", self.scratch.path().join("ansible"))
            .env("ANSIBLE_LOCAL_TEMP", self.scratch.path().join("ansible"))
            .env("LC_ALL", "C.UTF-8")
            .env("PATH", path);
        let output = command::run_any_status(&mut play).unwrap();
        let shown = command::describe(&output);
        if !output.status.success() {
            return Err(shown);
        }
        // `localhost : ok=3 changed=2 unreachable=0 ...`
        let mut words = shown.split_whitespace().rev();
        let changed = words.find_map(|word| word.strip_prefix("changed="));
        Ok(changed.expect(&shown).parse().expect(&shown))
    }

    #[track_caller]
    fn volume(&self, name: &str) -> Value {
        run(extant()
            .args(["vol", "info"])
            .arg(self.pool())
            .args([name, "--json"]))
        .success()
        .json()
    }
}

#[test]
fn playbook_makes_what_is_missing_and_changes_nothing_the_second_time() {
    require!(
        requires::tool("ansible-playbook"),
        Filesystem::Ext4.requirement()
    );
    let host = Host::new();
    let volumes = json!([
        { "name": "db.raw", "capacity": "16MiB", "preallocation": "full" },
        { "name": "web.qcow2", "capacity": "8388608" },
    ]);
    // Tasks: the pool, and its volumes.
    assert_eq!(host.play(volumes.clone(), &["--check"]), Ok(2));
    assert!(!host.pool().exists());
    assert_eq!(host.play(volumes.clone(), &[]), Ok(2));
    assert_eq!(host.play(volumes.clone(), &[]), Ok(0));
    assert_eq!(host.volume("db.raw")["written_bytes"], 16 << 20);
    assert_eq!(host.volume("web.qcow2")["format"], "qcow2");

    let larger = json!([{ "name": "db.raw", "capacity": "32MiB" }]);
    assert_eq!(host.play(larger.clone(), &["--check"]), Ok(1));
    assert_eq!(host.volume("db.raw")["capacity_bytes"], 16 << 20);
    assert_eq!(host.play(larger, &[]), Ok(1));
    assert_eq!(host.volume("db.raw")["written_bytes"], 32 << 20);
    let smaller = json!([{ "name": "db.raw", "capacity": "16MiB" }]);
    let error = host.play(smaller, &[]).unwrap_err();
    assert!(error.contains("never shrinks"), "{error}");
    assert_eq!(host.volume("db.raw")["capacity_bytes"], 32 << 20);
}

#[test]
fn playbook_writes_a_sparse_volume_and_removes_a_retired_one() {
    require!(
        requires::tool("ansible-playbook"),
        Filesystem::Ext4.requirement()
    );
    let host = Host::new();
    for name in ["db.raw", "old.raw"] {
        let more = [name, "8MiB", "--preallocation", "off"];
        std::fs::create_dir_all(host.pool()).unwrap();
        must(extant().args(["vol", "create"]).arg(host.pool()).args(more));
    }
    let volumes = json!([{ "name": "db.raw", "capacity": "8MiB", "preallocation": "full" }]);
    assert_eq!(host.play(volumes.clone(), &[]), Ok(3));
    assert_eq!(host.volume("db.raw")["written_bytes"], 8 << 20);
    assert!(!host.pool().join("old.raw").exists());
    assert_eq!(host.play(volumes, &[]), Ok(0));
}

#[test]
fn rounded_capacity_and_other_spelling_of_the_path_change_nothing() {
    require!(
        requires::tool("ansible-playbook"),
        Filesystem::Ext4.requirement()
    );
    let host = Host::new();
    let volumes =
        |capacity: u64| json!([{ "name": "web.qcow2", "capacity": capacity.to_string() }]);
    let capacity = (8 << 20) + 1;
    assert_eq!(host.play(volumes(capacity), &[]), Ok(2));
    let rounded = host.volume("web.qcow2")["capacity_bytes"].as_u64().unwrap();
    assert_eq!(rounded, (8 << 20) + 512);
    assert_eq!(host.play(volumes(capacity), &[]), Ok(0));
    let spelled = format!("pool_path={}/../vms/", host.pool().display());
    assert_eq!(host.play(volumes(capacity), &["-e", &spelled]), Ok(0));
    let error = host.play(volumes(rounded - 512), &[]).unwrap_err();
    assert!(error.contains("never shrinks"), "{error}");
    let elsewhere = format!("pool_path={}/other", host.pool().display());
    let error = host.play(volumes(capacity), &["-e", &elsewhere]);
    assert!(error.unwrap_err().contains("is defined already"));
}

/// A stand-in for `extant` and `lvm`, with a raw volume of 16 MiB in a pool of this kind.
const PROGRAM: &str = r#"#!/bin/sh
case "$1 $2" in
"vgs --noheadings") echo "  4194304" ;;
"pool list") echo '{"pools": [{"name": "vms", "path": "/dev/vms"}]}' ;;
"pool info") echo '{"kind": "KIND", "path": "vms"}' ;;
"vol info") [ "$4" = old.raw ] || echo '{"format": "raw", "capacity_bytes": 16777216, "written_bytes": 0}' ;;
esac
[ "$4" != old.raw ] || { echo '{"kind": "not-found"}' >&2; exit 1; }
"#;

#[test]
fn capacity_may_differ_by_the_alignment_of_disks_and_the_extent_of_lvm() {
    require!(
        requires::tool("ansible-playbook"),
        Filesystem::Ext4.requirement()
    );
    let host = Host::new();
    for (kind, unit) in [("dir", 1), ("disk", 1 << 20), ("lvm", 4 << 20)] {
        let programs = host.scratch.path().join(kind);
        std::fs::create_dir(&programs).unwrap();
        for name in ["extant", "lvm"] {
            let program = programs.join(name);
            std::fs::write(&program, PROGRAM.replace("KIND", kind)).unwrap();
            let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(&program, executable).unwrap();
        }
        let play = |capacity: u64| {
            let volumes = json!([{ "name": "db.raw", "capacity": capacity.to_string() }]);
            let program = format!("program={}", programs.join("extant").display());
            let words = ["-e", &program, "-e", "pool_path=/dev/vms"];
            host.play_with(&programs, volumes, &words)
        };
        let capacity: u64 = 16 << 20;
        assert_eq!(play(capacity), Ok(0), "{kind}");
        assert_eq!(play(capacity - unit + 1), Ok(0), "{kind}");
        let error = play(capacity - unit).unwrap_err();
        assert!(error.contains("never shrinks"), "{kind}: {error}");
    }
}
