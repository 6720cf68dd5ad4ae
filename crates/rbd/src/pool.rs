//! A pool: its images by name, and its space.

use std::path::PathBuf;
use std::sync::Arc;

use bitflags::bitflags;
use extant_space::{Error, ErrorKind, Result};
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::name::RbdName;
use crate::sys::{ImageOption, PoolHandle};

bitflags! {
    /// Features of an image, by the numbers of `rbd/features.h`. Others are kept.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ImageFeatures: u64 {
        /// Snapshots can be cloned.
        const LAYERING = 1 << 0;
        /// Stripe unit and count other than the object.
        const STRIPING = 1 << 1;
        /// One client at a time may change the image.
        const EXCLUSIVE_LOCK = 1 << 2;
        /// Which objects exist is recorded.
        const OBJECT_MAP = 1 << 3;
        /// Which objects changed since a snapshot is recorded.
        const FAST_DIFF = 1 << 4;
        /// A flattened image does not need its parent for its snapshots either.
        const DEEP_FLATTEN = 1 << 5;
        /// Changes are recorded in a journal.
        const JOURNALING = 1 << 6;
        /// The objects are in another pool.
        const DATA_POOL = 1 << 7;
        /// All others.
        const _ = !0;
    }
}

impl ImageFeatures {
    /// Those of an image whose map and whose exclusion of others are relied on.
    pub const USUAL: Self = Self::LAYERING
        .union(Self::EXCLUSIVE_LOCK)
        .union(Self::OBJECT_MAP)
        .union(Self::FAST_DIFF)
        .union(Self::DEEP_FLATTEN);
}

/// How a new image is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageLayout {
    /// Bytes of an object; a power of two from 4 KiB to 32 MiB.
    pub object_bytes: u64,
    /// Bytes of a stripe unit, and objects in a stripe; `None`: each object is filled in turn.
    pub striping: Option<(u64, u64)>,
    /// Its features.
    pub features: ImageFeatures,
    /// The pool of its objects; `None`: that of the image.
    pub data_pool: Option<String>,
}

impl Default for ImageLayout {
    /// Objects of 4 MiB, with the [usual](ImageFeatures::USUAL) features.
    fn default() -> Self {
        Self {
            object_bytes: 4 << 20,
            striping: None,
            features: ImageFeatures::USUAL,
            data_pool: None,
        }
    }
}

impl ImageLayout {
    fn options(&self) -> Vec<ImageOption<'_>> {
        let mut options = vec![
            ImageOption::Features(self.features.bits()),
            ImageOption::Order(self.object_bytes.trailing_zeros().into()),
        ];
        if let Some((unit, count)) = self.striping {
            options.push(ImageOption::StripeUnit(unit));
            options.push(ImageOption::StripeCount(count));
        }
        options.extend(self.data_pool.as_deref().map(ImageOption::DataPool));
        options
    }
}

/// The space of a pool, in bytes of its users: copies and coding are counted out.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolStatistics {
    /// Bytes stored.
    pub stored_bytes: u64,
    /// Bytes that can still be stored before a daemon is full.
    pub available_bytes: u64,
    /// Objects.
    pub objects: u64,
    /// Most bytes that may be stored, if there is a limit.
    pub quota_bytes: Option<u64>,
    /// Copies of each object, or chunks of a coded one.
    pub copies: u64,
    /// Used part of a daemon's disk from which the cluster warns.
    pub nearfull_ratio: f64,
    /// Used part of a daemon's disk from which the cluster refuses writes.
    pub full_ratio: f64,
    /// The cluster warns that the pool is nearly full.
    pub is_nearfull: bool,
    /// The cluster refuses writes to the pool.
    pub is_full: bool,
}

/// A pool, or a namespace in it. Clones share the handle.
#[derive(Clone)]
pub struct Pool {
    cluster: Cluster,
    handle: Arc<PoolHandle>,
    name: Arc<str>,
    namespace: Arc<str>,
}

impl Pool {
    /// Opens a pool; an empty namespace is the default one.
    ///
    /// # Errors
    /// `NotFound` without that pool; those of the cluster.
    pub fn open(cluster: &Cluster, name: &str, namespace: &str) -> Result<Self> {
        let handle = PoolHandle::open(cluster.handle(), name, namespace);
        let handle = handle.map_err(|error| match error.kind() {
            ErrorKind::NotFound => error.detail(format!("the cluster has no pool {name}")),
            _ => cluster.explain(error),
        })?;
        Ok(Self {
            cluster: cluster.clone(),
            handle: Arc::new(handle),
            name: name.into(),
            namespace: namespace.into(),
        })
    }

    /// The client that has it open.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn handle(&self) -> &Arc<PoolHandle> {
        &self.handle
    }

    /// The name of an image without options, as errors show it.
    pub(crate) fn place(&self, image: &str, snapshot: Option<&str>) -> PathBuf {
        let name = RbdName {
            pool: self.name.to_string(),
            namespace: self.namespace.to_string(),
            image: image.to_owned(),
            snapshot: snapshot.map(str::to_owned),
            options: Vec::new(),
        };
        name.to_string().into()
    }

    pub(crate) fn explain(&self, error: Error, image: &str) -> Error {
        let error = match error.kind() {
            ErrorKind::NotFound => {
                error.detail(format!("the pool {} has no image {image}", self.name))
            }
            ErrorKind::AlreadyExists => error.detail("the pool has an image of this name"),
            ErrorKind::InUse => error.detail("the image is in use by another client"),
            _ => self.cluster.explain(error),
        };
        error.at(self.place(image, None))
    }

    /// The names of its images.
    ///
    /// # Errors
    /// Those of the cluster.
    pub fn images(&self) -> Result<Vec<String>> {
        Ok(self.listed()?.into_iter().map(|(name, _)| name).collect())
    }

    /// The names of its images, each with its identifier.
    fn listed(&self) -> Result<Vec<(String, String)>> {
        self.handle.images().map_err(|error| {
            let error = self.cluster.explain(error);
            error.during("list images").at(&*self.name)
        })
    }

    /// The names of images whose removal has begun: no list has them, but they take space until it
    /// is repeated.
    ///
    /// # Errors
    /// Those of the cluster.
    pub fn images_in_removal(&self) -> Result<Vec<String>> {
        self.handle.images_in_removal().map_err(|error| {
            let error = self.cluster.explain(error);
            error.during("list the trash").at(&*self.name)
        })
    }

    /// The name by which the image with this identifier is listed. A client killed within a rename
    /// leaves the image with two names that open it, of which one is listed.
    ///
    /// # Errors
    /// Those of the cluster.
    pub fn listed_name(&self, identifier: &str) -> Result<Option<String>> {
        let mut listed = self.listed()?.into_iter();
        let found = listed.find(|(_, other)| other == identifier);
        Ok(found.map(|(name, _)| name))
    }

    /// Takes `name` from the image with this identifier, which has another name that is listed, or
    /// is removed; false if the image does not have it. No client may be renaming the image.
    ///
    /// # Errors
    /// Those of the cluster.
    pub fn remove_second_name(&self, name: &str, identifier: &str) -> Result<bool> {
        let removed = self.handle.remove_name(name, identifier);
        removed.map_err(|error| self.explain(error.during("remove the name of"), name))
    }

    /// Creates an image of `size` bytes, without space.
    ///
    /// # Errors
    /// `AlreadyExists`; those of the cluster.
    pub fn create(&self, image: &str, size: u64, layout: &ImageLayout) -> Result<()> {
        self.handle
            .create(image, size, &layout.options())
            .map_err(|error| self.explain(error.during("create"), image))
    }

    /// Creates the image `name` in `into`: a clone of a protected snapshot of an image here.
    ///
    /// # Errors
    /// `AlreadyExists`; `NotFound` without image or snapshot; `InvalidArgument` for one that is not
    /// protected; those of the cluster.
    pub fn clone_image(
        &self,
        (image, snapshot): (&str, &str),
        into: &Self,
        name: &str,
        layout: &ImageLayout,
    ) -> Result<()> {
        self.handle
            .clone_to((image, snapshot), &into.handle, name, &layout.options())
            .map_err(|error| match error.kind() {
                ErrorKind::NotFound => error
                    .at(self.place(image, Some(snapshot)))
                    .detail("no such image or snapshot"),
                _ => into.explain(error.during("clone"), name),
            })
    }

    /// Removes an image; `progress` receives the objects removed, and all of them. Repeating an
    /// interrupted removal does the rest.
    ///
    /// # Errors
    /// `NotFound`; `InUse` for an image that is open or locked; `NotEmpty` for one with snapshots;
    /// `NoSpace` if a full cluster has no trash yet; those of the cluster.
    pub fn remove(&self, image: &str, progress: &(dyn Fn(u64, u64) + Sync)) -> Result<()> {
        let Err(error) = self.handle.remove(image, progress) else {
            return Ok(());
        };
        let fail = |error: Error, detail: &str| {
            let error = error.detail(detail).during("remove");
            Err(error.at(self.place(image, None)))
        };
        match error.kind() {
            ErrorKind::NotEmpty => fail(error, "the image has snapshots"),
            // librbd loses the error of a move to the trash.
            ErrorKind::NotFound if self.images()?.iter().any(|name| name == image) => fail(
                Error::new(ErrorKind::NoSpace),
                "the pool is full: the image cannot be moved to the trash",
            ),
            _ => Err(self.explain(error.during("remove"), image)),
        }
    }

    /// Renames an image. Of two clients that give the same name, one fails.
    ///
    /// # Errors
    /// `NotFound`; `AlreadyExists`; those of the cluster.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        let explain = |error: Error| self.explain(error.during("rename"), from);
        self.handle.rename(from, to).map_err(explain)?;
        // librbd loses the error of a rename that another client has overtaken: it searches for
        // the new name before, and then registers its watch again, whose result it returns.
        if self.images()?.iter().any(|name| name == from) {
            return Err(explain(Error::new(ErrorKind::AlreadyExists)));
        }
        Ok(())
    }

    /// The space of the pool, by the monitors' newest figures, which are some seconds old.
    ///
    /// # Errors
    /// Those of the cluster.
    pub fn statistics(&self) -> Result<PoolStatistics> {
        let ask = |prefix: &str| {
            let command = json!({ "prefix": prefix, "format": "json", "detail": "detail" });
            self.cluster.ask(&command)
        };
        let (usage, map) = (ask("df")?, ask("osd dump")?);
        self.read_statistics(&usage, &map).ok_or_else(|| {
            Error::new(ErrorKind::Io)
                .at(&*self.name)
                .detail("the monitors have no statistics of the pool")
                .advice("a manager collects them: ceph mgr stat")
        })
    }

    fn read_statistics(&self, usage: &Value, map: &Value) -> Option<PoolStatistics> {
        let is_this = |pool: &&Value, key: &str| pool[key].as_str() == Some(&self.name);
        let mut used = usage["pools"].as_array()?.iter();
        let stats = &used.find(|pool| is_this(pool, "name"))?["stats"];
        let mut pools = map["pools"].as_array()?.iter();
        let pool = pools.find(|pool| is_this(pool, "pool_name"))?;
        let flags = pool["flags_names"].as_str()?;
        let has = |flag: &str| flags.split(',').any(|name| name == flag);
        let quota_bytes = pool["quota_max_bytes"].as_u64().filter(|&bytes| bytes > 0);
        let stored_bytes = stats["stored"].as_u64()?;
        let available_bytes = stats["max_avail"].as_u64()?;
        let below_quota = quota_bytes.map(|quota| quota.saturating_sub(stored_bytes));
        Some(PoolStatistics {
            stored_bytes,
            available_bytes: available_bytes.min(below_quota.unwrap_or(u64::MAX)),
            objects: stats["objects"].as_u64()?,
            quota_bytes,
            copies: pool["size"].as_u64()?,
            nearfull_ratio: map["nearfull_ratio"].as_f64()?,
            full_ratio: map["full_ratio"].as_f64()?,
            is_nearfull: has("nearfull") || has("backfillfull"),
            is_full: has("full") || has("full_quota"),
        })
    }
}
