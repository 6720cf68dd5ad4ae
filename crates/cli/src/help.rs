//! The texts below the options of a help page: prose, and rows of two columns such as examples.
//!
//! They are written once, without regard to a width: here they are laid out for the terminal, in
//! `man.rs` for man pages.

use std::ffi::OsString;

use clap::error::{ContextKind, ErrorKind};
use clap::{Command, Error};
use unicode_width::UnicodeWidthStr;

const WIDTH_MAX: usize = 100;
const WIDTH_MIN: usize = 40;
/// Columns before a row.
const INDENT: usize = 2;
/// A line of a row that is indented by this much continues the right column of the row above.
const CONTINUATION_INDENT: usize = 8;
/// An unindented line of this length was wrapped manually: the next one belongs to the same
/// paragraph.
const WRAPPED_LENGTH: usize = 70;

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block {
    /// A paragraph, on one line.
    Text(String),
    /// Consecutive indented lines.
    Rows(Vec<Row>),
    /// An empty line.
    Gap,
}

/// An indented line: the text before two spaces, and the text behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub left: String,
    /// May be empty.
    pub right: String,
}

impl Row {
    fn of(line: &str) -> Self {
        let (left, right) = line.split_once("  ").unwrap_or((line, ""));
        Self {
            left: left.to_owned(),
            right: right.trim_start().to_owned(),
        }
    }
}

/// The parts of `text`.
pub fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut is_wrapped = false;
    for line in text.lines() {
        let content = line.trim();
        let indent = line.len() - line.trim_start().len();
        let is_joined = is_wrapped && !content.starts_with("Exit status");
        match (blocks.last_mut(), indent) {
            _ if content.is_empty() => blocks.push(Block::Gap),
            (Some(Block::Text(text)), 0) if is_joined => {
                text.push(' ');
                text.push_str(content);
            }
            (_, 0) => blocks.push(Block::Text(content.to_owned())),
            (Some(Block::Rows(rows)), CONTINUATION_INDENT..) => {
                let last = rows.last_mut().expect("never empty");
                last.right.push(' ');
                last.right.push_str(content);
            }
            (Some(Block::Rows(rows)), _) => rows.push(Row::of(content)),
            _ => blocks.push(Block::Rows(vec![Row::of(content)])),
        }
        is_wrapped = indent == 0 && line.len() >= WRAPPED_LENGTH;
    }
    blocks
}

/// `command` with every word that begins with a hyphen taken for an option.
fn without_hyphen_values(command: Command) -> Command {
    command
        .mut_args(|argument| argument.allow_hyphen_values(false))
        .mut_subcommands(without_hyphen_values)
}

/// The error about a misspelt option, where a value with a hyphen may be in its place: without
/// such values the option is named, with a suggestion.
pub fn better_error(
    error: Error,
    command: impl FnOnce() -> Command,
    arguments: &[OsString],
) -> Error {
    if !matches!(
        error.kind(),
        ErrorKind::UnknownArgument | ErrorKind::ValueValidation
    ) {
        return error;
    }
    match without_hyphen_values(command()).try_get_matches_from(arguments) {
        Err(named) if named.kind() == ErrorKind::UnknownArgument => {
            let word = named.get(ContextKind::InvalidArg);
            let is_long = word.is_some_and(|word| word.to_string().starts_with("--"));
            if is_long { named } else { error }
        }
        _ => error,
    }
}

/// `command` with the texts of all commands laid out for the terminal.
pub fn lay_out(command: Command) -> Command {
    let columns = match terminal_size::terminal_size() {
        Some((terminal_size::Width(columns), _)) => Some(usize::from(columns)),
        // As clap does for the options.
        None => std::env::var("COLUMNS")
            .ok()
            .and_then(|text| text.parse().ok()),
    };
    let columns = columns.unwrap_or(WIDTH_MAX);
    lay_out_for(command, columns.clamp(WIDTH_MIN, WIDTH_MAX))
}

fn lay_out_for(command: Command, columns: usize) -> Command {
    let text = command.get_after_help().map(|text| text.to_string());
    let command = match text {
        Some(text) => command.after_help(laid_out(&text, columns)),
        None => command,
    };
    command.mut_subcommands(|below| lay_out_for(below, columns))
}

/// `text` with rows of at most `columns`. Prose is left to clap, which wraps it.
fn laid_out(text: &str, columns: usize) -> String {
    let mut out = String::new();
    for block in blocks(text) {
        match block {
            Block::Text(text) => out.push_str(&text),
            Block::Gap => {}
            Block::Rows(rows) => {
                out.push_str(&laid_out_rows(&rows, columns));
                continue;
            }
        }
        out.push('\n');
    }
    out.truncate(out.trim_end().len());
    out
}

fn laid_out_rows(rows: &[Row], columns: usize) -> String {
    let left_max = columns * 5 / 8;
    let lefts = rows.iter().filter(|row| !row.right.is_empty());
    let widths = lefts.map(|row| row.left.width());
    let left = widths.filter(|&width| width <= left_max).max().unwrap_or(4);
    let column = INDENT + left + 2;
    let mut out = String::new();
    for row in rows {
        out.push_str(&format!("{:INDENT$}{}", "", row.left));
        let mut at = INDENT + row.left.width();
        for line in wrapped(&row.right, columns - column) {
            if at + 2 > column {
                out.push('\n');
                at = 0;
            }
            out.push_str(&format!("{:1$}{line}", "", column - at));
            at = columns;
        }
        out.push('\n');
    }
    out
}

/// The words of `text` in lines of at most `columns`, or of one word.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.width() + 1 + word.width() <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
Examples:
  extant a b                 short
  extant a --with-many-options --and-values=1  behind a long command there is a long remark
  extant plain

DIR holds what is needed, which is said in a line that is wrapped at seventy,
and continues here.
Exit status: see extant --help.";

    #[test]
    fn rows_are_aligned_and_wrapped_and_prose_is_joined() {
        let wanted = "\
Examples:
  extant a b  short
  extant a --with-many-options --and-values=1
              behind a long command
              there is a long remark
  extant plain

DIR holds what is needed, which is said in a line that is wrapped at seventy, and continues here.
Exit status: see extant --help.";
        assert_eq!(laid_out(TEXT, 40), wanted);
    }

    #[test]
    fn line_that_is_indented_far_continues_the_row_above() {
        let found = blocks("  io_uring    requests through it\n              where it is there");
        let row = Row {
            left: "io_uring".to_owned(),
            right: "requests through it where it is there".to_owned(),
        };
        assert_eq!(found, [Block::Rows(vec![row])]);
    }
}
