//! Flags of block status: `base:allocation` of the protocol, and our `extant:state`
//! (docs/formats/nbd.md).

use extant_space::{Extent, ExtentFlags, ExtentState};

pub const NBD_STATE_HOLE: u32 = 1 << 0;
pub const NBD_STATE_ZERO: u32 = 1 << 1;

const EXTANT_HOLE: u32 = 1 << 0;
const EXTANT_UNWRITTEN: u32 = 1 << 1;

const EXTENT_FLAGS: [(ExtentFlags, u32); 3] = [
    (ExtentFlags::SHARED, 1 << 2),
    (ExtentFlags::ENCODED, 1 << 3),
    (ExtentFlags::DELAYED, 1 << 4),
];

/// The flags of an extent in `extant:state`.
pub fn state_flags(extent: &Extent) -> u32 {
    let state = match extent.state {
        ExtentState::Hole => EXTANT_HOLE,
        ExtentState::Unwritten => EXTANT_UNWRITTEN,
        ExtentState::Written => 0,
    };
    let set = EXTENT_FLAGS
        .into_iter()
        .filter(|(flag, _)| extent.flags.contains(*flag));
    set.fold(state, |state, (_, bit)| state | bit)
}

/// State and flags of an extent, from `extant:state`; unknown bits are ignored.
pub fn extent_state(flags: u64) -> (ExtentState, ExtentFlags) {
    let has = |bit: u32| flags & u64::from(bit) != 0;
    let state = match (has(EXTANT_HOLE), has(EXTANT_UNWRITTEN)) {
        (true, _) => ExtentState::Hole,
        (false, true) => ExtentState::Unwritten,
        (false, false) => ExtentState::Written,
    };
    let set = EXTENT_FLAGS.into_iter().filter(|(_, bit)| has(*bit));
    (state, set.map(|(flag, _)| flag).collect())
}
