//! Counts as text.

/// `1 volume`, `3 volumes`.
pub fn count(number: u64, thing: &str) -> String {
    match number {
        1 => format!("1 {thing}"),
        _ => format!("{number} {thing}s"),
    }
}
