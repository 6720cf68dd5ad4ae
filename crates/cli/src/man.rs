//! Man pages: clap_mangen renders the data of clap; the text below the help becomes EXAMPLES, NOTES
//! and EXIT STATUS.
//!
//! FILES, ENVIRONMENT and SEE ALSO are the tables below. SYNOPSIS names every option and its value.
//! `mandoc -Tlint` has nothing to say about the result.

use std::io;

use clap::{Arg, ArgAction, Command};
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
const NO_COLOR: (&str, &str) = ("NO_COLOR", "Print no colours, unless it is empty.");

/// The date of the pages: that of the last change of their contents, so that they are reproducible.
const DATE: &str = "2026-11-25";
/// Longest line of text, in bytes.
const LINE_BYTES_MAX: usize = 78;
/// Heading of the options that every command has, which SYNOPSIS leaves out.
const OF_ALL: &str = "Tracing";

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
        text: tidied(text),
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
    let man = Man::new(command.clone());
    let title = escaped(&name(command).to_uppercase());
    let version = env!("CARGO_PKG_VERSION");
    let mut out = format!(".TH {title} 1 {DATE} \"extant {version}\" Extant\n").into_bytes();
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
    Ok(tidied(&String::from_utf8_lossy(&out)))
}

/// Without macros that have no effect, and with lines of at most [`LINE_BYTES_MAX`].
fn tidied(page: &str) -> String {
    let page = page.replace(".br\n\n.br\n", ".sp\n");
    let mut out = String::new();
    let mut is_after_heading = false;
    let mut is_literal = false;
    let mut quotes_are_defined = false;
    for line in page.lines() {
        let defines_quotes = line.starts_with(".ie ") || line.starts_with(".el ");
        if (defines_quotes && quotes_are_defined) || (line == ".PP" && is_after_heading) {
            continue;
        }
        quotes_are_defined |= line.starts_with(".el ");
        is_after_heading = line.starts_with(".SH");
        is_literal = (is_literal || line == ".nf") && line != ".fi";
        if is_literal || line.starts_with('.') {
            out.extend([line, "\n"]);
        } else {
            wrap(line, &mut out);
        }
    }
    out
}

/// Breaks a line of text between words; no part of it becomes a request.
fn wrap(line: &str, out: &mut String) {
    let mut length = 0;
    for word in line.split_ascii_whitespace() {
        if length > 0 && length + 1 + word.len() > LINE_BYTES_MAX {
            out.push('\n');
            length = 0;
            if word.starts_with(['.', '\'']) {
                out.push_str("\\&");
            }
        } else if length > 0 {
            out.push(' ');
            length += 1;
        }
        out.push_str(word);
        length += word.len();
    }
    out.push('\n');
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
    let options: String = command
        .get_arguments()
        .filter(|arg| !arg.is_positional() && !arg.is_hide_set())
        .filter(|arg| arg.get_help_heading() != Some(OF_ALL))
        .filter(|arg| !matches!(arg.get_action(), ArgAction::Help | ArgAction::Version))
        .map(|arg| option(arg) + "\n")
        .collect();
    let rest = rest.strip_prefix("[OPTIONS]").unwrap_or(rest).trim();
    format!(".B {}\n{options}{}", escaped(name), lines(rest))
}

/// An option and its value: `[--rate BYTES/s]`.
fn option(arg: &Arg) -> String {
    let name = match (arg.get_long(), arg.get_short()) {
        (Some(long), _) => format!("--{long}"),
        (None, Some(short)) => format!("-{short}"),
        (None, None) => return String::new(),
    };
    let value = if arg.get_action().takes_values() {
        let names = arg.get_value_names().unwrap_or_default();
        let is_optional = arg
            .get_num_args()
            .is_some_and(|count| count.min_values() == 0);
        let value: Vec<_> = names
            .iter()
            .map(|name| format!("\\fI{}\\fR", escaped(name)))
            .collect();
        let value = value.join(" ");
        if is_optional {
            format!("[={value}]")
        } else {
            format!(" {value}")
        }
    } else {
        String::new()
    };
    let again = match arg.get_action() {
        ArgAction::Append | ArgAction::Count => "...",
        _ => "",
    };
    let shown = format!("\\fB{}\\fR{value}", escaped(&name));
    if arg.is_required_set() {
        format!("{shown}{again}")
    } else {
        format!("[{shown}]{again}")
    }
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
