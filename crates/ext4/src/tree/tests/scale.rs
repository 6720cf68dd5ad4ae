//! A badly fragmented file.

use super::*;

#[test]
fn hundred_thousand_extents_are_inserted_converted_moved_and_removed() {
    let count = 100_000u32;
    let at = |index: u32| (u64::from(index) * 60_013 % u64::from(count)) as u32;
    let extent = |index: u32| LeafEntry {
        physical: PhysicalBlock(1000 + u64::from(index % 90_000)),
        ..unwritten(at(index) * 2, 1)
    };
    let mut file = File::quick(4096);
    for index in 0..count {
        file.raw().insert(extent(index)).unwrap();
    }
    assert_eq!(file.check().extents, u64::from(count));
    for index in 0..count / 2 {
        let block = u64::from(at(index) * 2);
        file.raw()
            .convert(block..block + 1, ExtentKind::Written)
            .unwrap();
    }
    let kinds = file.extents();
    let converted = kinds
        .iter()
        .filter(|extent| extent.kind == ExtentKind::Written);
    assert_eq!(converted.count() as u32, count / 2);

    let mut shift = file.raw().shift(0, 1, Direction::Right).unwrap();
    while let Some(rest) = shift {
        shift = file.raw().shift_next(&rest).unwrap();
    }
    assert_eq!(file.extents()[1].logical, LogicalBlock(3));
    let mut freed = 0;
    file.raw()
        .remove(0..LOGICAL_END, &mut |_| freed += 1)
        .unwrap();
    assert_eq!(freed, count);
    assert_eq!(file.check(), Summary::default());
}
