//! Listing a directory, in parts, while names are added and removed.
//!
//! Model: every name has a cookie, and names are returned in the order of their cookies. A caller
//! continues after a cookie, whose name may have been removed. A name that exists throughout is
//! returned exactly once, whatever else changes between two calls, also when the directory becomes
//! indexed.
//!
//! - With a tree, the cookie is 3 plus 31 bits of the major and 32 bits of the minor hash. The
//!   minor hash of the legacy function is always 0, so that of TEA is used instead. `.` has cookie
//!   1, `..` has 2.
//! - A linear directory of one block, on a file system with `dir_index`, is listed in the same
//!   order: it may have a tree at the next call.
//! - Other directories return records in their order, and the cookie is 1 plus the byte offset of
//!   the record. Records do not move there.
//!
//! Cookies fit 63 bits, and 0 is before all. Equal cookies are possible for names constructed so;
//! such names are ordered by their bytes, and a caller that continues after cookie *and* name
//! misses none.

use std::ops::ControlFlow;

use extant_ondisk::ext4::LogicalBlock;
use extant_ondisk::ext4::directory::{
    self as disk, Entry, HashKind, HashSeed, HashVersion, name_hash,
};
use extant_space::Result;

use super::tree::{CONTINUED, HASH_MAX, Path, Root};
use super::{Directory, DirectoryBlocks, DirectoryEntry, FIRST, Shape, TreeRules};

const COOKIE_OWN: u64 = 1;
const COOKIE_PARENT: u64 = 2;
const COOKIE_NAMES: u64 = 3;
/// Most names in memory at a time, even in a damaged tree.
const KEPT_MAX: usize = if cfg!(test) { 50 } else { 4096 };

/// Position to continue from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct After<'a> {
    /// Position of the last name that was returned; 0 at the start.
    pub(crate) cookie: u64,
    /// That name. Without it, names with the same cookie count as seen.
    pub(crate) name: Option<&'a [u8]>,
}

/// A name as returned to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listed<'a> {
    /// The name, `.` and `..` among them.
    pub(crate) name: &'a [u8],
    /// Its entry.
    pub(crate) entry: DirectoryEntry,
    /// Position for continuing after it.
    pub(crate) cookie: u64,
}

/// Callback of a listing, for each name; `Break` ends the listing.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(Listed<'_>) -> ControlFlow<()>;

impl<B: DirectoryBlocks> Directory<B> {
    /// Gives out the names behind `after`, in the order of their cookies.
    ///
    /// A tree that is damaged so that names are not where their hashes say is listed all
    /// the same: such names count as if they had the nearest hash that fits.
    ///
    /// # Errors
    /// `Corrupt` with the block; an error of the store.
    pub(crate) fn for_each(&self, after: After<'_>, visit: Visit<'_>) -> Result<()> {
        let mut seen = LastName {
            cookie: after.cookie,
            name: after.name.map(Into::into),
        };
        match (self.shape(), self.context.tree) {
            (Shape::Tree, _) => self.list_tree(&mut seen, visit),
            (Shape::Linear, Some(rules)) if self.blocks.blocks() == 1 => {
                self.list_like_tree(rules, &mut seen, visit)
            }
            (Shape::Linear, _) => self.list_linear(after.cookie, visit),
        }
    }

    fn list_linear(&self, after: u64, visit: Visit<'_>) -> Result<()> {
        let bytes = u64::from(self.context.format.block_bytes);
        let first = after.saturating_sub(1) / bytes;
        for number in first..self.blocks.blocks().into() {
            let index = LogicalBlock(number as u32);
            let block = self.leaf(index)?;
            for entry in disk::entries(&block, &self.context.format) {
                let entry = entry.map_err(|error| self.at(index, error))?;
                let cookie = 1 + number * bytes + entry.offset as u64;
                if cookie > after && visit(Listed::new(&entry, cookie)).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn list_like_tree(
        &self,
        rules: TreeRules,
        seen: &mut LastName,
        visit: Visit<'_>,
    ) -> Result<()> {
        let block = self.leaf(FIRST)?;
        loop {
            let mut kept = NextNames::new(seen);
            for entry in disk::entries(&block, &self.context.format) {
                let entry = entry.map_err(|error| self.at(FIRST, error))?;
                let cookie = match entry.name {
                    b"." => COOKIE_OWN,
                    b".." => COOKIE_PARENT,
                    name => cookie(name, rules.hash, rules.seed, 0, HASH_MAX),
                };
                kept.offer(&entry, cookie);
            }
            let (names, fullness) = kept.sorted();
            if give_out(names, seen, visit).is_break() || fullness == Fullness::All {
                return Ok(());
            }
        }
    }

    fn list_tree(&self, seen: &mut LastName, visit: Visit<'_>) -> Result<()> {
        let root = self.root()?;
        for (dot, cookie) in self.dots(&root).iter().zip([COOKIE_OWN, COOKIE_PARENT]) {
            if cookie > seen.cookie && visit(Listed::new(dot, cookie)).is_break() {
                return Ok(());
            }
        }
        let major = (seen.cookie.saturating_sub(COOKIE_NAMES) >> 32) << 1;
        let Some(major) = u32::try_from(major).ok().filter(|&major| major <= HASH_MAX) else {
            return Ok(());
        };
        let mut path = self.descend(&root, major)?;
        loop {
            let (kept, end) = self.gather(&root, path.clone(), seen)?;
            let (names, fullness) = kept.sorted();
            if give_out(names, seen, visit).is_break() {
                return Ok(());
            }
            if fullness == Fullness::All {
                path = end;
                if self.next_hash(&path)?.is_none() {
                    return Ok(());
                }
                self.go_on(&mut path)?;
            }
        }
    }

    /// The names of the leaf at `path`, and of those that continue its last hash: they are sorted
    /// together.
    fn gather<'s>(
        &self,
        root: &Root,
        mut path: Path,
        seen: &'s LastName,
    ) -> Result<(NextNames<'s>, Path)> {
        let mut kept = NextNames::new(seen);
        loop {
            let next = self.next_hash(&path)?;
            let lowest = path.hash() & !CONTINUED;
            let highest = next.map_or(HASH_MAX, |next| next.saturating_sub(1) & !CONTINUED);
            let index = path.leaf();
            let block = self.leaf(index)?;
            for entry in disk::entries(&block, &self.context.format) {
                let entry = entry.map_err(|error| self.at(index, error))?;
                let (version, seed) = (root.version(), self.rules().seed);
                kept.offer(&entry, cookie(entry.name, version, seed, lowest, highest));
            }
            match next {
                Some(next) if next & CONTINUED != 0 => self.go_on(&mut path)?,
                _ => return Ok((kept, path)),
            }
        }
    }
}

impl<'a> Listed<'a> {
    fn new(entry: &Entry<'a>, cookie: u64) -> Self {
        Self {
            name: entry.name,
            entry: (*entry).into(),
            cookie,
        }
    }
}

/// The cookie of a name in a leaf with hashes from `lowest` to `highest`.
fn cookie(name: &[u8], version: HashVersion, seed: HashSeed, lowest: u32, highest: u32) -> u64 {
    let hash = name_hash(name, version, seed);
    let minor = match version.kind {
        HashKind::Legacy => {
            let kind = HashKind::Tea;
            name_hash(name, HashVersion { kind, ..version }, seed).minor
        }
        HashKind::HalfMd4 | HashKind::Tea => hash.minor,
    };
    // Not `clamp`: in a damaged tree the highest may be below the lowest.
    let major = hash.major.min(highest).max(lowest);
    COOKIE_NAMES + (u64::from(major >> 1) << 32 | u64::from(minor))
}

/// The last name returned.
struct LastName {
    cookie: u64,
    /// `None`: the last of those with the cookie.
    name: Option<Box<[u8]>>,
}

impl LastName {
    fn is_before(&self, cookie: u64, name: &[u8]) -> bool {
        let is_before_name = || self.name.as_deref().is_some_and(|seen| seen < name);
        self.cookie < cookie || self.cookie == cookie && is_before_name()
    }
}

/// Whether all names that were offered were kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fullness {
    All,
    /// Only the first [`KEPT_MAX`].
    First,
}

/// The first names behind one.
struct NextNames<'s> {
    seen: &'s LastName,
    /// In no order, and up to twice [`KEPT_MAX`].
    names: Vec<Name>,
    fullness: Fullness,
}

/// A kept name, to be returned later.
struct Name {
    cookie: u64,
    name: Box<[u8]>,
    entry: DirectoryEntry,
}

impl Name {
    fn place(&self) -> (u64, &[u8]) {
        (self.cookie, &self.name)
    }
}

impl<'s> NextNames<'s> {
    fn new(seen: &'s LastName) -> Self {
        Self {
            seen,
            names: Vec::new(),
            fullness: Fullness::All,
        }
    }

    fn offer(&mut self, entry: &Entry<'_>, cookie: u64) {
        if !self.seen.is_before(cookie, entry.name) {
            return;
        }
        self.names.push(Name {
            cookie,
            name: entry.name.into(),
            entry: (*entry).into(),
        });
        if self.names.len() >= 2 * KEPT_MAX {
            self.cut();
        }
    }

    fn cut(&mut self) {
        self.names
            .sort_unstable_by(|one, other| one.place().cmp(&other.place()));
        // In a damaged directory a name may be there twice.
        self.names
            .dedup_by(|later, earlier| later.place() == earlier.place());
        if self.names.len() > KEPT_MAX {
            self.names.truncate(KEPT_MAX);
            self.fullness = Fullness::First;
        }
    }

    fn sorted(mut self) -> (Vec<Name>, Fullness) {
        self.cut();
        (self.names, self.fullness)
    }
}

fn give_out(names: Vec<Name>, seen: &mut LastName, visit: Visit<'_>) -> ControlFlow<()> {
    for kept in names {
        let flow = visit(Listed {
            name: &kept.name,
            entry: kept.entry,
            cookie: kept.cookie,
        });
        *seen = LastName {
            cookie: kept.cookie,
            name: Some(kept.name),
        };
        flow?;
    }
    ControlFlow::Continue(())
}
