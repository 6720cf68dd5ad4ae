//! `-o remount`: the allocator's options of a mount, by a call that its server answers.
//!
//! The kernel passes no remount on to a FUSE server. What the kernel itself can change (`ro`,
//! `noexec`, ...) is mount(8)'s, which reads those in force first.

use std::fs::File;
use std::path::Path;

use extant_mount::AllocatorOptions;
use extant_space::{Error, ErrorKind, Result};
use extant_sys::mounted;

use super::MountArgs;

/// Result of `-o remount`, if requested.
pub(super) fn wanted(args: &MountArgs) -> Option<Result<()>> {
    let list = args.options.join(",");
    is_wanted(&list).then(|| {
        let directory = args.directory.as_ref().unwrap_or(&args.image);
        let (options, others) = AllocatorOptions::for_remount(&list)?;
        match others.first() {
            Some(other) => Err(Error::new(ErrorKind::InvalidArgument)
                .detail(format!("mount option `{other}` cannot be changed here"))
                .advice("mount -o remount,... changes those of the kernel")),
            None => change(directory, &options),
        }
    })
}

/// Whether a list of options asks for a remount.
pub(super) fn is_wanted(list: &str) -> bool {
    list.split(',').any(|word| word == "remount")
}

/// Changes the options of the allocator on a mount.
pub(super) fn change(directory: &Path, options: &AllocatorOptions) -> Result<()> {
    let at = |error: std::io::Error| Error::from(error).at(directory).during("remount");
    let file = File::open(directory).map_err(at)?;
    let detail = match mounted::probe(&file).map_err(at)? {
        Some(probe) if probe.version >= 2 => {
            mounted::allocator(&file, options.to_call()).map_err(at)?;
            return Ok(());
        }
        Some(_) => "the server of this mount is older than this program",
        None => "not on a mount of extant mount",
    };
    Err(Error::new(ErrorKind::Unsupported)
        .at(directory)
        .detail(detail))
}
