//! Headers that are right, wrong in one field, and made of noise.

use std::path::Path;

use extant_space::ErrorKind;
use proptest::prelude::*;

use super::super::{Extension, FeatureName};
use super::*;

const FILE: u64 = 1 << 20;

fn header() -> Header {
    let mut header = Header::new(Geometry::new(16, 4).unwrap(), 1 << 30);
    header.l1_entries = 2;
    header.l1_offset = 0x30000;
    header.refcount_table_offset = 0x10000;
    header.refcount_table_clusters = 1;
    header
}

fn bytes(header: &Header) -> Vec<u8> {
    let mut bytes = header.encode().unwrap();
    bytes.resize(0x10000, 0);
    bytes
}

#[test]
fn header_with_everything_reads_back_the_same() {
    let mut header = header();
    header.compatible = Compatible::LAZY_REFCOUNTS;
    header.incompatible = Incompatible::DATA_FILE | Incompatible::COMPRESSION_TYPE;
    header.compression = Compression::Zstd;
    header.backing_file = Some("../base \u{fc}.qcow2".into());
    header
        .extensions
        .set(Extensions::BACKING_FORMAT, b"qcow2".to_vec());
    header
        .extensions
        .set(Extensions::DATA_FILE, b"data.raw".to_vec());
    header.extensions.set(0x1234, vec![1, 2, 3]);
    header.extensions.set_feature_names(&[FeatureName {
        kind: 0,
        bit: 2,
        name: "external data file".into(),
    }]);
    // Seven bytes of fill, and eight that a later version could write.
    header.later = vec![0, 0, 0, 0, 0, 0, 0, 9, 8, 7, 6, 5, 4, 3, 2];
    let found = Header::parse(&bytes(&header), FILE).unwrap();
    assert_eq!(found, header);
    assert_eq!(found.data_file(), Some(Path::new("data.raw")));
    assert_eq!(found.extensions.backing_format().as_deref(), Some("qcow2"));
}

#[test]
fn last_extension_of_a_type_is_valid_and_set_leaves_one() {
    let mut header = header();
    header.incompatible = Incompatible::DATA_FILE;
    let kinds = [Extensions::BACKING_FORMAT, Extensions::DATA_FILE, 0x1234];
    for value in ["one", "two"] {
        header.extensions.0.extend(kinds.map(|kind| Extension {
            kind,
            data: value.into(),
        }));
    }
    let mut found = Header::parse(&bytes(&header), FILE).unwrap();
    assert_eq!(found.extensions, header.extensions);
    assert_eq!(found.data_file(), Some(Path::new("two")));
    assert_eq!(found.extensions.backing_format().as_deref(), Some("two"));
    for kind in kinds {
        found.extensions.set(kind, b"three".to_vec());
    }
    let left: Vec<_> = found.extensions.0.iter().map(|one| one.kind).collect();
    assert_eq!(left, kinds);
    assert_eq!(found.data_file(), Some(Path::new("three")));
}

#[test]
fn version_2_has_no_features_and_counts_of_16_bits() {
    let mut header = header();
    header.version = Version::V2;
    header.backing_file = Some("base".into());
    let found = Header::parse(&bytes(&header), FILE).unwrap();
    assert_eq!(found.version, Version::V2);
    assert_eq!(found.geometry.refcount_bits(), 16);
    assert_eq!(found.backing_file.as_deref(), Some(Path::new("base")));
}

#[test]
fn every_wrong_field_is_named() {
    let cases: &[(usize, &[u8], &str)] = &[
        (0, b"QED\0", "header.magic"),
        (4, &[0, 0, 0, 4], "header.version"),
        (8, &[0, 0, 0, 0, 0, 1, 0, 1], "header.backing_file_offset"),
        (20, &[0, 0, 0, 8], "header.cluster_bits"),
        (24, &[0xff; 8], "header.size"),
        (24, &[0, 1, 0, 0, 0, 0, 0, 0], "header.l1_size"),
        (32, &[0, 0, 0, 2], "header.crypt_method"),
        (36, &[0, 0, 0, 1], "header.l1_size"),
        (36, &[0, 0x40, 0, 1], "header.l1_size"),
        (40, &[0, 0, 0, 0, 0, 0, 2, 0], "header.l1_table_offset"),
        (
            40,
            &[0, 0, 0, 0, 0, 0x10, 0, 0],
            "header.l1_table_offset 0x100000",
        ),
        (
            40,
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0],
            "header.l1_table_offset",
        ),
        (
            48,
            &[0, 0, 0, 0, 1, 0, 0, 0],
            "header.refcount_table_offset",
        ),
        (56, &[0, 0, 0, 0], "header.refcount_table_clusters"),
        (56, &[0, 0, 0, 129], "header.refcount_table_clusters"),
        (60, &[0, 1, 0, 1], "header.nb_snapshots"),
        (
            60,
            &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1],
            "header.snapshots_offset",
        ),
        (
            64,
            &[0x12, 0x34, 0x56, 0x78, 0x90, 0xab, 0xcd, 0xef],
            "header.snapshots_offset",
        ),
        (64, &[0x80, 0, 0, 0, 0, 0, 0, 0], "header.snapshots_offset"),
        (
            72,
            &[0x80, 0, 0, 0, 0, 0, 0, 0],
            "header.incompatible_features has bit 63",
        ),
        (79, &[0x10], "extended L2"),
        (79, &[0x08], "header.compression_type"),
        (96, &[0, 0, 0, 7], "header.refcount_order"),
        (100, &[0, 0, 0, 103], "header.header_length"),
        (100, &[0, 1, 0, 8], "header.header_length"),
        (104, &[1], "header.compression_type"),
        (104, &[2], "header.compression_type"),
        (112, &[1, 2, 3, 4, 0, 2, 0, 0], "header extension 0x1020304"),
        (
            112,
            &[0xe2, 0x79, 0x2a, 0xca, 0, 0, 0, 16],
            "(backing format) has 16 bytes, above 15",
        ),
        // The name of the backing file begins inside the first extension.
        (
            8,
            &[0, 0, 0, 0, 0, 0, 0, 116],
            "header extension has only 4",
        ),
    ];
    for &(at, wrong, place) in cases {
        let mut bytes = bytes(&header());
        bytes[at..at + wrong.len()].copy_from_slice(wrong);
        let error = Header::parse(&bytes, FILE).unwrap_err();
        assert!(error.to_string().contains(place), "{place}: {error}");
        assert!(matches!(
            error.kind(),
            ErrorKind::Corrupt | ErrorKind::Unsupported
        ));
    }
}

#[test]
fn offset_of_an_empty_table_is_validated_as_in_qemu() {
    let mut header = header();
    (header.virtual_bytes, header.l1_entries) = (0, 0);
    let parse = |offset: u64| {
        let mut header = header.clone();
        (header.l1_offset, header.snapshots.offset) = (offset, offset);
        Header::parse(&bytes(&header), FILE)
    };
    // Past the end of the file is no error.
    for offset in [0, 0x10000, FILE << 16] {
        assert_eq!(parse(offset).unwrap().l1_offset, offset);
    }
    for offset in [0x200, u64::MAX << 16, 1 << 63] {
        let error = parse(offset).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{offset:#x}");
    }
}

#[test]
fn unknown_feature_is_called_by_the_name_in_the_image() {
    let mut header = header();
    header.incompatible = Incompatible::from_bits_retain(1 << 40);
    header.extensions.set_feature_names(&[FeatureName {
        kind: 0,
        bit: 40,
        name: "time travel".into(),
    }]);
    let error = Header::parse(&bytes(&header), FILE).unwrap_err();
    assert!(
        error.to_string().contains("bit 40 (\"time travel\")"),
        "{error}"
    );
}

#[test]
fn names_that_do_not_fit_are_refused_in_writing() {
    let mut header = header();
    header.backing_file = Some("n".repeat(1024).into());
    assert_eq!(
        header.encode().unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    header.geometry = Geometry::new(9, 4).unwrap();
    header.backing_file = Some("n".repeat(500).into());
    assert_eq!(
        header.encode().unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Everything that can be read is written back unchanged; nothing panics.
    #[test]
    fn noise_over_a_header_is_refused_or_kept(
        changes in prop::collection::vec((0usize..160, any::<u8>()), 1..8),
        file_bytes in 0u64..1 << 21,
    ) {
        let mut bytes = bytes(&header());
        for (at, value) in changes {
            bytes[at] = value;
        }
        if let Ok(found) = Header::parse(&bytes, file_bytes)
            && let Ok(again) = found.encode()
        {
            let mut again = again;
            again.resize(bytes.len(), 0);
            prop_assert_eq!(Header::parse(&again, file_bytes).unwrap(), found);
        }
    }

    #[test]
    fn noise_alone_never_panics(mut bytes in prop::collection::vec(any::<u8>(), 0..2048)) {
        let _ = Header::parse(&bytes, bytes.len() as u64);
        if bytes.len() > 8 {
            bytes[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
            let _ = Header::parse(&bytes, 1 << 30);
        }
    }
}
