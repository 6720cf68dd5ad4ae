//! Random sequences of steps, the same for the same seed.

use std::fmt;

/// Files stay about this small, in blocks, to provoke collisions.
const BLOCKS: u64 = 48;

/// One operation on a file.
#[derive(Clone, Debug)]
pub enum Step {
    /// Bytes are written, all of one value, which may be 0.
    Write { offset: u64, length: u64, value: u8 },
    /// fallocate runs with these arguments and the file's name.
    Fallocate(Vec<String>),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write {
                offset,
                length,
                value,
            } => write!(f, "write {length} bytes of {value} at {offset}"),
            Self::Fallocate(arguments) => write!(f, "fallocate {}", arguments.join(" ")),
        }
    }
}

/// A generator of steps (xorshift64*, Vigna 2014).
pub struct Sequence {
    state: u64,
    block_bytes: u64,
}

impl Sequence {
    /// Steps for files with blocks of `block_bytes`.
    pub fn new(seed: u64, block_bytes: u64) -> Self {
        // Small seeds differ in few bits; 0 would remain 0.
        let state = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self { state, block_bytes }
    }

    /// The next one.
    pub fn step(&mut self) -> Step {
        if self.below(3) == 0 {
            let (offset, length) = self.range();
            return Step::Write {
                offset,
                length: length.min(5 * self.block_bytes),
                value: self.below(3) as u8,
            };
        }
        let mode: &[&str] = match self.below(18) {
            0 | 1 => &[],
            2 | 3 => &["-n"],
            4 | 5 => &["-p"],
            6 => &["-p", "-n"],
            7 => &["-z"],
            8 | 9 => &["-z", "-n"],
            10 => &["-c"],
            11 => &["-i"],
            12 => &["-x"],
            13 => &["-w"],
            14 | 15 => &["-d"],
            _ => &["-r"],
        };
        let mut arguments: Vec<String> = mode.iter().map(ToString::to_string).collect();
        let has_range_always = !matches!(mode, ["-d" | "-r"]);
        let (offset, length) = self.range();
        if has_range_always || self.below(2) == 0 {
            arguments.extend(["-o".to_owned(), offset.to_string()]);
        }
        if has_range_always || self.below(2) == 0 {
            arguments.extend(["-l".to_owned(), length.to_string()]);
        }
        arguments.push("-v".to_owned());
        Step::Fallocate(arguments)
    }

    /// Offset and length, aligned more often than not.
    fn range(&mut self) -> (u64, u64) {
        let (mut offset, mut length) = (
            self.below(BLOCKS) * self.block_bytes,
            (1 + self.below(BLOCKS / 3)) * self.block_bytes,
        );
        if self.below(3) == 0 {
            offset += self.below(self.block_bytes);
        }
        if self.below(3) == 0 {
            length = 1 + self.below(length);
        }
        (offset, length)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        (self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }
}
