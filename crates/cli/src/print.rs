//! Results on stdout: text, or JSON documents that carry their schema version.
//!
//! A reader that closes the pipe early (`| head`) is no error. With `--quiet` nothing is printed.
//!
//! Format: docs/formats/json.md.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use extant_space::Error;
use serde::Serialize;

/// Increased when a field of a document changes its name or its meaning; new fields do not change
/// it.
pub const SCHEMA_VERSION: u32 = 1;

/// `--quiet`; set once, before the command runs.
static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// Results and progress are not printed from now on; errors are.
pub fn be_quiet() {
    IS_QUIET.store(true, Ordering::Relaxed);
}

/// Whether only errors are printed.
pub fn is_quiet() -> bool {
    IS_QUIET.load(Ordering::Relaxed)
}

/// Prints `value` unchanged.
pub fn text(value: impl Display) -> ExitCode {
    if is_quiet() {
        ExitCode::SUCCESS
    } else {
        write(format!("{value}\n").as_bytes())
    }
}

/// Prints `value` as an indented JSON document.
pub fn json(value: &impl Serialize) -> ExitCode {
    text(json_text(value))
}

/// `value` as an indented JSON document.
pub fn json_text(value: &impl Serialize) -> String {
    let text = serde_json::to_string_pretty(value).expect("reports are plain data");
    with_version(text, "\n  ")
}

/// `value` as a JSON document on one line.
pub fn json_line(value: &impl Serialize) -> String {
    let text = serde_json::to_string(value).expect("reports are plain data");
    with_version(text, "")
}

/// The schema version becomes the first field of an object. Lists, which only the commands with
/// qemu-img's output print, have none.
fn with_version(text: String, indent: &str) -> String {
    match text.strip_prefix('{') {
        Some("}") => format!("{{{indent}\"schema_version\":{SCHEMA_VERSION}}}"),
        Some(fields) => format!("{{{indent}\"schema_version\":{SCHEMA_VERSION},{fields}"),
        None => text,
    }
}

/// `value` as indented JSON and nothing else, for output in the format of another program.
pub fn plain_json(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).expect("reports are plain data")
}

/// `status`, unless the result could not be printed.
pub fn unless_lost(printed: ExitCode, status: ExitCode) -> ExitCode {
    if printed == ExitCode::SUCCESS {
        status
    } else {
        printed
    }
}

/// A line on stderr beside the result. A reader that has closed it misses the line.
pub fn note(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

fn write(bytes: &[u8]) -> ExitCode {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            note(format_args!("extant: {}", output_error(error)));
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// A path on one line: quoted when a control character in it would break it.
pub fn path(path: &Path) -> String {
    let shown = path.to_string_lossy();
    if shown.chars().any(char::is_control) {
        format!("{shown:?}")
    } else {
        shown.into_owned()
    }
}

/// A name and a value, in the columns that all reports use.
pub fn row(out: &mut String, name: &str, value: impl Display) {
    use std::fmt::Write;
    let _ = write!(out, "\n  {name:<9} {value}");
}

/// Standard output is closed.
pub fn output_error(source: io::Error) -> Error {
    Error::from(source).during("write to stdout")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn schema_version_is_the_first_field_of_every_object() {
        let (empty, full) = (json!({}), json!({"a": [1], "b": {}}));
        for value in [empty, full] {
            for text in [json_text(&value), json_line(&value)] {
                let mut parsed: Value = serde_json::from_str(&text).expect(&text);
                let start = text.trim_start_matches(['{', '\n', ' ']);
                assert!(start.starts_with("\"schema_version\":"), "{text}");
                assert_eq!(parsed["schema_version"], SCHEMA_VERSION);
                parsed.as_object_mut().unwrap().remove("schema_version");
                assert_eq!(parsed, value);
            }
        }
        assert_eq!(json_line(&json!([1])), "[1]");
    }
}
