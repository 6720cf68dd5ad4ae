//! The state after a power cut, compared with the workload before it.

use std::ops::RangeInclusive;
use std::sync::Arc;

use extant_blockdev::MemoryDevice;
use extant_blockdev::simulation::CrashState;
use extant_ext4::{Access, Filesystem, FollowLast, Options};
use extant_fsck::{CheckOptions, check};
use extant_space::{CancelToken, Control, Result, Silent};

use crate::life::{Actor, Life, options};
use crate::view::{Id, SECTOR, Sector, Seen, View};

/// Result of recovery after a cut.
pub struct Recovered {
    /// Closed and clean.
    pub image: Arc<MemoryDevice>,
    pub views: Vec<View>,
}

/// How much is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// State after recovery.
    Recovered,
    /// The same, and the state visible without it.
    ReadOnlyToo,
}

impl Life {
    /// Recovers a cut, and returns the first error.
    pub fn judge(&self, crash: &CrashState, look: Look) -> Result<Recovered, String> {
        let recovered = self.recover(&crash.image)?;
        for (actor, view) in self.actors.iter().zip(&recovered.views) {
            let explained = actor.explain(view, actor.ended(crash.position()));
            explained.map_err(|wrong| format!("{:?}: {wrong}", actor.home))?;
        }
        if look == Look::ReadOnlyToo {
            let read_only = Options {
                access: Access::ReadOnly,
                ..options()
            };
            let before = Arc::new(crash.image.snapshot());
            let filesystem = Filesystem::open(before.clone(), read_only).map_err(text)?;
            let views = self.views(&filesystem).map_err(text)?;
            drop(filesystem);
            if before.first_difference(&crash.image).is_some() {
                return Err("opening read-only has written".into());
            }
            for (after, before) in recovered.views.iter().zip(&views) {
                same_contents(after, before).map_err(|wrong| format!("read-only: {wrong}"))?;
            }
        }
        Ok(recovered)
    }

    /// Recovers an image.
    pub fn recover(&self, image: &MemoryDevice) -> Result<Recovered, String> {
        let image = Arc::new(image.snapshot());
        let views = {
            let filesystem = Filesystem::open(image.clone(), options()).map_err(text)?;
            let views = self.views(&filesystem).map_err(text)?;
            filesystem.close().map_err(text)?;
            views
        };
        let cancel = CancelToken::new();
        let control = Control::new(&cancel, &Silent);
        let report = check(&*image, &CheckOptions::default(), control).map_err(text)?;
        if report.is_clean() && !report.needs_recovery && report.orphans == 0 {
            Ok(Recovered { image, views })
        } else {
            Err(format!("the check: {report}"))
        }
    }

    fn views(&self, filesystem: &Filesystem) -> Result<Vec<View>> {
        let view = |actor: &Actor| {
            let root = filesystem.resolve(actor.home.as_bytes(), FollowLast::No)?;
            View::of(&root, &[], actor.commits)
        };
        self.actors.iter().map(view).collect()
    }
}

fn text(error: extant_space::Error) -> String {
    error.to_string()
}

/// Recovery may free blocks behind the end of a file, and e2fsck narrows trees; all else is the
/// same.
pub fn same_contents(after: &View, before: &View) -> Result<(), String> {
    if after.names != before.names {
        return Err(format!("names {:?}, not {:?}", before.names, after.names));
    }
    for (id, seen) in &after.inodes {
        let mut other = Seen::clone(&before.inodes[id]);
        other.meta.extents = seen.meta.extents.clone();
        other.meta.attributes.allocated_bytes = seen.meta.attributes.allocated_bytes;
        if other != **seen {
            return Err(format!("inode {id:?}: {other:?}, not {seen:?}"));
        }
    }
    Ok(())
}

impl Actor {
    /// Returns the reason why `found` cannot be the state after `ended` steps, if it cannot.
    pub fn explain(&self, found: &View, ended: usize) -> Result<(), String> {
        let last = (ended + 1).min(self.steps.len());
        let floor = self.floors[ended];
        let mut wrong = String::new();
        // The latest first, as most steps are usually durable.
        for state in (floor..=last).rev() {
            match self.is_state(found, state) {
                Ok(()) => return self.explain_data(found, ended),
                Err(difference) => wrong += &format!("\n  not state {state}: {difference}"),
            }
        }
        for state in (floor..last).rev() {
            if self.is_between(found, state).is_ok() {
                return self.explain_data(found, ended);
            }
        }
        let step = ended.checked_sub(1).map(|step| &self.steps[step]);
        Err(format!(
            "{ended} steps had ended, the last {step:?}, and {floor} were promised{wrong}"
        ))
    }

    /// Returns the difference between the metadata and `state`.
    fn is_state(&self, found: &View, state: usize) -> Result<(), String> {
        let wanted = &self.states[state];
        same_names(wanted, found)?;
        let other = found
            .inodes
            .iter()
            .find(|(id, seen)| !is_same(&wanted.inodes[id], seen));
        match other {
            None => Ok(()),
            Some((id, seen)) => Err(format!(
                "inode {id:?} is {:?}\n    and was {:?}",
                seen.meta, wanted.inodes[id].meta
            )),
        }
    }

    /// Says why the metadata cannot be that of a step which follows `state` and was done in part.
    fn is_between(&self, found: &View, state: usize) -> Result<(), String> {
        let step = &self.steps[state];
        let target = self.targets[state].filter(|_| step.is_divisible());
        let target = target.ok_or("it is not divisible")?;
        let (before, after) = (&self.states[state], &self.states[state + 1]);
        same_names(before, found)?;
        for (id, seen) in &found.inodes {
            let old = &before.inodes[id];
            if *id != target {
                if !is_same(old, seen) {
                    return Err(format!("inode {id:?}"));
                }
                continue;
            }
            let new = &after.inodes[id];
            let size = |seen: &Seen| seen.meta.attributes.size_bytes;
            let (least, most) = (size(old).min(size(new)), size(old).max(size(new)));
            if !(least..=most).contains(&size(seen)) || seen.meta.xattrs != old.meta.xattrs {
                return Err(format!("inode {id:?}"));
            }
        }
        Ok(())
    }

    /// Explains data that no step has written.
    fn explain_data(&self, found: &View, ended: usize) -> Result<(), String> {
        let last = (ended + 1).min(self.steps.len());
        for (id, seen) in &found.inodes {
            let window = self.data_floors[ended].of(id)..=last;
            let mut numbers: Vec<u64> = seen.sectors.keys().copied().collect();
            for state in window.clone() {
                if let Some(known) = self.states[state].inodes.get(id) {
                    numbers.extend(known.sectors.keys());
                }
            }
            numbers.sort_unstable();
            numbers.dedup();
            let size = seen.meta.attributes.size_bytes;
            for number in numbers {
                let start = number * SECTOR as u64;
                let visible = size.saturating_sub(start).min(SECTOR as u64) as usize;
                let sector = &seen.sector(number)[..visible];
                if visible > 0 && !self.is_explained(id, number, sector, window.clone()) {
                    return Err(format!(
                        "inode {id:?}: sector {number} is {:02x?}.., which was never there in states {window:?}: {:02x?}",
                        &sector[..visible.min(16)],
                        self.known(id, number, window.clone())
                    ));
                }
            }
        }
        Ok(())
    }

    fn is_explained(
        &self,
        id: &Id,
        number: u64,
        sector: &[u8],
        window: RangeInclusive<usize>,
    ) -> bool {
        let known = || {
            window
                .clone()
                .filter_map(|state| self.states[state].inodes.get(id))
        };
        if known().any(|seen| seen.sector(number)[..sector.len()] == *sector) {
            return true;
        }
        let is_shifted = (*window.start()..*window.end())
            .any(|step| self.targets[step] == Some(*id) && self.steps[step].shifts());
        let starts = |known: &Sector| known[..sector.len()] == *sector;
        is_shifted
            && (sector.iter().all(|&byte| byte == 0)
                || known().any(|seen| seen.sectors.values().any(starts)))
    }

    fn known(&self, id: &Id, number: u64, window: RangeInclusive<usize>) -> Vec<Vec<u8>> {
        let known = window.filter_map(|state| self.states[state].inodes.get(id));
        known
            .map(|seen| seen.sector(number)[..16].to_vec())
            .collect()
    }
}

fn is_same(wanted: &Seen, found: &Seen) -> bool {
    wanted.meta == found.meta && wanted.children == found.children
}

fn same_names(wanted: &View, found: &View) -> Result<(), String> {
    if wanted.names == found.names {
        return Ok(());
    }
    let missing = wanted
        .names
        .iter()
        .find(|(path, id)| found.names.get(*path) != Some(id));
    let extra = found
        .names
        .iter()
        .find(|(path, id)| wanted.names.get(*path) != Some(id));
    Err(format!("{missing:?} is missing, {extra:?} is there"))
}
