//! Installs missing Debian packages.
//!
//! apt is called only for packages that dpkg does not list. A failing mirror is
//! retried a few times with pauses; a package that does not exist is
//! an error at once.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::step;

/// Pauses before the second, third and fourth attempt.
const PAUSES: [Duration; 3] = [
    Duration::from_secs(3),
    Duration::from_secs(10),
    Duration::from_secs(30),
];
/// Messages of apt after which a retry is useless.
const LASTING: [&str; 3] = [
    "Unable to locate package",
    "has no installation candidate",
    "unmet dependencies",
];

/// How apt is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rights {
    Root,
    Sudo,
}

/// Installs those of `packages` that are missing.
pub fn ensure(packages: &[String]) -> Result<()> {
    if !on_path("dpkg-query") || !on_path("apt-get") {
        // Tests still say one by one which tool they lack.
        eprintln!(
            "This is not a Debian system: install what these packages hold yourself:\n  {}",
            packages.join(" ")
        );
        return Ok(());
    }
    let missing = missing(packages)?;
    if missing.is_empty() {
        return Ok(());
    }
    let Some(rights) = rights() else {
        bail!(
            "root or sudo is needed; as root: apt-get install --no-install-recommends {}",
            missing.join(" ")
        );
    };
    step::heading(&format!("install {}", missing.join(" ")));
    let mut pauses = PAUSES.iter();
    loop {
        let Err(Failed { error, lasting }) = install(&missing, rights) else {
            return Ok(());
        };
        match pauses.next() {
            Some(pause) if !lasting => {
                eprintln!("{error:#}\nagain in {} s", pause.as_secs());
                thread::sleep(*pause);
            }
            _ => return Err(error),
        }
    }
}

/// Why nothing was installed, and whether a retry is useless.
struct Failed {
    error: anyhow::Error,
    lasting: bool,
}

/// Fetches the lists, then installs, with old lists if need be: one dead mirror of several must not
/// stop steps that do not need it.
fn install(missing: &[String], rights: Rights) -> Result<(), Failed> {
    let updated = step::run_quietly(&mut apt(rights, "update"));
    let mut install = apt(rights, "install");
    install
        .args(["--yes", "--no-install-recommends"])
        .args(missing);
    step::run_quietly(&mut install).map_err(|error| match updated {
        // Without lists every package is unknown.
        Err(update_error) => Failed {
            error: update_error,
            lasting: false,
        },
        Ok(()) => Failed {
            lasting: is_lasting(&format!("{error:#}")),
            error,
        },
    })
}

fn apt(rights: Rights, verb: &str) -> Command {
    let mut command = match rights {
        Rights::Root => Command::new("env"),
        Rights::Sudo => {
            let mut sudo = Command::new("sudo");
            sudo.arg("env");
            sudo
        }
    };
    command.args([
        "DEBIAN_FRONTEND=noninteractive",
        "LC_ALL=C",
        "apt-get",
        "-qq",
    ]);
    command.args(["-o", "Acquire::Retries=3", "-o", "DPkg::Lock::Timeout=300"]);
    // A mirror that does not answer is a failure, not old lists and a warning.
    command.args(["-o", "APT::Update::Error-Mode=any", verb]);
    command
}

fn is_lasting(message: &str) -> bool {
    LASTING.iter().any(|sign| message.contains(sign))
}

fn missing(packages: &[String]) -> Result<Vec<String>> {
    // Its status is 1 when a name is unknown, which is no failure here.
    let output = Command::new("dpkg-query")
        .args(["--show", "--showformat=${Package} ${db:Status-Status}\\n"])
        .args(packages)
        .output()
        .context("`dpkg-query` does not start")?;
    let listing = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(missing_in(&listing, packages))
}

/// `listing` holds lines of a package's name and state.
fn missing_in(listing: &str, packages: &[String]) -> Vec<String> {
    let is_installed = |name: &str| {
        listing
            .lines()
            .any(|line| line.split_once(' ') == Some((name, "installed")))
    };
    let missing = packages.iter().filter(|name| !is_installed(name));
    missing.cloned().collect()
}

fn rights() -> Option<Rights> {
    // The owner of /proc/self is the effective user.
    let is_root = fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    if is_root {
        Some(Rights::Root)
    } else {
        on_path("sudo").then_some(Rights::Sudo)
    }
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| Path::new(&directory).join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(line: &str) -> Vec<String> {
        line.split(' ').map(String::from).collect()
    }

    #[test]
    fn removed_and_unknown_packages_are_missing() {
        let listing = "fio installed\nquota config-files\nxfsprogs installed\n";
        let missing = missing_in(listing, &names("fio fi quota xfsprogs mmdebstrap"));
        assert_eq!(missing, names("fi quota mmdebstrap"));
    }

    #[test]
    fn unknown_package_is_lasting_and_lost_connection_is_not() {
        assert!(is_lasting("E: Unable to locate package extant-peer"));
        assert!(!is_lasting(
            "E: Failed to fetch x: Connection reset by peer"
        ));
    }

    #[test]
    fn apt_asks_nothing() {
        let line = step::shown(&apt(Rights::Sudo, "install"));
        assert!(line.starts_with("sudo env DEBIAN_FRONTEND=noninteractive "));
        assert!(line.ends_with(" install"));
    }
}
