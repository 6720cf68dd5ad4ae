//! A container image of the static program, without a registry.
//!
//! umoci writes the layout, with the times of the last commit: the same program makes the same
//! image. The image holds the program, its licences and an empty `/tmp`; the program is the entry
//! point. skopeo, another implementation, then reads the archive, checks its digests and unpacks
//! it, and the program runs in what was unpacked.
//!
//! `target/dist-image` then holds `extant-VERSION-ARCH.oci.tar`.

use std::env::consts::ARCH;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::workspace::Workspace;
use crate::{notices, reproducible, setup, static_program, step};

const TOOLS: [&str; 3] = ["skopeo", "tar", "umoci"];
const ENTRY_POINT: &str = "/usr/bin/extant";
const LICENCE_DIRECTORY: &str = "usr/share/doc/extant";
const VERSION: &str = env!("CARGO_PKG_VERSION");
const LABELS: [(&str, &str); 4] = [
    ("title", "extant"),
    (
        "description",
        "Preallocate files, disk images and volumes as written zeros",
    ),
    ("licenses", "MIT OR Apache-2.0"),
    ("version", VERSION),
];

/// Where the image is.
pub fn directory(workspace: &Workspace) -> Result<PathBuf> {
    Ok(workspace.target_dir()?.join("dist-image"))
}

/// Builds the static program, writes the image and checks it.
pub fn write(workspace: &Workspace) -> Result<()> {
    setup::packages(&TOOLS)?;
    let program = static_program::build(workspace)?;
    let directory = directory(workspace)?;
    step::heading(&format!("write {}", directory.display()));
    if directory.exists() {
        fs::remove_dir_all(&directory)
            .with_context(|| format!("{}: cannot empty", directory.display()))?;
    }
    fs::create_dir_all(&directory)?;
    let epoch = reproducible::epoch(workspace)?;

    let work = tempfile::tempdir_in(&directory)?;
    let content = work.path().join("content");
    fill(workspace, &program, &content)?;
    let layer = work.path().join("layer.tar");
    step::run(&mut archive(&content, &layer, &epoch))?;
    let layout = work.path().join("layout");
    write_layout(&layout, &layer, &epoch)?;
    let image = directory.join(format!("extant-{VERSION}-{ARCH}.oci.tar"));
    step::run(&mut archive(&layout, &image, &epoch))?;
    check(&image, work.path())
}

/// The files of the image.
fn fill(workspace: &Workspace, program: &Path, content: &Path) -> Result<()> {
    let licences = content.join(LICENCE_DIRECTORY);
    for directory in [&licences, &content.join("usr/bin"), &content.join("tmp")] {
        fs::create_dir_all(directory)?;
    }
    fs::set_permissions(content.join("tmp"), Permissions::from_mode(0o1777))?;
    let entry = content.join(&ENTRY_POINT[1..]);
    fs::copy(program, &entry).with_context(|| format!("{}: cannot copy", program.display()))?;
    fs::set_permissions(&entry, Permissions::from_mode(0o755))?;
    notices::write_all(workspace, &licences)?;
    Ok(())
}

/// tar of a directory, the same for the same files.
fn archive(directory: &Path, to: &Path, epoch: &str) -> Command {
    let mut tar = Command::new("tar");
    tar.args([
        "--format=gnu",
        "--sort=name",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
    ]);
    tar.arg(format!("--mtime=@{epoch}"))
        .arg("--directory")
        .arg(directory);
    tar.arg("--create").arg("--file").arg(to).arg(".");
    tar
}

fn write_layout(layout: &Path, layer: &Path, epoch: &str) -> Result<()> {
    let mut date = Command::new("date");
    date.args([
        "--utc",
        "--date",
        &format!("@{epoch}"),
        "+%Y-%m-%dT%H:%M:%SZ",
    ]);
    let created = step::output(&mut date)?.trim().to_owned();
    let image = format!("{}:extant:{VERSION}", layout.display());
    let umoci = |words: &[&str]| {
        let mut umoci = Command::new("umoci");
        umoci.args(words);
        umoci
    };
    step::run_quietly(umoci(&["init", "--layout"]).arg(layout))?;
    step::run_quietly(&mut umoci(&["new", "--image", &image]))?;
    let mut add = umoci(&["raw", "add-layer", "--image", &image]);
    add.args(["--history.created", &created]);
    add.args(["--history.created_by", "cargo xtask dist image"]);
    step::run_quietly(add.arg(layer))?;
    let mut config = umoci(&["config", "--image", &image, "--no-history"]);
    config.args(["--created", &created, "--os", "linux"]);
    config.args(["--architecture", architecture()]);
    config.args([
        "--config.entrypoint",
        ENTRY_POINT,
        "--config.workingdir",
        "/",
    ]);
    for (name, value) in LABELS {
        config.arg("--config.label");
        config.arg(format!("org.opencontainers.image.{name}={value}"));
    }
    step::run_quietly(&mut config)?;
    step::run_quietly(umoci(&["gc", "--layout"]).arg(layout))
}

/// The processor in the terms of images.
fn architecture() -> &'static str {
    match ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Reads and unpacks the image, and runs the program in it.
fn check(image: &Path, work: &Path) -> Result<()> {
    step::heading("read the image with skopeo, and run it");
    let name = format!("oci-archive:{}", image.display());
    let mut skopeo = Command::new("skopeo");
    let config: Value =
        serde_json::from_str(&step::output(skopeo.args(["inspect", "--config", &name]))?)?;
    let config = (
        &config["os"],
        &config["architecture"],
        &config["config"]["Entrypoint"],
    );
    ensure!(
        config
            == (
                &"linux".into(),
                &architecture().into(),
                &Value::from(vec![ENTRY_POINT])
            ),
        "{}: {config:?}",
        image.display()
    );

    let copy = work.join("copy");
    // A blob that differs from its digest is an error.
    let mut skopeo = Command::new("skopeo");
    skopeo.args(["copy", "--quiet", "--insecure-policy", &name]);
    step::run(skopeo.arg(format!("dir:{}", copy.display())))?;
    let manifest: Value = serde_json::from_slice(&fs::read(copy.join("manifest.json"))?)?;
    let root = work.join("root");
    fs::create_dir(&root)?;
    let layers = manifest["layers"]
        .as_array()
        .context("an image without layers")?;
    for layer in layers {
        let digest = layer["digest"]
            .as_str()
            .context("a layer without a digest")?;
        let blob = copy.join(digest.trim_start_matches("sha256:"));
        let mut tar = Command::new("tar");
        step::run(tar.arg("-xzf").arg(blob).arg("-C").arg(&root))?;
    }
    let said = step::output(
        Command::new("chroot")
            .arg(&root)
            .args([ENTRY_POINT, "--version"]),
    )?;
    ensure!(
        said.starts_with(&format!("extant {VERSION}")),
        "{}: its program says {said}",
        image.display()
    );
    let mut create = Command::new("chroot");
    create
        .arg(&root)
        .args([ENTRY_POINT, "create", "--quiet", "/tmp/a", "1MiB"]);
    step::run(&mut create)?;
    let made = fs::metadata(root.join("tmp/a"))?.len();
    ensure!(
        made == 1 << 20,
        "the program in the image made {made} bytes"
    );
    Ok(())
}
