//! Programs that use the library, run.

use extant_testkit::command::{must, tool};
use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::{require, requires};

use std::path::Path;
use std::process::Command;

use crate::library::{Linked, compile, directory, example, root};

/// Runs an example for users, and returns its output.
fn run_example(name: &str, linked: Linked, place: &Path, words: &[&Path]) -> String {
    let program = compile(&example(name), linked, place);
    let mut command = Command::new(program);
    let output = must(command.args(words).env("LD_LIBRARY_PATH", directory()));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn example_in_c_makes_a_written_file_and_shows_its_map() {
    require!(requires::tool("cc"));
    let place = tempfile::tempdir().unwrap();
    for linked in [Linked::Shared, Linked::Static] {
        let file = place.path().join(format!("{linked:?}.raw"));
        let said = run_example("create", linked, place.path(), &[&file]);
        assert!(said.contains("written"), "{said}");
        assert_eq!(std::fs::metadata(&file).unwrap().len(), 8 << 20);
        assert!(said.contains("again: file exists"), "{said}");
    }
}

#[test]
fn example_of_images_shows_a_thin_a_copied_and_a_full_one() {
    require!(requires::tool("cc"));
    let place = tempfile::tempdir().unwrap();
    let said = run_example("image", Linked::Shared, place.path(), &[place.path()]);
    for wanted in [
        "disk.qcow2: qcow2, disk 16777216, written 0, preallocation off\n",
        "copy.raw: 16777216 bytes written\n",
        "copy.raw: raw, disk 16777216, written 16777216, preallocation full\n",
        "disk.qcow2: qcow2, disk 16777216, written 16777216, preallocation full\n",
    ] {
        assert!(said.contains(wanted), "{said}");
    }
}

#[test]
fn example_of_pools_makes_a_volume_and_is_refused_what_does_not_fit() {
    require!(requires::tool("cc"));
    let place = tempfile::tempdir().unwrap();
    let (definitions, volumes) = (place.path().join("defined"), place.path().join("vms"));
    let said = run_example(
        "pool",
        Linked::Shared,
        place.path(),
        &[&definitions, &volumes],
    );
    let wanted = format!(
        "pool vms {}\nvolume web.raw 8388608 8388608\npromised 8388608 of 67108864\nrefused: {}",
        volumes.display(),
        volumes.join("big.raw").display()
    );
    assert!(said.starts_with(&wanted), "{said}");
    assert_eq!(
        std::fs::metadata(volumes.join("web.raw")).unwrap().len(),
        8 << 20
    );
}

#[test]
fn example_of_jobs_interrupts_resumes_and_cancels_one() {
    require!(requires::tool("cc"));
    let place = tempfile::tempdir().unwrap();
    let volumes = place.path().join("vms");
    std::fs::create_dir(&volumes).unwrap();
    let said = run_example("job", Linked::Shared, place.path(), &[&volumes]);
    let states = [
        "job 1 of slow.raw: interrupted".to_owned(),
        format!(
            "cancelled: {}: cancelled",
            volumes.join("slow.raw").display()
        ),
        "job 1 of slow.raw: cancelled".to_owned(),
    ];
    assert!(said.lines().eq(states), "{said}");
    assert!(!volumes.join("slow.raw").exists());
}

#[test]
fn examples_report_a_wrong_path() {
    require!(requires::tool("cc"));
    let place = tempfile::tempdir().unwrap();
    let (definitions, file) = (place.path().join("defined"), place.path().join("file"));
    let none = place.path().join("none");
    let below = none.join("below");
    std::fs::write(&file, "").unwrap();
    let runs: [(&str, &[&Path], &Path); 4] = [
        ("create", &[&below], &none),
        ("image", &[&below], &none),
        ("pool", &[&definitions, &file], &file),
        ("job", &[&below], &none),
    ];
    for (name, words, wrong) in runs {
        let program = compile(&example(name), Linked::Shared, place.path());
        let mut command = Command::new(program);
        command.args(words).env("LD_LIBRARY_PATH", directory());
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{name}: {said}");
        assert!(said.contains(wrong.to_str().unwrap()), "{name}: {said}");
    }
}

#[test]
fn examples_leak_no_memory() {
    require!(requires::tool("cc"), requires::tool("valgrind"));
    let place = tempfile::tempdir().unwrap();
    let (definitions, volumes) = (place.path().join("defined"), place.path().join("vms"));
    let jobs = place.path().join("jobs");
    std::fs::create_dir(&jobs).unwrap();
    let runs: [(&str, &[&Path]); 3] = [
        ("image", &[place.path()]),
        ("pool", &[&definitions, &volumes]),
        ("job", &[&jobs]),
    ];
    for (name, words) in runs {
        let program = compile(&example(name), Linked::Shared, place.path());
        let mut command = tool("valgrind");
        command.args(["--quiet", "--error-exitcode=9", "--leak-check=full"]);
        command.args([
            "--errors-for-leak-kinds=definite",
            "--show-leak-kinds=definite",
        ]);
        must(
            command
                .arg(program)
                .args(words)
                .env("LD_LIBRARY_PATH", directory()),
        );
    }
}

#[test]
fn structures_keep_their_layout_and_options_of_other_versions_are_filled_within_their_size() {
    require!(requires::tool("cc"));
    let place = tempfile::tempdir().unwrap();
    let source = root().join("tests/c/layout.c");
    for linked in [Linked::Shared, Linked::Static] {
        let program = compile(&source, linked, place.path());
        must(Command::new(program).env("LD_LIBRARY_PATH", directory()));
    }
}

#[test]
fn calls_on_images_pools_and_jobs_keep_their_promises_to_c() {
    require!(requires::tool("cc"));
    let place = tempfile::tempdir().unwrap();
    let program = compile(
        &root().join("tests/c/storage.c"),
        Linked::Shared,
        place.path(),
    );
    let mut command = Command::new(program);
    must(
        command
            .current_dir(place.path())
            .env("LD_LIBRARY_PATH", directory()),
    );
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
    let program = compile(
        &root().join("tests/c/calls.c"),
        Linked::Shared,
        scratch.path(),
    );
    let mut command = Command::new(program);
    must(
        command
            .current_dir(scratch.path())
            .env("LD_LIBRARY_PATH", directory()),
    );
}
