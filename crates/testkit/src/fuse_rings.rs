//! FUSE over io_uring, which most kernels have turned off.

use std::fs;

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Enables it for new mounts and leaves it enabled; false before Linux 6.14.
pub fn are_offered() -> bool {
    let are_on = || fs::read_to_string(SWITCH).is_ok_and(|value| value.starts_with('Y'));
    are_on() || fs::write(SWITCH, "Y").is_ok() && are_on()
}

/// The mount option that requests it where it is available.
pub fn option() -> &'static str {
    if are_offered() {
        "io_uring"
    } else {
        "no_io_uring"
    }
}
