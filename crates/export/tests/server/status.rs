//! Metadata contexts and the status of blocks.

use std::sync::Arc;

use extant_blockdev::{Device, HostDevice, HostOptions, MemoryDevice, Persistence};
use extant_export::{Access, Export, Exports, Server, ServerOptions};
use extant_space::{ByteRange, ErrorKind};

use crate::client::*;
use crate::{MIB, server};

const ALLOCATION: &str = "base:allocation";
const STATE: &str = "extant:state";

/// Context, and lengths with flags, of a reply.
fn descriptors(chunk: &Chunk) -> (u32, Vec<(u64, u64)>) {
    let number = |bytes: &[u8]| bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
    let context = number(&chunk.payload[..4]) as u32;
    let list = match chunk.kind.unwrap() {
        5 => chunk.payload[4..].chunks(8),
        6 => {
            let list = chunk.payload[8..].chunks(16);
            assert_eq!(number(&chunk.payload[4..8]), list.len() as u64);
            list
        }
        other => panic!("a chunk of type {other}: {chunk:?}"),
    };
    let halves = |bytes: &[u8]| {
        let (length, flags) = bytes.split_at(bytes.len() / 2);
        (number(length), number(flags))
    };
    (context, list.map(halves).collect())
}

#[test]
fn contexts_are_listed_by_name_and_namespace() {
    let (server, _) = server(ServerOptions::default());
    let mut client = Client::new(&server);
    client.option(STRUCTURED, &[]);
    let names = |answers: Vec<(u32, Vec<u8>)>| -> Vec<String> {
        let found = answers.iter().filter(|(answer, _)| *answer == 4);
        found
            .map(|(_, data)| String::from_utf8(data[4..].to_vec()).unwrap())
            .collect()
    };
    let cases: &[(u32, &[&str], &[&str])] = &[
        (LIST_CONTEXTS, &[], &[ALLOCATION, STATE, "extant:assign"]),
        (LIST_CONTEXTS, &["base:"], &[ALLOCATION]),
        (LIST_CONTEXTS, &["extant:"], &[STATE, "extant:assign"]),
        (LIST_CONTEXTS, &["qemu:dirty-bitmap:"], &[]),
        (SET_CONTEXTS, &["base:"], &[]),
        (SET_CONTEXTS, &[], &[]),
        (SET_CONTEXTS, &[STATE, STATE, "x-y:z"], &[STATE]),
    ];
    for (option, asked, expected) in cases {
        let answers = client.option(*option, &queries("disk", asked));
        assert_eq!(answers.last().unwrap().0, ACK);
        assert_eq!(names(answers), *expected, "{asked:?}");
    }
    let answers = client.option(SET_CONTEXTS, &queries("disk", &["allocation"]));
    assert_eq!(answers[0].0, INVALID);
    let answers = client.option(SET_CONTEXTS, &queries("nothing", &[ALLOCATION]));
    assert_eq!(answers[0].0, UNKNOWN);
    let mut short = queries("disk", &[]);
    short[11] = 200;
    assert_eq!(client.option(SET_CONTEXTS, &short)[0].0, INVALID);
}

#[test]
fn status_distinguishes_hole_unwritten_and_written_in_both_contexts() {
    let (server, _) = server(ServerOptions::default());
    for style in [STRUCTURED, EXTENDED] {
        let mut client = Client::ready(&server, Some(style), &[ALLOCATION, STATE]);
        client.write(0, MIB, &[1; MIB as usize]);
        // Zeros that stay allocated are unwritten space of a device in memory.
        client.request(ZEROES, NO_HOLE, 2 * MIB, MIB);
        let reply = client.request(STATUS, 0, 0, 4 * MIB);
        assert_eq!(reply.len(), 2);
        let lengths = |flags: [u64; 4]| flags.map(|flags| (MIB, flags)).to_vec();
        assert_eq!(descriptors(&reply[0]), (1, lengths([3, 0, 2, 3])));
        assert_eq!(descriptors(&reply[1]), (2, lengths([1, 0, 2, 1])));
        let reply = client.request(STATUS, REQ_ONE, MIB + 4096, 4 * MIB);
        assert_eq!(descriptors(&reply[0]), (1, vec![(MIB - 4096, 0)]));
        assert_eq!(error_of(&client.request(STATUS, 0, 0, 0)), 22);
        assert_eq!(error_of(&client.request(STATUS, 0, 64 * MIB, 512)), 22);
    }
}

#[test]
fn contexts_of_another_export_are_not_those_of_the_one_chosen() {
    let export = |name| {
        let device = Arc::new(extant_blockdev::MemoryDevice::new(MIB));
        Export::new(name, "", device, Access::ReadWrite).unwrap()
    };
    let exports = Exports::new(vec![export("disk"), export("other")]).unwrap();
    let server = Server::new(exports, ServerOptions::default());
    let mut client = Client::new(&server);
    client.option(STRUCTURED, &[]);
    client.option(SET_CONTEXTS, &queries("other", &[ALLOCATION]));
    client.negotiate(None, &[]);
    assert_eq!(error_of(&client.request(STATUS, 0, 0, 512)), 22);
}

#[test]
fn payload_chooses_contexts_of_one_request() {
    let (server, _) = server(ServerOptions::default());
    let mut client = Client::ready(&server, Some(EXTENDED), &[ALLOCATION, STATE]);
    let mut ask = |length: u64, ids: &[u32]| {
        let payload: Vec<u8> = length
            .to_be_bytes()
            .into_iter()
            .chain(ids.iter().flat_map(|id| id.to_be_bytes()))
            .collect();
        let mut bytes = client.encode(STATUS, PAYLOAD, 0, payload.len() as u64);
        bytes.extend(payload);
        client.send(&bytes);
        client.reply()
    };
    let reply = ask(MIB, &[2]);
    assert_eq!(reply.len(), 1);
    assert_eq!(descriptors(&reply[0]), (2, vec![(MIB, 1)]));
    assert_eq!(ask(MIB, &[1, 2]).len(), 2);
    for (length, ids) in [
        (MIB, &[][..]),
        (MIB, &[3]),
        (MIB, &[1, 1]),
        (0, &[1]),
        (65 * MIB, &[1]),
        (u64::MAX, &[1]),
        (MIB, &[1, 2, 1]),
    ] {
        assert_eq!(error_of(&ask(length, ids)), 22, "{length} {ids:?}");
    }
    // A payload where none belongs is read past.
    let mut bytes = client.encode(READ, PAYLOAD, 0, 512);
    bytes.extend([0; 512]);
    client.send(&bytes);
    assert_eq!(error_of(&client.reply()), 22);
    assert_eq!(client.read(0, 0, 512), [0; 512]);
}

#[test]
fn status_and_zeroes_of_terabytes_take_one_extended_request() {
    let device = Arc::new(extant_blockdev::MemoryDevice::new(1 << 43));
    let export = Export::new("disk", "", device, Access::ReadWrite).unwrap();
    let server = Server::new(
        Exports::new(vec![export]).unwrap(),
        ServerOptions::default(),
    );
    let mut client = Client::ready(&server, Some(EXTENDED), &[ALLOCATION]);
    assert_eq!(error_of(&client.request(ZEROES, 0, 0, 1 << 43)), 0);
    let reply = client.request(STATUS, 0, 0, 1 << 43);
    assert_eq!(descriptors(&reply[0]), (1, vec![(1 << 43, 3)]));
}

#[test]
fn many_extents_are_reported_in_bounded_chunks() {
    let (server, device) = server(ServerOptions::default());
    for page in (0..16384).step_by(2) {
        device
            .write_at(&[1; 512], page * 4096, Persistence::Cached)
            .unwrap();
    }
    let mut client = Client::ready(&server, Some(STRUCTURED), &[ALLOCATION]);
    let mut at = 0;
    let mut pieces = 0;
    while at < 64 * MIB {
        let reply = client.request(STATUS, 0, at, 64 * MIB - at);
        let (_, list) = descriptors(&reply[0]);
        assert!(list.len() <= 4096);
        at += list.iter().map(|(length, _)| length).sum::<u64>();
        pieces += 1;
    }
    assert_eq!((at, pieces), (64 * MIB, 4));
}

#[test]
fn host_file_distinguishes_unwritten_from_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk.raw");
    std::fs::File::create(&path)
        .unwrap()
        .set_len(3 * MIB)
        .unwrap();
    let device = HostDevice::open(&path, &HostOptions::default()).unwrap();
    let tells = device.geometry().features;
    let part = |number: u64| ByteRange::new(number * MIB, (number + 1) * MIB);
    match device.assign(part(1)) {
        Ok(extant_blockdev::Assigned::Done) => {}
        Ok(_) => return eprintln!("skipped: no fallocate here"),
        Err(error) => assert_ne!(error.kind(), ErrorKind::Io, "{error}"),
    }
    device
        .write_at(&vec![1; MIB as usize], 2 * MIB, Persistence::Cached)
        .unwrap();
    device.flush().unwrap();
    let export = Export::new("disk", "", Arc::new(device), Access::ReadWrite).unwrap();
    let server = Server::new(
        Exports::new(vec![export]).unwrap(),
        ServerOptions::default(),
    );
    if !tells.contains(extant_blockdev::Features::EXTENTS) {
        let mut client = Client::new(&server);
        client.option(STRUCTURED, &[]);
        let answers = client.option(LIST_CONTEXTS, &queries("disk", &[]));
        return assert_eq!(answers.len(), 2, "no state where it is not known");
    }
    let mut client = Client::ready(&server, Some(STRUCTURED), &[STATE]);
    let reply = client.request(STATUS, 0, 0, 3 * MIB);
    let expected = vec![(MIB, 1), (MIB, 2), (MIB, 0)];
    assert_eq!(descriptors(&reply[0]), (2, expected));
}

#[test]
fn commands_of_the_extension_need_its_context() {
    let (server, device) = server(ServerOptions::default());
    const ASSIGN: u16 = 0xea00;
    const WRITTEN: u16 = 0xea01;
    for style in [STRUCTURED, EXTENDED] {
        let mut client = Client::ready(&server, Some(style), &["base:allocation"]);
        for command in [ASSIGN, WRITTEN] {
            assert_eq!(error_of(&client.request(command, 0, 0, 4096)), 22);
        }
        assert_eq!(device.take_seen(), [""; 0]);
        let mut client = Client::ready(&server, Some(style), &["extant:assign"]);
        assert_eq!(error_of(&client.request(ASSIGN, 0, 0, 48 << 20)), 0);
        assert_eq!(device.take_seen(), ["assign"]);
        assert_eq!(error_of(&client.request(WRITTEN, FUA, 0, 4096)), 0);
        assert_eq!(device.take_seen(), ["zeroes Written Any Fua"]);
        assert_eq!(error_of(&client.request(ASSIGN, FUA, 0, 4096)), 22);
        assert_eq!(error_of(&client.request(WRITTEN, NO_HOLE, 0, 4096)), 22);
        assert_eq!(error_of(&client.request(ASSIGN, 0, 64 << 20, 4096)), 22);
        assert_eq!(device.take_seen(), [""; 0]);
        let status = client.request(STATUS, 0, 0, 8192);
        assert_eq!((status.len(), error_of(&status)), (1, 0));
    }
}

#[test]
fn extension_is_not_offered_by_a_read_only_export() {
    let device = Arc::new(MemoryDevice::new(MIB));
    let export = Export::new("disk", "", device, Access::ReadOnly).unwrap();
    let server = Server::new(
        Exports::new(vec![export]).unwrap(),
        ServerOptions::default(),
    );
    let mut client = Client::new(&server);
    assert_eq!(client.option(STRUCTURED, &[]), [(ACK, vec![])]);
    let answers = client.option(SET_CONTEXTS, &queries("disk", &["extant:assign"]));
    assert_eq!(answers, [(ACK, vec![])]);
}
