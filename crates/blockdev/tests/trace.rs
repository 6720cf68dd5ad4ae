//! Events of a host file: the method of each change of space, and what is done without one.

use std::fs::File;

use extant_blockdev::{Assigned, Device, HostDevice, HostOptions, Zeroing};
use extant_space::ByteRange;
use extant_testkit::events::{self, Event};
use extant_testkit::oracle::filefrag;
use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::{require, requires};

const MIB: u64 = 1 << 20;

/// Name, method and range of those that the kernel did not refuse.
fn done(events: &[Event]) -> Vec<(&str, &str, u64, u64)> {
    let done = events.iter().filter(|event| event.text("error").is_empty());
    done.map(|event| {
        let range = (event.number("start_bytes"), event.number("length_bytes"));
        (event.name.as_str(), event.text("method"), range.0, range.1)
    })
    .collect()
}

#[test]
fn changes_of_space_report_the_method_and_the_refusals() {
    require!(requires::root(), Filesystem::Ext4.requirement());
    let scratch = Scratch::new(Filesystem::Ext4, 64 * MIB);
    let path = scratch.path().join("disk");
    File::create(&path).unwrap().set_len(16 * MIB).unwrap();
    events::record();
    let device = HostDevice::open(&path, &HostOptions::default()).unwrap();
    let space = |name: &str| {
        let events = events::take("extant_blockdev");
        for event in &events {
            assert_eq!(event.text("path"), path.to_str().unwrap());
            assert_eq!(event.name, name, "{event:?}");
            assert!(event.is_timed() || event.text("method") == "none");
        }
        events
    };

    let range = ByteRange::new(MIB, 5 * MIB);
    assert_eq!(device.assign(range).unwrap(), Assigned::Done);
    let events = space("assign");
    assert_eq!(done(&events), [("assign", "Allocate", MIB, 4 * MIB)]);
    assert_eq!(filefrag(&path).extents[0].logical, range);

    device.flush().unwrap();
    assert_eq!(space("flush").len(), 1);

    // The method that leaves written space, or the space first and the zeros as data after it.
    device.write_zeroes(range, Zeroing::WRITTEN).unwrap();
    let events = space("write zeroes");
    let refused = events.iter().find(|event| !event.text("error").is_empty());
    let (start, length) = (MIB, 4 * MIB);
    match refused {
        None => assert_eq!(
            done(&events),
            [("write zeroes", "WriteZeroes", start, length)]
        ),
        Some(refused) => {
            assert_eq!(refused.text("method"), "WriteZeroes");
            assert_eq!(
                done(&events),
                [
                    ("write zeroes", "Allocate", start, length),
                    ("write zeroes", "none", start, length)
                ]
            );
        }
    }

    // A method that was refused is not tried again.
    device.write_zeroes(range, Zeroing::ALLOCATED).unwrap();
    let events = space("write zeroes");
    let method = refused.map_or("WriteZeroes", |_| "ZeroRange");
    assert_eq!(done(&events), [("write zeroes", method, start, length)]);
    assert_eq!(events.len(), 1);

    device.discard(range).unwrap();
    let events = space("discard");
    assert_eq!(done(&events), [("discard", "PunchHole", start, length)]);
    assert_eq!(filefrag(&path).extents, []);
}
