//! Packages of other Debian suites, fetched without touching the machine's own apt.
//!
//! apt is configured to keep its lists and cache in our directory, and to read one list of
//! sources: the machine's mirror with the suites that we need. Signatures are checked with
//! Debian's keyring.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{run, text, tool};
use crate::lab::{self, Recipe, Result};

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const APT_DIRECTORY: &str = "/etc/apt";

/// apt with state of its own.
pub(crate) struct Apt {
    directory: PathBuf,
}

impl Apt {
    /// Reads the package lists of `suites` into `directory`.
    pub(crate) fn new(directory: PathBuf, suites: &[&str]) -> Result<Self> {
        fs::create_dir_all(directory.join("lists/partial"))?;
        fs::create_dir_all(directory.join("archives/partial"))?;
        let mirror = mirror(Path::new(APT_DIRECTORY))?;
        let sources: String = suites
            .iter()
            .map(|suite| format!("deb [signed-by={KEYRING}] {mirror} {suite} main\n"))
            .collect();
        fs::write(directory.join("sources.list"), sources)?;
        let apt = Self { directory };
        run(apt.command("apt-get").args(["-qq", "update"]))?;
        Ok(apt)
    }

    /// The list of sources, for other tools.
    pub(crate) fn sources(&self) -> PathBuf {
        self.directory.join("sources.list")
    }

    /// The packages that `package` of `suite` depends on, by name.
    pub(crate) fn depends(&self, package: &str, suite: &str) -> Result<Vec<String>> {
        let mut command = self.command("apt-cache");
        command.args(["show", "--no-all-versions", "-t", suite, package]);
        let answer = text(&mut command)?;
        let line = answer
            .lines()
            .find_map(|line| line.strip_prefix("Depends: "))
            .ok_or_else(|| format!("{package} in {suite} depends on nothing"))?;
        let names = line.split([',', '|']).map(str::trim);
        let names = names.filter_map(|clause| clause.split(' ').next());
        Ok(names.map(str::to_owned).collect())
    }

    /// Fetches `packages` of `suite` and unpacks them into `root`.
    pub(crate) fn unpack(&self, packages: &[String], suite: &str, root: &Path) -> Result<()> {
        let fetched = self.directory.join("fetched");
        fs::create_dir_all(&fetched)?;
        let mut command = self.command("apt-get");
        command
            .args(["-qq", "download", "-t", suite])
            .args(packages);
        run(command.current_dir(&fetched))?;
        for package in fs::read_dir(&fetched)? {
            let package = package?.path();
            run(tool("dpkg-deb").arg("-x").arg(&package).arg(root))?;
            fs::remove_file(package)?;
        }
        Ok(())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = tool(program);
        let mut option = |name: &str, value: &Path| {
            command.arg("-o").arg(format!("{name}={}", value.display()));
        };
        option("Dir::Etc::sourcelist", &self.sources());
        option("Dir::Etc::sourceparts", Path::new("/dev/null"));
        option("Dir::State::lists", &self.directory.join("lists"));
        option("Dir::Cache::archives", &self.directory.join("archives"));
        option("Dir::Cache::pkgcache", Path::new(""));
        option("Dir::Cache::srcpkgcache", Path::new(""));
        // The directory need not be readable for apt's own user.
        option("APT::Sandbox::User", Path::new("root"));
        option("Acquire::Retries", Path::new("3"));
        command
    }
}

/// The directory of a minimal system of `suite` with apt, which is made once, as root, in about a
/// minute. It is for an overlay: nothing may change it.
pub fn root(suite: &str) -> Result<PathBuf> {
    let recipe = Recipe {
        directory: lab::directory().join(format!("debian-{suite}")),
        version: "1",
    };
    recipe.prepare(|lab| {
        let apt = Apt::new(lab.join("apt"), &[suite])?;
        run(tool("mmdebstrap")
            .args(["--variant=apt", "--mode=root", suite])
            .args([&lab.join("root"), &apt.sources()]))?;
        Ok(fs::remove_dir_all(lab.join("apt"))?)
    })?;
    Ok(recipe.directory.join("root"))
}

/// Debian's name of this machine's architecture.
pub(crate) fn architecture() -> Result<String> {
    let name = text(tool("dpkg").arg("--print-architecture"))?;
    Ok(name.trim_end().to_owned())
}

/// The mirror of Debian's main archive that this machine uses.
fn mirror(apt_directory: &Path) -> Result<String> {
    let mut files = vec![apt_directory.join("sources.list")];
    if let Ok(parts) = fs::read_dir(apt_directory.join("sources.list.d")) {
        files.extend(parts.flatten().map(|entry| entry.path()));
    }
    files.sort();
    files
        .iter()
        .filter_map(|file| fs::read_to_string(file).ok())
        .find_map(|sources| mirror_in(&sources))
        .ok_or_else(|| format!("no mirror of Debian in {}", apt_directory.display()).into())
}

/// Both forms of sources: `URIs: a b` and `deb [options] a suite`.
fn mirror_in(sources: &str) -> Option<String> {
    sources
        .lines()
        .filter(|line| line.starts_with("URIs:") || line.starts_with("deb "))
        .flat_map(str::split_whitespace)
        .map(|word| word.trim_end_matches('/'))
        .find(|word| word.contains("://") && word.ends_with("/debian"))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirror_is_read_from_both_forms_of_sources() {
        let new = "Types: deb\n# URIs: http://old.test/debian\nURIs: http://a.test/debian/\n";
        let old = "deb [arch=amd64] https://b.test/x/debian trixie main\n";
        assert_eq!(mirror_in(new).unwrap(), "http://a.test/debian");
        assert_eq!(mirror_in(old).unwrap(), "https://b.test/x/debian");
    }

    #[test]
    fn mirrors_of_other_archives_are_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let parts = directory.path().join("sources.list.d");
        fs::create_dir(&parts).unwrap();
        fs::write(parts.join("a.list"), "deb https://c.test/apt x main\n").unwrap();
        let error = mirror(directory.path()).unwrap_err().to_string();
        assert!(error.contains("no mirror"), "{error}");
        let security = "URIs: http://a.test/debian-security\n\nURIs: http://a.test/debian\n";
        fs::write(parts.join("b.sources"), security).unwrap();
        assert_eq!(mirror(directory.path()).unwrap(), "http://a.test/debian");
    }
}
