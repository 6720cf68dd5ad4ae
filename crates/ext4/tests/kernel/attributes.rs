//! Blocks of attributes that several inodes share: the kernel creates them, the engine changes
//! their content.

use extant_ext4::XattrMode;
use extant_testkit::require;

use crate::engine::Engine;
use crate::image::{assert_clean, make};
use crate::mounted::{Mounted, needs};
use crate::operation::{Change, Data, Made, Name, Operation, Outcome, Owner, Path, Place, Value};
use crate::reference::{ACL_ACCESS, Format, Reference};
use crate::system::System;
use crate::tree::difference;

const FILES: usize = 12;

#[test]
fn shared_attribute_blocks_are_copied_before_a_change() {
    let [a, b, c, d, e, f] = needs();
    require!(a, b, c, d, e, f);
    for options in [
        "-t ext4 -b 4096 -I 128",
        "-t ext4 -b 1024",
        "-t ext4 -b 4096 -O ^metadata_csum",
    ] {
        let format = Format::of(options);
        let mut reference = Reference::new(format);
        let mounted = Mounted::new(&make(options, 32));
        let mut system = System::new(mounted.path(), format.block_bytes);
        for step in (0..FILES).flat_map(alike) {
            assert_eq!(reference.apply(&step), Outcome::Done, "{step:?}");
            assert_eq!(system.apply(&step), Outcome::Done, "{step:?}");
        }
        drop(system);
        let device = mounted.unmount();
        let mut engine = Engine::open(device);
        let before = engine.filesystem().statistics().free_blocks;
        for step in (0..FILES).map(change) {
            assert_eq!(reference.apply(&step), Outcome::Done, "{step:?}");
            assert_eq!(engine.apply(&step), Outcome::Done, "{step:?}");
        }
        // Each of those that differ now has a block of its own.
        let after = engine.filesystem().statistics().free_blocks;
        assert!(before > after, "{options}: the blocks were not shared");
        let found = engine.tree().unwrap();
        assert_eq!(difference(&reference.tree(), &found), None, "{options}");
        let device = engine.close();
        assert_clean(&device);
        let mounted = Mounted::new(&device);
        let system = System::new(mounted.path(), format.block_bytes);
        let found = system.tree().unwrap();
        assert_eq!(
            difference(&reference.tree(), &found),
            None,
            "{options}: mounted"
        );
        mounted.unmount();
    }
}

fn place(number: usize) -> Place {
    Place::At(Path::default().join(number.to_string().as_bytes()))
}

/// The same attributes as all the others have.
fn alike(number: usize) -> Vec<Operation> {
    let owner = Owner {
        permissions: 0o664,
        uid: 0,
        gid: 0,
        umask: 0,
    };
    let name = Name::new(Place::At(Path::default()), number.to_string().as_bytes());
    let set =
        |name: &str, value| Operation::SetXattr(place(number), name.into(), value, XattrMode::Set);
    vec![
        Operation::Create(name, Made::Regular, owner),
        set(
            "user.long",
            Value::Data(Data {
                length: 400,
                seed: 3,
            }),
        ),
        set(
            "user.short",
            Value::Data(Data {
                length: 20,
                seed: 4,
            }),
        ),
        set(
            ACL_ACCESS,
            Value::Acl(vec![(1, 6), (2, 5), (2, 7), (4, 4), (16, 6), (32, 4)]),
        ),
    ]
}

/// One change or another.
fn change(number: usize) -> Operation {
    let set = |name: &str, length| {
        let data = Data { length, seed: 9 };
        Operation::SetXattr(
            place(number),
            name.into(),
            Value::Data(data),
            XattrMode::Set,
        )
    };
    match number % 6 {
        0 => set("user.long", 300 + number),
        1 => set("user.other", 10),
        2 => Operation::RemoveXattr(place(number), "user.long".into()),
        3 => Operation::SetAttributes(
            place(number),
            Change {
                permissions: Some(0o640),
                ..Change::default()
            },
        ),
        4 => Operation::Unlink(Name::new(
            Place::At(Path::default()),
            number.to_string().as_bytes(),
        )),
        _ => Operation::Sync,
    }
}
