//! The session of the README, run as it is written.
//!
//! Every line in a block that starts with ```` ```sh ```` is run, in the order of the README, by one shell that begins in an empty
//! folder, as root and as a user. Each must succeed without a word on stderr. The processes and mounts of a session have namespaces of
//! their own, and end with them.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Stdio;

use extant_testkit::workdir::Workdir;
use extant_testkit::{command, require, requires};

use crate::support::{NOBODY, copy_program, run};

/// The lines of the README that are run.
fn commands_of(markdown: &str) -> Vec<&str> {
    let mut commands = Vec::new();
    let mut is_run = false;
    for line in markdown.lines() {
        match line.strip_prefix("```") {
            Some(language) => is_run = language == "sh",
            None if is_run && !line.is_empty() => commands.push(line),
            None => {}
        }
    }
    commands
}

#[test]
fn commands_are_found_in_sh_blocks_only() {
    let text = "no\n```sh\nextant one\n\nkill 1 # why\n```\nno\n```\nno\n```\n```sh\nthree\n```\n";
    assert_eq!(commands_of(text), ["extant one", "kill 1 # why", "three"]);
}

/// Who runs the session, in namespaces of mounts and processes, with `/dev/fuse` open to all users as on most systems.
const START: &str = "\
mount --bind \"$FUSE\" /dev/fuse
cd \"$FOLDER\"
exec $AS sh -e \"$SESSION\"";

#[track_caller]
fn session_succeeds(user: Option<u32>) {
    let tools = [
        "unshare",
        "setpriv",
        "timeout",
        "mke2fs",
        "nbdinfo",
        "fusermount3",
    ];
    for tool in tools {
        require!(requires::tool(tool));
    }
    require!(requires::root(), requires::device("/dev/fuse"));
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = fs::read_to_string(readme).expect("README.md");
    let lines = commands_of(&readme);
    assert!(lines.len() > 30, "too few are run: {lines:?}");
    let work = Workdir::new();
    let (folder, program) = (work.folder("session"), work.folder("bin"));
    chown(&folder, user, user).unwrap();
    copy_program(
        Path::new(env!("CARGO_BIN_EXE_extant")),
        &program.join("extant"),
    );
    let device = work.path().join("fuse");
    command::must(command::tool("mknod").arg(&device).args(["c", "10", "229"]));
    command::must(command::tool("chmod").arg("666").arg(&device));
    let last = work.path().join("last");
    fs::write(&last, "").unwrap();
    chown(&last, user, user).unwrap();
    let mut script = String::new();
    for line in lines {
        let quoted = line.replace('\'', "'\\''");
        script.push_str(&format!("printf '%s' '{quoted}' >\"$LAST\"\n{line}\n"));
    }
    let session = work.path().join("session.sh");
    fs::write(&session, script).unwrap();
    let mut path = program.into_os_string();
    path.push(":/usr/local/bin:/usr/bin:/bin");
    let run_as = user.map_or(String::new(), |user| {
        format!("setpriv --clear-groups --reuid={user} --regid={user}")
    });
    let mut start = command::tool("timeout");
    start
        .args([
            "--kill-after=5",
            "60",
            "unshare",
            "--mount",
            "--propagation=private",
        ])
        .args([
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-ec",
            START,
        ])
        .env("FUSE", &device)
        .env("FOLDER", &folder)
        .env("SESSION", &session)
        .env("LAST", &last)
        .env("AS", run_as)
        .env("HOME", &folder)
        .env("PATH", path)
        .stdin(Stdio::null());
    let answer = run(&mut start);
    let line = fs::read_to_string(&last).unwrap();
    assert_eq!(answer.code, Some(0), "README: `{line}`\n{answer}");
    assert_eq!(answer.stderr, "", "README: `{line}`\n{answer}");
}

#[test]
fn session_of_the_readme_succeeds_as_root() {
    session_succeeds(None);
}

#[test]
fn session_of_the_readme_succeeds_as_a_user() {
    session_succeeds(Some(NOBODY));
}
