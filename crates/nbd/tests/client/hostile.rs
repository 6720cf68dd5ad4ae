//! Servers that break the rules: the connection ends with an error that names the server and the
//! rule, and every request has a result.

use std::ops::ControlFlow;
use std::time::Duration;

use extant_blockdev::{Device, Persistence, Request};
use extant_nbd::{NbdDevice, NbdOptions, NbdReconnect, NbdTimeouts};
use extant_space::{ErrorKind, Result};

use crate::options;
use crate::scripted::{Asked, CONTEXTS, EXTENDED, GO, Peer, STRUCTURED, Scripted, export};

const ACK: u32 = 1;
const INFO: u32 = 3;
const META_CONTEXT: u32 = 4;
const DONE: u16 = 1;
const DATA: u16 = 1;
const HOLE: u16 = 2;
const STATUS: u16 = 5;
const ERROR: u16 = 0x8001;
const ERROR_OFFSET: u16 = 0x8002;

/// Reconnects, which a violation must not cause.
fn patient() -> NbdOptions {
    NbdOptions {
        reconnect: NbdReconnect::DEFAULT,
        ..options()
    }
}

/// The line of an error, which names the server and says that it violates the protocol.
#[track_caller]
fn violation<T>(server: &Scripted, result: Result<T>, what: &str) {
    let Err(error) = result else {
        panic!("no error: {what}");
    };
    let line = error.to_string();
    assert!(line.starts_with(&server.uri().to_string()), "{line}");
    assert!(line.contains("violates the protocol"), "{line}");
    assert!(line.contains(what), "{what:?} in {line}");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

/// Connecting fails with a violation that has `what` in its line.
#[track_caller]
fn handshake_fails(what: &str, script: impl Fn(&mut Peer) + Send + Sync + 'static) {
    let server = Scripted::new(move |peer| {
        script(peer);
        peer.wait_for_end();
    });
    let result = NbdDevice::connect(server.uri(), patient());
    violation(&server, result, what);
}

/// As [`handshake_fails`], by the answer to one option.
#[track_caller]
fn answer_fails(option: u32, what: &str, answer: impl Fn(&mut Peer) + Send + Sync + 'static) {
    handshake_fails(what, move |peer| {
        peer.greet();
        while let Some(asked) = peer.option() {
            if asked == option {
                answer(peer);
            } else if peer.answer_well(asked) {
                return;
            }
        }
    });
}

#[test]
fn greeting_of_another_protocol_is_a_violation() {
    handshake_fails("greeting", |peer| peer.send(&[b"HTTP/1.1 400 Bad Request"]));
    handshake_fails("greeting", |peer| {
        peer.send(&[b"NBDMAGICxxxxxxxx", &[0, 3]])
    });
}

#[test]
fn server_without_options_is_too_old() {
    let server = Scripted::new(|peer| {
        peer.send(&[b"NBDMAGIC\x00\x00\x42\x02\x81\x86\x12\x53"]);
        peer.wait_for_end();
    });
    let error = NbdDevice::connect(server.uri(), options()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("newstyle"), "{error}");
}

#[test]
fn wrong_answers_in_the_handshake_are_violations() {
    answer_fails(STRUCTURED, "no answer", |peer| peer.answer(GO, ACK, &[]));
    answer_fails(STRUCTURED, "with data", |peer| {
        peer.answer(STRUCTURED, ACK, b"x")
    });
    answer_fails(EXTENDED, "bytes", |peer| {
        let header = [0x0003_e889_0455_65a9_u64.to_be_bytes()].concat();
        peer.send(&[&header, &EXTENDED.to_be_bytes(), &[0, 0, 0, 1], &[0xff; 4]]);
    });
    answer_fails(GO, "more than", |peer| {
        for _ in 0..100 {
            peer.answer(GO, INFO, &[0, 77]);
        }
    });
    answer_fails(GO, "another size", |peer| peer.answer(GO, INFO, &[0, 0, 1]));
    answer_fails(GO, "an export of", |peer| {
        peer.answer(GO, INFO, &export(u64::MAX, 1));
        peer.answer(GO, ACK, &[]);
    });
    answer_fails(GO, "without a size", |peer| peer.answer(GO, ACK, &[]));
    answer_fails(GO, "no information", |peer| peer.answer(GO, 2, &[0; 8]));
}

#[test]
fn invalid_block_sizes_are_violations() {
    for (minimum, preferred, maximum) in [
        (0_u32, 4096_u32, 1_u32 << 20),
        (3, 4096, 1 << 20),
        (1 << 17, 1 << 17, 1 << 20),
        (4096, 512, 1 << 20),
        (512, 4096, 256),
        (512, 4096, 1000),
    ] {
        answer_fails(GO, "block sizes", move |peer| {
            let parts = [
                &[0, 3][..],
                &minimum.to_be_bytes(),
                &preferred.to_be_bytes(),
                &maximum.to_be_bytes(),
            ];
            peer.answer(GO, INFO, &export(1 << 20, 1));
            peer.answer(GO, INFO, &parts.concat());
        });
    }
}

#[test]
fn unknown_and_repeated_contexts_are_violations() {
    let context = |id: u32, name: &str| [&id.to_be_bytes()[..], name.as_bytes()].concat();
    answer_fails(CONTEXTS, "not asked for", move |peer| {
        peer.answer(CONTEXTS, META_CONTEXT, &context(1, "qemu:dirty"));
    });
    answer_fails(CONTEXTS, "two of one id", move |peer| {
        peer.answer(CONTEXTS, META_CONTEXT, &context(1, "base:allocation"));
        peer.answer(CONTEXTS, META_CONTEXT, &context(1, "extant:state"));
    });
    answer_fails(CONTEXTS, "twice", move |peer| {
        peer.answer(CONTEXTS, META_CONTEXT, &context(1, "base:allocation"));
        peer.answer(CONTEXTS, META_CONTEXT, &context(2, "base:allocation"));
    });
    answer_fails(CONTEXTS, "without an id", move |peer| {
        peer.answer(CONTEXTS, META_CONTEXT, &[1]);
    });
}

/// A device whose first request gets `reply`; others are in flight.
#[track_caller]
fn reply_fails(
    what: &str,
    run: impl Fn(&NbdDevice) -> Result<()>,
    reply: impl Fn(&mut Peer, Asked) + Send + Sync + 'static,
) {
    let server = Scripted::new(move |peer| {
        peer.negotiate();
        if let Some(asked) = peer.request() {
            reply(peer, asked);
        }
        peer.wait_for_end();
    });
    let device = NbdDevice::connect(server.uri(), patient()).unwrap();
    violation(&server, run(&device), what);
    // It stays so.
    violation(&server, run(&device), what);
}

/// All of a batch have a result; the first one's is returned.
fn read(device: &NbdDevice) -> Result<()> {
    let mut buffers = vec![[0; 4096]; 8];
    let mut requests: Vec<_> = buffers
        .iter_mut()
        .map(|buffer| Request::read(8192, buffer))
        .collect();
    device.submit(&mut requests);
    let results: Vec<_> = requests.into_iter().map(Request::into_result).collect();
    results.into_iter().collect()
}

fn write(device: &NbdDevice) -> Result<()> {
    device.write_at(&[1; 512], 0, Persistence::Cached)
}

fn status(device: &NbdDevice) -> Result<()> {
    let all = device.geometry().range();
    device.status(all, &mut |_, _| ControlFlow::Continue(()))
}

#[test]
fn replies_to_nothing_are_violations() {
    reply_fails("not in flight", read, |peer, asked| {
        peer.chunk(asked.cookie + 100, DONE, 0, &[]);
    });
    let twice = |device: &NbdDevice| write(device).and_then(|()| write(device));
    reply_fails("not in flight", twice, |peer, asked| {
        peer.simple_reply(asked.cookie, 0);
        peer.simple_reply(asked.cookie, 0);
    });
    reply_fails("no reply where", read, |peer, _| peer.send(&[&[0x55; 64]]));
}

#[test]
fn data_of_wrong_sizes_is_a_violation() {
    let data = |offset: u64, length: usize| {
        let mut bytes = offset.to_be_bytes().to_vec();
        bytes.resize(8 + length, 7);
        bytes
    };
    reply_fails("0 bytes in reply", read, |peer, asked| {
        peer.chunk(asked.cookie, DONE, 0, &[]);
    });
    reply_fails("2048 bytes in reply", read, move |peer, asked| {
        peer.chunk(asked.cookie, DONE, DATA, &data(asked.offset, 2048));
    });
    reply_fails("before", read, move |peer, asked| {
        peer.chunk(asked.cookie, DONE, DATA, &data(asked.offset - 1, 4096));
    });
    reply_fails("of a read of", read, move |peer, asked| {
        peer.chunk(asked.cookie, DONE, DATA, &data(asked.offset, 4097));
    });
    reply_fails("of a read of", read, move |peer, asked| {
        peer.chunk_header(asked.cookie, DONE, DATA, u32::MAX);
        peer.send(&[&asked.offset.to_be_bytes()]);
    });
    reply_fails("of a read of", read, move |peer, asked| {
        peer.chunk(asked.cookie, 0, DATA, &data(u64::MAX, 1));
    });
    reply_fails("overlaps", read, move |peer, asked| {
        peer.chunk(asked.cookie, 0, DATA, &data(asked.offset, 1000));
        peer.chunk(asked.cookie, 0, DATA, &data(asked.offset + 2000, 1000));
        peer.chunk(asked.cookie, 0, DATA, &data(asked.offset + 999, 2));
    });
    reply_fails("overlaps", read, move |peer, asked| {
        let hole = [&asked.offset.to_be_bytes()[..], &4096_u32.to_be_bytes()].concat();
        peer.chunk(asked.cookie, 0, HOLE, &hole);
        peer.chunk(asked.cookie, 0, HOLE, &hole);
    });
    reply_fails("simple reply", read, |peer, asked| {
        peer.simple_reply(asked.cookie, 0);
    });
}

#[test]
fn chunks_of_other_types_are_violations() {
    for kind in [3, 4, 6, 7, 0x7fff] {
        reply_fails("chunk of type", read, move |peer, asked| {
            peer.chunk(asked.cookie, DONE, kind, &[0; 16]);
        });
    }
    reply_fails("chunk of type", write, |peer, asked| {
        peer.chunk(asked.cookie, DONE, DATA, &[0; 16]);
    });
    reply_fails("chunk of type", read, |peer, asked| {
        peer.chunk(asked.cookie, DONE, STATUS, &[0; 16]);
    });
    reply_fails("not the last", read, |peer, asked| {
        peer.chunk(asked.cookie, 0, 0, &[]);
    });
    reply_fails("chunk of type 0", read, |peer, asked| {
        peer.chunk(asked.cookie, DONE, 0, &[1]);
    });
}

#[test]
fn errors_of_wrong_sizes_are_violations() {
    reply_fails("error of", read, |peer, asked| {
        peer.chunk(asked.cookie, DONE, ERROR, &[0; 5]);
    });
    reply_fails("error of", read, |peer, asked| {
        peer.chunk_header(asked.cookie, DONE, ERROR, 1 << 30);
    });
    reply_fails("shorter than", read, |peer, asked| {
        peer.chunk(asked.cookie, DONE, ERROR, &[0, 0, 0, 5, 0, 9]);
    });
    reply_fails("without a number", read, |peer, asked| {
        peer.chunk(asked.cookie, DONE, ERROR, &[0; 6]);
    });
    reply_fails("another size", read, |peer, asked| {
        peer.chunk(asked.cookie, DONE, ERROR_OFFSET, &[0, 0, 0, 5, 0, 0, 1]);
    });
    reply_fails("more than", read, |peer, asked| {
        for _ in 0..2000 {
            peer.chunk(asked.cookie, 0, ERROR, &[0, 0, 0, 5, 0, 0]);
        }
    });
}

#[test]
fn wrong_statuses_are_violations() {
    let runs = |context: u32, runs: &[(u32, u32)]| {
        let mut bytes = context.to_be_bytes().to_vec();
        for (length, flags) in runs {
            bytes.extend(length.to_be_bytes());
            bytes.extend(flags.to_be_bytes());
        }
        bytes
    };
    reply_fails("no status", status, |peer, asked| {
        peer.chunk(asked.cookie, DONE, 0, &[]);
    });
    reply_fails("status of 4 bytes", status, move |peer, asked| {
        peer.chunk(asked.cookie, DONE, STATUS, &runs(1, &[]));
    });
    reply_fails("status of 3 bytes", status, move |peer, asked| {
        peer.chunk(asked.cookie, DONE, STATUS, &[0, 0, 0]);
    });
    reply_fails("of no bytes", status, move |peer, asked| {
        peer.chunk(asked.cookie, DONE, STATUS, &runs(1, &[(512, 0), (0, 3)]));
    });
    reply_fails("not chosen", status, move |peer, asked| {
        peer.chunk(asked.cookie, DONE, STATUS, &runs(9, &[(512, 0)]));
    });
    reply_fails("two statuses", status, move |peer, asked| {
        peer.chunk(asked.cookie, 0, STATUS, &runs(1, &[(512, 0)]));
        peer.chunk(asked.cookie, 0, STATUS, &runs(1, &[(512, 0)]));
    });
    reply_fails("a status of", status, |peer, asked| {
        peer.chunk_header(asked.cookie, DONE, STATUS, (64 << 20) + 4);
    });
}

#[test]
fn status_past_the_requested_range_is_cut() {
    let server = Scripted::new(|peer| {
        peer.negotiate();
        while let Some(asked) = peer.request() {
            let runs = [1_u32, asked.length + 4096, 3]
                .map(u32::to_be_bytes)
                .concat();
            peer.chunk(asked.cookie, DONE, STATUS, &runs);
        }
    });
    let device = NbdDevice::connect(server.uri(), options()).unwrap();
    let all = device.geometry().range();
    let mut end = 0;
    device
        .status(all, &mut |range, _| {
            end = range.end();
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(end, all.end());
}

#[test]
fn read_in_chunks_out_of_order_with_holes_is_put_together() {
    let server = Scripted::new(|peer| {
        peer.negotiate();
        while let Some(asked) = peer.request() {
            let at = |offset: u64| (asked.offset + offset).to_be_bytes();
            peer.chunk(asked.cookie, 0, DATA, &[&at(3000)[..], &[3; 1096]].concat());
            let hole = [&at(1000)[..], &2000_u32.to_be_bytes()].concat();
            peer.chunk(asked.cookie, 0, HOLE, &hole);
            peer.chunk(asked.cookie, 0, DATA, &[&at(0)[..], &[1; 1000]].concat());
            peer.chunk(asked.cookie, DONE, 0, &[]);
        }
    });
    let device = NbdDevice::connect(server.uri(), options()).unwrap();
    let mut bytes = [9; 4096];
    device.read_at(&mut bytes, 8192).unwrap();
    assert!(bytes[..1000] == [1; 1000] && bytes[1000..3000] == [0; 2000]);
    assert!(bytes[3000..] == [3; 1096]);
}

#[test]
fn message_of_the_server_is_shown_without_control_characters() {
    let server = Scripted::new(|peer| {
        peer.negotiate();
        while let Some(asked) = peer.request() {
            let message = b"disk \x1b[31mfull\n";
            let head = [0, 0, 0, 28, 0, message.len() as u8];
            peer.chunk(asked.cookie, DONE, ERROR, &[&head[..], message].concat());
        }
    });
    let device = NbdDevice::connect(server.uri(), options()).unwrap();
    let error = device.read_at(&mut [0; 512], 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    let line = error.to_string();
    assert!(
        line.ends_with("no space left on device (server: disk [31mfull)"),
        "{line}"
    );
}

/// Options with short limits.
fn impatient() -> NbdOptions {
    NbdOptions {
        timeouts: NbdTimeouts {
            connect: Duration::from_millis(200),
            handshake: Duration::from_millis(200),
            silence: Duration::from_millis(200),
        },
        ..options()
    }
}

#[test]
fn silent_server_fails_the_handshake() {
    let server = Scripted::new(Peer::wait_for_end);
    let error = NbdDevice::connect(server.uri(), impatient()).unwrap_err();
    assert!(error.to_string().contains("took too long"), "{error}");
}

#[test]
fn server_that_stops_replying_is_lost() {
    let server = Scripted::new(|peer| {
        peer.negotiate();
        peer.wait_for_end();
    });
    let device = NbdDevice::connect(server.uri(), impatient()).unwrap();
    // An idle connection is none without replies.
    std::thread::sleep(Duration::from_millis(500));
    let error = read(&device).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("does not reply"), "{error}");
}

#[test]
fn server_that_replies_byte_by_byte_is_lost() {
    let server = Scripted::new(|peer| {
        peer.negotiate();
        if let Some(asked) = peer.request() {
            peer.chunk_header(asked.cookie, DONE, DATA, 8 + asked.length);
            peer.send(&[&asked.offset.to_be_bytes()]);
            for _ in 0..asked.length {
                peer.send(&[&[0]]);
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    });
    let device = NbdDevice::connect(server.uri(), impatient()).unwrap();
    let error = device.read_at(&mut [0; 4096], 0).unwrap_err();
    assert!(error.to_string().contains("does not reply"), "{error}");
}

#[test]
fn server_that_disconnects_at_each_request_fails_it_in_the_end() {
    let server = Scripted::new(|peer| {
        peer.negotiate();
        let _ = peer.request();
    });
    let device = NbdDevice::connect(server.uri(), patient()).unwrap();
    let error = read(&device).unwrap_err();
    assert!(error.to_string().contains("connections ended"), "{error}");
}

#[test]
fn simple_replies_are_enough_for_reading_and_writing() {
    let server = Scripted::new(|peer| {
        peer.greet();
        while let Some(option) = peer.option() {
            match option {
                GO => {
                    peer.answer_well(GO);
                    break;
                }
                other => peer.answer(other, (1 << 31) + 1, &[]),
            }
        }
        while let Some(asked) = peer.request() {
            peer.simple_reply(asked.cookie, 0);
            peer.send(&[&vec![5; asked.length as usize]]);
        }
    });
    let device = NbdDevice::connect(server.uri(), options()).unwrap();
    let mut bytes = [0; 512];
    device.read_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, [5; 512]);
}

#[test]
fn older_option_for_an_export_is_enough() {
    let server = Scripted::new(|peer| {
        peer.send(&[b"NBDMAGICIHAVEOPT", &[0, 1], &[]]);
        let mut flags = [0; 4];
        peer.read(&mut flags);
        while let Some(option) = peer.option() {
            match option {
                1 => {
                    let about = export(1 << 20, 1);
                    peer.send(&[&about[2..], &[0; 124]]);
                    break;
                }
                other => peer.answer(other, (1 << 31) + 1, &[]),
            }
        }
        while let Some(asked) = peer.request() {
            peer.simple_reply(asked.cookie, 0);
            peer.send(&[&vec![6; asked.length as usize]]);
        }
    });
    let device = NbdDevice::connect(server.uri(), options()).unwrap();
    assert_eq!(device.geometry().size, 1 << 20);
    let mut bytes = [0; 512];
    device.read_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, [6; 512]);
}

/// Good replies of a read of 512 bytes and of a status, with random changes.
fn garbled(rng: &mut fastrand::Rng, asked: Asked) -> Vec<u8> {
    let chunk = |flags: u16, kind: u16, payload: &[u8]| {
        [
            &0x668e_33ef_u32.to_be_bytes()[..],
            &flags.to_be_bytes(),
            &kind.to_be_bytes(),
            &asked.cookie.to_be_bytes(),
            &(payload.len() as u32).to_be_bytes(),
            payload,
        ]
        .concat()
    };
    let data = [&asked.offset.to_be_bytes()[..], &[7; 256]].concat();
    let hole = [&(asked.offset + 256).to_be_bytes()[..], &[0, 0, 1, 0]].concat();
    let status = [1_u32, 512, 3].map(u32::to_be_bytes).concat();
    let parts = [
        chunk(0, DATA, &data),
        chunk(0, HOLE, &hole),
        chunk(0, STATUS, &status),
        chunk(0, ERROR, &[0, 0, 0, 5, 0, 0]),
        chunk(DONE, 0, &[]),
    ];
    let mut bytes: Vec<u8> = parts
        .into_iter()
        .filter(|_| rng.u32(0..3) > 0)
        .flatten()
        .collect();
    for _ in 0..rng.usize(0..4) {
        if let Some(byte) = rng.choice(&mut bytes) {
            *byte = rng.u8(..);
        }
    }
    bytes
}

#[test]
fn garbled_replies_end_every_request_with_a_result() {
    for seed in 0..60 {
        let server = Scripted::new(move |peer| {
            let mut rng = fastrand::Rng::with_seed(seed);
            peer.negotiate();
            while let Some(asked) = peer.request() {
                peer.send(&[&garbled(&mut rng, asked)]);
            }
        });
        eprintln!("seed {seed}");
        let device = NbdDevice::connect(server.uri(), impatient()).unwrap();
        let mut bytes = [0; 512];
        for _ in 0..3 {
            let _ = device.read_at(&mut bytes, 4096);
            let _ = status(&device);
        }
    }
}
