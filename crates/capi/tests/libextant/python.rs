//! The module for Python: its calls, its types, and its wheel in a fresh environment.

use std::path::{Path, PathBuf};
use std::process::Command;

use extant_testkit::command::{must, tool};
use extant_testkit::requires::PYTHON;
use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::{require, requires};

use crate::library::{directory, link, root};

/// The arguments that run the tests of the module.
fn run_tests(python: &mut Command, place: &Path) {
    must(
        python
            .args(["-B", "-W", "error", "-m", "unittest", "discover", "-s"])
            .arg(root().join("python/tests"))
            .current_dir(place),
    );
}

#[test]
fn module_for_python_has_the_same_calls() {
    require!(
        requires::root(),
        requires::tool("python3"),
        requires::tool("mkfs.ext4"),
        requires::tool("losetup")
    );
    let scratch = Scratch::new(Filesystem::Ext4, 256 << 20);
    let mut python = tool("python3");
    python.env("PYTHONPATH", root().join("python"));
    python.env("EXTANT_LIBRARY", directory().join("libextant.so"));
    run_tests(&mut python, scratch.path());
}

#[test]
fn module_has_strict_types() {
    require!(requires::tool("mypy"));
    let place = tempfile::tempdir().unwrap();
    let mut mypy = tool("mypy");
    mypy.arg("--strict").arg("--cache-dir").arg(place.path());
    must(mypy.arg(root().join("python/extant")));
}

#[test]
fn wheel_works_in_a_fresh_environment() {
    require!(
        requires::root(),
        requires::tool("mkfs.ext4"),
        requires::tool("losetup"),
        requires::tool("objdump"),
        requires::python_module("setuptools"),
        requires::python_module("wheel"),
        requires::python_module("ensurepip")
    );
    let place = tempfile::tempdir().unwrap();
    let wheels = place.path().join("wheels");
    let mut build = Command::new(root().join("wheel.sh"));
    must(build.arg(link(place.path())).arg(&wheels));
    let made: Vec<PathBuf> = std::fs::read_dir(&wheels)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    let [wheel] = made.as_slice() else {
        panic!("{made:?}");
    };
    let name = wheel.file_name().unwrap().to_str().unwrap();
    let tag = format!("_{}.whl", std::env::consts::ARCH);
    assert!(
        name.contains("-py3-none-manylinux_2_") && name.ends_with(&tag),
        "{name}"
    );

    let environment = place.path().join("environment");
    must(Command::new(PYTHON).args(["-m", "venv"]).arg(&environment));
    let python = environment.join("bin/python");
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--no-index"]);
    must(install.arg(wheel));
    let scratch = Scratch::new(Filesystem::Ext4, 256 << 20);
    run_tests(Command::new(&python).arg("-I"), scratch.path());
}
