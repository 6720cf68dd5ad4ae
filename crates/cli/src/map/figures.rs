//! The figures of a map as text: the text below the picture in a terminal.

use extant_space::{ByteSize, ExtentState, MapSummary};

/// The summary in lines of `label  figure`.
pub(super) fn figures(total: &MapSummary, files: u64) -> String {
    let mut lines = Vec::new();
    if files > 1 {
        lines.push(("files", files.to_string()));
    }
    let all: u64 = ExtentState::ALL
        .iter()
        .fold(0, |sum, &state| total.bytes(state).saturating_add(sum));
    let share = |bytes: u64| {
        let percent = bytes as f64 * 100.0 / all.max(1) as f64;
        format!("{:<10} {percent:5.1}%", ByteSize(bytes).to_string())
    };
    for state in [
        ExtentState::Written,
        ExtentState::Unwritten,
        ExtentState::Hole,
    ] {
        lines.push((state.name(), share(total.bytes(state))));
    }
    for (name, bytes) in [
        ("shared", total.shared_bytes()),
        ("encoded", total.encoded_bytes()),
        ("delayed", total.delayed_bytes()),
    ] {
        if bytes > 0 {
            lines.push((name, share(bytes)));
        }
    }
    lines.push(("extant", share(total.extant_bytes())));
    if total.extents() > 0 {
        lines.push((
            "extents",
            format!(
                "{} in {}; mean {}, largest {}",
                total.extents(),
                counted(total.fragments(), "fragment"),
                ByteSize(total.mean_extent_bytes()),
                ByteSize(total.largest_extent_bytes()),
            ),
        ));
    }
    if let (Some(score), Some(words)) = (total.fragmentation_score(), total.fragmentation()) {
        lines.push((
            "score",
            format!(
                "{score:.0} of 100, {words} (e4defrag's: {} where {} would do)",
                counted(total.extents(), "extent"),
                total.best_extents()
            ),
        ));
    }
    lines
        .into_iter()
        .map(|(label, text)| format!("{label:<10} {}\n", text.trim_end()))
        .collect()
}

/// `1 extent`, `2 extents`.
pub(super) fn counted(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::samples;

    #[test]
    fn figures_that_say_nothing_are_left_out() {
        assert_eq!(
            figures(&MapSummary::default(), 1),
            "written    0 B          0.0%\n\
             unwritten  0 B          0.0%\n\
             hole       0 B          0.0%\n\
             extant     0 B          0.0%\n"
        );
        let one: MapSummary = samples::scattered(1).iter().collect();
        let text = figures(&one, 1);
        assert!(text.contains("\nextents    1 in 1 fragment; mean 4 KiB, largest 4 KiB\n"));
        assert!(!text.contains("shared"));
    }
}
