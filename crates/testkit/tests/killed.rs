//! A process that was killed leaves mounts and devices; the next one clears them.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use extant_testkit::faulty::{Faults, Faulty};
use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::workdir::Workdir;
use extant_testkit::{command, require};

const ROLE: &str = "EXTANT_TEST_ROLE";
const NAME: &str = "files_of_a_killed_process_are_removed_by_the_next";

/// This test again, in a separate process.
fn again(role: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["--exact", NAME, "--nocapture"])
        .env(ROLE, role);
    command
}

#[test]
fn files_of_a_killed_process_are_removed_by_the_next() {
    require!(Filesystem::Overlay.requirement(), Faulty::requirement());
    match env::var(ROLE).as_deref() {
        Ok("killed") => {
            let scratch = Scratch::builder(Filesystem::Overlay, 32 << 20);
            let scratch = scratch.memory(64 << 20).build();
            let faulty = Faulty::new(1 << 20, Faults::default());
            println!("\nplace {}", scratch.path().display());
            println!("place {}", faulty.path().display());
            std::thread::sleep(std::time::Duration::from_secs(60));
            return;
        }
        Ok(_) => {
            drop(Workdir::new());
            return;
        }
        Err(_) => {}
    }

    let mut killed = again("killed").stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(killed.stdout.take().unwrap()).lines();
    let places: Vec<_> = lines
        .filter_map(|line| Some(line.unwrap().strip_prefix("place ")?.to_owned()))
        .take(2)
        .collect();
    killed.kill().unwrap();
    killed.wait().unwrap();
    let directories: Vec<_> = places
        .iter()
        .map(|place| place.rsplit_once('/').unwrap().0)
        .collect();
    let left = || {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let loops = command::text(command::tool("losetup").arg("--all")).unwrap();
        let all = mounts + &loops;
        let lines = all
            .lines()
            .filter(|line| directories.iter().any(|directory| line.contains(directory)));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(directories.len(), 2);
    // Overlay, ext4, tmpfs, the loop device under them, FUSE.
    assert_eq!(left().len(), 5, "{:?}", left());

    assert!(
        again("next")
            .stdout(Stdio::null())
            .status()
            .unwrap()
            .success()
    );

    assert!(left().is_empty(), "{:?}", left());
    for directory in directories {
        assert!(!fs::exists(directory).unwrap());
    }
}
