//! Signals become a cancel.
//!
//! The first SIGINT, SIGTERM or SIGHUP asks the operation to stop and clean up; a second one ends
//! the process at once, as a kill does. A command that changes nothing ends at the first.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use extant_space::{CancelToken, Error, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

use crate::exit;

/// Signals end the process; nothing has to be undone.
static ENDS_AT_ONCE: LazyLock<Arc<AtomicBool>> = LazyLock::new(Default::default);

/// While this lives, the first signal ends the process: for what changes nothing.
#[must_use]
pub struct EndAtOnce(());

impl EndAtOnce {
    /// From here on.
    pub fn new() -> Self {
        ENDS_AT_ONCE.store(true, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for EndAtOnce {
    fn drop(&mut self) {
        ENDS_AT_ONCE.store(false, Ordering::Relaxed);
    }
}

/// A token that signals cancel. SIGXFSZ (past `ulimit -f`) becomes an error of the call.
pub fn catch() -> Result<CancelToken> {
    let stop = Arc::new(AtomicBool::new(false));
    let register = || -> io::Result<()> {
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // In this order: the first signal finds the flag down and raises it.
            for flag in [&stop, &*ENDS_AT_ONCE] {
                let status = i32::from(exit::CANCELLED);
                flag::register_conditional_shutdown(signal, status, flag.clone())?;
            }
            flag::register(signal, stop.clone())?;
        }
        flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
        Ok(())
    };
    register().map_err(|source| Error::from(source).during("catch signals"))?;
    Ok(CancelToken::from_flag(stop))
}
