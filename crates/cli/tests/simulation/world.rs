//! The steps of a life, and what they promise.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use extant_blockdev::simulation::{Done, Fault, FaultRule, FaultyDevice, When};
use extant_blockdev::{Device, OperationKind, Persistence, Zeroing};
use extant_export::{Access, Address, Export, Exports, Server, ServerOptions};
use extant_image::{Format, Preallocation};
use extant_nbd::{NbdAssign, NbdDevice, NbdOptions, NbdReconnect, NbdUri};
use extant_pool::{
    CloneMethod, CloneVolume, CreateVolume, JobOptions, Materialize, OnStop, Operation, Resize,
    VolumeName, Wipe, WipeMethod,
};
use extant_space::{
    ByteRange, CancelToken, Control, Error, ErrorKind, Progress, ProgressSink, Result,
};
use extant_testkit::mke2fs;
use fastrand::Rng;

use crate::content::{Content, SECTOR};
use crate::machine::Machine;
use crate::network::Network;
use crate::pools::{OpenVolume, Place};

const IMAGE_BYTES: u64 = 24 << 20;
const VOLUMES_MAX: usize = 5;
/// Of a volume; a multiple of the clusters of qcow2.
const CAPACITY_UNIT: u64 = 64 << 10;
const CAPACITY_UNITS_MAX: u64 = 16;
const STEPS: u64 = 12;
const GRACE: Duration = Duration::from_secs(20);
/// Bytes that a full file system has left.
const LEFT_BYTES: u64 = 256 << 10;

/// A volume as it should be.
#[derive(Clone)]
pub struct Known {
    pub format: Format,
    pub content: Content,
    /// Every byte is promised to be written below.
    pub is_written: bool,
}

/// A change that may have happened, or that a job may still make.
pub enum Pending {
    /// The volume is complete, or there is none.
    Create(Known),
    Delete,
    Resize(u64),
    Wipe,
    /// Nothing that is seen.
    Nothing,
}

/// A pool as it should be.
pub struct PoolModel {
    pub place: Place,
    pub volumes: BTreeMap<VolumeName, Known>,
    /// Volumes that no step uses until the next start.
    pub pending: BTreeMap<VolumeName, Pending>,
    /// Volumes of jobs that succeeded while the disk failed: such a job may have lost its outcome,
    /// and is resumed.
    pub without_outcome: BTreeSet<VolumeName>,
}

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// In order.
    TurnOff,
    PowerCut,
    Fault(ErrorKind, OperationKind),
    /// The file system is full.
    Full,
}

/// Faults that are no part of a life: the test has to find them.
#[derive(Clone, Default)]
pub struct Planted {
    pub disk: Vec<FaultRule>,
    pub export: Vec<FaultRule>,
}

/// Counts of everything done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub lives: u64,
    pub cuts: u64,
    pub faults: u64,
    pub jobs: u64,
    pub resumed: u64,
    pub cancelled: u64,
    pub served: u64,
    pub broken_connections: u64,
}

/// The machine and what it should hold.
pub struct World {
    pub machine: Machine,
    pub random: Rng,
    pub pools: [PoolModel; 2],
    pub counts: Counts,
    /// The steps, with their results.
    pub trace: Vec<String>,
    export_faults: Vec<FaultRule>,
    names: u64,
    is_full: bool,
}

/// Cancels the token after some reports of progress.
struct Stopper<'a> {
    token: &'a CancelToken,
    reports_left: AtomicU64,
}

impl ProgressSink for Stopper<'_> {
    fn update(&self, _: Progress) {
        if self.reports_left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.token.cancel();
        }
    }
}

impl World {
    /// A machine with two empty pools, on.
    pub fn new(seed: u64, planted: Planted) -> Self {
        let mut machine = Machine::new(seed, planted.disk);
        machine.boot().unwrap();
        let root = machine.place().to_owned();
        fs::create_dir(Place::Directory.path(&root)).unwrap();
        let image = mke2fs("-t ext4 -b 1024 -J size=1 -N 64", IMAGE_BYTES);
        fs::write(Place::Image.path(&root), image).unwrap();
        machine.turn_off();
        machine.boot().unwrap();
        let pool = |place| PoolModel {
            place,
            volumes: BTreeMap::new(),
            pending: BTreeMap::new(),
            without_outcome: BTreeSet::new(),
        };
        Self {
            machine,
            random: Rng::with_seed(seed),
            pools: Place::ALL.map(pool),
            counts: Counts::default(),
            trace: Vec::new(),
            export_faults: planted.export,
            names: 0,
            is_full: false,
        }
    }

    /// Some steps, with an event on the way that ends them; the machine is off afterwards. Returns
    /// whether its power was cut.
    pub fn live(&mut self) -> Result<bool, String> {
        let event = match self.random.u8(..8) {
            0..4 => Event::PowerCut,
            4 => Event::TurnOff,
            5 => Event::Full,
            _ => Event::Fault(
                [ErrorKind::Io, ErrorKind::NoSpace][self.random.usize(..2)],
                [
                    OperationKind::Write,
                    OperationKind::Read,
                    OperationKind::Flush,
                ][self.random.usize(..3)],
            ),
        };
        let at = self.random.u64(..STEPS);
        self.is_full = false;
        for step in 0..STEPS {
            if step == at {
                self.meet(event)?;
            }
            if !self.machine.is_powered() {
                break;
            }
            self.machine.progress();
            self.step()?;
        }
        self.counts.lives += 1;
        self.counts.faults += u64::from(self.machine.is_powered() && self.machine.is_troubled());
        // After a fault the file system may have lost what it could not write, as after a cut.
        let is_cut = event == Event::PowerCut || self.machine.is_troubled();
        if is_cut {
            let state = self.machine.lose_power(self.random.u64(..));
            self.counts.cuts += 1;
            self.trace.push(state);
        } else {
            self.machine.turn_off();
            self.trace.push("turned off".into());
        }
        Ok(is_cut)
    }

    fn meet(&mut self, event: Event) -> Result<(), String> {
        self.trace.push(format!("{event:?}"));
        match event {
            Event::TurnOff => {}
            Event::PowerCut => {
                let most = [4, 40, 400][self.random.usize(..3)];
                self.machine.cut_power_after(self.random.u64(..most));
            }
            Event::Fault(kind, on) => {
                let most = [2, 20, 200][self.random.usize(..3)];
                let fault = Fault::Fail {
                    kind,
                    done: [Done::Nothing, Done::Part, Done::All][self.random.usize(..3)],
                };
                let nth = When::Nth(1 + self.random.u64(..most));
                let rule = FaultRule::new(fault).on(&[on]).when(nth);
                self.machine.expect(vec![rule]);
            }
            Event::Full => {
                let path = self.machine.place().join("filler");
                let free = rustix::fs::statvfs(self.machine.place()).map_err(|e| e.to_string())?;
                let free = free.f_bavail * free.f_frsize;
                let file = fs::File::create(path).map_err(|error| format!("filler: {error}"))?;
                let bytes = free.saturating_sub(LEFT_BYTES);
                rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes)
                    .map_err(|error| format!("filler: {error}"))?;
                self.is_full = true;
            }
        }
        Ok(())
    }

    /// Whether the result is a success; an error without a cause is the end of the test.
    fn is_done(&mut self, what: &str, result: &Result<()>) -> Result<bool, String> {
        self.trace.push(match result {
            Ok(()) => format!("{what}: done"),
            Err(error) => format!("{what}: {error}"),
        });
        match result {
            Ok(()) => Ok(true),
            Err(_) if self.machine.is_troubled() || self.is_full => Ok(false),
            Err(error) => Err(format!("{what}: {error}")),
        }
    }

    fn step(&mut self) -> Result<(), String> {
        let index = self.random.usize(..2);
        let name = self.any_volume(index);
        match (self.random.u8(..16), name) {
            (0..4, _) | (_, None) => self.create(index),
            (4, Some(name)) => self.clone_volume(index, &name),
            (5, Some(name)) => self.resize(index, &name),
            (6, Some(name)) => self.wipe(index, &name),
            (7, Some(name)) => self.materialize(index, &name),
            (8, Some(name)) => self.delete(index, &name),
            (_, Some(name)) => self.serve(index, &name),
        }
    }

    /// A volume without pending changes.
    fn any_volume(&mut self, index: usize) -> Option<VolumeName> {
        let pool = &self.pools[index];
        let names = pool.volumes.keys();
        let names: Vec<_> = names
            .filter(|name| !pool.pending.contains_key(*name))
            .collect();
        self.random.choice(names).cloned()
    }

    fn new_name(&mut self) -> VolumeName {
        self.names += 1;
        format!("v{}", self.names).parse().expect("a name")
    }

    fn has_room(&self, index: usize) -> bool {
        self.pools[index].volumes.len() + self.pools[index].pending.len() < VOLUMES_MAX
    }

    fn create(&mut self, index: usize) -> Result<(), String> {
        if !self.has_room(index) {
            return Ok(());
        }
        let name = self.new_name();
        let bytes = self.random.u64(1..=CAPACITY_UNITS_MAX) * CAPACITY_UNIT;
        let format = [Format::Raw, Format::Qcow2][self.random.usize(..2)];
        let mode = [
            Preallocation::Off,
            Preallocation::Falloc,
            Preallocation::Full,
        ][self.random.usize(..3)];
        let mut new = CreateVolume::new(name.clone(), bytes, mode);
        new.format = format;
        let known = Known {
            format,
            content: Content::new(bytes),
            is_written: format == Format::Raw && mode == Preallocation::Full,
        };
        let what = format!("create {format:?} {mode:?} {bytes}");
        let pending = Pending::Create(known);
        self.perform(index, &name, &what, Operation::Create(new), pending)
    }

    fn clone_volume(&mut self, index: usize, source: &VolumeName) -> Result<(), String> {
        let of = self.pools[index].volumes[source].clone();
        if !self.has_room(index) || !of.content.is_known() {
            return Ok(());
        }
        let name = self.new_name();
        let clone = CloneVolume {
            source: source.clone(),
            volume: name.clone(),
            method: CloneMethod::Copy,
            mode: 0o600,
        };
        let known = Known {
            is_written: false,
            ..of
        };
        let what = format!("clone {source}");
        let pending = Pending::Create(known);
        self.perform(index, &name, &what, Operation::Clone(clone), pending)?;
        if self.pools[index].pending.contains_key(&name) {
            // The job may read it again later.
            let pending = &mut self.pools[index].pending;
            pending.insert(source.clone(), Pending::Nothing);
        }
        Ok(())
    }

    fn resize(&mut self, index: usize, name: &VolumeName) -> Result<(), String> {
        let bytes = self.pools[index].volumes[name].content.bytes() + CAPACITY_UNIT;
        let resize = Resize {
            volume: name.clone(),
            capacity_bytes: bytes,
            preallocation: Preallocation::Full,
            shrink: false,
        };
        let what = format!("resize to {bytes}");
        let pending = Pending::Resize(bytes);
        self.perform(index, name, &what, Operation::Resize(resize), pending)
    }

    fn wipe(&mut self, index: usize, name: &VolumeName) -> Result<(), String> {
        let wipe = Wipe {
            volume: name.clone(),
            method: WipeMethod::Zero,
            force: false,
        };
        self.perform(index, name, "wipe", Operation::Wipe(wipe), Pending::Wipe)
    }

    fn materialize(&mut self, index: usize, name: &VolumeName) -> Result<(), String> {
        let operation = Operation::Materialize(Materialize {
            volume: name.clone(),
            unshare: false,
        });
        self.perform(index, name, "materialize", operation, Pending::Nothing)?;
        let pool = &mut self.pools[index];
        if !pool.pending.contains_key(name)
            && self.trace.last().is_some_and(|line| line.ends_with("done"))
            && let Some(known) = pool.volumes.get_mut(name)
        {
            known.is_written = known.format == Format::Raw;
        }
        Ok(())
    }

    fn delete(&mut self, index: usize, name: &VolumeName) -> Result<(), String> {
        let place = self.pools[index].place;
        let root = self.machine.place();
        let deleted = place.open(root).and_then(|pool| pool.delete(name, false));
        let is_done = self.is_done(&format!("{place:?} {name} delete"), &deleted)?;
        let pool = &mut self.pools[index];
        if is_done {
            pool.volumes.remove(name);
        } else {
            pool.pending.insert(name.clone(), Pending::Delete);
        }
        Ok(())
    }

    /// Runs a job, which is sometimes stopped after some progress.
    fn perform(
        &mut self,
        index: usize,
        name: &VolumeName,
        what: &str,
        operation: Operation,
        pending: Pending,
    ) -> Result<(), String> {
        let place = self.pools[index].place;
        let what = format!("{place:?} {name} {what}");
        let (on_stop, reports) = match self.random.u8(..8) {
            0 => (OnStop::Cancel, self.random.u64(1..6)),
            1 => (OnStop::Interrupt, self.random.u64(1..6)),
            _ => (OnStop::Cancel, 0),
        };
        let token = CancelToken::new();
        let stopper = Stopper {
            token: &token,
            reports_left: AtomicU64::new(reports),
        };
        self.counts.jobs += 1;
        let root = self.machine.place();
        let result = place.open(root).and_then(|pool| {
            let job = pool.submit(operation, JobOptions::default())?;
            job.run(on_stop, Control::new(&token, &stopper))
        });
        let is_stopped = |error: &Error| reports > 0 && error.kind() == ErrorKind::Cancelled;
        let is_done = match &result {
            Err(error) if is_stopped(error) => {
                self.trace.push(format!("{what}: {on_stop:?}"));
                if on_stop == OnStop::Cancel && !self.machine.is_troubled() && !self.is_full {
                    self.counts.cancelled += 1;
                    self.undo(index, name, pending);
                    return Ok(());
                }
                false
            }
            result => self.is_done(&what, result)?,
        };
        if is_done {
            self.apply(index, name, pending);
            if self.machine.is_troubled() {
                self.pools[index].without_outcome.insert(name.clone());
            }
        } else {
            let pool = &mut self.pools[index];
            pool.pending.insert(name.clone(), pending);
        }
        Ok(())
    }

    /// A change has happened.
    pub fn apply(&mut self, index: usize, name: &VolumeName, pending: Pending) {
        let volumes = &mut self.pools[index].volumes;
        match pending {
            Pending::Create(mut known) => {
                known.content.flush();
                volumes.insert(name.clone(), known);
            }
            Pending::Delete => drop(volumes.remove(name)),
            Pending::Resize(bytes) => {
                let known = volumes.get_mut(name).expect("it is known");
                known.content.resize(bytes);
            }
            Pending::Wipe => {
                let content = &mut volumes.get_mut(name).expect("it is known").content;
                *content = Content::new(content.bytes());
            }
            Pending::Nothing => {}
        }
    }

    /// A change was taken back. That of a wipe cannot be.
    pub fn undo(&mut self, index: usize, name: &VolumeName, pending: Pending) {
        if let Pending::Wipe = pending {
            let known = self.pools[index].volumes.get_mut(name);
            let content = &mut known.expect("it is known").content;
            content.change(0, content.bytes(), 0);
            content.fail();
        }
    }

    /// A client uses a volume over the network.
    fn serve(&mut self, index: usize, name: &VolumeName) -> Result<(), String> {
        let place = self.pools[index].place;
        let what = format!("{place:?} {name} serve");
        let volume = match OpenVolume::open(self.machine.place(), place, name) {
            Ok(volume) => volume,
            Err(error) => return self.is_done(&what, &Err(error)).map(drop),
        };
        self.counts.served += 1;
        let faults = self.export_faults.clone();
        let device: Arc<dyn Device> = Arc::new(FaultyDevice::new(volume.device.clone(), 1, faults));
        let sockets = [
            self.machine.outside().join("server"),
            self.machine.outside().join("client"),
        ];
        let export = Export::new("disk", "", device, Access::ReadWrite);
        let export = export.map_err(|error| error.to_string())?;
        let exports = Exports::new(vec![export]).map_err(|error| error.to_string())?;
        let server = Server::new(exports, ServerOptions::default());
        let listening = server.listen(&Address::Unix(sockets[0].clone()));
        listening.map_err(|error| error.to_string())?;
        let breaks = self.random.u64(..3);
        let network = Network::new(&sockets[1], &sockets[0], self.random.u64(..), breaks);
        let uri = format!("nbd+unix:///disk?socket={}", sockets[1].display());
        let uri: NbdUri = uri.parse().map_err(|error: Error| error.to_string())?;
        let options = NbdOptions {
            connections: 1,
            reconnect: NbdReconnect::Retry {
                give_up_after: GRACE,
                unflushed_bytes_max: 1 << 20,
            },
            assign: NbdAssign::Off,
            ..NbdOptions::default()
        };
        let client = NbdDevice::connect(&uri, options).map_err(|error| error.to_string())?;
        let used = self.use_device(&what, &client, index, name);
        drop(client);
        let shut_down = server.shutdown(GRACE);
        self.counts.broken_connections += network.broken();
        drop((server, network));
        let closed = volume.close();
        used?;
        let known = self.pools[index].volumes.get_mut(name);
        let known = known.expect("it is known");
        match (shut_down, closed) {
            // The server flushes its devices at its end.
            (Ok(()), Ok(())) => {
                if self.export_faults.is_empty() {
                    known.content.flush();
                }
                Ok(())
            }
            (one, other) => {
                known.content.fail();
                self.is_done(&what, &one.and(other)).map(drop)
            }
        }
    }

    fn use_device(
        &mut self,
        what: &str,
        client: &NbdDevice,
        index: usize,
        name: &VolumeName,
    ) -> Result<(), String> {
        for _ in 0..self.random.u64(1..16) {
            self.machine.progress();
            let known = self.pools[index].volumes.get_mut(name);
            let known = known.expect("it is known");
            let sectors = known.content.bytes() / SECTOR;
            let first = self.random.u64(..sectors);
            let most = [8, 128][self.random.usize(..2)];
            let count = self.random.u64(1..=most).min(sectors - first);
            let (start, bytes) = (first * SECTOR, count * SECTOR);
            let value = self.random.u8(1..);
            let what_now = format!("{what}, sectors {first}+{count}");
            let (what_now, done) = match self.random.u8(..10) {
                kind @ 0..5 => {
                    let persistence = match kind {
                        0 => Persistence::Fua,
                        _ => Persistence::Cached,
                    };
                    known.content.change(start, bytes, value);
                    let data = vec![value; bytes as usize];
                    let done = client.write_at(&data, start, persistence);
                    match (&done, persistence) {
                        (Ok(()), Persistence::Fua) => known.content.settle(start, bytes),
                        (Ok(()), Persistence::Cached) => {}
                        (Err(_), _) => known.content.fail(),
                    }
                    (format!("{what_now}: {value} {persistence:?}"), done)
                }
                5 => {
                    known.content.change(start, bytes, 0);
                    known.is_written = false;
                    let range = ByteRange::new(start, start + bytes);
                    let done = client.write_zeroes(range, Zeroing::ANY);
                    if done.is_err() {
                        known.content.fail();
                    }
                    (format!("{what_now}: zeros"), done)
                }
                6..8 => {
                    let done = client.flush();
                    match &done {
                        Ok(()) => known.content.flush(),
                        Err(_) => known.content.fail(),
                    }
                    (format!("{what}: flush"), done)
                }
                _ => {
                    let read = known.content.compare(client, start, bytes, false);
                    if let Err(difference) = read
                        && !self.machine.is_troubled()
                        && !self.is_full
                    {
                        return Err(format!("{what_now}: {difference}"));
                    }
                    (format!("{what_now}: read"), Ok(()))
                }
            };
            if !self.is_done(&what_now, &done)? {
                break;
            }
        }
        Ok(())
    }
}
