//! The ext4 images that inputs change: file systems with every kind of structure.
//!
//! `images` has them compressed, made by the test `images_are_made_again`, as an input means the
//! same only on the same image.

#[path = "../../ext4/tests/trouble/corrupt/sealed.rs"]
pub(crate) mod sealed;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use extant_blockdev::{Device, MemoryDevice};
use extant_ext4::{Filesystem, OnError, Options};
use extant_fsck::{CheckOptions, Report, check};
use extant_space::{CancelToken, Control, Result, Silent};

use crate::crc::crc32c;
use crate::damage::Damage;
use sealed::{Kind, Sealed, Structure};

/// An image, and its structures.
pub(crate) struct Base {
    pub(crate) image: MemoryDevice,
    structures: Structures,
}

/// The parts that inputs change.
enum Structures {
    /// Structures with checksums.
    Sealed(Sealed),
    /// The offsets of blocks with metadata.
    Blocks(Vec<usize>),
}

/// Content of files in the images.
const FILL: u8 = 0x5A;
const BLOCK: usize = 1024;

/// Checksums, an orphan file, and a log with transactions that are not checkpointed.
pub(crate) static IN_USE: LazyLock<Base> =
    LazyLock::new(|| Base::sealed(include_bytes!("../images/checksums.z")));

/// The same after recovery.
pub(crate) static AT_REST: LazyLock<Base> =
    LazyLock::new(|| Base::sealed(include_bytes!("../images/checksums-rest.z")));

/// No checksums, many small groups, orphans in a list.
pub(crate) static NO_CHECKSUMS: LazyLock<Base> =
    LazyLock::new(|| Base::plain(include_bytes!("../images/no-checksums.z")));

/// As ext3 makes it: block maps.
pub(crate) static MAPS: LazyLock<Base> =
    LazyLock::new(|| Base::plain(include_bytes!("../images/maps.z")));

/// With fast commits, and a log that is not checkpointed.
pub(crate) static FAST_COMMIT: LazyLock<Base> =
    LazyLock::new(|| Base::plain(include_bytes!("../images/fast-commit.z")));

fn unpacked(bytes: &[u8]) -> MemoryDevice {
    let image = miniz_oxide::inflate::decompress_to_vec_zlib(bytes);
    MemoryDevice::from_bytes(&image.expect("an image of this directory"))
}

impl Base {
    fn sealed(packed: &[u8]) -> Self {
        let image = unpacked(packed);
        let structures = Structures::Sealed(Sealed::new(&image));
        Self { image, structures }
    }

    fn plain(packed: &[u8]) -> Self {
        let image = unpacked(packed);
        let bytes = image.to_vec();
        let blocks = bytes.chunks(BLOCK).enumerate();
        let has_metadata = |block: &[u8]| block.iter().any(|byte| ![0, 0xFF, FILL].contains(byte));
        let blocks = blocks.filter(|(_, block)| has_metadata(block));
        let blocks = blocks.map(|(number, _)| number * BLOCK).collect();
        let structures = Structures::Blocks(blocks);
        Self { image, structures }
    }

    /// Changes a structure of one of `kinds`, or of any if there are none, and recomputes its
    /// checksum. In an image without checksums, a block.
    pub(crate) fn damage(
        &self,
        image: &MemoryDevice,
        kinds: &[Kind],
        place: u16,
        damages: &[Damage],
    ) {
        let sealed = match &self.structures {
            Structures::Sealed(sealed) => sealed,
            Structures::Blocks(blocks) => {
                let offset = blocks[usize::from(place) % blocks.len()];
                let mut bytes = vec![0; BLOCK];
                let read = image.read_at(&mut bytes, offset as u64);
                read.expect("inside the image");
                damages.iter().for_each(|damage| damage.apply(&mut bytes));
                sealed::put_bytes(image, offset, &bytes);
                return;
            }
        };
        let is_wanted = |found: &&Structure| kinds.is_empty() || kinds.contains(&found.kind);
        let all: Vec<_> = sealed.found.iter().filter(is_wanted).collect();
        let structure = all[usize::from(place) % all.len()];
        let mut bytes = sealed.read(image, structure);
        damages.iter().for_each(|damage| damage.apply(&mut bytes));
        sealed.write(image, structure, bytes);
    }
}

/// Small caches, so that the device is read again and again; commits only where asked for.
pub(crate) fn options() -> Options {
    Options {
        on_error: Some(OnError::Continue),
        commit_interval: Duration::from_secs(100_000),
        cached_blocks: 4,
        cached_inodes: 4,
        ..Options::default()
    }
}

/// Recovers the file system and closes it.
pub(crate) fn rest(image: &Arc<MemoryDevice>) -> Result<()> {
    Filesystem::open(image.clone(), options()).and_then(Filesystem::close)
}

/// Our check.
pub(crate) fn report(image: &MemoryDevice) -> Result<Report> {
    let cancel = CancelToken::new();
    check(
        image,
        &CheckOptions::default(),
        Control::new(&cancel, &Silent),
    )
}
