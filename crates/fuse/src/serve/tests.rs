//! Requests as bytes: each operation with all fields of its call and reply, then random bytes.

mod recorder;

use std::sync::Arc;

use extant_space::CancelToken;
use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::*;
use crate::operations::Export;
use crate::options::WriteCache;
use crate::protocol::connection::{Offer, Preferences};
use recorder::Recorder;

/// A server, and the memory of a worker.
struct Fixture {
    server: Server,
    recorder: Arc<Recorder>,
    slot: Slot,
    reply: Vec<u8>,
}

impl Fixture {
    fn new() -> Self {
        let recorder = Arc::new(Recorder::default());
        let mut words = vec![7, 45, 0, u32::MAX, u32::MAX];
        words.extend([0; 11]);
        let offer = Offer::read(Body::new(words.as_bytes())).unwrap();
        let preferences = Preferences {
            write_cache: WriteCache::Back,
            export: Export::No,
            over_io_uring: false,
        };
        let server = Server::new(recorder.clone(), &preferences.agree(&offer).unwrap());
        Self {
            slot: server.slot(0),
            server,
            recorder,
            reply: vec![0; (1 << 20) + 4096],
        }
    }

    /// The reply without its header, or the error.
    fn ask(&mut self, opcode: u32, body: &[u8]) -> Option<Result<Vec<u8>, Errno>> {
        let request = request(opcode, body);
        self.ask_raw(&request)
    }

    fn ask_raw(&mut self, request: &[u8]) -> Option<Result<Vec<u8>, Errno>> {
        let reply = self.server.answer(
            request,
            &self.slot,
            Reply::new(&mut self.reply),
            &mut Vec::new(),
        )?;
        let word = |at: usize| i32::from_ne_bytes(reply[at..at + 4].try_into().unwrap());
        assert_eq!(word(0), reply.len() as i32);
        assert_eq!(reply[8..16], request[8..16]);
        Some(match word(4) {
            0 => Ok(reply[16..].to_vec()),
            error => {
                assert!((-4095..0).contains(&error), "error {error}");
                assert_eq!(reply.len(), 16);
                Err(Errno::from_raw_os_error(-error))
            }
        })
    }
}

fn request(opcode: u32, body: &[u8]) -> Vec<u8> {
    let header = RequestHeader {
        len: (40 + body.len()) as u32,
        opcode,
        unique: 0x1234,
        nodeid: 5,
        uid: 1000,
        gid: 100,
        pid: 42,
        total_extlen: 0,
        padding: 0,
    };
    [header.as_bytes(), body].concat()
}

/// Words of 32 bits, then bytes.
fn body32(words: &[u32], bytes: &[u8]) -> Vec<u8> {
    [words.as_bytes(), bytes].concat()
}

/// Words of 64 bits, then bytes.
fn body64(words: &[u64], bytes: &[u8]) -> Vec<u8> {
    [words.as_bytes(), bytes].concat()
}

/// Two halves in memory order.
fn pair(first: u32, second: u32) -> u64 {
    u64::from_ne_bytes([first, second].as_bytes().try_into().unwrap())
}

/// A request of every operation as the kernel sends it, and the call that results from it.
fn calls() -> Vec<(u32, Vec<u8>, &'static str)> {
    let setattr = {
        let mut words = [0; 11];
        // Mode, size and handle.
        words[0] = pair(1 << 0 | 1 << 3 | 1 << 6, 0);
        words[1] = 9;
        words[2] = 4096;
        words[8] = pair(0, 0o100644);
        words
    };
    vec![
        (1, b"name\0".to_vec(), "lookup 5 name"),
        (2, body64(&[3], b""), "forget 5 3"),
        (
            42,
            body64(&[pair(2, 0), 7, 1, 8, 2], b""),
            "forget 7 1; forget 8 2",
        ),
        (3, body64(&[0, 9], b""), "attributes 5 None"),
        (3, body64(&[1, 9], b""), "attributes 5 Some(Handle(9))"),
        (
            52,
            body64(&[1, 9, pair(0, 0xfff)], b""),
            "attributes 5 Some(Handle(9))",
        ),
        (
            4,
            body64(&setattr, b""),
            "set_attributes 5 mode 644 size 4096 handle 9 Keep",
        ),
        (5, vec![], "read_link 5"),
        (6, b"name\0target\0".to_vec(), "make_symlink 5 name target"),
        (
            8,
            body32(&[0o020666, 0x103, 0o1022, 0], b"name\0"),
            "make_node 5 name 20666 umask 22 device 1:3",
        ),
        (
            9,
            body32(&[0o755, 0o22], b"name\0"),
            "make_directory 5 name 40755 umask 22",
        ),
        (10, b"name\0".to_vec(), "unlink 5 name"),
        (11, b"name\0".to_vec(), "remove_directory 5 name"),
        (
            12,
            body64(&[6], b"old\0new\0"),
            "rename 5 old 6 new RenameFlags(0x0)",
        ),
        (
            45,
            body64(&[6, pair(2, 0)], b"old\0new\0"),
            "rename 5 old 6 new RenameFlags(EXCHANGE)",
        ),
        (13, body64(&[8], b"name\0"), "link 8 5 name"),
        (14, body32(&[0o1002, 1], b""), "open 5 RDWR | TRUNC Drop"),
        (
            15,
            body64(&[9, 4096, pair(512, 0), 0, pair(2, 0)], b""),
            "read 5 9 4096 512 Cache RDWR",
        ),
        (
            15,
            body64(&[9, 4096, pair(512, 2), 77, pair(0o1_000_002, 0)], b""),
            "read 5 9 4096 512 Direct RDWR | NOATIME",
        ),
        (
            16,
            body64(&[9, 4096, pair(4, 0), 0, 0], b"data"),
            "write 5 9 4096 data Caller Keep None",
        ),
        (
            16,
            body64(&[9, 4096, pair(4, 5), 0, 0], b"data"),
            "write 5 9 4096 data Cache Drop None",
        ),
        (
            16,
            body64(&[9, 4096, pair(4, 2), 77, 0], b"data"),
            "write 5 9 4096 data Direct Keep None",
        ),
        (
            16,
            body64(&[9, 4096, pair(4, 2), 77, pair(0o10_001, 0)], b"data"),
            "write 5 9 4096 data Direct Keep Some(Data)",
        ),
        (
            16,
            body64(&[9, 4096, pair(4, 2), 77, pair(0o4_010_001, 0)], b"data"),
            "write 5 9 4096 data Direct Keep Some(All)",
        ),
        (17, vec![], "statistics 5"),
        (18, body64(&[9, pair(2, 0), 0], b""), "release 5 9 RDWR"),
        (20, body64(&[9, pair(0, 0)], b""), "sync 5 9 All"),
        (20, body64(&[9, pair(1, 0)], b""), "sync 5 9 Data"),
        (
            21,
            body32(&[5, 1, 1, 0], b"user.a\0value"),
            "set_xattr 5 user.a value XattrFlags(CREATE) Drop",
        ),
        (22, body32(&[64, 0], b"user.a\0"), "xattr 5 user.a"),
        (23, body32(&[64, 0], b""), "list_xattrs 5"),
        (24, b"user.a\0".to_vec(), "remove_xattr 5 user.a"),
        (25, body64(&[9, 0, 0], b""), "flush 5 9"),
        (27, body32(&[0, 0], b""), "open_directory 5"),
        (28, body64(&[9, 3, pair(4096, 0), 0, 0], b""), "list 5 9 3"),
        (44, body64(&[9, 3, pair(4096, 0), 0, 0], b""), "list 5 9 3"),
        (29, body64(&[9, 0, 0], b""), "release_directory 5 9"),
        (30, body64(&[9, pair(1, 0)], b""), "sync_directory 5 9 Data"),
        (
            35,
            body32(&[2, 0o100644, 0o22, 0], b"name\0"),
            "create 5 name 100644 umask 22 RDWR Keep",
        ),
        (
            39,
            body64(&[9, pair(0, 0xabcd), 77, pair(2, 8)], b"in"),
            "ioctl 5 9 File abcd 77 in 8",
        ),
        (
            39,
            body64(&[9, pair(16, 0xabcd), 77, pair(0, 0)], b""),
            "ioctl 5 9 Directory abcd 77  0",
        ),
        (
            43,
            body64(&[9, 4096, 8192, pair(3, 0)], b""),
            "fallocate 5 9 4096 8192 KEEP_SIZE | PUNCH_HOLE",
        ),
        (46, body64(&[9, 100, pair(3, 0)], b""), "seek 5 9 100 Data"),
        (46, body64(&[9, 100, pair(4, 0)], b""), "seek 5 9 100 Hole"),
        (
            47,
            body64(&[9, 1, 6, 10, 2, 1 << 40, 0], b""),
            "copy 5 9 1 to 6 10 2 of 4294963200",
        ),
        (
            53,
            body64(&[9, 1, 6, 10, 2, 1 << 40, 0], b""),
            "copy 5 9 1 to 6 10 2 of 1099511627776",
        ),
        (50, body64(&[0], b""), "sync_all"),
        (
            51,
            body32(&[2, 0o600, 0o22, 0], b"#tmp\0"),
            "create_unnamed 5 100600 umask 22 RDWR",
        ),
    ]
}

#[test]
fn every_operation_arrives_with_all_it_was_asked() {
    let mut bench = Fixture::new();
    for (opcode, body, expected) in calls() {
        let reply = bench.ask(opcode, &body);
        assert_eq!(bench.recorder.taken(), expected, "opcode {opcode}");
        assert_eq!(reply.is_none(), [2, 42].contains(&opcode));
        assert!(!matches!(reply, Some(Err(_))), "{expected}: {reply:?}");
    }
    let asked: Vec<_> = calls().into_iter().map(|(opcode, ..)| opcode).collect();
    let silent = [Opcode::Init, Opcode::Interrupt, Opcode::Destroy];
    for &opcode in Opcode::ALL {
        let number = opcode as u32;
        assert!(
            silent.contains(&opcode) || asked.contains(&number),
            "{opcode:?}"
        );
    }
}

#[test]
fn every_operation_cut_short_is_refused_and_not_called() {
    let mut bench = Fixture::new();
    for (opcode, body, call) in calls() {
        // One byte less is less than the structure, a name without an end, or data that is missing.
        let Some(short) = body.len().checked_sub(1) else {
            continue;
        };
        let reply = bench.ask(opcode, &body[..short]);
        match (opcode, call) {
            (2, _) => assert_eq!(reply, None),
            // The nodes before the cut count.
            (42, _) => assert_eq!((reply, &*bench.recorder.taken()), (None, "forget 7 1")),
            // Their structures have more than is needed of them.
            (50 | 51, _) => _ = bench.recorder.taken(),
            _ => assert_eq!(reply, Some(Err(Errno::INVAL)), "{call}"),
        }
        assert_eq!(bench.recorder.taken(), "", "{call}");
    }
}

#[test]
fn answers_carry_the_results_of_the_file_system() {
    let mut bench = Fixture::new();
    let mut ask = |opcode: u32, body: &[u8]| bench.ask(opcode, body).unwrap();
    let u32_at =
        |bytes: &[u8], at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    let u64_at =
        |bytes: &[u8], at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());

    let entry = ask(1, b"name\0").unwrap();
    assert_eq!(entry.len(), 128);
    assert_eq!((u64_at(&entry, 0), u64_at(&entry, 8)), (77, 3));
    assert_eq!(u64_at(&entry, 40), 1077);
    let absent = ask(1, b"absent\0").unwrap();
    assert_eq!((absent.len(), u64_at(&absent, 0)), (128, 0));
    assert!(u64_at(&absent, 16) > 1000);
    assert_eq!(ask(1, b"forbidden\0"), Err(Errno::ACCESS));

    let created = ask(35, &body32(&[2, 0o644, 0, 0], b"name\0")).unwrap();
    assert_eq!(created.len(), 144);
    assert_eq!((u64_at(&created, 128), u32_at(&created, 136)), (9, 2));

    let statx = ask(52, &body64(&[0, 0, 0], b"")).unwrap();
    assert_eq!(statx.len(), 288);
    assert_eq!(u32_at(&statx, 32), 0xfff);
    assert_eq!(u64_at(&statx, 32 + 80), 11);

    assert_eq!(ask(15, &body64(&[9, 0, 3, 0, 0], b"")), Ok(b"xyz".to_vec()));
    assert_eq!(
        ask(15, &body64(&[9, 0, 2 << 20, 0, 0], b"")),
        Err(Errno::INVAL)
    );
    assert_eq!(
        ask(16, &body64(&[9, 0, 2, 0, 0], b"ab")),
        Ok(body32(&[2, 0], b""))
    );

    assert_eq!(
        ask(22, &body32(&[0, 0], b"user.a\0")),
        Ok(body32(&[5, 0], b""))
    );
    assert_eq!(ask(22, &body32(&[4, 0], b"user.a\0")), Err(Errno::RANGE));
    assert_eq!(
        ask(22, &body32(&[5, 0], b"user.a\0")),
        Ok(b"value".to_vec())
    );
    assert_eq!(
        ask(23, &body32(&[99, 0], b"")),
        Ok(b"user.a\0user.b\0".to_vec())
    );
    assert_eq!(ask(5, b""), Ok(b"target".to_vec()));
    assert_eq!(
        ask(46, &body64(&[9, 100, 3], b"")),
        Ok(body64(&[4096], b""))
    );
    let ioctl = ask(39, &body64(&[9, 0, 77, pair(0, 8)], b""));
    assert_eq!(ioctl, Ok(body32(&[7, 0, 0, 0], b"out")));
    assert_eq!(
        ask(39, &body64(&[9, 2, 77, pair(0, 8)], b"")),
        Err(Errno::NOTTY)
    );

    let plain = ask(28, &body64(&[9, 0, 4096, 0, 0], b"")).unwrap();
    assert_eq!(plain.len(), 3 * 32);
    let full = ask(44, &body64(&[9, 0, 4096, 0, 0], b"")).unwrap();
    assert_eq!(full.len(), 3 * 160);
    let room_for_two = ask(28, &body64(&[9, 0, 95, 0, 0], b"")).unwrap();
    assert_eq!(room_for_two.len(), 2 * 32);
}

#[test]
fn unknown_and_malformed_requests_have_a_reply() {
    let mut bench = Fixture::new();
    for unknown in [0, 7, 31, 34, 37, 40, 48, 54, 4096, u32::MAX] {
        assert_eq!(bench.ask(unknown, b""), Some(Err(Errno::NOSYS)));
    }
    assert_eq!(bench.ask(26, &[0; 64]), Some(Err(Errno::INVAL)));
    let mut long = request(1, b"name\0");
    long.push(0);
    assert_eq!(bench.ask_raw(&long), Some(Err(Errno::INVAL)));
    assert_eq!(bench.ask_raw(&[0; 16]), Some(Err(Errno::INVAL)));
    assert_eq!(bench.ask_raw(&[0; 15]), None);
}

#[test]
fn after_a_panic_everything_is_an_error_and_nothing_is_called() {
    let mut bench = Fixture::new();
    assert_eq!(bench.ask(1, b"panic\0"), Some(Err(Errno::IO)));
    assert_eq!(bench.server.panic_message(), Some("asked to panic"));
    bench.recorder.taken();
    assert_eq!(bench.ask(1, b"name\0"), Some(Err(Errno::IO)));
    assert_eq!(bench.ask(2, &body64(&[3], b"")), None);
    bench.server.finish();
    assert_eq!(bench.recorder.taken(), "");
}

#[test]
fn end_is_reported_once_on_success() {
    let bench = Fixture::new();
    bench.server.finish();
    assert_eq!(bench.recorder.taken(), "destroy");
}

#[test]
fn signal_reaches_the_request_it_is_for() {
    let mut bench = Fixture::new();
    let other = bench.server.slot(0);
    let token: CancelToken = bench.server.slots.begin(&other, 0x99);
    assert_eq!(bench.ask(36, &body64(&[0x98], b"")), None);
    assert!(!token.is_cancelled());
    assert_eq!(bench.ask(36, &body64(&[0x99], b"")), None);
    assert!(token.is_cancelled());
    assert_eq!(bench.ask(36, b"short"), Some(Err(Errno::INVAL)));
}

/// A body of small, large and medium numbers, and of any bytes after them.
fn any_body() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![0..4_u32, Just(4096), Just(1 << 20), any::<u32>()];
    let numbers = prop::collection::vec(number, 0..24);
    let name = prop_oneof!["[a-z]{0,6}\0", "[a-z]{0,3}\0[a-z]{1,3}\0", ".{0,9}"];
    let bytes = prop::collection::vec(any::<u8>(), 0..64);
    (numbers, name, bytes)
        .prop_map(|(numbers, name, bytes)| [numbers.as_bytes(), name.as_bytes(), &bytes].concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn any_body_of_any_operation_has_at_most_one_reply(opcode in 0..60_u32, body in any_body()) {
        let mut bench = Fixture::new();
        let reply = bench.ask(opcode, &body);
        let may_be_silent = [2, 36, 42].contains(&opcode);
        prop_assert!(reply.is_some() || may_be_silent);
        // Only the word itself makes it panic, and nothing in the server does.
        let said = bench.server.panic_message();
        prop_assert!(matches!(said, None | Some("asked to panic")), "{said:?}");
    }

    #[test]
    fn any_bytes_have_at_most_one_reply(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut bench = Fixture::new();
        let reply = bench.ask_raw(&bytes);
        prop_assert_eq!(reply.is_some(), bytes.len() >= 16);
    }
}
