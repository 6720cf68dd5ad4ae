//! overlayfs hides the file system that its files are on; its behaviour with written space must be
//! detected anyway.

use std::fs;
use std::path::Path;

use extant_hostfs::{CopyOnWrite, CreateOptions, create, probe};
use extant_space::{CancelToken, Control, ErrorKind, Silent};
use extant_testkit::scratch::{Filesystem, Mount, Scratch};
use extant_testkit::{oracle, require, requires};

#[test]
fn written_file_on_overlay_over_btrfs_is_refused_until_nocow() {
    require!(
        requires::root(),
        Filesystem::Btrfs.requirement(),
        Filesystem::Overlay.requirement()
    );
    let scratch = Scratch::new(Filesystem::Btrfs, 256 << 20);
    let directory = |name: &str| {
        let path = scratch.path().join(name);
        fs::create_dir(&path).unwrap();
        path
    };
    let [lower, upper, work, place] = ["lower", "upper", "work", "place"].map(directory);
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        lower.display(),
        upper.display(),
        work.display()
    );
    let overlay = Mount::new("overlay", Path::new("overlay"), &place, &options);
    let path = overlay.path().join("file");
    let cancel = CancelToken::new();
    let control = Control::new(&cancel, &Silent);
    let mut options = CreateOptions::new(8 << 20);
    let error = create(&path, &options, control).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CopyOnWrite, "{error}");
    assert_eq!(fs::read_dir(overlay.path()).unwrap().count(), 0);
    assert!(probe(overlay.path()).unwrap().refusal.is_some());

    options.copy_on_write = CopyOnWrite::Disable;
    create(&path, &options, control).unwrap();
    assert!(oracle::filefrag(&path).is_extant());
}
