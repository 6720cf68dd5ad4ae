//! Pool definitions and where they are stored.
//!
//! A definition is a small JSON file `NAME.json` in a directory: `/etc/extant/pools` for root,
//! `extant/pools` in the user's configuration directory for other users, who also see root's
//! definitions after their own. It is replaced atomically. Any directory is a pool with default
//! limits without a definition.
//!
//! The identifier of a definition is also stored in the pool's state. It detects a directory whose
//! file system is not mounted.

use std::env;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use extant_hostfs::Directory;
use extant_image::hold::is_export;
use extant_space::{Error, ErrorKind, Preallocation, Remedy, Result};
use serde::{Deserialize, Serialize};

use crate::cluster_place::ClusterPlace;
use crate::foreign::ForeignElements;
use crate::limits::Limits;
use crate::name::PoolName;
use crate::permissions::Permissions;
use crate::state_directory::STATE_DIRECTORY;

const VERSION: u32 = 1;
/// Far more than any definition has.
const BYTES_MAX: u64 = 1 << 20;
const SUFFIX: &str = ".json";

/// The kind of a pool's storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum PoolKind {
    /// A directory of the host.
    Dir,
    /// A directory in an ext4 image or on a disk, without a mount.
    Ext4,
    /// Partitions of a disk, or of the image of one.
    Disk,
    /// Images of a pool of a Ceph cluster.
    Rbd,
    /// Logical volumes of an LVM volume group.
    Lvm,
}

impl PoolKind {
    /// The word used in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dir => "dir",
            Self::Ext4 => "ext4",
            Self::Disk => "disk",
            Self::Rbd => "rbd",
            Self::Lvm => "lvm",
        }
    }
}

/// Location of a pool in an image.
#[derive(Clone, Copy, Debug, Default)]
pub struct InImage<'a> {
    /// The directory of the volumes; `None`: the root.
    pub directory: Option<&'a Path>,
    /// The state directory; `None`: next to the image.
    pub state: Option<&'a Path>,
}

/// A pool by its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    version: u32,
    /// `None` for a directory that is a pool without a definition.
    name: Option<PoolName>,
    kind: PoolKind,
    path: PathBuf,
    /// The directory in an image; `None` is its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    directory: Option<PathBuf>,
    /// The state directory, if it is not the default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    state: Option<PathBuf>,
    identifier: Option<String>,
    /// How a cluster is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cluster: Option<ClusterPlace>,
    #[serde(default)]
    limits: Limits,
    /// A partition table that the pool has not made may be used. For the definition alone.
    #[serde(skip)]
    adopts_table: bool,
    /// Those of a directory that the pool makes. For the definition alone.
    #[serde(skip)]
    permissions: Permissions,
    /// Elements of libvirt's description that mean nothing here.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "kept")]
    foreign: Option<ForeignElements>,
}

impl Definition {
    /// Its file.
    ///
    /// # Errors
    /// `InvalidArgument` for a path that is not UTF-8.
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec_pretty(self).map_err(|_| {
            Error::new(ErrorKind::InvalidArgument)
                .at(&self.path)
                .detail("a definition holds no path that is not UTF-8")
        })?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// The pool that every directory is.
    pub fn of_directory(path: &Path) -> Self {
        Self {
            version: VERSION,
            name: None,
            kind: PoolKind::Dir,
            path: path.to_path_buf(),
            directory: None,
            state: None,
            identifier: None,
            cluster: None,
            limits: Limits::default(),
            adopts_table: false,
            permissions: Permissions::default(),
            foreign: None,
        }
    }

    /// The pool that the root of every ext4 image is.
    pub fn of_image(path: &Path) -> Self {
        Self {
            kind: PoolKind::Ext4,
            ..Self::of_directory(path)
        }
    }

    /// A pool to be defined as `name`, with a new identifier.
    ///
    /// # Errors
    /// Where the path is relative to nothing (there is no current directory).
    pub fn named(name: PoolName, path: &Path, limits: Limits) -> Result<Self> {
        let path = if is_export(path) {
            path.to_path_buf()
        } else {
            std::path::absolute(path).map_err(|source| Error::from(source).at(path))?
        };
        Ok(Self {
            name: Some(name),
            identifier: Some(new_identifier()?),
            limits,
            ..Self::of_directory(&path)
        })
    }

    /// A pool in an ext4 image, on a disk or in an NBD export, to be kept under `name`.
    ///
    /// # Errors
    /// As [`named`](Self::named).
    pub fn in_image(
        name: PoolName,
        path: &Path,
        place: &InImage<'_>,
        limits: Limits,
    ) -> Result<Self> {
        let absolute =
            |path: &Path| std::path::absolute(path).map_err(|source| Error::from(source).at(path));
        Ok(Self {
            kind: PoolKind::Ext4,
            directory: place.directory.map(Path::to_path_buf),
            state: place.state.map(absolute).transpose()?,
            ..Self::named(name, path, limits)?
        })
    }

    /// A pool of the partitions of a disk or of the image of one, to be kept under `name`. `state`
    /// is the state directory; `None`: next to the image. A partition table that the pool has not
    /// made is refused unless it `adopts_table`.
    ///
    /// # Errors
    /// As [`named`](Self::named); `InvalidArgument` for a default preallocation of thin volumes.
    pub fn on_disk(
        name: PoolName,
        path: &Path,
        state: Option<&Path>,
        adopts_table: bool,
        limits: Limits,
    ) -> Result<Self> {
        if limits.preallocation != Preallocation::Full {
            return Err(Error::new(ErrorKind::InvalidArgument).detail(
                "partitions have all of their space: the preallocation of the pool is full",
            ));
        }
        let inside = InImage {
            directory: None,
            state,
        };
        Ok(Self {
            kind: PoolKind::Disk,
            adopts_table,
            ..Self::in_image(name, path, &inside, limits)?
        })
    }

    /// A pool of the images of a Ceph cluster, to be kept under `name`. `state` is the state
    /// directory, on this machine.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that Ceph's tools do not know, and for the default
    /// preallocation `falloc`: RBD reserves no space.
    pub fn on_cluster(
        name: PoolName,
        cluster: ClusterPlace,
        state: &Path,
        limits: Limits,
    ) -> Result<Self> {
        cluster.check()?;
        if limits.preallocation == Preallocation::Falloc {
            return Err(Error::new(ErrorKind::InvalidArgument).detail(
                "RBD reserves no space without writing it: the preallocation of the pool is full or off",
            ));
        }
        let state = std::path::absolute(state).map_err(|source| Error::from(source).at(state))?;
        let path = cluster.path();
        Ok(Self {
            kind: PoolKind::Rbd,
            name: Some(name),
            identifier: Some(new_identifier()?),
            cluster: Some(cluster),
            state: Some(state),
            limits,
            ..Self::of_directory(&path)
        })
    }

    /// A pool of the logical volumes of a volume group, to be kept under `name`. `state` is the
    /// state directory.
    ///
    /// # Errors
    /// `InvalidArgument` for a default preallocation of thin volumes.
    pub fn in_volume_group(
        name: PoolName,
        group: &str,
        state: &Path,
        limits: Limits,
    ) -> Result<Self> {
        if limits.preallocation != Preallocation::Full {
            return Err(Error::new(ErrorKind::InvalidArgument).detail(
                "logical volumes have all of their space: the preallocation of the pool is full",
            ));
        }
        let inside = InImage {
            directory: None,
            state: Some(state),
        };
        Ok(Self {
            kind: PoolKind::Lvm,
            ..Self::in_image(name, &Path::new("/dev").join(group), &inside, limits)?
        })
    }

    /// The volume group of a pool of kind `lvm`.
    pub(crate) fn volume_group(&self) -> Option<&str> {
        self.path.strip_prefix("/dev").ok()?.to_str()
    }

    pub(crate) fn cluster(&self) -> Option<&ClusterPlace> {
        self.cluster.as_ref()
    }

    pub(crate) fn adopts_table(&self) -> bool {
        self.adopts_table
    }

    /// Its name; `None` for a directory without definition.
    pub fn name(&self) -> Option<&PoolName> {
        self.name.as_ref()
    }

    /// The kind of its storage.
    pub fn kind(&self) -> PoolKind {
        self.kind
    }

    /// Location of the volumes: a directory, an image, a disk, or the directory of a volume group.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory of the volumes inside an image.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.as_deref().unwrap_or(Path::new("/"))
    }

    /// The state directory.
    pub(crate) fn state(&self) -> PathBuf {
        match (&self.state, self.kind) {
            (Some(state), _) => state.clone(),
            (None, PoolKind::Dir) => self.path.join(STATE_DIRECTORY),
            (None, PoolKind::Ext4 | PoolKind::Disk | PoolKind::Rbd | PoolKind::Lvm) => {
                let mut beside = self.path.as_os_str().to_owned();
                beside.push(STATE_DIRECTORY);
                beside.into()
            }
        }
    }

    /// Its limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Elements of the description that the definition was made from.
    pub fn foreign(&self) -> Option<&ForeignElements> {
        self.foreign.as_ref()
    }

    /// Sets the permissions of the directory, if the pool makes it.
    pub fn set_permissions(&mut self, permissions: Permissions) {
        self.permissions = permissions;
    }

    pub(crate) fn take_permissions(&mut self) -> Permissions {
        std::mem::take(&mut self.permissions)
    }

    /// Stores elements with the definition.
    pub fn set_foreign(&mut self, foreign: Option<ForeignElements>) {
        self.foreign = foreign;
    }

    /// Sets the identifier, 32 hexadecimal digits.
    pub fn set_identifier(&mut self, identifier: &str) {
        self.identifier = Some(identifier.to_owned());
    }

    /// The identifier: 32 hexadecimal digits; `None` for a directory without definition.
    pub fn identifier(&self) -> Option<&str> {
        self.identifier.as_deref()
    }
}

fn new_identifier() -> Result<String> {
    let mut bytes = [0u8; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| Error::from(io::Error::from(errno)).during("make an identifier"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Directory of root's definitions.
const OF_SYSTEM: &str = "/etc/extant/pools";

/// A directory of definitions, followed by that of the system.
#[derive(Clone, Debug)]
pub struct Definitions {
    path: PathBuf,
    /// Searched after the first directory, and never changed.
    behind: Option<PathBuf>,
}

impl Definitions {
    /// The definitions in `path`, which need not exist.
    pub fn in_directory(path: &Path) -> Self {
        Self {
            path: path.to_path_buf(),
            behind: None,
        }
    }

    /// The definitions of the user who runs this process, followed by those of the system.
    ///
    /// # Errors
    /// `NotFound` if `HOME` is not set.
    pub fn of_user() -> Result<Self> {
        if rustix::process::geteuid().is_root() {
            return Ok(Self::in_directory(Path::new(OF_SYSTEM)));
        }
        let absolute = |name: &str| {
            let value = PathBuf::from(env::var_os(name)?);
            value.is_absolute().then_some(value)
        };
        let base = absolute("XDG_CONFIG_HOME")
            .or_else(|| Some(absolute("HOME")?.join(".config")))
            .ok_or_else(|| {
                Error::new(ErrorKind::NotFound)
                    .detail("HOME is not set, so definitions of pools have no directory")
                    .remedy(Remedy::NameDefinitions)
            })?;
        Ok(Self {
            path: base.join("extant/pools"),
            behind: Some(OF_SYSTEM.into()),
        })
    }

    /// Their directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All directories, the user's own first.
    fn dirs(&self) -> impl Iterator<Item = &Path> {
        [Some(&self.path), self.behind.as_ref()]
            .into_iter()
            .flatten()
            .map(PathBuf::as_path)
    }

    /// The existing directories, open. Directories that the user may not read are left out.
    fn opened(&self) -> Result<Vec<(&Path, Directory)>> {
        let mut opened = Vec::new();
        for path in self.dirs() {
            match open(path) {
                Ok(dir) => opened.extend(dir.map(|dir| (path, dir))),
                Err(error) if error.kind() == ErrorKind::PermissionDenied && path != self.path => {}
                Err(error) => return Err(error),
            }
        }
        Ok(opened)
    }

    /// The pool called `name`.
    pub fn get(&self, name: &PoolName) -> Result<Definition> {
        let mut found = None;
        for (path, dir) in self.opened()? {
            if let Some(bytes) = dir.read(file_name(name), BYTES_MAX)? {
                found = Some((path, bytes));
                break;
            }
        }
        let Some((path, bytes)) = found else {
            let looked: Vec<String> = self.dirs().map(|path| path.display().to_string()).collect();
            return Err(Error::new(ErrorKind::NotFound)
                .detail(format!(
                    "no pool '{name}' is defined in {}",
                    looked.join(" or ")
                ))
                .advice(format!("a directory is a pool by its path: ./{name}")));
        };
        parse(path, name, &bytes)
    }

    /// All definitions, by name. An unreadable one is listed with its error.
    pub fn list(&self) -> Result<Vec<(PoolName, Result<Definition>)>> {
        let mut names: Vec<PoolName> = Vec::new();
        for (_, dir) in self.opened()? {
            dir.for_each_name(|name| {
                let name = name
                    .to_str()
                    .ok()
                    .and_then(|name| name.strip_suffix(SUFFIX));
                names.extend(name.and_then(|name| name.parse().ok()));
            })?;
        }
        names.sort();
        names.dedup();
        let all = names.into_iter().map(|name| {
            let definition = self.get(&name);
            (name, definition)
        });
        Ok(all.collect())
    }

    /// Fails with `AlreadyExists` when there is a pool called `name`.
    pub fn check_is_free(&self, name: &PoolName) -> Result<()> {
        if self.has_own(name)? {
            Err(Error::new(ErrorKind::AlreadyExists)
                .detail(format!("a pool '{name}' is defined already"))
                .remedy(Remedy::DeleteDefinition))
        } else {
            Ok(())
        }
    }

    /// Keeps other processes from defining pools.
    pub(crate) fn lock(&self) -> Result<File> {
        let fail = |source| Error::from(source).at(&self.path);
        std::fs::create_dir_all(&self.path).map_err(fail)?;
        let dir = File::open(&self.path).map_err(fail)?;
        dir.lock().map_err(fail)?;
        Ok(dir)
    }

    /// Fails with `AlreadyExists` when another definition has the place of `wanted`, which would
    /// become unusable.
    pub(crate) fn check_place(&self, wanted: &Definition) -> Result<()> {
        let place = |definition: &Definition| {
            let path = std::fs::canonicalize(&definition.path);
            let path = path.unwrap_or_else(|_| definition.path.clone());
            (
                definition.kind,
                path,
                definition.directory.clone(),
                definition.cluster.clone(),
            )
        };
        for (name, definition) in self.list()? {
            // One that cannot be read cannot be used.
            if definition.is_ok_and(|definition| place(&definition) == place(wanted)) {
                return Err(Error::new(ErrorKind::AlreadyExists)
                    .at(&wanted.path)
                    .detail(format!("it is the place of the pool '{name}' already"))
                    .remedy(Remedy::DeleteDefinition));
            }
        }
        Ok(())
    }

    /// Keeps `definition` under its name, which must not be taken.
    ///
    /// # Panics
    /// When the definition has no name.
    pub fn add(&self, definition: &Definition) -> Result<()> {
        let name = definition.name().expect("a definition to keep has a name");
        std::fs::create_dir_all(&self.path).map_err(|source| Error::from(source).at(&self.path))?;
        self.check_is_free(name)?;
        let dir = Directory::open(&self.path)?;
        let bytes = definition.to_bytes()?;
        dir.write(&file_name(name), &bytes)?;
        // Other users see the pools of the system. There is nothing secret in a definition.
        dir.set_mode(file_name(name), 0o644)
    }

    /// Forgets the pool called `name`; its directory is kept.
    ///
    /// # Errors
    /// `PermissionDenied` for a definition of the system, which is not the user's.
    pub fn remove(&self, name: &PoolName) -> Result<()> {
        self.get(name)?;
        if let (false, Some(behind)) = (self.has_own(name)?, &self.behind) {
            return Err(Error::new(ErrorKind::PermissionDenied)
                .at(behind.join(file_name(name)))
                .detail("the pool is defined by root"));
        }
        let dir = Directory::open(&self.path)?;
        dir.remove(file_name(name))?;
        dir.sync()
    }

    /// There is a definition of that name that this user may change.
    fn has_own(&self, name: &PoolName) -> Result<bool> {
        match open(&self.path)? {
            Some(dir) => Ok(dir.stat(file_name(name))?.is_some()),
            None => Ok(false),
        }
    }
}

fn open(path: &Path) -> Result<Option<Directory>> {
    match Directory::open(path) {
        Ok(dir) => Ok(Some(dir)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn parse(path: &Path, name: &PoolName, bytes: &[u8]) -> Result<Definition> {
    let corrupt = |detail: String| {
        Error::new(ErrorKind::Corrupt)
            .at(path.join(file_name(name)))
            .detail(detail)
    };
    let definition: Definition =
        serde_json::from_slice(bytes).map_err(|error| corrupt(error.to_string()))?;
    if definition.version != VERSION {
        let version = definition.version;
        return Err(corrupt(format!("version {version} is not known")));
    }
    if definition.name.as_ref() != Some(name) {
        return Err(corrupt("it defines a pool of another name".to_owned()));
    }
    Ok(definition)
}

fn file_name(name: &PoolName) -> String {
    format!("{name}{SUFFIX}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definitions() -> (tempfile::TempDir, Definitions) {
        let place = tempfile::tempdir().unwrap();
        let definitions = Definitions::in_directory(&place.path().join("extant/pools"));
        (place, definitions)
    }

    #[test]
    fn definition_comes_back_and_its_name_is_taken_once() {
        let (_place, definitions) = definitions();
        assert!(definitions.list().unwrap().is_empty());
        let name: PoolName = "vms".parse().unwrap();
        let made = Definition::named(name.clone(), Path::new("/srv"), Limits::default()).unwrap();
        definitions.add(&made).unwrap();
        assert_eq!(definitions.get(&name).unwrap(), made);
        let again = definitions.add(&made).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::AlreadyExists);
        assert_eq!(definitions.list().unwrap().len(), 1);
        definitions.remove(&name).unwrap();
        assert_eq!(
            definitions.get(&name).unwrap_err().kind(),
            ErrorKind::NotFound
        );
    }

    #[test]
    fn definitions_of_the_system_are_behind_the_users_own_and_stay() {
        let place = tempfile::tempdir().unwrap();
        let [own, system] = ["own", "system"].map(|name| place.path().join(name));
        let user = Definitions {
            path: own.clone(),
            behind: Some(system.clone()),
        };
        let define = |definitions: &Definitions, name: &str, path: &str| {
            let name = name.parse().unwrap();
            let made = Definition::named(name, Path::new(path), Limits::default()).unwrap();
            definitions.add(&made).unwrap();
        };
        let root = Definitions::in_directory(&system);
        define(&root, "both", "/theirs");
        define(&root, "theirs", "/theirs");
        define(&user, "both", "/own");
        let names: Vec<_> = user
            .list()
            .unwrap()
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(
            names.iter().map(PoolName::as_str).collect::<Vec<_>>(),
            ["both", "theirs"]
        );
        let [both, theirs] = ["both", "theirs"].map(|name| name.parse().unwrap());
        assert_eq!(user.get(&both).unwrap().path(), Path::new("/own"));
        let refused = user.remove(&theirs).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
        user.remove(&both).unwrap();
        assert_eq!(user.get(&both).unwrap().path(), Path::new("/theirs"));
        let none = user.get(&"none".parse().unwrap()).unwrap_err().to_string();
        assert!(
            [own, system]
                .iter()
                .all(|path| none.contains(path.to_str().unwrap())),
            "{none}"
        );
    }

    #[test]
    fn broken_definition_is_reported_and_hides_no_other() {
        let (_place, definitions) = definitions();
        let name: PoolName = "good".parse().unwrap();
        let made = Definition::named(name, Path::new("/srv"), Limits::default()).unwrap();
        definitions.add(&made).unwrap();
        for (file, text) in [
            ("half.json", "{\"version\": 1, "),
            ("other.json", &serde_json::to_string(&made).unwrap()),
            ("deep.json", &"[".repeat(100_000)),
        ] {
            std::fs::write(definitions.path().join(file), text).unwrap();
        }
        let all = definitions.list().unwrap();
        let good: Vec<bool> = all.iter().map(|(_, found)| found.is_ok()).collect();
        assert_eq!(good, [false, true, false, false]);
    }
}
