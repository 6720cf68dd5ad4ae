//! Copies an image into a new image of a Ceph cluster, which is raw.
//!
//! The new image has a hidden name, `.NAME.extant-partial`, until it is complete and durable; then
//! it is renamed, which fails if its name has been taken meanwhile. After an error it is removed,
//! if that takes no longer than [`REMOVE_TIMEOUT`]. Otherwise, and after a kill, it is left: the
//! next copy to the same name removes it.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use extant_rbd::{
    Cluster, Image, ImageLayout, MaterializeOptions, Pool, RbdAccess, RbdCache, RbdDevice, RbdName,
    materialize,
};
use extant_space::thread::spawn;
use extant_space::{Control, Error, ErrorKind, Phase, Preallocation, Result};

use super::{Conversion, CopyOptions};
use crate::image_format::Format;
use crate::layer::Layer;
use crate::options::ImageOptions;
use crate::store::StoreFile;

/// Time for the removal of an incomplete image.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(3);
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Copies `source` to the image `name`, which must not exist. Returns the time taken.
///
/// # Errors
/// `AlreadyExists`; `Unsupported` for another format than raw, and for reserved space; `NoSpace`;
/// `Cancelled`; those of the source and of the cluster.
pub fn convert_to_cluster(
    source: &Layer,
    name: &RbdName,
    image: &ImageOptions,
    options: CopyOptions,
    control: Control<'_>,
) -> Result<Duration> {
    let started = Instant::now();
    check(name, image)?;
    let conversion = Conversion::new(source, image, options)?;
    let mut cluster = name.cluster();
    // A write that has ended is in the cluster then.
    cluster.cache = RbdCache::Off;
    let cluster = Cluster::connect(&cluster)?;
    let pool = Pool::open(&cluster, &name.pool, &name.namespace)?;
    let hidden = format!(".{}.extant-partial", name.image);
    let names = pool.images()?;
    if names.contains(&name.image) {
        return Err(Error::new(ErrorKind::AlreadyExists)
            .at(name.without_options().to_string())
            .detail("the pool has an image of this name"));
    }
    if names.contains(&hidden) {
        pool.remove(&hidden, &|_, _| {})?;
    }
    let size = conversion.image().file_bytes();
    pool.create(&hidden, size, &ImageLayout::default())?;
    let filled = conversion.fill_cluster_image(&pool, &hidden, control);
    let named = filled.and_then(|()| pool.rename(&hidden, &name.image));
    if named.is_err() {
        remove_soon(&pool, hidden);
    }
    named
        .map(|()| started.elapsed())
        .map_err(|error| error.at(name.without_options().to_string()))
}

/// Removes an image, for at most [`REMOVE_TIMEOUT`]: the cluster may not answer.
fn remove_soon(pool: &Pool, image: String) {
    let pool = pool.clone();
    let (ended, end) = mpsc::channel();
    let _ = spawn("rbd remove", move || {
        // In use as long as requests that were abandoned are in flight.
        let until = Instant::now() + REMOVE_TIMEOUT;
        while let Err(error) = pool.remove(&image, &|_, _| {}) {
            if error.kind() != ErrorKind::InUse || Instant::now() > until {
                break;
            }
            thread::sleep(RETRY_INTERVAL);
        }
        let _ = ended.send(());
    });
    let _ = end.recv_timeout(REMOVE_TIMEOUT);
}

fn check(name: &RbdName, image: &ImageOptions) -> Result<()> {
    let refuse = |kind, detail: &str| {
        let error = Error::new(kind).at(name.without_options().to_string());
        Err(error.detail(detail))
    };
    if name.snapshot.is_some() {
        return refuse(ErrorKind::ReadOnly, "a snapshot cannot be changed");
    }
    if image.format != Format::Raw {
        let detail = "images of a cluster are raw: RBD has clones and snapshots itself";
        return refuse(ErrorKind::Unsupported, detail);
    }
    if image.preallocation.space() == Preallocation::Falloc {
        let detail = "RBD reserves no space without writing it: off or full";
        return refuse(ErrorKind::Unsupported, detail);
    }
    Ok(())
}

impl Conversion<'_> {
    fn fill_cluster_image(&self, pool: &Pool, name: &str, control: Control<'_>) -> Result<()> {
        let image = Image::open(pool, name, None, RbdAccess::ReadWrite)?;
        let device = Arc::new(RbdDevice::new(image, RbdAccess::ReadWrite)?);
        let image = Arc::clone(device.image());
        let write = |bytes: &[u8], offset| image.write(bytes, offset, control.cancel);
        let written = self.fill_by(&StoreFile(device), &write, control)?;
        control.report(Phase::Sync, written, written);
        image.flush(control.cancel)?;
        if self.new.preallocation().space() == Preallocation::Full {
            materialize(&image, MaterializeOptions::default(), control)?;
        }
        Ok(())
    }
}
