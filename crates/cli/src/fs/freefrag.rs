//! `extant fs freefrag`: the output of e2freefrag(8).

use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use extant_space::{ByteSize, Error, ErrorKind, Result};
use serde::Serialize;

use crate::arguments::parse_size;
use crate::fs_image::Image;
use crate::print;

/// Print how fragmented the free space of an image is.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant fs freefrag disk.img
  extant fs freefrag --chunk 1MiB disk.img        how many free and aligned pieces of 1 MiB there are
  extant fs freefrag --json disk.img | jq .largest_bytes")]
pub struct FreefragArgs {
    /// The image, disk or NBD export (its URI)
    pub image: PathBuf,

    /// Count free chunks of this size as well: a power of two, at least a block
    #[arg(long, short, value_name = "SIZE", value_parser = parse_size)]
    pub chunk: Option<ByteSize>,

    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct FreeSpace {
    image: String,
    block_bytes: u64,
    blocks: u64,
    free_blocks: u64,
    runs: u64,
    smallest_bytes: u64,
    largest_bytes: u64,
    mean_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    chunks: Option<Chunks>,
    histogram: Vec<Bucket>,
}

#[derive(Debug, Serialize)]
struct Chunks {
    chunk_bytes: u64,
    chunks: u64,
    free_chunks: u64,
}

/// Runs from `from_bytes` up to twice as long.
#[derive(Clone, Debug, Serialize)]
struct Bucket {
    from_bytes: u64,
    runs: u64,
    blocks: u64,
}

/// Prints the information.
pub(super) fn run(args: &FreefragArgs) -> Result<ExitCode> {
    let image = Image::look(&args.image)?;
    let free = measure(&image, args.chunk)?;
    Ok(if args.json {
        print::json(&free)
    } else {
        print::text(free.describe())
    })
}

/// Counts the free runs, and free chunks of a size where one is given.
pub(super) fn measure(image: &Image, chunk: Option<ByteSize>) -> Result<FreeSpace> {
    let superblock = image.filesystem().superblock();
    let layout = superblock.layout();
    let block_bytes = u64::from(layout.block_bytes());
    let chunk_blocks = match chunk {
        Some(size) if !size.0.is_power_of_two() || size.0 < block_bytes => {
            return Err(Error::new(ErrorKind::InvalidArgument).detail(format!(
                "a chunk of {size} is no power of two of at least a block ({})",
                ByteSize(block_bytes)
            )));
        }
        Some(size) => Some(size.0 / block_bytes),
        None => None,
    };
    let mut buckets = [(0, 0); 64];
    let mut free = FreeSpace {
        image: image.path().to_string_lossy().into_owned(),
        block_bytes,
        blocks: layout.blocks(),
        ..FreeSpace::default()
    };
    let mut smallest = u64::MAX;
    let mut free_chunks = 0;
    let found = image.filesystem().for_each_free_run(&mut |run| {
        let length = run.end - run.start;
        free.free_blocks += length;
        free.runs += 1;
        smallest = smallest.min(length);
        free.largest_bytes = free.largest_bytes.max(length * block_bytes);
        let bucket = &mut buckets[length.ilog2() as usize];
        *bucket = (bucket.0 + 1, bucket.1 + length);
        if let Some(chunk) = chunk_blocks {
            let whole = (run.end / chunk).saturating_sub(run.start.div_ceil(chunk));
            free_chunks += whole;
        }
        ControlFlow::Continue(())
    });
    found.map_err(|error| error.at(image.path()))?;
    let free_bytes = free.free_blocks * block_bytes;
    if let Some(mean) = free_bytes.checked_div(free.runs) {
        free.smallest_bytes = smallest * block_bytes;
        free.mean_bytes = mean;
    }
    free.chunks = chunk_blocks.map(|chunk| Chunks {
        chunk_bytes: chunk * block_bytes,
        chunks: layout.blocks().div_ceil(chunk),
        free_chunks,
    });
    free.histogram = buckets
        .iter()
        .enumerate()
        .filter(|(_, (runs, _))| *runs > 0)
        .map(|(order, &(runs, blocks))| Bucket {
            from_bytes: block_bytes << order,
            runs,
            blocks,
        })
        .collect();
    Ok(free)
}

impl FreeSpace {
    pub(super) fn describe(&self) -> String {
        let share = |part: u64, all: u64| part as f64 * 100.0 / all.max(1) as f64;
        let mut out = format!(
            "Device: {}\nBlocksize: {} bytes\nTotal blocks: {}\nFree blocks: {} ({:.1}%)\n\n",
            self.image,
            self.block_bytes,
            self.blocks,
            self.free_blocks,
            share(self.free_blocks, self.blocks)
        );
        if let Some(chunks) = &self.chunks {
            let _ = write!(
                out,
                "Chunksize: {} bytes ({} blocks)\nTotal chunks: {}\nFree chunks: {} ({:.1}%)\n\n",
                chunks.chunk_bytes,
                chunks.chunk_bytes / self.block_bytes,
                chunks.chunks,
                chunks.free_chunks,
                share(chunks.free_chunks, chunks.chunks)
            );
        }
        let _ = write!(
            out,
            "Min. free extent: {} KB\nMax. free extent: {} KB\nAvg. free extent: {} KB\nNum. free extent: {}\n\n\
             HISTOGRAM OF FREE EXTENT SIZES:\n\
             Extent Size Range :  Free extents   Free Blocks  Percent",
            self.smallest_bytes / 1024,
            self.largest_bytes / 1024,
            // Rounded to whole blocks first, as in e2freefrag.
            self.free_blocks / self.runs.max(1) * self.block_bytes / 1024,
            self.runs,
        );
        for bucket in &self.histogram {
            let _ = write!(
                out,
                "\n{}-  :  {:>12}  {:>12}  {:>6.2}%",
                span(bucket.from_bytes),
                bucket.runs,
                bucket.blocks,
                share(bucket.blocks, self.free_blocks)
            );
        }
        out
    }
}

/// `   64K...  128K`: from a power of two from 1 KiB up to its double, in one unit.
fn span(from_bytes: u64) -> String {
    let power = ((from_bytes.ilog2() - 10) / 10).min(4);
    let unit = ["K", "M", "G", "T", "P"][power as usize];
    let from = from_bytes >> (10 + 10 * power);
    format!("{from:>5}{unit}...{:>5}{unit}", 2 * from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_short_from_kib_to_pib() {
        for (bytes, text) in [
            (1 << 10, "    1K...    2K"),
            (512 << 10, "  512K... 1024K"),
            (1 << 20, "    1M...    2M"),
            (1 << 42, "    4T...    8T"),
            (1 << 61, " 2048P... 4096P"),
        ] {
            assert_eq!(span(bytes), text);
        }
    }
}
