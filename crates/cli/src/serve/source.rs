//! The device behind an export: opened, locked, and closed when the server ends.
//!
//! | source | device |
//! |---|---|
//! | a file or disk of the host | the host device, buffered or direct |
//! | the URI of an export | the client of the other server |
//! | a file inside an ext4 image (`--in`, or a volume of a pool in one) | a loop device over the engine's file; the image is locked for all of them |
//! | a qcow2 image in either | the device of extant-image over that |

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use extant_blockdev::{
    Device, HostAccess, HostEnd, HostOptions, LoopAccess, LoopDevice, LoopOptions, Statistics,
};
use extant_export::{Access, Export};
use extant_ext4::{File, FollowLast};
use extant_image::Format;
use extant_image::device::{DeviceOptions, ImageAccess, ImageDevice, ReferencedStores};
use extant_image::hold;
use extant_space::{Error, ErrorKind, Result, SpaceFile};

use super::volumes::{NamedFile, NamedFiles};
use super::{Aio, Cache, ServeArgs, Served, format};
use crate::fs_image::{At, Image};

/// A device that counts the requests of clients.
pub(super) type Counted = Statistics<Arc<dyn Device>>;

/// All that is served.
pub(super) struct Sources {
    list: Vec<Source>,
    /// The file-system image that contains the files.
    image: Option<Image>,
}

/// One served export.
#[derive(Clone)]
pub(super) struct Source {
    pub(super) name: String,
    /// Its name in errors.
    pub(super) path: PathBuf,
    pub(super) access: Access,
    /// Of a file or disk of the host.
    pub(super) aio: Option<Aio>,
    pub(super) device: Arc<Counted>,
}

impl Sources {
    /// Opens everything, or nothing.
    pub(super) fn open(args: &ServeArgs) -> Result<Self> {
        if args.files.len() > 1 && (args.name.is_some() || !args.description.is_empty()) {
            return Err(Error::new(ErrorKind::InvalidArgument)
                .detail("--name and --description are for one file")
                .advice("give names as NAME=FILE"));
        }
        if args.aio == Aio::Native && args.cache != Cache::None {
            return Err(Error::new(ErrorKind::InvalidArgument)
                .detail("--aio native needs --cache none: through the page cache it is synchronous")
                .advice("add --cache none, or choose --aio threads or io_uring"));
        }
        let mut sources = Self {
            list: Vec::new(),
            image: None,
        };
        let places = NamedFiles::of(args)?;
        if let Some(path) = &places.image {
            sources.image = Some(if args.read_only {
                Image::hold_still(path)?
            } else {
                Image::change(path, args.inside.below())?
            });
        }
        match sources.add_all(args, &places.files) {
            Ok(()) => Ok(sources),
            Err(error) => sources.close(Err(error)),
        }
    }

    fn add_all(&mut self, args: &ServeArgs, places: &[NamedFile]) -> Result<()> {
        let mut inodes = HashSet::new();
        for (served, place) in args.files.iter().zip(places) {
            let format = place.format;
            let (device, path) = match &self.image {
                None => {
                    // Names of backing files are relative to that of the image.
                    let device = match place.judged_file().filter(|_| !args.chain) {
                        None => open_on_host(args, format, &place.path),
                        Some(judged) => open_on_host(args, format, &judged)
                            .map_err(|error| error.about(&place.path)),
                    };
                    (device?, place.path.clone())
                }
                Some(image) => {
                    let inner = place.path.as_os_str().as_bytes();
                    let file = image.resolve(&place.path, FollowLast::Yes)?.file();
                    let file = file.at_inner(image, inner)?;
                    let is_new = inodes.insert(file.node().number());
                    let place = image.place(inner);
                    if !is_new && !args.read_only {
                        return Err(Error::new(ErrorKind::InUse)
                            .at(place)
                            .detail("the same file is served twice"));
                    }
                    let device = open_inside(args, format, file);
                    (device.map_err(|error| error.at(&place))?, place)
                }
            };
            if format.is_none() {
                format::refuse_other_than_raw(&*device, &path).map_err(|error| error.at(&path))?;
            }
            let is_on_host = self.image.is_none() && !hold::is_export(&path);
            self.list.push(Source {
                name: name(args, served)?,
                aio: is_on_host.then(|| args.aio.at_work()),
                path,
                access: if args.read_only {
                    Access::ReadOnly
                } else {
                    Access::ReadWrite
                },
                device: Arc::new(Statistics::new(device)),
            });
        }
        Ok(())
    }

    /// Those that are served, in the order of the arguments.
    pub(super) fn list(&self) -> &[Source] {
        &self.list
    }

    /// Closes everything after `result`, whose error comes first.
    pub(super) fn close<T>(self, result: Result<T>) -> Result<T> {
        let Self { list, image } = self;
        drop(list);
        match image {
            None => result,
            Some(image) => image.finish(result),
        }
    }
}

impl Source {
    /// Export as clients see it.
    pub(super) fn export(&self, args: &ServeArgs) -> Result<Export> {
        let device = self.device.clone();
        let export = Export::new(&*self.name, &*args.description, device, self.access);
        let export = export.map_err(|error| error.at(&self.path))?;
        Ok(export.with_discard_policy(args.discard.into()))
    }
}

fn open_on_host(args: &ServeArgs, format: Option<Format>, path: &Path) -> Result<Arc<dyn Device>> {
    if args.aio != Aio::Auto && hold::is_export(path) {
        return Err(Error::new(ErrorKind::InvalidArgument)
            .at(path)
            .detail("--aio is for files and disks of the host, and this is an export"));
    }
    let access = if args.read_only {
        HostAccess::ReadOnly
    } else {
        HostAccess::ReadWrite
    };
    if format == Some(Format::Qcow2) {
        // Locked first: later openers see the lock.
        let device = ImageDevice::open(path, &image_options(args))?;
        hold::check_is_free(path, access)?;
        return Ok(Arc::new(device));
    }
    let options = HostOptions {
        access,
        cache: args.cache.into(),
        engine: args.aio.into(),
        end: HostEnd::Exact,
        ..HostOptions::default()
    };
    Image::hold_device(path, &options)
}

fn image_options(args: &ServeArgs) -> DeviceOptions {
    DeviceOptions {
        access: if args.read_only {
            ImageAccess::ReadOnly
        } else {
            ImageAccess::ReadWrite
        },
        format: Some(Format::Qcow2),
        referenced: if args.chain {
            ReferencedStores::Followed
        } else {
            ReferencedStores::Refused
        },
        cache: args.cache.into(),
        engine: args.aio.into(),
        ..DeviceOptions::default()
    }
}

fn open_inside(args: &ServeArgs, format: Option<Format>, file: File) -> Result<Arc<dyn Device>> {
    let block = LoopOptions::default().logical_block;
    let ends_inside = !file.size()?.is_multiple_of(block.into());
    let options = LoopOptions {
        // Clients get all of a disk that does not end with a sector.
        logical_block: match format {
            Some(Format::Raw) | None if ends_inside => 1,
            _ => block,
        },
        access: if args.read_only {
            LoopAccess::ReadOnly
        } else {
            LoopAccess::ReadWrite
        },
        ..LoopOptions::default()
    };
    let device = Arc::new(LoopDevice::new(Arc::new(file), options)?);
    match format {
        Some(Format::Qcow2) => Ok(Arc::new(ImageDevice::open_store(
            device,
            &image_options(args),
        )?)),
        Some(Format::Raw) | None => Ok(device),
    }
}

/// The name that clients ask for.
fn name(args: &ServeArgs, served: &Served) -> Result<String> {
    let name = match (&args.name, &served.name) {
        (Some(name), _) => OsStr::new(name),
        (None, Some(name)) => name,
        (None, None) => served.path.file_name().unwrap_or_default(),
    };
    let text = name.to_str().map(str::to_owned);
    text.ok_or_else(|| {
        Error::new(ErrorKind::InvalidArgument)
            .at(&served.path)
            .detail("names of exports are UTF-8")
            .advice("give it one as NAME=FILE")
    })
}
