//! Programs that use the library, run.

use extant_testkit::command::{must, tool};
use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::{require, requires};

use crate::library::{Linked, compile, directory, root};

#[test]
fn example_in_c_makes_a_written_file_and_shows_its_map() {
    require!(requires::tool("cc"));
    let place = tempfile::tempdir().unwrap();
    for linked in [Linked::Shared, Linked::Static] {
        let program = compile("example", linked, place.path());
        let file = place.path().join(format!("{linked:?}.raw"));
        let mut command = std::process::Command::new(&program);
        let output = must(command.arg(&file).env("LD_LIBRARY_PATH", directory()));
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.contains("written"), "{said}");
        assert_eq!(std::fs::metadata(&file).unwrap().len(), 8 << 20);
        assert!(said.contains("again: file exists"), "{said}");
    }
}

#[test]
fn every_call_keeps_its_promise_to_c() {
    require!(
        requires::root(),
        requires::tool("cc"),
        requires::tool("mkfs.ext4"),
        requires::tool("losetup")
    );
    let scratch = Scratch::new(Filesystem::Ext4, 256 << 20);
    let program = compile("calls", Linked::Shared, scratch.path());
    let mut command = std::process::Command::new(program);
    must(
        command
            .current_dir(scratch.path())
            .env("LD_LIBRARY_PATH", directory()),
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
    must(
        tool("python3")
            .args(["-B", "-W", "error", "-m", "unittest", "discover", "-s"])
            .arg(root().join("python/tests"))
            .current_dir(scratch.path())
            .env("PYTHONPATH", root().join("python"))
            .env("EXTANT_LIBRARY", directory().join("libextant.so")),
    );
}
