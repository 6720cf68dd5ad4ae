//! `extant fs df`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use extant_space::{ByteSize, Result};
use serde::Serialize;

use crate::fs_image::Image;
use crate::fs_image::names::escaped;
use crate::print;

/// Print how full an image is, as df(1) does for a mounted one.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant fs df disk.img
  extant fs df -h disk.img
  extant fs df -i disk.img

Avail is the free space without the blocks reserved for root.")]
#[command(disable_help_flag = true)]
pub struct DfArgs {
    /// Images or disks
    #[arg(required = true)]
    pub images: Vec<PathBuf>,

    /// Sizes in units that people read
    #[arg(long, short = 'h')]
    pub human_readable: bool,

    /// Inodes instead of blocks
    #[arg(long, short)]
    pub inodes: bool,

    /// Print one JSON document, with bytes and inodes
    #[arg(long)]
    pub json: bool,

    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    pub help: Option<bool>,
}

#[derive(Serialize)]
struct Usage {
    image: String,
    label: String,
    uuid: String,
    block_bytes: u32,
    size_bytes: u64,
    used_bytes: u64,
    free_bytes: u64,
    available_bytes: u64,
    inodes: u32,
    used_inodes: u32,
    free_inodes: u32,
}

/// Prints the information.
pub(super) fn run(args: &DfArgs) -> Result<ExitCode> {
    let usages: Vec<Usage> = args
        .images
        .iter()
        .map(|path| usage(path))
        .collect::<Result<_>>()?;
    if args.json {
        return Ok(print::json(&serde_json::json!({ "filesystems": usages })));
    }
    let size = |bytes: u64| {
        if args.human_readable {
            ByteSize(bytes).to_string()
        } else {
            bytes.div_ceil(1024).to_string()
        }
    };
    let heading = match (args.inodes, args.human_readable) {
        (true, _) => ["Image", "Inodes", "IUsed", "IFree", "IUse%"],
        (false, true) => ["Image", "Size", "Used", "Avail", "Use%"],
        (false, false) => ["Image", "1K-blocks", "Used", "Available", "Use%"],
    };
    let mut rows = vec![heading.map(str::to_owned)];
    for usage in &usages {
        let (used, rest) = if args.inodes {
            (usage.used_inodes.into(), usage.free_inodes.into())
        } else {
            (usage.used_bytes, usage.available_bytes)
        };
        let figures = if args.inodes {
            [usage.inodes, usage.used_inodes, usage.free_inodes].map(|n| n.to_string())
        } else {
            [usage.size_bytes, usage.used_bytes, usage.available_bytes].map(size)
        };
        let [all, taken, left] = figures;
        rows.push([usage.image.clone(), all, taken, left, percent(used, rest)]);
    }
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..5).map(width).collect();
    let lines: Vec<String> = rows
        .iter()
        .map(|row| {
            let [image, all, used, left, share] = row;
            format!(
                "{image:<0$} {all:>1$} {used:>2$} {left:>3$} {share:>4$}",
                widths[0], widths[1], widths[2], widths[3], widths[4]
            )
        })
        .collect();
    Ok(print::text(lines.join("\n")))
}

/// Used of used and available, rounded up, as in df.
fn percent(used: u64, rest: u64) -> String {
    match used + rest {
        0 => "-".to_owned(),
        all => format!("{}%", (u128::from(used) * 100).div_ceil(all.into())),
    }
}

fn usage(path: &Path) -> Result<Usage> {
    let image = Image::look(path)?;
    let found = image.filesystem().statistics();
    let bytes = |blocks: u64| blocks * u64::from(found.block_bytes);
    let label = found
        .label
        .split(|&byte| byte == 0)
        .next()
        .unwrap_or_default();
    Ok(Usage {
        image: path.to_string_lossy().into_owned(),
        label: escaped(label),
        uuid: uuid_text(&found.uuid),
        block_bytes: found.block_bytes,
        size_bytes: bytes(found.blocks),
        used_bytes: bytes(found.blocks.saturating_sub(found.free_blocks)),
        free_bytes: bytes(found.free_blocks),
        available_bytes: bytes(found.available_blocks),
        inodes: found.inodes,
        used_inodes: found.inodes - found.free_inodes,
        free_inodes: found.free_inodes,
    })
}

/// `c9883d68-72cf-4945-9e78-8a0b02394ddb`.
pub(super) fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = String::new();
    for (at, byte) in uuid.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}
