//! Properties of a caller that are not part of a request.
//!
//! The kernel checks permissions; these are the questions that it leaves to the file system.
//! They are rare, and answered from `/proc`. A caller that is not visible there (in another PID
//! namespace, or ended) gets no privilege.

use std::fs;

use extant_fuse::operations::Caller;

const CAP_SYS_ADMIN: u64 = 1 << 21;
const UNLIMITED: u64 = u64::MAX;

/// Whether a caller has capabilities over files of others.
pub(super) fn is_privileged(caller: Caller) -> bool {
    caller.uid == 0
}

/// Whether a caller has `CAP_SYS_ADMIN` in the server's user namespace.
pub(super) fn may_administer(caller: Caller) -> bool {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/user")).ok();
    let own = namespace("self");
    own.is_some()
        && namespace(&caller.pid.to_string()) == own
        && status(caller).is_some_and(|status| effective(&status) & CAP_SYS_ADMIN != 0)
}

/// Whether a caller is in a group.
pub(super) fn is_member(caller: Caller, group: u32) -> bool {
    caller.gid == group
        || status(caller).is_some_and(|status| groups(&status).any(|id| id == group))
}

/// Bytes that a file of a caller may have at most (`RLIMIT_FSIZE`).
pub(super) fn file_size_limit(caller: Caller) -> u64 {
    let limits = fs::read_to_string(format!("/proc/{}/limits", caller.pid));
    limits
        .ok()
        .and_then(|limits| file_size(&limits))
        .unwrap_or(UNLIMITED)
}

fn status(caller: Caller) -> Option<String> {
    fs::read_to_string(format!("/proc/{}/status", caller.pid)).ok()
}

fn groups(status: &str) -> impl Iterator<Item = u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    line.unwrap_or_default()
        .split_whitespace()
        .filter_map(|id| id.parse().ok())
}

/// The effective capabilities.
fn effective(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok())
        .unwrap_or(0)
}

fn file_size(limits: &str) -> Option<u64> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max file size"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(UNLIMITED),
        soft => soft.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_is_the_soft_one_in_bytes() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max cpu time              unlimited            unlimited            seconds   \n\
                      Max file size             1048576              unlimited            bytes     \n";
        assert_eq!(file_size(limits), Some(1_048_576));
        assert_eq!(
            file_size("Max file size   unlimited  unlimited bytes"),
            Some(UNLIMITED)
        );
        assert_eq!(file_size("Max data size   1  1 bytes"), None);
    }

    #[test]
    fn groups_are_those_of_the_line() {
        let status = "Name:\tx\nUid:\t1\t1\t1\t1\nGroups:\t4 24 1000 \nNgid:\t7\n";
        assert_eq!(groups(status).collect::<Vec<_>>(), [4, 24, 1000]);
        assert_eq!(groups("Name:\tx\n").count(), 0);
    }

    #[test]
    fn capabilities_are_the_effective_ones() {
        let status = "CapPrm:\t000001ffffffffff\nCapEff:\t0000000000200001\nCapBnd:\t0\n";
        assert_eq!(effective(status), CAP_SYS_ADMIN | 1);
        assert_eq!(effective("CapPrm:\t000001ffffffffff\n"), 0);
    }

    #[test]
    fn own_limit_is_found() {
        let caller = Caller {
            uid: 0,
            gid: 0,
            pid: std::process::id(),
        };
        let own = rustix::process::getrlimit(rustix::process::Resource::Fsize);
        assert_eq!(file_size_limit(caller), own.current.unwrap_or(UNLIMITED));
    }
}
