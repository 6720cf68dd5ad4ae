//! Requirements of a bench, checked before the measurement.

use anyhow::{Result, bail};
use extant_testkit::guest::Guest;
use extant_testkit::requires::{self, Requirement};

/// A requirement.
#[derive(Clone, Copy, Debug)]
pub enum Need {
    /// A program, which `cargo xtask setup` installs.
    Program(&'static str),
    /// A file system in the kernel.
    Filesystem(&'static str),
    /// The test kit's guest, which `cargo xtask setup` prepares.
    Guest,
    /// The right to mount and to drop caches.
    Root,
}

impl Need {
    fn requirement(self) -> Requirement {
        match self {
            Self::Program(name) => requires::tool(name),
            Self::Filesystem(name) => requires::kernel_filesystem(name),
            Self::Guest => Guest::requirement(),
            Self::Root => requires::root(),
        }
    }

    /// Advice to the user.
    fn advice(self) -> &'static str {
        match self {
            Self::Program(_) | Self::Guest => "run cargo xtask setup",
            Self::Filesystem(_) => "use a kernel that has it",
            Self::Root => "run as root",
        }
    }
}

/// Fails with every missing requirement and its remedy.
pub fn check(needs: &[Need]) -> Result<()> {
    let missing: Vec<_> = needs
        .iter()
        .map(|need| (need.requirement(), need.advice()))
        .filter(|(requirement, _)| !requirement.is_met())
        .map(|(requirement, advice)| format!("needs {}: {advice}", requirement.what()))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    bail!(missing.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_program_is_named_with_the_way_to_get_it() {
        let needs = [Need::Program("sh"), Need::Program("extant-no-such-peer")];
        assert_eq!(
            check(&needs).unwrap_err().to_string(),
            "needs extant-no-such-peer: run cargo xtask setup"
        );
        assert!(check(&needs[..1]).is_ok());
    }
}
