//! The states that cuts leave: any sector of 512 bytes may be the old one or the new one.

use extant_blockdev::simulation::{CrashOptions, CrashState, WriteLog};

/// Calls `visit` with every state, position by position.
pub fn for_each(log: &WriteLog, options: CrashOptions, mut visit: impl FnMut(CrashState)) {
    let mut cursor = log.cursor();
    loop {
        if cursor.is_crash_point() {
            cursor.crash_states(options).for_each(&mut visit);
        }
        if cursor.advance().is_none() {
            break;
        }
    }
}
