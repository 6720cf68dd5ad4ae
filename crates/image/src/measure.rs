//! How large an image's file would be.

use std::ops::ControlFlow;

use extant_space::{ByteRange, Result};
use serde::Serialize;

use crate::layer::Layer;
use crate::layout::{Layout, Mapped};
use crate::options::{Format, ImageOptions};
use crate::preallocation::Preallocation;

/// What a new image needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Measurement {
    /// Bytes for the image with the data that it is to hold.
    pub required_bytes: u64,
    /// Bytes for the image when the guest has written everything.
    pub fully_allocated_bytes: u64,
}

/// Measures an image that is to hold `data_bytes`, whole clusters of data, at first.
///
/// As with QEMU, the tables are counted in full: an image that grows to its end has them in the end.
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
        required_bytes: fully_allocated_bytes,
        fully_allocated_bytes,
    })
}

/// Bytes of the clusters of `cluster_bytes` that a copy of `layer` would hold data in.
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
