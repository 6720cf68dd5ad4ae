//! Packages of the distribution that the kit needs.

/// The Debian packages behind every part of the kit, for `cargo xtask setup`.
///
/// Packages of the guest, QEMU included, are not in this list: [`guest`](crate::guest) fetches it
/// into a directory of its own.
pub const PACKAGES: &[&str] = &[
    // the checks of man pages and units
    "groff-base",
    "mandoc",
    "systemd",
    // extended attributes and access lists, as others set them
    "acl",
    "attr",
    // tables of partitions, as others read them
    "gdisk",
    // scratch, oracle
    "btrfs-progs",
    "coreutils",
    "e2fsprogs",
    "mount",
    "util-linux",
    "xfsprogs",
    // faulty, and mounts of our own: by themselves as root, and through fusermount3 otherwise
    "fuse3",
    // system calls that fail
    "strace",
    // programs at work inside a mount
    "diffutils",
    "git",
    "make",
    "stress-ng",
    "tar",
    // programs for comparisons with our mount, and for its measurement
    "fuse2fs",
    "sqlite3",
    // clients and servers of NBD
    "fio",
    "libnbd-bin",
    "nbd-server",
    "nbdkit",
    "python3",
    "python3-jsonschema",
    "python3-libnbd",
    "qemu-utils",
    // qemu-storage-daemon
    "qemu-system-common",
    // pools and volumes, as libvirt sees them
    "libvirt-clients",
    "libvirt-daemon",
    "libxml2-utils",
    // the module for Python: its types, its wheel in a fresh environment
    "binutils",
    "mypy",
    "python3-setuptools",
    "python3-venv",
    "python3-wheel",
    // images of a Ceph cluster, and the other programs for them
    "ceph-common",
    "ceph-mgr",
    "ceph-mon",
    "ceph-osd",
    "librbd1",
    "qemu-block-extra",
    // contrib
    "ansible-core",
    "perl",
    // pages in a browser, and the picture of cargo xtask screenshot
    "chromium",
    "pngquant",
    // cargo xtask instructions
    "valgrind",
    // cargo xtask fuzz: libFuzzer is C++
    "g++",
    // packages and their checks, signatures of a release: xtask's tests
    "debhelper",
    "dh-python",
    "dpkg-dev",
    "lintian",
    "openssh-client",
    "rpm",
    // newer, guest: fetching and unpacking
    "cpio",
    "debian-archive-keyring",
    "dpkg",
    "findutils",
    "kmod",
    "mmdebstrap",
    "xz-utils",
    "zstd",
];
