//! The client device on servers of other implementations, and on a scripted one that breaks the
//! rules. Tests against our own server are those of `extant-export`, `tests/client`.
//!
//! Model: a server per test, as a child process on a Unix socket in a directory of its own
//! (`servers.rs`); what the device did is compared with a `Vec` (`model.rs`) and with what the
//! server's own tools and files say.

mod hostile;
mod model;
mod oracles;
mod reconnect;
mod scripted;
mod servers;
mod tls;

use std::time::Duration;

use extant_nbd::{NbdOptions, NbdReconnect, NbdTimeouts};

const MIB: u64 = 1 << 20;

/// Options without a reconnect, with timeouts that end a test that would hang.
fn options() -> NbdOptions {
    NbdOptions {
        reconnect: NbdReconnect::Never,
        timeouts: NbdTimeouts {
            connect: Duration::from_secs(20),
            handshake: Duration::from_secs(20),
            silence: Duration::from_secs(60),
        },
        ..NbdOptions::default()
    }
}
