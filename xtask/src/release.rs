//! `cargo xtask release`: one directory with everything of a version, its checksums and their
//! signature.
//!
//! `target/dist-release` then holds the static program with its bill of materials, the licences,
//! the packages, the image, the wheel where one was made, the version's section of the changelog,
//! `SHA256SUMS` of all of them, and `SHA256SUMS.sig`, which `ssh-keygen -Y verify` checks. A dry
//! run takes the section "Unreleased" where the version has none yet, and needs no key. Otherwise
//! the tree must be clean, and the commit gets the tag `vVERSION`. Nothing is sent anywhere.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::delivery::{self, Options};
use crate::dist::Build;
use crate::workspace::Workspace;
use crate::{notices, setup, static_program, step};

/// Directories below target, and ends of the names of what is taken from them.
const SOURCES: [(&str, &[&str]); 4] = [
    (
        "dist-static",
        &[
            "linux",
            ".cdx.json",
            notices::OWN[0],
            notices::OWN[1],
            notices::FILE,
        ],
    ),
    ("dist-packages", &[".deb", ".rpm"]),
    ("dist-image", &[".oci.tar"]),
    ("dist-wheel", &[".whl"]),
];
const NOTES: &str = "CHANGES.md";
const SUMS: &str = "SHA256SUMS";
/// The purpose of the signature, as ssh-keygen requires it.
const NAMESPACE: &str = "extant-release";
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How a release is made.
#[derive(Clone, Debug)]
pub struct Release {
    /// No tag, and no requirements on tree, changelog and key.
    pub dry_run: bool,
    /// A private key of ssh.
    pub key: Option<PathBuf>,
}

/// Builds everything of this version, and collects and signs it.
pub fn run(workspace: &Workspace, release: &Release) -> Result<()> {
    let changelog = fs::read_to_string(workspace.root().join("CHANGELOG.md"))?;
    let notes = match section(&changelog, VERSION) {
        Some(notes) => notes,
        None if release.dry_run => {
            section(&changelog, "Unreleased").context("CHANGELOG.md has no section Unreleased")?
        }
        None => bail!("CHANGELOG.md has no section {VERSION}"),
    };
    if !release.dry_run {
        ensure!(release.key.is_some(), "a release is signed: --key FILE");
        let changed = git(workspace, &["status", "--porcelain"])?;
        ensure!(
            changed.is_empty(),
            "there are changes without a commit:\n{changed}"
        );
    }
    if release.key.is_some() {
        setup::packages(&["openssh-client"])?;
    }

    let options = Options {
        build: Build::Dist,
        check: false,
    };
    // `files` is for installation from the source.
    let parts = delivery::names().filter(|&name| name != "files");
    let parts: Vec<_> = parts.map(str::to_owned).collect();
    delivery::run(workspace, &parts, options)?;
    let target = workspace.target_dir()?;
    let directory = target.join("dist-release");
    step::heading(&format!("write {}", directory.display()));
    let names = collect(&target, &directory, notes)?;
    finish(&directory, &names, release.key.as_deref())?;
    if !release.dry_run {
        let tag = format!("v{VERSION}");
        let message = format!("Extant {VERSION}\n\n{notes}");
        git(
            workspace,
            &[
                "tag",
                "--annotate",
                "--cleanup=verbatim",
                "--message",
                &message,
                &tag,
            ],
        )?;
        eprintln!("tagged {tag}; it is not pushed");
    }
    for name in names {
        eprintln!("  {name}");
    }
    Ok(())
}

fn git(workspace: &Workspace, words: &[&str]) -> Result<String> {
    step::output(
        Command::new("git")
            .args(words)
            .current_dir(workspace.root()),
    )
}

/// The text of a section of a changelog whose heading starts with a version, as in
/// `## 0.1.0 (2030-01-31)` or `## [0.1.0]`.
fn section<'a>(changelog: &'a str, version: &str) -> Option<&'a str> {
    changelog.split("\n## ").skip(1).find_map(|section| {
        let (heading, text) = section.split_once('\n')?;
        let name = heading.split([' ', ']']).next()?.trim_start_matches('[');
        (name == version).then_some(text.trim())
    })
}

/// Copies all parts and writes the notes; the names of the files.
fn collect(target: &Path, directory: &Path, notes: &str) -> Result<Vec<String>> {
    if directory.exists() {
        fs::remove_dir_all(directory)
            .with_context(|| format!("{}: cannot empty", directory.display()))?;
    }
    fs::create_dir_all(directory)?;
    fs::write(directory.join(NOTES), format!("{notes}\n"))?;
    let mut names = vec![NOTES.to_owned()];
    for (source, ends) in SOURCES {
        let source = target.join(source);
        if !source.exists() {
            eprintln!("without {}", source.display());
            continue;
        }
        for entry in fs::read_dir(&source)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if ends.iter().any(|end| name.ends_with(end)) {
                fs::copy(source.join(&name), directory.join(&name))
                    .with_context(|| format!("{}: cannot copy {name}", source.display()))?;
                names.push(name);
            }
        }
    }
    names.sort();
    Ok(names)
}

/// Writes the checksums and signs them.
fn finish(directory: &Path, names: &[String], key: Option<&Path>) -> Result<()> {
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    static_program::write_sums(directory, &names)?;
    let Some(key) = key else {
        eprintln!("not signed: no --key");
        return Ok(());
    };
    let mut sign = Command::new("ssh-keygen");
    sign.args(["-q", "-Y", "sign", "-n", NAMESPACE, "-f"])
        .arg(key);
    step::run(sign.arg(directory.join(SUMS)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn section_of_a_version_ends_before_the_next() {
        let changelog = "# Changelog\n\n## Unreleased\n\nnew\n\n## [0.1.0] - 2030\n\n### Added\n\nold\n\n## 0.0.1\n\nx\n";
        assert_eq!(section(changelog, "Unreleased"), Some("new"));
        assert_eq!(section(changelog, "0.1.0"), Some("### Added\n\nold"));
        assert_eq!(section(changelog, "0.0.1"), Some("x"));
        assert_eq!(section(changelog, "0.1"), None);
    }

    fn ssh_keygen(words: &[&str]) -> Command {
        let mut command = Command::new("ssh-keygen");
        command.args(words);
        command
    }

    #[test]
    fn release_is_complete_and_its_signature_fails_for_other_sums() {
        let place = tempfile::tempdir().unwrap();
        let target = place.path();
        for (source, name) in [
            ("dist-static", "extant-1-x86_64-linux"),
            ("dist-static", "LICENSE-APACHE"),
            ("dist-static", "LICENSE-MIT"),
            ("dist-static", "LICENSES-THIRD-PARTY"),
            ("dist-static", "SHA256SUMS"),
            ("dist-packages", "extant_1_amd64.deb"),
            ("dist-image", "extant-1.oci.tar"),
        ] {
            fs::create_dir_all(target.join(source)).unwrap();
            fs::write(target.join(source).join(name), name).unwrap();
        }
        let release = target.join("dist-release");
        let names = collect(target, &release, "news").unwrap();
        let expected = [
            "CHANGES.md",
            "LICENSE-APACHE",
            "LICENSE-MIT",
            "LICENSES-THIRD-PARTY",
            "extant-1-x86_64-linux",
            "extant-1.oci.tar",
            "extant_1_amd64.deb",
        ];
        assert_eq!(names, expected);

        let key = target.join("key");
        let made = ssh_keygen(&["-q", "-t", "ed25519", "-N", "", "-f"])
            .arg(&key)
            .status();
        match made {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                assert!(
                    std::env::var_os("EXTANT_TEST_STRICT").is_none(),
                    "no ssh-keygen"
                );
                eprintln!("skipped: ssh-keygen is not installed");
                return;
            }
            made => assert!(made.unwrap().success()),
        }
        finish(&release, &names, Some(&key)).unwrap();
        let mut sums = Command::new("sha256sum");
        sums.args(["--check", "--strict", SUMS])
            .current_dir(&release);
        step::run_quietly(&mut sums).unwrap();

        let public = fs::read_to_string(key.with_extension("pub")).unwrap();
        fs::write(target.join("signers"), format!("releases {public}")).unwrap();
        let is_verified = || {
            let mut verify = ssh_keygen(&["-q", "-Y", "verify", "-n", NAMESPACE, "-I", "releases"]);
            verify.arg("-f").arg(target.join("signers"));
            verify.arg("-s").arg(release.join("SHA256SUMS.sig"));
            verify.stdin(fs::File::open(release.join(SUMS)).unwrap());
            verify.output().unwrap().status.success()
        };
        assert!(is_verified());
        fs::write(release.join(SUMS), "other sums\n").unwrap();
        assert!(!is_verified());
    }
}
