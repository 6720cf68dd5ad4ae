//! Recovery: journals with wrong fields and right checksums.
//!
//! Read-only access shows the file system without writing. Recovery ends, and what the check finds
//! clean after it stays clean.

use std::sync::Arc;

use arbitrary::{Arbitrary, Unstructured};
use extant_ext4::{Access, Filesystem, Options};

use crate::damage::Damage;
use crate::ext4_image::sealed::Kind;
use crate::ext4_image::{IN_USE, options, report, rest};
use crate::input::{list, parse};
use crate::targets::ext4::{named, walk};

const KINDS: [Kind; 4] = [
    Kind::JournalSuperblock,
    Kind::JournalDescriptor,
    Kind::JournalCommit,
    Kind::JournalCopy,
];

#[derive(Debug)]
struct Wrong {
    kind: u8,
    place: u16,
    damages: Vec<Damage>,
}

impl<'a> Arbitrary<'a> for Wrong {
    fn arbitrary(from: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        Ok(Self {
            kind: from.arbitrary()?,
            place: from.arbitrary()?,
            damages: list(from, 4)?,
        })
    }
}

struct Input(Vec<Wrong>);

impl<'a> Arbitrary<'a> for Input {
    fn arbitrary(from: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        list(from, 6).map(Self)
    }
}

pub(crate) fn target(data: &[u8]) {
    let Some(Input(wrong)) = parse(data) else {
        return;
    };
    let image = Arc::new(IN_USE.image.snapshot());
    for Wrong {
        kind,
        place,
        damages,
    } in &wrong
    {
        let kind = KINDS[usize::from(*kind) % KINDS.len()];
        IN_USE.damage(&image, &[kind], *place, damages);
    }
    let before = image.snapshot();
    let read_only = Options {
        access: Access::ReadOnly,
        ..options()
    };
    if let Some(filesystem) = named(Filesystem::open(image.clone(), read_only)) {
        if let Some(root) = named(filesystem.root()) {
            walk(&root);
        }
        named(filesystem.close());
    }
    assert_eq!(image.first_difference(&before), None, "it was read only");
    let recovered = named(rest(&image));
    assert!(recovered.is_some() || !wrong.is_empty());
    if recovered.is_some() && named(report(&image)).is_some_and(|report| report.is_clean()) {
        named(rest(&image)).expect("a clean file system opens");
        let report = report(&image).expect("it was checked before");
        assert!(report.is_clean(), "{report}");
    }
}
