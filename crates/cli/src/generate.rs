//! Shell completions and man pages, made from the commands themselves.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use clap_complete::env::Shells;
use extant_space::{Error, Result};

use crate::exit::{self, Style};
use crate::{Cli, complete, man, print};

/// Print a script that makes a shell complete the arguments of this command.
///
/// The script asks the program itself, so it also completes names of pools and volumes and numbers
/// of jobs, and need not be generated again when the program is replaced.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  source <(extant completions bash)                in ~/.bashrc
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
  extant man ~/.local/share/man        man finds them there
  extant man /tmp/pages && man /tmp/pages/man1/extant-create.1")]
pub struct ManArgs {
    /// Where; the pages are in man1, man3 and man5 below it, which are made if missing
    pub directory: PathBuf,
}

/// Prints the script.
pub fn completions(args: &CompletionsArgs) -> ExitCode {
    let shells = Shells::builtins();
    let shell = shells.completer(&args.shell.to_string());
    let mut script = Vec::new();
    shell
        .expect("both have the same names of shells")
        .write_registration(
            complete::VARIABLE,
            "extant",
            "extant",
            "extant",
            &mut script,
        )
        .expect("writing to memory does not fail");
    print::text(String::from_utf8_lossy(&script).trim())
}

/// Writes the pages.
pub fn man(args: &ManArgs) -> ExitCode {
    let directory = &args.directory;
    let write = || -> Result<usize> {
        let fail = |path: &Path, source| Error::from(source).at(path).during("write man pages");
        let make = |path: &Path| fs::create_dir_all(path).map_err(|source| fail(path, source));
        make(directory)?;
        for section in ["man1", "man3", "man5"] {
            make(&directory.join(section))?;
        }
        let pages = man::pages(Cli::command()).map_err(|source| fail(directory, source))?;
        for page in &pages {
            let path = directory.join(&page.name);
            fs::write(&path, &page.text).map_err(|source| fail(&path, source))?;
        }
        Ok(pages.len())
    };
    match write() {
        Ok(pages) => print::text(format!("{}: {pages} man pages", print::path(directory))),
        Err(error) => exit::report(&error, Style::Line),
    }
}
