//! Size of an image's file before its creation.

use std::ops::ControlFlow;
use std::sync::Arc;

use extant_space::{ByteRange, Preallocation as Space, Result, SpaceFile};
use serde::Serialize;

use crate::format::{Header, RawBitmap, Version};
use crate::image_file::ImageFile;
use crate::image_format::Format;
use crate::layer::Layer;
use crate::layout::{DATA_ALIGNMENT, Layout, Mapped};
use crate::new_image::NewImage;
use crate::offline_edit::OfflineEdit;
use crate::options::ImageOptions;
use crate::preallocation::Preallocation;

/// Sizes of a new image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Measurement {
    /// Bytes for the image with the data that it is to hold.
    pub required_bytes: u64,
    /// Bytes of the image with every guest cluster written.
    pub fully_allocated_bytes: u64,
}

/// Bytes of the bitmaps of `source` in an image with clusters of `cluster_bytes`; `None` if the
/// source cannot have any.
///
/// # Errors
/// Those of reading.
pub fn bitmap_bytes(source: &Layer, cluster_bytes: u64) -> Result<Option<u64>> {
    let Some(facts) = source.qcow2_info()? else {
        return Ok(None);
    };
    if facts.compat == Version::V2.compat() {
        return Ok(None);
    }
    let (mut bytes, mut directory) = (0, 0);
    let valid = facts.bitmaps.iter().filter(|bitmap| !bitmap.is_in_use);
    for bitmap in valid.filter(|bitmap| bitmap.granularity_bytes > 0) {
        let bits = source.virtual_bytes().div_ceil(bitmap.granularity_bytes);
        let clusters = bits.div_ceil(8).div_ceil(cluster_bytes);
        let table = (clusters * 8).next_multiple_of(cluster_bytes);
        bytes += clusters * cluster_bytes + table;
        directory += (size_of::<RawBitmap>() + bitmap.name.len()).next_multiple_of(8) as u64;
    }
    Ok(Some(bytes + directory.next_multiple_of(cluster_bytes)))
}

/// Measures an image with `data_bytes` of data initially, in whole clusters.
///
/// As in QEMU, the tables are counted completely: an image that grows to its virtual size needs
/// them.
///
/// # Errors
/// Those of [`NewImage::new`](crate::NewImage::new).
pub fn measure(options: &ImageOptions, data_bytes: u64) -> Result<Measurement> {
    options.check()?;
    let fully_allocated_bytes = match options.format {
        Format::Raw => {
            return Ok(Measurement {
                required_bytes: options.virtual_bytes,
                fully_allocated_bytes: options.virtual_bytes,
            });
        }
        Format::Qcow2 => {
            let mapped = match options.qcow2.data_file {
                Some(_) => Mapped::Elsewhere,
                None => Mapped::Here,
            };
            let layout = Layout::new(options.qcow2.geometry()?, options.disk_bytes(), mapped)?;
            let spare = layout.offset(layout.data_clusters);
            match options.preallocation {
                Preallocation::Off | Preallocation::Metadata => {
                    let data_bytes = data_bytes.min(spare);
                    return Ok(Measurement {
                        required_bytes: layout.file_bytes() - spare + data_bytes,
                        fully_allocated_bytes: layout.file_bytes(),
                    });
                }
                Preallocation::Falloc | Preallocation::Full => layout.file_bytes(),
            }
        }
    };
    Ok(Measurement {
        required_bytes: NewImage::new(options)?.file_bytes(),
        fully_allocated_bytes,
    })
}

/// Most bytes that [`resize`](crate::resize) allocates on the host, in a qcow2 file of
/// `file_bytes`.
pub fn resize_bytes_max(
    header: &Header,
    file_bytes: u64,
    virtual_bytes: u64,
    preallocation: Preallocation,
) -> u64 {
    let geometry = header.geometry;
    let old_bytes = header.virtual_bytes;
    if virtual_bytes <= old_bytes {
        return 0;
    }
    let (l1_new, l1_old) = (
        geometry.l1_entries(virtual_bytes),
        geometry.l1_entries(old_bytes),
    );
    // The L1 table moves when it has to be longer.
    let l1 = if l1_new > l1_old {
        geometry.clusters(l1_new * 8)
    } else {
        0
    };
    let (tables, data) = match preallocation {
        Preallocation::Off if header.backing_file.is_none() => (0, 0),
        // Tables that hide a longer backing file. The last table of the old disk may be missing as
        // well.
        _ => (
            l1_new - l1_old + 1,
            geometry.clusters(virtual_bytes) - old_bytes / geometry.cluster_bytes(),
        ),
    };
    let added = l1 + tables + data;
    let entries = geometry.refcount_block_entries();
    let blocks = added / entries + 2;
    let counted = geometry.clusters(file_bytes) + added + blocks;
    let refcount_table = geometry.clusters((counted / entries + 1) * 8);
    // Once for the L1 table, once for the mapped clusters.
    let metadata = l1 + tables + 2 * (blocks + refcount_table);
    let space = match preallocation.space() {
        Space::Off => metadata,
        Space::Falloc | Space::Full => metadata + data + geometry.clusters(DATA_ALIGNMENT),
    };
    space.saturating_mul(geometry.cluster_bytes())
}

/// Size of the file of a qcow2 image after [`materialize`](crate::materialize). For an image with
/// outdated refcounts (dirty) it is an upper bound.
///
/// # Errors
/// Those of the tables, which are read; nothing is changed.
pub fn full_file_bytes(file: Arc<dyn SpaceFile>) -> Result<u64> {
    OfflineEdit::looking(&ImageFile::held(file))?.full_bytes()
}

/// Bytes of the clusters of `cluster_bytes` in which a copy of `layer` would have data.
///
/// # Errors
/// Those of the map.
pub fn data_bytes(layer: &Layer, cluster_bytes: u64) -> Result<u64> {
    let (mut clusters, mut next) = (0, 0);
    let all = ByteRange::new(0, layer.virtual_bytes());
    layer.for_each_extent(all, &mut |extent| {
        if !extent.is_zero {
            let first = (extent.guest.start() / cluster_bytes).max(next);
            next = extent.guest.end().div_ceil(cluster_bytes).max(first);
            clusters += next - first;
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(clusters * cluster_bytes)
}
