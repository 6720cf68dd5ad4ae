//! New images of every mode and shape.

use std::fs;
use std::path::Path;

use extant_hostfs::Pace;
use extant_image::device::{DeviceOptions, ImageDevice, ReferencedStores};
use extant_image::format::{Compression, Version};
use extant_image::{
    BackingFile, DataFile, Format, ImageFile, ImageOptions, NewImage, Preallocation, Qcow2Options,
    ReferencedFiles, measure, open_path,
};
use extant_space::{ByteRange, ErrorKind, ExtentState, SpaceFile};
use extant_testkit::require;

use crate::support::*;

const CLUSTERS: [u64; 4] = [512, 4096, 64 * KIB, 2 * MIB];
const SIZES: [u64; 5] = [0, 512, 65_537, 10 * MIB + 512, 33 * MIB];

/// The guest's data is one run, at the end of the file.
fn assert_one_run(image: &std::path::Path, file_bytes: u64, data_bytes: u64) {
    let map = qemu_json(&[&"map", &"--output=json", &"-f", &"qcow2", &image]);
    let extents = map.as_array().unwrap();
    let mut at = None;
    for extent in extents.iter().filter(|extent| extent["length"] != 0) {
        let number = |name: &str| {
            extent[name]
                .as_u64()
                .unwrap_or_else(|| panic!("{name}: {map}"))
        };
        let place = number("offset") - number("start");
        assert_eq!(*at.get_or_insert(place), place, "{map}");
    }
    assert_eq!(at.unwrap_or(file_bytes) + data_bytes, file_bytes, "{map}");
}

fn state_of(file: &std::path::Path) -> ExtentState {
    let file = extant_hostfs::HostFile::open_read(file).unwrap();
    let extents = file
        .extents(ByteRange::new(0, file.size().unwrap()))
        .unwrap();
    extents.iter().map(|extent| extent.state).min().unwrap()
}

#[test]
fn qemu_accepts_every_mode_cluster_size_and_size() {
    require!(qemu_img());
    let ground = Ground::new();
    for cluster_bytes in CLUSTERS {
        for size in SIZES {
            for preallocation in Preallocation::ALL {
                let image = ground.path("a.qcow2");
                let mut options = qcow2(size, preallocation);
                options.qcow2.cluster_bytes = cluster_bytes;
                create(&image, &options);
                assert_checks(&image);
                let info = qemu_json(&[&"info", &"--output=json", &image]);
                let disk_bytes = options.disk_bytes();
                assert_eq!(info["virtual-size"], disk_bytes, "{options:?}");
                assert_eq!(info["cluster-size"], cluster_bytes);
                let file_bytes = fs::metadata(&image).unwrap().len();
                if preallocation != Preallocation::Off {
                    let measured = measure(&options, 0).unwrap();
                    assert_eq!(measured.fully_allocated_bytes, file_bytes, "{options:?}");
                    assert_one_run(
                        &image,
                        file_bytes,
                        disk_bytes.next_multiple_of(cluster_bytes),
                    );
                }
                let wanted = preallocation.space().state();
                assert!(state_of(&image) >= wanted, "{options:?}");
                if size == SIZES[3] {
                    let zero = ground.path("zero");
                    zeros(&zero, disk_bytes);
                    assert_reads_same((&image, "qcow2"), (&zero, "raw"));
                }
                fs::remove_file(&image).unwrap();
            }
        }
    }
}

#[test]
fn first_part_of_an_image_is_mapped_and_real_and_the_rest_is_not() {
    require!(qemu_img());
    let ground = Ground::new();
    for cluster_bytes in [512, 64 * KIB] {
        for (part, preallocation) in [
            (0, Preallocation::Full),
            (3 * MIB + 1, Preallocation::Metadata),
            (3 * MIB + 1, Preallocation::Falloc),
            (40 * MIB, Preallocation::Full),
        ] {
            let image = ground.path("a.qcow2");
            let mut options = qcow2(40 * MIB, preallocation);
            options.qcow2.cluster_bytes = cluster_bytes;
            options.allocation_bytes = Some(part);
            create(&image, &options);
            assert_checks(&image);
            let new = NewImage::new(&options).unwrap();
            assert_eq!(fs::metadata(&image).unwrap().len(), new.file_bytes());
            let layer = extant_image::open_path(&image, None, ReferencedFiles::Ignore).unwrap();
            let info = layer.info().unwrap();
            assert_eq!(info.virtual_bytes, 40 * MIB);
            let mapped = part.next_multiple_of(cluster_bytes);
            assert_eq!(info.states.mapped, mapped, "{options:?}");
            let real = match preallocation {
                Preallocation::Metadata => 0,
                _ => mapped,
            };
            assert_eq!(info.states.hole, 40 * MIB - real, "{options:?}");
            let zero = ground.path("zero");
            zeros(&zero, 40 * MIB);
            assert_reads_same((&image, "qcow2"), (&zero, "raw"));
            fs::remove_file(&image).unwrap();
        }
    }
}

#[test]
fn qemu_accepts_every_refcount_width_and_version() {
    require!(qemu_img());
    let ground = Ground::new();
    for preallocation in [Preallocation::Off, Preallocation::Metadata] {
        for refcount_bits in [1, 2, 4, 8, 16, 32, 64] {
            let image = ground.path("a.qcow2");
            let mut options = qcow2(5 * MIB, preallocation);
            options.qcow2.cluster_bytes = 1024;
            options.qcow2.refcount_bits = refcount_bits;
            options.qcow2.lazy_refcounts = refcount_bits < 16;
            create(&image, &options);
            assert_checks(&image);
            let info = qemu_json(&[&"info", &"--output=json", &image]);
            let data = &info["format-specific"]["data"];
            assert_eq!(data["refcount-bits"], refcount_bits);
            assert_eq!(data["lazy-refcounts"], refcount_bits < 16);
            fs::remove_file(&image).unwrap();
        }
        let image = ground.path("old.qcow2");
        let mut options = qcow2(5 * MIB, preallocation);
        options.qcow2.version = Version::V2;
        create(&image, &options);
        assert_checks(&image);
        let info = qemu_json(&[&"info", &"--output=json", &image]);
        assert_eq!(info["format-specific"]["data"]["compat"], "0.10");
        fs::remove_file(&image).unwrap();
    }
}

#[test]
fn header_of_qemu_and_ours_name_the_same_features() {
    require!(qemu_img());
    let ground = Ground::new();
    let (ours, theirs) = (ground.path("ours"), ground.path("theirs"));
    let mut options = qcow2(MIB, Preallocation::Off);
    options.qcow2.compression = Compression::Zstd;
    create(&ours, &options);
    qemu(&[
        &"create",
        &"-q",
        &"-f",
        &"qcow2",
        &"-o",
        &"compression_type=zstd",
        &theirs,
        &"1M",
    ]);
    let names = |path: &std::path::Path| {
        let file = extant_hostfs::HostFile::open_read(path).unwrap();
        let header = extant_image::format::Header::read(&file).unwrap();
        (header.extensions.feature_names(), header.compression)
    };
    // QEMU's feature table may list more names, in its own order.
    let (found, compression) = names(&theirs);
    assert_eq!(compression, Compression::Zstd);
    for name in names(&ours).0 {
        let same = found
            .iter()
            .find(|other| (other.kind, other.bit) == (name.kind, name.bit));
        assert!(
            same.is_none_or(|other| other.name == name.name),
            "{name:?} {found:?}"
        );
    }
}

#[test]
fn backing_file_is_named_with_its_format_and_shows_through() {
    require!(qemu_img());
    let ground = Ground::new();
    let base = ground.path("base.raw");
    fs::write(&base, vec![7; 100_000]).unwrap();
    let image = ground.path("a.qcow2");
    let mut options = qcow2(200 * KIB, Preallocation::Off);
    options.qcow2.backing = Some(BackingFile {
        name: "base.raw".into(),
        format: "raw".into(),
    });
    create(&image, &options);
    assert_checks(&image);
    let info = qemu_json(&[&"info", &"--output=json", &image]);
    assert_eq!(info["backing-filename"], "base.raw");
    assert_eq!(info["backing-filename-format"], "raw");
    assert_reads_same((&image, "qcow2"), (&base, "raw"));
}

#[test]
fn data_file_holds_the_data_in_every_mode() {
    require!(qemu_img());
    let ground = Ground::new();
    for is_raw in [false, true] {
        for preallocation in Preallocation::ALL {
            let (image, data) = (ground.path("a.qcow2"), ground.path("a.data"));
            let mut options = qcow2(3 * MIB, preallocation);
            options.qcow2.data_file = Some(DataFile {
                name: data.clone(),
                is_raw,
            });
            create(&image, &options);
            assert_checks(&image);
            let info = qemu_json(&[&"info", &"--output=json", &image]);
            let specific = &info["format-specific"]["data"];
            assert_eq!(specific["data-file"], data.to_str().unwrap());
            assert_eq!(specific["data-file-raw"], is_raw);
            assert!(state_of(&data) >= preallocation.space().state());
            assert!(fs::metadata(&image).unwrap().len() < MIB);
            // QEMU writes where our tables say.
            qemu(&[
                &"bench",
                &"-q",
                &"-w",
                &"-c",
                &"16",
                &"-d",
                &"1",
                &"-s",
                &"64k",
                &"--pattern=170",
                &"-f",
                &"qcow2",
                &image,
            ]);
            assert_checks(&image);
            if is_raw {
                assert_reads_same((&image, "qcow2"), (&data, "raw"));
            }
            fs::remove_file(&image).unwrap();
            fs::remove_file(&data).unwrap();
        }
    }
}

#[test]
fn relative_name_of_a_data_file_begins_in_the_current_directory_as_in_qemu() {
    require!(qemu_img());
    let ground = Ground::new();
    let current = std::env::current_dir().unwrap();
    let up = current.components().count() - 1;
    let data = ground.path("a.data");
    let name = Path::new(&"../".repeat(up)).join(data.strip_prefix("/").unwrap());
    // Deep enough that the name leads elsewhere from there.
    let directory = ground.path(&"d/".repeat(up + 1));
    fs::create_dir_all(&directory).unwrap();
    let image = directory.join("a.qcow2");
    let mut options = qcow2(MIB, Preallocation::Off);
    options.qcow2.data_file = Some(DataFile {
        name: name.clone(),
        is_raw: false,
    });
    create(&image, &options);
    let info = qemu_json(&[&"info", &"--output=json", &image]);
    let specific = &info["format-specific"]["data"];
    assert_eq!(specific["data-file"], name.to_str().unwrap());
    qemu_io(&image, "qcow2", &["write -P 5 0 64k"]);
    assert_eq!(fs::read(&data).unwrap()[..64 << 10], [5; 64 << 10]);
    let layer = open_path(&image, None, ReferencedFiles::Open).unwrap();
    let mut bytes = [0; 4096];
    layer.read_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, [5; 4096]);
    drop(layer);
    ImageFile::host(&image, Pace::Full)
        .unwrap()
        .with_named_files()
        .unwrap();
    let followed = DeviceOptions {
        referenced: ReferencedStores::Followed,
        ..DeviceOptions::default()
    };
    ImageDevice::open(&image, &followed).unwrap();
    fs::remove_file(&data).unwrap();
    let error = ImageDevice::open(&image, &followed).map(drop).unwrap_err();
    assert!(error.to_string().contains("current directory"), "{error}");
    options.qcow2.data_file.as_mut().unwrap().name = "nbd:data".into();
    let file = extant_hostfs::CreateOptions::new(1);
    let refused = silent(|control| extant_image::create(&image, &options, &file, control));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn qemu_writes_into_new_images_without_leaks() {
    require!(qemu_img());
    let ground = Ground::new();
    for cluster_bytes in [512, 64 * KIB] {
        for preallocation in Preallocation::ALL {
            let image = ground.path("a.qcow2");
            let mut options = qcow2(8 * MIB, preallocation);
            options.qcow2.cluster_bytes = cluster_bytes;
            create(&image, &options);
            let before = fs::metadata(&image).unwrap().len();
            qemu(&[
                &"bench",
                &"-q",
                &"-w",
                &"-c",
                &"128",
                &"-s",
                &"64k",
                &"--pattern=85",
                &"-f",
                &"qcow2",
                &image,
            ]);
            assert_checks(&image);
            let raw = ground.path("pattern");
            fs::write(&raw, vec![85; 8 << 20]).unwrap();
            assert_reads_same((&image, "qcow2"), (&raw, "raw"));
            if preallocation != Preallocation::Off {
                assert_eq!(fs::metadata(&image).unwrap().len(), before);
            }
            fs::remove_file(&image).unwrap();
        }
    }
}

#[test]
fn measure_equals_qemu() {
    require!(qemu_img());
    for cluster_bytes in [512, 4096, 64 * KIB, 2 * MIB] {
        for refcount_bits in [1, 16, 64] {
            for preallocation in Preallocation::ALL {
                let size = 3 * 1024 * MIB + 512;
                let mut options = qcow2(size, preallocation);
                options.qcow2.cluster_bytes = cluster_bytes;
                options.qcow2.refcount_bits = refcount_bits;
                let ours = measure(&options, 0).unwrap();
                let words = format!(
                    "cluster_size={cluster_bytes},refcount_bits={refcount_bits},preallocation={preallocation}"
                );
                let size = size.to_string();
                let theirs = qemu_json(&[
                    &"measure",
                    &"--output=json",
                    &"-O",
                    &"qcow2",
                    &"-o",
                    &words,
                    &"--size",
                    &size,
                ]);
                // Data begins at a block of 4096 bytes where clusters are smaller.
                let slack = 4096_u64.saturating_sub(cluster_bytes);
                for (ours, name) in [
                    (ours.required_bytes, "required"),
                    (ours.fully_allocated_bytes, "fully-allocated"),
                ] {
                    let theirs = theirs[name].as_u64().unwrap();
                    assert!(
                        (theirs..=theirs + slack).contains(&ours),
                        "{words}: {ours} {theirs}"
                    );
                }
            }
        }
    }
}

#[test]
fn invalid_options_are_refused_by_name_and_leave_no_file() {
    let ground = Ground::new();
    let data = || DataFile {
        name: ground.path("data"),
        is_raw: true,
    };
    let backing = || BackingFile {
        name: "base".into(),
        format: "raw".into(),
    };
    let v2 = Qcow2Options {
        version: Version::V2,
        ..Qcow2Options::default()
    };
    let cases: [(Qcow2Options, Preallocation, &str); 10] = [
        (
            Qcow2Options {
                cluster_bytes: 1000,
                ..Qcow2Options::default()
            },
            Preallocation::Off,
            "cluster_size=1000",
        ),
        (
            Qcow2Options {
                cluster_bytes: 256,
                ..Qcow2Options::default()
            },
            Preallocation::Off,
            "cluster_size=256",
        ),
        (
            Qcow2Options {
                cluster_bytes: 4 * MIB,
                ..Qcow2Options::default()
            },
            Preallocation::Off,
            "cluster_size=",
        ),
        (
            Qcow2Options {
                refcount_bits: 3,
                ..Qcow2Options::default()
            },
            Preallocation::Off,
            "refcount_bits=3",
        ),
        (
            Qcow2Options {
                refcount_bits: 128,
                ..Qcow2Options::default()
            },
            Preallocation::Off,
            "refcount_bits=128",
        ),
        (
            Qcow2Options {
                lazy_refcounts: true,
                ..v2.clone()
            },
            Preallocation::Off,
            "lazy_refcounts needs compat=1.1",
        ),
        (
            Qcow2Options {
                refcount_bits: 8,
                ..v2.clone()
            },
            Preallocation::Off,
            "refcount_bits",
        ),
        (
            Qcow2Options {
                data_file: Some(data()),
                ..v2
            },
            Preallocation::Off,
            "data_file needs",
        ),
        (
            Qcow2Options {
                backing: Some(backing()),
                data_file: Some(data()),
                ..Qcow2Options::default()
            },
            Preallocation::Off,
            "data_file_raw",
        ),
        (
            Qcow2Options {
                backing: Some(backing()),
                ..Qcow2Options::default()
            },
            Preallocation::Full,
            "hide it",
        ),
    ];
    let image = ground.path("a");
    let make = |options: &ImageOptions| {
        let file = extant_hostfs::CreateOptions::new(1);
        silent(|control| extant_image::create(&image, options, &file, control)).unwrap_err()
    };
    for (qcow2, preallocation, words) in cases {
        let mut options = ImageOptions::new(Format::Qcow2, MIB);
        options.preallocation = preallocation;
        options.qcow2 = qcow2;
        let error = make(&options);
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.to_string().contains(words), "{words}: {error}");
    }
    let mut raw = ImageOptions::new(Format::Raw, MIB);
    raw.preallocation = Preallocation::Metadata;
    assert!(make(&raw).to_string().contains("preallocation=metadata"));
    let mut part = qcow2(MIB, Preallocation::Off);
    part.allocation_bytes = Some(4096);
    assert!(make(&part).to_string().contains("needs preallocation"));
    part.preallocation = Preallocation::Full;
    part.allocation_bytes = Some(MIB + 1);
    assert!(make(&part).to_string().contains("more than the size"));
    let mut large = qcow2(1 << 40, Preallocation::Off);
    large.qcow2.cluster_bytes = 512;
    assert_eq!(make(&large).kind(), ErrorKind::TooLarge);
    assert!(!image.exists() && !ground.path("data").exists());
}
