//! Volumes that share space: clones of a protected snapshot of their source.
//!
//! The snapshot is ours alone, one for each clone. The clone keeps its name in its metadata, so
//! that the snapshot goes when the clone does, or shares nothing any more. A process that is killed
//! between the two leaves a snapshot without clones; it goes with its source.

use std::path::Path;
use std::sync::Arc;

use extant_rbd::{Image, ImageLayout, Pool, RbdAccess, RbdName};
use extant_space::{Control, Error, ErrorKind, Phase, Remedy, Result};

use super::image_pool::ImagePool;

/// The metadata of a clone: `SNAPSHOT@IMAGE`. Names of our snapshots have no `@`.
const SOURCE: &str = "extant.source";
/// Snapshots whose names begin so are ours.
const SNAPSHOT: &str = "extant-clone-";
/// Parts of the progress of a flatten, whose objects have no common size.
const PERCENT: u64 = 100;

/// Makes the empty image `target` a clone of the image at `source`.
pub(super) fn share_space(pool: &ImagePool, source: &Path, target: &str) -> Result<()> {
    let name: RbdName = source.to_string_lossy().parse()?;
    let snapshot = format!("{SNAPSHOT}{:016x}", super::random()?);
    let (source, target) = (name.image, target.to_owned());
    pool.figures.forget();
    pool.call(move |pool| {
        let image = Image::open(pool, &source, None, RbdAccess::ReadOnly)?;
        image.create_snapshot(&snapshot)?;
        let cloned = image.protect_snapshot(&snapshot).and_then(|()| {
            pool.remove(&target, &|_, _| {})?;
            let layout = ImageLayout {
                object_bytes: image.object_bytes(),
                ..ImageLayout::default()
            };
            pool.clone_image((&source, &snapshot), pool, &target, &layout)?;
            let clone = Image::open(pool, &target, None, RbdAccess::ReadWrite)?;
            clone.set_metadata(SOURCE, &format!("{snapshot}@{source}"))
        });
        if cloned.is_err() {
            // Protected as long as there is a clone of it.
            let _ = remove_snapshot(&image, &snapshot);
        }
        cloned
    })
}

/// Copies what a clone shares. A cancel leaves the copy to the cluster, until this process ends.
pub(super) fn flatten(pool: &ImagePool, image: &Arc<Image>, control: Control<'_>) -> Result<()> {
    let size = image.size()?;
    let clone = Arc::clone(image);
    pool.figures.forget();
    control.report(Phase::Copy, 0, size);
    let done = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let inner = Arc::clone(&done);
    let flattened = pool.patience.call_reporting(
        move |steps| {
            clone.flatten(&|objects, all| {
                let percent = objects * PERCENT / all.max(1);
                inner.store(percent, std::sync::atomic::Ordering::Relaxed);
                steps.tick();
            })
        },
        &|| {
            let percent = done.load(std::sync::atomic::Ordering::Relaxed);
            control.report(Phase::Copy, size / PERCENT * percent, size);
        },
    );
    flattened?;
    let clone = Arc::clone(image);
    pool.call(move |pool| {
        let source = clone.metadata(SOURCE)?;
        forget_source(pool, source.as_deref());
        match source {
            Some(_) => clone.remove_metadata(SOURCE),
            None => Ok(()),
        }
    })
}

/// Source of a clone, for [`forget_source`] after its removal.
pub(super) fn source_of(image: &Image) -> Result<Option<String>> {
    image.metadata(SOURCE)
}

/// Removes the snapshot of a clone that has ended. Without it, it goes with its source.
pub(super) fn forget_source(pool: &Pool, source: Option<&str>) {
    let Some((snapshot, image)) = source.and_then(|source| source.split_once('@')) else {
        return;
    };
    if let Ok(image) = Image::open(pool, image, None, RbdAccess::ReadOnly) {
        let _ = remove_snapshot(&image, snapshot);
    }
}

fn remove_snapshot(image: &Image, snapshot: &str) -> Result<()> {
    if image.is_protected(snapshot)? {
        image.unprotect_snapshot(snapshot)?;
    }
    image.remove_snapshot(snapshot)
}

/// Removes our snapshots without clones from an image that is to be removed.
///
/// # Errors
/// `InUse` if it has clones, `NotEmpty` if it has other snapshots.
pub(super) fn check_no_snapshots(image: &Image) -> Result<()> {
    for snapshot in image.snapshots()? {
        let name = &snapshot.name;
        if !name.starts_with(SNAPSHOT) {
            return Err(Error::new(ErrorKind::NotEmpty)
                .detail(format!("the image has the snapshot {name}"))
                .advice("rbd snap rm removes it"));
        }
        remove_snapshot(image, name).map_err(|error| match error.kind() {
            ErrorKind::InUse => Error::new(ErrorKind::InUse)
                .detail("clones share the space of the volume")
                .remedy(Remedy::MaterializeClones),
            _ => error,
        })?;
    }
    Ok(())
}
