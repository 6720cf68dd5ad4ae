//! Man pages: clap_mangen renders the data of clap; the text below the help becomes EXAMPLES, NOTES
//! and EXIT STATUS.
//!
//! FILES, ENVIRONMENT and SEE ALSO are the tables below.

use std::io;

use clap::{Arg, Command};
use clap_mangen::Man;

use crate::exit;
use crate::help::{Block, Row, blocks};

const DEFINITIONS: (&str, &str) = (
    "/etc/extant/pools, $XDG_CONFIG_HOME/extant/pools",
    "Definitions of root's pools, and of a user's.",
);
const STATE: (&str, &str) = (
    ".extant",
    "In the directory of a pool, or next to its image: jobs and unfinished files.",
);
const PARTIAL: (&str, &str) = (
    ".NAME.extant-partial",
    "A file that is being made. After a crash the same command completes it.",
);
const CONFIG_HOME: (&str, &str) = (
    "XDG_CONFIG_HOME, XDG_STATE_HOME",
    "Where a user's definitions of pools, and the state of pools on disks, are kept.",
);
const NO_COLOR: (&str, &str) = ("NO_COLOR", "Print no colours, whatever its value.");

/// Sections of a command's page that clap does not generate.
struct More {
    command: &'static str,
    files: &'static [(&'static str, &'static str)],
    environment: &'static [(&'static str, &'static str)],
    see_also: &'static [&'static str],
}

const MORE: [More; 11] = [
    more(
        "extant-create",
        &[PARTIAL],
        &[],
        &["fallocate(1)", "filefrag(8)"],
    ),
    more(
        "extant-fallocate",
        &[],
        &[],
        &["fallocate(1)", "fallocate(2)"],
    ),
    more("extant-materialize", &[], &[], &["filefrag(8)"]),
    more("extant-map", &[], &[NO_COLOR], &["filefrag(8)"]),
    more("extant-image", &[], &[], &["qemu-img(1)"]),
    more(
        "extant-fs",
        &[],
        &[],
        &["ext4(5)", "mke2fs(8)", "e2fsck(8)", "debugfs(8)"],
    ),
    more(
        "extant-mount",
        &[],
        &[],
        &["mount(8)", "fstab(5)", "fusermount3(1)"],
    ),
    more(
        "extant-serve",
        &[],
        &[],
        &["qemu-nbd(8)", "nbdinfo(1)", "nbdcopy(1)", "nbd-client(8)"],
    ),
    more(
        "extant-pool",
        &[DEFINITIONS, STATE],
        &[CONFIG_HOME],
        &["virsh(1)"],
    ),
    more(
        "extant-vol",
        &[DEFINITIONS, STATE],
        &[CONFIG_HOME],
        &["virsh(1)"],
    ),
    more("extant-job", &[DEFINITIONS, STATE], &[CONFIG_HOME], &[]),
];

const fn more(
    command: &'static str,
    files: &'static [(&'static str, &'static str)],
    environment: &'static [(&'static str, &'static str)],
    see_also: &'static [&'static str],
) -> More {
    More {
        command,
        files,
        environment,
        see_also,
    }
}

/// Pages that are not generated from a command.
const BY_HAND: [(&str, &str); 2] = [
    ("man3/libextant.3", include_str!("../man/libextant.3")),
    ("man5/extant-pool.5", include_str!("../man/extant-pool.5")),
];

/// A page and its place below the directory of man pages.
pub struct Page {
    pub name: String,
    pub text: String,
}

/// All pages: those of `command` and its subcommands, and those that are not generated.
pub fn pages(command: Command) -> io::Result<Vec<Page>> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add_pages(&command, None, &mut pages)?;
    pages.extend(BY_HAND.map(|(name, text)| Page {
        name: name.to_owned(),
        text: text.to_owned(),
    }));
    Ok(pages)
}

fn add_pages(command: &Command, parent: Option<&Command>, pages: &mut Vec<Page>) -> io::Result<()> {
    pages.push(Page {
        name: format!("man1/{}.1", name(command)),
        text: page(command, parent)?,
    });
    for below in command
        .get_subcommands()
        .filter(|below| !below.is_hide_set())
    {
        add_pages(below, Some(command), pages)?;
    }
    Ok(())
}

/// `extant-fs-ls`.
fn name(command: &Command) -> &str {
    command
        .get_display_name()
        .unwrap_or_else(|| command.get_name())
}

fn page(command: &Command, parent: Option<&Command>) -> io::Result<String> {
    let source = concat!("extant ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).source(source).manual("Extant");
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    section(&mut out, "SYNOPSIS", &synopsis(command));
    man.render_description_section(&mut out)?;
    section(
        &mut out,
        "ARGUMENTS",
        &arguments(command, Arg::is_positional)?,
    );
    section(
        &mut out,
        "OPTIONS",
        &arguments(command, |arg| !arg.is_positional())?,
    );
    if command.has_subcommands() {
        man.render_subcommands_section(&mut out)?;
    }
    let text = command.get_after_help().map(ToString::to_string);
    let below = Below::of(&text.unwrap_or_default());
    let more = MORE.iter().find(|more| {
        let rest = name(command).strip_prefix(more.command);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    });
    let environment = more.map_or(&[][..], |more| more.environment);
    let files = more.map_or(&[][..], |more| more.files);
    section(&mut out, "NOTES", &below.notes);
    section(&mut out, "EXIT STATUS", &below.exit_status);
    section(&mut out, "ENVIRONMENT", &list(environment));
    section(&mut out, "FILES", &list(files));
    section(&mut out, "EXAMPLES", &below.examples);
    section(&mut out, "SEE ALSO", &see_also(command, parent, more));
    Ok(String::from_utf8_lossy(&out).into_owned())
}

fn section(out: &mut Vec<u8>, heading: &str, content: &str) {
    if !content.is_empty() {
        out.extend(format!(".SH {}\n{content}", quoted(heading)).bytes());
    }
}

/// A heading of several words is one argument.
fn quoted(heading: &str) -> String {
    if heading.contains(' ') {
        format!("\"{heading}\"")
    } else {
        heading.to_owned()
    }
}

fn synopsis(command: &Command) -> String {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim().trim_start_matches("Usage:").trim();
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let rest = usage.strip_prefix(name).unwrap_or_default().trim();
    format!(".B {}\n{}", escaped(name), lines(rest))
}

/// The items of one of clap's sections, with the arguments that are `wanted`.
fn arguments(command: &Command, wanted: impl Fn(&Arg) -> bool) -> io::Result<String> {
    let chosen = command
        .clone()
        .mut_args(|arg| if wanted(&arg) { arg } else { arg.hide(true) });
    let mut out = Vec::new();
    if chosen.get_arguments().any(|arg| !arg.is_hide_set()) {
        Man::new(chosen).render_options_section(&mut out)?;
    }
    let text = String::from_utf8_lossy(&out).into_owned();
    Ok(text.replacen(".SH OPTIONS\n", "", 1))
}

/// The text below the options, by section.
#[derive(Default)]
struct Below {
    examples: String,
    exit_status: String,
    notes: String,
}

impl Below {
    fn of(text: &str) -> Self {
        let mut found = Self::default();
        let mut section = "";
        for block in blocks(text) {
            match &block {
                Block::Gap => continue,
                Block::Text(text) if text.starts_with("Examples") => section = "examples",
                Block::Text(text) if text.starts_with("Exit status") => {
                    section = "exit";
                    found.exit_status.push_str(&format!(".PP\n{}", lines(text)));
                    if text.contains("see extant --help") {
                        found.exit_status = Self::of(exit::HELP).exit_status;
                    }
                }
                Block::Rows(rows) if section == "examples" => {
                    found.examples.extend(rows.iter().map(example));
                }
                Block::Rows(rows) if section == "exit" => {
                    found.exit_status.extend(rows.iter().map(item));
                }
                Block::Rows(rows) => found.notes.extend(rows.iter().map(item)),
                Block::Text(text) => {
                    section = "notes";
                    found.notes.push_str(&format!(".PP\n{}", lines(text)));
                }
            }
        }
        if found.exit_status.is_empty() && text != exit::HELP {
            found.exit_status = Self::of(exit::HELP).exit_status;
        }
        found
    }
}

/// A command line, and its effect.
fn example(row: &Row) -> String {
    let mut out = format!(".PP\n.nf\n{}.fi\n", lines(&row.left));
    if !row.right.is_empty() {
        out.push_str(&format!(".RS 4\n{}.RE\n", lines(&row.right)));
    }
    out
}

fn item(row: &Row) -> String {
    format!(".TP\n{}{}", lines(&row.left), lines(&row.right))
}

fn list(items: &[(&str, &str)]) -> String {
    let items = items.iter().map(|(left, right)| Row {
        left: (*left).to_owned(),
        right: (*right).to_owned(),
    });
    items.map(|row| item(&row)).collect()
}

fn see_also(command: &Command, parent: Option<&Command>, more: Option<&More>) -> String {
    let mut pages: Vec<String> = parent
        .iter()
        .map(|above| format!("{}(1)", name(above)))
        .collect();
    let below = command
        .get_subcommands()
        .filter(|below| !below.is_hide_set());
    pages.extend(below.map(|below| format!("{}(1)", name(below))));
    pages.extend(
        more.iter()
            .flat_map(|more| more.see_also)
            .map(|page| (*page).to_owned()),
    );
    lines(&pages.join(", "))
}

/// A line of text, if there is any; never a request.
fn lines(text: &str) -> String {
    if text.is_empty() {
        String::new()
    } else if text.starts_with(['.', '\'']) {
        format!("\\&{}\n", escaped(text))
    } else {
        format!("{}\n", escaped(text))
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}
