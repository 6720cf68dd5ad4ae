//! The steps that cost most. [`File::step`], which most tests take, compares each with
//! [`step_cost`].

use super::*;

/// Extents of one block, three blocks apart, that fill all nodes of a tree of `depth`.
fn full(depth: u16) -> File {
    let file = File::quick(TINY).with_extents(4 * 6u32.pow(depth.into()), 3);
    assert_eq!(file.depth(), depth);
    file
}

fn touched(file: &File) -> u32 {
    file.memory.touched.len() as u32
}

#[test]
fn extent_in_a_full_tree_splits_a_node_on_every_level() {
    for depth in 0..=3 {
        let untouched = full(depth);
        let last = untouched.extents().last().unwrap().logical.0;
        let (mut most_touched, mut most_created) = (0, 0);
        for hole in (2..last).step_by(3 * 7).chain([last + 2]) {
            let mut file = untouched.copy();
            file.step(|tree| tree.insert(unwritten(hole, 1))).unwrap();
            most_touched = most_touched.max(touched(&file));
            most_created = most_created.max(file.memory.created);
        }
        let depth = u32::from(depth);
        assert_eq!((most_touched, most_created), (2 * depth + 1, depth + 1));
        assert_eq!(most_created, step_cost(depth as u16).created);
    }
}

#[test]
fn extents_that_go_away_at_random_cost_three_nodes_a_level_at_most() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut most = [0; 4];
    for _ in 0..8 {
        let mut file = full(3);
        let end = file.extents().last().unwrap().logical_end();
        while file.depth() > 0 {
            let start = random.u64(0..end);
            let mut rest = Some(start..start + random.u64(1..80));
            while let Some(range) = rest {
                let depth = usize::from(file.depth());
                file.memory.touched.clear();
                rest = file.raw().remove_last(range, &mut |_| ()).unwrap();
                most[depth] = most[depth].max(touched(&file));
            }
        }
        file.check();
    }
    for (depth, most) in (1..).zip(&most[1..]) {
        assert!((depth + 1..=3 * depth).contains(most), "{most} at {depth}");
        assert!(*most <= step_cost(depth as u16).touched);
    }
}
