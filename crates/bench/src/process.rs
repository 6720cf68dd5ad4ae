//! Other processes, as procfs shows them: their children, and what they have written.

use std::fs;

use anyhow::{Context as _, Result};

/// The children of all threads of a process; none of one that has ended.
pub fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let lists = threads
        .map(|thread| fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    let numbers = |list: String| -> Vec<u32> {
        let words = list.split_ascii_whitespace();
        words.filter_map(|word| word.parse().ok()).collect()
    };
    lists.flat_map(numbers).collect()
}

/// Bytes that a process and its children have sent to disks; direct writes count when they start.
pub fn written_bytes(pid: u32) -> Result<u64> {
    let own = fs::read_to_string(format!("/proc/{pid}/io"))
        .with_context(|| format!("counters of process {pid}"))?;
    let own = parse_written(&own).context("no write_bytes in /proc/PID/io")?;
    children(pid)
        .into_iter()
        .try_fold(own, |sum, child| Ok(sum + written_bytes(child)?))
}

fn parse_written(text: &str) -> Option<u64> {
    let mut lines = text.lines();
    let bytes = lines.find_map(|line| line.strip_prefix("write_bytes: "))?;
    bytes.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_bytes_are_read_and_cancelled_ones_are_not() {
        let text = "wchar: 5\nwrite_bytes: 4096\ncancelled_write_bytes: 7\n";
        assert_eq!(parse_written(text), Some(4096));
        assert_eq!(parse_written("cancelled_write_bytes: 7\n"), None);
    }

    #[test]
    fn child_is_listed_until_it_is_waited_for() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let of_this = || children(std::process::id());
        assert!(of_this().contains(&child.id()));
        assert!(written_bytes(child.id()).is_ok());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!of_this().contains(&child.id()));
    }
}
