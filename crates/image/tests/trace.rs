//! Events of a qcow2 image: commits of the clusters that were allocated.

use extant_blockdev::{Device, Persistence};
use extant_image::Format;
use extant_image::device::{DeviceOptions, ImageDevice};
use extant_testkit::events;
use extant_testkit::oracle::qemu::{assert_checks, qemu};
use extant_testkit::workdir::Workdir;
use extant_testkit::{require, requires};

#[test]
fn flush_reports_a_commit_where_clusters_were_allocated() {
    require!(requires::tool("qemu-img"));
    let work = Workdir::new();
    let path = work.path().join("a.qcow2");
    qemu(&[&"create", &"-q", &"-f", &"qcow2", &path, &"16M"]);
    events::record();
    let options = DeviceOptions {
        format: Some(Format::Qcow2),
        ..DeviceOptions::default()
    };
    let image = ImageDevice::open(&path, &options).unwrap();
    let commits = || {
        let mut events = events::take("extant_image");
        events.retain(|event| event.name == "commit");
        events
    };

    image.flush().unwrap();
    assert_eq!(commits(), []);

    image
        .write_at(&[1; 65536], 1 << 20, Persistence::Cached)
        .unwrap();
    image.flush().unwrap();
    let found = commits();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].is_timed());
    for field in ["refcount_bytes", "l2_bytes", "l1_bytes"] {
        assert!(found[0].number(field) > 0, "{field}: {found:?}");
    }

    // A cluster that is there already changes no metadata.
    image
        .write_at(&[2; 65536], 1 << 20, Persistence::Cached)
        .unwrap();
    image.flush().unwrap();
    assert_eq!(commits(), []);
    drop(image);
    assert_checks(&path);
}
