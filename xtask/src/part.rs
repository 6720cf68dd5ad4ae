//! The two parts that the test programs of the workspace are run in, at the same time.

use std::env;
use std::path::Path;
use std::process::Command;

const VARIABLE: &str = "EXTANT_TEST_PART";

/// A part of the test programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The tests in emulated machines: they wait for one processor and leave the other alone.
    Beside,
    Others,
}

impl Part {
    /// Package and name of the test program that runs beside the others.
    pub const BESIDE: (&str, &str) = ("extant", "guest");

    fn name(self) -> &'static str {
        match self {
            Self::Beside => "beside",
            Self::Others => "others",
        }
    }

    /// Makes the runner of `cargo`'s programs skip those of the other part.
    pub fn set(self, cargo: &mut Command) {
        cargo.env(VARIABLE, self.name());
    }

    /// Whether the runner's program belongs to the part that was [set](Part::set). Cargo describes
    /// the package in the environment.
    pub fn has(program: &Path) -> bool {
        let Ok(part) = env::var(VARIABLE) else {
            return true;
        };
        let package = env::var("CARGO_PKG_NAME").unwrap_or_default();
        part == Self::of(&package, program).name()
    }

    fn of(package: &str, program: &Path) -> Self {
        let stem = program.file_stem().and_then(|stem| stem.to_str());
        // Cargo appends a hash to the name.
        let name = stem
            .and_then(|stem| stem.rsplit_once('-'))
            .map(|(name, _)| name);
        if (package, name) == (Self::BESIDE.0, Some(Self::BESIDE.1)) {
            Self::Beside
        } else {
            Self::Others
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_is_known_by_package_and_name() {
        let of = |package, program: &str| Part::of(package, Path::new(program));
        assert_eq!(of("extant", "/t/deps/guest-06b907aadae772ff"), Part::Beside);
        assert_eq!(
            of("extant-testkit", "/t/deps/guest-48752489b3a8c8bc"),
            Part::Others
        );
        assert_eq!(of("extant", "/t/deps/serve-06b907aadae772ff"), Part::Others);
    }
}
