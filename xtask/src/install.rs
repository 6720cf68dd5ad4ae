//! `cargo xtask install` and `uninstall`: the program, its pages, completions and units in the
//! directories of the machine.
//!
//! Arguments are those of `make`: `DESTDIR=` is put before every path, for packages; `PREFIX=` is
//! `/usr/local` unless given; `PROGRAM=` names a built program, in place of building one with
//! `cargo xtask dist files`. libextant is installed with the program that was built. Directories of
//! distributions: `LIBDIR=` (`PREFIX/lib` unless given), `SBINDIR=` for the helpers of mount(8)
//! (`/sbin`), and `PYTHONDIR=`, without which the module for Python is not installed.
//!
//! The list of all files and of the directories that were made is installed as well. `uninstall`
//! removes what it names, and `install` does so first.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::workspace::Workspace;
use crate::{dist, notices};

/// Below the prefix.
const LIST: &str = "share/extant/installed";
const UNITS: [&str; 3] = [
    "extant-serve@.service",
    "extant-serve@.socket",
    "extant-job@.service",
];
/// The place of the program in a unit.
const BINDIR: &str = "@bindir@";

/// Where everything goes.
pub struct Places {
    destdir: PathBuf,
    prefix: PathBuf,
    libdir: Option<PathBuf>,
    /// mount(8) looks in /sbin only, which is a link to /usr/sbin on current systems.
    sbindir: PathBuf,
    pythondir: Option<PathBuf>,
    program: Option<PathBuf>,
}

impl Places {
    /// From arguments such as `PREFIX=/usr`.
    pub fn parse(words: &[String]) -> Result<Self> {
        let mut places = Self {
            destdir: "/".into(),
            prefix: "/usr/local".into(),
            libdir: None,
            sbindir: "/sbin".into(),
            pythondir: None,
            program: None,
        };
        for word in words {
            match word.split_once('=') {
                // As for make, an empty one is none.
                Some((_, "")) => {}
                Some(("DESTDIR", path)) => places.destdir = std::path::absolute(path)?,
                Some(("PREFIX", path)) => places.prefix = absolute(word, path)?,
                Some(("LIBDIR", path)) => places.libdir = Some(absolute(word, path)?),
                Some(("SBINDIR", path)) => places.sbindir = absolute(word, path)?,
                Some(("PYTHONDIR", path)) => places.pythondir = Some(absolute(word, path)?),
                Some(("PROGRAM", path)) => places.program = Some(std::path::absolute(path)?),
                _ => bail!(
                    "{word}: not DESTDIR=, PREFIX=, LIBDIR=, SBINDIR=, PYTHONDIR= or PROGRAM="
                ),
            }
        }
        Ok(places)
    }

    fn libdir(&self) -> PathBuf {
        let chosen = self.libdir.clone();
        chosen.unwrap_or_else(|| self.prefix.join("lib"))
    }

    /// Where a path of the installed system is now.
    fn staged(&self, path: &Path) -> PathBuf {
        self.destdir.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn list(&self) -> PathBuf {
        self.prefix.join(LIST)
    }
}

fn absolute(word: &str, path: &str) -> Result<PathBuf> {
    ensure!(path.starts_with('/'), "{word}: not an absolute path");
    Ok(path.into())
}

/// Installs, in place of an earlier installation.
pub fn install(workspace: &Workspace, places: &Places) -> Result<()> {
    let from = match &places.program {
        Some(program) => {
            let from = workspace.target_dir()?.join("dist-of-program");
            dist::write_program(workspace, program, &from)?;
            from
        }
        None => {
            dist::files(workspace)?;
            workspace.target_dir()?.join("dist")
        }
    };
    install_from(workspace, places, &from)?;
    eprintln!("installed in {}", places.staged(&places.prefix).display());
    Ok(())
}

/// Installs the files that [`dist`] wrote.
fn install_from(workspace: &Workspace, places: &Places, from: &Path) -> Result<()> {
    if places.staged(&places.list()).exists() {
        uninstall(places)?;
    }
    let mut installed = Installed {
        places,
        list: String::new(),
    };
    installed.all(workspace, from)
}

/// Fills an empty directory for a package manager, which has a list of its own.
pub fn stage(workspace: &Workspace, from: &Path, words: &[String]) -> Result<()> {
    let places = Places::parse(words)?;
    install_from(workspace, &places, from)?;
    let list = places.staged(&places.list());
    fs::remove_file(&list)
        .and_then(|()| fs::remove_dir(list.parent().expect("a file in a directory")))
        .with_context(|| format!("{}: cannot remove", list.display()))
}

/// Removes what was installed.
pub fn uninstall(places: &Places) -> Result<()> {
    let list = places.staged(&places.list());
    let text = fs::read_to_string(&list)
        .with_context(|| format!("{}: nothing is installed", list.display()))?;
    for line in text.lines().rev() {
        let path = places.staged(Path::new(line));
        let removed = if line.ends_with('/') {
            // Others may have put files there.
            let _ = fs::remove_dir(&path);
            Ok(())
        } else {
            fs::remove_file(&path)
        };
        match removed {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("{}: cannot remove", path.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// An installation in progress.
struct Installed<'a> {
    places: &'a Places,
    /// Paths of the installed system, one a line; directories end with a slash.
    list: String,
}

impl Installed<'_> {
    fn all(&mut self, workspace: &Workspace, from: &Path) -> Result<()> {
        let prefix = self.places.prefix.clone();
        // First, so that a failed installation can be removed.
        let list = self.places.list();
        self.directory(list.parent().context("a list without a directory")?)?;
        self.note(&list)?;
        let program = prefix.join("bin/extant");
        self.file(&from.join("extant"), &program, 0o755)?;
        for section in fs::read_dir(from.join("man"))? {
            let section = section?;
            let to = prefix.join("share/man").join(section.file_name());
            self.contents(&section.path(), &to)?;
        }
        for (name, to) in [
            ("extant.bash", "bash-completion/completions/extant"),
            ("_extant", "zsh/site-functions/_extant"),
            ("extant.fish", "fish/vendor_completions.d/extant.fish"),
        ] {
            let to = prefix.join("share").join(to);
            self.file(&from.join("completions").join(name), &to, 0o644)?;
        }
        for name in ["LICENSE-MIT", "LICENSE-APACHE", "CHANGELOG.md"] {
            let to = prefix.join("share/doc/extant").join(name);
            self.file(&workspace.root().join(name), &to, 0o644)?;
        }
        let to = prefix.join("share/doc/extant").join(notices::FILE);
        self.file(&from.join(notices::FILE), &to, 0o644)?;
        for name in UNITS {
            let unit = workspace.root().join("packaging/systemd").join(name);
            let text = fs::read_to_string(&unit)
                .with_context(|| format!("{}: cannot read", unit.display()))?;
            let bindir = prefix.join("bin").display().to_string();
            let to = prefix.join("lib/systemd/system").join(name);
            self.text(&text.replace(BINDIR, &bindir), &to)?;
        }
        for name in dist::MOUNT_HELPERS {
            self.link(&program, &self.places.sbindir.join(name))?;
            let page = prefix.join("share/man/man8").join(format!("{name}.8.gz"));
            self.link(Path::new("../man1/extant-mount.1.gz"), &page)?;
        }
        self.library(from)
    }

    fn library(&mut self, from: &Path) -> Result<()> {
        let include = from.join("include");
        if !include.exists() {
            return Ok(());
        }
        let prefix = self.places.prefix.clone();
        self.contents(&include, &prefix.join("include"))?;
        let libdir = self.places.libdir();
        self.contents(&from.join("lib"), &libdir)?;
        let text = dist::pkg_config(
            env!("CARGO_PKG_VERSION"),
            &prefix.display().to_string(),
            &libdir.display().to_string(),
        );
        self.text(&text, &libdir.join("pkgconfig/extant.pc"))?;
        if let Some(python) = self.places.pythondir.clone() {
            self.contents(&from.join("python/extant"), &python.join("extant"))?;
        }
        Ok(())
    }

    /// Installs everything in a directory.
    fn contents(&mut self, from: &Path, to: &Path) -> Result<()> {
        let mut entries = fs::read_dir(from)?.collect::<Result<Vec<_>, _>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let kind = entry.file_type()?;
            let to = to.join(entry.file_name());
            if kind.is_dir() {
                self.contents(&entry.path(), &to)?;
            } else if kind.is_symlink() {
                self.link(&fs::read_link(entry.path())?, &to)?;
            } else {
                self.file(&entry.path(), &to, 0o644)?;
            }
        }
        Ok(())
    }

    fn file(&mut self, from: &Path, to: &Path, mode: u32) -> Result<()> {
        let staged = self.place(to)?;
        fs::copy(from, &staged)
            .and_then(|_| fs::set_permissions(&staged, Permissions::from_mode(mode)))
            .with_context(|| format!("{}: cannot copy to {}", from.display(), staged.display()))
    }

    fn text(&mut self, text: &str, to: &Path) -> Result<()> {
        let staged = self.place(to)?;
        fs::write(&staged, text)
            .and_then(|()| fs::set_permissions(&staged, Permissions::from_mode(0o644)))
            .with_context(|| format!("{}: cannot write", staged.display()))
    }

    fn link(&mut self, target: &Path, to: &Path) -> Result<()> {
        let staged = self.place(to)?;
        symlink(target, &staged).with_context(|| format!("{}: cannot link", staged.display()))
    }

    /// Makes room for a file and notes it.
    fn place(&mut self, to: &Path) -> Result<PathBuf> {
        self.directory(to.parent().context("a file without a directory")?)?;
        self.note(to)?;
        let staged = self.places.staged(to);
        // A running program is replaced, not overwritten.
        match fs::remove_file(&staged) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("{}: cannot replace", staged.display()))
            }
            _ => Ok(staged),
        }
    }

    fn directory(&mut self, path: &Path) -> Result<()> {
        let staged = self.places.staged(path);
        if staged.exists() {
            return Ok(());
        }
        if let Some(parent) = path.parent() {
            self.directory(parent)?;
        }
        fs::create_dir(&staged).with_context(|| format!("{}: cannot create", staged.display()))?;
        self.list.push_str(&format!("{}/\n", path.display()));
        Ok(())
    }

    fn note(&mut self, path: &Path) -> Result<()> {
        self.list.push_str(&format!("{}\n", path.display()));
        let list = self.places.staged(&self.places.list());
        fs::write(&list, &self.list).with_context(|| format!("{}: cannot write", list.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Places> {
        Places::parse(
            &words
                .iter()
                .map(|&word| word.to_owned())
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn arguments_are_those_of_make() {
        let places = parse(&["DESTDIR=/stage", "PREFIX=/usr", "PROGRAM="]).unwrap();
        let staged = places.staged(Path::new("/usr/bin/extant"));
        assert_eq!(staged, Path::new("/stage/usr/bin/extant"));
        assert!(places.program.is_none());
        let places = parse(&["DESTDIR="]).unwrap();
        assert_eq!(places.staged(&places.prefix), Path::new("/usr/local"));
        for wrong in ["PREFIX=usr", "prefix=/usr", "/usr"] {
            assert!(parse(&[wrong]).is_err(), "{wrong}");
        }
    }
}
