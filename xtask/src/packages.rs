//! Packages for distributions with dpkg and with rpm.
//!
//! Their files are those of `cargo xtask install`, staged once for each family with its
//! directories. debhelper and rpmbuild divide a stage into packages by the lists in `packaging/`,
//! and fail for a staged file that no list has, and for a line without a file: the lists cannot
//! differ from what is installed. debhelper computes dependencies and the `shlibs` and `symbols`
//! of the library. lintian then checks the packages for Debian; its errors fail.
//!
//! The result is in `target/dist-packages`, that of a quick build in `target/quick-packages`.

mod changelog;
pub mod check;

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::dist::{self, Build};
use crate::packages::changelog::Changelog;
use crate::workspace::Workspace;
use crate::{install, reproducible, setup, step};

/// Debian packages with the programs that make packages and check them.
const TOOLS: [&str; 7] = [
    "debhelper",
    "dh-python",
    "dpkg-dev",
    "lintian",
    "make",
    "python3",
    "rpm",
];
/// Below the directory of the packages; removed at the end.
const WORK: &str = "work";
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Where the packages are.
pub fn directory(workspace: &Workspace, build: Build) -> Result<PathBuf> {
    let name = match build {
        Build::Quick => "quick-packages",
        Build::Release | Build::Dist => "dist-packages",
    };
    Ok(workspace.target_dir()?.join(name))
}

/// Builds everything, makes the packages and checks them.
pub fn write(workspace: &Workspace, build: Build) -> Result<()> {
    setup::packages(&TOOLS)?;
    let directory = directory(workspace, build)?;
    if directory.exists() {
        fs::remove_dir_all(&directory)
            .with_context(|| format!("{}: cannot empty", directory.display()))?;
    }
    let work = directory.join(WORK);
    fs::create_dir_all(&work).with_context(|| format!("{}: cannot create", work.display()))?;
    let built = work.join("built");
    dist::write(workspace, build, &built)?;
    let packaging = Packaging {
        workspace,
        build,
        built,
        work,
        changelog: Changelog::of(workspace)?,
    };
    packaging.deb(&directory)?;
    packaging.rpm(&directory)?;
    fs::remove_dir_all(&packaging.work)?;
    eprintln!("the packages are in {}", directory.display());
    Ok(())
}

struct Packaging<'a> {
    workspace: &'a Workspace,
    build: Build,
    /// The files that [`dist`] wrote.
    built: PathBuf,
    work: PathBuf,
    changelog: Changelog,
}

impl Packaging<'_> {
    fn deb(&self, to: &Path) -> Result<()> {
        step::heading("packages for Debian");
        let mut architecture = Command::new("dpkg-architecture");
        let triplet = step::output(architecture.arg("-qDEB_HOST_MULTIARCH"))?;
        let libdir = format!("/usr/lib/{}", triplet.trim());
        let stage = self.stage(
            "deb-stage",
            &[
                &format!("LIBDIR={libdir}"),
                "PYTHONDIR=/usr/lib/python3/dist-packages",
            ],
        )?;

        let work = self.work.join("deb");
        let source = work.join(format!("extant-{VERSION}"));
        let debian = source.join("debian");
        fs::create_dir_all(&debian)?;
        for entry in fs::read_dir(self.workspace.root().join("packaging/debian"))? {
            let entry = entry?;
            fs::copy(entry.path(), debian.join(entry.file_name()))?;
        }
        let control = fs::read_to_string(debian.join("control"))?;
        let maintainer = &self.changelog.maintainer;
        fs::write(
            debian.join("control"),
            control.replace("@maintainer@", maintainer),
        )?;
        fs::write(debian.join("changelog"), self.changelog.debian(VERSION)?)?;

        let level = match self.build {
            Build::Quick => "0",
            Build::Release | Build::Dist => "9",
        };
        let mut build = Command::new("dpkg-buildpackage");
        // Rust is not Debian's, so dpkg cannot check it.
        build.args(["--build=binary", "--no-sign", "--no-check-builddeps"]);
        build.current_dir(&source).env("STAGE", &stage);
        build.env("COMPRESSION_LEVEL", level);
        build.env("DEB_BUILD_OPTIONS", "noautodbgsym");
        step::run_quietly(&mut build)?;
        let packages = moved(&work, "deb", to)?;

        step::heading("lintian");
        let mut lintian = Command::new("lintian");
        lintian.args(["--fail-on", "error", "--allow-root"]);
        // Warnings are shown with errors.
        step::run_quietly(lintian.args(packages))
    }

    fn rpm(&self, to: &Path) -> Result<()> {
        step::heading("packages with rpm");
        let libdir = "/usr/lib64";
        let stage = self.stage("rpm-stage", &[&format!("LIBDIR={libdir}")])?;
        let work = self.work.join("rpm");
        let payload = match self.build {
            Build::Quick => "w0.gzdio",
            Build::Release | Build::Dist => "w19.zstdio",
        };
        let mut build = Command::new("rpmbuild");
        build.args(["-bb", "--target", &format!("{ARCH}-linux")]);
        for (name, value) in [
            ("_topdir", work.display().to_string()),
            ("_libdir", libdir.to_owned()),
            ("_binary_payload", payload.to_owned()),
            ("_buildhost", "localhost".to_owned()),
            ("use_source_date_epoch_as_buildtime", "1".to_owned()),
            ("clamp_mtime_to_source_date_epoch", "1".to_owned()),
            ("stage", stage.display().to_string()),
            ("extant_version", VERSION.to_owned()),
            ("extant_maintainer", self.changelog.maintainer.clone()),
            ("extant_date", self.changelog.date("+%a %b %d %Y")?),
        ] {
            build.arg("--define").arg(format!("{name} {value}"));
        }
        build.arg(self.workspace.root().join("packaging/rpm/extant.spec"));
        build.env("SOURCE_DATE_EPOCH", reproducible::epoch(self.workspace)?);
        step::run_quietly(&mut build)?;
        moved(&work.join("RPMS").join(ARCH), "rpm", to)?;
        Ok(())
    }

    /// Installs into a directory of this name.
    fn stage(&self, name: &str, words: &[&str]) -> Result<PathBuf> {
        let stage = self.work.join(name);
        fs::create_dir_all(&stage)?;
        let mut places = vec![
            format!("DESTDIR={}", stage.display()),
            "PREFIX=/usr".to_owned(),
            // The directory itself, not the link to it.
            "SBINDIR=/usr/sbin".to_owned(),
        ];
        places.extend(words.iter().map(|&word| word.to_owned()));
        install::stage(self.workspace, &self.built, &places)?;
        Ok(stage)
    }
}

/// Moves the files with an extension; their new paths, sorted.
fn moved(from: &Path, extension: &str, to: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        if path.extension().is_some_and(|found| found == extension) {
            let to = to.join(path.file_name().expect("an entry has a name"));
            fs::rename(&path, &to).with_context(|| format!("{}: cannot move", path.display()))?;
            paths.push(to);
        }
    }
    ensure!(!paths.is_empty(), "no .{extension} in {}", from.display());
    paths.sort();
    Ok(paths)
}
