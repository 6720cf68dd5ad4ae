//! Targets of coverage-guided fuzzing: functions over bytes that must not panic, hang or take
//! memory without a bound.
//!
//! libFuzzer calls a target with inputs that it mutates towards new coverage (`cargo xtask fuzz`);
//! the kept inputs of `corpus` run in every `cargo test`. Targets are deterministic and use public
//! interfaces. Where random bytes would end at a checksum or a magic number, the input is a list of
//! changes to a valid image, whose checksums are recomputed (`damage`), or a list of operations.
//! docs/testing.md, "Fuzzing", describes targets and their properties.
//!
//! Module layers, lowest first:
//!
//! 1. `crc`, `input`, `memory_file`: checksums; structured input; files of images in memory
//! 2. `damage`, `ext4_image`: changes of valid structures; the ext4 images that inputs change
//! 3. `targets`: the targets

#![forbid(unsafe_code)]

mod crc;
mod damage;
mod ext4_image;
mod input;
mod memory_file;
mod targets;

/// Most memory of one input, beyond what was in use.
const MEMORY_MAX: u64 = 256 << 20;

/// A target by its name, which is also that of its corpus.
#[derive(Debug)]
pub struct Target {
    /// Name.
    pub name: &'static str,
    function: fn(&[u8]),
}

/// Every target.
pub const TARGETS: &[Target] = &[
    Target {
        name: "definition",
        function: targets::definition::target,
    },
    Target {
        name: "ext4",
        function: targets::ext4::target,
    },
    Target {
        name: "fast_commit",
        function: targets::fast_commit::target,
    },
    Target {
        name: "fuse",
        function: targets::fuse::target,
    },
    Target {
        name: "job_record",
        function: targets::job_record::target,
    },
    Target {
        name: "journal",
        function: targets::journal::target,
    },
    Target {
        name: "nbd_client",
        function: targets::nbd_client::target,
    },
    Target {
        name: "nbd_server",
        function: targets::nbd_server::target,
    },
    Target {
        name: "nodes",
        function: targets::nodes::target,
    },
    Target {
        name: "partition_table",
        function: targets::partition_table::target,
    },
    Target {
        name: "qcow2",
        function: targets::qcow2::target,
    },
    Target {
        name: "vhost",
        function: targets::vhost::target,
    },
    Target {
        name: "xml",
        function: targets::xml::target,
    },
];

/// The target of that name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

impl Target {
    /// Runs one input.
    ///
    /// # Panics
    /// If a property does not hold.
    pub fn run(&self, data: &[u8]) {
        let memory = allocation_counter::measure(|| (self.function)(data));
        let most = memory.bytes_max;
        assert!(most < MEMORY_MAX, "{}: {most} bytes of memory", self.name);
    }
}
