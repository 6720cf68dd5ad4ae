//! Names of pools on the command line.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use extant_pool::{Definition, Definitions, Pool, is_path};
use extant_space::{Error, Result};

use crate::complete;
use crate::exit::{self, Style};
use crate::print;

/// Location of definitions.
#[derive(Args, Clone, Debug)]
pub struct ConfigArgs {
    /// Directory of the definitions of pools
    #[arg(long, value_name = "DIR")]
    pub config_dir: Option<PathBuf>,
}

impl ConfigArgs {
    /// The definitions.
    pub fn definitions(&self) -> Result<Definitions> {
        match &self.config_dir {
            Some(directory) => Ok(Definitions::in_directory(directory)),
            None => Definitions::of_user(),
        }
    }
}

/// A pool.
#[derive(Args, Clone, Debug)]
pub struct PoolArgs {
    /// Name of a defined pool; with a slash or dots, a directory or an ext4 image
    #[arg(add = ArgValueCompleter::new(complete::pools))]
    pub pool: PathBuf,

    #[command(flatten)]
    pub config: ConfigArgs,
}

/// Explains a wait.
pub(super) fn tell_wait(error: &Error) {
    // On a line of its own, also where a bar is shown.
    let own_line = if std::io::stderr().is_terminal() {
        "\r\x1b[2K"
    } else {
        ""
    };
    print::note(format_args!("{own_line}extant: waiting: {error}"));
}

impl PoolArgs {
    /// Opens it.
    pub fn open(&self) -> Result<Pool> {
        Ok(Pool::open(self.definition()?)?.telling_waits(tell_wait))
    }

    /// The arguments that name the same pool for a process in another directory.
    pub fn absolute(&self) -> Result<Vec<PathBuf>> {
        let absolute =
            |path: &Path| std::path::absolute(path).map_err(|source| Error::from(source).at(path));
        let mut words = Vec::new();
        if let Some(directory) = &self.config.config_dir {
            words.push("--config-dir".into());
            words.push(absolute(directory)?);
        }
        words.push("--".into());
        words.push(if is_path(&self.pool) {
            absolute(&self.pool)?
        } else {
            self.pool.clone()
        });
        Ok(words)
    }

    fn definition(&self) -> Result<Definition> {
        if is_path(&self.pool) {
            return Ok(Definition::of_path(&self.pool));
        }
        self.config.definitions()?.find(&self.pool)
    }
}

/// A pool, or every defined one.
#[derive(Args, Clone, Debug)]
pub struct AnyPoolArgs {
    /// Name of a defined pool; with a slash or dots, a directory or an ext4 image [default: all
    /// defined pools]
    #[arg(add = ArgValueCompleter::new(complete::pools))]
    pub pool: Option<PathBuf>,

    #[command(flatten)]
    pub config: ConfigArgs,
}

impl AnyPoolArgs {
    /// Visits the named pool, or every defined one. An unusable pool is reported on stderr and does
    /// not hide others.
    ///
    /// # Errors
    /// Those of the named pool, and of finding the definitions.
    pub fn for_each(&self, mut visit: impl FnMut(&Pool) -> Result<()>) -> Result<ExitCode> {
        if let Some(pool) = &self.pool {
            let place = PoolArgs {
                pool: pool.clone(),
                config: self.config.clone(),
            };
            visit(&place.open()?)?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut code = ExitCode::SUCCESS;
        for (_, definition) in self.config.definitions()?.list()? {
            let pool = definition.and_then(Pool::open);
            if let Err(error) = pool.and_then(|pool| visit(&pool.telling_waits(tell_wait))) {
                code = exit::report(&error, Style::Line);
            }
        }
        Ok(code)
    }
}
