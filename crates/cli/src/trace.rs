//! `--trace FILTER`: events of `tracing` on standard error, in a file, or in the system's log.
//!
//! Every command has these options, `fallocate` with a parser of its own among them, so they are
//! taken from the arguments before the command reads these; clap knows them for help, man pages and
//! completion. Each has an environment variable, which the option overrides, and which carries the
//! settings to servers in the background and to detached jobs. Their standard error is gone: they
//! report to the system's log, unless there is a file.
//!
//! Events: docs/internals/tracing.md. Filters and output are those of `tracing-subscriber`, the
//! usual listener.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use clap::Args;
use extant_space::trace::tracing::subscriber::{self, Subscriber};
use extant_space::{Error, ErrorKind, Result};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::{Directive, LevelFilter};
use tracing_subscriber::fmt::writer::BoxMakeWriter;

use crate::system_log::{Severity, SystemLog};

/// The crates that report events.
const TARGETS: [&str; 8] = [
    "extant_blockdev",
    "extant_export",
    "extant_ext4",
    "extant_hostfs",
    "extant_image",
    "extant_jbd2",
    "extant_pool",
    "extant_provision",
];

/// Options of all commands, and the variables that stand for them.
const SETTINGS: [Setting; 3] = [
    Setting("--trace", "EXTANT_TRACE"),
    Setting("--trace-file", "EXTANT_TRACE_FILE"),
    Setting("--trace-format", "EXTANT_TRACE_FORMAT"),
];

/// Forms of an event.
const FORMATS: [&str; 2] = ["text", "json"];

/// An option and its environment variable.
#[derive(Clone, Copy)]
struct Setting(&'static str, &'static str);

/// The same, for help.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Tracing")]
pub struct TraceArgs {
    /// Report what is done, with ranges and durations: a level (error to trace), or TARGET=LEVEL
    /// for single crates such as extant_ext4, separated by commas [env: EXTANT_TRACE]
    #[arg(long, global = true, value_name = "FILTER")]
    pub trace: Option<String>,

    /// Append the report to FILE, not to standard error [env: EXTANT_TRACE_FILE]
    #[arg(long, global = true, value_name = "FILE")]
    pub trace_file: Option<PathBuf>,

    /// Form of the report: text, or json for an object on each line [default: text]
    /// [env: EXTANT_TRACE_FORMAT]
    #[arg(long, global = true, value_name = "FORMAT", value_parser = FORMATS)]
    #[arg(hide_possible_values = true)]
    pub trace_format: Option<String>,
}

/// The variables for processes that this one starts; set once.
static ENVIRONMENT: OnceLock<Vec<(&str, OsString)>> = OnceLock::new();
/// Set when standard error is gone.
static SYSTEM_LOG: OnceLock<Option<SystemLog>> = OnceLock::new();

/// Takes the options from `arguments`, and listens to events if there is a filter.
///
/// # Errors
/// `InvalidArgument` with the part of the filter that is wrong; those of opening the file.
pub fn start(arguments: &mut Vec<OsString>) -> Result<()> {
    let options = SETTINGS.map(|Setting(option, _)| take(arguments, option));
    let is_given = options.iter().position(Option::is_some);
    let mut given = SETTINGS.iter().zip(options).map(|(setting, option)| {
        let Setting(name, variable) = *setting;
        let named = option.map(|value| (name, value));
        named.or_else(|| Some((variable, std::env::var_os(variable)?)))
    });
    let mut next = || {
        given
            .next()
            .flatten()
            .filter(|(_, value)| !value.is_empty())
    };
    let (filter, file, format) = (next(), next(), next());
    let Some((name, filter)) = filter else {
        return match is_given {
            None => Ok(()),
            Some(at) => Err(wrong(SETTINGS[at].0, "needs --trace FILTER")),
        };
    };
    let text = filter.to_str().ok_or_else(|| wrong(name, "is not text"))?;
    let parsed = parse(text).map_err(|detail| wrong(name, detail))?;
    let mut environment = vec![("EXTANT_TRACE", OsString::from(text))];
    let writer = match &file {
        None => BoxMakeWriter::new(|| StandardError),
        Some((_, path)) => {
            // For processes elsewhere.
            let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
            environment.push(("EXTANT_TRACE_FILE", path.clone().into()));
            BoxMakeWriter::new(Arc::new(open(&path)?))
        }
    };
    let is_json = match &format {
        None => false,
        Some((name, word)) => {
            let at = FORMATS.iter().position(|format| word == format);
            environment.push(("EXTANT_TRACE_FORMAT", word.clone()));
            at.ok_or_else(|| wrong(name, "is text or json"))? == 1
        }
    };
    let listener = tracing_subscriber::fmt()
        .with_env_filter(parsed)
        .with_writer(writer)
        .log_internal_errors(false);
    if is_json {
        install(listener.json().flatten_event(true).finish());
    } else {
        install(listener.finish());
    }
    let _ = ENVIRONMENT.set(environment);
    Ok(())
}

/// The variables that a process started by this one needs to report as well.
pub fn environment() -> impl Iterator<Item = (&'static str, &'static OsStr)> {
    let variables = ENVIRONMENT.get().into_iter().flatten();
    variables.map(|(name, value)| (*name, value.as_os_str()))
}

/// Standard error is gone: events go to the system's log, unless they go to a file.
pub fn leave_standard_error() {
    if ENVIRONMENT.get().is_some() {
        let _ = SYSTEM_LOG.set(SystemLog::connect());
    }
}

fn install(listener: impl Subscriber + Send + Sync) {
    subscriber::set_global_default(listener).expect("the only listener of the process");
}

fn open(path: &Path) -> Result<File> {
    let file = File::options().append(true).create(true).open(path);
    file.map_err(|source| Error::from(source).during("open").at(path))
}

/// Removes the last `option` with its value, and earlier ones; the value. An option without a value
/// is left to clap, which refuses it.
fn take(arguments: &mut Vec<OsString>, option: &str) -> Option<OsString> {
    let mut found = None;
    let mut at = 1;
    while at < arguments.len() && arguments[at] != "--" {
        let word = arguments[at].as_encoded_bytes();
        let rest = word.strip_prefix(option.as_bytes());
        if rest == Some(b"") && at + 1 < arguments.len() {
            found = arguments.drain(at..at + 2).nth(1);
        } else if let Some(value) = rest.and_then(|rest| rest.strip_prefix(b"=")) {
            use std::os::unix::ffi::OsStrExt;
            found = Some(OsStr::from_bytes(value).to_owned());
            arguments.remove(at);
        } else {
            at += 1;
        }
    }
    found
}

fn parse(text: &str) -> Result<EnvFilter, String> {
    let mut filter = EnvFilter::default();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let directive = part.parse::<Directive>();
        let directive = directive.map_err(|error| format!("'{part}': {error}"))?;
        let target = part.split(['=', '[']).next().unwrap_or_default();
        let is_level = part == target && target.parse::<LevelFilter>().is_ok();
        if !is_level && !is_target(target) {
            return Err(format!(
                "'{part}': neither a level (error, warn, info, debug, trace, off) nor for a target \
                 ({})",
                TARGETS.join(", ")
            ));
        }
        filter = filter.add_directive(directive);
    }
    Ok(filter)
}

/// A prefix of a target, as a filter takes it, or a module.
fn is_target(word: &str) -> bool {
    TARGETS.iter().any(|target| {
        let module = word.strip_prefix(target);
        target.starts_with(word) || module.is_some_and(|module| module.starts_with("::"))
    })
}

fn wrong(name: &str, detail: impl AsRef<str>) -> Error {
    Error::new(ErrorKind::InvalidArgument).detail(format!("{name}: {}", detail.as_ref()))
}

/// Standard error, or what stands for it.
struct StandardError;

impl Write for StandardError {
    /// One event with its line end.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match SYSTEM_LOG.get() {
            None => return io::stderr().write(line),
            Some(None) => {}
            Some(Some(log)) => log.send(Severity::Debug, String::from_utf8_lossy(line).trim_end()),
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_is_taken_wherever_it_stands_before_the_double_dash() {
        let taken = |line: &str| {
            let mut words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let found = take(&mut words, "--trace");
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
            (found.unwrap_or_default(), words.join(" "))
        };
        for (line, value, rest) in [
            (
                "extant --trace info create a 1M",
                "info",
                "extant create a 1M",
            ),
            ("extant create --trace=info a", "info", "extant create a"),
            ("extant a --trace x --trace=y b", "y", "extant a b"),
            ("extant a --trace-file f", "", "extant a --trace-file f"),
            ("extant a -- --trace info", "", "extant a -- --trace info"),
            ("extant a --trace", "", "extant a --trace"),
        ] {
            assert_eq!(taken(line), (value.into(), rest.to_owned()), "{line}");
        }
    }

    #[test]
    fn filter_names_the_part_that_is_wrong() {
        for right in [
            "debug",
            "extant=info",
            "extant_ext4::file=trace,warn",
            "extant_jbd2",
        ] {
            assert!(parse(right).is_ok(), "{right}");
        }
        for (wrong, part) in [
            ("extant_ext4=debug,extant_jbd2=loud", "'extant_jbd2=loud'"),
            ("info,deubg", "'deubg'"),
            ("tokio=debug", "'tokio=debug'"),
        ] {
            let error = parse(wrong).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
