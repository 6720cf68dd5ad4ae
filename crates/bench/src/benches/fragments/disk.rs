//! The part on the machine's disk: the same images, served by `extant serve` and by qemu-nbd
//! without the page cache.
//!
//! No file system of the kernel can be asked for fragments. So each image is in an ext4 that the
//! engine has filled ([`layout`](super::layout)), and that the kernel mounts from a direct loop
//! device over a written file of the measured directory.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use extant_blockdev::{HostDevice, HostOptions};
use extant_space::ByteSize;
use extant_testkit::oracle::filefrag_count;
use extant_testkit::scratch::{DirectIo, LoopDevice, Mount};

use super::layout::{Layout, NAME, build, device_bytes};
use super::load::{LOADS, Load};
use super::{EXTENTS, KEPT_GOAL};
use crate::bench::{Context, Options, Outcome, rounds, size_word};
use crate::benches::images::image::{Kind, Side};
use crate::benches::images::server::{Serving, shown};
use crate::measured;
use crate::memory;
use crate::metrics::{self, Metrics};
use crate::table::{self, Table, number, spread};

/// Its name in samples.
const PLACE: &str = "disk";
/// Images with fragments.
const FRAGMENTED: [Layout; 2] = [Layout::Spaced, Layout::Scattered];

/// A mounted file system with an image. Dropped from above.
struct Mounted {
    image: PathBuf,
    _mount: Mount,
    _device: LoopDevice,
}

/// The file systems of the images.
pub(super) fn disk_bytes(options: &Options) -> u64 {
    3 * device_bytes(size(options))
}

fn size(options: &Options) -> u64 {
    options.size(400 << 20, 64 << 20)
}

/// Takes the samples, evaluates the goal and adds the table.
pub(super) fn measure(context: &Context, outcome: &mut Outcome) -> Result<()> {
    let options = &context.options;
    let size = size(options);
    let mut cases = Vec::new();
    let mut places = Vec::new();
    for layout in Layout::ALL {
        let selects = |side: &Side| options.selects(&format!("{PLACE}, {layout}, {side}"));
        let sides = Side::BOTH.into_iter().filter(selects);
        let first = cases.len();
        cases.extend(sides.map(|side| (places.len(), layout, side)));
        if cases.len() > first {
            let subject = format!("{PLACE}, {layout}");
            context.step(format!("{subject}: the image"));
            let place = Mounted::new(context, layout, size)?;
            let extents = filefrag_count(&place.image) as f64;
            outcome.metrics.record(&subject, EXTENTS, "", extents);
            places.push(place);
        }
    }
    for (round, at) in rounds(options.runs(3, 1), cases.len()) {
        let (place, layout, side) = cases[at];
        context.step(format!("round {}: {PLACE}, {layout}, {side}", round + 1));
        let place = &places[place];
        sample(context, place, layout, side, size, &mut outcome.metrics)?;
    }
    if cases.len() == Layout::ALL.len() * Side::BOTH.len() {
        outcome.title = format!("images of {} on the disk", ByteSize(size)) + &outcome.title;
        evaluate(outcome)?;
        outcome.tables.push(table(&outcome.metrics)?);
    }
    Ok(())
}

fn name(load: &Load, layout: Layout, side: Side) -> String {
    format!("{PLACE}, {}, {layout}, {side}", load.name)
}

impl Mounted {
    fn new(context: &Context, layout: Layout, size: u64) -> Result<Self> {
        let name = layout.to_string().replace(' ', "-");
        let backing = context.file(&format!("{name}.ext4"));
        let mut create = context.extant();
        create.args(["create", "--quiet"]).arg(&backing);
        measured::measure(create.arg(size_word(device_bytes(size))))?;
        let directory = context.file(&name);
        fs::create_dir(&directory)?;
        Self::at(layout, backing, directory, size)
    }

    /// In the written file `backing`, mounted at `directory`.
    fn at(layout: Layout, backing: PathBuf, directory: PathBuf, size: u64) -> Result<Self> {
        let device = Arc::new(HostDevice::open(&backing, &HostOptions::default())?);
        build(layout, device, size)?;
        let device = LoopDevice::attach_with(&backing, DirectIo::On, 4096);
        Ok(Self {
            image: directory.join(NAME),
            _mount: Mount::new("ext4", device.path(), &directory, ""),
            _device: device,
        })
    }
}

fn sample(
    context: &Context,
    place: &Mounted,
    layout: Layout,
    side: Side,
    size: u64,
    metrics: &mut Metrics,
) -> Result<()> {
    let file = &place.image;
    context.settle();
    memory::drop_caches()?;
    let server = Serving::of(Kind::raw("full")).start(context, side, file)?;
    let server = server.context("the default engine")?;
    for load in &LOADS {
        let fio = load.fio(context, &server.uri, size);
        let rate = load.rate(&fio.run()?);
        let command = format!(
            "{}; {}",
            server.command,
            shown(context, &fio.command(), file)
        );
        metrics.record(&name(load, layout, side), load.unit, &command, rate);
    }
    server.end()?;
    Ok(())
}

/// Rate with fragments over rate with one extent, ours over the peer's: the median of the rounds.
fn kept(metrics: &Metrics, load: &Load, layout: Layout) -> Result<f64> {
    let samples = |layout, side| {
        let metric = metrics.of(&name(load, layout, side), load.unit)?;
        anyhow::Ok(&metric.samples)
    };
    let [ours, theirs] = Side::BOTH.map(|side| {
        let one = samples(Layout::Contiguous, side)?.iter();
        let many = samples(layout, side)?.iter();
        anyhow::Ok(many.zip(one).map(|(many, one)| many / one))
    });
    let ratios: Vec<_> = ours?
        .zip(theirs?)
        .map(|(ours, theirs)| ours / theirs)
        .collect();
    metrics::median(&ratios).context("no samples")
}

fn evaluate(outcome: &mut Outcome) -> Result<()> {
    let mut worst = (f64::MAX, String::new());
    for load in &LOADS {
        for layout in FRAGMENTED {
            let kept = kept(&outcome.metrics, load, layout)?;
            if kept < worst.0 {
                worst = (kept, format!("{}, {layout}", load.name));
            }
        }
    }
    outcome.goals.insert(KEPT_GOAL, worst.0.into());
    let note = format!("{KEPT_GOAL}: the least is {}", worst.1);
    outcome.notes.push(note);
    Ok(())
}

fn table(metrics: &Metrics) -> Result<Table> {
    let mut table = Table::new(&[
        "on the machine's disk",
        "extents",
        "extant",
        "spread",
        "/ 1 extent",
        "qemu-nbd",
        "spread",
        "/ 1 extent",
        "kept, extant / qemu-nbd",
    ]);
    for load in &LOADS {
        for layout in Layout::ALL {
            let extents = metrics.get(&format!("{PLACE}, {layout}"), EXTENTS);
            let mut row = vec![
                format!("{}, {}, {layout}", load.name, load.unit),
                table::median(extents),
            ];
            for side in Side::BOTH {
                let name = name(load, layout, side);
                let rate = metrics.get(&name, load.unit);
                let one = self::name(load, Layout::Contiguous, side);
                row.push(table::median(rate));
                row.push(spread(rate));
                row.push(number(metrics.ratio(&name, &one, load.unit)?));
            }
            row.push(number(kept(metrics, load, layout)?));
            table.row(row);
        }
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use extant_testkit::workdir::Workdir;
    use extant_testkit::{require, requires};

    use super::*;

    #[test]
    fn kernel_finds_the_image_of_the_engine_in_as_many_extents() {
        const SIZE: u64 = 8 << 20;
        require!(requires::root(), requires::tool("filefrag"));
        let work = Workdir::new();
        for layout in Layout::ALL {
            let backing = work.path().join(format!("{layout}.ext4"));
            let file = fs::File::create_new(&backing).unwrap();
            file.set_len(device_bytes(SIZE)).unwrap();
            let directory = work.directory(&layout.to_string());
            let place = Mounted::at(layout, backing, directory, SIZE).unwrap();
            let extents = filefrag_count(&place.image);
            assert_eq!(fs::read(&place.image).unwrap(), vec![0xA5; SIZE as usize]);
            match layout {
                Layout::Contiguous => assert_eq!(extents, 1),
                Layout::Spaced | Layout::Scattered => assert!(extents > 2000, "{extents}"),
            }
        }
    }

    #[test]
    fn goal_is_the_load_in_which_we_keep_the_least_of_what_the_peer_keeps() {
        let mut outcome = Outcome::default();
        for load in &LOADS {
            for layout in Layout::ALL {
                for (side, many) in [(Side::Extant, 25.0), (Side::Qemu, 50.0)] {
                    let rate = match layout {
                        Layout::Contiguous => 100.0,
                        Layout::Scattered if load.name == LOADS[4].name => many,
                        _ => 50.0,
                    };
                    let name = name(load, layout, side);
                    outcome.metrics.record(&name, load.unit, "", rate);
                }
            }
        }
        evaluate(&mut outcome).unwrap();
        assert_eq!(outcome.goals[KEPT_GOAL], 0.5.into());
        let worst = format!("{}, {}", LOADS[4].name, Layout::Scattered);
        assert!(outcome.notes[0].ends_with(&worst));
        assert!(kept(&Metrics::default(), &LOADS[0], Layout::Spaced).is_err());
    }
}
