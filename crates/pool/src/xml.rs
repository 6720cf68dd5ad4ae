//! libvirt's XML for pools and volumes, in and out.
//!
//! Unknown elements are kept and written back in place. Input is bounded before it is read: size,
//! number of nodes, depth; documents with a DTD are refused, so there are no entities but XML's
//! own.
//!
//! The elements: libvirt.org, "Storage pool and volume XML format".

mod document;
mod kept;
mod pool;
mod volume;
mod writer;

pub(crate) use kept::Kept;
pub use volume::VolumeXml;
