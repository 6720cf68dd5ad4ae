//! Random events. Places are chosen from the state at the time of the event, so any list of events
//! is valid.

use extant_mballoc::{Alignment, Policy, RequestFlags};
use proptest::prelude::*;
use proptest::sample::Index;

/// Whether the disk grows and shrinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    Fixed,
    Changing,
}

#[derive(Clone, Debug)]
pub enum Event {
    /// A file is opened.
    Open {
        number: u64,
        blocks: u64,
    },
    /// A file is closed; its blocks stay.
    Close(Index),
    Allocate {
        owner: Index,
        ask: Ask,
        then: Then,
    },
    /// Some blocks of an allocated run.
    Free {
        run: Index,
        from: Index,
        count: Index,
        when: When,
    },
    /// Blocks that are not in use, or in use no more.
    FreeWrongly {
        owner: Index,
        block: Index,
        count: u32,
        when: When,
    },
    FreeOutside {
        owner: Index,
        distance: u64,
        when: When,
    },
    /// The running transaction begins to commit.
    Begin,
    /// It has committed; the discard of its blocks takes until `Discarded`.
    Commit,
    Discarded(Index),
    ReleaseWindows(Option<Index>),
    SetPolicy(Policy),
    /// All free runs are visited, and with them all bitmaps loaded.
    Walk,
    /// Free runs between two places of a group are taken out for a short discard.
    Withhold {
        group: Index,
        from: Index,
        to: Index,
        minimum: u32,
        runs_max: usize,
    },
    Grow(u64),
    /// To this number of thousandths of the disk, or from 1000 on of the free space at its end.
    Shrink(u64),
}

/// A request that does not depend on the state.
#[derive(Clone, Debug)]
pub struct Ask {
    pub place: Place,
    pub wanted: u32,
    pub minimum: Minimum,
    pub alignment: Alignment,
    /// In thousandths of the disk.
    pub limit: Option<u64>,
    pub flags: RequestFlags,
    pub journaled: bool,
}

#[derive(Clone, Debug)]
pub enum Place {
    Anywhere,
    /// At any block, or a few past the end.
    Near(Index),
    Follow(Index),
    /// Right behind one of the owner's runs.
    FollowOwn(Index),
    /// At a block of one of the owner's windows.
    FollowWindow(Index, Index),
    NearWindow(Index, Index),
}

#[derive(Clone, Copy, Debug)]
pub enum Minimum {
    One,
    Wanted,
    Some(Index),
    /// Numbers that no request can have.
    Zero,
    TooMany,
}

/// Use of a result.
#[derive(Clone, Copy, Debug)]
pub enum Then {
    Keep,
    Drop,
    /// Dropped after another file, if there is one, has taken blocks.
    DropAfter(Index),
}

#[derive(Clone, Copy, Debug)]
pub enum When {
    Now,
    AfterCommit,
}

pub fn list(sizes: Sizes) -> impl Strategy<Value = Vec<Event>> {
    let resizes = match sizes {
        Sizes::Fixed => 0,
        Sizes::Changing => 2,
    };
    let index = any::<Index>;
    let policy = prop::sample::select(vec![Policy::Linear, Policy::Optimised, Policy::Rotating]);
    let mut weighted = vec![
        (
            3,
            (0..20u64, 0..300u64)
                .prop_map(|(number, blocks)| Event::Open { number, blocks })
                .boxed(),
        ),
        (1, index().prop_map(Event::Close).boxed()),
        (
            24,
            (index(), ask(), then())
                .prop_map(|(owner, ask, then)| Event::Allocate { owner, ask, then })
                .boxed(),
        ),
        (
            10,
            (index(), index(), index(), when())
                .prop_map(|(run, from, count, when)| Event::Free {
                    run,
                    from,
                    count,
                    when,
                })
                .boxed(),
        ),
        (
            2,
            (index(), index(), 1..40u32, when())
                .prop_map(|(owner, block, count, when)| Event::FreeWrongly {
                    owner,
                    block,
                    count,
                    when,
                })
                .boxed(),
        ),
        (
            1,
            (index(), 0..100u64, when())
                .prop_map(|(owner, distance, when)| Event::FreeOutside {
                    owner,
                    distance,
                    when,
                })
                .boxed(),
        ),
        (2, Just(Event::Begin).boxed()),
        (2, Just(Event::Commit).boxed()),
        (2, index().prop_map(Event::Discarded).boxed()),
        (
            1,
            prop::option::of(index())
                .prop_map(Event::ReleaseWindows)
                .boxed(),
        ),
        (1, policy.prop_map(Event::SetPolicy).boxed()),
        (1, Just(Event::Walk).boxed()),
        (
            2,
            (index(), index(), index(), 1..30u32, 1..8usize)
                .prop_map(|(group, from, to, minimum, runs_max)| Event::Withhold {
                    group,
                    from,
                    to,
                    minimum,
                    runs_max,
                })
                .boxed(),
        ),
    ];
    if resizes > 0 {
        weighted.push((resizes, (1..3000u64).prop_map(Event::Grow).boxed()));
        weighted.push((resizes, (0..2000u64).prop_map(Event::Shrink).boxed()));
    }
    prop::collection::vec(prop::strategy::Union::new_weighted(weighted), 1..150)
}

fn ask() -> impl Strategy<Value = Ask> {
    let index = any::<Index>;
    let place = prop_oneof![
        3 => Just(Place::Anywhere),
        1 => index().prop_map(Place::Near),
        1 => index().prop_map(Place::Follow),
        4 => index().prop_map(Place::FollowOwn),
        1 => (index(), index()).prop_map(|(window, at)| Place::FollowWindow(window, at)),
        1 => (index(), index()).prop_map(|(window, at)| Place::NearWindow(window, at)),
    ];
    let wanted = prop_oneof![
        4 => 1..10u32,
        2 => 1..200u32,
        2 => (0..12u32).prop_map(|order| 1 << order),
        1 => 1..10_000u32,
        1 => Just(u32::MAX),
    ];
    let minimum = prop_oneof![
        20 => Just(Minimum::One),
        6 => Just(Minimum::Wanted),
        6 => index().prop_map(Minimum::Some),
        1 => Just(Minimum::Zero),
        1 => Just(Minimum::TooMany),
    ];
    let unit = || prop::sample::select(vec![1u32, 2, 3, 4, 8, 16, 100, 1 << 31]);
    let alignment = prop_oneof![
        12 => Just(Alignment::Any),
        2 => unit().prop_map(Alignment::Preferred),
        2 => unit().prop_map(Alignment::Required),
        1 => Just(Alignment::Required(0)),
    ];
    let limit = prop::option::weighted(0.2, 0..1100u64);
    let flags = prop_oneof![
        3 => Just(RequestFlags::STREAM),
        2 => (0..16u32).prop_map(RequestFlags::from_bits_truncate),
    ];
    let shape = (
        place,
        wanted,
        minimum,
        alignment,
        limit,
        flags,
        any::<bool>(),
    );
    shape.prop_map(
        |(place, wanted, minimum, alignment, limit, flags, journaled)| Ask {
            place,
            wanted,
            minimum,
            alignment,
            limit,
            flags,
            journaled,
        },
    )
}

fn then() -> impl Strategy<Value = Then> {
    prop_oneof![
        8 => Just(Then::Keep),
        1 => Just(Then::Drop),
        1 => any::<Index>().prop_map(Then::DropAfter),
    ]
}

fn when() -> impl Strategy<Value = When> {
    prop_oneof![Just(When::Now), Just(When::AfterCommit)]
}
