//! Control calls.

use std::io::Read;
use std::process::{Command, Stdio};

use extant_fuse::Operations;
use extant_fuse::operations::{Caller, Handle, NodeId, Result};
use extant_mount::ioctl::{
    self, Allocator, ExtentsPage, Fallocate, Probe, Statistics, allocator_bits, statistics_flags,
};
use extant_space::{Extent, ExtentState, FallocateMode};
use extant_testkit::require;
use rustix::fs::OFlags;
use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use crate::image::needs;
use crate::kernel::{Kernel, ROOT};

const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;
const SET_EXTENDED: u32 = 0x401C_5820;
const GET_VERSION: u32 = 0x8008_7601;
const GET_LABEL: u32 = 0x8100_9431;

fn fallocate(
    kernel: &Kernel,
    node: NodeId,
    mode: FallocateMode,
    offset: u64,
    length: u64,
) -> Result<u64> {
    let call = Fallocate::new(mode, offset, length).unwrap();
    let answer = kernel.ioctl(node, ioctl::FALLOCATE, call.as_bytes(), 32)?;
    Ok(Fallocate::read_from_bytes(&answer).unwrap().size)
}

fn page(kernel: &Kernel, node: NodeId, offset: u64, length: u64) -> ExtentsPage {
    let call = ExtentsPage::new(offset, length);
    let answer = kernel
        .ioctl(node, ioctl::EXTENTS, call.as_bytes(), 8192)
        .unwrap();
    ExtentsPage::read_from_bytes(&answer).unwrap()
}

fn states(kernel: &Kernel, node: NodeId) -> Vec<(u64, u64, ExtentState)> {
    let page = page(kernel, node, 0, u64::MAX);
    assert_eq!(page.length, 0);
    let extents = page
        .extents()
        .iter()
        .map(|extent| extent.to_extent().unwrap());
    let tell = |extent: Extent| (extent.logical.start(), extent.logical.end(), extent.state);
    extents.map(tell).collect()
}

#[test]
fn probe_reports_a_mount_of_extant() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(16);
    let request = kernel.request();
    let directory = kernel
        .volume
        .open_directory(&request, ROOT, OFlags::RDONLY)
        .unwrap();
    let answer = kernel
        .ioctl_on(ROOT, directory.handle, ioctl::PROBE, &[], 64)
        .unwrap();
    let probe = Probe::read_from_bytes(&answer).unwrap();
    assert_eq!((probe.magic, probe.version), (ioctl::MAGIC, ioctl::VERSION));
    assert_eq!(probe.server_pid, u64::from(std::process::id()));
    assert_eq!((probe.block_bytes, probe.flags), (4096, 0));
    let unknown = kernel.ioctl_on(ROOT, directory.handle, 0x8040_E4FF, &[], 64);
    assert_eq!(unknown, Err(Errno::NOTTY));
    kernel.end();
}

fn statistics(kernel: &Kernel) -> Statistics {
    let answer = kernel.ioctl_on(ROOT, Handle(0), ioctl::STATISTICS, &[], 448);
    Statistics::read_from_bytes(&answer.unwrap()).unwrap()
}

#[test]
fn statistics_count_what_was_done_and_are_for_every_user() {
    let [a, b] = needs();
    require!(a, b);
    let mut kernel = Kernel::new(16);
    let before = statistics(&kernel);
    let flags = statistics_flags::OPTIMIZE_SCAN
        | statistics_flags::RESERVATION
        | statistics_flags::TRANSACTIONS;
    assert_eq!(before.flags, flags);
    assert_eq!((before.allocator.reqs, before.allocator.groups), (0, 1));
    let (file, _) = kernel.create(ROOT, "a", 0o644).unwrap();
    for block in 0..10 {
        let mode = FallocateMode::Allocate;
        fallocate(&kernel, file.node, mode, block * 4096, 4096).unwrap();
    }
    kernel.volume.filesystem().sync().unwrap();
    kernel.user(1000, 1000);
    let after = statistics(&kernel);
    let (allocator, journal) = (after.allocator, after.journal);
    assert_eq!((allocator.reqs, allocator.success), (10, 10));
    assert_eq!(allocator.allocated, 10);
    assert_eq!(
        allocator.preallocated_hits + allocator.goal_hits + allocator.hits.iter().sum::<u64>(),
        10
    );
    assert_eq!(allocator.buddies_generated, 1);
    assert_eq!(journal.transactions, before.journal.transactions + 1);
    assert_eq!(journal.requested, before.journal.requested + 1);
    assert!(journal.handles > before.journal.handles + 10);
    assert!(after.cache.hits > before.cache.hits);
    assert_eq!(after.reserved, [0; 11]);
    // A structure of another size has another number.
    let room = kernel.ioctl_on(ROOT, Handle(0), ioctl::STATISTICS, &[], 440);
    assert_eq!(room, Err(Errno::INVAL));
    let other = ioctl::STATISTICS - (8 << 16);
    let other = kernel.ioctl_on(ROOT, Handle(0), other, &[], 440);
    assert_eq!(other, Err(Errno::NOTTY));
    kernel.user(0, 0);
    kernel.end();
}

#[test]
fn allocator_is_read_by_every_user_and_changed_by_root() {
    let [a, b] = needs();
    require!(a, b);
    let mut kernel = Kernel::new(16);
    let call = |kernel: &Kernel, set, mb_optimize_scan, reservation| {
        let call = Allocator {
            set,
            mb_optimize_scan,
            reservation,
            reserved: 0,
        };
        let answer = kernel.ioctl_on(ROOT, Handle(0), ioctl::ALLOCATOR, call.as_bytes(), 16)?;
        let answer = Allocator::read_from_bytes(&answer).unwrap();
        Ok((answer.set, answer.mb_optimize_scan, answer.reservation))
    };
    let (scan, reservation) = (allocator_bits::OPTIMIZE_SCAN, allocator_bits::RESERVATION);
    assert_eq!(call(&kernel, scan, 0, 7), Ok((0, 0, 1)));
    assert_eq!(call(&kernel, reservation, 7, 0), Ok((0, 0, 0)));
    let flags = statistics(&kernel).flags;
    assert_eq!(flags, statistics_flags::TRANSACTIONS);
    for (set, value) in [(scan, 2), (reservation, 2), (4, 1)] {
        assert_eq!(call(&kernel, set, value, value), Err(Errno::INVAL));
    }
    kernel.user(1000, 1000);
    assert_eq!(call(&kernel, 0, 9, 9), Ok((0, 0, 0)));
    assert_eq!(call(&kernel, scan, 1, 0), Err(Errno::PERM));
    kernel.user(0, 0);
    assert_eq!(call(&kernel, scan | reservation, 1, 1), Ok((0, 1, 1)));
    let short = kernel.ioctl_on(ROOT, Handle(0), ioctl::ALLOCATOR, &[0; 15], 16);
    assert_eq!(short, Err(Errno::INVAL));
    let reserved = [[0; 12].as_slice(), &[1, 0, 0, 0]].concat();
    let reserved = kernel.ioctl_on(ROOT, Handle(0), ioctl::ALLOCATOR, &reserved, 16);
    assert_eq!(reserved, Err(Errno::INVAL));
    kernel.end();
}

#[test]
fn flags_are_changed_by_the_owner_and_the_fixing_ones_by_root_alone() {
    let [a, b] = needs();
    require!(a, b);
    let mut kernel = Kernel::new(16);
    kernel.user(1000, 1000);
    let (file, opened) = kernel.create(ROOT, "a", 0o644).unwrap();
    let (node, handle) = (file.node, opened.handle);
    let set_as = |kernel: &mut Kernel, uid: u32, flags: u32| {
        kernel.user(uid, uid);
        let answer = kernel.ioctl_on(node, handle, SET_FLAGS, &u64::from(flags).to_ne_bytes(), 0);
        answer.map(drop)
    };
    let extended = |kernel: &mut Kernel, uid: u32, bits: u32| {
        kernel.user(uid, uid);
        let mut wanted = [0; 28];
        wanted[..4].copy_from_slice(&bits.to_ne_bytes());
        kernel
            .ioctl_on(node, handle, SET_EXTENDED, &wanted, 0)
            .map(drop)
    };
    let (extents, nodump, append, immutable) = (0x8_0000, 0x40, 0x20, 0x10);
    assert_eq!(set_as(&mut kernel, 1000, extents | nodump), Ok(()));
    assert_eq!(set_as(&mut kernel, 1001, extents), Err(Errno::PERM));
    assert_eq!(extended(&mut kernel, 1001, 0), Err(Errno::PERM));
    for fixed in [append, immutable] {
        let flags = extents | nodump | fixed;
        assert_eq!(set_as(&mut kernel, 1000, flags), Err(Errno::PERM));
        assert_eq!(set_as(&mut kernel, 0, flags), Ok(()));
        // Nor may the owner take it away.
        assert_eq!(set_as(&mut kernel, 1000, extents), Err(Errno::PERM));
        assert_eq!(extended(&mut kernel, 1000, 0x80), Err(Errno::PERM));
        assert_eq!(set_as(&mut kernel, 0, extents | nodump), Ok(()));
    }
    assert_eq!(extended(&mut kernel, 1000, 0x80 | 0x10), Err(Errno::PERM));
    assert_eq!(extended(&mut kernel, 1000, 0), Ok(()));
    kernel.user(0, 0);
    kernel.end();
}

#[test]
fn shutdown_is_for_administrators_and_reads_its_flags_from_the_caller() {
    let [a, b] = needs();
    require!(a, b);
    const SHUTDOWN: u32 = 0x8004_587D;
    let mut kernel = Kernel::new(16);
    let handle = kernel.create(ROOT, "a", 0o644).unwrap().1.handle;
    kernel.user(1000, 1000);
    let refused = kernel.ioctl_on(ROOT, handle, SHUTDOWN, &[], 4);
    assert_eq!(refused, Err(Errno::PERM));
    // Nor one whose capabilities are unknown, as there is no such process.
    kernel.user(0, 0);
    let refused = kernel.ioctl_on(ROOT, handle, SHUTDOWN, &[], 4);
    assert_eq!(refused, Err(Errno::PERM));
    // There is nothing at that address.
    kernel.caller.pid = std::process::id();
    let refused = kernel.ioctl_on(ROOT, handle, SHUTDOWN, &[], 4);
    assert_eq!(refused, Err(Errno::FAULT));
    kernel.create(ROOT, "b", 0o644).unwrap();
    kernel.end();
}

#[test]
fn fallocate_call_takes_every_mode() {
    let [a, b] = needs();
    require!(a, b);
    use ExtentState::{Unwritten, Written};
    let kernel = Kernel::new(16);
    let (file, _) = kernel.create(ROOT, "a", 0o644).unwrap();
    let node = file.node;
    kernel.write(node, 0, &[1; 4096]).unwrap();
    kernel.write(node, 4096, &[2; 4096]).unwrap();
    let run = |mode, offset, length| fallocate(&kernel, node, mode, offset, length);
    assert_eq!(run(FallocateMode::WriteZeroes, 8192, 4096), Ok(12_288));
    assert_eq!(states(&kernel, node), [(0, 12_288, Written)]);
    assert_eq!(run(FallocateMode::CollapseRange, 0, 4096), Ok(8192));
    assert_eq!(kernel.read(node, 0, 1), [2]);
    assert_eq!(run(FallocateMode::InsertRange, 4096, 4096), Ok(12_288));
    assert_eq!(
        states(&kernel, node),
        [(0, 4096, Written), (8192, 12_288, Written)]
    );
    assert_eq!(run(FallocateMode::ZeroRange, 0, 4096), Ok(12_288));
    assert_eq!(run(FallocateMode::PunchHole, 8192, 4096), Ok(12_288));
    assert_eq!(states(&kernel, node), [(0, 4096, Unwritten)]);
    assert_eq!(run(FallocateMode::Allocate, 4096, 20_000), Ok(24_096));
    assert_eq!(run(FallocateMode::AllocateKeepSize, 0, 40_960), Ok(24_096));
    assert_eq!(run(FallocateMode::UnshareRange, 0, 4096), Ok(24_096));
    assert_eq!(run(FallocateMode::CollapseRange, 0, 100), Err(Errno::INVAL));
    assert_eq!(
        run(FallocateMode::CollapseRange, 0, 1 << 20),
        Err(Errno::INVAL)
    );
    assert_eq!(run(FallocateMode::Allocate, u64::MAX, 1), Err(Errno::INVAL));
    assert_eq!(run(FallocateMode::Allocate, 1 << 50, 1), Err(Errno::FBIG));
    kernel.end();
}

#[test]
fn fallocate_call_wants_a_file_that_is_open_for_writing() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(16);
    let (file, opened) = kernel.create(ROOT, "a", 0o644).unwrap();
    let call = Fallocate::new(FallocateMode::WriteZeroes, 0, 4096).unwrap();
    let run = |handle, input: &[u8]| {
        let answer = kernel.ioctl_on(file.node, handle, ioctl::FALLOCATE, input, 32);
        answer.map(|_| ())
    };
    let read = kernel.open(file.node, OFlags::RDONLY).unwrap();
    assert_eq!(run(read.handle, call.as_bytes()), Err(Errno::BADF));
    let write = kernel.open(file.node, OFlags::WRONLY).unwrap();
    assert_eq!(run(write.handle, call.as_bytes()), Ok(()));
    assert_eq!(run(opened.handle, &call.as_bytes()[1..]), Err(Errno::INVAL));
    let unknown = Fallocate {
        mode: 0x400,
        ..call
    };
    assert_eq!(
        run(opened.handle, unknown.as_bytes()),
        Err(Errno::OPNOTSUPP)
    );
    let reserved = Fallocate {
        reserved: 1,
        ..call
    };
    assert_eq!(run(opened.handle, reserved.as_bytes()), Err(Errno::INVAL));
    kernel.end();
}

#[test]
fn fallocate_call_obeys_the_limit_of_the_caller() {
    let [a, b] = needs();
    require!(a, b);
    let mut kernel = Kernel::new(16);
    let (file, _) = kernel.create(ROOT, "a", 0o644).unwrap();
    // Blocks of 1024 bytes in bash, of 512 in dash: at most 64 KiB.
    let mut child = Command::new("sh")
        .args(["-c", "ulimit -f 64; echo ready; read line"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 6];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut ready)
        .unwrap();
    kernel.caller = Caller {
        pid: child.id(),
        ..kernel.caller
    };
    let mode = FallocateMode::WriteZeroes;
    let run = |kernel: &Kernel, length| fallocate(kernel, file.node, mode, 0, length);
    assert_eq!(run(&kernel, 1 << 20), Err(Errno::FBIG));
    assert_eq!(run(&kernel, 16 << 10), Ok(16 << 10));
    kernel.caller = Caller::default();
    assert_eq!(run(&kernel, 1 << 20), Ok(1 << 20));
    drop(child.stdin.take());
    child.wait().unwrap();
    kernel.end();
}

#[test]
fn extent_map_continues_across_pages() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(32);
    let (file, _) = kernel.create(ROOT, "a", 0o644).unwrap();
    let blocks = 600u64;
    for block in 0..blocks {
        kernel.write(file.node, block * 8192, &[1; 4096]).unwrap();
    }
    let (mut offset, mut length, mut found, mut pages) = (0, u64::MAX, Vec::new(), 0);
    while length > 0 {
        let page = page(&kernel, file.node, offset, length);
        found.extend(page.extents().iter().map(|extent| extent.logical));
        assert_eq!(page.size, (blocks - 1) * 8192 + 4096);
        (offset, length) = (page.offset, page.length);
        pages += 1;
    }
    assert_eq!(pages, 3);
    assert_eq!(
        found,
        (0..blocks).map(|block| block * 8192).collect::<Vec<_>>()
    );
    let cut = page(&kernel, file.node, 8192 + 100, 200);
    let one = cut.extents()[0];
    assert_eq!((cut.count, one.logical, one.length), (1, 8292, 200));
    assert_eq!(page(&kernel, file.node, 4096, 4096).count, 0);
    assert_eq!(page(&kernel, file.node, 0, 0).count, 0);
    kernel.end();
}

#[test]
fn flags_are_those_of_chattr() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(16);
    let (file, opened) = kernel.create(ROOT, "a", 0o644).unwrap();
    let get = |room| {
        let answer = kernel
            .ioctl_on(file.node, opened.handle, GET_FLAGS, &[], room)
            .unwrap();
        assert_eq!(answer.len(), 4);
        u32::from_ne_bytes(answer.try_into().unwrap())
    };
    let set = |flags: u32| {
        let (handle, bytes) = (opened.handle, flags.to_ne_bytes());
        kernel
            .ioctl_on(file.node, handle, SET_FLAGS, &bytes, 0)
            .map(|_| ())
    };
    let (extents, immutable, nodump) = (0x8_0000, 0x10, 0x40);
    assert_eq!(get(4), extents);
    assert_eq!(get(8), extents);
    assert_eq!(set(extents | nodump), Ok(()));
    assert_eq!(get(4), extents | nodump);
    assert_eq!(set(nodump), Err(Errno::OPNOTSUPP));
    assert_eq!(set(extents | immutable), Ok(()));
    let open = kernel.open(file.node, OFlags::WRONLY);
    assert_eq!(open, Err(Errno::PERM));
    assert_eq!(set(extents), Ok(()));
    let short = kernel.ioctl_on(file.node, opened.handle, SET_FLAGS, &[1], 0);
    assert_eq!(short, Err(Errno::INVAL));
    kernel.end();
}

#[test]
fn version_and_label_are_reported() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(16);
    let (file, _) = kernel.create(ROOT, "a", 0o644).unwrap();
    let version = kernel
        .ioctl_on(file.node, Handle(1), GET_VERSION, &[], 8)
        .unwrap();
    let version = u32::from_ne_bytes(version.try_into().unwrap());
    assert_eq!(u64::from(version), file.generation);
    let label = kernel
        .ioctl_on(file.node, Handle(1), GET_LABEL, &[], 256)
        .unwrap();
    assert_eq!(label.len(), 256);
    assert!(label.starts_with(b"volume\0"));
    kernel.end();
}
