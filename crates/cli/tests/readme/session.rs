//! The sessions of the README and of the guide, run as they are written.
//!
//! Every line in a block that starts with ```` ```sh ```` is run, in the order of the page, by one
//! shell that begins in an empty directory. Each must succeed without output on stderr. The
//! processes and mounts of a session have namespaces of their own, and end with them. The page
//! about libvirt runs as the user of a libvirtd that the test starts, all others as root and as a
//! user.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Stdio;

use extant_testkit::libvirt::Libvirt;
use extant_testkit::workdir::Workdir;
use extant_testkit::{command, require, requires};

use crate::support::{NOBODY, copy_program, run};

/// The lines of a page that are run.
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

/// Starts the session in namespaces for mounts and processes, with a `/dev/fuse` that all users may
/// open, as on most systems.
const START: &str = "\
mount --bind \"$FUSE\" /dev/fuse
cd \"$DIRECTORY\"
exec $AS sh -e \"$SESSION\"";

const TOOLS: [&str; 6] = [
    "unshare",
    "setpriv",
    "timeout",
    "mke2fs",
    "nbdinfo",
    "fusermount3",
];

/// A page, and as whom its commands run.
struct Session<'a> {
    /// From the root of the repository.
    page: &'a str,
    user: Option<u32>,
    /// Runs before the commands of the page.
    prelude: String,
    /// The directory in which the session begins.
    directory: &'a Path,
}

impl Session<'_> {
    #[track_caller]
    fn succeeds(&self) {
        for tool in TOOLS {
            require!(requires::tool(tool));
        }
        require!(requires::root(), requires::device("/dev/fuse"));
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let text = fs::read_to_string(root.join(self.page)).expect(self.page);
        let lines = commands_of(&text);
        assert!(lines.len() >= 5, "too few are run: {lines:?}");
        let work = Workdir::new();
        let program = work.directory("bin");
        copy_program(
            Path::new(env!("CARGO_BIN_EXE_extant")),
            &program.join("extant"),
        );
        let device = work.path().join("fuse");
        command::must(command::tool("mknod").arg(&device).args(["c", "10", "229"]));
        command::must(command::tool("chmod").arg("666").arg(&device));
        let last = work.path().join("last");
        fs::write(&last, "").unwrap();
        chown(&last, self.user, self.user).unwrap();
        let mut script = self.prelude.clone();
        for line in lines {
            let quoted = line.replace('\'', "'\\''");
            script.push_str(&format!("printf '%s' '{quoted}' >\"$LAST\"\n{line}\n"));
        }
        let session = work.path().join("session.sh");
        fs::write(&session, script).unwrap();
        let mut path = program.into_os_string();
        path.push(":/usr/local/bin:/usr/bin:/bin");
        let run_as = self.user.map_or(String::new(), |user| {
            format!("setpriv --clear-groups --reuid={user} --regid={user}")
        });
        let mut start = command::tool("timeout");
        start
            .args(["--kill-after=5", "60", "unshare", "--mount"])
            .args(["--propagation=private", "--pid", "--fork", "--kill-child"])
            .args(["--mount-proc", "sh", "-ec", START])
            .env("FUSE", &device)
            .env("DIRECTORY", self.directory)
            .env("SESSION", &session)
            .env("LAST", &last)
            .env("AS", run_as)
            .env("HOME", self.directory)
            .env("PATH", path)
            .stdin(Stdio::null());
        let answer = run(&mut start);
        let line = fs::read_to_string(&last).unwrap();
        let page = self.page;
        assert_eq!(answer.code, Some(0), "{page}: `{line}`\n{answer}");
        assert_eq!(answer.stderr, "", "{page}: `{line}`\n{answer}");
    }
}

/// Runs a page in an empty directory, as root and as a user.
#[track_caller]
fn page_succeeds(page: &str) {
    for user in [None, Some(NOBODY)] {
        let work = Workdir::new();
        let directory = work.directory("session");
        chown(&directory, user, user).unwrap();
        Session {
            page,
            user,
            prelude: String::new(),
            directory: &directory,
        }
        .succeeds();
    }
}

#[test]
fn session_of_the_readme_succeeds() {
    page_succeeds("README.md");
}

#[test]
fn guide_to_database_files_succeeds() {
    page_succeeds("docs/guide/database.md");
}

#[test]
fn guide_to_disks_of_virtual_machines_succeeds() {
    page_succeeds("docs/guide/vm-disk.md");
}

#[test]
fn page_on_vhost_user_succeeds() {
    page_succeeds("docs/guide/vhost-user.md");
}

#[test]
fn guide_to_files_in_an_ext4_image_succeeds() {
    page_succeeds("docs/guide/ext4-image.md");
}

#[test]
fn guide_for_users_of_other_tools_succeeds() {
    page_succeeds("docs/guide/coming-from.md");
}

#[test]
fn guide_to_slow_files_succeeds() {
    page_succeeds("docs/guide/slow-file.md");
}

#[test]
fn guide_to_pools_succeeds() {
    let work = Workdir::new();
    let [directory, home] = ["pool", "home"].map(|name| work.directory(name));
    for directory in [&directory, &home] {
        chown(directory, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    Session {
        page: "docs/guide/pool.md",
        user: Some(NOBODY),
        prelude: format!("export XDG_CONFIG_HOME='{}'\n", home.display()),
        directory: &directory,
    }
    .succeeds();
}

#[test]
fn guide_to_libvirt_succeeds() {
    require!(Libvirt::requirement());
    let libvirt = Libvirt::start();
    let directory = libvirt.directory("pool");
    let virsh = libvirt.virsh();
    let words: Vec<_> = std::iter::once(virsh.get_program())
        .chain(virsh.get_args())
        .collect();
    let words: Vec<_> = words
        .iter()
        .map(|word| word.to_str().expect("UTF-8"))
        .collect();
    Session {
        page: "docs/guide/libvirt.md",
        user: Some(NOBODY),
        prelude: format!(
            "export XDG_CONFIG_HOME='{}'\nvirsh() {{ '{}' \"$@\"; }}\n",
            libvirt.home().display(),
            words.join("' '")
        ),
        directory: &directory,
    }
    .succeeds();
}

#[test]
fn every_page_of_the_guide_is_run() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide");
    let tests = include_str!("session.rs");
    for entry in fs::read_dir(guide).expect("docs/guide") {
        let name = entry.expect("an entry").file_name();
        let page = format!("docs/guide/{}", name.display());
        assert!(
            page.ends_with("/README.md") || tests.contains(&page),
            "{page}"
        );
    }
}
