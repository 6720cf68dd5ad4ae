//! Exit status, and the one line that explains it.

use std::process::ExitCode;

use extant_space::{Error, ErrorKind};
use serde::Serialize;

use crate::remedy::Shown;

/// After SIGINT or SIGTERM.
pub const CANCELLED: u8 = 130;

/// Shown below every help text.
pub const HELP: &str = "\
Exit status (extant fallocate: 0 or 1, as fallocate(1); 130 when cancelled):
  0    done
  1    failed: the device, or a result that is not what was asked for
  2    wrong arguments
  3    not enough space, over quota, or too large
  4    the path cannot be used: missing, taken, in use, not a regular file, read-only, forbidden
  5    this file system cannot do it (copy-on-write among others)
  130  cancelled (Ctrl-C, SIGTERM)";

/// How an error is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// `extant: path: what`
    Line,
    /// One JSON object on one line.
    Json,
}

#[derive(Serialize)]
struct Failure {
    event: &'static str,
    kind: ErrorKind,
    message: String,
    path: Option<String>,
    exit_status: u8,
}

/// Tells `error` on stderr; the exit status that belongs to it.
pub fn report(error: &Error, style: Style) -> ExitCode {
    tell(error, style, status(error.kind()))
}

/// The same for a command with statuses of its own: whatever went wrong is `failed`, but for a cancel.
pub fn report_as(error: &Error, style: Style, failed: u8) -> ExitCode {
    let status = match error.kind() {
        ErrorKind::Cancelled => CANCELLED,
        _ => failed,
    };
    tell(error, style, status)
}

fn tell(error: &Error, style: Style, status: u8) -> ExitCode {
    match style {
        Style::Line => eprintln!("extant: {}", Shown(error)),
        Style::Json => {
            let failure = Failure {
                event: "error",
                kind: error.kind(),
                message: Shown(error).to_string(),
                path: error.path().map(|path| path.to_string_lossy().into_owned()),
                exit_status: status,
            };
            let line = serde_json::to_string(&failure).expect("plain words and numbers");
            eprintln!("{line}");
        }
    }
    ExitCode::from(status)
}

/// Tells what is wrong with the arguments, on one line; help and version go to stdout.
pub fn usage(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if !error.use_stderr() || error.kind() == DisplayHelpOnMissingArgumentOrSubcommand {
        error.exit();
    }
    let text = error.render().to_string();
    // The paragraphs: what is wrong, tips, usage, where to find help.
    let what = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = what.split_whitespace().skip(1).collect();
    eprintln!("extant: {}; try --help", words.join(" "));
    ExitCode::from(2)
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
