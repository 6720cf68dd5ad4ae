//! The damaged file systems of e2fsprogs' tests: `extant fs check` finds damage where e2fsck does,
//! and nothing after e2fsck's repair.
//!
//! The images are in the source package of Debian's e2fsprogs, which apt downloads.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::{Environment, command};
use crate::step;
use crate::workspace::Workspace;

/// Where the verdicts differ, and why.
const DIFFERENCES: &[(&str, &str)] = &[
    ("f_bad_gdt_csum", WITHOUT_STATUS),
    ("f_extent_too_deep", WITHOUT_STATUS),
    ("f_extra_journal", WITHOUT_STATUS),
    ("f_first_meta_bg_too_big", WITHOUT_STATUS),
    ("f_readonly_fsck", WITHOUT_STATUS),
    ("f_uninit_enable", WITHOUT_STATUS),
    (
        "f_zero_inode_size",
        "e2fsck reads a backup of the superblock",
    ),
    ("f_jnl_64bit", "e2fsck -n does not replay the journal"),
    ("f_orphan", ORPHANS),
    ("f_orphan_extents_inode", ORPHANS),
    ("f_orphan_indirect_inode", ORPHANS),
    ("f_quota", "the usage in quota files is not compared"),
];
/// Where something is found after the repair, and why.
const AFTER_REPAIR: &[(&str, &str)] = &[
    (
        "f_bad_disconnected_inode",
        "e2fsck ignores garbage in a reserved inode",
    ),
    (
        "f_bad_fname",
        "e2fsck leaves a flag of attribute values on a file",
    ),
    ("f_badtable", BAD_BLOCKS),
    ("f_bbinode", BAD_BLOCKS),
    ("f_big_sparse", "the kernel has a lower limit for the size"),
    (
        "f_ea_inode_self_ref",
        "the value has the wrong number of users",
    ),
    (
        "f_inlinedata_repair",
        "the value has the wrong number of users",
    ),
];
const WITHOUT_STATUS: &str = "e2fsck -n reports it with status 0";
const ORPHANS: &str = "orphans are no damage: the next opening for writing removes them";
const BAD_BLOCKS: &str = "the list of bad blocks has blocks of the inode table";
/// Longest check of an image, in seconds. e2fsck -n begins again and again with some.
const TIMEOUT: &str = "20";

/// The directory of the tests, downloaded once.
pub(super) fn tests(workspace: &Workspace) -> Result<PathBuf> {
    let directory = workspace.target_dir()?.join("suites/e2fsprogs");
    let tests = directory.join("tests");
    if tests.exists() {
        return Ok(tests);
    }
    step::heading("download the tests of e2fsprogs");
    fs::create_dir_all(directory.join("lists/partial"))?;
    let sources = directory.join("source.sources");
    fs::write(&sources, source_packages()?)?;
    for words in [&["update"][..], &["source", "--download-only", "e2fsprogs"]] {
        let mut apt = command("apt-get", &["-qq", "-o", "APT::Sandbox::User=root"]);
        apt.current_dir(&directory);
        for (option, path) in [
            ("Dir::Etc::sourcelist", sources.as_path()),
            ("Dir::Etc::sourceparts", Path::new("/dev/null")),
            ("Dir::State::lists", &directory.join("lists")),
        ] {
            apt.arg("-o").arg(format!("{option}={}", path.display()));
        }
        step::run(apt.args(words))?;
    }
    let archive = entries(&directory)?.into_iter().find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.contains(".orig.tar.") && !name.ends_with(".asc")
    });
    let mut tar = command("tar", &["--strip-components=1", "--wildcards"]);
    tar.arg("--directory").arg(&directory);
    tar.arg("--extract").arg("--file");
    tar.arg(archive.context("apt-get has downloaded no archive")?);
    step::run(tar.arg("*/tests/f_*"))?;
    Ok(tests)
}

/// The machine's sources of packages, for source packages.
fn source_packages() -> Result<String> {
    let mut found = String::new();
    for path in entries(Path::new("/etc/apt/sources.list.d"))? {
        if path
            .extension()
            .is_some_and(|extension| extension == "sources")
        {
            found += &fs::read_to_string(&path)?.replace("Types: deb\n", "Types: deb-src\n");
            found.push('\n');
        }
    }
    Ok(found)
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    paths.sort();
    Ok(paths)
}

/// Compares the verdicts of all images.
pub(super) fn run(environment: &Environment, tests: &Path) -> Result<()> {
    let (mut count, mut wrong) = (BTreeMap::new(), Vec::new());
    for test in entries(tests)? {
        let packed = test.join("image.gz");
        if !packed.exists() {
            continue;
        }
        let name = test.file_name().unwrap_or_default().to_string_lossy();
        let image = environment.directory.join("damaged");
        let unpacked = fs::File::create(&image)?;
        step::run(command("gunzip", &["-c"]).arg(&packed).stdout(unpacked))?;
        let (theirs, ours) = (e2fsck(&image)?, check(environment, &image)?);
        *count.entry((theirs, ours)).or_insert(0) += 1;
        let is_same = ours == Verdict::Refused || ours == theirs;
        note(
            &mut wrong,
            &name,
            is_same,
            DIFFERENCES,
            "e2fsck and extant differ",
        );
        // A repair may need a second run.
        e2fsck_status(&image, "-fy")?;
        if e2fsck_status(&image, "-fy")? == 0 {
            let is_clean = check(environment, &image)? != Verdict::Damaged;
            note(
                &mut wrong,
                &name,
                is_clean,
                AFTER_REPAIR,
                "damaged after e2fsck's repair",
            );
        }
    }
    for ((theirs, ours), images) in count {
        eprintln!("e2fsck {theirs:?}, extant {ours:?}: {images} images");
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Notes a result that is neither right nor known, or known and right by now.
fn note(wrong: &mut Vec<String>, name: &str, is_right: bool, known: &[(&str, &str)], what: &str) {
    match (is_right, known.iter().find(|(known, _)| *known == name)) {
        (false, None) => wrong.push(format!("{name}: {what}")),
        (true, Some((_, reason))) => wrong.push(format!("{name} is right now, listed: {reason}")),
        (true, None) | (false, Some(_)) => {}
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Clean,
    Damaged,
    Refused,
}

fn check(environment: &Environment, image: &Path) -> Result<Verdict> {
    let mut check = command("timeout", &[TIMEOUT]);
    check.arg(&environment.extant).args(["fs", "check"]);
    match status(check.arg(image))? {
        0 => Ok(Verdict::Clean),
        4 => Ok(Verdict::Damaged),
        8 => Ok(Verdict::Refused),
        other => bail!("extant fs check {}: status {other}", image.display()),
    }
}

/// A file system that e2fsck cannot open is damaged.
fn e2fsck(image: &Path) -> Result<Verdict> {
    Ok(match e2fsck_status(image, "-fn")? {
        0..4 => Verdict::Clean,
        _ => Verdict::Damaged,
    })
}

fn e2fsck_status(image: &Path, mode: &str) -> Result<i32> {
    status(command("timeout", &[TIMEOUT, "e2fsck", mode]).arg(image))
}

fn status(command: &mut Command) -> Result<i32> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let status = command.stderr(Stdio::null()).status()?;
    status.code().context("ended by a signal")
}
