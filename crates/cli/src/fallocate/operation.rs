//! The operation requested by the options.
//!
//! Operations exclude each other, and some exclude `--keep-size`. `--report-holes` is accepted with
//! every option and disables all other operations, as in the original.

use clap::ArgMatches;
use clap::parser::ValueSource;
use extant_space::FallocateMode;

use super::FallocateArgs;

/// Operation on the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// One request to the kernel, and its message.
    Kernel(FallocateMode, &'static str),
    /// Allocate, by writing if necessary.
    Posix,
    /// Zeros that are written, by the kernel or by us.
    WriteZeroes,
    /// Zeros become holes.
    Dig,
    /// Zeros and holes are reported.
    Report,
}

/// Names in `FallocateArgs` of the operations that exclude each other.
const EXCLUSIVE: [&str; 7] = [
    "collapse_range",
    "dig_holes",
    "insert_range",
    "posix",
    "punch_hole",
    "write_zeroes",
    "zero_range",
];
const KEEP_SIZE: &str = "keep_size";
/// Those that imply or take it.
const WITH_KEEP_SIZE: [&str; 3] = ["dig_holes", "punch_hole", "zero_range"];

impl Operation {
    /// The operation of arguments that [`check`] has passed.
    pub fn of(args: &FallocateArgs) -> Self {
        use FallocateMode::*;
        match args {
            _ if args.report_holes => Self::Report,
            _ if args.dig_holes => Self::Dig,
            _ if args.write_zeroes => Self::WriteZeroes,
            _ if args.posix => Self::Posix,
            _ if args.collapse_range => Self::Kernel(CollapseRange, "removed"),
            _ if args.insert_range => Self::Kernel(InsertRange, "inserted"),
            _ if args.punch_hole => Self::Kernel(PunchHole, "hole created"),
            _ if args.zero_range && args.keep_size => Self::Kernel(ZeroRangeKeepSize, "zeroed"),
            _ if args.zero_range => Self::Kernel(ZeroRange, "zeroed"),
            _ if args.keep_size => Self::Kernel(AllocateKeepSize, "allocated"),
            _ => Self::Kernel(Allocate, "allocated"),
        }
    }

    /// A file that is missing is made.
    pub fn creates(self) -> bool {
        matches!(
            self,
            Self::Posix | Self::WriteZeroes | Self::Kernel(FallocateMode::Allocate, _)
        )
    }

    /// Leaves the range with space.
    pub fn gives_space(self) -> bool {
        use FallocateMode::*;
        match self {
            Self::Posix | Self::WriteZeroes => true,
            Self::Kernel(mode, _) => matches!(
                mode,
                Allocate | AllocateKeepSize | ZeroRange | ZeroRangeKeepSize
            ),
            Self::Dig | Self::Report => false,
        }
    }

    /// Works on the whole file when no length is given.
    pub fn takes_whole_file(self) -> bool {
        matches!(self, Self::Dig | Self::Report)
    }
}

/// The message about the first two options, in the order given, that exclude each other.
pub fn check(matches: &ArgMatches) -> Result<(), String> {
    let mut given: Vec<(usize, &str)> = EXCLUSIVE
        .into_iter()
        .chain([KEEP_SIZE])
        .filter(|id| matches.value_source(id) == Some(ValueSource::CommandLine))
        .filter_map(|id| Some((matches.index_of(id)?, id)))
        .collect();
    given.sort_unstable();
    for (place, &(_, second)) in given.iter().enumerate() {
        let earlier = given[..place].iter().map(|&(_, id)| id);
        for first in earlier {
            let [operation, other] = if first == KEEP_SIZE {
                [second, first]
            } else {
                [first, second]
            };
            if other == KEEP_SIZE && WITH_KEEP_SIZE.contains(&operation) {
                continue;
            }
            return Err(format!(
                "options --{} and --{} cannot be combined",
                first.replace('_', "-"),
                second.replace('_', "-")
            ));
        }
    }
    Ok(())
}
