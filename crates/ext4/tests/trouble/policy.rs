//! Reaction to corrupt metadata: it is recorded, and changes continue or stop.

use std::sync::Arc;

use extant_blockdev::{Device, MemoryDevice, Persistence};
use extant_ext4::{Access, Filesystem, FollowLast, NewKind, OnError, Options};
use extant_space::ErrorKind;
use extant_testkit::{require, requires};

use crate::image::{Judge, PLAIN, make, new, open};

/// A file system with a directory whose block has a flipped bit.
fn damaged(options: &str) -> Arc<MemoryDevice> {
    let image = Arc::new(make(options, 3072));
    let filesystem = open(image.clone()).unwrap();
    let root = filesystem.root().unwrap();
    let directory = root.create(b"dir", &new(NewKind::Directory)).unwrap();
    directory
        .create(b"here-it-is", &new(NewKind::Regular))
        .unwrap();
    drop((root, directory));
    filesystem.close().unwrap();
    let bytes = image.to_vec();
    let mut places = bytes
        .windows(10)
        .enumerate()
        .filter(|(_, window)| window == b"here-it-is");
    let mut flipped = 0;
    for (place, _) in &mut places {
        let sector = place / 512 * 512;
        let mut data = bytes[sector..sector + 512].to_vec();
        data[place - sector] ^= 4;
        image
            .write_at(&data, sector as u64, Persistence::Cached)
            .unwrap();
        flipped += 1;
    }
    // In place and in the log.
    assert!(flipped >= 1);
    image
}

fn open_by(image: &Arc<MemoryDevice>, on_error: Option<OnError>) -> Filesystem {
    let options = Options {
        on_error,
        ..Options::default()
    };
    Filesystem::open(image.clone(), options).unwrap()
}

#[test]
fn error_of_metadata_is_noted_and_the_policy_followed() {
    require!(requires::tool("mke2fs"), requires::tool("dumpe2fs"));
    let mut judge = Judge::new();
    let stored = |policy: &str| format!("{PLAIN} -e {policy}");
    for (options, on_error, goes_on) in [
        (stored("continue"), None, true),
        (stored("remount-ro"), None, false),
        (stored("panic"), None, false),
        (stored("remount-ro"), Some(OnError::Continue), true),
        (stored("continue"), Some(OnError::ReadOnly), false),
    ] {
        let what = format!("{options} {on_error:?}");
        let image = damaged(&options);
        let filesystem = open_by(&image, on_error);
        let error = filesystem
            .resolve(b"/dir/here-it-is", FollowLast::No)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
        assert!(error.to_string().contains("directory"), "{what}: {error}");
        let root = filesystem.root().unwrap();
        let made = root.create(b"after", &new(NewKind::Regular));
        match made {
            Ok(_) => assert!(goes_on, "{what}"),
            Err(error) => {
                assert!(!goes_on, "{what}: {error}");
                assert_eq!(error.kind(), ErrorKind::ReadOnly, "{what}");
            }
        }
        // Reads continue in both cases.
        assert_eq!(
            filesystem
                .resolve(b"/lost+found", FollowLast::No)
                .unwrap()
                .number()
                .0,
            11
        );
        drop(root);
        filesystem.close().unwrap();
        let words = judge.dumpe2fs(&image);
        for line in ["FS Error count:", "First error time:", "clean with errors"] {
            assert!(words.contains(line), "{what}: no {line:?} in {words}");
        }
    }
}

#[test]
fn error_found_read_only_is_noted_nowhere() {
    require!(requires::tool("mke2fs"));
    let image = damaged(PLAIN);
    let before = image.snapshot();
    let options = Options {
        access: Access::ReadOnly,
        ..Options::default()
    };
    let filesystem = Filesystem::open(image.clone(), options).unwrap();
    let error = filesystem
        .resolve(b"/dir/here-it-is", FollowLast::No)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    filesystem.close().unwrap();
    assert_eq!(image.first_difference(&before), None);
}
