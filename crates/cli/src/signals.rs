//! Signals become a cancel.
//!
//! The first SIGINT, SIGTERM or SIGHUP asks the operation to stop and clean up; a second one ends
//! the process at once, as a kill does.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use extant_space::{CancelToken, Error, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

use crate::exit;

/// A token that signals cancel. SIGXFSZ (past `ulimit -f`) becomes an error of the call.
pub fn catch() -> Result<CancelToken> {
    let stop = Arc::new(AtomicBool::new(false));
    let register = || -> io::Result<()> {
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // In this order: the first signal finds the flag down and raises it.
            flag::register_conditional_shutdown(signal, i32::from(exit::CANCELLED), stop.clone())?;
            flag::register(signal, stop.clone())?;
        }
        flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
        Ok(())
    };
    register().map_err(|source| Error::from(source).during("catch signals"))?;
    Ok(CancelToken::from_flag(stop))
}
