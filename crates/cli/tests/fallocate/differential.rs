//! The same random steps by util-linux's fallocate and by ours, on two equal file systems.
//!
//! After each step the outputs and the files are compared: status, output, bytes, size, blocks, and
//! extents with their states. The locations on the disk may differ.
//!
//! One difference is intended. util-linux's `-d` punches a run of zeros that ends with the data, or
//! with the range, up to one block too far; with `-l` that destroys data. After each `-d` ours must
//! have kept every byte; then just that excess is punched in our file as well, and the two must be
//! equal again. On btrfs the sequence ends there: its treatment of the edges of later punches
//! depends on how a hole was made.
//!
//! One block of difference in `st_blocks` of ext4 is permitted: whether the extents fit the inode
//! depends on their locations, and these on the processor.

use std::fs::{self, OpenOptions};
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use extant_hostfs::{HostFile, SpanKind, report_holes};
use extant_space::{ByteRange, CancelToken, Control, Silent};
use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::{newer, require, requires};

use crate::program::{Answer, Program};
use crate::sequence::{Sequence, Step};
use crate::state::State;

const SEEDS: u64 = 6;
const STEPS: usize = 40;
const SEED_VARIABLE: &str = "EXTANT_FALLOCATE_SEED";
const SEEDS_VARIABLE: &str = "EXTANT_FALLOCATE_SEEDS";

/// A file in a file system of its own.
struct Side {
    program: Program,
    directory: PathBuf,
    filesystem: Filesystem,
}

impl Side {
    fn file(&self) -> PathBuf {
        self.directory.join("f")
    }

    fn state(&self) -> State {
        State::of(&self.file(), self.filesystem)
    }

    fn apply(&self, step: &Step) -> Answer {
        match step {
            Step::Write {
                offset,
                length,
                value,
            } => {
                let file = OpenOptions::new().write(true).open(self.file()).unwrap();
                let bytes = vec![*value; *length as usize];
                file.write_all_at(&bytes, *offset).unwrap();
                file.sync_all().unwrap();
                Answer {
                    status: Some(0),
                    stdout: String::new(),
                    stderr: String::new(),
                }
            }
            Step::Fallocate(arguments) => {
                let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
                if self.program == Program::Ours && arguments[0] == "-w" {
                    arguments.push("--no-fallback");
                }
                arguments.push("f");
                self.program.run(&self.directory, &arguments)
            }
        }
    }
}

#[test]
fn random_steps_on_ext4_are_those_of_the_real_one() {
    compare(Filesystem::Ext4, "ext4_are");
}

#[test]
fn random_steps_on_ext4_with_1k_blocks_are_those_of_the_real_one() {
    compare(Filesystem::Ext4SmallBlocks, "1k_blocks");
}

#[test]
fn random_steps_on_xfs_are_those_of_the_real_one() {
    compare(Filesystem::Xfs, "xfs");
}

#[test]
fn random_steps_on_btrfs_are_those_of_the_real_one() {
    compare(Filesystem::Btrfs, "btrfs");
}

#[test]
fn random_steps_on_tmpfs_are_those_of_the_real_one() {
    compare(Filesystem::Tmpfs, "tmpfs");
}

#[test]
fn random_steps_on_ext2_are_those_of_the_real_one() {
    compare(Filesystem::Ext2, "ext2");
}

fn compare(filesystem: Filesystem, test: &str) {
    require!(
        newer::requirement(),
        requires::tool("filefrag"),
        filesystem.requirement()
    );
    let number = |name| -> Option<u64> { std::env::var(name).ok()?.parse().ok() };
    let seeds = match number(SEED_VARIABLE) {
        Some(seed) => seed..seed + 1,
        None => 0..number(SEEDS_VARIABLE).unwrap_or(SEEDS),
    };
    for seed in seeds {
        // Fresh for every seed, so that one seed repeats a failure.
        let size = filesystem.size_bytes_min().max(64 << 20);
        let scratches = [(); 2].map(|()| {
            let builder = Scratch::builder(filesystem, size);
            match filesystem {
                // Without space given on speculation and taken back some time later.
                Filesystem::Xfs => builder.mount_options("allocsize=4k").build(),
                _ => builder.build(),
            }
        });
        let [real, ours] = [Program::Real, Program::Ours].map(|program| {
            let scratch = &scratches[usize::from(program == Program::Ours)];
            let directory = scratch.path().to_owned();
            fs::write(directory.join("f"), b"").unwrap();
            Side {
                program,
                directory,
                filesystem,
            }
        });
        let block_bytes = fs::metadata(real.file()).unwrap().blksize();
        let mut sequence = Sequence::new(seed, block_bytes);
        let mut done = Vec::new();
        let slack_bytes = if filesystem.is_ext4() { block_bytes } else { 0 };
        for _ in 0..STEPS {
            let step = sequence.step();
            done.push(step.to_string());
            match one_step(&real, &ours, &step, slack_bytes) {
                Ok(ControlFlow::Continue(())) => {}
                Ok(ControlFlow::Break(())) => break,
                Err(difference) => panic!(
                    "{filesystem}: {difference}\nafter\n  {}\nagain: {SEED_VARIABLE}={seed} \
                     cargo test -p extant --test fallocate {test}",
                    done.join("\n  ")
                ),
            }
        }
    }
}

fn one_step(
    real: &Side,
    ours: &Side,
    step: &Step,
    slack_bytes: u64,
) -> Result<ControlFlow<()>, String> {
    let digs = match step {
        Step::Fallocate(arguments) if arguments[0] == "-d" => {
            Some((excess(&ours.file(), arguments), ours.state()))
        }
        _ => None,
    };
    let (wanted, answer) = (real.apply(step).plain(), ours.apply(step));
    if answer != wanted {
        return Err(format!("{wanted:#?}\n{answer:#?}"));
    }
    let mut state = ours.state();
    let mut flow = ControlFlow::Continue(());
    if let Some((excess, before)) = digs {
        if state.bytes != before.bytes {
            return Err("-d has changed bytes".to_owned());
        }
        if ours.filesystem == Filesystem::Btrfs && !excess.is_empty() {
            flow = ControlFlow::Break(());
        }
        let block_bytes = fs::metadata(ours.file()).unwrap().blksize();
        for run in excess {
            punch(ours, ByteRange::new(run.start(), run.end() + block_bytes));
        }
        state = ours.state();
    }
    match real.state().difference(&state, slack_bytes) {
        Some(difference) => Err(format!("real and ours differ: {difference}")),
        None => Ok(flow),
    }
}

/// The runs of zeros that the real `-d` will punch a block too far.
fn excess(file: &Path, arguments: &[String]) -> Vec<ByteRange> {
    let value = |option| {
        let at = arguments.iter().position(|argument| argument == option)?;
        arguments[at + 1].parse::<u64>().ok()
    };
    let offset = value("-o").unwrap_or(0);
    let end = value("-l").map_or(u64::MAX, |length| offset + length);
    let file = HostFile::open_read(file).unwrap();
    let cancel = CancelToken::new();
    let mut spans = Vec::new();
    report_holes(
        &file,
        Some(ByteRange::new(offset, end)),
        Control::new(&cancel, &Silent),
        &mut |span| {
            spans.push(span);
            ControlFlow::Continue(())
        },
    )
    .unwrap();
    let follows = |index: usize| spans.get(index + 1).map(|next| next.kind);
    spans
        .iter()
        .enumerate()
        .filter(|(index, span)| {
            span.kind == SpanKind::Zeros && follows(*index) != Some(SpanKind::Data)
        })
        .map(|(_, span)| span.range)
        .collect()
}

fn punch(side: &Side, range: ByteRange) {
    let (offset, length) = (range.start().to_string(), range.len().to_string());
    let answer = side
        .program
        .run(&side.directory, &["-p", "-o", &offset, "-l", &length, "f"]);
    assert_eq!(answer.status, Some(0), "{answer:?}");
}
