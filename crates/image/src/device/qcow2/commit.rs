//! Commits: metadata reaches the file in an order that is safe against power cuts.
//!
//! 1. Write refcounts, which may only be too high; flush, which also makes the guest's data
//!    durable.
//! 2. Write L2 and L1 entries; flush.
//! 3. Clusters without references are quiet when all requests that began before have ended. Then
//!    punch them, lower their refcounts, and make them free.
//!
//! A power cut between two steps leaks clusters, and never leaves a reference to a free one. New L2
//! tables and refcount blocks are in the file before anything refers to them.
//!
//! One commit runs at a time, from a copy of the dirty metadata, while requests continue. A flush
//! that waits for a running commit needs the next one, which serves all waiters.

use extant_blockdev::{Device, Zeroing};
use extant_space::{ByteRange, Result, traced};
use parking_lot::MutexGuard;

use super::Qcow2;
use super::cluster_cache::DirtyRange;
use super::metadata::{CommitBatch, Retired};
use super::space::Run;

/// Progress of commits.
#[derive(Default)]
pub(super) struct Commits {
    begun: u64,
    ended: u64,
    is_running: bool,
}

/// A commit under way, which ends also by a panic.
struct Running<'q> {
    image: &'q Qcow2,
    number: u64,
    /// Whether all of it is durable; `None` while it runs, and when a panic ended it.
    is_durable: Option<bool>,
}

impl Running<'_> {
    fn end(mut self, result: Result<()>) -> Result<()> {
        self.is_durable = Some(result.is_ok());
        result
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.is_durable.is_none() {
            self.image.metadata().note_panic();
        }
        let mut commits = self.image.commits();
        commits.is_running = false;
        if self.is_durable == Some(true) {
            commits.ended = self.number;
        }
        drop(commits);
        self.image.commit_ended.notify_all();
    }
}

impl Qcow2 {
    /// Makes acknowledged writes durable.
    pub(super) fn flush(&self) -> Result<()> {
        if !self.is_writable() {
            return Ok(());
        }
        if self.metadata().is_clean() {
            self.flush_data()?;
            return match &self.data {
                None => Ok(()),
                // The metadata file's own cache.
                Some(_) => self.file.flush(),
            };
        }
        self.commit()
    }

    /// Commits now if the dirty metadata exceeds its memory limit, and frees the clusters that
    /// became quiescent since the last commit.
    pub(super) fn make_room(&self) -> Result<()> {
        if !self.is_writable() {
            return Ok(());
        }
        let metadata = self.metadata();
        let is_too_dirty = metadata.is_too_dirty();
        let has_quiet = metadata.retired.front().is_some_and(Retired::is_quiet);
        drop(metadata);
        if is_too_dirty {
            return self.commit();
        }
        if has_quiet {
            self.reclaim();
        }
        Ok(())
    }

    fn commits(&self) -> MutexGuard<'_, Commits> {
        self.commits.lock()
    }

    /// Waits for a commit that begins after this call, or runs one.
    pub(super) fn commit(&self) -> Result<()> {
        let mut commits = self.commits();
        let needed = commits.begun + 1;
        loop {
            if commits.ended >= needed {
                return Ok(());
            }
            if !commits.is_running {
                break;
            }
            self.commit_ended.wait(&mut commits);
        }
        commits.begun += 1;
        commits.is_running = true;
        let running = Running {
            image: self,
            number: commits.begun,
            is_durable: None,
        };
        drop(commits);
        running.end(self.run_commit())
    }

    fn run_commit(&self) -> Result<()> {
        let round = {
            let mut metadata = self.metadata();
            metadata.check_usable()?;
            metadata.is_committing = true;
            metadata.begin_round()
        };
        let result = traced!(
            DEBUG,
            "commit",
            (
                refcount_bytes = total_bytes(&round.refcounts),
                l2_bytes = total_bytes(&round.l2),
                l1_bytes = total_bytes(&round.l1),
                released_clusters = round.released.len()
            ),
            self.write_round(&round)
        );
        {
            let mut metadata = self.metadata();
            metadata.end_round(round, result.is_ok());
            metadata.is_committing = false;
        }
        result?;
        // Everything is durable; a refcount that is wrong fails the next change.
        let _ = self.reclaim_locked();
        Ok(())
    }

    fn write_round(&self, round: &CommitBatch) -> Result<()> {
        self.file.write_all(&round.refcounts)?;
        let has_entries = !round.l2.is_empty() || !round.l1.is_empty();
        if has_entries && (round.is_ordered || !round.refcounts.is_empty()) {
            self.flush_data()?;
            if self.data.is_some() {
                self.file.flush()?;
            }
        }
        self.file.write_all(&round.l2)?;
        self.file.write_all(&round.l1)?;
        if self.data.is_some() {
            self.flush_data()?;
        }
        self.file.flush()
    }

    /// Frees quiet clusters, unless another thread is doing so.
    fn reclaim(&self) {
        let commits = self.commits();
        if !commits.is_running {
            // A refcount that is wrong fails the next change.
            let _ = self.reclaim_locked();
        }
    }

    /// Called only by the thread that runs the commit or holds the commit lock.
    fn reclaim_locked(&self) -> Result<()> {
        let mut clusters = Vec::new();
        let last = {
            let mut metadata = self.metadata();
            while let Some(retired) = metadata.retired.pop_front_if(|retired| retired.is_quiet()) {
                clusters.extend(retired.clusters);
            }
            if clusters.is_empty() {
                return Ok(());
            }
            clusters.sort_unstable();
            let chunks = clusters.chunk_by(|one, next| one == next);
            let mentions: Vec<_> = chunks.map(|same| (same[0], same.len() as u64)).collect();
            metadata.give_back(&mentions)?
        };
        for run in last.chunk_by(|one, next| one + 1 == *next) {
            let run = Run {
                first: run[0],
                clusters: run.len() as u64,
            };
            let bits = self.geometry.cluster_bits();
            let range = ByteRange::new(run.first << bits, (run.first + run.clusters) << bits);
            // A cluster that could not be punched is free as well, and is zeroed when a later
            // opening finds it.
            let is_zero = self.file.0.write_zeroes(range, Zeroing::ANY).is_ok();
            self.metadata().free(run, is_zero)?;
        }
        Ok(())
    }
}

fn total_bytes(ranges: &[DirtyRange]) -> usize {
    ranges.iter().map(|range| range.bytes.len()).sum()
}
