//! The table of extents: one line each, offsets and lengths in bytes.

use extant_space::Extent;

/// Names of the columns.
pub(super) fn header() -> String {
    format!(
        "{:>5} {:>16} {:>14} {:>16} {:>5}  {}",
        "ext", "offset", "length", "physical", "frag", "state, flags"
    )
}

/// Line `number` of a file; `fragment` counts the runs on the device from 1.
pub(super) fn row(number: u64, extent: &Extent, fragment: u64) -> String {
    let is_placed = extent.physical.is_some();
    let physical = extent.physical.map_or("-".to_owned(), |p| p.to_string());
    let fragment = if is_placed {
        fragment.to_string()
    } else {
        "-".to_owned()
    };
    let mut words = extent.state.name().to_owned();
    for flag in extent.flags.names() {
        words.push_str(", ");
        words.push_str(flag);
    }
    format!(
        "{number:>5} {:>16} {:>14} {physical:>16} {fragment:>5}  {words}",
        extent.logical.start(),
        extent.logical.len(),
    )
}

#[cfg(test)]
mod tests {
    use extant_space::{ByteRange, ExtentFlags, ExtentState};

    use super::*;

    #[test]
    fn rows_line_up_with_the_header() {
        let extent = Extent {
            logical: ByteRange::new(4096, 12_288),
            physical: Some(1 << 40),
            state: ExtentState::Written,
            flags: ExtentFlags::SHARED,
        };
        let lines = [
            header(),
            row(0, &Extent::hole(ByteRange::new(0, 4096)), 0),
            row(1, &extent, 1),
        ];
        assert_eq!(
            lines.join("\n"),
            "  ext           offset         length         physical  frag  state, flags\n    \
             0                0           4096                -     -  hole\n    \
             1             4096           8192    1099511627776     1  written, shared"
        );
    }
}
