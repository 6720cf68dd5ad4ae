//! libvirt's XML for pools and volumes, in and out.
//!
//! [`definition_from_xml`] and [`VolumeXml`] read descriptions, [`pool_xml`] and [`volume_xml`]
//! write them. Unknown elements are kept and written back in place. Input is bounded before it is
//! read: size, number of nodes, depth; documents with a DTD are refused, so there are no entities
//! but XML's own.
//!
//! The elements: libvirt.org, "Storage pool and volume XML format".
//!
//! ```
//! use extant_libvirt::definition_from_xml;
//! use extant_pool::Limits;
//!
//! # fn main() -> extant_space::Result<()> {
//! let xml = "<pool type='dir'><name>vms</name><target><path>/srv/vms</path></target></pool>";
//! let definition = definition_from_xml(xml, Limits::default())?;
//! assert_eq!(definition.path().to_str(), Some("/srv/vms"));
//! # Ok(())
//! # }
//! ```
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
