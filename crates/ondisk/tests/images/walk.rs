//! A walk over every structure of an inode; each is validated and rewritten to the same bytes.

use std::collections::BTreeMap;

use extant_ondisk::ext4::block_map::{self, BlockPath};
use extant_ondisk::ext4::directory::{
    self, DirectoryFormat, HASH_END, IndexNode, IndexNodeMut, IndexShape, name_hash,
};
use extant_ondisk::ext4::extent::{ExtentKind, ExtentNode, ExtentNodeMut, NodePlace};
use extant_ondisk::ext4::inode::{FileType, InodeFlags};
use extant_ondisk::ext4::xattr::{Attributes, XattrBlock, XattrValue};
use extant_ondisk::ext4::{
    GroupDescriptor, Incompat, Inode, InodeNumber, InodeSeed, LogicalBlock, PhysicalBlock,
    Superblock,
};

use crate::image::Image;

/// How much of each kind was seen.
#[derive(Debug, Default)]
pub struct Seen {
    pub inodes: usize,
    pub extents: usize,
    pub unwritten: usize,
    pub extent_blocks: usize,
    pub extent_depth: u16,
    pub mapped_blocks: usize,
    pub directory_blocks: usize,
    pub names: usize,
    pub index_nodes: usize,
    pub index_levels: u8,
    pub inode_attributes: usize,
    pub block_attributes: usize,
}

/// An image that is read.
pub struct Walk<'a> {
    pub image: &'a Image,
    pub superblock: Superblock,
    pub seen: Seen,
    /// Start of the inode tables of groups.
    tables: BTreeMap<u32, PhysicalBlock>,
}

/// A mapped piece of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub physical: PhysicalBlock,
    pub kind: ExtentKind,
}

impl<'a> Walk<'a> {
    pub fn new(image: &'a Image) -> Self {
        Self {
            image,
            superblock: image.superblock(),
            seen: Seen::default(),
            tables: BTreeMap::new(),
        }
    }

    fn block(&self, block: PhysicalBlock) -> Vec<u8> {
        self.image.block(self.superblock.layout(), block)
    }

    /// Location of an inode, in bytes of the image.
    pub fn inode_offset(&mut self, number: InodeNumber) -> u64 {
        let layout = *self.superblock.layout();
        let place = layout.locate_inode(number).unwrap();
        let (image, superblock) = (self.image, &self.superblock);
        let table = self.tables.entry(place.group.0).or_insert_with(|| {
            let at = layout.descriptor_place(place.group);
            let block = image.block(&layout, at.block);
            let bytes = &block[at.byte as usize..];
            let descriptor = GroupDescriptor::parse(bytes, place.group, superblock).unwrap();
            descriptor.inode_table()
        });
        let block = PhysicalBlock(table.0 + u64::from(place.table_block));
        layout.bytes_of(block).start() + u64::from(place.byte)
    }

    /// An inode, validated and written again.
    pub fn inode(&mut self, number: InodeNumber) -> (Inode, Vec<u8>) {
        let offset = self.inode_offset(number);
        let (layout, seed) = (self.superblock.layout(), self.superblock.seed());
        let bytes = self.image.read(offset, layout.inode_bytes().into());
        let inode = Inode::parse(&bytes, number, layout, seed).unwrap();
        if bytes.iter().any(|&byte| byte != 0) {
            let fields = usize::from(Inode::BASE_BYTES + inode.extra_isize().min(32));
            let mut copy = bytes.clone();
            copy[..fields].fill(0xA5);
            inode.write(&mut copy, number, layout, seed);
            assert_eq!(copy, bytes, "inode {number} written again");
            self.seen.inodes += 1;
        }
        (inode, bytes)
    }

    fn inode_seed(&self, inode: &Inode, number: InodeNumber) -> Option<InodeSeed> {
        self.superblock.seed().map(|seed| inode.seed(seed, number))
    }

    /// All mapped blocks of a file.
    pub fn map(&mut self, number: InodeNumber, inode: &Inode) -> BTreeMap<u32, Piece> {
        let mut map = BTreeMap::new();
        if inode.flags().contains(InodeFlags::EXTENTS) {
            let layout = *self.superblock.layout();
            let root = ExtentNode::parse_root(inode.block_area(), &layout).unwrap();
            self.seen.extent_depth = self.seen.extent_depth.max(root.depth());
            self.rewrite_extents(inode.block_area(), &root, None);
            let seed = self.inode_seed(inode, number);
            self.map_extents(&root, seed, &mut map);
        } else {
            self.map_blocks(inode, &mut map);
        }
        map
    }

    fn map_extents(
        &mut self,
        node: &ExtentNode<'_>,
        seed: Option<InodeSeed>,
        map: &mut BTreeMap<u32, Piece>,
    ) {
        if node.depth() == 0 {
            for leaf in node.leaves() {
                self.seen.extents += 1;
                self.seen.unwritten += usize::from(leaf.kind == ExtentKind::Unwritten);
                for offset in 0..leaf.blocks {
                    let logical = leaf.logical.0 + u32::from(offset);
                    let physical = leaf.map(LogicalBlock(logical)).unwrap();
                    let kind = leaf.kind;
                    map.insert(logical, Piece { physical, kind });
                }
            }
            return;
        }
        for index in 0..node.len() {
            let place: NodePlace = node.child(index);
            let block = self.block(place.block);
            let layout = *self.superblock.layout();
            let child = ExtentNode::parse_block(&block, &place, &layout, seed).unwrap();
            self.seen.extent_blocks += 1;
            self.rewrite_extents(&block, &child, seed);
            self.map_extents(&child, seed, map);
        }
    }

    /// Writes all entries and the sum again.
    fn rewrite_extents(&self, bytes: &[u8], node: &ExtentNode<'_>, seed: Option<InodeSeed>) {
        let mut copy = bytes.to_vec();
        copy[12..12 * (node.len() + 1)].fill(0xA5);
        if seed.is_some() {
            let tail = 12 * (node.capacity() + 1);
            copy[tail..tail + 4].fill(0xA5);
        }
        let mut writer = ExtentNodeMut::new(&mut copy);
        for index in 0..node.len() {
            match node.depth() {
                0 => writer.set_leaf(index, &node.leaf(index)),
                _ => writer.set_index(index, &node.index(index)),
            }
        }
        writer.seal(seed);
        assert_eq!(copy, bytes, "extents written again");
    }

    fn map_blocks(&mut self, inode: &Inode, map: &mut BTreeMap<u32, Piece>) {
        let layout = *self.superblock.layout();
        let blocks = inode
            .size_bytes(&layout)
            .div_ceil(layout.block_bytes().into());
        let mut cache: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for logical in 0..blocks as u32 {
            let path = BlockPath::to(LogicalBlock(logical), &layout).unwrap();
            let mut found = block_map::entry(inode.block_area(), path.steps()[0], &layout).unwrap();
            for &step in &path.steps()[1..] {
                let Some(PhysicalBlock(block)) = found else {
                    break;
                };
                let bytes = cache
                    .entry(block)
                    .or_insert_with(|| self.block(PhysicalBlock(block)));
                found = block_map::entry(bytes, step, &layout).unwrap();
            }
            if let Some(physical) = found {
                self.seen.mapped_blocks += 1;
                let kind = ExtentKind::Written;
                map.insert(logical, Piece { physical, kind });
            }
        }
    }

    /// The bytes of a file: zeros where nothing is mapped or written.
    pub fn contents(&mut self, number: InodeNumber, inode: &Inode) -> Vec<u8> {
        let layout = *self.superblock.layout();
        if let Some(target) = inode.short_link_target() {
            return target.to_vec();
        }
        let block_bytes = layout.block_bytes() as usize;
        let size = inode.size_bytes(&layout) as usize;
        let mut contents = vec![0; size.next_multiple_of(block_bytes)];
        for (logical, piece) in self.map(number, inode) {
            let at = logical as usize * block_bytes;
            if piece.kind == ExtentKind::Written && at < contents.len() {
                contents[at..at + block_bytes].copy_from_slice(&self.block(piece.physical));
            }
        }
        contents.truncate(size);
        contents
    }

    /// Names and inodes of a directory, tree or not.
    pub fn names(&mut self, number: InodeNumber, inode: &Inode) -> Vec<(Vec<u8>, u32)> {
        assert_eq!(inode.mode().file_type(), Some(FileType::Directory));
        let format = DirectoryFormat::of(&self.superblock);
        let seed = self.inode_seed(inode, number);
        let contents = self.contents(number, inode);
        let blocks: Vec<_> = contents.chunks(format.block_bytes as usize).collect();
        let mut names = Vec::new();
        if !inode.flags().contains(InodeFlags::INDEX) {
            for block in blocks {
                self.records(block, &format, seed, &mut names);
            }
            return names;
        }
        let has_large = self
            .superblock
            .features()
            .incompat
            .contains(Incompat::LARGEDIR);
        let levels_max = if has_large { 2 } else { 1 };
        let root = IndexNode::parse_root(blocks[0], &format, levels_max, seed).unwrap();
        let dots = root.dots(&format);
        names.extend(dots.map(|dot| (dot.name.to_vec(), dot.inode.0)));
        self.seen.index_levels = self.seen.index_levels.max(root.levels());
        self.rewrite_root(blocks[0], &root, &format, seed);
        let tree = Tree {
            blocks,
            format,
            seed,
            version: root.hash_kind().with_sign_of(self.superblock.flags()),
        };
        self.index(
            &tree,
            &root,
            root.levels(),
            0..u64::from(HASH_END),
            &mut names,
        );
        names
    }

    fn index(
        &mut self,
        tree: &Tree<'_>,
        node: &IndexNode<'_>,
        levels: u8,
        bounds: std::ops::Range<u64>,
        names: &mut Vec<(Vec<u8>, u32)>,
    ) {
        self.seen.index_nodes += 1;
        for (index, entry) in node.entries().enumerate() {
            let start = if index == 0 {
                bounds.start
            } else {
                entry.hash.into()
            };
            let end = if index + 1 < node.len() {
                u64::from(node.entry(index + 1).hash)
            } else {
                bounds.end
            };
            let block = tree.blocks[entry.block.0 as usize];
            if levels > 0 {
                let child = IndexNode::parse_node(block, &tree.format, tree.seed).unwrap();
                self.rewrite_node(block, &child, tree);
                self.index(tree, &child, levels - 1, start..end, names);
                continue;
            }
            let before = names.len();
            self.records(block, &tree.format, tree.seed, names);
            for (name, _) in &names[before..] {
                let hash = name_hash(name, tree.version, self.superblock.hash_seed()).major;
                // An odd bound means that the even hash continues after it.
                let range = start & !1..=end;
                assert!(range.contains(&hash.into()), "{hash:#x} outside {range:x?}");
            }
        }
    }

    fn rewrite_root(
        &self,
        block: &[u8],
        root: &IndexNode<'_>,
        format: &DirectoryFormat,
        seed: Option<InodeSeed>,
    ) {
        let [own, parent] = root.dots(format).map(|dot| dot.inode);
        let (kind, below) = (root.hash_kind(), root.entry(0).block);
        let mut copy = vec![0xA5; block.len()];
        let mut node = IndexNodeMut::init_root(&mut copy, format, own, parent, kind, below);
        node.set_levels(root.levels());
        self.rewrite_index(block, root, node, format, seed);
        let end = used_end(root, IndexShape::Root, format);
        assert_eq!(copy[..end], block[..end], "root written again");
        assert_eq!(
            copy[copy.len() - 4..],
            block[block.len() - 4..],
            "sum of the root"
        );
    }

    fn rewrite_node(&self, block: &[u8], node: &IndexNode<'_>, tree: &Tree<'_>) {
        let mut copy = vec![0xA5; block.len()];
        let writer = IndexNodeMut::init_node(&mut copy, &tree.format, node.entry(0).block);
        self.rewrite_index(block, node, writer, &tree.format, tree.seed);
        let end = used_end(node, IndexShape::Node, &tree.format);
        assert_eq!(copy[..end], block[..end], "node written again");
        assert_eq!(
            copy[copy.len() - 4..],
            block[block.len() - 4..],
            "sum of the node"
        );
    }

    fn rewrite_index(
        &self,
        block: &[u8],
        node: &IndexNode<'_>,
        mut writer: IndexNodeMut<'_>,
        format: &DirectoryFormat,
        seed: Option<InodeSeed>,
    ) {
        assert_eq!(block.len(), format.block_bytes as usize);
        for (index, entry) in node.entries().enumerate().skip(1) {
            writer.insert(index, entry);
        }
        writer.seal(format, seed);
    }

    /// The names of a block, validated and written again.
    fn records(
        &mut self,
        block: &[u8],
        format: &DirectoryFormat,
        seed: Option<InodeSeed>,
        names: &mut Vec<(Vec<u8>, u32)>,
    ) {
        directory::verify(block, format, seed).unwrap();
        let mut copy = block.to_vec();
        copy[format.records_end()..].fill(0xA5);
        for entry in directory::entries(block, format) {
            let entry = entry.unwrap();
            let kind = entry.file_type.unwrap_or(FileType::Regular);
            directory::retarget(&mut copy, format, entry.offset, entry.inode, kind);
            names.push((entry.name.to_vec(), entry.inode.0));
            self.seen.names += 1;
        }
        directory::seal(&mut copy, format, seed);
        assert_eq!(copy, block, "records written again");
        self.seen.directory_blocks += 1;
    }

    /// Attributes of a file, in both places: full name and value.
    pub fn attributes(
        &mut self,
        number: InodeNumber,
        inode: &Inode,
        bytes: &[u8],
    ) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let layout = *self.superblock.layout();
        let seed = self.superblock.seed();
        let mut found = BTreeMap::new();
        let inside = Attributes::parse_inode(bytes, inode, &layout).unwrap();
        inside.check_hashes().unwrap();
        if !inside.is_empty() {
            let mut copy = bytes.to_vec();
            inside.write_inode(&mut copy, inode, &layout).unwrap();
            inode.write(&mut copy, number, &layout, seed);
            assert_eq!(copy, bytes, "attributes of inode {number} written again");
        }
        self.seen.inode_attributes += inside.iter().len();
        let mut lists = vec![inside.into_owned()];
        if let Some(place) = inode.xattr_block(&layout) {
            let block = self.block(place);
            let parsed = XattrBlock::parse(&block, place, seed).unwrap();
            parsed.attributes.check_hashes().unwrap();
            let mut copy = vec![0; block.len()];
            let list = &parsed.attributes;
            list.write_block(&mut copy, parsed.references, place, seed)
                .unwrap();
            let mut expected = block.clone();
            if parsed.hash == 0 {
                // Attributes that Linux may search in other blocks have a hash, those that debugfs
                // writes have none.
                expected[0xC..0x14].copy_from_slice(&copy[0xC..0x14]);
            } else {
                assert_eq!(parsed.hash, parsed.computed_hash(), "hash of block {place}");
            }
            assert_eq!(copy, expected, "attribute block {place} written again");
            self.seen.block_attributes += list.iter().len();
            lists.push(parsed.attributes.into_owned());
        }
        for list in &lists {
            for attribute in list.iter() {
                let value = match &attribute.value {
                    XattrValue::Bytes(bytes) => bytes.to_vec(),
                    XattrValue::Inode { inode, bytes } => {
                        let (value, _) = self.inode(*inode);
                        assert!(value.flags().contains(InodeFlags::EA_INODE));
                        let contents = self.contents(*inode, &value);
                        assert_eq!(contents.len(), *bytes as usize);
                        contents
                    }
                };
                found.insert(attribute.name.full(), value);
            }
        }
        found
    }
}

/// A directory's blocks with their common parameters.
struct Tree<'a> {
    blocks: Vec<&'a [u8]>,
    format: DirectoryFormat,
    seed: Option<InodeSeed>,
    version: directory::HashVersion,
}

/// End of the used entries of a node; the rest is undefined.
fn used_end(node: &IndexNode<'_>, shape: IndexShape, format: &DirectoryFormat) -> usize {
    let spare = shape.capacity(format) - node.len();
    let tail = if format.tail == directory::Tail::Checksum {
        8
    } else {
        0
    };
    let end = format.block_bytes as usize - tail;
    // Entries have 8 bytes and fill the block.
    end - spare * 8
}
