//! The playbook for Ansible, on this machine.

use std::path::PathBuf;

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
            .env("LC_ALL", "C.UTF-8");
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
