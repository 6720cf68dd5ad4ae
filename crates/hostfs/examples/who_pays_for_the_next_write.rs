//! Shows which parts of a file an overwrite can use without allocation or conversion.
//!
//!     cargo run -p extant-hostfs --example who_pays_for_the_next_write -- FILE
//!
//! The extent map is streamed, so files with millions of extents need no memory.

#![forbid(unsafe_code)]

use std::ops::ControlFlow;
use std::path::Path;

use extant_hostfs::HostFile;
use extant_space::{ByteRange, ByteSize, ExtentState, Result, SpaceFile};

fn main() {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("usage: who_pays_for_the_next_write FILE");
        std::process::exit(2);
    };
    if let Err(error) = show(Path::new(&path)) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn show(path: &Path) -> Result<()> {
    let file = HostFile::open_read(path)?;
    let (mut nothing, mut conversion, mut allocation) = (0, 0, 0);
    file.for_each_extent(ByteRange::new(0, file.size()?), &mut |extent| {
        let bytes = extent.logical.len();
        match extent.state {
            _ if extent.is_extant() => nothing += bytes,
            ExtentState::Unwritten => conversion += bytes,
            // Holes, and written space that is shared with another file.
            ExtentState::Hole | ExtentState::Written => allocation += bytes,
        }
        ControlFlow::Continue(())
    })?;
    println!("{} cost nothing but the write", ByteSize(nothing));
    println!(
        "{} cost a conversion and a journal entry",
        ByteSize(conversion)
    );
    println!(
        "{} cost an allocation, and may fail with ENOSPC",
        ByteSize(allocation)
    );
    Ok(())
}
