//! Directories in memory compared with a map, damaged directories, and directories written by the
//! kernel.

mod collisions;
mod failures;
mod growth;
mod hostile;
mod image;
mod kernel;
mod listing;
mod memory;
mod model;
mod verify;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use extant_ondisk::ext4::directory::{
    DirectoryFormat, HashKind, HashSeed, HashVersion, Sign, Tail, TypeField, name_hash,
};
use extant_ondisk::ext4::inode::FileType;
use extant_ondisk::ext4::{InodeNumber, Seed};

use super::{After, Directory, DirectoryBlocks, DirectoryContext, Shape, TreeRules};
use memory::Memory;

const OWN: InodeNumber = InodeNumber(12);
const PARENT: InodeNumber = InodeNumber(2);
const HALF_MD4: HashVersion = HashVersion {
    kind: HashKind::HalfMd4,
    sign: Sign::Signed,
};
const TEA: HashVersion = HashVersion {
    kind: HashKind::Tea,
    sign: Sign::Unsigned,
};

type Names = BTreeMap<Vec<u8>, InodeNumber>;

/// Blocks of 1 KiB with checksums, and trees with two levels at most.
fn context(hash: HashVersion) -> DirectoryContext {
    DirectoryContext {
        format: DirectoryFormat {
            block_bytes: 1024,
            tail: Tail::Checksum,
            types: TypeField::Present,
            inodes: 1 << 20,
        },
        seed: Some(Seed::from_stored(7).inode(OWN, 1)),
        tree: Some(TreeRules {
            hash,
            seed: HashSeed::new([1, 2, 3, 4]),
            levels_max: 1,
        }),
        flagged: Shape::Linear,
        blocks_max: u32::MAX,
    }
}

/// Without checksums.
fn context_without_sums(hash: HashVersion) -> DirectoryContext {
    let mut context = context(hash);
    context.format.tail = Tail::None;
    context.seed = None;
    context
}

fn empty(context: DirectoryContext) -> Directory<Memory> {
    let mut directory = Directory::new(context, Memory::new(&context)).unwrap();
    directory.init(OWN, PARENT).unwrap();
    directory
}

/// A name of `bytes` bytes, another one for every number, in no order.
fn name(number: u32, bytes: usize) -> Vec<u8> {
    let mixed = number.wrapping_mul(0x9E37_79B1);
    let mut name = format!("{mixed:08x}").into_bytes();
    name.resize(bytes.max(8), b'.');
    name
}

/// Long names in the order of their hashes, which leave every leaf and node half full behind
/// them: the tree becomes deep with few names.
fn sorted_names(context: &DirectoryContext, count: u32) -> Vec<Vec<u8>> {
    let rules = context.tree.unwrap();
    let mut names: Vec<_> = (0..count).map(|number| name(number, 250)).collect();
    names.sort_by_cached_key(|name| name_hash(name, rules.hash, rules.seed));
    names
}

fn insert(directory: &mut Directory<Memory>, name: &[u8], inode: u32) {
    let result = directory.insert(name, InodeNumber(inode), FileType::Regular);
    result.unwrap_or_else(|error| panic!("{}: {error}", name.escape_ascii()));
}

/// All names but `.` and `..`, as a listing returns them.
fn listed<B: DirectoryBlocks>(directory: &Directory<B>) -> Names {
    let mut names = Names::new();
    let visit = &mut |listed: super::Listed<'_>| {
        if !matches!(listed.name, b"." | b"..") {
            let before = names.insert(listed.name.to_vec(), listed.entry.inode);
            assert_eq!(before, None, "{} twice", listed.name.escape_ascii());
        }
        ControlFlow::Continue(())
    };
    directory.for_each(After::default(), visit).unwrap();
    names
}
