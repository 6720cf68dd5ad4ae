//! The part on a simulated disk with seeks: memory, [`SeekDevice`], ext4 by the engine, the image
//! in it, and our NBD server, in this process.
//!
//! The file system is opened for the sample, so that the first load finds nothing cached; before
//! the next one the map of the image is read without cost. As most of the time is the model's,
//! there is one sample.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use extant_blockdev::{Access, LoopDevice, LoopOptions, MemoryDevice};
use extant_export::{Address, Export, Exports, Server, ServerOptions};
use extant_space::{ByteRange, ByteSize, SpaceFile};

use super::layout::{BLOCK, Layout, build, device_bytes, open_image};
use super::load::{LOADS, Load};
use super::seek_device::{BYTES_PER_SECOND, SeekDevice};
use super::{ACCESSES_GOAL, EXTENTS, RATE_GOAL};
use crate::bench::{Context, Options, Outcome};
use crate::measured::mib;
use crate::table::{self, Table, number};

/// Requests to the disk, for each extent that a client's request covers.
const ACCESSES: &str = "requests/extent";
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// Its name in samples.
const PLACE: &str = "simulated";

fn size(options: &Options) -> u64 {
    options.size(400 << 20, 32 << 20)
}

fn is_wanted(options: &Options, layout: Layout) -> bool {
    options.selects(&format!("{PLACE}, {layout}"))
}

/// Takes the samples, evaluates the goals and adds the table.
pub(super) fn measure(context: &Context, outcome: &mut Outcome) -> Result<()> {
    let options = &context.options;
    let size = size(options);
    for layout in Layout::ALL {
        if is_wanted(options, layout) {
            context.step(format!("{PLACE}, {layout}: the image"));
            let disk = Arc::new(SeekDevice::new(MemoryDevice::new(device_bytes(size))));
            let extents = disk.free_of_cost(|| build(layout, disk.clone(), size))?;
            let subject = format!("{PLACE}, {layout}");
            outcome
                .metrics
                .record(&subject, EXTENTS, "", extents as f64);
            context.step(subject);
            sample(context, layout, &disk, size, outcome)?;
        }
    }
    if Layout::ALL.iter().all(|layout| is_wanted(options, *layout)) {
        outcome.title += &format!(", {} simulated", ByteSize(size));
        evaluate(outcome)?;
        outcome.tables.push(table(outcome)?);
    }
    Ok(())
}

fn name(load: &Load, layout: Layout) -> String {
    format!("{PLACE}, {}, {layout}", load.name)
}

fn sample(
    context: &Context,
    layout: Layout,
    disk: &Arc<SeekDevice>,
    size: u64,
    outcome: &mut Outcome,
) -> Result<()> {
    let (filesystem, image) = open_image(disk.clone())?;
    let image = Arc::new(image);
    let device = Arc::new(LoopDevice::new(image.clone(), LoopOptions::default())?);
    let export = Export::new("image", "", device, Access::ReadWrite)?;
    let server = Server::new(Exports::new(vec![export])?, ServerOptions::default());
    let socket = context.file("socket");
    server.listen(&Address::Unix(socket.clone()))?;
    let uri = format!("nbd+unix:///image?socket={}", socket.display());
    for load in &LOADS {
        let before = disk.requests();
        let fio = load.fio(context, &uri, size);
        let done = fio.run()?;
        let asked = done.requests * extents_of_request(load, layout);
        ensure!(asked > 0, "no request of {} has ended", load.name);
        let accesses = (disk.requests() - before) as f64 / asked as f64;
        let name = name(load, layout);
        let command = context.shown(&fio.command());
        let metrics = &mut outcome.metrics;
        metrics.record(&name, load.unit, &command, load.rate(&done));
        metrics.record(&name, ACCESSES, "", accesses);
        if load.is_cold {
            let whole = ByteRange::new(0, size);
            let mut visit = |_| ControlFlow::Continue(());
            disk.free_of_cost(|| image.for_each_extent(whole, &mut visit))?;
        }
    }
    server.shutdown(SHUTDOWN_GRACE)?;
    drop((server, image));
    Ok(filesystem.close()?)
}

/// Extents that one request of a client covers.
fn extents_of_request(load: &Load, layout: Layout) -> u64 {
    match layout {
        Layout::Contiguous => 1,
        Layout::Spaced | Layout::Scattered => load.block_bytes / BLOCK,
    }
}

fn evaluate(outcome: &mut Outcome) -> Result<()> {
    let metrics = &outcome.metrics;
    let (mut share, mut accesses) = (f64::MAX, (f64::MIN, String::new()));
    for load in &LOADS {
        for layout in Layout::ALL {
            let name = name(load, layout);
            let found = metrics.of(&name, ACCESSES)?.median();
            if found > accesses.0 {
                accesses = (found, name.clone());
            }
            if layout == Layout::Contiguous && load.is_in_order() {
                let rate = metrics.of(&name, load.unit)?.median();
                share = share.min(rate / mib(BYTES_PER_SECOND));
            }
        }
    }
    outcome.goals.insert(RATE_GOAL, share.into());
    outcome.goals.insert(ACCESSES_GOAL, accesses.0.into());
    let note = format!("{ACCESSES_GOAL}: the most is {}", accesses.1);
    outcome.notes.push(note);
    Ok(())
}

fn table(outcome: &Outcome) -> Result<Table> {
    let metrics = &outcome.metrics;
    let mut table = Table::new(&[
        "on a simulated disk with seeks",
        "1 extent",
        "in order",
        "/ 1 extent",
        "at random",
        "/ 1 extent",
    ]);
    let extents = |layout| metrics.get(&format!("{PLACE}, {layout}"), EXTENTS);
    let [one, spaced, scattered] = Layout::ALL.map(|layout| table::median(extents(layout)));
    let none = String::new;
    table.row(vec![
        EXTENTS.to_owned(),
        one,
        spaced,
        none(),
        scattered,
        none(),
    ]);
    for load in &LOADS {
        let names = Layout::ALL.map(|layout| name(load, layout));
        let rate = |at: usize| table::median(metrics.get(&names[at], load.unit));
        let ratio = |at: usize| metrics.ratio(&names[at], &names[0], load.unit).map(number);
        table.row(vec![
            format!("{}, {}", load.name, load.unit),
            rate(0),
            rate(1),
            ratio(1)?,
            rate(2),
            ratio(2)?,
        ]);
    }
    Ok(table)
}
