//! `-o remount`: the allocator's options of a mount, by a call that its server answers.
//!
//! The kernel passes no remount on to a FUSE server. What the kernel itself can change (`ro`,
//! `noexec`, ...) is mount(8)'s, which reads those in force first; it is refused where the server
//! would have to change as well.

use std::fs::File;
use std::path::Path;

use extant_mount::AllocatorOptions;
use extant_space::{Error, ErrorKind, Result};
use extant_sys::mounted::{self, probe_flags};
use extant_sys::mounts::Mount;

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

/// The options of a list that the kernel can change on a mount. Those that only the server could
/// change are refused.
pub(super) fn of_the_kernel(directory: &Path, list: &str) -> Result<extant_fuse::MountOptions> {
    let at = |error: std::io::Error| Error::from(error).at(directory).during("remount");
    let seen = Mount::at(directory).map_err(at)?;
    let in_force = seen.map(|mount| mount.options).unwrap_or_default();
    let options = extant_fuse::MountOptions::for_remount(list, &in_force)
        .map_err(|error| error.at(directory).during("remount"))?;
    let probe = mounted::probe(&File::open(directory).map_err(at)?).map_err(at)?;
    let is_fixed = probe.is_some_and(|probe| probe.flags & probe_flags::READ_ONLY != 0);
    if is_fixed && !options.is_read_only() {
        return Err(Error::new(ErrorKind::ReadOnly)
            .at(directory)
            .during("remount")
            .detail("its server takes no changes")
            .advice("unmount it, and mount it with rw"));
    }
    Ok(options)
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
