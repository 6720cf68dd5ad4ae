//! Names in a file system are bytes: joining them, and showing them.

use std::io::{self, Write};
use std::path::Path;

/// A path on one line.
pub fn shown_path(path: &Path) -> String {
    crate::print::path(path)
}

/// `directory/name`.
pub fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = directory.to_vec();
    if !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// The last name of a path, without slashes behind it; empty for the root.
pub fn last(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&byte| byte != b'/');
    let trimmed = &path[..end.map_or(0, |end| end + 1)];
    let start = trimmed.iter().rposition(|&byte| byte == b'/');
    &trimmed[start.map_or(0, |slash| slash + 1)..]
}

/// Output of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// Byte by byte, for programs.
    Raw,
    /// With all control characters of terminals escaped.
    Escaped,
}

impl Names {
    /// Quoting for stdout.
    pub fn for_stdout() -> Self {
        use std::io::IsTerminal;
        if io::stdout().is_terminal() {
            Self::Escaped
        } else {
            Self::Raw
        }
    }

    /// Writes a name.
    pub fn write(self, out: &mut dyn Write, name: &[u8]) -> io::Result<()> {
        match self {
            Self::Raw => out.write_all(name),
            Self::Escaped => out.write_all(escaped(name).as_bytes()),
        }
    }
}

/// A name as text: control characters and bytes that are no UTF-8 become escapes.
pub fn escaped(name: &[u8]) -> String {
    let mut text = String::new();
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() {
                text.extend(c.escape_default())
            } else {
                text.push(c)
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

/// The bytes in hexadecimal, for names that JSON cannot hold: `None` for those it can.
pub fn hex_unless_text(name: &[u8]) -> Option<String> {
    match std::str::from_utf8(name) {
        Ok(_) => None,
        Err(_) => Some(name.iter().map(|byte| format!("{byte:02x}")).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_name_is_found_behind_and_before_slashes() {
        for (path, name) in [
            ("/a/b", "b"),
            ("a", "a"),
            ("/a/b//", "b"),
            ("/", ""),
            ("", ""),
            ("./x", "x"),
        ] {
            assert_eq!(last(path.as_bytes()), name.as_bytes(), "{path}");
        }
    }

    #[test]
    fn names_are_joined_with_one_slash() {
        assert_eq!(join(b"/", b"a"), b"/a");
        assert_eq!(join(b"/a", b"b"), b"/a/b");
        assert_eq!(join(b"/a/", b"b"), b"/a/b");
    }

    #[test]
    fn escapes_hide_nothing_and_control_nothing() {
        assert_eq!(
            escaped("größe\u{1b}[31m\n".as_bytes()),
            "größe\\u{1b}[31m\\n"
        );
        assert_eq!(escaped(b"caf\xe9"), "caf\\xe9");
        assert_eq!(hex_unless_text(b"caf\xe9").as_deref(), Some("636166e9"));
        assert_eq!(hex_unless_text("café".as_bytes()), None);
    }
}
