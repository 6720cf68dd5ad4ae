//! One declaration per on-disk structure.
//!
//! A line of `on_disk!` holds offset, name and type of a field. Types have no alignment and a fixed
//! byte order, so that a structure can be overlaid on the bytes; the compiler refuses an offset or
//! a size that contradicts the line, which excludes gaps, overlaps and forgotten fields.
//!
//! ```text
//! on_disk! {
//!     /// Begins a block.
//!     pub struct RawHeader: 12 {
//!         0x0 h_magic: U32,
//!         0x4 h_blocktype: U32,
//!         0x8 h_sequence: U32,
//!     }
//! }
//! ```

/// Declares structures on the disk; see the module's text. The crate that uses it needs `zerocopy`.
#[macro_export]
macro_rules! on_disk {
    ($(
        $(#[$attribute:meta])*
        pub struct $name:ident: $size:literal {
            $($offset:literal $field:ident: $type:ty,)+
        }
    )+) => {$(
        $(#[$attribute])*
        #[derive(
            Clone,
            Copy,
            Debug,
            PartialEq,
            Eq,
            zerocopy::FromBytes,
            zerocopy::IntoBytes,
            zerocopy::KnownLayout,
            zerocopy::Immutable,
            zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub struct $name {
            $(
                #[allow(missing_docs, reason = "the specification's name; docs/formats says more")]
                pub $field: $type,
            )+
        }

        const _: () = {
            assert!(
                size_of::<$name>() == $size,
                concat!(stringify!($name), " has another size than declared")
            );
            $(assert!(
                core::mem::offset_of!($name, $field) == $offset,
                concat!(stringify!($name), "::", stringify!($field), " has another offset than declared")
            );)+
        };
    )+};
}

pub(crate) use on_disk;
