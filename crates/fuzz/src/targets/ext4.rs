//! ext4: structures with wrong fields and right checksums, and operations.
//!
//! Every operation has a result. An image in which the check finds nothing before is without
//! findings afterwards, if the file system was closed without an error.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use arbitrary::{Arbitrary, Unstructured};
use extant_blockdev::MemoryDevice;
use extant_ext4::{
    AttributeChange, FileType, Filesystem, NewKind, NewNode, Node, RenameMode, XattrMode,
};
use extant_space::{ByteRange, Error, ErrorKind, FallocateMode, Result, SpaceFile, SyncMode};

use crate::damage::Damage;
use crate::ext4_image::{AT_REST, Base, IN_USE, MAPS, NO_CHECKSUMS, options, report, rest};
use crate::input::{list, parse};

/// Read of one file; sizes may be anything.
const READ_MAX: u64 = 64 << 10;
const NAMES_MAX: usize = 300;
/// Entered by a walk.
const NODES_MAX: usize = 200;

/// A structure with wrong fields.
#[derive(Debug)]
struct Wrong {
    place: u16,
    damages: Vec<Damage>,
}

impl<'a> Arbitrary<'a> for Wrong {
    fn arbitrary(from: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        Ok(Self {
            place: from.arbitrary()?,
            damages: list(from, 4)?,
        })
    }
}

/// A name: of a directory, and in it.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct At(u8);

const DIRECTORIES: [&[u8]; 4] = [b"", b"large", b"sub", b"made"];
const NAMES: [&[u8]; 12] = [
    b"file",
    b"large",
    b"sub",
    b"made",
    b"short",
    b"long",
    b"pipe",
    b"last",
    b"a",
    b"b",
    b"a name that fills a block of the directory, number 7",
    b"a name that fills a block of the directory, number 70",
];

impl At {
    fn name(self) -> &'static [u8] {
        NAMES[usize::from(self.0 / 4) % NAMES.len()]
    }

    fn directory(self, root: &Node) -> Result<Node> {
        match DIRECTORIES[usize::from(self.0 % 4)] {
            b"" => Ok(root.clone()),
            name => root.lookup(name),
        }
    }

    fn node(self, root: &Node) -> Result<Node> {
        self.directory(root)?.lookup(self.name())
    }
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Step {
    Create {
        at: At,
        kind: u8,
    },
    Unnamed {
        at: At,
        bytes: u16,
        to: Option<At>,
    },
    Unlink(At),
    RemoveDirectory(At),
    Link {
        from: At,
        to: At,
    },
    Rename {
        from: At,
        to: At,
        mode: u8,
    },
    Write {
        at: At,
        start: u16,
        bytes: u16,
        shift: u8,
    },
    Read {
        at: At,
        start: u16,
    },
    Fallocate {
        at: At,
        mode: u8,
        start: u16,
        length: u16,
        is_aligned: bool,
    },
    Resize {
        at: At,
        bytes: u16,
        shift: u8,
    },
    SetXattr {
        at: At,
        name: u8,
        bytes: u16,
        mode: u8,
    },
    RemoveXattr {
        at: At,
        name: u8,
    },
    SetAttributes {
        at: At,
        permissions: u16,
        uid: u32,
    },
    List(At),
    Fsync {
        at: At,
        data: bool,
    },
    Sync,
    Reopen,
    Many {
        at: At,
        count: u8,
        remove: bool,
    },
    Trim,
}

#[derive(Debug)]
struct Input {
    base: u8,
    wrong: Vec<Wrong>,
    steps: Vec<Step>,
}

impl<'a> Arbitrary<'a> for Input {
    fn arbitrary(from: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        Ok(Self {
            base: from.arbitrary()?,
            wrong: list(from, 3)?,
            steps: list(from, 32)?,
        })
    }
}

pub(crate) fn target(data: &[u8]) {
    if let Some(input) = parse::<Input>(data) {
        run(&input);
    }
}

fn run(input: &Input) {
    let base: &Base = match input.base % 8 {
        0..=3 => &AT_REST,
        4 => &IN_USE,
        5 | 6 => &NO_CHECKSUMS,
        _ => &MAPS,
    };
    let image = Arc::new(base.image.snapshot());
    for wrong in &input.wrong {
        base.damage(&image, &[], wrong.place, &wrong.damages);
    }
    let before = image.snapshot();
    let found = live(&image, &input.steps);
    if let Err(defect) = found {
        // It may be the damage's.
        let rested = Arc::new(before);
        let was_clean = named(rest(&rested)).is_some()
            && named(report(&rested)).is_some_and(|report| report.is_clean());
        assert!(!was_clean, "{defect}");
        assert!(!input.wrong.is_empty(), "{defect}");
    }
}

/// Opens, changes and closes the file system; an error is one that a file system without damage
/// does not have.
fn live(image: &Arc<MemoryDevice>, steps: &[Step]) -> std::result::Result<(), String> {
    let mut defect = Ok(());
    let mut note = |found: String| {
        if defect.is_ok() {
            defect = Err(found);
        }
    };
    let open = || Filesystem::open(image.clone(), options());
    let Some(mut filesystem) = named(open()) else {
        return Err("it does not open".to_owned());
    };
    for (number, step) in steps.iter().enumerate() {
        if let Step::Reopen = step {
            if named(filesystem.close()).is_none() {
                note("it is closed with an error".to_owned());
            }
            match named(open()) {
                Some(again) => filesystem = again,
                None => return Err("it does not open again".to_owned()),
            }
            continue;
        }
        match apply(&filesystem, number, *step) {
            Err(error) if error.kind() == ErrorKind::Corrupt => note(format!("{step:?}: {error}")),
            result => drop(named(result)),
        }
    }
    if let Some(root) = named(filesystem.root()) {
        walk(&root);
    }
    filesystem.statistics();
    if named(filesystem.close()).is_none() {
        note("it is closed with an error".to_owned());
    }
    match named(report(image)) {
        Some(report) if report.is_clean() => {}
        report => note(report.map_or_else(String::new, |report| report.to_string())),
    }
    defect
}

/// The value. An error names the damage; the device has none.
pub(crate) fn named<T>(result: Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            assert_error(&error);
            None
        }
    }
}

fn assert_error(error: &Error) {
    let text = error.to_string();
    assert_ne!(error.kind(), ErrorKind::Io, "{text}");
    assert_ne!(text, ErrorKind::Corrupt.description());
}

fn new(kind: NewKind<'_>) -> NewNode<'_> {
    NewNode {
        kind,
        permissions: 0o755,
        uid: 0,
        gid: 0,
        umask: 0,
    }
}

/// Up to 4 MiB, or with a shift far more.
fn offset(start: u16, shift: u8) -> u64 {
    let start = u64::from(start);
    match shift {
        0..=200 => start * 64,
        _ => start << (shift % 40),
    }
}

fn apply(filesystem: &Filesystem, number: usize, step: Step) -> Result<()> {
    let root = filesystem.root()?;
    let file = |at: At| at.node(&root)?.file();
    match step {
        Step::Create { at, kind } => {
            let target = [b't'; 300];
            let kind = match kind % 6 {
                0 => NewKind::Directory,
                1 => NewKind::SymbolicLink(&target[..9]),
                2 => NewKind::SymbolicLink(&target),
                3 => NewKind::Fifo,
                _ => NewKind::Regular,
            };
            at.directory(&root)?.create(at.name(), &new(kind)).map(drop)
        }
        Step::Unnamed { at, bytes, to } => {
            let made = root.create_unnamed(&new(NewKind::Regular))?;
            made.file()?.write_at(&vec![3; bytes.into()], 0)?;
            match to {
                Some(to) => to.directory(&root)?.link(to.name(), &made),
                None => at.directory(&root).map(drop),
            }
        }
        Step::Unlink(at) => at.directory(&root)?.unlink(at.name()),
        Step::RemoveDirectory(at) => at.directory(&root)?.remove_directory(at.name()),
        Step::Link { from, to } => to.directory(&root)?.link(to.name(), &from.node(&root)?),
        Step::Rename { from, to, mode } => {
            let mode = [
                RenameMode::Replace,
                RenameMode::NoReplace,
                RenameMode::Exchange,
            ][usize::from(mode) % 3];
            let to_directory = to.directory(&root)?;
            let from_directory = from.directory(&root)?;
            from_directory.rename(from.name(), &to_directory, to.name(), mode)
        }
        Step::Write {
            at,
            start,
            bytes,
            shift,
        } => {
            let data = vec![number as u8 | 1; usize::from(bytes)];
            file(at)?.write_at(&data, offset(start, shift))
        }
        Step::Read { at, start } => {
            let mut data = vec![0; 9000];
            file(at)?.read_at(&mut data, offset(start, 0)).map(drop)
        }
        Step::Fallocate {
            at,
            mode,
            start,
            length,
            is_aligned,
        } => {
            let mode = FallocateMode::ALL[usize::from(mode) % FallocateMode::ALL.len()];
            let unit = if is_aligned { 1024 } else { 67 };
            let start = u64::from(start % 4096) * unit;
            let end = start + u64::from(length % 2048) * unit;
            file(at)?.fallocate(mode, ByteRange::new(start, end))
        }
        Step::Resize { at, bytes, shift } => file(at)?.resize(offset(bytes, shift)),
        Step::SetXattr {
            at,
            name,
            bytes,
            mode,
        } => {
            let mode =
                [XattrMode::Set, XattrMode::Create, XattrMode::Replace][usize::from(mode) % 3];
            let value = vec![number as u8; usize::from(bytes % 1200)];
            at.node(&root)?.set_xattr(xattr(name), &value, mode)
        }
        Step::RemoveXattr { at, name } => at.node(&root)?.remove_xattr(xattr(name)),
        Step::SetAttributes {
            at,
            permissions,
            uid,
        } => at.node(&root)?.set_attributes(&AttributeChange {
            permissions: Some(permissions & 0o7777),
            uid: Some(uid),
            ..AttributeChange::default()
        }),
        Step::List(at) => {
            walk(&at.node(&root)?);
            Ok(())
        }
        Step::Fsync { at, data } => {
            let mode = if data { SyncMode::Data } else { SyncMode::All };
            at.node(&root)?.sync(mode)
        }
        Step::Sync => filesystem.sync(),
        Step::Reopen => unreachable!("the caller's"),
        Step::Many { at, count, remove } => {
            let directory = at.directory(&root)?;
            for number in 0..count {
                let name = format!("another name that is rather long, number {number}");
                if remove {
                    directory.unlink(name.as_bytes())?;
                } else {
                    directory.create(name.as_bytes(), &new(NewKind::Regular))?;
                }
            }
            Ok(())
        }
        Step::Trim => {
            let cancel = extant_space::CancelToken::new();
            filesystem
                .trim(ByteRange::new(0, 4 << 20), 1, &cancel)
                .map(drop)
        }
    }
}

fn xattr(name: u8) -> &'static [u8] {
    const NAMES: [&[u8]; 5] = [
        b"user.long",
        b"user.short",
        b"user.new",
        b"trusted.t",
        b"security.s",
    ];
    NAMES[usize::from(name) % NAMES.len()]
}

/// Reads everything below a node.
pub(crate) fn walk(node: &Node) {
    let mut next = vec![node.clone()];
    let mut entered = HashSet::new();
    while let Some(node) = next.pop() {
        // Files have many names, and directories may form a loop.
        if !entered.insert(node.number()) {
            continue;
        }
        for name in named(node.xattr_names()).unwrap_or_default() {
            named(node.xattr(&name));
        }
        match node.file_type() {
            FileType::SymbolicLink => drop(named(node.read_link())),
            FileType::Regular => read(&node),
            FileType::Directory => {
                for name in list_names(&node) {
                    let is_room = entered.len() + next.len() < NODES_MAX;
                    if is_room && let Some(child) = named(node.lookup(&name)) {
                        next.push(child);
                    }
                }
            }
            _ => {}
        }
    }
}

fn list_names(node: &Node) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    named(node.list(0, &mut |listed| {
        if !matches!(listed.name, b"." | b"..") {
            names.push(listed.name.to_vec());
        }
        if names.len() < NAMES_MAX {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    }));
    names
}

fn read(node: &Node) {
    let Some(file) = named(node.file()) else {
        return;
    };
    let mut seen = 0;
    named(file.for_each_extent(ByteRange::new(0, u64::MAX), &mut |_| {
        seen += 1;
        if seen < 2000 {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    }));
    let size = named(file.size()).unwrap_or_default();
    let mut buffer = vec![0; size.min(READ_MAX) as usize];
    named(file.read_at(&mut buffer, 0));
    named(file.read_at(&mut buffer, size.saturating_sub(READ_MAX)));
}
