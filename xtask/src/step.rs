//! Steps: a heading, a command, an error that names the failed one.

use std::ffi::OsStr;
use std::io::{IsTerminal, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Announces a step on standard error, where cargo's own output goes as well.
pub fn heading(name: &str) {
    let mut stderr = std::io::stderr().lock();
    // A closed standard error is no reason to stop.
    let _ = if stderr.is_terminal() {
        writeln!(stderr, "\n\x1b[1m== {name}\x1b[0m")
    } else {
        writeln!(stderr, "\n== {name}")
    };
}

/// Runs a command with the caller's input and output; an unsuccessful end is an error.
pub fn run(command: &mut Command) -> Result<()> {
    let line = shown(command);
    let status = command
        .status()
        .with_context(|| format!("`{line}` does not start"))?;
    if !status.success() {
        bail!("`{line}` failed ({status})");
    }
    Ok(())
}

/// Runs a command without input, and quotes all that it printed when it fails.
pub fn run_quietly(command: &mut Command) -> Result<()> {
    let line = shown(command);
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("`{line}` does not start"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    bail!(
        "`{line}` failed ({})\n{}",
        output.status,
        String::from_utf8_lossy(&said).trim_end()
    );
}

/// Runs a command and returns its standard output; standard error is the caller's.
pub fn output(command: &mut Command) -> Result<String> {
    let line = shown(command);
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("`{line}` does not start"))?;
    if !output.status.success() {
        bail!("`{line}` failed ({})", output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{line}` did not print UTF-8"))
}

/// The command as one would type it, for messages.
pub fn shown(command: &Command) -> String {
    let program = command.get_program();
    let program = std::path::Path::new(program).file_name().unwrap_or(program);
    let words = std::iter::once(program).chain(command.get_args());
    words
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_of_failing_command_names_it() {
        let error = run(Command::new("/bin/false").arg("--now")).unwrap_err();
        assert_eq!(
            format!("{error:#}"),
            "`false --now` failed (exit status: 1)"
        );
    }

    #[test]
    fn run_of_missing_program_names_it() {
        let error = run(&mut Command::new("extant-no-such-program")).unwrap_err();
        assert!(format!("{error:#}").starts_with("`extant-no-such-program` does not start: "));
    }

    #[test]
    fn output_returns_the_printed_text() {
        assert_eq!(output(Command::new("echo").arg("a b")).unwrap(), "a b\n");
    }
}
