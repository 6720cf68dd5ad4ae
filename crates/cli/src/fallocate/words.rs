//! Sizes, shares and errors in the format that scripts expect.

use std::fmt;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use extant_space::{Error, ErrorKind};

const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// `19.5 KiB`: the largest unit with a value of at least 1, with one decimal unless that is 0.
///
/// Rounded twice as in the real one: down to thousandths, then half up to tenths.
pub struct Human(pub u64);

impl fmt::Display for Human {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let power = self.0.max(1).ilog2() / 10;
        let unit = 1u128 << (10 * power);
        let thousandths = u128::from(self.0) * 1000 / unit;
        let tenths = (thousandths + 50) / 100;
        let name = UNITS[power as usize];
        match tenths % 10 {
            0 => write!(f, "{} {name}", tenths / 10),
            tenth => write!(f, "{}.{tenth} {name}", tenths / 10),
        }
    }
}

/// `3 holes, 19.5 KiB (20000 bytes, 50.00% of the file)`.
pub struct Share {
    /// The number.
    pub count: u64,
    /// Bytes in all of them.
    pub bytes: u64,
    /// Size of the file.
    pub of_bytes: u64,
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = match self.of_bytes {
            0 => 0.0,
            // In this order: the last digit depends on it.
            size => self.bytes as f64 / size as f64 * 100.0,
        };
        write!(
            f,
            "{} holes, {} ({} bytes, {percent:.2}% of the file)",
            self.count,
            Human(self.bytes),
            self.bytes
        )
    }
}

/// Message of the operating system for `error` on opening `path`.
pub fn open_error(error: &Error, path: &Path) -> String {
    let errno = error.os_errno().or_else(|| {
        // The file was opened, but its type has no space operations.
        let kind = std::fs::metadata(path).ok()?.file_type();
        if kind.is_dir() {
            Some(libc::EISDIR)
        } else if kind.is_fifo() {
            Some(libc::ESPIPE)
        } else if kind.is_socket() {
            Some(libc::ENXIO)
        } else {
            Some(libc::ENODEV)
        }
    });
    match errno {
        Some(errno) => errno_text(errno),
        None => error.to_string(),
    }
}

/// The errno's text alone where the kernel refused, the whole line where we did.
pub fn operation_error(error: &Error) -> String {
    match error.os_errno() {
        Some(errno) if error.kind() != ErrorKind::CopyOnWrite => errno_text(errno),
        _ => error.to_string(),
    }
}

/// `Operation not supported`, as `strerror(3)` has it.
fn errno_text(errno: i32) -> String {
    io_text(&io::Error::from_raw_os_error(errno))
}

/// The text of `error` without the number.
pub fn io_text(error: &io::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(" (os error ") {
        Some((text, _)) => text.to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn human_sizes_are_rounded_as_the_real_one_does() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1075, "1 KiB"),
            (1076, "1.1 KiB"),
            (1279, "1.2 KiB"),
            (2047, "2 KiB"),
            (10_188, "9.9 KiB"),
            (10_189, "10 KiB"),
            (1_048_064, "1023.5 KiB"),
            (1_048_524, "1023.9 KiB"),
            (1_048_525, "1024 KiB"),
            (1 << 20, "1 MiB"),
            ((1 << 30) - 1, "1024 MiB"),
            ((1 << 40) - 1, "1024 GiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(Human(bytes).to_string(), text, "{bytes}");
        }
    }

    #[test]
    fn share_of_an_empty_file_is_0_percent() {
        let share = |bytes, of_bytes| {
            Share {
                count: 1,
                bytes,
                of_bytes,
            }
            .to_string()
        };
        assert_eq!(share(0, 0), "1 holes, 0 B (0 bytes, 0.00% of the file)");
        assert_eq!(
            share(8192, 20_000),
            "1 holes, 8 KiB (8192 bytes, 40.96% of the file)"
        );
    }

    #[test]
    fn errno_text_has_no_number() {
        assert_eq!(errno_text(95), "Operation not supported");
        assert_eq!(errno_text(27), "File too large");
    }
}
