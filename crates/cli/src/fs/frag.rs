//! `extant fs frag`: the report of `e4defrag -c`, for a file system that is not mounted.
//!
//! One pass over the inode tables in their order, while the kernel's tool opens every file: only
//! the names of the worst files, and of a given directory, are looked up. A file with several names
//! is counted once.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use extant_ext4::{FileType, FollowLast, FoundInode, InodeNumber};
use extant_ondisk::ext4::Layout;
use extant_space::{CancelToken, MapSummary, Result};
use serde::Serialize;

use crate::fs_image::Image;
use crate::fs_image::names::escaped;
use crate::fs_image::walk::scan_names;
use crate::map::column;
use crate::print;

/// Columns of a path in the table.
const PATH_COLUMNS: usize = 44;

/// Print how fragmented the files of an image are.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant fs frag disk.img
  extant fs frag disk.img /var/lib/mysql
  extant fs frag --top 100 --json disk.img | jq '.worst[].path'

now/best: extents that a file has, and the fewest that it could have. The score of a file or of
all of them: 0 to 30 no problem, 31 to 55 a little fragmented, from 56 up needs defragmentation.")]
pub struct FragArgs {
    /// The image, disk or NBD export (its URI)
    pub image: PathBuf,

    /// A file in it, or a directory for everything below
    #[arg(default_value = "/")]
    pub path: PathBuf,

    /// Print this many files, the worst first
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    pub top: usize,

    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
struct Fragmentation {
    image: String,
    path: String,
    files: u64,
    total: MapSummary,
    worst: Vec<Shown>,
}

#[derive(Serialize)]
struct Shown {
    path: String,
    inode: u32,
    #[serde(flatten)]
    map: MapSummary,
}

/// A file, in the order of its score; of equals the one with more extents is worse.
struct Scored {
    inode: InodeNumber,
    score: f32,
    map: MapSummary,
}

/// Measures.
pub(super) fn run(args: &FragArgs, cancel: &CancelToken) -> Result<ExitCode> {
    let image = Image::look(&args.image)?;
    let root = image.resolve(&args.path, FollowLast::Yes)?;
    let path = args.path.as_os_str().as_encoded_bytes();
    let is_all = root.number() == InodeNumber::ROOT;
    let mut wanted = HashSet::new();
    if !is_all {
        scan_names(&image, &root, path, &mut |inode, _| {
            cancel.check()?;
            wanted.insert(inode);
            Ok(ControlFlow::Continue(()))
        })?;
    }
    let (total, worst) = measure(&image, args.top, cancel, &|inode| {
        is_all || wanted.contains(&inode)
    })?;

    let mut missing: HashSet<InodeNumber> = worst.iter().map(|file| file.inode).collect();
    let mut paths: HashMap<InodeNumber, Vec<u8>> = HashMap::new();
    if !missing.is_empty() {
        scan_names(&image, &root, path, &mut |inode, path| {
            cancel.check()?;
            if missing.remove(&inode) {
                paths.insert(inode, path.to_vec());
            }
            Ok(if missing.is_empty() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            })
        })?;
    }
    let worst = worst.into_iter().map(|file| Shown {
        path: match paths.get(&file.inode) {
            Some(path) => String::from_utf8_lossy(path).into_owned(),
            // In use, and no directory has its name.
            None => format!("<inode {}>", file.inode),
        },
        inode: file.inode.0,
        map: file.map,
    });
    let found = Fragmentation {
        image: args.image.to_string_lossy().into_owned(),
        path: args.path.to_string_lossy().into_owned(),
        files: total.files(),
        worst: worst.collect(),
        total,
    };
    Ok(if args.json {
        print::json(&found)
    } else {
        print::text(found.describe())
    })
}

/// The figures of all files that are `wanted`, and the worst of them.
fn measure(
    image: &Image,
    top: usize,
    cancel: &CancelToken,
    wanted: &dyn Fn(InodeNumber) -> bool,
) -> Result<(MapSummary, Vec<Scored>)> {
    let filesystem = image.filesystem();
    let superblock = filesystem.superblock();
    let empty = image.summary();
    let mut total = empty.clone();
    let mut worst: BTreeSet<Scored> = BTreeSet::new();
    let mut add = |found: FoundInode<'_>| -> Result<()> {
        let is_own = found.number < superblock.layout().first_inode()
            || superblock.orphan_file() == Some(found.number);
        if is_own || !is_counted(&found, superblock.layout()) || !wanted(found.number) {
            return Ok(());
        }
        let mut map = empty.clone();
        found.for_each_extent(&mut |extent| {
            map.add(&extent);
            ControlFlow::Continue(())
        })?;
        let Some(score) = map.fragmentation_score() else {
            return Ok(());
        };
        total.merge(&map);
        worst.insert(Scored {
            inode: found.number,
            score,
            map,
        });
        if worst.len() > top {
            worst.pop_last();
        }
        Ok(())
    };
    let mut added = Ok(());
    let visited = filesystem.for_each_inode(&mut |found| {
        added = cancel.check().and(found).and_then(&mut add);
        match added {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    });
    visited.and(added).map_err(|error| error.at(image.path()))?;
    Ok((total, worst.into_iter().collect()))
}

/// Regular files with a name and a size, as e4defrag takes them.
fn is_counted(found: &FoundInode<'_>, layout: &Layout) -> bool {
    let inode = &found.inode;
    inode.mode().file_type() == Some(FileType::Regular)
        && inode.links() > 0
        && inode.size_bytes(layout) > 0
}

impl Fragmentation {
    fn describe(&self) -> String {
        let mut out = format!(
            "{:<PATH_COLUMNS$} {:>12} {:>14}",
            "<Fragmented files>", "now/best", "size/ext"
        );
        for (at, file) in self.worst.iter().enumerate() {
            let name = format!("{}. {}", at + 1, escaped(file.path.as_bytes()));
            let _ = write!(
                out,
                "\n{} {:>12} {:>11} KB",
                column(&name, PATH_COLUMNS),
                format!("{}/{}", file.map.extents(), file.map.best_extents()),
                file.map.mean_extent_bytes() / 1024
            );
        }
        let total = &self.total;
        let score = total.fragmentation_score().unwrap_or(0.0);
        let _ = write!(
            out,
            "\n\n {:<40}{}/{}\n {:<40}{} KB\n {:<40}{score:.0}\n \
             [0-30 no problem: 31-55 a little bit fragmented: 56- needs defrag]\n {} files: {}",
            "Total/best extents",
            total.extents(),
            total.best_extents(),
            "Average size per extent",
            total.mean_extent_bytes() / 1024,
            "Fragmentation score",
            self.files,
            total
                .fragmentation()
                .unwrap_or("nothing that could be fragmented"),
        );
        out
    }
}

impl Ord for Scored {
    /// The worst first.
    fn cmp(&self, other: &Self) -> Ordering {
        let worse = other.score.total_cmp(&self.score);
        worse
            .then_with(|| other.map.extents().cmp(&self.map.extents()))
            .then_with(|| self.inode.cmp(&other.inode))
    }
}

impl PartialOrd for Scored {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Scored {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Scored {}
