//! A private Ceph cluster: one monitor, and daemons that store objects in memory.
//!
//! Every file is in a temporary directory, and the ports are free ones of this machine, so that
//! several clusters can run at a time. Clients authenticate (cephx), so that keys and capabilities
//! are real. The daemons are children in the foreground, killed with the thread that started them.

use std::fs;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::command;
use crate::requires::{self, Requirement};
use crate::workdir::Workdir;

/// Requirements of a test or bench with a cluster.
pub const PROGRAMS: [&str; 9] = [
    "ceph",
    "ceph-authtool",
    "ceph-mgr",
    "ceph-mon",
    "ceph-osd",
    "monmaptool",
    "qemu-img",
    "rbd",
    "setpriv",
];
/// The pool that exists from the start.
pub const POOL: &str = "rbd";
/// Time limit of each step of the start.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The shape of a cluster.
#[derive(Clone, Copy, Debug)]
pub struct CephOptions {
    /// Daemons that store objects.
    pub osds: u32,
    /// Copies of each object.
    pub copies: u32,
    /// Bytes that each daemon has room for.
    pub osd_bytes: u64,
    /// A manager runs, by which the monitors know how much is used.
    pub manager: bool,
}

impl Default for CephOptions {
    fn default() -> Self {
        Self {
            osds: 1,
            copies: 1,
            osd_bytes: 4 << 30,
            manager: false,
        }
    }
}

/// A cluster at work. Ended when dropped.
#[derive(Debug)]
pub struct Ceph {
    monitor: Child,
    osds: Vec<Child>,
    manager: Option<Child>,
    // Removed after the daemons have ended.
    work: Workdir,
}

impl Ceph {
    /// The programs, and QEMU's driver.
    pub fn requirement() -> Requirement {
        let has_programs = PROGRAMS.iter().all(|name| requires::tool(name).is_met());
        let has_driver = || {
            let help = command::text(command::tool("qemu-img").arg("--help"));
            help.is_ok_and(|help| help.split_whitespace().any(|word| word == "rbd"))
        };
        let met = requires::root().is_met() && has_programs && has_driver();
        let what = format!("root, {}, QEMU's driver rbd", PROGRAMS.join(", "));
        Requirement::new(what, met)
    }

    /// Starts one, and waits until the pool takes requests.
    ///
    /// # Panics
    /// When it does not.
    #[track_caller]
    pub fn start(options: CephOptions) -> Self {
        let work = Workdir::new();
        let (directory, conf) = (work.path().to_path_buf(), work.path().join("ceph.conf"));
        for name in ["mon", "mgr", "run"] {
            work.directory(name);
        }
        let monitor_address = write_conf(&directory, options);
        let monitor = start_monitor(&directory, &conf, &monitor_address);
        let mut ceph = Self {
            monitor,
            osds: Vec::new(),
            manager: None,
            work,
        };
        for number in 0..options.osds {
            let osd = ceph.make_osd(number);
            ceph.osds.push(osd);
        }
        if options.manager {
            ceph.manager = Some(ceph.start_daemon("ceph-mgr", "x"));
        }
        let up = format!("{} up", options.osds);
        ceph.wait_for("the daemons", |ceph| {
            ceph.try_ask(&["osd", "stat"])
                .is_some_and(|stat| stat.contains(&up))
        });
        ceph.make_pool(POOL, options.copies);
        ceph
    }

    /// One for all tests of this program, which ends with it.
    ///
    /// # Panics
    /// When it does not start.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Ceph> = OnceLock::new();
        SHARED.get_or_init(|| Self::start_for_all(CephOptions::default()))
    }

    /// The same, of which the monitors know how much is used: with a manager, and 1 GiB of room.
    ///
    /// # Panics
    /// When it does not start.
    pub fn shared_with_figures() -> &'static Self {
        static SHARED: OnceLock<Ceph> = OnceLock::new();
        SHARED.get_or_init(|| {
            let ceph = Self::start_for_all(CephOptions {
                osd_bytes: 1 << 30,
                manager: true,
                ..CephOptions::default()
            });
            ceph.wait_for_figures();
            ceph
        })
    }

    fn start_for_all(options: CephOptions) -> Self {
        let (started, cluster) = mpsc::channel();
        thread::spawn(move || {
            // The daemons end with this thread.
            let _ = started.send(Self::start(options));
            loop {
                thread::park();
            }
        });
        cluster.recv().expect("a cluster")
    }

    /// Waits until the monitors know how much the pool has room for.
    ///
    /// # Panics
    /// When they do not learn it.
    #[track_caller]
    pub fn wait_for_figures(&self) {
        self.wait_for("figures of the pool", |ceph| {
            let figures = ceph
                .try_ask(&["df", "--format", "json"])
                .unwrap_or_default();
            let room = figures.rsplit("\"max_avail\":").next().unwrap_or_default();
            !room.starts_with("0,") && !room.starts_with("0}") && figures.contains("max_avail")
        });
    }

    fn make_osd(&self, number: u32) -> Child {
        let name = number.to_string();
        let directory = self.work.directory(&format!("osd{number}"));
        let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid").expect("a UUID");
        self.ask(&["osd", "new", uuid.trim(), &name]);
        let key = self.ask(&[
            "auth",
            "get-or-create",
            &format!("osd.{number}"),
            "mon",
            "allow profile osd",
            "osd",
            "allow *",
            "mgr",
            "allow profile osd",
        ]);
        fs::write(directory.join("keyring"), key).expect("a keyring");
        let mut format = self.daemon("ceph-osd", &name);
        command::must(format.args(["--mkfs", "--osd-uuid", uuid.trim()]));
        let place = ["root=default", "host=here"];
        let mut add = vec!["osd", "crush", "add", name.as_str(), "1.0"];
        add.extend(place);
        self.ask(&add);
        self.start_daemon("ceph-osd", &name)
    }

    /// Makes a pool for images.
    ///
    /// # Panics
    /// When it fails.
    #[track_caller]
    pub fn make_pool(&self, name: &str, copies: u32) {
        let copies = copies.to_string();
        self.ask(&["osd", "pool", "create", name, "8", "8"]);
        let sure = "--yes-i-really-mean-it";
        self.ask(&["osd", "pool", "set", name, "size", &copies, sure]);
        self.ask(&["osd", "pool", "set", name, "min_size", "1"]);
        command::must(self.rbd().args(["pool", "init", name]));
    }

    /// The file by which clients find it: `client.admin` has its key there.
    pub fn conf(&self) -> PathBuf {
        self.work.path().join("ceph.conf")
    }

    /// A directory for files of the test.
    pub fn work(&self) -> &Workdir {
        &self.work
    }

    /// The name of an image of the pool, in QEMU's syntax.
    pub fn name(&self, image: &str) -> String {
        format!("rbd:{POOL}/{image}:conf={}", self.conf().display())
    }

    /// `rbd`, connected to it.
    pub fn rbd(&self) -> Command {
        let mut command = command::tool("rbd");
        command.arg("--conf").arg(self.conf());
        command
    }

    /// Output of `rbd`.
    ///
    /// # Panics
    /// When it fails.
    #[track_caller]
    pub fn ask_rbd(&self, words: &[&str]) -> String {
        command::text(self.rbd().args(words)).unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// Output of `ceph`.
    ///
    /// # Panics
    /// When it fails.
    #[track_caller]
    pub fn ask(&self, words: &[&str]) -> String {
        let printed = command::text(self.ceph().args(words));
        printed.unwrap_or_else(|failure| panic!("{failure}"))
    }

    fn try_ask(&self, words: &[&str]) -> Option<String> {
        command::text(self.ceph().args(words)).ok()
    }

    fn ceph(&self) -> Command {
        let mut command = command::tool("ceph");
        command.arg("--conf").arg(self.conf());
        command.args(["--connect-timeout", "30"]);
        command
    }

    /// Lowers the share of its room that the cluster may fill, and waits until the pool is full.
    ///
    /// # Panics
    /// When it does not become full.
    #[track_caller]
    pub fn fill(&self) {
        self.set_ratios(["0.001", "0.002", "0.003"]);
        self.wait_for("a full pool", |ceph| {
            ceph.ask(&["health", "detail"]).contains("POOL_FULL")
        });
    }

    /// Undoes [`Self::fill`], and waits until the monitors know that there is room.
    ///
    /// # Panics
    /// When the pool stays full.
    #[track_caller]
    pub fn drain(&self) {
        self.set_ratios(["0.85", "0.9", "0.95"]);
        self.wait_for("a pool that is not full", |ceph| {
            !ceph.ask(&["health", "detail"]).contains("POOL_FULL")
        });
        self.wait_for_figures();
    }

    fn set_ratios(&self, ratios: [&str; 3]) {
        let kinds = ["nearfull", "backfillfull", "full"];
        for (kind, ratio) in kinds.into_iter().zip(ratios) {
            self.ask(&["osd", &format!("set-{kind}-ratio"), ratio]);
        }
    }

    /// Stops a daemon that stores objects, without its notice: it keeps its connections.
    ///
    /// # Panics
    /// When it fails.
    pub fn freeze_osd(&self, number: usize) {
        freeze(&self.osds[number]);
    }

    /// Continues one that was stopped.
    ///
    /// # Panics
    /// When it fails.
    pub fn thaw_osd(&self, number: usize) {
        signal(&self.osds[number], Signal::CONT);
    }

    /// Kills a daemon that stores objects.
    ///
    /// # Panics
    /// When it fails.
    pub fn kill_osd(&mut self, number: usize) {
        signal(&self.osds[number], Signal::KILL);
        let _ = self.osds[number].wait();
    }

    /// Stops the monitor, without its notice.
    ///
    /// # Panics
    /// When it fails.
    pub fn freeze_monitor(&self) {
        freeze(&self.monitor);
    }

    /// Continues the monitor.
    ///
    /// # Panics
    /// When it fails.
    pub fn thaw_monitor(&self) {
        signal(&self.monitor, Signal::CONT);
    }

    /// Waits for `condition`.
    ///
    /// # Panics
    /// When it is not met within a minute.
    #[track_caller]
    pub fn wait_for(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !condition(self) {
            let state = || self.try_ask(&["-s"]).unwrap_or_default();
            assert!(start.elapsed() < START_TIMEOUT, "{what}: {}", state());
            thread::sleep(Duration::from_millis(100));
        }
    }

    fn daemon(&self, program: &str, id: &str) -> Command {
        daemon(program, id, &self.conf())
    }

    fn start_daemon(&self, program: &str, id: &str) -> Child {
        spawn(self.daemon(program, id).arg("-f"), self.work.path())
    }
}

impl Drop for Ceph {
    fn drop(&mut self) {
        let daemons = self.osds.iter_mut().chain(self.manager.as_mut());
        for daemon in daemons.chain([&mut self.monitor]) {
            // It may have ended, or be stopped; what it stores goes with the directory.
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

/// Returns the addresses of the monitor.
fn write_conf(directory: &Path, options: CephOptions) -> String {
    let fsid = fs::read_to_string("/proc/sys/kernel/random/uuid").expect("a UUID");
    let [new, old] = free_ports();
    let addresses = format!("[v2:127.0.0.1:{new},v1:127.0.0.1:{old}]");
    let at = directory.display();
    let bytes = options.osd_bytes;
    // A daemon may serve reads for this many times the grace without a word from the others. One
    // that is alone and was frozen for longer answered no request for a minute, now and then. With
    // copies it is the time after which another one takes over.
    let lease = if options.copies == 1 { 24.0 } else { 0.8 };
    let conf = format!(
        "[global]\n\
         fsid = {fsid}\
         mon host = {addresses}\n\
         public addr = 127.0.0.1\n\
         cluster addr = 127.0.0.1\n\
         ms bind ipv6 = false\n\
         run dir = {at}/run\n\
         admin socket = {at}/run/$name.$pid.asok\n\
         log file = {at}/$name.log\n\
         osd pool default size = 1\n\
         osd pool default min size = 1\n\
         osd pool default pg autoscale mode = off\n\
         osd crush chooseleaf type = 0\n\
         mon allow pool size one = true\n\
         mon allow pool delete = true\n\
         [client]\n\
         keyring = {at}/keyring\n\
         log file =\n\
         admin socket =\n\
         [mon]\n\
         mon data = {at}/mon\n\
         keyring = {at}/mon/keyring\n\
         mon data avail crit = 1\n\
         mon osd min in ratio = 0\n\
         [mgr]\n\
         mgr data = {at}/mgr\n\
         keyring = {at}/mgr/keyring\n\
         mgr initial modules =\n\
         [osd]\n\
         osd data = {at}/osd$id\n\
         keyring = {at}/osd$id/keyring\n\
         osd objectstore = memstore\n\
         memstore device bytes = {bytes}\n\
         osd op num shards = 2\n\
         osd heartbeat grace = 5\n\
         osd heartbeat interval = 1\n\
         osd pool default read lease ratio = {lease}\n"
    );
    fs::write(directory.join("ceph.conf"), conf).expect("a configuration");
    addresses
}

/// Two ports that no process uses now.
fn free_ports() -> [u16; 2] {
    let listeners = [0; 2].map(|port| TcpListener::bind(("127.0.0.1", port)).expect("a port"));
    listeners.map(|listener| listener.local_addr().expect("bound").port())
}

fn start_monitor(directory: &Path, conf: &Path, addresses: &str) -> Child {
    let keyring = directory.join("keyring");
    let map = directory.join("monmap");
    let fsid = fs::read_to_string(conf).expect("written above");
    let fsid = fsid.lines().find_map(|line| line.strip_prefix("fsid = "));
    let create = |owner: &str, file: &Path, caps: &[&str]| {
        let mut make = command::tool("ceph-authtool");
        make.arg("--create-keyring")
            .arg(file)
            .args(["--gen-key", "-n", owner]);
        for service in caps {
            let all = if *service == "mds" {
                "allow"
            } else {
                "allow *"
            };
            make.args(["--cap", service, all]);
        }
        command::must(&mut make);
    };
    create("client.admin", &keyring, &["mon", "osd", "mgr"]);
    create(
        "mgr.x",
        &directory.join("mgr/keyring"),
        &["mon", "osd", "mds"],
    );
    let monitor = directory.join("monitor.keyring");
    create("mon.", &monitor, &["mon"]);
    for file in [&keyring, &directory.join("mgr/keyring")] {
        let mut add = command::tool("ceph-authtool");
        command::must(add.arg(&monitor).arg("--import-keyring").arg(file));
    }
    let mut make = command::tool("monmaptool");
    make.args([
        "--create",
        "--fsid",
        fsid.expect("an fsid"),
        "--addv",
        "a",
        addresses,
    ]);
    command::must(make.arg(&map));
    let mut format = daemon("ceph-mon", "a", conf);
    format.arg("--mkfs").arg("--monmap").arg(&map);
    command::must(format.arg("--keyring").arg(&monitor));
    spawn(daemon("ceph-mon", "a", conf).arg("-f"), directory)
}

fn daemon(program: &str, id: &str, conf: &Path) -> Command {
    let mut command = command::tool(program);
    command.args(["-i", id, "--conf"]).arg(conf);
    command
}

/// Starts a daemon, which is killed when this thread ends.
fn spawn(daemon: &Command, directory: &Path) -> Child {
    let mut command = command::tool("setpriv");
    command
        .args(["--pdeathsig", "KILL", "--"])
        .arg(daemon.get_program())
        .args(daemon.get_args());
    let log = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(directory.join("output"));
    let log = log.expect("a file for output");
    let errors = log.try_clone().expect("another descriptor");
    command
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .process_group(0);
    let spawned = command.spawn();
    spawned.unwrap_or_else(|error| panic!("{}: {error}", command::line(&command)))
}

/// Stops a process, and waits until the last of its threads has stopped.
fn freeze(child: &Child) {
    signal(child, Signal::STOP);
    let is_stopped = |thread: &Path| {
        let state = fs::read_to_string(thread.join("stat")).unwrap_or_default();
        state
            .rsplit(')')
            .next()
            .is_none_or(|rest| rest.starts_with(" T"))
    };
    let threads = PathBuf::from(format!("/proc/{}/task", child.id()));
    let start = Instant::now();
    loop {
        let threads = fs::read_dir(&threads).expect("a process of ours");
        if threads.flatten().all(|thread| is_stopped(&thread.path())) {
            return;
        }
        assert!(
            start.elapsed() < START_TIMEOUT,
            "{} has not stopped",
            child.id()
        );
        thread::sleep(Duration::from_millis(1));
    }
}

fn signal(child: &Child, signal: Signal) {
    let sent = kill_process(Pid::from_child(child), signal);
    sent.unwrap_or_else(|error| panic!("signal to {}: {error}", child.id()));
}
