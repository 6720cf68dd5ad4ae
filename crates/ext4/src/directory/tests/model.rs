//! Random changes compared with a map, with the whole directory verified after each.

use extant_ondisk::ext4::InodeNumber;
use extant_ondisk::ext4::directory::{HashKind, HashVersion, Sign};
use extant_ondisk::ext4::inode::FileType;
use extant_space::ErrorKind;
use proptest::prelude::*;

use super::super::{Directory, DirectoryContext};
use super::verify::verified;
use super::{Memory, Names, PARENT, context, context_without_sums, empty, listed, name};

#[derive(Clone, Copy, Debug)]
enum Step {
    Insert(u32),
    Remove(u32),
    Retarget(u32),
    Look(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let number = 0..150_u32;
    prop_oneof![
        5 => number.clone().prop_map(Step::Insert),
        3 => number.clone().prop_map(Step::Remove),
        1 => number.clone().prop_map(Step::Retarget),
        1 => number.prop_map(Step::Look),
    ]
}

fn any_context() -> impl Strategy<Value = DirectoryContext> {
    let kind = prop_oneof![
        Just(HashKind::Legacy),
        Just(HashKind::HalfMd4),
        Just(HashKind::Tea)
    ];
    let sign = prop_oneof![Just(Sign::Signed), Just(Sign::Unsigned)];
    (kind, sign, any::<bool>(), 0..4_u8).prop_map(|(kind, sign, has_sums, indexed)| {
        let hash = HashVersion { kind, sign };
        let mut context = if has_sums {
            context(hash)
        } else {
            context_without_sums(hash)
        };
        if indexed == 0 {
            context.tree = None;
        }
        context
    })
}

/// Names of 8 to 255 bytes, mostly long, some past ASCII.
fn name_of(number: u32) -> Vec<u8> {
    let mut name = name(number, 8 + (number as usize * 97) % 248);
    name[3] |= if number.is_multiple_of(3) { 0x80 } else { 0 };
    name
}

fn check(directory: &mut Directory<Memory>, names: &mut Names, step: Step) {
    let kind = |result: extant_space::Result<_>| result.map_err(|error| error.kind());
    let inode = InodeNumber(names.len() as u32 + 100);
    match step {
        Step::Insert(number) => {
            let name = name_of(number);
            let result = kind(
                directory
                    .insert(&name, inode, FileType::Regular)
                    .map(|()| inode),
            );
            let expected = if names.contains_key(&name) {
                Err(ErrorKind::AlreadyExists)
            } else {
                Ok(inode)
            };
            assert_eq!(result, expected);
            names.entry(name).or_insert(inode);
        }
        Step::Remove(number) => {
            let name = name_of(number);
            let result = kind(directory.remove(&name).map(|entry| entry.inode));
            assert_eq!(result, names.remove(&name).ok_or(ErrorKind::NotFound));
        }
        Step::Retarget(number) => {
            let name = name_of(number);
            let result = directory.retarget(&name, inode, FileType::Fifo);
            let before = names
                .get_mut(&name)
                .map(|old| std::mem::replace(old, inode));
            let result = kind(result.map(|entry| entry.inode));
            assert_eq!(result, before.ok_or(ErrorKind::NotFound));
            if before.is_some() {
                let entry = directory.lookup(&name).unwrap().unwrap();
                assert_eq!(entry.file_type, Some(FileType::Fifo));
            }
        }
        Step::Look(number) => {
            let name = name_of(number);
            let found = directory.lookup(&name).unwrap().map(|entry| entry.inode);
            assert_eq!(found, names.get(&name).copied());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn directory_follows_a_map(
        context in any_context(),
        steps in prop::collection::vec(step(), 1..250),
    ) {
        let mut directory = empty(context);
        let mut names = Names::new();
        let bound = context.insert_bound();
        for step in steps {
            check(&mut directory, &mut names, step);
            prop_assert_eq!(&verified(&directory).names, &names);
            prop_assert_eq!(directory.is_empty().unwrap(), names.is_empty());
            let (changed, appended) = directory.blocks.take_counts();
            prop_assert!(changed <= bound.changed_blocks && appended <= bound.appended_blocks);
        }
        prop_assert_eq!(listed(&directory), names);
        let parent = directory.lookup(b"..").unwrap().unwrap();
        prop_assert_eq!(parent.inode, PARENT);
    }
}
