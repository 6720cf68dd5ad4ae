//! The registry: every bench there is.
//!
//! A new bench is a file in this directory and a line in [`ALL`]; its goals go into the
//! table of docs/benchmarks.md, which a test compares with the code.

mod accelerated;
mod assign;
mod cancel;
mod disks;
pub(crate) mod exports;
mod ext4;
mod fragments;
mod images;
mod mballoc;
pub(crate) mod methods;
mod modes;
pub(crate) mod mount;
mod neighbour;
mod pool;
mod rbd;
pub(crate) mod scaling;
mod stack;
mod sync4k;
mod through;
mod written;

use crate::bench::Bench;

/// All of them, in the order of `list`.
pub const ALL: &[&dyn Bench] = &[
    &written::Written,
    &neighbour::Neighbour,
    &sync4k::Sync4k,
    &accelerated::Accelerated,
    &through::Through,
    &methods::Methods,
    &cancel::Cancel,
    &mballoc::Mballoc,
    &assign::Assign,
    &ext4::Ext4,
    &scaling::Scaling,
    &stack::Stack,
    &mount::Mount,
    &images::Images,
    &modes::Modes,
    &fragments::Fragments,
    &exports::Exports,
    &pool::Pool,
    &rbd::Rbd,
    &disks::Disks,
];

/// The bench called `name`.
pub fn find(name: &str) -> Option<&'static dyn Bench> {
    ALL.iter().copied().find(|bench| bench.name() == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::document;

    #[test]
    fn names_of_benches_and_of_their_goals_are_unique() {
        let names: BTreeSet<_> = ALL.iter().map(|bench| bench.name()).collect();
        assert_eq!(names.len(), ALL.len());
        for bench in ALL {
            let goals: BTreeSet<_> = bench.goals().iter().map(|goal| goal.name).collect();
            assert_eq!(goals.len(), bench.goals().len(), "{}", bench.name());
        }
    }

    #[test]
    fn goals_are_those_of_the_document() {
        let declared: Vec<_> = ALL
            .iter()
            .flat_map(|bench| {
                let rows = bench.goals().iter();
                rows.map(|goal| [bench.name().to_owned(), goal.name.to_owned(), goal.bound()])
            })
            .collect();
        let documented: Vec<_> = document::goals().map(|goal| goal.key).collect();
        assert_eq!(documented, declared);
    }
}
