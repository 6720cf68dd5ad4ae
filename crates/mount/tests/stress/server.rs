//! A mount whose server is a process of its own, so that it can be killed.
//!
//! The process is this test program again; its environment defines what to serve. The image is a
//! file. The process reports the mount, and each error of the file system, on its standard output.

use std::env;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use extant_blockdev::{HostDevice, HostOptions};
use extant_ext4::Filesystem;
use extant_fuse::Session;
use extant_mount::MountOptions;
use extant_mount::volume::{Volume, VolumeOptions, filesystem_options};
use extant_testkit::command::{run, tool};
use extant_testkit::fuse_watchdog::FuseWatchdog;
use extant_testkit::oracle::assert_e2fsck_clean;
use extant_testkit::require;
use extant_testkit::requires::{self, Requirement};
use extant_testkit::scratch::Mount;
use extant_testkit::workdir::Workdir;

/// The test that is the server.
const NAME: &str = "server::server_ends_well_when_it_is_unmounted";
const IMAGE: &str = "EXTANT_STRESS_IMAGE";
const PLACE: &str = "EXTANT_STRESS_PLACE";
const OPTIONS: &str = "EXTANT_STRESS_OPTIONS";
const READY: &str = "extant: mounted";
const TROUBLE: &str = "extant: trouble: ";

/// Requirements of every mount.
pub fn can_mount() -> Requirement {
    let all = [
        requires::root(),
        requires::device("/dev/fuse"),
        requires::tool("mke2fs"),
        requires::tool("e2fsck"),
    ];
    let missing = all.iter().find(|need| !need.is_met());
    let what = missing.map_or("a mount", |need| need.what());
    Requirement::new(what, missing.is_none())
}

/// An image of the given MiB in a file.
#[track_caller]
pub fn make_image(path: &Path, mebibytes: u64) {
    let file = File::create(path).unwrap();
    file.set_len(mebibytes << 20).unwrap();
    run(tool("mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-b", "4096"])
        .arg(path))
    .unwrap_or_else(|failure| panic!("{failure}"));
}

/// A mounted image and its server. The rest of it is removed when dropped.
pub struct Served {
    // Dropped in this order: no thread may wait for a dead server.
    process: Server,
    mount: Option<Mount>,
    watchdog: FuseWatchdog,
}

struct Server {
    child: Child,
    troubles: Option<JoinHandle<Vec<String>>>,
}

impl Served {
    /// Serves an image at a directory, mounted with `options`.
    #[track_caller]
    pub fn new(image: &Path, place: &Path, options: &str) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env(IMAGE, image)
            .env(PLACE, place)
            .env(OPTIONS, options)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let is_ready = wait_until_ready(&mut lines);
        let troubles = thread::spawn(move || troubles(lines));
        let process = Server {
            child,
            troubles: Some(troubles),
        };
        assert!(is_ready, "the server did not mount {}", image.display());
        Self {
            process,
            mount: Some(Mount::guard(place)),
            watchdog: FuseWatchdog::watch(place),
        }
    }

    /// Its mount point. A test that asks makes progress: its deadline moves on.
    pub fn path(&self) -> &Path {
        self.watchdog.progress();
        self.mount.as_ref().expect("mounted until consumed").path()
    }

    /// Unmounts, and waits for the server, which had nothing to complain about.
    #[track_caller]
    pub fn end(mut self) {
        let mount = self.mount.take().expect("mounted until consumed");
        mount.unmount();
        let status = self.process.child.wait().unwrap();
        let troubles = self.process.troubles.take().expect("asked once").join();
        assert_eq!(troubles.unwrap(), Vec::<String>::new());
        assert!(status.success(), "the server ended with {status}");
    }

    /// Kills the server, as `kill -9` does, and removes the dead mount.
    pub fn kill(mut self) {
        self.process.child.kill().unwrap();
        self.process.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait_until_ready(lines: &mut impl BufRead) -> bool {
    lines
        .lines()
        .map_while(Result::ok)
        .any(|line| line.contains(READY))
}

fn troubles(lines: impl BufRead) -> Vec<String> {
    let lines = lines.lines().map_while(Result::ok);
    let troubles = lines.filter_map(|line| Some(line.strip_prefix(TROUBLE)?.to_owned()));
    troubles.inspect(|text| eprintln!("{text}")).collect()
}

/// The server's side.
fn serve(image: &Path, place: &Path, options: &str) {
    let options: MountOptions = options.parse().unwrap();
    let device = HostDevice::open(image, &HostOptions::default()).unwrap();
    let filesystem = Filesystem::open(Arc::new(device), filesystem_options(&options)).unwrap();
    let volume = Volume::new(filesystem, VolumeOptions::from(&options)).unwrap();
    let volume = volume.reporting(|error| println!("{TROUBLE}{error}"));
    let session = Session::mount(Arc::new(volume), place, &options.fuse).unwrap();
    // The test harness may have begun a line.
    println!("\n{READY}");
    session.run().unwrap();
}

#[test]
fn server_ends_well_when_it_is_unmounted() {
    if let Ok(image) = env::var(IMAGE) {
        let word = |name| env::var(name).unwrap();
        serve(Path::new(&image), Path::new(&word(PLACE)), &word(OPTIONS));
        return;
    }
    require!(can_mount());
    let work = Workdir::new();
    let image = work.path().join("image");
    make_image(&image, 32);
    let place = work.directory("mount");
    let served = Served::new(&image, &place, "writeback");
    fs::write(place.join("f"), "content").unwrap();
    served.end();
    assert!(!place.join("f").exists());
    assert_e2fsck_clean(&image);
    let served = Served::new(&image, &place, "ro");
    assert_eq!(fs::read(place.join("f")).unwrap(), b"content");
    served.end();
}

/// A file of its own for an image, and a place to mount it.
pub struct Ground {
    pub image: PathBuf,
    pub place: PathBuf,
    pub work: Workdir,
}

impl Ground {
    /// With a new file system of the given MiB.
    #[track_caller]
    pub fn new(mebibytes: u64) -> Self {
        let work = Workdir::new();
        let image = work.path().join("image");
        make_image(&image, mebibytes);
        Self {
            image,
            place: work.directory("mount"),
            work,
        }
    }
}
