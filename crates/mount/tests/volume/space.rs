//! `fallocate` and holes, space kept for files that grow, and `fstrim`.

use extant_fuse::Operations;
use extant_fuse::operations::{Fallocate, Handle, NodeId, Result, Seek};
use extant_mount::ioctl;
use extant_space::{ByteRange, SpaceFile};
use extant_testkit::require;
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::image::needs;
use crate::kernel::{Kernel, ROOT};

fn fallocate(kernel: &Kernel, node: NodeId, mode: u32, offset: u64, length: u64) -> Result<()> {
    let fallocate = Fallocate {
        handle: Handle(1),
        mode: FallocateFlags::from_bits_retain(mode),
        offset,
        length,
    };
    kernel.volume.fallocate(&kernel.request(), node, &fallocate)
}

fn seek(kernel: &Kernel, node: NodeId, offset: u64, what: Seek) -> Result<u64> {
    kernel
        .volume
        .seek(&kernel.request(), node, Handle(1), offset, what)
}

#[test]
fn fallocate_takes_the_modes_that_the_kernel_passes_on() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(16);
    let (file, _) = kernel.create(ROOT, "a", 0o644).unwrap();
    let node = file.node;
    let state = |kernel: &Kernel| {
        let attributes = kernel.attributes(node);
        (attributes.size, attributes.sectors)
    };
    fallocate(&kernel, node, 0, 0, 8192).unwrap();
    assert_eq!(state(&kernel), (8192, 16));
    fallocate(&kernel, node, 1, 8192, 8192).unwrap();
    assert_eq!(state(&kernel), (8192, 32));
    kernel.write(node, 0, &[7; 8192]).unwrap();
    fallocate(&kernel, node, 3, 0, 4096).unwrap();
    assert_eq!(state(&kernel), (8192, 24));
    assert_eq!(kernel.read(node, 4095, 2), [0, 7]);
    fallocate(&kernel, node, 0x11, 4096, 1_000_000).unwrap();
    assert_eq!(state(&kernel).0, 8192);
    assert_eq!(kernel.read(node, 0, 10_000), [0; 8192]);
    fallocate(&kernel, node, 0x10, 0, 100_000).unwrap();
    assert_eq!(state(&kernel).0, 100_000);
    assert_eq!(fallocate(&kernel, node, 2, 0, 4096), Err(Errno::OPNOTSUPP));
    assert_eq!(
        fallocate(&kernel, node, 0x100, 0, 4096),
        Err(Errno::OPNOTSUPP)
    );
    assert_eq!(fallocate(&kernel, node, 0, 0, 0), Err(Errno::INVAL));
    assert_eq!(fallocate(&kernel, node, 0, 1 << 50, 1), Err(Errno::FBIG));
    assert_eq!(fallocate(&kernel, node, 0, 0, 1 << 30), Err(Errno::NOSPC));
    assert_eq!(fallocate(&kernel, ROOT, 0, 0, 4096), Err(Errno::ISDIR));
    kernel.end();
}

#[test]
fn fallocate_without_space_leaves_the_size() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(16);
    // Allocate, zero, and write zeroes, which the kernel passes on in a control call only.
    for mode in [0, 0x10, 0x80] {
        let (file, opened) = kernel.create(ROOT, &format!("{mode}"), 0o644).unwrap();
        kernel.write(file.node, 0, b"data").unwrap();
        let call = ioctl::Fallocate {
            mode,
            reserved: 0,
            offset: 0,
            length: 1 << 30,
            size: 0,
        };
        let (handle, command) = (opened.handle, ioctl::FALLOCATE);
        let done = match mode {
            0x80 => kernel
                .ioctl_on(file.node, handle, command, call.as_bytes(), 32)
                .map(drop),
            mode => fallocate(&kernel, file.node, mode, 0, 1 << 30),
        };
        assert_eq!(done, Err(Errno::NOSPC), "{mode:#x}");
        assert_eq!(kernel.attributes(file.node).size, 4, "{mode:#x}");
        kernel.unlink(ROOT, &format!("{mode}")).unwrap();
        kernel.volume.forget(file.node, 1);
    }
    let (file, _) = kernel.create(ROOT, "last", 0o644).unwrap();
    assert_eq!(
        fallocate(&kernel, file.node, 0, 0, 1 << 30),
        Err(Errno::NOSPC)
    );
    kernel.end();
}

#[test]
fn fallocate_by_others_than_root_takes_privileges() {
    let [a, b] = needs();
    require!(a, b);
    let mut kernel = Kernel::new(16);
    let (file, _) = kernel.create(ROOT, "a", 0o644).unwrap();
    kernel.chmod(file.node, 0o6777);
    fallocate(&kernel, file.node, 0, 0, 4096).unwrap();
    assert_eq!(kernel.attributes(file.node).mode & 0o7777, 0o6777);
    kernel.user(1000, 1000);
    fallocate(&kernel, file.node, 0, 0, 4096).unwrap();
    assert_eq!(kernel.attributes(file.node).mode & 0o7777, 0o777);
    kernel.end();
}

#[test]
fn seek_finds_data_and_holes_and_counts_unwritten_as_hole() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(16);
    let (file, _) = kernel.create(ROOT, "a", 0o644).unwrap();
    let node = file.node;
    assert_eq!(seek(&kernel, node, 0, Seek::Hole), Err(Errno::NXIO));
    // Hole, data, unwritten, data of half a block, and unwritten behind the end.
    kernel.write(node, 4096, &[1; 4096]).unwrap();
    fallocate(&kernel, node, 0, 8192, 4096).unwrap();
    kernel.write(node, 12_288, &[1; 100]).unwrap();
    fallocate(&kernel, node, 1, 16_384, 65_536).unwrap();
    let data = |at| seek(&kernel, node, at, Seek::Data);
    let hole = |at| seek(&kernel, node, at, Seek::Hole);
    assert_eq!((data(0), hole(0)), (Ok(4096), Ok(0)));
    assert_eq!((data(5000), hole(5000)), (Ok(5000), Ok(8192)));
    assert_eq!((data(8192), hole(9000)), (Ok(12_288), Ok(9000)));
    assert_eq!((data(12_387), hole(12_387)), (Ok(12_387), Ok(12_388)));
    assert_eq!(
        (data(12_388), hole(12_388)),
        (Err(Errno::NXIO), Err(Errno::NXIO))
    );
    kernel.end();
}

fn kept_blocks(kernel: &Kernel) -> u64 {
    kernel.volume.filesystem().statistics().kept_blocks
}

#[test]
fn closed_file_keeps_no_space_to_grow() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(64);
    let close = |node, handle| {
        let request = kernel.request();
        kernel.volume.release(&request, node, handle, OFlags::RDWR);
    };
    let (file, opened) = kernel.create(ROOT, "a", 0o644).unwrap();
    kernel.write(file.node, 0, &[1; 4096]).unwrap();
    let kept = kept_blocks(&kernel);
    assert!(kept > 0);
    let reader = kernel.open(file.node, OFlags::RDONLY).unwrap();
    let writer = kernel.open(file.node, OFlags::WRONLY).unwrap();
    close(file.node, opened.handle);
    close(file.node, reader.handle);
    assert_eq!(kept_blocks(&kernel), kept);
    close(file.node, writer.handle);
    assert_eq!(kept_blocks(&kernel), 0);
    for number in 0..500 {
        let (file, opened) = kernel.create(ROOT, &format!("{number}"), 0o644).unwrap();
        kernel.write(file.node, 0, &[2; 4096]).unwrap();
        close(file.node, opened.handle);
    }
    assert_eq!(kernel.volume.known_nodes(), 501);
    // Of the directory, which has grown and is never closed.
    assert!(kept_blocks(&kernel) < 16, "{}", kept_blocks(&kernel));
    kernel.end();
}

#[test]
fn file_that_is_opened_for_each_append_stays_in_one_piece() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(64);
    let (file, opened) = kernel.create(ROOT, "log", 0o644).unwrap();
    let request = kernel.request();
    kernel
        .volume
        .release(&request, file.node, opened.handle, OFlags::RDWR);
    for at in 0..1000 {
        let opened = kernel.open(file.node, OFlags::WRONLY).unwrap();
        kernel.write(file.node, at * 4096, &[1; 4096]).unwrap();
        kernel
            .volume
            .release(&request, file.node, opened.handle, OFlags::WRONLY);
    }
    let number = extant_ext4::InodeNumber(file.node.0 as u32);
    let node = kernel.volume.filesystem().node(number).unwrap();
    let file = node.file().unwrap();
    let extents = file.extents(ByteRange::new(0, 4096 * 1000)).unwrap();
    assert_eq!(extents.len(), 1, "{extents:?}");
    drop((file, node));
    kernel.end();
}

/// `FITRIM`: start, length, shortest run; the length that was trimmed.
fn trim(kernel: &Kernel, range: [u64; 3]) -> Result<u64> {
    const FITRIM: u32 = 0xC018_5879;
    let input: Vec<u8> = range.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let answer = kernel.ioctl_on(ROOT, Handle(1), FITRIM, &input, 24)?;
    let words: Vec<u64> = answer
        .as_chunks::<8>()
        .0
        .iter()
        .map(|word| u64::from_ne_bytes(*word))
        .collect();
    assert_eq!([words[0], words[2]], [range[0], range[2]]);
    Ok(words[1])
}

#[test]
fn trim_discards_free_space_for_permitted_users() {
    let [a, b] = needs();
    require!(a, b);
    let mut kernel = Kernel::new(16);
    let (file, _) = kernel.create(ROOT, "a", 0o644).unwrap();
    kernel.write(file.node, 0, &[7; 1 << 20]).unwrap();
    kernel.unlink(ROOT, "a").unwrap();
    kernel.volume.forget(file.node, 1);
    kernel.volume.sync_all(&kernel.request()).unwrap();
    let before = kernel.device.allocated();
    let free = kernel.volume.filesystem().statistics().free_blocks * 4096;
    assert_eq!(trim(&kernel, [0, u64::MAX, 0]), Ok(free));
    assert!(kernel.device.allocated() <= before - (1 << 20));
    assert_eq!(trim(&kernel, [0, u64::MAX, 128 << 20]), Ok(0));
    assert_eq!(trim(&kernel, [16 << 20, 4096, 0]), Err(Errno::INVAL));
    assert_eq!(trim(&kernel, [0, 100, 0]), Err(Errno::INVAL));
    kernel.user(54_321, 54_321);
    assert_eq!(trim(&kernel, [0, u64::MAX, 0]), Err(Errno::PERM));
    kernel.end();
}
