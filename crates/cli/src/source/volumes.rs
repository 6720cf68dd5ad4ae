//! Location and kind of the served files: as the command line names them, or as the volumes of a
//! pool.

use std::path::PathBuf;
use std::sync::Arc;

use extant_blockdev::Device;
use extant_image::Format;
use extant_pool::{Pool, VolumeName, VolumePlace};
use extant_space::{Error, ErrorKind, Result};

use super::{Aio, Cache, SourceArgs, Wanted, format};
use crate::pool::PoolArgs;

/// All that is to be served, in the order of the arguments.
pub(super) struct NamedFiles {
    /// Image that contains the files.
    pub(super) image: Option<PathBuf>,
    pub(super) files: Vec<NamedFile>,
}

/// A file that is to be served.
pub(super) struct NamedFile {
    pub(super) path: PathBuf,
    /// `None`: not given.
    pub(super) format: Option<Format>,
    /// Location checked by the pool, open until it is served.
    judged: Option<VolumePlace>,
}

impl NamedFile {
    /// The device of a volume that has no path.
    pub(super) fn device(&self) -> Option<&Arc<dyn Device>> {
        self.judged.as_ref()?.device()
    }

    /// For a volume, a path of the file that its pool has checked.
    pub(super) fn judged_file(&self) -> Option<PathBuf> {
        self.judged.as_ref().and_then(VolumePlace::path_of_file)
    }
}

impl NamedFiles {
    /// # Errors
    /// Those of finding volumes.
    pub(super) fn of(args: &SourceArgs, wanted: &[Wanted]) -> Result<Self> {
        let Some(pool) = &args.pool else {
            let named = |wanted: &Wanted| NamedFile {
                path: wanted.path.clone(),
                format: format::said(args.format, &wanted.path),
                judged: None,
            };
            return Ok(Self {
                image: args.inside.image.clone(),
                files: wanted.iter().map(named).collect(),
            });
        };
        let pool = PoolArgs {
            pool: pool.clone(),
            config: args.config.clone(),
        };
        Self::of_volumes(args, wanted, &pool.open()?)
    }

    fn of_volumes(args: &SourceArgs, wanted: &[Wanted], pool: &Pool) -> Result<Self> {
        let mut places = Self {
            image: None,
            files: Vec::new(),
        };
        for wanted in wanted {
            let found = pool.place_of(&volume_name(wanted)?, !args.read_only)?;
            places.image.clone_from(&found.image);
            places.files.push(NamedFile {
                path: found.path.clone(),
                format: args.format.map(Format::from).or(Some(found.format)),
                judged: Some(found),
            });
        }
        let is_for_host = args.cache != Cache::Writeback || args.aio != Aio::Auto;
        let has_devices = places.files.iter().any(|file| file.device().is_some());
        if (places.image.is_some() || has_devices) && is_for_host {
            return Err(Error::new(ErrorKind::InvalidArgument).detail(
                "--cache and --aio are for files and disks of the host, which the volumes of this pool are not",
            ));
        }
        Ok(places)
    }
}

fn volume_name(wanted: &Wanted) -> Result<VolumeName> {
    match wanted.path.to_str() {
        Some(name) => name.parse(),
        None => Err(Error::new(ErrorKind::InvalidArgument)
            .at(&wanted.path)
            .detail("names of volumes are UTF-8")),
    }
}
