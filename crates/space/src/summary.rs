//! Figures of a file map: bytes per state, extents, fragmentation.
//!
//! The fragmentation score is e4defrag's (`e4defrag -c`).
use std::collections::BTreeMap;

use serde::Serialize;

use crate::{Extent, ExtentState};

/// Placeholder until summary.rs is written by its owner.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MapSummary;
