//! The commands, with the files before and after.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use extant_space::ExtentState;
use extant_testkit::{command, oracle};

use crate::support::{KIB, MIB, extant, names};

/// Whether the directory is as it should be, or what is not.
type Check = fn(&Path) -> Result<(), String>;

/// A command in a directory.
pub struct Scene {
    pub name: &'static str,
    pub prepare: fn(&Path),
    pub command: fn(&Path) -> Command,
    /// After success.
    pub done: Check,
    /// After an error.
    pub unchanged: Check,
}

pub const SCENES: &[Scene] = &[
    Scene {
        name: "create-full",
        prepare: |_| (),
        command: |dir| words(&["create"], dir, &["new"], &["1MiB"]),
        done: |dir| is_written(&dir.join("new"), MIB),
        unchanged: |dir| has_only(dir, &[]),
    },
    Scene {
        name: "create-falloc",
        prepare: |_| (),
        command: |dir| {
            let more = ["1MiB", "--preallocation", "falloc"];
            words(&["create"], dir, &["new"], &more)
        },
        done: |dir| has_space(&dir.join("new"), MIB, ExtentState::Unwritten),
        unchanged: |dir| has_only(dir, &[]),
    },
    Scene {
        name: "create-qcow2",
        prepare: |_| (),
        command: |dir| {
            let more = ["4MiB", "--preallocation", "full"];
            words(&["create"], dir, &["new.qcow2"], &more)
        },
        done: |dir| is_consistent(&dir.join("new.qcow2"), 4 * MIB),
        unchanged: |dir| has_only(dir, &[]),
    },
    Scene {
        name: "materialize",
        prepare: |dir| make_sparse(&dir.join("file")),
        command: |dir| words(&["materialize"], dir, &["file"], &[]),
        done: |dir| {
            is_content(&dir.join("file"))?;
            is_written(&dir.join("file"), MIB)
        },
        unchanged: |dir| {
            is_content(&dir.join("file"))?;
            has_only(dir, &["file"])
        },
    },
    Scene {
        name: "convert",
        prepare: |dir| make_sparse(&dir.join("disk.raw")),
        command: |dir| words(&["image", "convert"], dir, &["disk.raw", "disk.qcow2"], &[]),
        done: |dir| {
            is_content(&dir.join("disk.raw"))?;
            has_content(&dir.join("disk.qcow2"), &dir.join("disk.raw"))
        },
        unchanged: |dir| {
            is_content(&dir.join("disk.raw"))?;
            has_only(dir, &["disk.raw"])
        },
    },
    Scene {
        name: "image-resize",
        prepare: make_qcow2,
        command: |dir| words(&["image", "resize"], dir, &["disk.qcow2"], &["64MiB"]),
        done: |dir| {
            starts_with_content(&dir.join("disk.qcow2"))?;
            is_consistent(&dir.join("disk.qcow2"), 64 * MIB)
        },
        unchanged: |dir| {
            starts_with_content(&dir.join("disk.qcow2"))?;
            is_consistent(&dir.join("disk.qcow2"), MIB)
        },
    },
    Scene {
        name: "image-materialize",
        prepare: make_qcow2,
        command: |dir| words(&["image", "materialize"], dir, &["disk.qcow2"], &[]),
        done: |dir| {
            starts_with_content(&dir.join("disk.qcow2"))?;
            is_usable(&dir.join("disk.qcow2"))
        },
        unchanged: |dir| {
            starts_with_content(&dir.join("disk.qcow2"))?;
            is_usable(&dir.join("disk.qcow2"))
        },
    },
    Scene {
        name: "vol-create",
        prepare: |dir| make_pool(dir, false),
        command: |dir| words(&["vol", "create"], dir, &["pool"], &["new", "1MiB"]),
        done: |dir| {
            has_volumes(dir, &["new"])?;
            is_written(&dir.join("pool/new"), MIB)
        },
        unchanged: |dir| has_volumes(dir, &[]),
    },
    Scene {
        name: "vol-upload",
        prepare: |dir| {
            make_pool(dir, false);
            make_sparse(&dir.join("source"));
        },
        command: |dir| {
            words(
                &["vol", "upload"],
                dir,
                &["pool"],
                &["new", &at(dir, "source")],
            )
        },
        done: |dir| {
            has_volumes(dir, &["new"])?;
            is_content(&dir.join("pool/new"))
        },
        unchanged: |dir| has_volumes(dir, &[]),
    },
    Scene {
        name: "vol-download",
        prepare: |dir| make_pool(dir, true),
        command: |dir| {
            words(
                &["vol", "download"],
                dir,
                &["pool"],
                &["old", &at(dir, "target")],
            )
        },
        done: |dir| {
            has_volumes(dir, &["old"])?;
            is_content(&dir.join("target"))
        },
        unchanged: |dir| {
            is_content(&dir.join("pool/old"))?;
            has_only(dir, &["pool"])
        },
    },
    Scene {
        name: "vol-clone",
        prepare: |dir| make_pool(dir, true),
        command: |dir| words(&["vol", "clone"], dir, &["pool"], &["old", "new"]),
        done: |dir| {
            has_volumes(dir, &["new", "old"])?;
            is_content(&dir.join("pool/old"))?;
            is_content(&dir.join("pool/new"))
        },
        unchanged: |dir| {
            is_content(&dir.join("pool/old"))?;
            has_volumes(dir, &["old"])
        },
    },
    Scene {
        name: "vol-resize",
        prepare: |dir| make_pool(dir, true),
        command: |dir| words(&["vol", "resize"], dir, &["pool"], &["old", "2MiB"]),
        done: |dir| {
            same("bytes", size(&dir.join("pool/old")), 2 * MIB)?;
            starts_with_content_raw(&dir.join("pool/old"))
        },
        unchanged: |dir| is_content(&dir.join("pool/old")),
    },
    Scene {
        name: "vol-delete",
        prepare: |dir| make_pool(dir, true),
        command: |dir| words(&["vol", "delete"], dir, &["pool"], &["old"]),
        done: |dir| has_volumes(dir, &[]),
        unchanged: |dir| is_content(&dir.join("pool/old")),
    },
];

fn at(dir: &Path, name: &str) -> String {
    dir.join(name).display().to_string()
}

/// `extant` with a command, files of the directory, and further words.
fn words(command: &[&str], dir: &Path, files: &[&str], more: &[&str]) -> Command {
    let mut words = extant();
    words.args(command);
    words.args(files.iter().map(|name| dir.join(name)));
    words.args(more);
    words
}

/// Data, a hole, and data.
fn content() -> Vec<u8> {
    let mut content = vec![0; MIB as usize];
    content[..100 * KIB as usize].fill(1);
    content[900 * KIB as usize..].fill(2);
    content
}

fn make_sparse(path: &Path) {
    let content = content();
    let file = File::create(path).unwrap();
    file.set_len(MIB).unwrap();
    file.write_all_at(&content[..100 * KIB as usize], 0)
        .unwrap();
    let last = &content[900 * KIB as usize..];
    file.write_all_at(last, 900 * KIB).unwrap();
}

fn make_qcow2(dir: &Path) {
    make_sparse(&dir.join("disk.raw"));
    let mut convert = command::tool("qemu-img");
    convert.args(["convert", "-f", "raw", "-O", "qcow2"]);
    command::must(
        convert
            .arg(dir.join("disk.raw"))
            .arg(dir.join("disk.qcow2")),
    );
}

/// The pool `pool`, perhaps with the volume `old`.
fn make_pool(dir: &Path, has_volume: bool) {
    fs::create_dir(dir.join("pool")).unwrap();
    if has_volume {
        make_sparse(&dir.join("pool/old"));
    }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, seen: T, wanted: T) -> Result<(), String> {
    if seen == wanted {
        return Ok(());
    }
    Err(format!("{what}: {seen:?} for {wanted:?}"))
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}

fn has_only(dir: &Path, wanted: &[&str]) -> Result<(), String> {
    let seen: Vec<_> = names(dir)
        .into_iter()
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    same(
        "files",
        seen,
        wanted.iter().map(|&name| name.to_owned()).collect(),
    )
}

/// The volumes of the pool, and no unfinished file.
fn has_volumes(dir: &Path, wanted: &[&str]) -> Result<(), String> {
    let pool = dir.join("pool");
    let mut seen: Vec<_> = names(&pool)
        .into_iter()
        .map(|name| name.to_string_lossy().into_owned())
        .filter(|name| name != ".extant")
        .collect();
    let work = pool.join(".extant/work");
    if work.exists() {
        seen.extend(names(&work).iter().map(|name| format!("work {name:?}")));
    }
    same(
        "volumes",
        seen,
        wanted.iter().map(|&name| name.to_owned()).collect(),
    )
}

fn is_written(path: &Path, bytes: u64) -> Result<(), String> {
    has_space(path, bytes, ExtentState::Written)
}

fn has_space(path: &Path, bytes: u64, state: ExtentState) -> Result<(), String> {
    exists(path)?;
    same("size", size(path), bytes)?;
    same("space", oracle::filefrag(path).bytes(state), bytes)
}

fn exists(path: &Path) -> Result<(), String> {
    same("is there", path.exists(), true).map_err(|wrong| format!("{}: {wrong}", path.display()))
}

fn is_content(path: &Path) -> Result<(), String> {
    let seen = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    same("the content is kept", seen == content(), true)
}

fn starts_with_content_raw(path: &Path) -> Result<(), String> {
    let seen = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    same("the content is kept", seen.starts_with(&content()), true)
}

/// Of a qcow2 image, beside the raw one from which it was made.
fn starts_with_content(image: &Path) -> Result<(), String> {
    has_content(image, &image.with_extension("raw"))
}

/// The images have the same content; one may be longer by zeros.
fn has_content(image: &Path, raw: &Path) -> Result<(), String> {
    exists(image)?;
    let mut compare = command::tool("qemu-img");
    compare.args(["compare", "-F", "raw"]).arg(image).arg(raw);
    let compared = command::text(&mut compare);
    compared.map(drop).map_err(|failure| failure.to_string())
}

/// A qcow2 image whose tables have no error. Clusters that were counted before a failure, and not
/// used yet, stay leaked, as after a crash.
fn is_usable(image: &Path) -> Result<(), String> {
    const LEAKS: i32 = 3;
    let mut check = command::tool("qemu-img");
    let checked = command::run_any_status(check.arg("check").arg(image));
    let code = checked
        .map_err(|failure| failure.to_string())?
        .status
        .code();
    same("consistent", code == Some(0) || code == Some(LEAKS), true)
}

/// A qcow2 image of this size without an error or a leak.
fn is_consistent(image: &Path, bytes: u64) -> Result<(), String> {
    exists(image)?;
    let checked = command::text(command::tool("qemu-img").arg("check").arg(image));
    checked.map_err(|failure| failure.to_string())?;
    let mut info = command::tool("qemu-img");
    let info = command::text(info.args(["info", "--output=json"]).arg(image));
    let info: serde_json::Value =
        serde_json::from_str(&info.map_err(|failure| failure.to_string())?).unwrap();
    same("bytes", info["virtual-size"].as_u64(), Some(bytes))
}
