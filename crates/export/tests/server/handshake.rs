//! The handshake: accepted and refused options.

use std::sync::Arc;

use extant_blockdev::{MemoryDevice, MemoryOptions};
use extant_export::{Access, Export, Exports, Server, ServerOptions};

use crate::client::*;
use crate::{MIB, server};

#[test]
fn information_names_size_flags_and_block_sizes() {
    let (server, _) = server(ServerOptions::default());
    let mut client = Client::new(&server);
    let answers = client.option(INFO, &name_and_kinds("disk", &[1, 2, 3]));
    let export = &answers[0].1;
    assert_eq!(export[..2], [0, 0]);
    assert_eq!(export[2..10], (64 * MIB).to_be_bytes());
    // Flags, flush, FUA, trim, zeroes, multi-conn, cache, fast zero.
    assert_eq!(
        u16::from_be_bytes([export[10], export[11]]),
        0b1101_0110_1101
    );
    let sizes: Vec<u8> = [512u32, 4096, 32 << 20]
        .iter()
        .flat_map(|size| size.to_be_bytes())
        .collect();
    assert_eq!(answers[1].1, [&[0, 3], &sizes[..]].concat());
    assert_eq!(answers[2].1, b"\0\x01disk");
    assert_eq!(answers[3].1, b"\0\x02a disk");
    assert_eq!(answers[4], (ACK, vec![]));
}

#[test]
fn read_only_export_offers_no_changes_and_refuses_them() {
    let device = Arc::new(MemoryDevice::new(MIB));
    let export = Export::new("disk", "", device, Access::ReadOnly).unwrap();
    let server = Server::new(
        Exports::new(vec![export]).unwrap(),
        ServerOptions::default(),
    );
    let mut client = Client::new(&server);
    let answers = client.option(GO, &name_and_kinds("disk", &[]));
    assert_eq!(answers[0].1[10..], [0b101, 0b0000_1111]);
    assert_eq!(error_of(&client.write(0, 0, &[1; 512])), 1);
    assert_eq!(error_of(&client.request(TRIM, 0, 0, 512)), 1);
    assert_eq!(error_of(&client.request(ZEROES, 0, 0, 512)), 1);
    assert_eq!(client.read(0, 0, 512), [0; 512]);
}

#[test]
fn exports_are_listed_and_the_first_is_the_default() {
    let export = |name: &str, size| {
        let device = Arc::new(MemoryDevice::new(size));
        Export::new(name, format!("{size} bytes"), device, Access::ReadWrite).unwrap()
    };
    let exports = Exports::new(vec![export("first", MIB), export("second", 2 * MIB)]).unwrap();
    let server = Server::new(exports, ServerOptions::default());
    let mut client = Client::new(&server);
    let answers = client.option(3, &[]);
    assert_eq!(answers[0].1, b"\0\0\0\x05first1048576 bytes");
    assert_eq!(answers[1].1, b"\0\0\0\x06second2097152 bytes");
    assert_eq!(answers.len(), 3);
    let answers = client.option(INFO, &name_and_kinds("", &[]));
    assert_eq!(answers[0].1[2..10], MIB.to_be_bytes());
    let answers = client.option(INFO, &name_and_kinds("third", &[]));
    assert_eq!(answers[0].0, UNKNOWN);
    assert!(Exports::new(vec![export("a", MIB), export("a", MIB)]).is_err());
    assert!(Exports::new(Vec::new()).is_err());
}

#[test]
fn export_name_continues_with_and_without_zeros() {
    let (server, _) = server(ServerOptions::default());
    for (flags, zeroes) in [(3, 0), (1, 124)] {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        server.serve(theirs).unwrap();
        let mut client = Client::over(Box::new(ours));
        client.greet(flags);
        client.send_option(1, b"disk");
        assert_eq!(client.take(), (64 * MIB).to_be_bytes());
        let _flags: [u8; 2] = client.take();
        for _ in 0..zeroes {
            assert_eq!(client.take(), [0]);
        }
        assert_eq!(client.read(0, 0, 512), [0; 512]);
    }
}

#[test]
fn client_that_is_not_fixed_newstyle_is_cut_off() {
    let (server, _) = server(ServerOptions::default());
    for flags in [0u32, 2, 7, u32::MAX] {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        server.serve(theirs).unwrap();
        let mut client = Client::over(Box::new(ours));
        client.greet(flags);
        client.expect_end();
    }
}

#[test]
fn large_blocks_are_refused_to_clients_that_do_not_ask() {
    let mut options = MemoryOptions::new(MIB);
    options.logical_block = 4096;
    let device = Arc::new(MemoryDevice::with_options(options));
    let export = Export::new("disk", "", device, Access::ReadWrite).unwrap();
    let server = Server::new(
        Exports::new(vec![export]).unwrap(),
        ServerOptions::default(),
    );
    let mut client = Client::new(&server);
    let refused = client.option(GO, &name_and_kinds("disk", &[]));
    assert_eq!(refused[0].0, (1 << 31) + 8);
    let answers = client.option(GO, &name_and_kinds("disk", &[3]));
    assert_eq!(answers[1].1[2..6], 4096u32.to_be_bytes());
    assert_eq!(error_of(&client.write(0, 512, &[1; 512])), 22);
}

#[test]
fn malformed_options_are_refused_and_the_next_one_is_heard() {
    let (server, _) = server(ServerOptions::default());
    let mut client = Client::new(&server);
    let longer_than_it_is = [&[0, 0, 1, 0], &b"disk"[..]].concat();
    let too_long = name_and_kinds(&"x".repeat(5000), &[]);
    let refused: &[(u32, &[u8], u32)] = &[
        (GO, &[], INVALID),
        (GO, &longer_than_it_is, INVALID),
        (GO, &[0, 0, 0, 4, 0xff, 0xfe, 0, 1, 0, 0], INVALID),
        (GO, &name_and_kinds("di\0k", &[]), INVALID),
        (
            GO,
            &[&name_and_kinds("disk", &[])[..], &[0]].concat(),
            INVALID,
        ),
        (GO, &[0, 0, 0, 0, 0xff, 0xff], INVALID),
        (INFO, &too_long, TOO_BIG),
        (3, &[1], INVALID),
        (STRUCTURED, &[1], INVALID),
        (EXTENDED, &[1], INVALID),
        (5, &[], POLICY),
        (4, &[], UNSUP),
        (0, &[], UNSUP),
        (u32::MAX, &[7; 100], UNSUP),
        (4, &[0; 100_000], TOO_BIG),
        (LIST_CONTEXTS, &queries("disk", &[]), INVALID),
    ];
    for (option, data, answer) in refused {
        let answers = client.option(*option, data);
        assert_eq!(answers.len(), 1, "option {option}");
        assert_eq!(answers[0].0, *answer, "option {option}");
        assert!(!answers[0].1.is_empty(), "the refusal has a message");
    }
    client.negotiate(None, &[]);
}

#[test]
fn option_of_four_gibibytes_ends_the_connection() {
    let (server, _) = server(ServerOptions::default());
    for option in [1u32, GO, 99] {
        let mut client = Client::new(&server);
        client.send(b"IHAVEOPT");
        client.send(&option.to_be_bytes());
        client.send(&u32::MAX.to_be_bytes());
        client.expect_end();
    }
}

#[test]
fn styles_are_agreed_on_once_and_only_upwards() {
    let (server, _) = server(ServerOptions::default());
    let mut client = Client::new(&server);
    assert_eq!(client.option(STRUCTURED, &[])[0].0, ACK);
    assert_eq!(client.option(STRUCTURED, &[])[0].0, INVALID);
    assert_eq!(client.option(EXTENDED, &[])[0].0, ACK);
    assert_eq!(client.option(EXTENDED, &[])[0].0, INVALID);
    assert_eq!(client.option(STRUCTURED, &[])[0].0, (1 << 31) + 10);
}

#[test]
fn abort_is_acknowledged_and_ends() {
    let (server, _) = server(ServerOptions::default());
    let mut client = Client::new(&server);
    assert_eq!(client.option(2, &[]), [(ACK, vec![])]);
    client.expect_end();
}
