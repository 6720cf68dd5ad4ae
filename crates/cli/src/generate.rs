//! Shell completions and man pages, made from the commands themselves.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use extant_space::{Error, Result};

use crate::exit::{self, Style};
use crate::{Cli, print};

/// Print a completion script for a shell.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant completions bash > ~/.local/share/bash-completion/completions/extant
  extant completions fish > ~/.config/fish/completions/extant.fish
  extant completions zsh > /usr/local/share/zsh/site-functions/_extant")]
pub struct CompletionsArgs {
    /// The shell
    pub shell: Shell,
}

/// Write the man pages to a directory.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant man ~/.local/share/man/man1
  extant man /tmp/pages && man /tmp/pages/extant-create.1")]
pub struct ManArgs {
    /// Where; made if missing
    pub directory: PathBuf,
}

/// Prints the script.
pub fn completions(args: &CompletionsArgs) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "extant", &mut script);
    print::text(String::from_utf8_lossy(&script).trim_end())
}

/// Writes the pages.
pub fn man(args: &ManArgs) -> ExitCode {
    let write = || -> Result<()> {
        let fail = |source| {
            Error::from(source)
                .at(&args.directory)
                .during("write man pages")
        };
        fs::create_dir_all(&args.directory).map_err(fail)?;
        clap_mangen::generate_to(Cli::command(), &args.directory).map_err(fail)
    };
    match write() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error, Style::Line),
    }
}
