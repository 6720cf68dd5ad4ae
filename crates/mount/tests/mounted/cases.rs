//! The cases: the calls, and the recorded answers.

mod attributes;
mod compiled;
mod data;
mod names;
mod others;
mod space;
mod times;
mod xattrs;

use crate::notes::Notes;

/// A sequence of calls.
pub struct Case {
    /// Its own name.
    pub name: &'static str,
    /// The row of `docs/semantics.md` that it stands behind.
    pub row: &'static str,
    /// Whether it may differ.
    pub expect: Expect,
    pub run: fn(&mut Notes),
}

/// Whether the answers are those of the kernel's ext4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// All of them.
    Same,
    /// Not: the kernel's FUSE layer does not offer it.
    Limit,
    /// Not, if the kernel caches the written data.
    LimitOfWriteback,
}

pub fn all() -> impl Iterator<Item = &'static Case> {
    [
        names::CASES,
        attributes::CASES,
        data::CASES,
        space::CASES,
        times::CASES,
        xattrs::CASES,
        compiled::CASES,
        others::CASES,
    ]
    .into_iter()
    .flatten()
}

/// A case that must answer as the kernel's.
const fn same(row: &'static str, name: &'static str, run: fn(&mut Notes)) -> Case {
    Case {
        name,
        row,
        expect: Expect::Same,
        run,
    }
}
