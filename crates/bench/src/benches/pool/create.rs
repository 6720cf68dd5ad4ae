//! One volume at a time: whole commands, and without the process start.
//!
//! libvirt allocates a raw volume and leaves it unwritten with every option. It is compared with
//! `--preallocation falloc`, which does the same. Written volumes are compared with the bandwidth
//! of the disk. Columns show the state of each file.
//!
//! *Alone*: several volumes in sequence by one process with an open pool or connection; the time of
//! one. libvirtd syncs a new file and not its directory. *Names durable*: the kernel writes each
//! change of the directory at once (`chattr +D`), which libvirtd's sync of the file makes durable.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::Result;
use extant_pool::{CreateVolume, Definition, JobOptions, OnStop, Operation};
use extant_space::{CancelToken, Control, ExtentState, Preallocation, Silent};
use extant_testkit::command::run;
use extant_testkit::oracle::filefrag;

use super::{POOL, Sides, shown, size, virsh, vol_create_as};
use crate::bench::{Context, Outcome, rounds, size_word};
use crate::fio::Fio;
use crate::measured::{measure as take, mib};
use crate::peers;
use crate::table::{Table, median, spread};

/// Time of `extant vol create --preallocation falloc`, over that of `virsh vol-create-as`.
pub(super) const OVER_VIRSH: &str = "create-over-virsh";
/// The same without the processes.
pub(super) const ALONE_OVER_LIBVIRTD: &str = "alone-over-libvirtd";
/// Time of a written volume, over that of fio overwriting as much.
pub(super) const OVER_CEILING: &str = "written-over-ceiling";

/// Volumes that one process makes.
pub(super) const ALONE: u64 = 8;
const TIME: &str = "ms";
const WRITTEN: &str = "MiB written";
const UNWRITTEN: &str = "MiB unwritten";
const EXTENTS: &str = "extents";
const VOLUME: &str = "volume";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Falloc,
    Virsh,
    QemuFalloc,
    Fallocate,
    FallocAlone,
    VirshAlone,
    VirshAloneDurable,
    Nothing,
    VirshNothing,
    Full,
    QemuFull,
    Overwrite,
    FirstTouch,
}

const METHODS: [Method; 13] = [
    Method::Falloc,
    Method::Virsh,
    Method::QemuFalloc,
    Method::Fallocate,
    Method::FallocAlone,
    Method::VirshAlone,
    Method::VirshAloneDurable,
    Method::Nothing,
    Method::VirshNothing,
    Method::Full,
    Method::QemuFull,
    Method::Overwrite,
    Method::FirstTouch,
];

impl Method {
    /// The word in tables.
    fn name(self) -> &'static str {
        match self {
            Self::Falloc => "extant vol create, falloc",
            Self::Virsh => "virsh vol-create-as",
            Self::QemuFalloc => "qemu-img, falloc",
            Self::Fallocate => "fallocate -l",
            Self::FallocAlone => "extant, falloc, alone",
            Self::VirshAlone => "virsh, alone",
            Self::VirshAloneDurable => "virsh, alone, names durable",
            Self::Nothing => "extant, a process: vol list",
            Self::VirshNothing => "virsh, a process: vol-list",
            Self::Full => "extant vol create, full",
            Self::QemuFull => "qemu-img, full",
            Self::Overwrite => "ceiling: fio overwriting",
            Self::FirstTouch => "ceiling: fio, new blocks",
        }
    }
}

pub(super) fn measure(context: &Context, sides: &Sides, outcome: &mut Outcome) -> Result<()> {
    let runs = context.options.runs(11, 3);
    let size = size(&context.options);
    let work = Work {
        context,
        sides,
        size,
        new: context.file("new.raw"),
        old: context.file("old.raw"),
    };
    run(context
        .extant()
        .arg("create")
        .arg(&work.old)
        .arg(size_word(size)))?;
    for (round, method) in rounds(runs, METHODS.len()) {
        let method = METHODS[method];
        context.step(format!("round {}: {}", round + 1, method.name()));
        context.settle();
        work.sample(method, outcome)?;
    }
    fs::remove_file(&work.old)?;
    let metrics = &outcome.metrics;
    let over = |ours: Method, peer: Method| metrics.ratio(ours.name(), peer.name(), TIME);
    let goals = [
        (OVER_VIRSH, over(Method::Falloc, Method::Virsh)?),
        (
            ALONE_OVER_LIBVIRTD,
            over(Method::FallocAlone, Method::VirshAloneDurable)?,
        ),
        (OVER_CEILING, over(Method::Full, Method::Overwrite)?),
    ];
    let notes = [
        format!(
            "a written volume takes {:.2} times what fio takes for new blocks",
            over(Method::Full, Method::FirstTouch)?
        ),
        format!(
            "alone, extant makes the file and then its name durable; libvirtd alone only the file: {:.2} times its time",
            over(Method::FallocAlone, Method::VirshAlone)?
        ),
    ];
    outcome
        .goals
        .extend(goals.map(|(name, value)| (name, value.into())));
    outcome.notes.extend(notes);
    outcome.title += &format!("volumes of {}, {runs} rounds; ", size_word(size));
    outcome.tables.push(table(outcome));
    Ok(())
}

struct Work<'a> {
    context: &'a Context,
    sides: &'a Sides,
    size: u64,
    /// Made and removed by samples of peers that know no pools.
    new: PathBuf,
    /// Written once; its blocks stay.
    old: PathBuf,
}

impl Work<'_> {
    fn vol_create(&self, mode: &str) -> Command {
        let mut command = self.context.extant();
        command.args(["vol", "create"]).arg(&self.sides.ours);
        command.args([VOLUME, &size_word(self.size)]);
        command.args(["--preallocation", mode]);
        command
    }

    fn sample(&self, method: Method, outcome: &mut Outcome) -> Result<()> {
        let ours = self.sides.ours.join(VOLUME);
        let theirs = self.sides.theirs.join(VOLUME);
        let libvirt = &self.sides.libvirt;
        let made = match method {
            Method::Falloc => (self.vol_create("falloc"), ours),
            Method::Full => (self.vol_create("full"), ours),
            Method::Virsh => {
                let line = vol_create_as(POOL, VOLUME, self.size);
                (virsh(libvirt, &line), theirs)
            }
            Method::QemuFalloc => {
                let command = peers::qemu_img_create(&self.new, self.size, "raw", "falloc");
                (command, self.new.clone())
            }
            Method::QemuFull => (peers::qemu_img(&self.new, self.size), self.new.clone()),
            Method::Fallocate => {
                let command = peers::fallocate(&self.new, self.size, &[]);
                (command, self.new.clone())
            }
            Method::FallocAlone => return self.alone(method, outcome),
            Method::VirshAlone => return self.virsh_alone(method, outcome),
            Method::VirshAloneDurable => {
                self.set_directory_attribute("+D")?;
                let measured = self.virsh_alone(method, outcome);
                self.set_directory_attribute("-D")?;
                return measured;
            }
            Method::Nothing => {
                let mut command = self.context.extant();
                command.args(["vol", "list"]).arg(&self.sides.ours);
                return self.time(method, &command, outcome);
            }
            Method::VirshNothing => {
                let command = virsh(libvirt, &format!("vol-list {POOL}"));
                return self.time(method, &command, outcome);
            }
            Method::Overwrite => return self.ceiling(method, &self.old, outcome),
            Method::FirstTouch => {
                run(&mut peers::fallocate(&self.new, self.size, &[]))?;
                self.context.settle();
                self.ceiling(method, &self.new, outcome)?;
                return Ok(fs::remove_file(&self.new)?);
            }
        };
        let (command, file) = made;
        self.time(method, &command, outcome)?;
        self.record_state(method, &file, outcome);
        match method {
            Method::Virsh => self.delete(&[VOLUME.to_owned()]),
            _ => Ok(fs::remove_file(&file)?),
        }
    }

    fn time(&self, method: Method, command: &Command, outcome: &mut Outcome) -> Result<()> {
        let taken = take(command)?;
        let shown = shown(self.context, &self.sides.libvirt, command);
        let metrics = &mut outcome.metrics;
        metrics.record(method.name(), TIME, &shown, taken.seconds * 1000.0);
        Ok(())
    }

    /// Records the state of the file.
    fn record_state(&self, method: Method, file: &Path, outcome: &mut Outcome) {
        let map = filefrag(file);
        let metrics = &mut outcome.metrics;
        for (unit, state) in [
            (WRITTEN, ExtentState::Written),
            (UNWRITTEN, ExtentState::Unwritten),
        ] {
            metrics.record(method.name(), unit, "", mib(map.bytes(state)));
        }
        metrics.record(method.name(), EXTENTS, "", map.extent_count as f64);
    }

    /// By the library, in a pool that is open.
    fn alone(&self, method: Method, outcome: &mut Outcome) -> Result<()> {
        let pool = extant_pool::Pool::open(Definition::of_directory(&self.sides.ours))?;
        let names: Vec<String> = (0..ALONE).map(|number| format!("alone-{number}")).collect();
        let start = Instant::now();
        for name in &names {
            let create = CreateVolume::new(name.parse()?, self.size, Preallocation::Falloc);
            let job = pool.submit(Operation::Create(create), JobOptions::default())?;
            job.run(OnStop::Cancel, Control::new(&CancelToken::new(), &Silent))?;
        }
        let each = start.elapsed().as_secs_f64() / ALONE as f64;
        let how = "extant_pool::Pool::submit and Job::run, in a pool that is open";
        let metrics = &mut outcome.metrics;
        metrics.record(method.name(), TIME, how, each * 1000.0);
        self.record_state(method, &self.sides.ours.join(&names[0]), outcome);
        for name in &names {
            fs::remove_file(self.sides.ours.join(name))?;
        }
        Ok(())
    }

    /// By one virsh, which has connected already for all but the first.
    fn virsh_alone(&self, method: Method, outcome: &mut Outcome) -> Result<()> {
        let names: Vec<String> = (0..ALONE).map(|number| format!("alone-{number}")).collect();
        let lines: Vec<String> = names
            .iter()
            .map(|name| vol_create_as(POOL, name, self.size))
            .collect();
        let taken = take(&virsh(&self.sides.libvirt, &lines.join("; ")))?;
        let nothing = take(&virsh(&self.sides.libvirt, "uri"))?;
        let how = "virsh 'vol-create-as ...; vol-create-as ...', less virsh uri";
        let each = (taken.seconds - nothing.seconds) / ALONE as f64;
        let metrics = &mut outcome.metrics;
        metrics.record(method.name(), TIME, how, each * 1000.0);
        self.record_state(method, &self.sides.theirs.join(&names[0]), outcome);
        self.delete(&names)
    }

    /// Of the directory of libvirt's pool.
    fn set_directory_attribute(&self, word: &str) -> Result<()> {
        run(Command::new("chattr").arg(word).arg(&self.sides.theirs))?;
        Ok(())
    }

    /// Has libvirt remove its volumes.
    fn delete(&self, names: &[String]) -> Result<()> {
        let lines = names.iter().map(|name| format!("vol-delete {name} {POOL}"));
        let lines: Vec<String> = lines.collect();
        run(&mut virsh(&self.sides.libvirt, &lines.join("; ")))?;
        Ok(())
    }

    fn ceiling(&self, method: Method, file: &Path, outcome: &mut Outcome) -> Result<()> {
        let job = Fio::ceiling(file, self.size);
        let writes = job.run()?;
        let shown = self.context.shown(&job.command());
        let time = mib(self.size) / writes.mib_per_second * 1000.0;
        outcome.metrics.record(method.name(), TIME, &shown, time);
        Ok(())
    }
}

fn table(outcome: &Outcome) -> Table {
    let mut table = Table::new(&["one volume", "ms", "spread", WRITTEN, UNWRITTEN, EXTENTS]);
    for method in METHODS {
        let metric = |unit| outcome.metrics.get(method.name(), unit);
        table.row(vec![
            method.name().to_owned(),
            median(metric(TIME)),
            spread(metric(TIME)),
            median(metric(WRITTEN)),
            median(metric(UNWRITTEN)),
            median(metric(EXTENTS)),
        ]);
    }
    table
}
