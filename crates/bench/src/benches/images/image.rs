//! Images: formats, modes, and the commands that make them.

use std::fmt;
use std::path::Path;
use std::process::Command;

use crate::bench::{Context, size_word};
use crate::peers;

/// The program that makes an image and serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::benches) enum Side {
    Extant,
    Qemu,
}

impl Side {
    pub(in crate::benches) const BOTH: [Self; 2] = [Self::Extant, Self::Qemu];
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Extant => "extant",
            Self::Qemu => "qemu",
        })
    }
}

/// A format and a mode of preallocation, by the names that both sides have for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::benches) struct Kind {
    pub(in crate::benches) format: &'static str,
    pub(in crate::benches) mode: &'static str,
}

impl Kind {
    /// All kinds of images.
    pub(in crate::benches) const ALL: [Self; 7] = [
        Self::raw("off"),
        Self::raw("falloc"),
        Self::raw("full"),
        Self::qcow2("off"),
        Self::qcow2("metadata"),
        Self::qcow2("falloc"),
        Self::qcow2("full"),
    ];

    pub(in crate::benches) const fn raw(mode: &'static str) -> Self {
        Self {
            format: "raw",
            mode,
        }
    }

    pub(in crate::benches) const fn qcow2(mode: &'static str) -> Self {
        Self {
            format: "qcow2",
            mode,
        }
    }

    /// Whether it is fully allocated at creation.
    pub(in crate::benches) fn takes_space(self) -> bool {
        matches!(self.mode, "falloc" | "full")
    }

    /// The command by which a side makes such an image.
    pub(in crate::benches) fn create(
        self,
        context: &Context,
        side: Side,
        file: &Path,
        size: u64,
    ) -> Command {
        match side {
            Side::Extant => {
                let mut command = context.extant();
                command.arg("create").arg(file).arg(size_word(size));
                command.args(["--format", self.format, "--preallocation", self.mode]);
                command
            }
            Side::Qemu => peers::qemu_img_create(file, size, self.format, self.mode),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{} {}", self.format, self.mode))
    }
}
