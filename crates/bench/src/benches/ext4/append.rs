//! The fragmentation test of "mballoc scalability" (docs/background.md): 64 files, appended 4 KiB
//! at a time round-robin, to 64 MiB each.

use anyhow::Result;
use extant_space::{ByteRange, FallocateMode, SpaceFile};
use extant_testkit::oracle::e4defrag;
use extant_testkit::scratch::{LoopDevice, Mount};
use extant_testkit::workdir::Workdir;
use rustix::fs::FallocateFlags;

use super::image::{Image, REGULAR, kernel};
use crate::bench::{Context, Outcome};
use crate::table::{Table, number};

/// Extents of a file, the mean.
pub(super) const EXTENTS: &str = "append-extents";
/// The score of e4defrag.
pub(super) const SCORE: &str = "append-score";

const DISK: u64 = 16 << 30;
const MEMORY: u64 = 2 << 30;
const FILES: u64 = 64;
const SIZE: u64 = 64 << 20;
const STEP: u64 = 4096;

pub(super) fn measure(context: &Context, outcome: &mut Outcome) -> Result<()> {
    let size = context.options.pick(SIZE, SIZE / 8);
    context.step("append: 64 files, the kernel");
    let scratch = kernel(DISK, MEMORY, &[]);
    let files = (0..FILES)
        .map(|number| std::fs::File::create_new(scratch.path().join(number.to_string())))
        .collect::<Result<Vec<_>, _>>()?;
    for start in (0..size).step_by(STEP as usize) {
        for file in &files {
            rustix::fs::fallocate(file, FallocateFlags::empty(), start, STEP)?;
        }
    }
    rustix::fs::sync();
    let theirs = e4defrag(scratch.path());
    drop(files);
    context.step("append: 64 files, the engine");
    let image = Image::new(DISK, MEMORY, &[])?;
    let engine = image.open()?;
    let root = engine.root()?;
    let files = (0..FILES)
        .map(|number| root.create(number.to_string().as_bytes(), &REGULAR)?.file())
        .collect::<Result<Vec<_>, _>>()?;
    for start in (0..size).step_by(STEP as usize) {
        for file in &files {
            file.fallocate(FallocateMode::Allocate, ByteRange::new(start, start + STEP))?;
        }
    }
    let mut extents = 0;
    for file in &files {
        extents += file.extents(ByteRange::new(0, size))?.len();
    }
    drop(files);
    drop(root);
    engine.close()?;
    // The kernel counts the extents, on its own mount.
    let work = Workdir::new();
    let device = LoopDevice::attach(&image.path);
    let mount = Mount::new("ext4", device.path(), &work.directory("checked"), "ro");
    let ours = e4defrag(mount.path());
    mount.unmount();
    let mut table = Table::new(&["append, 64 files", "extents/file", "e4defrag score"]);
    let each = extents as f64 / FILES as f64;
    let score = ours.score as f64;
    table.row(vec!["engine".into(), number(each), number(score)]);
    let theirs_each = theirs.extents as f64 / FILES as f64;
    let theirs_score = theirs.score as f64;
    table.row(vec![
        "kernel".into(),
        number(theirs_each),
        number(theirs_score),
    ]);
    outcome.tables.push(table);
    outcome.goals.insert(EXTENTS, each.into());
    outcome.goals.insert(SCORE, score.into());
    Ok(())
}
