//! The programs, and how each takes its seeds.

use std::process::Command;

use crate::workspace::Workspace;

/// Tests of one program that take seeds.
pub struct Program {
    pub name: &'static str,
    package: &'static str,
    test: &'static str,
    filter: &'static str,
    pub seeds: Seeds,
    environment: &'static [(&'static str, &'static str)],
}

/// How a program takes seeds.
pub enum Seeds {
    /// `count` in each round, as `A..B` in this variable; all are above an offset.
    Range {
        variable: &'static str,
        count: u64,
        offset: u64,
    },
    /// One in each round, as a number in this variable.
    One { variable: &'static str },
    /// Others make the random choices.
    None,
}

impl Seeds {
    pub fn per_round(&self) -> u64 {
        match self {
            Self::Range { count, .. } => *count,
            Self::One { .. } | Self::None => 1,
        }
    }

    fn variable(&self, seed: u64) -> Option<(&'static str, String)> {
        match self {
            Self::Range {
                variable,
                count,
                offset,
            } => {
                let first = seed + offset;
                Some((variable, format!("{first}..{}", first + count)))
            }
            Self::One { variable } => Some((variable, seed.to_string())),
            Self::None => None,
        }
    }
}

impl Program {
    /// `cargo test` of the program, without arguments for it.
    pub fn cargo(&self, workspace: &Workspace) -> Command {
        let mut cargo = workspace.cargo(&["test", "--locked", "-p", self.package]);
        cargo.args(["--test", self.test]);
        cargo
    }

    /// A round of it.
    pub fn test(&self, workspace: &Workspace, seed: u64) -> Command {
        let mut cargo = self.cargo(workspace);
        cargo.arg(self.filter);
        cargo.args(["--", "--nocapture", "--test-threads=1"]);
        cargo.env("EXTANT_TEST_STRICT", "1");
        cargo.envs(self.seeds.variable(seed));
        cargo.envs(self.environment.iter().copied());
        cargo
    }

    /// The line that repeats a round.
    pub fn repeat(&self, seed: u64) -> String {
        let seeds = self.seeds.variable(seed);
        let seeds = seeds.map(|(name, value)| format!("{name}={value} "));
        let others = self.environment.iter();
        let others: String = others
            .map(|(name, value)| format!("{name}={value} "))
            .collect();
        format!(
            "EXTANT_TEST_STRICT=1 {}{others}cargo test -p {} --test {} {} -- --nocapture --test-threads=1",
            seeds.unwrap_or_default(),
            self.package,
            self.test,
            self.filter
        )
    }
}

const fn range(variable: &'static str, count: u64) -> Seeds {
    Seeds::Range {
        variable,
        count,
        offset: 0,
    }
}

/// Lives in block maps have seeds from here on.
const MAPPED: u64 = 1 << 32;

/// Each round of one takes some seconds to a minute, so that an hour has many rounds of each.
pub const PROGRAMS: &[Program] = &[
    Program {
        name: "exercise",
        package: "extant-mount",
        test: "exercise",
        filter: "",
        seeds: range("EXTANT_EXERCISE_SEEDS", 1),
        environment: &[],
    },
    Program {
        name: "stress",
        package: "extant-mount",
        test: "stress",
        filter: "stressors::",
        seeds: Seeds::None,
        environment: &[],
    },
    Program {
        name: "kill-mount",
        package: "extant-mount",
        test: "stress",
        filter: "killed::",
        seeds: range("EXTANT_STRESS_SEEDS", 4),
        environment: &[],
    },
    Program {
        name: "kill-create",
        package: "extant",
        test: "interrupt",
        filter: "kill",
        seeds: Seeds::One {
            variable: "EXTANT_SEED",
        },
        environment: &[],
    },
    Program {
        name: "kill-image",
        package: "extant",
        test: "image",
        filter: "killed",
        seeds: Seeds::One {
            variable: "EXTANT_SEED",
        },
        environment: &[],
    },
    Program {
        name: "kill-pool",
        package: "extant",
        test: "pool",
        filter: "killed::process",
        seeds: Seeds::One {
            variable: "EXTANT_SEED",
        },
        environment: &[("EXTANT_KILLS", "80")],
    },
    Program {
        name: "kill-disk",
        package: "extant",
        test: "pool",
        filter: "disk::process",
        seeds: Seeds::One {
            variable: "EXTANT_SEED",
        },
        environment: &[("EXTANT_KILLS", "80")],
    },
    Program {
        name: "power-ext4",
        package: "extant-ext4",
        test: "power",
        filter: "random_lives",
        seeds: range("EXTANT_POWER_SEEDS", 10),
        environment: &[],
    },
    Program {
        name: "power-maps",
        package: "extant-ext4",
        test: "power",
        filter: "random_lives",
        seeds: Seeds::Range {
            variable: "EXTANT_POWER_SEEDS",
            count: 4,
            offset: MAPPED,
        },
        environment: &[],
    },
    Program {
        name: "power-fast",
        package: "extant-ext4",
        test: "fast_commit",
        filter: "power_cut::",
        seeds: range("EXTANT_POWER_SEEDS", 2),
        environment: &[],
    },
    Program {
        name: "power-jbd2",
        package: "extant-jbd2",
        test: "journal",
        filter: "power_cut::",
        seeds: range("EXTANT_POWER_SEEDS", 8),
        environment: &[],
    },
    Program {
        name: "power-qcow2",
        package: "extant-image",
        test: "device",
        filter: "power::image_",
        seeds: range("EXTANT_POWER_SEEDS", 1),
        environment: &[],
    },
    Program {
        name: "samples-ext4",
        package: "extant-ext4",
        test: "power",
        filter: "every::sampled",
        seeds: Seeds::One {
            variable: "EXTANT_EXHAUSTIVE_SEED",
        },
        environment: &[("EXTANT_EXHAUSTIVE_SAMPLES", "400")],
    },
    Program {
        name: "samples-qcow2",
        package: "extant-image",
        test: "device",
        filter: "power::every::sampled",
        seeds: Seeds::One {
            variable: "EXTANT_EXHAUSTIVE_SEED",
        },
        environment: &[("EXTANT_EXHAUSTIVE_SAMPLES", "400")],
    },
    Program {
        name: "corrupt-ext4",
        package: "extant-ext4",
        test: "trouble",
        filter: "corrupt::",
        seeds: range("EXTANT_TROUBLE_SEEDS", 100),
        environment: &[],
    },
    Program {
        name: "corrupt-fsck",
        package: "extant-fsck",
        test: "check",
        filter: "flipped_bits",
        seeds: range("EXTANT_TROUBLE_SEEDS", 1),
        environment: &[],
    },
    Program {
        name: "corrupt-qcow2",
        package: "extant-image",
        test: "device",
        filter: "damaged_anywhere",
        seeds: range("EXTANT_TROUBLE_SEEDS", 20),
        environment: &[],
    },
    Program {
        name: "simulation",
        package: "extant",
        test: "simulation",
        filter: "promises_of_the_whole_system",
        seeds: range("EXTANT_SIMULATION_SEEDS", 4),
        environment: &[],
    },
    Program {
        name: "model-ext4",
        package: "extant-ext4",
        test: "model",
        filter: "sequences",
        seeds: range("EXTANT_MODEL_SEEDS", 8),
        environment: &[],
    },
    Program {
        name: "model-mballoc",
        package: "extant-mballoc",
        test: "model",
        filter: "allocator_",
        seeds: range("EXTANT_MODEL_SEEDS", 40),
        environment: &[],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_follow_each_other_and_the_line_repeats_them() {
        let ext4 = PROGRAMS
            .iter()
            .find(|program| program.name == "power-maps")
            .unwrap();
        assert_eq!(
            ext4.repeat(5),
            "EXTANT_TEST_STRICT=1 EXTANT_POWER_SEEDS=4294967301..4294967305 cargo test -p extant-ext4 \
             --test power random_lives -- --nocapture --test-threads=1"
        );
        assert_eq!(ext4.seeds.per_round(), 4);
    }

    #[test]
    fn names_are_different() {
        let mut names: Vec<_> = PROGRAMS.iter().map(|program| program.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PROGRAMS.len());
    }
}
