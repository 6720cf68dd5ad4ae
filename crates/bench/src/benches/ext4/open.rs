//! Opening 64 TiB: half a million groups.
//!
//! Has to come first in a run: freed memory that is used again is not counted.

use std::time::Instant;

use anyhow::Result;
use extant_ext4::{Access, Filesystem, Options};

use super::image::Image;
use crate::bench::{Context, Outcome};
use crate::measured::mib;
use crate::memory::resident_bytes;
use crate::table::{Table, number};

/// Milliseconds.
pub(super) const TIME: &str = "open-64tib";
/// Memory it takes.
pub(super) const MEMORY: &str = "open-64tib-memory";

const SIZE: u64 = 64 << 40;
const STORE: u64 = 4 << 30;
const MILLIS: &str = "ms";

pub(super) fn measure(context: &Context, outcome: &mut Outcome) -> Result<()> {
    context.step("open: 64 TiB");
    // Backups of its descriptors alone would take 600 MiB.
    let image = Image::new(SIZE, STORE, &["-O", "sparse_super2"])?;
    let before = resident_bytes()?;
    let engine = image.open()?;
    let memory = resident_bytes()? - before;
    engine.close()?;
    for _ in 0..context.options.runs(5, 2) {
        for (name, access) in [
            ("read-only", Access::ReadOnly),
            ("read-write", Access::ReadWrite),
        ] {
            let options = Options {
                access,
                ..Options::default()
            };
            let device = image.device()?;
            let start = Instant::now();
            let engine = Filesystem::open(device, options)?;
            let millis = start.elapsed().as_secs_f64() * 1e3;
            outcome.metrics.record(name, MILLIS, "", millis);
            engine.close()?;
        }
    }
    let of = |name| Ok::<_, anyhow::Error>(outcome.metrics.of(name, MILLIS)?.median());
    let (read_only, read_write) = (of("read-only")?, of("read-write")?);
    let mut table = Table::new(&["open, 64 TiB", "read-only, ms", "read-write, ms", "MiB"]);
    let memory = mib(memory as u64);
    table.row(vec![
        "engine".to_owned(),
        number(read_only),
        number(read_write),
        number(memory),
    ]);
    outcome.tables.push(table);
    outcome.goals.insert(TIME, read_write.into());
    outcome.goals.insert(MEMORY, memory.into());
    Ok(())
}
