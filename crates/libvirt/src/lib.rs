//! libvirt's XML for pools and volumes, in and out.
#![doc = include_str!("../README.md")]
//!
//! [`definition_from_xml`] and [`VolumeXml`] read descriptions, [`pool_xml`] and [`volume_xml`]
//! write them. Unknown elements are kept and written back in place. Input is bounded before it is
//! read: size, number of nodes, depth; documents with a DTD are refused, so there are no entities
//! but XML's own.
//!
//! The elements: libvirt.org, "Storage pool and volume XML format".
//!
//! Module layers, lowest first:
//!
//! 1. `document`, `writer`: bounded input, and output
//! 2. `foreign`: unknown elements
//! 3. `pool`: `<pool>`
//! 4. `volume`: `<volume>`

#![forbid(unsafe_code)]

mod document;
mod foreign;
mod pool;
mod volume;
mod writer;

pub use pool::{definition_from_xml, pool_xml};
pub use volume::{VolumeXml, volume_xml};
