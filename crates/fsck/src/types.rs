//! Checks that follow from the type of a file: device nodes have no blocks, links have a target.

use extant_ondisk::ext4::extent::ExtentNode;
use extant_ondisk::ext4::inode::{FileType, InodeFlags};
use extant_ondisk::ext4::{Incompat, Inode, InodeNumber};
use extant_space::Result;

use crate::checker::Check;
use crate::findings::{FindingKind, Location};
use crate::mapping::Run;

impl Check<'_> {
    /// Runs the checks that need only the inode.
    pub(crate) fn check_type(&mut self, number: InodeNumber, inode: &Inode, kind: FileType) {
        let words = match kind {
            FileType::Regular | FileType::Directory => self.lost_flag(inode),
            FileType::SymbolicLink => {
                self.counts.fast_symbolic_links += u64::from(inode.short_link_target().is_some());
                link_problem(inode)
            }
            _ => node_problem(inode),
        };
        if let Some(words) = words {
            self.findings
                .add(FindingKind::Inode, Location::inode(number), words);
        }
    }

    /// Block numbers that make a valid extent tree are one.
    fn lost_flag(&self, inode: &Inode) -> Option<&'static str> {
        let features = self.volume.superblock().features();
        let is_tree = features.incompat.contains(Incompat::EXTENTS)
            && !inode
                .flags()
                .intersects(InodeFlags::EXTENTS | InodeFlags::INLINE_DATA)
            && ExtentNode::parse_root(inode.block_area(), self.volume.layout()).is_ok();
        is_tree.then_some("an extent tree without the flag for it")
    }

    /// The target of a link that has a block for it: a text as long as the size says.
    pub(crate) fn check_link_target(
        &mut self,
        number: InodeNumber,
        inode: &Inode,
        runs: &[Run],
    ) -> Result<()> {
        // Neither a target that is encrypted nor one beside the attributes is a text in a block.
        let foreign = InodeFlags::ENCRYPT | InodeFlags::INLINE_DATA;
        if inode.short_link_target().is_some() || inode.flags().intersects(foreign) {
            return Ok(());
        }
        let size = inode.size_bytes(self.volume.layout());
        let words = match runs {
            [run] if run.logical == 0 && run.blocks == 1 => {
                let bytes = self.volume.block(run.physical)?;
                let length = bytes.iter().position(|&byte| byte == 0);
                if length.is_some_and(|length| length > 0 && length as u64 == size) {
                    return Ok(());
                } else {
                    "the length of the target differs from i_size"
                }
            }
            _ => "the target is not in one block",
        };
        self.findings
            .add(FindingKind::Inode, Location::inode(number), words);
        Ok(())
    }
}

fn link_problem(inode: &Inode) -> Option<&'static str> {
    if inode.flags().contains(InodeFlags::INDEX) || inode.raw().i_size_high.get() != 0 {
        return Some("a symbolic link with flags or size of another file");
    }
    if inode
        .flags()
        .intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND)
    {
        return Some("a symbolic link that is immutable or append-only");
    }
    if inode.flags().contains(InodeFlags::ENCRYPT) {
        return None;
    }
    let target = inode.short_link_target()?;
    let is_whole = !target.contains(&0) && inode.block_area()[target.len()] == 0;
    (!is_whole).then_some("the length of the target differs from i_size")
}

/// Devices, pipes and sockets.
fn node_problem(inode: &Inode) -> Option<&'static str> {
    let flags = inode.flags();
    if flags.intersects(InodeFlags::INDEX | InodeFlags::EXTENTS) {
        return Some("a device, pipe or socket with a map of blocks");
    }
    if flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
        return Some("a device, pipe or socket that is immutable or append-only");
    }
    let raw = inode.raw();
    let size = raw.i_size_lo.get() | raw.i_size_high.get();
    (size != 0).then_some("a device, pipe or socket with a size")
}
