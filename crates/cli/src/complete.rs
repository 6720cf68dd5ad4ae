//! Shell completion of arguments: names of pools, volumes and jobs, options of `-o`.
//!
//! The script of `extant completions` calls this program, by clap_complete's protocol. A completion
//! changes nothing, never blocks and prints no errors: unreadable names are not offered. Pools in
//! ext4 file-system images are opened under a lock, so their volumes and jobs are not offered.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap_complete::CompleteEnv;
use clap_complete::engine::{CompletionCandidate, PathCompleter, ValueCompleter};
use extant_pool::{Definition, Definitions, Pool, PoolKind};

use crate::Cli;

/// Set by the scripts to the name of the shell.
pub const VARIABLE: &str = "EXTANT_COMPLETE";

/// Answers a shell's completion request and ends the process.
pub fn answer() {
    CompleteEnv::with_factory(Cli::command)
        .var(VARIABLE)
        .complete();
}

/// Defined pools, and directories.
pub fn pools(current: &OsStr) -> Vec<CompletionCandidate> {
    let definitions = Asked::of_process().definitions();
    let defined = definitions.and_then(|definitions| definitions.list().ok());
    let names = defined.unwrap_or_default().into_iter();
    let mut found: Vec<_> = names
        .map(|(name, _)| name.to_string())
        .filter(|name| starts_with(name, current))
        .map(CompletionCandidate::new)
        .collect();
    found.extend(PathCompleter::any().complete(current));
    found
}

/// Volumes of the pool that is named before.
pub fn volumes(current: &OsStr) -> Vec<CompletionCandidate> {
    let volumes = Asked::of_process()
        .pool()
        .and_then(|pool| pool.volumes().ok());
    let names = volumes.unwrap_or_default().into_iter();
    names
        .map(|volume| volume.name.to_string())
        .filter(|name| starts_with(name, current))
        .map(CompletionCandidate::new)
        .collect()
}

/// Jobs of the pool that is named before.
pub fn jobs(current: &OsStr) -> Vec<CompletionCandidate> {
    let jobs = Asked::of_process().pool().and_then(|pool| pool.jobs().ok());
    let all = jobs.unwrap_or_default().into_iter();
    all.map(|job| {
        let help = format!(
            "{}: {} {}",
            job.state.name(),
            job.operation.name(),
            job.operation.volume()
        );
        CompletionCandidate::new(job.id.to_string()).help(Some(help.into()))
    })
    .filter(|job| starts_with(&job.get_value().to_string_lossy(), current))
    .collect()
}

/// Names of options for `-o`, behind those already typed.
pub fn words(
    names: &'static [&'static str],
) -> impl Fn(&OsStr) -> Vec<CompletionCandidate> + Send + Sync + 'static {
    move |current| {
        let current = current.to_string_lossy();
        let (before, last) = match current.rsplit_once(',') {
            Some((before, last)) => (format!("{before},"), last),
            None => (String::new(), &*current),
        };
        let names = names.iter().filter(|name| name.starts_with(last));
        names
            .map(|name| CompletionCandidate::new(format!("{before}{name}")))
            .collect()
    }
}

fn starts_with(word: &str, current: &OsStr) -> bool {
    word.starts_with(&*current.to_string_lossy())
}

/// Whether the next word is the value of `option`.
fn has_value_behind(command: &clap::Command, option: &str) -> bool {
    let is_it = |argument: &&clap::Arg| match option.strip_prefix("--") {
        Some(name) => {
            argument
                .get_all_aliases()
                .is_some_and(|names| names.contains(&name))
                || argument.get_long() == Some(name)
        }
        None => argument.get_short() == option.chars().nth(1) && option.chars().count() == 2,
    };
    command.get_arguments().find(is_it).is_some_and(|argument| {
        argument.get_action().takes_values() && !argument.is_require_equals_set()
    })
}

/// The words typed so far, if they name a pool.
struct Asked {
    words: Vec<OsString>,
}

impl Asked {
    /// Behind `extant -- `, as the scripts call this program.
    fn of_process() -> Self {
        let words = std::env::args_os().skip_while(|word| word != "--");
        Self {
            words: words.skip(1).collect(),
        }
    }

    /// The value of `--config-dir`.
    fn config_dir(&self) -> Option<PathBuf> {
        let at = self.words.iter().position(|word| word == "--config-dir")?;
        self.words.get(at + 1).map(PathBuf::from)
    }

    fn definitions(&self) -> Option<Definitions> {
        match self.config_dir() {
            Some(directory) => Some(Definitions::in_directory(&directory)),
            None => Definitions::of_user().ok(),
        }
    }

    /// `POOL` of `extant GROUP COMMAND [OPTIONS] POOL`.
    fn place(&self) -> Option<&Path> {
        let command = Cli::command();
        let command = self
            .words
            .iter()
            .skip(1)
            .take(2)
            .try_fold(&command, |above, word| above.find_subcommand(word));
        let mut words = self.words.iter().skip(3);
        loop {
            let word = words.next()?;
            match word.to_str() {
                Some(option) if option.starts_with('-') => {
                    if command.is_some_and(|command| has_value_behind(command, option)) {
                        words.next();
                    }
                }
                _ => return Some(Path::new(word)),
            }
        }
    }

    fn pool(&self) -> Option<Pool> {
        let place = self.place()?;
        let definition = match place.to_str() {
            _ if place.is_dir() && place.to_str().is_none_or(|word| word.contains(['/', '.'])) => {
                Definition::of_directory(place)
            }
            Some(name) => self.definitions()?.get(&name.parse().ok()?).ok()?,
            None => return None,
        };
        match definition.kind() {
            PoolKind::Dir => Pool::open(definition).ok(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_is_the_first_word_behind_the_command_that_is_no_option() {
        let place = |line: &str| {
            let words = line.split(' ').map(OsString::from).collect();
            let asked = Asked { words };
            asked
                .place()
                .map(|place| place.to_string_lossy().into_owned())
        };
        assert_eq!(place("extant vol info vms"), Some("vms".to_owned()));
        assert_eq!(
            place("extant job show --json --config-dir d vms 1"),
            Some("vms".to_owned())
        );
        assert_eq!(
            place("extant vol create --rate 100M --background -o a=b vms web"),
            Some("vms".to_owned())
        );
        assert_eq!(place("extant vol info"), None);
    }

    #[test]
    fn option_is_completed_behind_the_last_comma() {
        let complete = words(&["cluster_size=", "compat="]);
        let found: Vec<_> = complete(OsStr::new("compat=1.1,cl"))
            .iter()
            .map(|word| word.get_value().to_owned())
            .collect();
        assert_eq!(found, ["compat=1.1,cluster_size="]);
    }
}
