//! `xtask install` and `uninstall` into a directory of their own.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The built program, which is beside xtask; it is built where it is not.
fn program() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_xtask")).with_file_name("extant");
    if !program.exists() {
        let built = Command::new(env!("CARGO"))
            .args(["build", "--locked", "-p", "extant"])
            .status();
        assert!(built.unwrap().success());
    }
    program
}

fn xtask(command: &str, destdir: &Path, more: &[String]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args([command, "PREFIX=/usr"])
        .arg(format!("DESTDIR={}", destdir.display()))
        .args(more)
        .output()
        .unwrap()
}

fn succeeds(output: Output) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

/// All files below a directory, by their paths in it.
fn files(directory: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(next) = waiting.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                waiting.push(entry.path());
            } else {
                let path = entry.path();
                let path = path.strip_prefix(directory).unwrap();
                found.insert(path.display().to_string());
            }
        }
    }
    found
}

#[test]
fn installed_files_are_complete_and_uninstall_removes_nothing_else() {
    let stage = std::env::temp_dir().join(format!("extant-install-{}", std::process::id()));
    let other = stage.join("usr/share/man/man1/other.1");
    fs::create_dir_all(other.parent().unwrap()).unwrap();
    fs::write(&other, "").unwrap();
    let from = format!("PROGRAM={}", program().display());
    let from = [from];
    succeeds(xtask("install", &stage, &from));
    let found = files(&stage);
    for path in [
        "usr/bin/extant",
        "usr/share/man/man1/extant.1.gz",
        "usr/share/man/man1/extant-serve.1.gz",
        "usr/share/man/man5/extant-pool.5.gz",
        "usr/share/bash-completion/completions/extant",
        "usr/share/zsh/site-functions/_extant",
        "usr/share/fish/vendor_completions.d/extant.fish",
        "usr/share/doc/extant/LICENSE-MIT",
        "usr/lib/systemd/system/extant-serve@.service",
        "usr/lib/systemd/system/extant-serve@.socket",
        "usr/lib/systemd/system/extant-job@.service",
        "sbin/mount.fuse.extant",
        "sbin/umount.fuse.extant",
    ] {
        assert!(found.contains(path), "no {path}: {found:?}");
    }
    let said = Command::new(stage.join("usr/bin/extant"))
        .arg("--version")
        .output();
    assert!(said.unwrap().stdout.starts_with(b"extant "));
    let helper = fs::read_link(stage.join("sbin/mount.fuse.extant")).unwrap();
    assert_eq!(helper, Path::new("/usr/bin/extant"));
    let units = stage.join("usr/lib/systemd/system");
    for unit in ["extant-serve@.service", "extant-job@.service"] {
        let text = fs::read_to_string(units.join(unit)).unwrap();
        assert!(text.contains("\nExecStart=/usr/bin/extant "), "{text}");
    }
    for (unit, lines) in [
        // Killed with its job, lvm would leave volumes suspended.
        (
            "extant-job@.service",
            &[
                "KillSignal=SIGKILL",
                "KillMode=process",
                "SuccessExitStatus=SIGKILL",
            ][..],
        ),
        (
            "extant-serve@.service",
            &["Restart=on-failure", "RestartSec=5"][..],
        ),
    ] {
        let text = fs::read_to_string(units.join(unit)).unwrap();
        let has = |line: &str| text.lines().any(|other| other == line);
        for line in lines {
            assert!(has(line), "{unit} has no {line}");
        }
        let after = text.lines().find(|line| line.starts_with("After="));
        assert!(after.unwrap().contains(" remote-fs.target"), "{unit}");
    }
    verify_units(&stage, &units);

    // A second one replaces the first.
    succeeds(xtask("install", &stage, &from));
    assert_eq!(files(&stage), found);
    succeeds(xtask("uninstall", &stage, &[]));
    let left = BTreeSet::from(["usr/share/man/man1/other.1".to_owned()]);
    assert_eq!(files(&stage), left);
    assert!(!stage.join("sbin").exists(), "a directory is left");
    let again = xtask("uninstall", &stage, &[]);
    assert!(!again.status.success());
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(said.contains("nothing is installed"), "{said}");
    fs::remove_dir_all(&stage).unwrap();
}

/// Has systemd read the units, with the program where it is now.
fn verify_units(stage: &Path, units: &Path) {
    let here = stage.join("units");
    fs::create_dir(&here).unwrap();
    let program = stage.join("usr/bin/extant").display().to_string();
    let mut paths = Vec::new();
    for (unit, instance) in [
        ("extant-serve@.service", "extant-serve@web.service"),
        ("extant-serve@.socket", "extant-serve@web.socket"),
        ("extant-job@.service", "extant-job@vms.service"),
    ] {
        let text = fs::read_to_string(units.join(unit)).unwrap();
        let path = here.join(instance);
        fs::write(&path, text.replace("/usr/bin/extant", &program)).unwrap();
        paths.push(path);
    }
    let output = Command::new("systemd-analyze")
        .args(["verify", "--man=no", "--recursive-errors=no"])
        .args(paths)
        .output();
    fs::remove_dir_all(&here).unwrap();
    let output = match output {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let is_strict = std::env::var_os("EXTANT_TEST_STRICT").is_some();
            assert!(!is_strict, "systemd-analyze is not installed");
            eprintln!("skipped: systemd-analyze is not installed");
            return;
        }
        output => output.unwrap(),
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && !said.contains("extant"),
        "{said}"
    );
}
