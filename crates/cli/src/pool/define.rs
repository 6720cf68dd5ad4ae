//! `extant pool define` and `delete`.

use std::num::{NonZeroU32, NonZeroU64};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use extant_image::Preallocation;
use extant_pool::{
    ClusterPlace, Definition, InImage, Limits, Overcommit, Pool, PoolName, state_for_disk,
    state_of_user,
};
use extant_space::{ByteSize, Error, ErrorKind, Result};

use super::json::PoolJson;
use super::{ConfigArgs, xml};
use crate::arguments::{parse_rate, parse_size};
use crate::image_format::Mode;
use crate::print;

/// Give a directory, an ext4 image, a disk, a volume group or a pool of a Ceph cluster a name and
/// limits.
///
/// A directory is made if there is none; its files become the pool's volumes. With --kind ext4 it
/// is a directory inside an image or on a disk, which the pool drives itself: no other program may
/// use it meanwhile, and processes of the pool alternate: a job yields to others. The image's free
/// space limits what may be promised; extant materialize allocates it in a sparse image.
///
/// With --kind disk the volumes are partitions of a disk or of the image of one: a blank disk gets
/// a GUID partition table; an existing table is used only with --adopt.
///
/// With --kind lvm the volumes are logical volumes of an existing volume group, which the pool
/// changes through the LVM tools. Other logical volumes in it are kept, and never changed.
///
/// With --kind rbd the volumes are images of a pool of a Ceph cluster. The jobs of the pool are
/// those of this machine; other machines define it as well, and no two of them get the same volume.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant pool define vms /srv/vms --total 500GiB
  extant pool define thin /srv/thin --overcommit 2 --preallocation off
  extant pool define box --kind ext4 --target disk.img
  extant pool define disk --kind ext4 --target /dev/vdb --directory /volumes
  extant pool define bare --kind disk --path /dev/vdc
  extant pool define rest --kind disk --path /dev/vda --adopt
  extant pool define thick --kind lvm --volume-group vg0
  extant pool define cloud --kind rbd --ceph-pool vms
  extant pool define team --kind rbd --ceph-pool vms --namespace team --id me
  extant pool define --xml vms.xml              as virsh pool-dumpxml writes it

Exit status: see extant --help.")]
pub struct DefineArgs {
    /// Name of the pool
    #[arg(required_unless_present = "xml")]
    pub name: Option<PoolName>,

    /// The directory, the image or the disk
    #[arg(required_unless_present_any = ["xml", "target", "ceph_pool", "volume_group"])]
    pub place: Option<PathBuf>,

    /// The same as an option
    #[arg(
        long,
        visible_alias = "path",
        value_name = "PATH",
        conflicts_with = "place"
    )]
    pub target: Option<PathBuf>,

    /// Storage of the volumes
    #[arg(long, value_name = "KIND", default_value = "dir")]
    pub kind: KindArg,

    /// With --kind ext4: the directory inside, created if missing [default: the root]
    #[arg(long, value_name = "DIR")]
    pub directory: Option<PathBuf>,

    /// With --kind disk: keep the partitions of a disk that has a partition table already, and use
    /// the free space between them
    #[arg(long)]
    pub adopt: bool,

    /// With --kind lvm: the volume group
    #[arg(
        long,
        value_name = "GROUP",
        conflicts_with_all = ["place", "target", "ceph_pool"],
        required_if_eq("kind", "lvm")
    )]
    pub volume_group: Option<String>,

    /// With --kind rbd: Ceph's name of the pool
    #[arg(
        long,
        value_name = "POOL",
        conflicts_with_all = ["place", "target"],
        required_if_eq("kind", "rbd")
    )]
    pub ceph_pool: Option<String>,

    /// With --kind rbd: the namespace in the pool [default: none]
    #[arg(long, value_name = "NAMESPACE", requires = "ceph_pool")]
    pub namespace: Option<String>,

    /// With --kind rbd: Ceph's configuration file [default: $CEPH_CONF or /etc/ceph/ceph.conf]
    #[arg(long, value_name = "FILE", requires = "ceph_pool")]
    pub conf: Option<PathBuf>,

    /// With --kind rbd: the user, client.ID [default: admin]
    #[arg(long, value_name = "ID", requires = "ceph_pool")]
    pub id: Option<String>,

    /// With --kind rbd: the file with the user's key [default: as the configuration says]
    #[arg(long, value_name = "FILE", requires = "ceph_pool")]
    pub keyring: Option<PathBuf>,

    /// With --kind ext4, disk, lvm and rbd: the state directory of the pool [default: next to the
    /// image; of the others, /var/lib/extant/pools/NAME, of users in $XDG_STATE_HOME]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,

    /// Take name and directory from libvirt's XML of a pool
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "name", "place", "target", "kind", "directory", "adopt", "volume_group", "ceph_pool",
        "namespace", "conf", "id", "keyring", "state",
    ])]
    pub xml: Option<PathBuf>,

    /// Space limit of all volumes together [default: the size of the file system]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub total: Option<ByteSize>,

    /// Capacity that may be promised for each byte of space
    #[arg(long, value_name = "RATIO", default_value = "1.0")]
    pub overcommit: Overcommit,

    /// Rate of all jobs with --background together, such as 100M or 1GB/s
    #[arg(long, value_name = "BYTES/s", value_parser = parse_rate)]
    pub rate: Option<NonZeroU64>,

    /// Most jobs that run at a time
    #[arg(long, value_name = "N", default_value = "4")]
    pub jobs: NonZeroU32,

    /// Default preallocation of new volumes
    #[arg(long, value_name = "MODE", default_value = "full")]
    pub preallocation: Mode,

    /// Print the pool as JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub config: ConfigArgs,
}

/// Kinds of pools, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KindArg {
    /// A directory of this machine
    Dir,
    /// A directory in an ext4 image or on a disk, without root or mount
    Ext4,
    /// Partitions of a disk, or of the image of one
    Disk,
    /// Logical volumes of an LVM volume group
    Lvm,
    /// Images of a pool of a Ceph cluster
    Rbd,
}

/// Remove the definition of a pool; its directory or image and its volumes are kept.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant pool delete vms

Exit status: see extant --help.")]
pub struct DeleteArgs {
    /// Name of the pool
    pub name: PoolName,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub config: ConfigArgs,
}

pub(super) fn run(args: &DefineArgs) -> Result<ExitCode> {
    let limits = Limits {
        total_bytes: args.total.map(|size| size.0),
        overcommit: args.overcommit,
        rate: args.rate,
        jobs_max: args.jobs,
        preallocation: Preallocation::from(args.preallocation).of_raw()?,
    };
    let definitions = args.config.definitions()?;
    let place = args.place.as_ref().or(args.target.as_ref());
    let definition = match (&args.name, place, &args.xml) {
        (Some(name), None, None) => match &args.volume_group {
            Some(group) => define_in_group(args, name, group, limits)?,
            None => define_on_cluster(args, name, limits)?,
        },
        (Some(name), Some(place), _) => define(args, name, place, limits)?,
        (_, _, Some(path)) => {
            let read = extant_libvirt::definition_from_xml(&xml::read(path)?, limits);
            read.map_err(|error| error.at(path))?
        }
        _ => unreachable!("clap wants one or the other"),
    };
    let pool = Pool::define(definition, &definitions)?;
    if args.json {
        return Ok(print::json(&PoolJson::from(&pool.info()?)));
    }
    let path = print::path(pool.definition().path());
    Ok(print::text(format!("{pool}: {path}")))
}

fn define_in_group(
    args: &DefineArgs,
    name: &PoolName,
    group: &str,
    limits: Limits,
) -> Result<Definition> {
    let refuse = |detail: &str| Err(Error::new(ErrorKind::InvalidArgument).detail(detail));
    if args.kind != KindArg::Lvm {
        return refuse("--volume-group is for pools of --kind lvm");
    }
    if args.directory.is_some() || args.adopt {
        return refuse("--directory and --adopt are not for pools of --kind lvm");
    }
    let state = match &args.state {
        Some(state) => state.clone(),
        None => default_state(name)?,
    };
    Definition::in_volume_group(name.clone(), group, &state, limits)
}

fn define_on_cluster(args: &DefineArgs, name: &PoolName, limits: Limits) -> Result<Definition> {
    let refuse = |detail: &str| Err(Error::new(ErrorKind::InvalidArgument).detail(detail));
    let Some(pool) = &args.ceph_pool else {
        return refuse("the pool has no place");
    };
    if args.kind != KindArg::Rbd {
        return refuse("--ceph-pool is for pools of --kind rbd");
    }
    if args.directory.is_some() || args.adopt {
        return refuse("--directory and --adopt are not for pools of --kind rbd");
    }
    // Later commands run in other directories.
    let absolute =
        |path: &PathBuf| std::path::absolute(path).map_err(|source| Error::from(source).at(path));
    let place = ClusterPlace {
        pool: pool.clone(),
        namespace: args.namespace.clone(),
        conf: args.conf.as_ref().map(absolute).transpose()?,
        id: args.id.clone(),
        keyring: args.keyring.as_ref().map(absolute).transpose()?,
    };
    let state = match &args.state {
        Some(state) => state.clone(),
        None => default_state(name)?,
    };
    Definition::on_cluster(name.clone(), place, &state, limits)
}

fn define(args: &DefineArgs, name: &PoolName, place: &Path, limits: Limits) -> Result<Definition> {
    let only = |is_given: bool, detail: &str| {
        if is_given {
            Err(Error::new(ErrorKind::InvalidArgument).detail(detail))
        } else {
            Ok(())
        }
    };
    let is_kind = |kind| args.kind == kind;
    only(
        args.directory.is_some() && !is_kind(KindArg::Ext4),
        "--directory is for pools of --kind ext4",
    )?;
    only(
        args.state.is_some() && is_kind(KindArg::Dir),
        "--state is for pools of --kind ext4, disk, lvm and rbd",
    )?;
    only(
        args.adopt && !is_kind(KindArg::Disk),
        "--adopt is for pools of --kind disk",
    )?;
    only(
        is_kind(KindArg::Rbd),
        "a pool of --kind rbd is named by --ceph-pool",
    )?;
    only(
        is_kind(KindArg::Lvm),
        "a pool of --kind lvm is named by --volume-group",
    )?;
    if is_kind(KindArg::Dir) {
        return Definition::named(name.clone(), place, limits);
    }
    let of_disk = match &args.state {
        None => state_for_disk(name, place).map_err(advise)?,
        Some(_) => None,
    };
    if is_kind(KindArg::Disk) {
        let state = args.state.as_deref().or(of_disk.as_deref());
        return Definition::on_disk(name.clone(), place, state, args.adopt, limits);
    }
    let inside = InImage {
        directory: args.directory.as_deref(),
        state: args.state.as_deref().or(of_disk.as_deref()),
    };
    Definition::in_image(name.clone(), place, &inside, limits)
}

fn default_state(name: &PoolName) -> Result<PathBuf> {
    state_of_user(name).map_err(advise)
}

fn advise(error: Error) -> Error {
    error.advice("--state names a directory")
}

pub(super) fn delete(args: &DeleteArgs) -> Result<ExitCode> {
    let definitions = args.config.definitions()?;
    // An unreadable one can only be removed manually.
    let definition = definitions.get(&args.name)?;
    definitions.remove(&args.name)?;
    let (name, path) = (&args.name, definition.path());
    Ok(if args.json {
        print::json(&serde_json::json!({
            "name": name,
            "path": path.display().to_string(),
        }))
    } else {
        print::text(format!(
            "{name}: definition removed; its volumes remain in {}",
            print::path(path)
        ))
    })
}
