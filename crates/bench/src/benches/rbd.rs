//! `rbd`: thick volumes of a Ceph cluster, their upload, serving and cancel.
//!
//! The cluster is one of this machine: a monitor, a manager and a daemon that stores objects in
//! memory, all of them beside the client on the same processors. Images of the peers are in the
//! same pool.

mod transfer;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use extant_space::ByteSize;
use extant_testkit::ceph::{Ceph, CephOptions, PROGRAMS};
use extant_testkit::command::{describe, run, run_any_status, text, tool};

use super::images::server::{Server, is_listening, shown};
use crate::bench::{Bench, Context, Options, Outcome, rounds, size_word};
use crate::fio::Fio;
use crate::goal::Goal;
use crate::measured::measure;
use crate::needs::Need;
use crate::random::Random;
use crate::table::{Table, median, number, spread};

/// Requests a second of `extant serve`, of those of `qemu-nbd`: the least.
const SERVE: &str = "serve-over-qemu-nbd";
/// Time of `extant job cancel`: the most.
const CANCEL: &str = "cancel-max";
/// Images after the cancels that the pool did not have before.
const LEFTOVERS: &str = "cancel-leftovers";

const REQUESTS: &str = "requests/s";
const CPU: &str = "us CPU/request";
const MS: &str = "ms";
const CANCELLED: &str = "extant job cancel";
/// Of a complete volume of that size: the cluster's time to free the space.
const REMOVED: &str = "rbd rm of all of it";
const SEED: u64 = 20_261_126;
/// A cancel needs a job that lasts.
const LONGER: u64 = 4;
/// The volume that is served.
const SERVED: &str = "served";

/// The bench.
pub struct Rbd;

impl Bench for Rbd {
    fn name(&self) -> &'static str {
        "rbd"
    }

    fn about(&self) -> &'static str {
        "volumes of a Ceph cluster: extant vol and serve beside rbd, qemu-img and qemu-nbd"
    }

    fn needs(&self) -> &'static [Need] {
        const NEEDS: [Need; PROGRAMS.len() + 3] = {
            let mut needs = [Need::Root; PROGRAMS.len() + 3];
            let mut at = 0;
            while at < PROGRAMS.len() {
                needs[at] = Need::Program(PROGRAMS[at]);
                at += 1;
            }
            needs[at] = Need::Program("fio");
            needs[at + 1] = Need::Program("qemu-nbd");
            needs
        };
        &NEEDS
    }

    fn goals(&self) -> &'static [Goal] {
        const {
            &[
                Goal::at_most(transfer::CREATE, 1.0, ""),
                Goal::at_least(transfer::UPLOAD, 1.2, ""),
                Goal::at_least(SERVE, 1.0, ""),
                Goal::at_most(CANCEL, 200.0, "ms"),
                Goal::at_most(LEFTOVERS, 0.0, "images"),
            ]
        }
    }

    fn disk_bytes(&self, options: &Options) -> u64 {
        2 * size(options)
    }

    fn run(&self, context: &Context) -> Result<Outcome> {
        let size = size(&context.options);
        let runs = context.options.runs(5, 1);
        let mut outcome = Outcome::default();
        let pool = Pool::start(context, size)?;
        transfer::measure(context, &pool, runs, &mut outcome)?;
        serve(context, &pool, runs, &mut outcome)?;
        cancel(context, &pool, &mut outcome)?;
        outcome.title = format!("volumes of {}, {runs} rounds (seed {SEED})", ByteSize(size));
        outcome.notes.push(
            "one daemon with its objects in memory, on the processors of the client".to_owned(),
        );
        Ok(outcome)
    }
}

fn size(options: &Options) -> u64 {
    options.size(1 << 30, 128 << 20)
}

/// A cluster, and our pool on it.
struct Pool {
    ceph: Ceph,
    definitions: PathBuf,
    size: u64,
}

impl Pool {
    fn start(context: &Context, size: u64) -> Result<Self> {
        context.step("the cluster");
        let ceph = Ceph::start(CephOptions {
            osd_bytes: (LONGER + 4) * size + (4 << 30),
            manager: true,
            ..CephOptions::default()
        });
        ceph.wait_for_figures();
        let definitions = context.file("pools");
        fs::create_dir(&definitions)?;
        let pool = Self {
            ceph,
            definitions,
            size,
        };
        let mut define = pool.extant(context, &["pool", "define", "cloud", "--kind", "rbd"]);
        define.args(["--ceph-pool", extant_testkit::ceph::POOL, "--conf"]);
        define.arg(pool.ceph.conf()).arg("--state");
        run(define.arg(pool.definitions.join("state")))?;
        Ok(pool)
    }

    fn extant(&self, context: &Context, words: &[&str]) -> Command {
        let mut command = context.extant();
        command
            .args(words)
            .arg("--config-dir")
            .arg(&self.definitions);
        command
    }

    fn shown(&self, context: &Context, command: &Command) -> String {
        let conf = self.ceph.conf().display().to_string();
        context.shown(command).replace(&conf, "CONF")
    }

    fn images(&self) -> Result<Vec<String>> {
        let names = text(self.ceph.rbd().arg("ls"))?;
        Ok(names.lines().map(str::to_owned).collect())
    }

    fn remove(&self, image: &str) -> Result<()> {
        run(&mut self.removal(image))?;
        Ok(())
    }

    fn removal(&self, image: &str) -> Command {
        let mut rbd = self.ceph.rbd();
        rbd.args(["rm", "--no-progress", image]);
        rbd
    }
}

/// Requests of 4 KiB through both servers, to one thick image.
fn serve(context: &Context, pool: &Pool, runs: usize, outcome: &mut Outcome) -> Result<()> {
    const JOBS: [(&str, &str, u32); 4] = [
        ("write, depth 1", "randwrite", 1),
        ("write, depth 64", "randwrite", 64),
        ("read, depth 1", "randread", 1),
        ("read, depth 64", "randread", 64),
    ];
    const SERVERS: [&str; 2] = ["extant serve", "qemu-nbd"];
    let size = size_word(pool.size);
    run(&mut pool.extant(
        context,
        &["vol", "create", "cloud", SERVED, &size, "--quiet"],
    ))?;
    for (round, at) in rounds(runs, JOBS.len() * SERVERS.len()) {
        let (job, pattern, depth) = JOBS[at / SERVERS.len()];
        let server = SERVERS[at % SERVERS.len()];
        let name = format!("{server}, {job}");
        context.step(format!("round {}: {name}", round + 1));
        let running = start(context, pool, server)?;
        let job = Fio::nbd("rbd", &running.uri)
            .set("rw", pattern)
            .set("bs", "4k")
            .set("iodepth", depth)
            .set("size", pool.size)
            .set("time_based", 1)
            .set("runtime", context.options.pick(5, 1));
        let before = running.cpu_seconds()?;
        let done = job.run()?;
        let cpu = running.cpu_seconds()? - before;
        let metrics = &mut outcome.metrics;
        metrics.record(&name, REQUESTS, &running.command, done.iops);
        let each = cpu / done.requests as f64 * 1e6;
        metrics.record(&name, CPU, &running.command, each);
        running.end()?;
    }
    let metrics = &outcome.metrics;
    let mut table = Table::new(&["4 KiB at random", REQUESTS, "spread", "over qemu-nbd", CPU]);
    let mut least = f64::INFINITY;
    for (job, ..) in JOBS {
        let [ours, theirs] = SERVERS.map(|server| format!("{server}, {job}"));
        for name in [&ours, &theirs] {
            table.row(vec![
                name.clone(),
                median(metrics.get(name, REQUESTS)),
                spread(metrics.get(name, REQUESTS)),
                number(metrics.ratio(name, &theirs, REQUESTS)?),
                median(metrics.get(name, CPU)),
            ]);
        }
        least = least.min(metrics.ratio(&ours, &theirs, REQUESTS)?);
    }
    outcome.goals.insert(SERVE, least.into());
    outcome.tables.push(table);
    Ok(())
}

/// Both with the cache of librbd, which is the default of both.
fn start(context: &Context, pool: &Pool, server: &str) -> Result<Server> {
    let socket = context.file("socket");
    let command = if server == "qemu-nbd" {
        let mut command = tool("qemu-nbd");
        command.args(["-t", "-x", "image", "-f", "raw"]);
        command.arg(pool.ceph.name(SERVED)).arg("-k").arg(&socket);
        command
    } else {
        let words = ["serve", SERVED, "--pool", "cloud", "--name", "image"];
        let mut command = pool.extant(context, &words);
        command.arg("--socket").arg(&socket);
        command
    };
    let conf = pool.ceph.conf().display().to_string();
    let shown = shown(context, &command, &socket).replace(&conf, "CONF");
    Server::spawn(command, shown, &socket)?.wait_until(|| is_listening(&socket))
}

/// Jobs cancelled at random moments.
fn cancel(context: &Context, pool: &Pool, outcome: &mut Outcome) -> Result<()> {
    const MISSES_MAX: usize = 20;
    let before = pool.images()?;
    let size = size_word(LONGER * pool.size);
    let create = |more: &[&str]| {
        let mut create = pool.extant(context, &["vol", "create", "cloud", "v", &size]);
        create.args(more);
        create
    };
    context.step("a whole run, for its time");
    let whole = Duration::from_secs_f64(measure(&create(&["--quiet"]))?.seconds);
    let rounds = context.options.pick(5, 1);
    for round in 1..=rounds {
        context.step(format!("round {round}: {REMOVED}"));
        let remove = pool.removal("v");
        let taken = measure(&remove)?;
        let shown = pool.shown(context, &remove);
        let ms = taken.seconds * 1000.0;
        outcome.metrics.record(REMOVED, MS, &shown, ms);
        if round < rounds {
            measure(&create(&["--quiet"]))?;
        }
    }
    let (mut random, mut misses) = (Random::new(SEED), 0);
    let runs = context.options.pick(20, 3);
    let mut done = 0;
    while done < runs {
        context.step(format!("cancel {}", done + 1));
        let id = text(&mut create(&["--detach"]))?;
        thread::sleep(random.moment(whole));
        let mut cancel = pool.extant(context, &["job", "cancel", "cloud", id.trim()]);
        let start = Instant::now();
        let output = run_any_status(&mut cancel)?;
        let took = start.elapsed();
        if pool.images()?.contains(&"v".to_owned()) {
            pool.remove("v")?;
            misses += 1;
            ensure!(
                misses < MISSES_MAX,
                "{misses} jobs ended before their cancel"
            );
            continue;
        }
        ensure!(output.status.success(), "{}", describe(&output));
        let shown = pool.shown(context, &cancel);
        let ms = took.as_secs_f64() * 1000.0;
        outcome.metrics.record(CANCELLED, MS, &shown, ms);
        done += 1;
    }
    let after = pool.images()?;
    let left = after.iter().filter(|image| !before.contains(image)).count();
    let metric = outcome.metrics.of(CANCELLED, MS)?;
    let mut table = Table::new(&["cancel", MS, "spread"]);
    for name in [CANCELLED, REMOVED] {
        let metric = outcome.metrics.of(name, MS)?;
        let (middle, range) = (number(metric.median()), spread(Some(metric)));
        table.row(vec![name.to_owned(), middle, range]);
    }
    let slowest = metric.max();
    outcome
        .goals
        .extend([(CANCEL, slowest.into()), (LEFTOVERS, (left as f64).into())]);
    outcome.tables.push(table);
    Ok(())
}
