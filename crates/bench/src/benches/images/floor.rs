//! The kernel alone: the random writes of [`load`] to raw images by fio, queue depth 64, without a
//! server.
//!
//! A server adds the cost of a client and a socket. If allocation, conversion and the loop device
//! take most of the processor time, the kernel's share bounds the ratio of two servers.

use std::fs;

use anyhow::Result;
use extant_testkit::command;

use super::ImageLocation;
use super::image::{Kind, Side};
use super::load::{self, RATE, WRITE_64};
use super::server::shown;
use crate::bench::{Context, Outcome, rounds};
use crate::fio::Fio;
use crate::table::{Table, number, spread};

const KINDS: [Kind; 3] = [Kind::raw("off"), Kind::raw("falloc"), Kind::raw("full")];

/// Takes the samples and shows them beside those of the servers, which were taken before.
pub(super) fn measure(
    context: &Context,
    places: &[ImageLocation],
    outcome: &mut Outcome,
) -> Result<()> {
    let samples: Vec<_> = places
        .iter()
        .flat_map(|place| KINDS.map(|kind| (place, kind)))
        .collect();
    for (round, at) in rounds(context.options.runs(3, 1), samples.len()) {
        let (place, kind) = samples[at];
        let name = name(place, kind);
        context.step(format!("round {}: {name}", round + 1));
        let file = place.path.join("image");
        command::run(&mut kind.create(context, Side::Extant, &file, place.size))?;
        context.settle();
        let fio = Fio::write("floor")
            .file(&file)
            .set("ioengine", "libaio")
            .set("rw", "randwrite")
            .set("bs", "4k")
            .set("iodepth", 64)
            .set("size", place.size)
            .set("time_based", 1)
            .set("runtime", context.options.pick(5, 1));
        let done = fio.run()?;
        let command = shown(context, &fio.command(), &file);
        outcome.metrics.record(&name, RATE, &command, done.iops);
        fs::remove_file(file)?;
    }
    let table = table(places, outcome)?;
    outcome.tables.push(table);
    Ok(())
}

fn table(places: &[ImageLocation], outcome: &Outcome) -> Result<Table> {
    let mut table = Table::new(&[
        "the kernel alone",
        "requests/s",
        "spread",
        "extant / it",
        "qemu-nbd / it",
    ]);
    for place in places {
        for kind in KINDS {
            let alone = name(place, kind);
            // With `--only` the servers may not have been measured.
            let share = |side| {
                let served = load::name(place, kind, &WRITE_64, side);
                let ratio = outcome.metrics.ratio(&served, &alone, RATE);
                ratio.map_or_else(|_| String::new(), number)
            };
            let metrics = outcome.metrics.of(&alone, RATE)?;
            table.row(vec![
                format!("{}, {kind}", place.name),
                number(metrics.median()),
                spread(Some(metrics)),
                share(Side::Extant),
                share(Side::Qemu),
            ]);
        }
    }
    Ok(table)
}

fn name(place: &ImageLocation, kind: Kind) -> String {
    format!("{}, {kind}, the kernel alone", place.name)
}
