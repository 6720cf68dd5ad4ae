//! What is written about the command: README, help, completions, man pages.
//!
//! Convention: in a block of the README that starts with ```` ```sh ````, every line that
//! begins with `extant ` or `$ extant ` is run, in the order of the README and in one empty
//! folder, and must succeed. Lines that only make sense elsewhere belong into a block
//! without a language.

mod support;

use std::fs;
use std::path::Path;
use std::process::Stdio;

use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::workdir::Workdir;
use extant_testkit::{command, require, requires};

use support::{Answer, MIB, create, extant, run};

const COMMANDS: [&str; 15] = [
    "create",
    "fallocate",
    "materialize",
    "map",
    "image",
    "fs",
    "mount",
    "umount",
    "serve",
    "pool",
    "vol",
    "job",
    "probe",
    "completions",
    "man",
];

/// Those of `extant fs`.
const FS_COMMANDS: [&str; 18] = [
    "ls", "tree", "stat", "cat", "put", "get", "mkdir", "rm", "mv", "ln", "chmod", "chown", "df",
    "freefrag", "frag", "dump", "check", "mkfs",
];

/// Those of `extant image`.
const IMAGE_COMMANDS: [&str; 7] = [
    "info",
    "check",
    "map",
    "measure",
    "resize",
    "convert",
    "materialize",
];

/// Those of `extant pool`, `vol` and `job`.
const POOL_COMMANDS: [(&str, &[&str]); 3] = [
    ("pool", &["define", "list", "info", "refresh", "delete"]),
    (
        "vol",
        &[
            "create",
            "list",
            "info",
            "resize",
            "clone",
            "materialize",
            "wipe",
            "delete",
            "upload",
            "download",
        ],
    ),
    (
        "job",
        &["list", "show", "watch", "wait", "cancel", "resume"],
    ),
];

/// The words of every command, also of those below another.
fn all_commands() -> Vec<Vec<&'static str>> {
    let first = COMMANDS.iter().map(|name| vec![*name]);
    let below = FS_COMMANDS.iter().map(|name| vec!["fs", *name]);
    let of_images = IMAGE_COMMANDS.iter().map(|name| vec!["image", *name]);
    let of_pools = POOL_COMMANDS
        .iter()
        .flat_map(|(first, names)| names.iter().map(|name| vec![*first, *name]));
    first
        .chain(below)
        .chain(of_images)
        .chain(of_pools)
        .collect()
}

/// The lines of the README that are run.
fn commands_of(markdown: &str) -> Vec<&str> {
    let mut commands = Vec::new();
    let mut in_block = false;
    for line in markdown.lines() {
        if let Some(language) = line.strip_prefix("```") {
            in_block = !in_block && language == "sh";
        } else if in_block {
            let line = line.strip_prefix("$ ").unwrap_or(line);
            commands.extend(line.starts_with("extant ").then_some(line));
        }
    }
    commands
}

/// Runs `line` by the shell in `folder`, with the built command in the path.
fn shell(line: &str, folder: &Path) -> Answer {
    let program = Path::new(env!("CARGO_BIN_EXE_extant"));
    let mut path = std::ffi::OsString::from(program.parent().unwrap());
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut command = command::tool("sh");
    command.args(["-c", line]).current_dir(folder);
    run(command.env("PATH", path).stdin(Stdio::null()))
}

#[test]
fn commands_are_found_in_sh_blocks_only() {
    let text = "extant no\n```sh\n$ extant one\nextant two # why\ncargo no\n```\nextant no\n\
                ```\nextant no\n```\n```sh\nextant three\n```\n";
    let wanted = ["extant one", "extant two # why", "extant three"];
    assert_eq!(commands_of(text), wanted);
}

#[test]
fn commands_of_the_readme_succeed() {
    require!(requires::tool("sh"), requires::tool("mke2fs"));
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = fs::read_to_string(readme).expect("README.md");
    let commands = commands_of(&readme);
    assert!(commands.len() >= 4, "too few are run: {commands:?}");
    let work = Workdir::new();
    let folder = work.folder("readme");
    for line in commands {
        let answer = shell(line, &folder);
        assert_eq!(answer.code, Some(0), "README: {answer}");
        assert_eq!(answer.stderr, "", "README: {answer}");
    }
}

/// The examples of a help text: its lines that begin with `extant `, without the remark.
fn examples_of(help: &str) -> Vec<String> {
    let examples = help.split_once("Examples:").map_or("", |(_, rest)| rest);
    let lines = examples.lines().map(str::trim);
    lines
        .filter(|line| line.starts_with("extant "))
        .map(|line| line.split("  ").next().unwrap_or(line).to_owned())
        .collect()
}

#[test]
fn every_command_has_help_with_examples_in_100_columns() {
    for words in all_commands() {
        let long = run(extant().args(&words).arg("--help")).success();
        assert!(!examples_of(&long.stdout).is_empty(), "{long}");
        let mut helps = vec![long];
        // There -h is what it is in df(1).
        if words != ["fs", "df"] {
            helps.push(run(extant().args(&words).arg("-h")).success());
        }
        for help in helps {
            for line in help.stdout.lines() {
                assert!(line.chars().count() <= 100, "{words:?}: {line}");
                assert!(!line.contains('\t'), "{words:?}: {line}");
            }
        }
    }
}

#[test]
fn options_of_examples_exist() {
    for command in all_commands() {
        let help = run(extant().args(&command).arg("--help")).success().stdout;
        for example in examples_of(&help) {
            // Redirections and pipes are the shell's.
            let words = example.split(['|', '>', '&']).next().unwrap_or_default();
            for word in words
                .split_whitespace()
                .filter(|word| word.starts_with("--"))
            {
                let option = word.split('=').next().unwrap_or(word);
                let (options, _) = help.split_once("Examples:").unwrap();
                assert!(options.contains(option), "{option} of `{example}`");
            }
        }
    }
}

#[test]
fn examples_of_create_and_materialize_succeed() {
    require!(Filesystem::Ext4.requirement());
    // On a sparse file system of many GiB: sizes in help texts are those of real life.
    let scratch = Scratch::new(Filesystem::Ext4, 2048 * MIB);
    for name in ["create", "materialize"] {
        let help = run(extant().args([name, "--help"])).success().stdout;
        for example in examples_of(&help) {
            let line = example.replace("TiB", "MiB").replace("GiB", "KiB");
            for file in ["vm.raw", "vm.qcow2", "thin.raw", "db"] {
                let _ = fs::remove_file(scratch.path().join(file));
            }
            // Those inside of images are tested in tests/fs/inside.rs.
            if line.contains(" --in ") {
                continue;
            }
            if name == "materialize" {
                for file in ["thin.raw", "db"] {
                    let sparse = ["--preallocation", "off"];
                    create(&scratch.path().join(file), "4MiB", &sparse).success();
                }
            }
            shell(&line, scratch.path()).success();
        }
    }
}

#[test]
fn help_documents_every_exit_code() {
    let help = run(extant().arg("--help")).success().stdout;
    let (_, codes) = help.split_once("Exit status").expect(&help);
    for code in ["0", "1", "2", "3", "4", "5", "130"] {
        let is_listed = codes
            .lines()
            .any(|line| line.split_whitespace().next() == Some(code));
        assert!(is_listed, "{code} is not in {help}");
    }
    for name in COMMANDS {
        assert!(help.contains(&format!("\n  {name} ")), "{name}: {help}");
    }
    let help = run(extant().args(["fs", "--help"])).success().stdout;
    for name in FS_COMMANDS {
        assert!(help.contains(&format!("\n  {name} ")), "{name}: {help}");
    }
}

#[test]
fn version_is_that_of_the_package() {
    let answer = run(extant().arg("--version")).success();
    assert_eq!(
        answer.stdout.trim(),
        format!("extant {}", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn completions_name_commands_and_options() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(extant().args(["completions", shell])).success().stdout;
        for word in ["create", "materialize", "keep-partial", "preallocation"] {
            assert!(script.contains(word), "{shell}: no {word}");
        }
    }
    run(extant().args(["completions", "csh"])).refused(2, &["csh"]);
}

#[test]
fn completions_of_bash_are_bash() {
    require!(requires::tool("bash"));
    let work = Workdir::new();
    let script = run(extant().args(["completions", "bash"])).success().stdout;
    let file = work.path().join("extant.bash");
    fs::write(&file, script).unwrap();
    command::run(command::tool("bash").arg("-n").arg(&file)).unwrap();
    // As readline asks: the words so far, the last of them to be completed.
    let ask = format!(
        "source {}; COMP_WORDS=(extant cre); COMP_CWORD=1; _extant extant cre extant; \
         echo \"${{COMPREPLY[*]}}\"",
        file.display()
    );
    let answer = command::text(command::tool("bash").args(["-c", &ask])).unwrap();
    assert_eq!(answer.trim(), "create");
}

#[test]
fn man_pages_are_made_for_every_command_and_are_clean() {
    let work = Workdir::new();
    let folder = work.path().join("man/man1");
    run(extant().arg("man").arg(&folder)).success();
    let mut pages = vec!["extant.1".to_owned()];
    pages.extend(COMMANDS.iter().map(|name| format!("extant-{name}.1")));
    for page in &pages {
        let text = fs::read_to_string(folder.join(page)).expect(page);
        assert!(
            text.contains(".SH NAME") && text.contains(".SH SYNOPSIS"),
            "{page}"
        );
    }
    require!(requires::tool("groff"));
    for page in &pages {
        let mut groff = command::tool("groff");
        groff
            .args(["-man", "-ww", "-z", "-Tutf8"])
            .arg(folder.join(page));
        let output = command::run(&mut groff).unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{page}");
    }
}

#[test]
fn man_pages_into_a_place_that_cannot_be_are_refused() {
    let work = Workdir::new();
    fs::write(work.path().join("file"), "").unwrap();
    let answer = run(extant().arg("man").arg(work.path().join("file")));
    answer.refused(4, &["/file: "]);
}
