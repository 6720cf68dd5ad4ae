//! Progress and report shared by `put` and `get`.

use std::cell::Cell;
use std::time::Instant;

use extant_space::{ByteSize, Control, Phase, Result};
use serde::Serialize;

use crate::print;

/// Bytes that are copied at a time, between two checks for a cancel.
pub(super) const PIECE: usize = 1 << 20;

/// Report of a copy.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Tally {
    pub(super) files: u64,
    pub(super) directories: u64,
    pub(super) symlinks: u64,
    /// Devices, fifos, sockets.
    pub(super) special: u64,
    /// Further names of files that were copied.
    pub(super) hard_links: u64,
    /// Bytes of data, holes left out.
    pub(super) data_bytes: u64,
    /// Attributes and things that could not be taken along.
    pub(super) notes: Vec<String>,
    pub(super) elapsed_seconds: f64,
}

/// Notes that are kept.
const NOTES_MAX: usize = 20;

impl Tally {
    /// Keeps a line for the user.
    pub(super) fn note(&mut self, line: String) {
        match self.notes.len() {
            kept if kept < NOTES_MAX => self.notes.push(line),
            NOTES_MAX => self.notes.push("and more of that kind".to_owned()),
            _ => {}
        }
    }

    /// As text, behind `heading`.
    pub(super) fn describe(&self, heading: &str) -> String {
        let mut parts = Vec::new();
        for (count, one, many) in [
            (self.files, "file", "files"),
            (self.directories, "directory", "directories"),
            (self.symlinks, "symbolic link", "symbolic links"),
            (self.special, "special file", "special files"),
            (self.hard_links, "further link", "further links"),
        ] {
            match count {
                0 => {}
                1 => parts.push(format!("1 {one}")),
                count => parts.push(format!("{count} {many}")),
            }
        }
        if parts.is_empty() {
            parts.push("nothing".to_owned());
        }
        let mut out = format!("{heading}: {}", parts.join(", "));
        print::row(
            &mut out,
            "data",
            format!(
                "{} in {:.2} s",
                ByteSize(self.data_bytes),
                self.elapsed_seconds
            ),
        );
        for note in &self.notes {
            print::row(&mut out, "note", note);
        }
        out
    }
}

/// Progress of a copy.
pub(super) struct Meter<'a> {
    control: Control<'a>,
    total_bytes: u64,
    done_bytes: Cell<u64>,
    started: Instant,
}

impl<'a> Meter<'a> {
    pub(super) fn new(control: Control<'a>, total_bytes: u64) -> Self {
        Self {
            control,
            total_bytes,
            done_bytes: Cell::new(0),
            started: Instant::now(),
        }
    }

    /// Returns an error after a cancel.
    pub(super) fn check(&self) -> Result<()> {
        self.control.cancel.check()
    }

    /// Counts bytes that were copied.
    pub(super) fn add(&self, bytes: u64) {
        let done = self.done_bytes.get() + bytes;
        self.done_bytes.set(done);
        // The source may have grown since it was counted.
        self.control
            .report(Phase::Write, done, self.total_bytes.max(done));
    }

    pub(super) fn elapsed_seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }
}
