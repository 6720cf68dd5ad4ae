//! Pools of kind `rbd`: volumes are images of a real cluster. Ceph's own tools read every image.
//!
//! All tests share a cluster, each in a namespace of its own. One that stops a daemon has the
//! cluster for itself.

mod clones;
mod machines;
mod names;
mod trouble;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use extant_pool::{
    CloneMethod, ClusterPlace, CreateVolume, Definition, Format, JobState, Leftovers, Limits,
    OnStop, Operation, Pool, WipeMethod,
};
use extant_rbd::{Cluster, Image, RbdAccess};
use extant_space::{
    CancelToken, Control, ErrorKind, MappedProgress, Phase, Preallocation, Progress, ProgressSink,
    Result, Silent,
};
use extant_testkit::ceph::{Ceph, POOL};
use extant_testkit::{command, require};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::stand::{
    MIB, assert_at_rest, at_rate, clone, create, download, materialize, name, names, perform,
    resize, run, submit, upload, wipe,
};

/// Read by tests that need daemons at work, written by those that stop one.
static DAEMONS: RwLock<()> = RwLock::new(());
/// Space that a pool may use.
const LIMIT: u64 = 96 * MIB;

struct Stand {
    pool: Pool,
    namespace: String,
    ceph: &'static Ceph,
    directory: tempfile::TempDir,
    _shared: Option<RwLockReadGuard<'static, ()>>,
    _alone: Option<RwLockWriteGuard<'static, ()>>,
}

fn limits() -> Limits {
    Limits {
        total_bytes: Some(LIMIT),
        ..Limits::default()
    }
}

fn place(ceph: &Ceph, namespace: &str) -> ClusterPlace {
    ClusterPlace {
        pool: POOL.to_owned(),
        namespace: Some(namespace.to_owned()),
        conf: Some(ceph.conf()),
        ..ClusterPlace::default()
    }
}

fn define(place: ClusterPlace, state: &Path) -> Result<Pool> {
    let name = "cloud".parse().unwrap();
    Pool::build(Definition::on_cluster(name, place, state, limits())?)
}

impl Stand {
    fn new(namespace: &str) -> Self {
        Self::with(namespace, Some(DAEMONS.read()), None)
    }

    fn with_daemons(namespace: &str) -> Self {
        Self::with(namespace, None, Some(DAEMONS.write()))
    }

    fn with(
        namespace: &str,
        shared: Option<RwLockReadGuard<'static, ()>>,
        alone: Option<RwLockWriteGuard<'static, ()>>,
    ) -> Self {
        let ceph = Ceph::shared_with_figures();
        ceph.ask_rbd(&[
            "namespace",
            "create",
            "--pool",
            POOL,
            "--namespace",
            namespace,
        ]);
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        Self {
            pool: define(place(ceph, namespace), &state).unwrap(),
            namespace: namespace.to_owned(),
            ceph,
            directory,
            _shared: shared,
            _alone: alone,
        }
    }

    /// The pool as another machine has it: with a state of its own.
    fn elsewhere(&self, state: &str) -> Pool {
        let place = place(self.ceph, &self.namespace);
        define(place, &self.directory.path().join(state)).unwrap()
    }

    fn outside(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn rbd(&self, words: &[&str]) -> String {
        let place = ["--pool", POOL, "--namespace", &self.namespace];
        self.ceph.ask_rbd(&[words, &place[..]].concat())
    }

    /// All images, hidden ones too.
    fn images(&self) -> Vec<String> {
        self.rbd(&["ls"]).lines().map(str::to_owned).collect()
    }

    /// The content of a volume, by `rbd export`.
    fn read(&self, volume: &str) -> Vec<u8> {
        let target = self.outside("exported");
        let mut export = self.ceph.rbd();
        export.args(["export", "--no-progress", "--pool", POOL, "--namespace"]);
        command::must(export.args([&self.namespace, volume]).arg(&target));
        let content = fs::read(&target).unwrap();
        fs::remove_file(target).unwrap();
        content
    }

    /// Bytes in the objects of a volume, by `rbd du`.
    fn used(&self, volume: &str) -> u64 {
        let used = self.rbd(&["du", "--format", "json", volume]);
        let used = used.split("\"used_size\":").nth(1).unwrap();
        used.split([',', '}']).next().unwrap().parse().unwrap()
    }

    /// The same of all images.
    fn used_in_all(&self) -> u64 {
        let all = self.rbd(&["du", "--format", "json"]);
        let all = all.split("\"total_used_size\":").nth(1).unwrap_or("0");
        all.split([',', '}']).next().unwrap().parse().unwrap()
    }

    /// Another client with the image open.
    fn open(&self, volume: &str, access: RbdAccess) -> Image {
        let options = extant_rbd::ClusterOptions {
            conf: Some(self.ceph.conf()),
            ..extant_rbd::ClusterOptions::default()
        };
        let cluster = Cluster::connect(&options).unwrap();
        let pool = extant_rbd::Pool::open(&cluster, POOL, &self.namespace).unwrap();
        Image::open(&pool, volume, None, access).unwrap()
    }

    fn source(&self, content: &[u8]) -> PathBuf {
        let source = self.outside("source");
        fs::write(&source, content).unwrap();
        source
    }

    fn put(&self, volume: &str, content: &[u8]) {
        let source = self.source(content);
        perform(&self.pool, Operation::Upload(upload(volume, &source))).unwrap();
    }

    #[track_caller]
    fn assert_at_rest(&self) {
        assert_at_rest(&self.pool);
        let hidden = self.images().into_iter().find(|name| name.starts_with('.'));
        assert_eq!(hidden, None);
    }
}

fn noise(bytes: u64) -> Vec<u8> {
    let period: Vec<u8> = (0..251).map(|at| at | 1).collect();
    let mut noise = period.repeat(bytes as usize / period.len() + 1);
    noise.truncate(bytes as usize);
    noise
}

/// Bytes written or copied.
fn moved(progress: Progress) -> u64 {
    match progress.phase {
        Phase::Write | Phase::Copy => progress.done_bytes,
        _ => 0,
    }
}

fn full(volume: &str, bytes: u64) -> Operation {
    create(volume, bytes, Preallocation::Full)
}

#[test]
fn content_goes_in_and_out_as_rbd_sees_it() {
    require!(Ceph::requirement());
    let stand = Stand::new("content");
    let source = stand.outside("sparse");
    let file = File::create(&source).unwrap();
    file.set_len(20 * MIB + 1000).unwrap();
    file.write_all_at(&noise(9 * MIB), 10 * MIB).unwrap();
    let content = fs::read(&source).unwrap();
    perform(&stand.pool, Operation::Upload(upload("a", &source))).unwrap();
    assert!(stand.read("a") == content);
    assert_eq!(stand.used("a"), 12 * MIB, "holes stay holes");
    perform(&stand.pool, clone("a", "b", CloneMethod::Copy)).unwrap();
    assert!(stand.read("b") == content);
    let target = stand.outside("target");
    perform(&stand.pool, Operation::Download(download("b", &target))).unwrap();
    assert!(fs::read(target).unwrap() == content);
    perform(&stand.pool, wipe("a", WipeMethod::Zero)).unwrap();
    assert!(stand.read("a") == vec![0; content.len()]);
    perform(&stand.pool, wipe("a", WipeMethod::Discard)).unwrap();
    assert_eq!(stand.used("a"), 0);
    assert!(stand.read("b") == content);
    let mut replace = upload("a", &stand.source(&noise(5 * MIB)));
    replace.replace = true;
    perform(&stand.pool, Operation::Upload(replace)).unwrap();
    assert!(stand.read("a") == noise(5 * MIB));
    assert_eq!(names(&stand.pool), ["a", "b"]);
    stand.assert_at_rest();
    stand.pool.delete(&name("a"), false).unwrap();
    assert_eq!(stand.images(), ["b"]);
    stand.assert_at_rest();
}

#[test]
fn preallocation_is_that_of_the_objects() {
    require!(Ceph::requirement());
    let stand = Stand::new("space");
    perform(&stand.pool, full("thick", 10 * MIB)).unwrap();
    assert_eq!(stand.used("thick"), 10 * MIB);
    assert!(stand.read("thick") == vec![0; 10 * MIB as usize]);
    perform(&stand.pool, create("thin", 10 * MIB, Preallocation::Off)).unwrap();
    assert_eq!(stand.used("thin"), 0);
    let mut part = CreateVolume::new(name("part"), 16 * MIB, Preallocation::Full);
    part.allocation_bytes = 8 * MIB;
    perform(&stand.pool, Operation::Create(part)).unwrap();
    assert_eq!(stand.used("part"), 8 * MIB);
    let info = stand.pool.volume(&name("thick")).unwrap();
    assert_eq!(
        (info.capacity_bytes, info.written_bytes),
        (10 * MIB, 10 * MIB)
    );
    perform(&stand.pool, materialize("thin")).unwrap();
    assert_eq!(stand.used("thin"), 10 * MIB);
    perform(&stand.pool, resize("part", 24 * MIB, Preallocation::Full)).unwrap();
    assert_eq!(stand.used("part"), 16 * MIB, "only the new part");
    perform(&stand.pool, resize("thick", 30 * MIB, Preallocation::Off)).unwrap();
    assert_eq!(stand.used("thick"), 12 * MIB);
    let info = stand.pool.info().unwrap();
    assert_eq!(info.space.promised_bytes, 64 * MIB, "{info:?}");
    assert_eq!(info.space.total_bytes, LIMIT);
    let cluster = info.cluster.unwrap();
    assert_eq!(cluster.copies, 1);
    assert!(cluster.full_ratio > cluster.nearfull_ratio);
    stand.assert_at_rest();
}

#[test]
fn second_of_two_thick_volumes_that_do_not_both_fit_is_refused_at_once() {
    require!(Ceph::requirement());
    let stand = Stand::new("admission");
    let first = submit(&stand.pool, full("a", 56 * MIB)).unwrap();
    let refused = submit(&stand.pool, full("b", 56 * MIB)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    assert!(refused.to_string().contains("16 MiB missing"), "{refused}");
    run(first).unwrap();
    perform(&stand.pool, full("b", 40 * MIB)).unwrap();
    stand.assert_at_rest();
}

#[test]
fn what_an_image_cannot_be_is_refused_by_name() {
    require!(Ceph::requirement());
    let stand = Stand::new("refused");
    let with = |change: fn(&mut CreateVolume)| {
        let mut create = CreateVolume::new(name("a"), 4 * MIB, Preallocation::Full);
        change(&mut create);
        Operation::Create(create)
    };
    for (operation, word) in [
        (
            create("a", MIB, Preallocation::Falloc),
            "preallocation falloc",
        ),
        (
            with(|create| create.format = Format::Qcow2),
            "raw volumes only",
        ),
        (with(|create| create.mode = 0o644), "permissions"),
        (with(|create| create.volume = name("a@b")), "no @"),
    ] {
        let refused = submit(&stand.pool, operation).unwrap_err().to_string();
        assert!(refused.contains(word), "{word}: {refused}");
    }
    stand.assert_at_rest();
    let falloc = Limits {
        preallocation: Preallocation::Falloc,
        ..limits()
    };
    let state = stand.outside("state");
    let place = place(stand.ceph, "refused");
    let refused = Definition::on_cluster("b".parse().unwrap(), place, &state, falloc);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn volume_that_a_client_has_open_is_refused_with_the_client() {
    require!(Ceph::requirement());
    let stand = Stand::new("used");
    stand.put("a", &noise(4 * MIB));
    let mut replace = upload("a", &stand.outside("source"));
    replace.replace = true;
    for (access, operation) in [
        (RbdAccess::ReadOnly, wipe("a", WipeMethod::Zero)),
        (RbdAccess::ReadWrite, Operation::Upload(replace)),
        (
            RbdAccess::ReadWrite,
            resize("a", 8 * MIB, Preallocation::Off),
        ),
    ] {
        let image = stand.open("a", access);
        let client = format!("client.{}", image.pool().cluster().client_number());
        let refused = perform(&stand.pool, operation).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InUse, "{refused}");
        assert!(refused.to_string().contains(&client), "{refused}");
        if access == RbdAccess::ReadOnly {
            let refused = stand.pool.delete(&name("a"), false).unwrap_err();
            assert!(refused.to_string().contains(&client), "{refused}");
        }
    }
    assert!(stand.read("a") == noise(4 * MIB));
    stand.assert_at_rest();
    // And the reverse: a volume that is served is kept from jobs.
    let served = stand.pool.place_of(&name("a"), true).unwrap();
    let refused = perform(&stand.pool, wipe("a", WipeMethod::Zero)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InUse, "{refused}");
    drop(served);
    perform(&stand.pool, wipe("a", WipeMethod::Zero)).unwrap();
}

/// Cancels at the report with a number.
struct CancelAt<'c> {
    left: Mutex<u32>,
    cancel: &'c CancelToken,
}

impl ProgressSink for CancelAt<'_> {
    fn update(&self, _: Progress) {
        let mut left = self.left.lock().unwrap();
        *left = left.saturating_sub(1);
        if *left == 0 {
            self.cancel.cancel();
        }
    }
}

#[test]
fn cancel_at_any_report_leaves_the_pool_as_before() {
    require!(Ceph::requirement());
    let stand = Stand::new("cancel");
    stand.put("a", &noise(8 * MIB));
    let mut replace = upload("a", &stand.source(&noise(12 * MIB)));
    replace.replace = true;
    let mut cancelled = 0;
    for operation in [
        full("b", 8 * MIB),
        clone("a", "b", CloneMethod::Copy),
        resize("a", 16 * MIB, Preallocation::Full),
        Operation::Upload(replace),
    ] {
        for power in 0.. {
            let cancel = CancelToken::new();
            let sink = CancelAt {
                left: Mutex::new(1 << power),
                cancel: &cancel,
            };
            let job = submit(&stand.pool, operation.clone()).unwrap();
            match job.run(OnStop::Cancel, Control::new(&cancel, &sink)) {
                Ok(()) => break,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}"),
            }
            cancelled += 1;
            assert_eq!(names(&stand.pool), ["a"]);
            stand.assert_at_rest();
        }
        match stand.pool.delete(&name("b"), false) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            deleted => deleted.unwrap(),
        }
        // Grown by the third, with zeros.
        let content = stand.read("a");
        assert!(content[..8 * MIB as usize] == noise(8 * MIB));
    }
    assert!(stand.read("a") == noise(12 * MIB));
    assert!(cancelled > 8, "{cancelled}");
}

#[test]
fn interrupted_jobs_are_found_and_resumed() {
    require!(Ceph::requirement());
    let stand = Stand::new("resumed");
    stand.put("a", &noise(16 * MIB));
    let source = stand.source(&noise(16 * MIB));
    for (operation, volumes) in [
        (full("b", 16 * MIB), vec!["a", "b"]),
        (clone("a", "c", CloneMethod::Copy), vec!["a", "b", "c"]),
        (
            Operation::Upload(upload("d", &source)),
            vec!["a", "b", "c", "d"],
        ),
    ] {
        let cancel = CancelToken::new();
        let sink = MappedProgress {
            update: |progress: Progress| {
                if moved(progress) > 6 * MIB {
                    cancel.cancel();
                }
            },
            caller: &Silent,
        };
        let job = stand.pool.submit(operation, at_rate(64 * MIB)).unwrap();
        let id = job.id();
        let stopped = job.run(OnStop::Interrupt, Control::new(&cancel, &sink));
        assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Cancelled);
        assert_eq!(stand.pool.job(id).unwrap().state, JobState::Interrupted);
        let found = stand.pool.refresh(Leftovers::Keep).unwrap();
        assert_eq!(found.interrupted.len(), 1);
        assert!(found.interrupted[0].allocated_bytes >= 4 * MIB, "{found:?}");
        assert_eq!(names(&stand.pool).len(), volumes.len() - 1);
        run(stand.pool.resume(id).unwrap()).unwrap();
        assert_eq!(names(&stand.pool), volumes);
        stand.assert_at_rest();
    }
    assert!(stand.read("b") == vec![0; 16 * MIB as usize]);
    assert!(stand.read("c") == noise(16 * MIB));
    assert!(stand.read("d") == noise(16 * MIB));
}
