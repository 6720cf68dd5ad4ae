//! Requests of the kernel as bytes, to a mount of the ext4 engine.
//!
//! Each gets a reply of its own, which has the right length, or none if the protocol has none.
//! Afterwards the check finds nothing in the file system.

use std::sync::Arc;

use arbitrary::{Arbitrary, Unstructured};
use extant_ext4::Filesystem;
use extant_fuse::Wire;
use extant_mount::volume::{Volume, VolumeOptions};

use crate::ext4_image::{AT_REST, options, report};
use crate::input::{list, parse};

/// Opcodes of replies that the protocol does not have.
const SILENT: [u32; 3] = [2, 36, 42];

#[derive(Debug)]
struct Asked {
    opcode: u8,
    node: u8,
    /// Ids of requests before, lengths and extensions that may be wrong.
    wrong: Option<(u8, u16)>,
    body: Vec<u8>,
}

impl<'a> Arbitrary<'a> for Asked {
    fn arbitrary(from: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        let (opcode, node, wrong) = (from.arbitrary()?, from.arbitrary()?, from.arbitrary()?);
        let length = usize::from(from.arbitrary::<u8>()?).min(from.len());
        let body = from.bytes(length)?.to_vec();
        Ok(Self {
            opcode,
            node,
            wrong,
            body,
        })
    }
}

struct Input(Vec<Asked>);

impl<'a> Arbitrary<'a> for Input {
    fn arbitrary(from: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        list(from, 24).map(Self)
    }
}

pub(crate) fn target(data: &[u8]) {
    let Some(Input(requests)) = parse(data) else {
        return;
    };
    let image = Arc::new(AT_REST.image.snapshot());
    let filesystem = Filesystem::open(image.clone(), options()).expect("it is valid");
    let volume = Volume::new(filesystem, VolumeOptions::default()).expect("it has a root");
    let mut words = [0_u32; 16];
    words[..5].copy_from_slice(&[7, 45, 0, u32::MAX, u32::MAX]);
    let init: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let mut wire = Wire::new(Arc::new(volume), &init).expect("a new kernel");
    for (unique, asked) in (2_u64..).zip(&requests) {
        ask(&mut wire, unique, asked);
    }
    wire.finish();
    drop(wire);
    let report = report(&image).expect("it is a file system");
    assert!(report.is_clean(), "{report}");
}

fn ask(wire: &mut Wire, unique: u64, asked: &Asked) {
    let mut length = 40 + asked.body.len() as u32;
    let mut extensions = 0;
    if let Some((cut, extended)) = asked.wrong {
        length = length.wrapping_sub(u32::from(cut / 16));
        extensions = extended % 4;
    }
    let mut request = length.to_ne_bytes().to_vec();
    let opcode = u32::from(asked.opcode) % 56;
    request.extend(opcode.to_ne_bytes());
    request.extend(unique.to_ne_bytes());
    request.extend(u64::from(asked.node).to_ne_bytes());
    for word in [0_u32, 0, 7] {
        request.extend(word.to_ne_bytes());
    }
    request.extend(extensions.to_ne_bytes());
    request.extend([0; 2]);
    request.extend(&asked.body);
    let Some(reply) = wire.answer(&request) else {
        assert!(SILENT.contains(&opcode), "no reply to {opcode}");
        return;
    };
    let word = |at: usize| i32::from_ne_bytes(reply[at..at + 4].try_into().expect("4 bytes"));
    assert_eq!(word(0), reply.len() as i32);
    assert!((-4095..=0).contains(&word(4)));
    assert!(word(4) == 0 || reply.len() == 16);
    assert_eq!(reply[8..16], unique.to_ne_bytes());
}
