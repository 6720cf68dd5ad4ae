//! Exit status, and the one line that explains it.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::error::{ContextKind, ContextValue};
use extant_space::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::print;
use crate::remedy::Shown;

/// After SIGINT or SIGTERM.
pub const CANCELLED: u8 = 130;

/// Shown below every help text.
pub const HELP: &str = "\
Exit status (extant fallocate: 0 or 1, as fallocate(1); 130 when cancelled):
  0    done
  1    failed: the device, or a result that differs from the request
  2    wrong arguments
  3    not enough space, over quota, or too large
  4    the path cannot be used: missing, taken, in use, not a regular file, read-only, forbidden
  5    this file system cannot do it (copy-on-write among others)
  130  cancelled (Ctrl-C, SIGTERM)";

/// Format of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// `extant: path: what`
    Line,
    /// One JSON object on one line.
    Json,
}

/// The command prints JSON, so its errors are JSON too; set once, before it runs.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Errors are JSON from now on, for every requested style.
pub fn use_json() {
    IS_JSON.store(true, Ordering::Relaxed);
}

#[derive(Serialize)]
struct Failure {
    event: &'static str,
    kind: ErrorKind,
    message: String,
    path: Option<String>,
    exit_status: u8,
}

/// Prints `error` on stderr; returns its exit status.
pub fn report(error: &Error, style: Style) -> ExitCode {
    tell(error, style, status(error.kind()))
}

/// The same for a command with statuses of its own: every error except a cancel is `failed`.
pub fn report_as(error: &Error, style: Style, failed: u8) -> ExitCode {
    let status = match error.kind() {
        ErrorKind::Cancelled => CANCELLED,
        _ => failed,
    };
    tell(error, style, status)
}

fn tell(error: &Error, style: Style, status: u8) -> ExitCode {
    let line = if style == Style::Json || IS_JSON.load(Ordering::Relaxed) {
        let failure = Failure {
            event: "error",
            kind: error.kind(),
            message: Shown(error).to_string(),
            path: error.path().map(|path| path.to_string_lossy().into_owned()),
            exit_status: status,
        };
        print::json_line(&failure)
    } else {
        format!("extant: {}", Shown(error))
    };
    // Without stderr the error cannot be reported.
    let _ = writeln!(io::stderr(), "{line}");
    ExitCode::from(status)
}

/// Errors of single files of a command that continues without them, as ls(1) and cp(1) do. Each is
/// printed when it occurs.
#[derive(Debug, Default)]
pub struct Failures {
    first: Cell<Option<ErrorKind>>,
    /// Lines that were printed: a file may be read twice.
    lines: RefCell<HashSet<String>>,
}

impl Failures {
    /// Prints `error`.
    ///
    /// # Errors
    /// `error` itself after a cancel, which ends the command.
    pub fn note(&self, error: Error) -> Result<()> {
        if error.kind() == ErrorKind::Cancelled {
            return Err(error);
        }
        if self.lines.borrow_mut().insert(error.to_string()) {
            report(&error, Style::Line);
        }
        self.first.set(self.first.get().or(Some(error.kind())));
        Ok(())
    }

    /// How many there were.
    pub fn count(&self) -> usize {
        self.lines.borrow().len()
    }

    /// Kind of the first one.
    pub fn kind(&self) -> Option<ErrorKind> {
        self.first.get()
    }

    /// Exit status of a command that has printed its result: that of the first error.
    pub fn status_or(&self, printed: ExitCode) -> ExitCode {
        self.kind()
            .map_or(printed, |kind| ExitCode::from(status(kind)))
    }
}

/// Prints the error in the arguments on one line; help and version are printed on stdout.
pub fn usage(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if !error.use_stderr() || error.kind() == DisplayHelpOnMissingArgumentOrSubcommand {
        error.exit();
    }
    let text = error.render().to_string();
    // The paragraphs: what is wrong, tips, usage, where to find help.
    let what = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = what.split_whitespace().skip(1).collect();
    let message = match similar(error) {
        Some(word) => format!("{}; did you mean '{word}'?", words.join(" ")),
        None => format!("{}; try --help", words.join(" ")),
    };
    let error = Error::new(ErrorKind::InvalidArgument).detail(message);
    report(&error, Style::Line)
}

/// The command, option or value that is most like the one that does not exist.
fn similar(error: &clap::Error) -> Option<&str> {
    let kinds = [
        ContextKind::SuggestedSubcommand,
        ContextKind::SuggestedArg,
        ContextKind::SuggestedValue,
    ];
    kinds.into_iter().find_map(|kind| match error.get(kind)? {
        ContextValue::String(word) => Some(word.as_str()),
        // The last is the most similar.
        ContextValue::Strings(words) => words.last().map(String::as_str),
        _ => None,
    })
}

fn status(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::InvalidArgument => 2,
        ErrorKind::NoSpace | ErrorKind::QuotaExceeded | ErrorKind::TooLarge => 3,
        ErrorKind::NotFound
        | ErrorKind::AlreadyExists
        | ErrorKind::WrongType
        | ErrorKind::NotDirectory
        | ErrorKind::IsDirectory
        | ErrorKind::NotEmpty
        | ErrorKind::TooManyLinks
        | ErrorKind::TooManySymlinks
        | ErrorKind::NameTooLong
        | ErrorKind::NoAttribute
        | ErrorKind::ReadOnly
        | ErrorKind::PermissionDenied
        | ErrorKind::Immutable
        | ErrorKind::NotPermitted
        | ErrorKind::InUse => 4,
        ErrorKind::Unsupported | ErrorKind::CopyOnWrite => 5,
        ErrorKind::Cancelled => CANCELLED,
        // Io, NotKept, and kinds that libraries may add.
        _ => 1,
    }
}
