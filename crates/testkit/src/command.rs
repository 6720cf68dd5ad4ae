//! Other programs: found, run, and quoted in full when they fail.
//!
//! A failed oracle is only useful if the log shows the command and its answer, so every failure
//! carries the command line, the status and the output.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;
use std::process::{Command, Output};

/// A program that could not be run, or that ended with a failure.
#[derive(Debug)]
pub struct Failure {
    command: String,
    trouble: String,
}

impl Failure {
    /// The message about the failed `command`.
    pub(crate) fn new(command: &Command, trouble: impl Into<String>) -> Self {
        Self {
            command: line(command),
            trouble: trouble.into(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}", self.command, self.trouble)
    }
}

impl std::error::Error for Failure {}

/// Path of the installed `name`: in `PATH`, or where system tools live, which the `PATH` of an
/// ordinary user may lack.
pub fn find(name: &str) -> Option<PathBuf> {
    let mut path = env::var_os("PATH").unwrap_or_default();
    path.push(OsString::from(":/usr/sbin:/sbin"));
    env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
}

/// The program `name`, with messages in English.
pub fn tool(name: &str) -> Command {
    let mut command = Command::new(find(name).unwrap_or_else(|| name.into()));
    command.env("LC_ALL", "C");
    command
}

/// The example `name` of the crate under test.
///
/// # Panics
/// If it has not been built, as by `cargo test --test NAME`: `cargo test -p CRATE` builds it.
#[track_caller]
pub fn example(name: &str) -> Command {
    let test = env::current_exe().expect("a test program has a path");
    let profile = test.ancestors().nth(2).expect("it is in deps");
    let path = profile.join("examples").join(name);
    assert!(path.exists(), "{} has not been built", path.display());
    Command::new(path)
}

/// Runs `command` to its end; a status other than 0 is a failure.
pub fn run(command: &mut Command) -> Result<Output, Failure> {
    let output = run_any_status(command)?;
    if output.status.success() {
        Ok(output)
    } else {
        Err(Failure::new(command, describe(&output)))
    }
}

/// Runs `command` to its end, whatever its status.
pub fn run_any_status(command: &mut Command) -> Result<Output, Failure> {
    command
        .output()
        .map_err(|error| Failure::new(command, error.to_string()))
}

/// Output of `command`.
pub fn text(command: &mut Command) -> Result<String, Failure> {
    Ok(String::from_utf8_lossy(&run(command)?.stdout).into_owned())
}

/// The status and all output of a program.
pub fn describe(output: &Output) -> String {
    format!(
        "{}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// The command as one would type it, without quotes.
pub fn line(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Runs a command that the kit itself depends on.
///
/// # Panics
/// When it fails.
#[track_caller]
pub fn must(command: &mut Command) -> Output {
    run(command).unwrap_or_else(|failure| panic!("{failure}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_quotes_command_status_and_output() {
        let failure = run(tool("sh").args(["-c", "echo out; echo err >&2; exit 3"])).unwrap_err();
        let message = failure.to_string();
        for part in ["-c echo out", "exit status: 3", "out\n", "err\n"] {
            assert!(message.contains(part), "{part:?} not in {message:?}");
        }
    }

    #[test]
    fn missing_program_is_a_failure() {
        assert!(find("extant-no-such-program").is_none());
        assert!(run(&mut tool("extant-no-such-program")).is_err());
    }
}
