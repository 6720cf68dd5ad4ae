//! Header extensions: records behind the header's fields, each with a type and a length.

use extant_ondisk::narrow::fit32;
use extant_space::Result;
use zerocopy::FromBytes;
use zerocopy::big_endian::U32;

use extant_ondisk::on_disk;

use super::fault::corrupt;

on_disk! {
    /// Begins an extension; its data follows, filled up to a multiple of 8 bytes.
    pub struct RawExtension: 8 {
        0x0 kind: U32,
        0x4 length: U32,
    }

    /// An entry of the feature name table.
    pub struct RawFeatureName: 48 {
        0x00 kind: u8,
        0x01 bit: u8,
        0x02 name: [u8; 46],
    }
}

const END: u32 = 0;

/// An extension in file format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extension {
    /// Its type.
    pub kind: u32,
    /// Its data, without the fill.
    pub data: Vec<u8>,
}

/// The name of a feature, for error messages of programs that do not know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureName {
    /// 0: incompatible, 1: compatible, 2: autoclear.
    pub kind: u8,
    /// Number of the bit in the set.
    pub bit: u8,
    /// Its name.
    pub name: String,
}

/// All extensions in their order, including unknown ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extensions(pub Vec<Extension>);

impl Extensions {
    /// The format of the backing file.
    pub const BACKING_FORMAT: u32 = 0xe279_2aca;
    /// Most bytes of that, in QEMU.
    pub(crate) const BACKING_FORMAT_MAX: usize = 15;
    /// The name of the external data file.
    pub const DATA_FILE: u32 = 0x4441_5441;
    /// Names of features.
    pub const FEATURE_NAMES: u32 = 0x6803_f857;
    /// Location of persistent bitmaps.
    pub const BITMAPS: u32 = 0x2385_2875;
    /// Location of the encryption header.
    pub const ENCRYPTION: u32 = 0x0537_be77;

    /// The extensions in `bytes`, which begin after the header's fields; and how many bytes they
    /// take.
    pub(super) fn parse(bytes: &[u8]) -> Result<(Self, usize)> {
        let mut found = Vec::new();
        let mut at = 0;
        // Extensions that end here, where the name of the backing file begins, need no end mark.
        while at < bytes.len() {
            let Ok((raw, rest)) = RawExtension::ref_from_prefix(&bytes[at..]) else {
                return Err(corrupt(
                    "header extension",
                    format_args!(
                        "has only {} bytes for its type and length",
                        bytes.len() - at
                    ),
                ));
            };
            let kind = raw.kind.get();
            at += size_of::<RawExtension>();
            let length = raw.length.get() as usize;
            let Some(data) = rest.get(..length) else {
                return Err(corrupt(
                    format_args!("header extension {kind:#x}"),
                    format_args!("has {length} bytes, more than the {} left", rest.len()),
                ));
            };
            // The end mark may have a length as well, which QEMU validates.
            if kind == END {
                break;
            }
            if kind == Self::BACKING_FORMAT && length > Self::BACKING_FORMAT_MAX {
                return Err(corrupt(
                    format_args!("header extension {kind:#x} (backing format)"),
                    format_args!("has {length} bytes, above {}", Self::BACKING_FORMAT_MAX),
                ));
            }
            found.push(Extension {
                kind,
                data: data.to_vec(),
            });
            at = (at + length.next_multiple_of(8)).min(bytes.len());
        }
        Ok((Self(found), at))
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        for extension in &self.0 {
            out.extend(extension.kind.to_be_bytes());
            out.extend(fit32(extension.data.len()).to_be_bytes());
            out.extend(&extension.data);
            out.resize(out.len().next_multiple_of(8), 0);
        }
        out.extend([0; 8]);
    }

    /// The data of the valid extension of a type: of several, the last, as in QEMU.
    pub fn find(&self, kind: u32) -> Option<&[u8]> {
        self.all(kind).last()
    }

    /// The data of every extension of a type, in order.
    pub(crate) fn all(&self, kind: u32) -> impl Iterator<Item = &[u8]> {
        let found = self.0.iter().filter(move |found| found.kind == kind);
        found.map(|found| &*found.data)
    }

    /// Puts `data` in the place of the first extension of this type, or at the end. Others of this
    /// type are removed.
    pub fn set(&mut self, kind: u32, data: Vec<u8>) {
        let first = self.0.iter().position(|found| found.kind == kind);
        self.0.retain(|found| found.kind != kind);
        let at = first.unwrap_or(self.0.len());
        self.0.insert(at, Extension { kind, data });
    }

    /// The format of the backing file, if it is named.
    pub fn backing_format(&self) -> Option<String> {
        let data = self.find(Self::BACKING_FORMAT)?;
        Some(String::from_utf8_lossy(data).into_owned())
    }

    /// Names of features, as given by the program that made the image.
    pub fn feature_names(&self) -> Vec<FeatureName> {
        let data = self.find(Self::FEATURE_NAMES).unwrap_or_default();
        let (entries, _) = data.as_chunks::<{ size_of::<RawFeatureName>() }>();
        entries
            .iter()
            .map(|entry| {
                let raw = RawFeatureName::ref_from_bytes(entry).expect("a whole entry");
                let name = raw.name.split(|&byte| byte == 0).next().unwrap_or_default();
                FeatureName {
                    kind: raw.kind,
                    bit: raw.bit,
                    name: String::from_utf8_lossy(name).into_owned(),
                }
            })
            .collect()
    }

    /// Sets the table of feature names.
    ///
    /// # Panics
    /// When a name has more than 46 bytes.
    pub fn set_feature_names(&mut self, names: &[FeatureName]) {
        let mut data = Vec::new();
        for FeatureName { kind, bit, name } in names {
            let mut field = [0; 46];
            field[..name.len()].copy_from_slice(name.as_bytes());
            data.extend([*kind, *bit]);
            data.extend(field);
        }
        self.set(Self::FEATURE_NAMES, data);
    }
}
