//! A compiler, git and tar at work inside a mount.

use std::fs;
use std::path::Path;
use std::process::Command;

use extant_testkit::command::{run, run_any_status, text, tool};
use extant_testkit::oracle::assert_e2fsck_clean;
use extant_testkit::{require, requires};

use crate::server::{Ground, Served, can_mount};
use crate::{factor, project, tree};

/// The program in a directory, without the user's own settings.
pub fn within(directory: &Path, name: &str) -> Command {
    let mut command = tool(name);
    command.current_dir(directory);
    for (variable, value) in [
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_AUTHOR_NAME", "stress"),
        ("GIT_AUTHOR_EMAIL", "stress@example.org"),
        ("GIT_COMMITTER_NAME", "stress"),
        ("GIT_COMMITTER_EMAIL", "stress@example.org"),
    ] {
        command.env(variable, value);
    }
    command
}

#[track_caller]
fn must(command: &mut Command) {
    run(command).unwrap_or_else(|failure| panic!("{failure}"));
}

#[track_caller]
fn told(command: &mut Command) -> String {
    text(command).unwrap_or_else(|failure| panic!("{failure}"))
}

#[test]
fn project_is_built_and_built_again_where_it_changed() {
    require!(can_mount(), requires::tool("make"), requires::tool("cc"));
    let ground = Ground::new(256);
    let served = Served::new(&ground.image, &ground.place, "writeback");
    let directory = served.path().join("project");
    fs::create_dir(&directory).unwrap();
    project::generate(&directory);
    let make = |arguments: &[&str]| {
        let mut make = within(&directory, "make");
        make.args(arguments);
        make
    };
    let is_made = || {
        let status = run_any_status(&mut make(&["-q"])).unwrap().status;
        status.success()
    };
    let answer = format!("{}\n", project::answer());
    for _ in 0..factor() {
        must(&mut make(&["-j2"]));
        assert_eq!(told(&mut Command::new(directory.join("program"))), answer);
        assert!(is_made(), "times are not those of the changes");
        fs::write(
            directory.join("unit_5.h"),
            "long unit_5(long x);\n#define UNIT_5 4L\n",
        )
        .unwrap();
        assert!(!is_made(), "a change is not seen");
        must(&mut make(&["-j2"]));
        assert_ne!(told(&mut Command::new(directory.join("program"))), answer);
        project::generate(&directory);
        must(&mut make(&["-j2"]));
        assert_eq!(told(&mut Command::new(directory.join("program"))), answer);
        must(&mut make(&["clean"]));
    }
    served.end();
    assert_e2fsck_clean(&ground.image);
}

/// A repository with some commits.
pub fn make_repository(directory: &Path, commits: u32) {
    must(within(directory, "git").args(["init", "-q", "-b", "main"]));
    for commit in 0..commits {
        let part = directory.join(format!("part{}", commit % 5));
        fs::create_dir_all(&part).unwrap();
        tree::generate(&part, 2);
        for number in 0..20 {
            let text = format!("{commit} {number}\n").repeat((commit + number) as usize * 10);
            fs::write(part.join(format!("text{number}")), text).unwrap();
        }
        // Git has no word for it.
        fs::remove_file(part.join("d0/fifo")).unwrap();
        must(within(directory, "git").args(["add", "-A"]));
        must(within(directory, "git").args(["commit", "-q", "-m", &format!("commit {commit}")]));
    }
}

#[test]
fn repository_is_cloned_checked_and_packed() {
    require!(can_mount(), requires::tool("git"));
    let ground = Ground::new(512);
    let source = ground.work.directory("source");
    make_repository(&source, 3 + factor());
    let served = Served::new(&ground.image, &ground.place, "writeback");
    let url = format!("file://{}", source.display());
    let clone = served.path().join("clone");
    must(within(served.path(), "git").args(["clone", "-q", &url, "clone"]));
    let git = |arguments: &[&str]| told(within(&clone, "git").args(arguments));
    git(&["fsck", "--strict"]);
    assert_eq!(git(&["status", "--porcelain"]), "");
    git(&["gc", "-q", "--prune=now"]);
    git(&["fsck", "--strict"]);
    let head = told(within(&source, "git").args(["rev-parse", "HEAD"]));
    served.end();
    assert_e2fsck_clean(&ground.image);
    let served = Served::new(&ground.image, &ground.place, "no_writeback");
    assert_eq!(git(&["rev-parse", "HEAD"]), head);
    git(&["fsck", "--strict"]);
    git(&["checkout", "-q", "HEAD~2"]);
    git(&["checkout", "-q", "main"]);
    assert_eq!(git(&["status", "--porcelain"]), "");
    must(
        tool("diff")
            .args(["-r", "--no-dereference", "-x", ".git"])
            .args([&source, &clone]),
    );
    served.end();
    assert_e2fsck_clean(&ground.image);
}

#[test]
fn unpacked_tree_is_the_packed_one_also_after_the_next_mount() {
    require!(can_mount(), requires::tool("tar"), requires::tool("diff"));
    let ground = Ground::new(1024);
    let source = ground.work.directory("source");
    tree::generate(&source, 20 * factor());
    let archive = ground.work.path().join("archive");
    let tar = |mode: &str, directory: &Path| {
        let mut tar = tool("tar");
        tar.args(["--xattrs", "--sparse", mode]).arg(&archive);
        tar.arg("-C").arg(directory);
        tar
    };
    must(tar("-cf", &source).arg("."));
    let served = Served::new(&ground.image, &ground.place, "writeback");
    let target = served.path().join("target");
    fs::create_dir(&target).unwrap();
    must(tar("-xpf", &target).arg("."));
    let diff = |directory: &Path| {
        // To diff no fifo is like another.
        let mut diff = tool("diff");
        diff.args(["-r", "--no-dereference", "-x", "fifo"]);
        must(diff.args([source.as_path(), directory]));
    };
    let compare = || {
        diff(&target);
        // Permissions, owners, times and links, which diff does not compare, and fifos.
        must(tar("-df", &target).arg("."));
    };
    compare();
    must(
        tool("cp")
            .arg("-a")
            .arg(&target)
            .arg(served.path().join("copy")),
    );
    served.end();
    assert_e2fsck_clean(&ground.image);
    let served = Served::new(&ground.image, &ground.place, "no_writeback");
    compare();
    let copy = served.path().join("copy");
    diff(&copy);
    fs::remove_dir_all(&copy).unwrap();
    fs::remove_dir_all(&target).unwrap();
    served.end();
    assert_e2fsck_clean(&ground.image);
}
