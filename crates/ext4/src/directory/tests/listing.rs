//! Listings in pieces, while the directory changes between them.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use extant_ondisk::ext4::directory::{HashKind, HashVersion, Sign};

use super::super::{After, Directory, DirectoryContext, Shape};
use super::{HALF_MD4, Memory, TEA, collisions, context, empty, insert, listed, name};

const LEGACY: HashVersion = HashVersion {
    kind: HashKind::Legacy,
    sign: Sign::Signed,
};

/// A piece of at most `most` names behind `after`, with their cookies.
fn piece(directory: &Directory<Memory>, after: After<'_>, most: usize) -> Vec<(u64, Vec<u8>)> {
    let mut names = Vec::new();
    let visit = &mut |listed: super::super::Listed<'_>| {
        names.push((listed.cookie, listed.name.to_vec()));
        if names.len() < most {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    };
    directory.for_each(after, visit).unwrap();
    names
}

/// Lists in pieces of `most`, with `between` after each; how often each name was listed.
fn in_pieces(
    directory: &mut Directory<Memory>,
    most: usize,
    mut between: impl FnMut(&mut Directory<Memory>, u32),
) -> BTreeMap<Vec<u8>, usize> {
    let mut counts = BTreeMap::new();
    let mut last: (u64, Option<Vec<u8>>) = (0, None);
    for round in 0.. {
        let after = After {
            cookie: last.0,
            name: last.1.as_deref(),
        };
        let names = piece(directory, after, most);
        let Some((cookie, name)) = names.last() else {
            break;
        };
        last = (*cookie, Some(name.clone()));
        for (_, name) in names {
            *counts.entry(name).or_insert(0) += 1;
        }
        between(directory, round);
    }
    counts
}

fn linear() -> DirectoryContext {
    let mut context = context(HALF_MD4);
    context.tree = None;
    context
}

#[test]
fn names_that_stay_come_once_while_others_come_and_go() {
    // A few begin in one block and get their tree during the listing.
    for stay in [2, 150] {
        for context in [context(HALF_MD4), context(LEGACY), context(TEA), linear()] {
            let mut directory = empty(context);
            for number in 0..stay {
                insert(&mut directory, &name(number, 60), 100);
            }
            for number in 1000..1000 + stay {
                insert(&mut directory, &name(number, 150), 100);
            }
            let counts = in_pieces(&mut directory, 3, |directory, round| {
                // Many more are added at first, then all are removed.
                for number in 0..8_u32.saturating_sub(round) * 5 {
                    insert(directory, &name(2000 + round * 100 + number, 150), 100);
                }
                let goes = name(1000 + round, 150);
                if round < stay {
                    directory.remove(&goes).unwrap();
                }
            });
            for number in 0..stay {
                let count = counts.get(&name(number, 60));
                assert_eq!(
                    count,
                    Some(&1),
                    "name {number} of {stay}, {:?}",
                    context.tree
                );
            }
            assert_eq!([counts[&b"."[..]], counts[&b".."[..]]], [1, 1]);
            assert!(counts.values().all(|&count| count == 1));
        }
    }
}

#[test]
fn directory_of_one_block_is_listed_as_its_tree_will_be() {
    let mut directory = empty(context(HALF_MD4));
    let mut number = 0;
    let mut before = Vec::new();
    while directory.blocks.shape == Shape::Linear {
        before = piece(&directory, After::default(), usize::MAX);
        insert(&mut directory, &name(number, 20), 100);
        number += 1;
    }
    directory.remove(&name(number - 1, 20)).unwrap();
    assert!(before.len() > 25);
    assert_eq!(piece(&directory, After::default(), usize::MAX), before);
}

#[test]
fn cookies_rise_and_fit_63_bits() {
    let mut tree = empty(context(LEGACY));
    let mut blocks = empty(linear());
    for directory in [&mut tree, &mut blocks] {
        for number in 0..300 {
            insert(directory, &name(number, 40), 100);
        }
        let names = piece(directory, After::default(), usize::MAX);
        assert_eq!(names.len(), 302);
        assert!(names.is_sorted_by(|(one, _), (other, _)| one < other));
        assert!(
            names
                .iter()
                .all(|&(cookie, _)| 0 < cookie && cookie < 1 << 63)
        );
        for cookie in [names[301].0, 1 << 62, (1 << 63) - 1, u64::MAX] {
            let rest = piece(directory, After { cookie, name: None }, usize::MAX);
            let expected = names.iter().filter(|name| name.0 > cookie).count();
            assert_eq!(rest.len(), expected, "behind {cookie:#x}");
        }
    }
}

#[test]
fn collisions_are_listed_once_with_a_name_cookie() {
    // More than are kept at a time, in many leaves.
    let mut directory = empty(context(TEA));
    let twins = collisions::twins(220);
    for name in &twins {
        insert(&mut directory, name, 100);
    }
    assert_eq!(listed(&directory).len(), 220);
    let counts = in_pieces(&mut directory, 7, |_, _| {});
    assert_eq!(counts.len(), 222);
    assert!(counts.values().all(|&count| count == 1));
    // A caller without the name skips them.
    let (cookie, _) = piece(&directory, After::default(), 3)[2];
    let rest = piece(&directory, After { cookie, name: None }, usize::MAX);
    assert_eq!(rest, []);
}
