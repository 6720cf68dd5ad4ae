//! Output of a script in the guest, by the marks that it printed.

use std::fs::{self, File};
use std::time::Duration;

use extant_testkit::guest::{Bus, Disk, Guest, Options, Output};
use extant_testkit::oracle;
use extant_testkit::workdir::Workdir;
use serde_json::Value;

/// For the longest script on a machine that is busy with others.
const TIMEOUT: Duration = Duration::from_secs(900);

/// Start of every script.
const HEAD: &str = r#"#!/bin/bash
export PATH=/host:$PATH
mark() { printf '\n### %s\n' "$1"; }
trap 'mark "failed: $BASH_COMMAND"; exit 1' ERR
mkfs.ext4 -q /dev/disk0
mount /dev/disk0 /mnt
"#;

/// Output of the guest, by mark.
pub struct Sections(Output);

impl Sections {
    /// Boots a guest with a disk of `disk_bytes` on `bus` and runs `script` in it.
    #[track_caller]
    pub fn of(bus: Bus, disk_bytes: u64, script: &str) -> Self {
        let work = Workdir::new();
        let shared = work.directory("shared");
        fs::copy(env!("CARGO_BIN_EXE_extant"), shared.join("extant")).unwrap();
        let disk = work.path().join("disk");
        File::create(&disk).unwrap().set_len(disk_bytes).unwrap();
        let options = Options {
            disks: vec![Disk {
                file: disk.clone(),
                bus,
            }],
            shared: Some(shared),
            timeout: TIMEOUT,
            ..Options::default()
        };
        let script = format!("{HEAD}{script}\nmark end\numount /mnt\n");
        let output = Guest::run(&script, &options);
        assert_eq!(output.status, 0, "{}", output.text);
        oracle::assert_e2fsck_clean(&disk);
        Self(output)
    }

    /// Output after `mark NAME`.
    #[track_caller]
    pub fn get(&self, name: &str) -> &str {
        self.0
            .section(name)
            .unwrap_or_else(|| panic!("no section {name} in\n{}", self.text()))
    }

    /// All of it.
    pub fn text(&self) -> &str {
        &self.0.text
    }

    #[track_caller]
    pub fn json(&self, name: &str) -> Value {
        let text = self.get(name);
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {name}:\n{text}"))
    }

    /// filefrag of a file whose space is written throughout.
    #[track_caller]
    pub fn assert_written(&self, name: &str) {
        let map = self.get(name);
        assert!(map.contains("extent"), "{map}");
        assert!(map.contains("last,eof"), "{map}");
        assert!(!map.contains("unwritten"), "{map}");
    }
}
