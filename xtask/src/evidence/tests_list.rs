//! How many tests there are on each level, as the built test programs list them.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::provenance;
use crate::step;
use crate::workspace::Workspace;

/// Test programs of a level: package, and targets; no target for all of the package that no
/// earlier line names.
const LEVELS: &[(&str, &str, &[&str])] = &[
    ("model", "extant-ext4", &["model"]),
    ("model", "extant-mballoc", &[]),
    ("model", "extant-blockdev", &["host_model", "memory"]),
    ("power loss", "extant-ext4", &["power", "fast_commit"]),
    (
        "power loss",
        "extant-blockdev",
        &[
            "simulation_crash",
            "simulation_faults",
            "simulation_journal",
            "simulation_samples",
        ],
    ),
    ("power loss", "extant-jbd2", &["journal"]),
    ("power loss", "extant-image", &["device", "power_cut"]),
    ("power loss", "extant", &["simulation"]),
    ("cancel and kill", "extant", &["interrupt"]),
    ("cancel and kill", "extant-hostfs", &["cancel"]),
    ("cancel and kill", "extant-mount", &["stress"]),
    ("trouble and corruption", "extant-ext4", &["trouble"]),
    ("trouble and corruption", "extant", &["trouble", "failing"]),
    ("trouble and corruption", "extant-fsck", &[]),
    ("trouble and corruption", "extant-image", &["hostile"]),
    ("trouble and corruption", "extant-ondisk", &["hostile"]),
    ("trouble and corruption", "extant-fuzz", &[]),
    (
        "other implementations",
        "extant-ext4",
        &["kernel", "inspect"],
    ),
    ("other implementations", "extant-jbd2", &["oracle"]),
    ("other implementations", "extant-image", &["qemu", "stack"]),
    ("other implementations", "extant-ondisk", &[]),
    ("real file systems", "extant-hostfs", &[]),
    ("real file systems", "extant-blockdev", &[]),
    ("engine", "extant-ext4", &[]),
    ("mounts", "extant-mount", &[]),
    ("mounts", "extant-fuse", &[]),
    ("pools", "extant-pool", &[]),
    ("pools", "extant", &["pool"]),
    ("pools", "extant-libvirt", &[]),
    ("servers and clients", "extant-export", &[]),
    ("servers and clients", "extant-nbd", &[]),
    ("servers and clients", "extant-vhost", &[]),
    ("servers and clients", "extant-rbd", &[]),
    ("product", "extant", &[]),
    ("product", "extant-capi", &[]),
    ("rules", "xtask", &[]),
];

/// Counts of a level.
#[derive(Default)]
struct Level {
    programs: u64,
    tests: u64,
}

/// Builds all test programs and counts their tests.
pub fn collect(workspace: &Workspace) -> Result<Value> {
    let commit = provenance::commit(workspace)?;
    // Before the long build.
    provenance::check(workspace.root(), &commit)?;
    let args = ["test", "--workspace", "--no-run", "--message-format=json"];
    let messages = step::output(&mut workspace.cargo(&args))?;
    let mut levels: BTreeMap<&str, Level> = BTreeMap::new();
    for line in messages.lines() {
        let message: Value = serde_json::from_str(line).context("a message of cargo")?;
        let Some(program) = message["executable"].as_str() else {
            continue;
        };
        if message["profile"]["test"] != true {
            continue;
        }
        let target = &message["target"];
        let is_unit = target["kind"][0] != "test";
        let package = package_of(&message).context("a test program without a package")?;
        let name = target["name"].as_str().unwrap_or_default();
        let level = levels.entry(level_of(&package, name, is_unit)).or_default();
        level.programs += 1;
        level.tests += count(program, workspace)?;
    }
    let rows: Vec<_> = levels
        .iter()
        .map(|(name, level)| json!({ "level": name, "programs": level.programs, "tests": level.tests }))
        .collect();
    Ok(json!({ "levels": rows, "commit": commit, "date": provenance::today() }))
}

/// From `path+file:///…/crates/ext4#extant-ext4@0.1.0`, or `…/xtask#0.1.0`.
fn package_of(message: &Value) -> Option<String> {
    let (path, rest) = message["package_id"].as_str()?.split_once('#')?;
    let name = match rest.split_once('@') {
        Some((name, _)) => name,
        None => path.rsplit('/').next()?,
    };
    Some(name.to_owned())
}

fn level_of(package: &str, target: &str, is_unit: bool) -> &'static str {
    if package == "xtask" {
        return "rules";
    }
    if is_unit {
        return "unit";
    }
    let fits = |(_, of, targets): &&(&str, &str, &[&str])| {
        *of == package && (targets.is_empty() || targets.contains(&target))
    };
    LEVELS
        .iter()
        .find(fits)
        .map_or("others", |(level, ..)| level)
}

fn count(program: &str, workspace: &Workspace) -> Result<u64> {
    let mut list = Command::new(program);
    list.args(["--list", "--format", "terse"])
        .current_dir(workspace.root());
    let text = step::output(&mut list)?;
    Ok(text.lines().filter(|line| line.ends_with(": test")).count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_belongs_to_the_first_level_that_names_it() {
        assert_eq!(level_of("extant-ext4", "power", false), "power loss");
        assert_eq!(level_of("extant-ext4", "engine", false), "engine");
        assert_eq!(level_of("extant-ext4", "extant_ext4", true), "unit");
        assert_eq!(level_of("extant", "serve", false), "product");
        assert_eq!(level_of("xtask", "xtask", true), "rules");
        assert_eq!(level_of("unknown", "a", false), "others");
    }

    #[test]
    fn package_is_in_the_identifier() {
        for id in [
            "path+file:///x/crates/ext4#extant-ext4@0.1.0",
            "path+file:///x/extant-ext4#0.1.0",
        ] {
            let message = json!({ "package_id": id });
            assert_eq!(package_of(&message).as_deref(), Some("extant-ext4"));
        }
    }
}
