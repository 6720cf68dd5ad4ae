//! Checking the invariants.

use crate::group::{Body, Loaded};
use crate::index::{CLASSES, ClassMask, class_of};
#[cfg(feature = "ablation")]
use crate::options::FullGroups;
use crate::shared::Shared;
use crate::sync::lock;
use crate::{Allocator, GroupNumber};

impl Allocator {
    /// Checks all derived state against its source: counters against bitmaps, the index against
    /// groups, levels against bitmaps; windows and pending blocks are in use and disjoint. For
    /// tests and tools, while no other thread uses the allocator.
    ///
    /// # Errors
    /// The first violation, as text.
    pub fn check(&self) -> Result<(), String> {
        self.shared.check()
    }
}

impl Shared {
    fn check(&self) -> Result<(), String> {
        let geometry = self.geometry();
        if geometry.groups() != self.groups() {
            return Err(format!(
                "{} groups published, {} there",
                self.groups(),
                geometry.groups()
            ));
        }
        let windows = self.check_windows()?;
        let (mut free, mut pending) = (0, 0);
        for number in 0..self.groups() {
            let header = self.group(number);
            free += u64::from(header.free());
            let body = lock(&header.body);
            match &*body {
                Body::Loaded(loaded) => {
                    pending += self
                        .check_group(number, loaded)
                        .map_err(|error| format!("group {number}: {error}"))?;
                }
                Body::Corrupt if header.free() > 0 => {
                    return Err(format!("group {number} is out of use and has free blocks"));
                }
                _ => {}
            }
            let (classes, claim) = match &*body {
                Body::Unloaded => (ClassMask::NONE, header.free()),
                Body::Loaded(loaded) => (loaded.published, 0),
                Body::Corrupt => (ClassMask::NONE, 0),
            };
            self.index.check(number, classes, claim)?;
        }
        self.index.check_sets()?;
        for (what, sum, counter) in [
            ("free", free, self.free.sum()),
            ("pending", pending, self.pending.blocks()),
            ("windows'", windows, self.counters.window_blocks()),
        ] {
            if sum != counter {
                return Err(format!("{counter} {what} blocks counted, {sum} there"));
            }
        }
        Ok(())
    }

    /// Returns the pending blocks of the group.
    fn check_group(&self, number: u32, loaded: &Loaded) -> Result<u64, String> {
        let shape = &self.shape;
        loaded.bits.check(shape)?;
        let header = self.group(number);
        let expect = |what: &str, counted: u32, there: u32| {
            if counted == there {
                Ok(())
            } else {
                Err(format!("{counted} {what} counted, {there} there"))
            }
        };
        expect("free blocks", loaded.free, loaded.bits.count_free(shape))?;
        let mut runs = [0; CLASSES];
        let mut classes = ClassMask::NONE;
        for run in loaded.bits.runs(shape) {
            runs[class_of(run.count)] += 1;
            classes.set(class_of(run.count), true);
        }
        if loaded.runs != runs || loaded.classes != classes {
            return Err(format!(
                "runs {:?} in {:?} counted, {runs:?} there",
                loaded.runs, loaded.classes
            ));
        }
        expect("free blocks in the header", header.free(), loaded.free)?;
        expect(
            "blocks",
            loaded.length,
            self.geometry().length_of(GroupNumber(number)),
        )?;
        #[cfg(not(feature = "ablation"))]
        let zombie = false;
        #[cfg(feature = "ablation")]
        let zombie = loaded.free == 0 && self.options.full_groups == FullGroups::StayInIndex;
        if loaded.published != classes && !zombie {
            return Err(format!(
                "{:?} published, {classes:?} there",
                loaded.published
            ));
        }
        if let Some(largest) = loaded.published.largest()
            && (!header.reaches(largest) || header.reaches(largest + 1))
        {
            return Err(format!(
                "another largest class in the header than {largest}"
            ));
        }
        let mut blocks = 0;
        let mut end = 0;
        for (&start, run) in &loaded.pending {
            if start < end {
                return Err(format!("pending blocks overlap at {start}"));
            }
            end = start + run.count;
            if end > loaded.length || !loaded.bits.is_all(start, run.count, false) {
                return Err(format!("pending blocks {start} to {end} are not in use"));
            }
            blocks += u64::from(run.count);
        }
        Ok(blocks)
    }

    /// Returns the blocks of all windows.
    fn check_windows(&self) -> Result<u64, String> {
        let mut windows = self.owners.windows();
        windows.sort_unstable();
        if let Some(pair) = windows.windows(2).find(|pair| pair[0].overlaps(pair[1])) {
            return Err(format!("windows overlap: {} and {}", pair[0], pair[1]));
        }
        let mut blocks = 0;
        for window in windows {
            blocks += u64::from(window.count());
            let in_use = self.in_groups(window, |mut group, start, count| {
                group.loaded_for_free(start, count).map(|_| ())
            });
            in_use.map_err(|error| format!("window: {error}"))?;
        }
        Ok(blocks)
    }
}
