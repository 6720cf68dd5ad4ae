//! Memory of a machine by itself; calls with it: `ring/tests.rs`.

use std::os::unix::fs::FileExt;

use super::*;
use crate::call_list::{BLOCK, MACHINE_BASE, machine, shared};

#[test]
fn range_over_two_regions_has_a_part_in_each_and_one_outside_is_refused() {
    let memory = machine();
    let both = shared(&memory, &[(3 * BLOCK, 2 * BLOCK), (17 * BLOCK, BLOCK)]).unwrap();
    assert_eq!(both.rest().len(), 3);
    let mut bytes = vec![0; 3 * BLOCK];
    both.copy_to(&mut bytes);
    assert!(bytes == [[4; BLOCK], [5; BLOCK], [18; BLOCK]].concat());
    for outside in [
        (7 * BLOCK, BLOCK + 1),
        (12 * BLOCK, 1),
        (19 * BLOCK, 2 * BLOCK),
    ] {
        assert!(shared(&memory, &[(0, 1), outside]).is_none(), "{outside:?}");
    }
    let far = SharedMemory::new(memory, [(GuestAddress(u64::MAX), 2)]);
    assert!(far.is_none());
}

#[test]
fn alignment_is_that_of_each_address_and_length() {
    let memory = machine();
    for (ranges, expected) in [
        (&[(0, BLOCK)][..], true),
        (&[(512, 1024), (BLOCK, 512)], true),
        (&[(0, BLOCK), (512, 513)], false),
        (&[(256, 512)], false),
    ] {
        let shared = shared(&memory, ranges).unwrap();
        assert_eq!(shared.is_aligned(512), expected, "{ranges:?}");
    }
}

#[test]
fn advanced_memory_names_the_rest_and_is_whole_again_after_a_rewind() {
    let memory = machine();
    let mut shared = shared(&memory, &[(0, 10), (BLOCK, 10), (2 * BLOCK, 10)]).unwrap();
    for bytes in [3, 7, 12] {
        shared.advance(bytes);
    }
    let mut rest = [0; 8];
    shared.copy_to(&mut rest);
    assert_eq!(rest, [3; 8]);
    shared.rewind();
    let mut whole = [0; 30];
    shared.copy_to(&mut whole);
    assert_eq!(whole[..], [[1; 10], [2; 10], [3; 10]].concat());
}

#[test]
fn zeros_reach_all_parts_and_nothing_beside_them() {
    let memory = machine();
    let zeroed = shared(&memory, &[(BLOCK + 1, 2 * BLOCK - 2), (4 * BLOCK, 5)]).unwrap();
    zeroed.fill_zero();
    let around = shared(&memory, &[(BLOCK, 2 * BLOCK), (4 * BLOCK, 6)]).unwrap();
    let mut bytes = vec![9; 2 * BLOCK + 6];
    around.copy_to(&mut bytes);
    let mut expected = vec![0; 2 * BLOCK + 6];
    (
        expected[0],
        expected[2 * BLOCK - 1],
        expected[2 * BLOCK + 5],
    ) = (2, 3, 5);
    assert!(bytes == expected);
}

#[test]
fn memory_stays_mapped_after_its_machine_has_removed_it() {
    let file = tempfile::tempfile().unwrap();
    let before = machine();
    let kept = shared(&before, &[(16 * BLOCK, BLOCK)]).unwrap();
    let at = GuestAddress(MACHINE_BASE + 16 * BLOCK as u64);
    let (after, removed) = before.remove_region(at, 4 * BLOCK as u64).unwrap();
    drop((before, removed));
    assert!(shared(&Arc::new(after), &[(16 * BLOCK, BLOCK)]).is_none());
    assert_eq!(kept.write_to(&file, 0, 0).unwrap(), BLOCK);
    let mut found = [0; BLOCK];
    file.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(found, [17; BLOCK]);
    file.write_all_at(&[99; BLOCK], 0).unwrap();
    assert_eq!(kept.read_from(&file, 0).unwrap(), BLOCK);
    kept.copy_to(&mut found);
    assert_eq!(found, [99; BLOCK]);
}

#[test]
fn memory_whose_file_was_cut_is_an_error_and_no_signal() {
    let memory_file = tempfile::tempfile().unwrap();
    memory_file.set_len(BLOCK as u64).unwrap();
    let offset = vm_memory::FileOffset::new(memory_file.try_clone().unwrap(), 0);
    let range = (GuestAddress(MACHINE_BASE), BLOCK, Some(offset));
    let memory = Arc::new(GuestMemoryMmap::from_ranges_with_files([range]).unwrap());
    let kept = shared(&memory, &[(0, BLOCK)]).unwrap();
    memory_file.set_len(0).unwrap();
    let file = tempfile::tempfile().unwrap();
    file.set_len(BLOCK as u64).unwrap();
    for result in [kept.write_to(&file, 0, 0), kept.read_from(&file, 0)] {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EFAULT));
    }
}
