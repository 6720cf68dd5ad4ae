//! Making the guest's directory: `root` (userland, modules, QEMU), `vmlinux`, `initrd`.
//!
//! Debian's kernel is a compressed image in a wrapper for boot loaders. QEMU starts the
//! ELF file inside at once, without firmware that would take seconds under translation.
//! The first file system holds busybox and the few modules that reach the host's directories.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::root;
use crate::command::{run, text, tool};
use crate::debian::Apt;
use crate::lab::Result;

const SUITE: &str = "trixie";
const BACKPORTS: &str = "trixie-backports";
const KERNEL: &str = "linux-image-amd64";

/// Packages for tests in the guest. QEMU is not for the guest, but needs the same libraries.
const USERLAND: [&str; 14] = [
    "btrfs-progs",
    "busybox-static",
    "e2fsprogs",
    "fio",
    "kmod",
    "lvm2",
    "mdadm",
    "mount",
    "nbd-client",
    "python3",
    "qemu-utils",
    "util-linux",
    "xfsprogs",
    "qemu-system-x86",
];

/// Modules for mounting a share with an overlay.
const BOOT_MODULES: [&str; 3] = ["9p", "9pnet_virtio", "overlay"];

const INIT: &str = include_str!("init.sh");

/// Compressed forms of the kernel: first bytes, and the program that unpacks them.
const PAYLOADS: [(&[u8], &str); 3] = [
    (&[0x28, 0xb5, 0x2f, 0xfd], "zstd"),
    (&[0xfd, b'7', b'z', b'X', b'Z', 0], "xz"),
    (&[0x1f, 0x8b, 0x08], "gzip"),
];

pub(super) fn make(lab: &Path) -> Result<()> {
    let lists = lab.join("apt");
    let apt = Apt::new(lists.clone(), &[SUITE, BACKPORTS])?;
    let root = root(lab);
    run(tool("mmdebstrap")
        .args(["--variant=minbase", "--mode=root"])
        .arg("--aptopt=APT::Install-Recommends \"false\"")
        .arg(format!("--aptopt=APT::Default-Release \"{BACKPORTS}\""))
        .args(
            ["doc", "man", "locale", "info"]
                .map(|directory| format!("--dpkgopt=path-exclude=/usr/share/{directory}/*")),
        )
        .arg(format!("--include={}", USERLAND.join(",")))
        .arg(SUITE)
        .args([&root, &apt.sources()]))?;

    // The package of this name only depends on those with the files, named by version.
    let name = apt
        .depends(KERNEL, BACKPORTS)?
        .into_iter()
        .find_map(|name| name.strip_prefix("linux-image-").map(str::to_owned))
        .ok_or("no kernel among the dependencies of its package")?;
    let parts = ["binary", "modules"].map(|part| format!("linux-{part}-{name}"));
    apt.unpack(&parts, BACKPORTS, &root)?;
    fs::remove_dir_all(lists)?;

    let modules = only_entry(&root.join("usr/lib/modules"))?;
    run(tool("depmod")
        .arg("-b")
        .arg(root.join("usr"))
        .arg(file_name(&modules)))?;
    unwrap_kernel(&modules.join("vmlinuz"), &lab.join("vmlinux"))?;
    make_initrd(&root, &modules, &lab.join("initrd"))
}

/// Finds the compressed kernel in `wrapped`: the place where one of the programs unpacks
/// an ELF file. Data behind the kernel makes them print a warning at the end.
fn unwrap_kernel(wrapped: &Path, kernel: &Path) -> Result<()> {
    let bytes = fs::read(wrapped)?;
    let payload = kernel.with_extension("payload");
    for (magic, program) in PAYLOADS {
        let places = bytes.windows(magic.len()).enumerate();
        for (place, _) in places.filter(|(_, window)| *window == magic) {
            fs::write(&payload, &bytes[place..])?;
            tool(program)
                .arg("-dc")
                .stdin(File::open(&payload)?)
                .stdout(File::create(kernel)?)
                .stderr(Stdio::null())
                .status()?;
            let mut first = Vec::new();
            File::open(kernel)?.take(4).read_to_end(&mut first)?;
            if first == b"\x7fELF" {
                return Ok(fs::remove_file(&payload)?);
            }
        }
    }
    Err(format!("no kernel found in {}", wrapped.display()).into())
}

fn make_initrd(root: &Path, modules: &Path, initrd: &Path) -> Result<()> {
    let tree = initrd.with_extension("tree");
    for directory in [
        "bin",
        "dev",
        "layer",
        "lib/modules",
        "lower",
        "proc",
        "root",
        "sys",
    ] {
        fs::create_dir_all(tree.join(directory))?;
    }
    fs::copy(root.join("usr/bin/busybox"), tree.join("bin/busybox"))?;
    fs::write(tree.join("init"), INIT)?;
    fs::set_permissions(tree.join("init"), Permissions::from_mode(0o755))?;

    let mut names = String::new();
    for module in boot_modules(root, modules)? {
        let name = file_name(&module);
        let name = name.to_string_lossy();
        let plain = name.trim_end_matches(".xz");
        if plain == name {
            fs::copy(&module, tree.join("lib/modules").join(plain))?;
        } else {
            let unpacked = run(tool("xz").arg("-dc").arg(&module))?.stdout;
            fs::write(tree.join("lib/modules").join(plain), unpacked)?;
        }
        names.push_str(plain);
        names.push('\n');
    }
    fs::write(tree.join("modules"), names)?;

    let list = text(tool("find").arg(".").current_dir(&tree))?;
    let mut cpio = tool("cpio")
        .args(["--create", "--format=newc", "--quiet"])
        .current_dir(&tree)
        .stdin(Stdio::piped())
        .stdout(File::create(initrd)?)
        .spawn()?;
    let mut input = cpio.stdin.take().expect("piped");
    input.write_all(list.as_bytes())?;
    drop(input);
    if !cpio.wait()?.success() {
        return Err("cpio failed".into());
    }
    Ok(fs::remove_dir_all(tree)?)
}

/// The files to load, each after those it depends on.
fn boot_modules(root: &Path, modules: &Path) -> Result<Vec<PathBuf>> {
    let mut seen = BTreeSet::new();
    let mut ordered = Vec::new();
    for name in BOOT_MODULES {
        let mut command = tool("modprobe");
        command.arg("-d").arg(root.join("usr")).arg("-S");
        command
            .arg(file_name(modules))
            .args(["--show-depends", name]);
        for line in text(&mut command)?.lines() {
            // Others are built in.
            let Some(file) = line.strip_prefix("insmod ") else {
                continue;
            };
            let file = PathBuf::from(file.trim_end());
            if seen.insert(file.clone()) {
                ordered.push(file);
            }
        }
    }
    Ok(ordered)
}

fn only_entry(directory: &Path) -> Result<PathBuf> {
    let mut entries = fs::read_dir(directory)?;
    match (entries.next(), entries.next()) {
        (Some(entry), None) => Ok(entry?.path()),
        _ => Err(format!("not one kernel in {}", directory.display()).into()),
    }
}

fn file_name(path: &Path) -> &OsStr {
    path.file_name()
        .expect("a path below the guest's directory")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_is_found_behind_false_beginnings() {
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("inner");
        fs::write(&inner, b"\x7fELF the kernel").unwrap();
        let packed = run(tool("gzip").arg("-c").arg(&inner)).unwrap().stdout;
        let mut wrapped = b"loader \x28\xb5\x2f\xfd \x1f\x8b\x08 ".to_vec();
        wrapped.extend(packed);
        wrapped.extend(b"more");
        let (image, kernel) = (
            directory.path().join("image"),
            directory.path().join("vmlinux"),
        );
        fs::write(&image, wrapped).unwrap();
        unwrap_kernel(&image, &kernel).unwrap();
        assert_eq!(fs::read(&kernel).unwrap(), b"\x7fELF the kernel");

        fs::write(&image, b"nothing").unwrap();
        assert!(unwrap_kernel(&image, &kernel).is_err());
    }
}
