//! The peers: a mounted file system with its server each.
//!
//! An environment is dropped in the order of its fields: the mount, the server process (which ends
//! after the unmount, or is killed), the memory of its image.

use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

use anyhow::{Context as _, Result, bail, ensure};
use extant_space::ByteSize;
use extant_testkit::command::{run, tool};
use extant_testkit::fuse_rings;
use extant_testkit::scratch::{Filesystem, Mount, Scratch};

use super::floor;
use crate::bench::Context;

/// Size of every image.
pub(super) const SIZE: ByteSize = ByteSize(4 << 30);
/// Memory that an image may take.
pub(super) const MEMORY: u64 = 3 << 30;
/// Options of mke2fs: inodes for all files of all parts, and nothing left to do later.
const MKFS: [&str; 6] = [
    "-b",
    "4096",
    "-N",
    "131072",
    "-E",
    "lazy_itable_init=0,lazy_journal_init=0",
];
/// The fastest options of fuse2fs here: its defaults, except for attribute caching, which it
/// disables; and one thread, because it has one lock.
const FUSE2FS: &str =
    "no_default_opts,kernel_cache,big_writes,use_ino,attr_timeout=86400,entry_timeout=86400";
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// A peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// `extant mount`.
    Extant,
    /// Debian's.
    Fuse2fs,
    /// The kernel's ext4 on a loop device.
    Kernel,
    /// Our transport, and nothing behind it.
    Floor,
    /// The same, with the bytes of reads and writes moved from and to memory.
    FloorWithBytes,
    /// `extant mount -o io_uring`.
    ExtantRings,
    /// The floor on that transport.
    FloorRings,
}

impl Peer {
    /// All peers, except those that need further kernel features.
    const ALL: [Self; 5] = [
        Self::Extant,
        Self::Fuse2fs,
        Self::Kernel,
        Self::Floor,
        Self::FloorWithBytes,
    ];

    /// Peers that need FUSE over io_uring in the kernel.
    const RINGS: [Self; 2] = [Self::ExtantRings, Self::FloorRings];

    /// Whether `extant mount` serves it.
    pub(super) fn is_extant(self) -> bool {
        matches!(self, Self::Extant | Self::ExtantRings)
    }

    /// Rate relative to this one.
    pub(super) fn rival(self) -> Self {
        match self {
            Self::FloorRings => Self::ExtantRings,
            _ => Self::Extant,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Extant => "extant",
            Self::Fuse2fs => "fuse2fs",
            Self::Kernel => "kernel",
            Self::Floor => "floor",
            Self::FloorWithBytes => "floor+bytes",
            Self::ExtantRings => "extant io_uring",
            Self::FloorRings => "floor io_uring",
        })
    }
}

/// A mounted file system.
pub(in crate::benches) struct Environment {
    served: Served,
    /// As one would type it.
    command: String,
}

enum Served {
    /// By a process.
    Process {
        mount: Mount,
        server: Server,
        store: Scratch,
    },
    /// By the kernel.
    Kernel(Scratch),
    /// By the kernel, of an image that was there before.
    Copy { mount: Mount, store: Scratch },
}

/// All environments.
pub(super) struct Environments(Vec<(Peer, Environment)>);

impl Environments {
    pub(super) fn new(context: &Context) -> Result<Self> {
        let rings = if fuse_rings::are_offered() {
            &Peer::RINGS[..]
        } else {
            &[]
        };
        let environments = Peer::ALL.iter().chain(rings).map(|&peer| {
            context.step(format!("mounting: {peer}"));
            let environment = Environment::new(peer, context).with_context(|| peer.to_string())?;
            Ok((peer, environment))
        });
        Ok(Self(environments.collect::<Result<_>>()?))
    }

    /// All peers.
    pub(super) fn all(&self) -> Vec<Peer> {
        self.0.iter().map(|(peer, _)| *peer).collect()
    }

    /// The peers that store data.
    pub(super) fn file_systems(&self) -> Vec<Peer> {
        let mut peers = self.with_floor();
        peers.retain(|peer| !matches!(peer, Peer::Floor | Peer::FloorRings));
        peers
    }

    /// The same peers and the floor.
    pub(super) fn with_floor(&self) -> Vec<Peer> {
        let mut peers = self.all();
        peers.retain(|&peer| peer != Peer::FloorWithBytes);
        peers
    }

    /// The mount point of a peer.
    pub(super) fn path(&self, peer: Peer) -> &Path {
        let mut environments = self.0.iter();
        let found = environments.find(|(other, _)| *other == peer);
        let (_, environment) = found.expect("every peer has an environment");
        environment.path()
    }

    /// The mount command of each peer.
    pub(super) fn commands(&self) -> impl Iterator<Item = String> {
        let environments = self.0.iter();
        environments.map(|(peer, environment)| format!("{peer}: {}", environment.command))
    }

    /// Unmounts all; checks that the servers end without error and that our image is clean.
    pub(super) fn end(self) -> Result<()> {
        for (peer, environment) in self.0 {
            environment.end(peer).with_context(|| peer.to_string())?;
        }
        Ok(())
    }
}

impl Environment {
    fn new(peer: Peer, context: &Context) -> Result<Self> {
        match peer {
            Peer::Kernel => Ok(Self::of_kernel((SIZE.0, MEMORY), &MKFS, "")),
            _ => Self::served(peer, context, &mkfs),
        }
    }

    /// A peer's mount of a copy of `image`.
    pub(super) fn of_copy(peer: Peer, context: &Context, image: &Path) -> Result<Self> {
        let copy = |to: &Path| -> Result<()> {
            run(tool("cp").arg("--sparse=always").args([image, to]))?;
            Ok(())
        };
        if peer != Peer::Kernel {
            return Self::served(peer, context, &copy);
        }
        let store = Scratch::new(Filesystem::Tmpfs, MEMORY);
        let (image, place) = (self::image(&store), store.directory_beside("mount"));
        copy(&image)?;
        let mount = Mount::new("ext4", &image, &place, "loop");
        let command = "mount -o loop IMAGE MOUNT".to_owned();
        Ok(Self {
            served: Served::Copy { mount, store },
            command,
        })
    }

    /// A peer whose server is a process, with an image that `make` makes.
    fn served(peer: Peer, context: &Context, make: &dyn Fn(&Path) -> Result<()>) -> Result<Self> {
        match peer {
            Peer::Extant => Self::extant(context, (SIZE.0, MEMORY), "", make),
            Peer::ExtantRings => Self::extant(context, (SIZE.0, MEMORY), "io_uring", make),
            Peer::Fuse2fs => Self::of_process(context, tool("fuse2fs"), |command, image, place| {
                let options = ["-f", "-s", "-o", FUSE2FS];
                command.args(options).arg(image).arg(place);
                make(image)
            }),
            Peer::Kernel => bail!("the kernel mounts without a server"),
            Peer::Floor => {
                let this = Command::new(env::current_exe()?);
                Self::of_process(context, this, |command, _, place| {
                    command.arg(floor::WORD).arg(place);
                    Ok(())
                })
            }
            Peer::FloorRings => {
                let this = Command::new(env::current_exe()?);
                Self::of_process(context, this, |command, _, place| {
                    command.args([floor::WORD, "--io-uring"]).arg(place);
                    Ok(())
                })
            }
            Peer::FloorWithBytes => {
                let this = Command::new(env::current_exe()?);
                Self::of_process(context, this, |command, image, place| {
                    command.arg(floor::WORD).arg(place).arg(image);
                    Ok(())
                })
            }
        }
    }

    /// An environment that `command` serves. `prepare` adds the paths to it and formats the image.
    fn of_process(
        context: &Context,
        command: Command,
        prepare: impl FnOnce(&mut Command, &Path, &Path) -> Result<()>,
    ) -> Result<Self> {
        Self::with_image(context, SIZE.0, MEMORY, command, prepare)
    }

    /// The same with an image of `bytes` in `memory` bytes.
    fn with_image(
        context: &Context,
        bytes: u64,
        memory: u64,
        mut command: Command,
        prepare: impl FnOnce(&mut Command, &Path, &Path) -> Result<()>,
    ) -> Result<Self> {
        let store = Scratch::new(Filesystem::Tmpfs, memory);
        let image = image(&store);
        let place = store.directory_beside("mount");
        File::create_new(&image)?.set_len(bytes)?;
        prepare(&mut command, &image, &place)?;
        let shown = context
            .shown(&command)
            .replace(&*image.to_string_lossy(), "IMAGE")
            .replace(&*place.to_string_lossy(), "MOUNT");
        let server = Server::start(&mut command, &place)?;
        Ok(Self {
            served: Served::Process {
                mount: Mount::guard(&place),
                server,
                store,
            },
            command: shown,
        })
    }

    /// `extant mount` with these options, of an image of `bytes` in `memory` bytes by `make`.
    fn extant(
        context: &Context,
        (bytes, memory): (u64, u64),
        options: &str,
        make: &dyn Fn(&Path) -> Result<()>,
    ) -> Result<Self> {
        let mut command = context.extant();
        command.args(["mount", "-f"]);
        if !options.is_empty() {
            command.args(["-o", options]);
        }
        Self::with_image(context, bytes, memory, command, |command, image, place| {
            command.arg(image).arg(place);
            make(image)
        })
    }

    /// The same, made with these options of mke2fs.
    pub(in crate::benches) fn of_extant(
        context: &Context,
        sizes: (u64, u64),
        mkfs: &[&str],
        options: &str,
    ) -> Result<Self> {
        Self::extant(context, sizes, options, &|image| {
            run(tool("mkfs.ext4").args(["-q", "-F"]).args(mkfs).arg(image))?;
            Ok(())
        })
    }

    /// The floor.
    pub(in crate::benches) fn of_floor(context: &Context) -> Result<Self> {
        Self::new(Peer::Floor, context)
    }

    /// The kernel's ext4 likewise, on a loop device.
    pub(in crate::benches) fn of_kernel(
        (bytes, memory): (u64, u64),
        mkfs: &[&str],
        options: &str,
    ) -> Self {
        let builder = Scratch::builder(Filesystem::Ext4, bytes).memory(memory);
        let words = ["loop", options];
        let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
        Self {
            served: Served::Kernel(builder.mkfs_options(mkfs).mount_options(options).build()),
            command: format!("mount -o {} IMAGE MOUNT", words.join(",")),
        }
    }

    /// The mount command.
    pub(in crate::benches) fn command(&self) -> &str {
        &self.command
    }

    /// Unmounts it. `look` sees the image of ours before it is gone.
    pub(in crate::benches) fn end_with<T>(
        self,
        look: impl FnOnce(&Path) -> Result<T>,
    ) -> Result<T> {
        match self.served {
            Served::Process {
                mount,
                mut server,
                store,
            } => {
                mount.unmount();
                let status = server.0.wait()?;
                ensure!(status.success(), "it ended with {status}");
                look(&image(&store))
            }
            Served::Kernel(mut scratch) => {
                scratch.unmount();
                look(scratch.device().context("no loop device")?)
            }
            Served::Copy { mount, store } => {
                mount.unmount();
                look(&image(&store))
            }
        }
    }

    pub(in crate::benches) fn path(&self) -> &Path {
        match &self.served {
            Served::Process { mount, .. } | Served::Copy { mount, .. } => mount.path(),
            Served::Kernel(scratch) => scratch.path(),
        }
    }

    /// Unmounts it, and checks that the server ends without error and that our image is clean.
    pub(super) fn end(self, peer: Peer) -> Result<()> {
        self.end_with(|image| {
            if peer.is_extant() {
                // Metrics of a broken file system are worth nothing.
                run(tool("e2fsck").arg("-fn").arg(image))?;
            }
            Ok(())
        })
    }
}

/// Makes the file system of an image.
pub(super) fn mkfs(image: &Path) -> Result<()> {
    run(tool("mkfs.ext4").args(["-q", "-F"]).args(MKFS).arg(image))?;
    Ok(())
}

fn image(store: &Scratch) -> PathBuf {
    store.path().join("image")
}

/// A process that answers for a mount; it is killed when this is dropped, if it still runs.
struct Server(Child);

impl Server {
    /// Starts it and waits until it has mounted. Its output is discarded, except for errors.
    fn start(command: &mut Command, place: &Path) -> Result<Self> {
        let before = fs::metadata(place)?.dev();
        command.stdout(Stdio::null());
        let mut server = Self(command.spawn()?);
        let start = Instant::now();
        // All of them answer as soon as they are mounted.
        while fs::metadata(place)?.dev() == before {
            if let Some(status) = server.0.try_wait()? {
                bail!("it ended with {status}");
            }
            ensure!(start.elapsed() < START_TIMEOUT, "it does not mount");
            thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
