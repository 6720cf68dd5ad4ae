//! Documentation of the command: README, help, completions, man pages, JSON.

mod json;
mod session;
#[path = "../support/mod.rs"]
mod support;

use std::ffi::OsString;
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
const IMAGE_COMMANDS: [&str; 9] = [
    "create",
    "info",
    "check",
    "map",
    "measure",
    "resize",
    "convert",
    "materialize",
    "mount",
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
            "format",
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

/// The names of every command, including subcommands.
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

/// Help of a command before its examples.
#[track_caller]
fn options_of(words: &[&str]) -> String {
    let help = run(extant().args(words).arg("--help")).success().stdout;
    help.split("Examples:")
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// The built command before all others.
fn search_path() -> OsString {
    let program = Path::new(env!("CARGO_BIN_EXE_extant"));
    let mut path = OsString::from(program.parent().unwrap());
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    path
}

/// Runs `line` by the shell in `directory`, with the built command in the path.
fn shell(line: &str, directory: &Path) -> Answer {
    let mut command = command::tool("sh");
    command.args(["-c", line]).current_dir(directory);
    run(command.env("PATH", search_path()).stdin(Stdio::null()))
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
fn help_of_every_command_fits_into_80_columns() {
    for words in all_commands() {
        let help = |option: &str| run(extant().args(&words).arg(option).env("COLUMNS", "80"));
        let long = help("--help").success();
        assert!(!examples_of(&long.stdout).is_empty(), "{long}");
        let mut helps = vec![long];
        // There -h is that of df(1).
        if words != ["fs", "df"] {
            helps.push(help("-h").success());
        }
        for help in helps {
            for line in help.stdout.lines() {
                assert!(line.chars().count() <= 80, "{words:?}: {line}");
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
    let has_disk_below = requires::all_met(&[requires::disk_below_temporary_files()]);
    for name in ["create", "materialize"] {
        let help = run(extant().args([name, "--help"])).success().stdout;
        for example in examples_of(&help) {
            let line = example.replace("TiB", "MiB").replace("GiB", "KiB");
            for file in ["vm.raw", "vm.qcow2", "thin.raw", "thin.qcow2", "db"] {
                let _ = fs::remove_file(scratch.path().join(file));
            }
            // Those inside of images are tested in tests/fs/inside.rs.
            if line.contains(" --in ") {
                continue;
            }
            if name == "materialize" {
                for file in ["thin.raw", "thin.qcow2", "db"] {
                    let sparse = ["--preallocation", "off"];
                    create(&scratch.path().join(file), "4MiB", &sparse).success();
                }
            }
            if !line.contains("/mnt/loop/") {
                shell(&line, scratch.path()).success();
            } else if has_disk_below {
                let place = format!("{}/", scratch.path().display());
                shell(&line.replace("/mnt/loop/", &place), scratch.path()).success();
            }
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

/// Completions of the last of `words`, in `directory`.
#[track_caller]
fn offered(words: &[&str], directory: &Path) -> Vec<String> {
    let mut command = extant();
    command
        .arg("--")
        .args(words)
        .current_dir(directory)
        .env("EXTANT_COMPLETE", "bash")
        .env("_CLAP_IFS", "\n")
        .env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string());
    let answer = run(&mut command).success();
    answer.stdout.lines().map(str::to_owned).collect()
}

#[test]
fn completions_name_commands_options_pools_volumes_and_jobs() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(extant().args(["completions", shell])).success().stdout;
        assert!(script.contains("EXTANT_COMPLETE"), "{shell}: {script}");
    }
    run(extant().args(["completions", "csh"])).refused(2, &["csh"]);
    let work = Workdir::new();
    let pool = work.directory("pool");
    let config = work.directory("config");
    let config = config.to_str().unwrap();
    let mut define = extant();
    define.args(["pool", "define", "vms", "--config-dir", config]);
    run(define.arg(&pool)).success();
    let mut volume = extant();
    volume.args(["vol", "create", "--config-dir", config]);
    run(volume.args(["vms", "web.raw", "64KiB"])).success();
    let directory = work.path();
    for (words, wanted) in [
        (&["extant", "mat"][..], &["materialize"][..]),
        (&["extant", "create", "--prealloc"], &["--preallocation"]),
        (&["extant", "create", "--preallocation", "fa"], &["falloc"]),
        (
            &["extant", "create", "-o", "compat=1.1,refc"],
            &["compat=1.1,refcount_bits="],
        ),
        (
            &["extant", "pool", "info", "--config-dir", config, "v"],
            &["vms"],
        ),
        (
            &["extant", "vol", "info", "--config-dir", config, "vms", ""],
            &["web.raw"],
        ),
        (&["extant", "vol", "info", "./pool", "w"], &["web.raw"]),
        (&["extant", "job", "show", "./pool", ""], &["1"]),
    ] {
        let found = offered(words, directory);
        for word in wanted {
            assert!(
                found.iter().any(|found| found == word),
                "{words:?}: {found:?}"
            );
        }
    }
    // Nothing to say is no error.
    assert_eq!(
        offered(&["extant", "vol", "info", "./none", "w"], directory).len(),
        0
    );
}

#[test]
fn completions_of_bash_ask_the_program() {
    require!(requires::tool("bash"));
    let work = Workdir::new();
    let script = run(extant().args(["completions", "bash"])).success().stdout;
    let file = work.path().join("extant.bash");
    fs::write(&file, script).unwrap();
    // As readline asks: the arguments so far, the last of them to be completed.
    let ask = format!(
        "source {}; COMP_WORDS=(extant cre); COMP_CWORD=1; COMP_TYPE=9; \
         _clap_complete_extant extant cre extant; echo \"${{COMPREPLY[*]}}\"",
        file.display()
    );
    let mut bash = command::tool("bash");
    let answer = command::text(bash.args(["-c", &ask]).env("PATH", search_path())).unwrap();
    assert_eq!(answer.trim(), "create");
}

/// The pages of `extant man`, by name.
#[track_caller]
fn man_pages(work: &Workdir) -> Vec<(String, String)> {
    let answer = run(extant().arg("man").arg(work.path().join("man"))).success();
    let mut pages = Vec::new();
    for section in ["man1", "man3", "man5"] {
        let directory = work.path().join("man").join(section);
        for name in support::names(&directory) {
            let text = fs::read_to_string(directory.join(&name)).unwrap();
            pages.push((format!("{section}/{}", name.display()), text));
        }
    }
    let directory = work.path().join("man");
    let told = format!("{}: {} man pages\n", directory.display(), pages.len());
    assert_eq!(answer.stdout, told);
    pages
}

#[test]
fn man_pages_are_made_for_every_command_and_are_clean() {
    let work = Workdir::new();
    let pages = man_pages(&work);
    let mut wanted = vec!["man1/extant.1".to_owned()];
    wanted.extend(
        all_commands()
            .iter()
            .map(|words| format!("man1/extant-{}.1", words.join("-"))),
    );
    for name in wanted {
        let (_, text) = pages.iter().find(|(page, _)| *page == name).expect(&name);
        for section in [
            "NAME",
            "SYNOPSIS",
            "DESCRIPTION",
            "OPTIONS",
            "\"EXIT STATUS\"",
            "\"SEE ALSO\"",
        ] {
            // A command without its own statuses lists those of all commands.
            let is_there = text.contains(&format!("\n.SH {section}\n"));
            assert!(is_there, "{name}: no {section}");
        }
        assert!(!text.contains(".SH EXTRA"), "{name}");
        assert!(
            name == "man1/extant.1" || text.contains("\n.SH EXAMPLES\n"),
            "{name}"
        );
    }
    require!(requires::tool("groff"));
    let mut groff = command::tool("groff");
    groff.args(["-man", "-ww", "-z", "-Tutf8"]);
    let files = pages
        .iter()
        .map(|(name, _)| work.path().join("man").join(name));
    let output = command::run(groff.args(files.clone())).unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    require!(requires::tool("mandoc"));
    let mut mandoc = command::tool("mandoc");
    mandoc.arg("-Tlint").args(files);
    // Its status is that of the worst remark; `run` shows them.
    command::run(&mut mandoc).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn man_page_of_the_library_names_every_function_of_the_header() {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("../capi/include/extant.h");
    let header = fs::read_to_string(header).expect("extant.h");
    let page = include_str!("../../man/libextant.3");
    let functions = header.lines().filter_map(|line| {
        let (before, _) = line.split_once('(')?;
        let name = before.rsplit([' ', '*']).next()?;
        let is_declared = !line.starts_with([' ', '/']) && !line.starts_with("typedef");
        (is_declared && name.starts_with("extant_")).then_some(name)
    });
    let functions: Vec<&str> = functions.collect();
    assert!(functions.len() > 10, "{functions:?}");
    for name in functions {
        assert!(page.contains(name), "{name}");
    }
}

#[test]
fn examples_of_man_pages_are_lines_of_their_own() {
    require!(requires::tool("groff"));
    let work = Workdir::new();
    man_pages(&work);
    let mut groff = command::tool("groff");
    groff.args(["-man", "-Tascii", "-P-cbu", "-rLL=78n"]);
    let page = command::text(groff.arg(work.path().join("man/man1/extant-create.1"))).unwrap();
    for line in [
        "extant create vm.raw 20GiB --background",
        "extant create vm.qcow2 20GiB --preallocation off",
    ] {
        assert!(
            page.lines().any(|found| found.trim() == line),
            "no {line}: {page}"
        );
    }
    let words: Vec<_> = page.split_whitespace().collect();
    let page = words.join(" ");
    for part in [
        "SYNOPSIS extant create [--format FORMAT]",
        "[--background[=PERCENT%]]",
        "[--force]",
        "<PATH> <SIZE> DESCRIPTION",
    ] {
        assert!(page.contains(part), "no {part}: {page}");
    }
}

#[test]
fn man_pages_into_a_place_that_cannot_be_are_refused() {
    let work = Workdir::new();
    fs::write(work.path().join("file"), "").unwrap();
    let answer = run(extant().arg("man").arg(work.path().join("file")));
    answer.refused(4, &["/file: "]);
}
