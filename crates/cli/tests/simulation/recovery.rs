//! The next start: every promise holds, jobs are resumed or cancelled, and nothing is left behind.

use std::collections::BTreeSet;
use std::fs;

use extant_blockdev::MemoryDevice;
use extant_image::Format;
use extant_pool::{Leftovers, OnStop, Operation, Pool, VolumeName};
use extant_space::{CancelToken, Control, Silent};

use crate::machine::findings;
use crate::pools::{OpenVolume, Place};
use crate::world::{Pending, World};

/// Bytes of directories and records that stay.
const KEPT_BYTES: u64 = 256 << 10;

type Found<T> = Result<T, String>;

impl World {
    /// Starts the machine and verifies everything.
    pub fn recover(&mut self, was_cut: bool) -> Found<()> {
        let found = self
            .machine
            .check()
            .map_err(said("check after the start"))?;
        if !found.is_empty() {
            return Err(format!("the disk after recovery: {found:#?}"));
        }
        self.machine.boot().map_err(said("boot"))?;
        let _ = fs::remove_file(self.machine.place().join("filler"));
        for index in 0..self.pools.len() {
            let place = self.pools[index].place;
            let named = |error| format!("{place:?}: {error}");
            self.recover_pool(index).map_err(named)?;
            self.compare_contents(index, was_cut).map_err(named)?;
            self.compare_space(index).map_err(named)?;
        }
        self.assert_nothing_left()?;
        self.check_image()
    }

    /// Ends the jobs of the last life, and compares the names.
    fn recover_pool(&mut self, index: usize) -> Found<()> {
        let place = self.pools[index].place;
        let pool = place.open(self.machine.place()).map_err(said("open"))?;
        let found = pool.refresh(Leftovers::Keep).map_err(said("refresh"))?;
        for interrupted in &found.interrupted {
            let id = interrupted.job.id;
            let operation = &interrupted.job.operation;
            let name = volume_of(operation);
            let without_outcome = self.pools[index].without_outcome.contains(name);
            let pending = match self.pools[index].pending.remove(name) {
                Some(pending) => pending,
                None if without_outcome => Pending::Nothing,
                None => return Err(format!("unknown job: {operation:?}")),
            };
            if without_outcome || self.random.bool() {
                let token = CancelToken::new();
                let job = pool.resume(id).map_err(said("resume"))?;
                let done = job.run(OnStop::Interrupt, Control::new(&token, &Silent));
                done.map_err(said(&format!("resumed {operation:?}")))?;
                self.counts.resumed += 1;
                self.trace.push(format!("{place:?} {name}: resumed"));
                self.apply(index, name, pending);
            } else {
                pool.cancel(id)
                    .map_err(said(&format!("cancel {operation:?}")))?;
                self.counts.cancelled += 1;
                self.trace.push(format!("{place:?} {name}: cancelled"));
                self.undo(index, name, pending);
            }
        }
        self.pools[index].without_outcome.clear();
        let pending = std::mem::take(&mut self.pools[index].pending);
        for (name, pending) in pending {
            self.settle(index, &pool, &name, pending)?;
        }
        let there: BTreeSet<_> = names(&pool)?;
        let wanted: BTreeSet<_> = self.pools[index].volumes.keys().cloned().collect();
        if there != wanted {
            return Err(format!("volumes are {there:?}, should be {wanted:?}"));
        }
        Ok(())
    }

    /// A change without a job has happened, or not.
    fn settle(
        &mut self,
        index: usize,
        pool: &Pool,
        name: &VolumeName,
        pending: Pending,
    ) -> Found<()> {
        let is_there = names(pool)?.contains(name);
        let has_happened = match &pending {
            Pending::Create(_) => is_there,
            Pending::Delete => !is_there,
            Pending::Resize(bytes) => {
                let info = pool.volume(name).map_err(said("info"))?;
                info.capacity_bytes == *bytes
            }
            Pending::Wipe => false,
            Pending::Nothing => true,
        };
        if has_happened {
            self.apply(index, name, pending);
        } else {
            self.undo(index, name, pending);
        }
        Ok(())
    }

    fn compare_contents(&mut self, index: usize, was_cut: bool) -> Found<()> {
        let root = self.machine.place().to_owned();
        let place = self.pools[index].place;
        for (name, known) in &mut self.pools[index].volumes {
            self.machine.progress();
            let named = |error: String| format!("{name}: {error}");
            let open = OpenVolume::open(&root, place, name);
            let open = open.map_err(|error| named(error.to_string()))?;
            let bytes = open.device.geometry().size;
            if bytes != known.content.bytes() {
                return Err(named(format!(
                    "{bytes} bytes instead of {}",
                    known.content.bytes()
                )));
            }
            let compared = known.content.compare(&*open.device, 0, bytes, was_cut);
            let adopted = compared.and_then(|()| known.content.adopt(&*open.device));
            open.close().map_err(|error| named(error.to_string()))?;
            adopted.map_err(named)?;
        }
        Ok(())
    }

    /// Nothing is reserved, and all space is that of volumes.
    fn compare_space(&self, index: usize) -> Found<()> {
        let model = &self.pools[index];
        let pool = model.place.open(self.machine.place());
        let pool = pool.map_err(said("open"))?;
        let again = pool.refresh(Leftovers::Keep).map_err(said("refresh"))?;
        if !again.interrupted.is_empty() || again.removed_files > 0 {
            return Err(format!("left after the first refresh: {again:?}"));
        }
        let info = pool.info().map_err(said("info"))?;
        let (mut allocated, mut promised, mut are_raw) = (0, 0, true);
        for (name, known) in &model.volumes {
            let volume = pool.volume(name).map_err(said("volume"))?;
            allocated += volume.allocation_bytes;
            // Metadata of a file may make it larger than its capacity.
            promised += volume.capacity_bytes.max(volume.allocation_bytes);
            are_raw &= known.format == Format::Raw;
            if volume.format != Some(known.format) {
                return Err(format!("{name} is of format {:?}", volume.format));
            }
            if known.is_written && volume.written_bytes != volume.capacity_bytes {
                return Err(format!("{name} is not written: {volume:?}"));
            }
        }
        let space = &info.space;
        let is_right = (info.jobs, space.reserved_bytes) == (0, 0)
            && space.allocated_bytes == allocated
            && space.volumes == model.volumes.len() as u64
            && space.promised_bytes >= promised
            && (!are_raw || space.promised_bytes == promised);
        if !is_right {
            return Err(format!(
                "of {allocated} allocated and {promised} promised bytes: {info:?}"
            ));
        }
        Ok(())
    }

    /// The directory has volumes and state only, and no unfinished file.
    fn assert_nothing_left(&self) -> Found<()> {
        let root = self.machine.place();
        let list = |path: &std::path::Path| -> Found<Vec<String>> {
            let entries = fs::read_dir(path).map_err(|error| error.to_string())?;
            let names = entries.map(|entry| {
                let name = entry.map_err(|error| error.to_string())?.file_name();
                Ok(name.to_string_lossy().into_owned())
            });
            names.collect()
        };
        let directory = Place::Directory.path(root);
        let known = &self.pools[0].volumes;
        for name in list(&directory)? {
            let is_volume = name.parse().is_ok_and(|name| known.contains_key(&name));
            if !is_volume && name != ".extant" {
                return Err(format!("{name} is left in the pool"));
            }
        }
        let work = directory.join(".extant/work");
        if work.exists() {
            let left = list(&work)?;
            if !left.is_empty() {
                return Err(format!("unfinished files are left: {left:?}"));
            }
        }
        for name in list(root)? {
            let is_known = ["volumes", "pool.img", "pool.img.extant", "lost+found"];
            if !is_known.contains(&&*name) {
                return Err(format!("{name} is left"));
            }
        }
        Ok(())
    }

    /// Our check finds nothing in the image of the second pool.
    fn check_image(&self) -> Found<()> {
        let image = fs::read(Place::Image.path(self.machine.place()));
        let image = MemoryDevice::from_bytes(&image.map_err(|error| error.to_string())?);
        let found = findings(&image).map_err(said("check of the image"))?;
        if found.is_empty() {
            return Ok(());
        }
        Err(format!("the image of the pool: {found:#?}"))
    }

    /// All volumes are deleted: their space comes back.
    pub fn empty(&mut self) -> Found<()> {
        for model in &mut self.pools {
            let pool = model.place.open(self.machine.place());
            let pool = pool.map_err(said("open"))?;
            let before = pool.info().map_err(said("info"))?.space;
            for name in std::mem::take(&mut model.volumes).keys() {
                pool.delete(name, false).map_err(said("delete"))?;
            }
            drop(pool);
            let pool = model.place.open(self.machine.place());
            let pool = pool.map_err(said("open"))?;
            let after = pool.info().map_err(said("info"))?.space;
            let expected = before.free_bytes + before.allocated_bytes;
            if after.allocated_bytes > 0 || after.free_bytes + KEPT_BYTES < expected {
                return Err(format!("space is lost: {before:?}, {after:?}"));
            }
        }
        Ok(())
    }
}

fn names(pool: &Pool) -> Found<BTreeSet<VolumeName>> {
    let volumes = pool.volumes().map_err(said("list"))?;
    Ok(volumes.into_iter().map(|volume| volume.name).collect())
}

fn volume_of(operation: &Operation) -> &VolumeName {
    match operation {
        Operation::Create(create) => &create.volume,
        Operation::Clone(clone) => &clone.volume,
        Operation::Resize(resize) => &resize.volume,
        Operation::Wipe(wipe) => &wipe.volume,
        Operation::Materialize(materialize) => &materialize.volume,
        other => unreachable!("no step submits {other:?}"),
    }
}

fn said(what: &str) -> impl FnOnce(extant_space::Error) -> String {
    let what = what.to_owned();
    move |error| format!("{what}: {error}")
}
