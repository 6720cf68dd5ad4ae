//! Output that survives a reader who has seen enough (`| head`).

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use extant_space::Error;
use serde::Serialize;

/// Prints `value` as it is.
pub fn text(value: impl Display) -> ExitCode {
    write(format!("{value}\n").as_bytes())
}

/// Prints `value` as indented JSON.
pub fn json(value: &impl Serialize) -> ExitCode {
    text(json_text(value))
}

/// `value` as indented JSON.
pub fn json_text(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).expect("reports are plain data")
}

/// `value` as indented JSON and nothing else, for what has to look as another program prints it.
pub fn plain_json(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).expect("reports are plain data")
}

fn write(bytes: &[u8]) -> ExitCode {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("extant: standard output: {error}");
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

/// Standard output took no more.
pub fn output_error(source: io::Error) -> Error {
    Error::from(source).during("write to stdout")
}
