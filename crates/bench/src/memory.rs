//! Makes free memory warm or cold, for peers that write through the page cache; and measures the
//! memory of this process.
//!
//! On many virtual machines the guest reports free pages to the host (free page
//! reporting), which reclaims them. The first access to such a page is a fault on
//! the host: buffered writes are then several times slower than to recently used
//! memory. Both occur in practice, so both are measured, each after a step that
//! prepares it; a small probe checks the result.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use extant_testkit::command;

use crate::measured::mib;

/// The toucher's word on the command line.
pub const WORD: &str = "__touch";

/// Small relative to the later measurement: memory touched by the probe is warm.
const PROBE: u64 = 64 << 20;
/// The kernel's count of pages given to the host, where it is shown.
const REPORTED: &str = "/sys/module/page_reporting/parameters/reported_kib";
/// The guest reports free pages in passes of some seconds; no change for this long means that all
/// are reported.
const REPORTS_IDLE_TIME: Duration = Duration::from_secs(5);

/// Uses `bytes` of fresh memory once, in a process that then ends. Memory that is free right after
/// it is warm. Returns MiB a second.
pub fn touch(bytes: u64) -> Result<f64> {
    let mut command = Command::new(env::current_exe()?);
    command.arg(WORD).arg(bytes.to_string());
    let text = command::text(&mut command)?;
    text.trim().parse().context("the toucher's answer")
}

/// Memory of this process, as the kernel counts it.
pub fn resident_bytes() -> Result<f64> {
    let text = fs::read_to_string("/proc/self/statm")?;
    let pages = text
        .split(' ')
        .nth(1)
        .context("statm has no second field")?;
    Ok(pages.parse::<f64>()? * rustix::param::page_size() as f64)
}

/// The toucher itself.
pub fn serve(bytes: u64) -> Result<()> {
    let start = Instant::now();
    let memory = vec![1u8; usize::try_from(bytes)?];
    let rate = mib(bytes) / start.elapsed().as_secs_f64();
    // Read, so that it is not optimised away.
    assert!(std::hint::black_box(&memory).ends_with(&[1]));
    println!("{rate}");
    Ok(())
}

/// Write bandwidth of free memory, in MiB/s.
pub fn probe() -> Result<f64> {
    touch(PROBE)
}

/// Drops what the kernel has cached of files and names.
pub fn drop_caches() -> Result<()> {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").context("dropping caches needs root")
}

/// Drops the page cache and gives the host time to take the pages back: until the kernel's
/// count of reported pages rests, at most `patience`, or that long where it is not shown.
pub fn cool(patience: Duration) -> Result<()> {
    drop_caches()?;
    let start = Instant::now();
    let (mut last, mut since) = (reported(), start);
    while start.elapsed() < patience && !(last.is_some() && since.elapsed() > REPORTS_IDLE_TIME) {
        thread::sleep(Duration::from_millis(200));
        let now = reported();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    Ok(())
}

fn reported() -> Option<u64> {
    let text = fs::read_to_string(Path::new(REPORTED)).ok()?;
    text.trim().parse().ok()
}
