//! A watchdog for steps that must end.

use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

/// Generous: the machine may be busy.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Ends the process if it makes no progress for too long.
pub struct Watch(Sender<String>);

impl Watch {
    pub fn new() -> Self {
        let (tell, told) = channel();
        thread::spawn(move || {
            let mut last = String::new();
            loop {
                match told.recv_timeout(STALL_TIMEOUT) {
                    Ok(next) => last = next,
                    Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return,
                    Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                        eprintln!("no end of: {last}");
                        std::process::abort();
                    }
                }
            }
        });
        Self(tell)
    }

    /// Announces the next step.
    pub fn tell(&self, what: String) {
        self.0.send(what).expect("the watch lives as long as this");
    }
}
