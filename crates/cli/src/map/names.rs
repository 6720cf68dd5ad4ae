//! Paths as they are shown: on one line, without control characters, in a
//! given number of columns.

use std::path::Path;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The path with all characters escaped that could change the layout of a line.
pub(super) fn shown(path: &Path) -> String {
    let mut text = String::new();
    for c in path.to_string_lossy().chars() {
        if c.is_control() || reorders(c) {
            text.extend(c.escape_default());
        } else {
            text.push(c);
        }
    }
    text
}

/// The end of `text` in at most `columns` columns: ends distinguish files.
pub(super) fn shortened(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let mut free = columns.saturating_sub(1);
    let mut start = text.len();
    for (at, c) in text.char_indices().rev() {
        let width = c.width().unwrap_or(0);
        if width > free {
            break;
        }
        free -= width;
        start = at;
    }
    format!("…{}", &text[start..])
}

/// `text` shortened, and padded with spaces on the right to `columns`.
pub fn column(text: &str, columns: usize) -> String {
    let mut text = shortened(text, columns);
    let pad = columns.saturating_sub(text.width());
    text.extend(std::iter::repeat_n(' ', pad));
    text
}

/// Marks of writing direction, which can make a name look like another.
fn reorders(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_a_line_or_reorder_it() {
        assert_eq!(shown(Path::new("a\nb\u{1b}[31m")), "a\\nb\\u{1b}[31m");
        assert_eq!(shown(Path::new("x\u{202e}gnp")), "x\\u{202e}gnp");
        assert_eq!(shown(Path::new("größe 表")), "größe 表");
    }

    #[test]
    fn long_names_keep_their_end() {
        assert_eq!(shortened("/srv/images/demo.raw", 10), "…/demo.raw");
        assert_eq!(shortened("short", 10), "short");
        assert_eq!(shortened("表表表", 4), "…表");
        assert_eq!(column("ab", 4), "ab  ");
        assert_eq!(column("表表表", 4), "…表 ");
    }
}
