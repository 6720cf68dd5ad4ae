//! Rings of a hostile guest: a status or a broken ring, and the server serves on.

use std::sync::Arc;

use extant_blockdev::MemoryDevice;
use extant_testkit::vhost_client::{
    Client, Op, Options, Queue, Ram, RawDescriptor, feature, flag, kind, status,
};

use crate::{Ground, MIB, SECTOR, expect_event, pattern};

const NEXT: u16 = flag::NEXT;
const WRITE: u16 = flag::WRITE;
/// No memory is there.
const NOWHERE: u64 = 0xdead_0000_0000;

fn connect(ground: &Ground, ram: &Ram) -> Client {
    let options = Options {
        without: vec![feature::INDIRECT],
        ..Options::default()
    };
    Client::connect(&ground.socket(), ram, options)
}

/// Header, one part, status.
fn chain(queue: &Queue, kind: u32, part: (u64, u32, u16)) -> Vec<RawDescriptor> {
    queue.set_header(0, kind, 0);
    let (address, length, flags) = part;
    vec![
        (queue.header_address(0), 16, NEXT, 1),
        (address, length, flags | NEXT, 2),
        (queue.status_address(0), 1, WRITE, 0),
    ]
}

#[test]
fn request_that_can_be_answered_has_an_error_and_the_ring_goes_on() {
    let ground = Ground::new();
    let (_server, _) = ground.serve(Arc::new(MemoryDevice::new(MIB)));
    let ram = Ram::new(1);
    let mut client = connect(&ground, &ram);
    let queue = &mut client.queues[0];
    let data = queue.data_address(0);
    let ram_end = queue.address(16 << 20);
    let near_end = u64::MAX - 100;
    for (what, kind, part, wanted) in [
        (
            "read to nowhere",
            kind::IN,
            (NOWHERE, 512, WRITE),
            status::IOERR,
        ),
        (
            "write from nowhere",
            kind::OUT,
            (NOWHERE, 512, 0),
            status::IOERR,
        ),
        (
            "over the end of memory",
            kind::IN,
            (ram_end - 256, 512, WRITE),
            status::IOERR,
        ),
        (
            "over the end of addresses",
            kind::IN,
            (near_end, 512, WRITE),
            status::IOERR,
        ),
        ("half a sector", kind::IN, (data, 256, WRITE), status::IOERR),
        (
            "read into readable memory",
            kind::IN,
            (data, 512, 0),
            status::OK,
        ),
        (
            "larger than the disk",
            kind::IN,
            (data, 2 << 20, WRITE),
            status::IOERR,
        ),
        ("no range", kind::DISCARD, (data, 0, 0), status::IOERR),
        (
            "part of a range",
            kind::DISCARD,
            (data, 15, 0),
            status::IOERR,
        ),
        (
            "too many ranges",
            kind::DISCARD,
            (data, 16 * 65, 0),
            status::IOERR,
        ),
        (
            "range from nowhere",
            kind::WRITE_ZEROES,
            (NOWHERE, 16, 0),
            status::IOERR,
        ),
        (
            "long serial",
            kind::GET_ID,
            (data, 4096, WRITE),
            status::IOERR,
        ),
        (
            "serial to nowhere",
            kind::GET_ID,
            (NOWHERE, 20, WRITE),
            status::IOERR,
        ),
    ] {
        let chain = chain(queue, kind, part);
        queue.add_chain(&chain);
        queue.kick();
        let done = queue.wait();
        assert_eq!((done.len(), done[0].status), (1, wanted), "{what}");
    }
    for (what, op, wanted) in [
        ("far sector", Op::read(u64::MAX / 512, 512), status::IOERR),
        ("overflowing sector", Op::read(u64::MAX, 512), status::IOERR),
        ("past the end", Op::write(2048, &[0; 512]), status::IOERR),
        (
            "flag of a discard",
            Op::range(kind::DISCARD, 0, 8, 1),
            status::UNSUPP,
        ),
        (
            "unknown flag",
            Op::range(kind::WRITE_ZEROES, 0, 8, 6),
            status::UNSUPP,
        ),
        (
            "far range",
            Op::range(kind::DISCARD, u64::MAX, 8, 0),
            status::IOERR,
        ),
        (
            "long range",
            Op::range(kind::DISCARD, 0, u32::MAX, 0),
            status::IOERR,
        ),
        (
            "range past the end",
            Op::range(kind::WRITE_ZEROES, 0, 4096, 0),
            status::IOERR,
        ),
    ] {
        assert_eq!(queue.run(&op).status, wanted, "{what}");
    }
    let data = pattern(1, SECTOR);
    assert_eq!(queue.run(&Op::write(5, &data)).status, status::OK);
    assert_eq!(queue.run(&Op::read(5, SECTOR)).input, data);
}

#[test]
fn chain_without_an_answer_breaks_its_ring_and_no_other() {
    let ground = Ground::new();
    let (_server, events) = ground.serve(Arc::new(MemoryDevice::new(MIB)));
    type Break = fn(&mut Queue);
    let cases: [(&str, Break); 13] = [
        ("head outside of the table", |queue| queue.add_head(256)),
        ("head of all ones", |queue| queue.add_head(u16::MAX)),
        ("loop of one", |queue| {
            let at = queue.header_address(0);
            queue.add_chain(&[(at, 16, NEXT, 0)]);
        }),
        ("loop of two", |queue| {
            let at = queue.header_address(0);
            queue.add_chain(&[(at, 16, NEXT, 1), (at, 16, NEXT, 0)]);
        }),
        ("next outside of the table", |queue| {
            let at = queue.header_address(0);
            queue.add_chain(&[(at, 16, NEXT, 999)]);
        }),
        ("no status", |queue| {
            let chain = chain(queue, kind::OUT, (0, 0, 0));
            queue.add_chain(&[(chain[0].0, 16, 0, 0)]);
        }),
        ("short header", |queue| {
            let chain = chain(queue, kind::IN, (0, 0, 0));
            queue.add_chain(&[(chain[0].0, 15, NEXT, 1), (chain[2].0, 1, WRITE, 0)]);
        }),
        ("header nowhere", |queue| {
            let status = queue.status_address(0);
            queue.add_chain(&[(NOWHERE, 16, NEXT, 1), (status, 1, WRITE, 0)]);
        }),
        ("status nowhere", |queue| {
            let chain = chain(queue, kind::FLUSH, (0, 0, 0));
            queue.add_chain(&[(chain[0].0, 16, NEXT, 1), (NOWHERE, 1, WRITE, 0)]);
        }),
        ("readable after writable", |queue| {
            let chain = chain(queue, kind::IN, (0, 0, 0));
            let (header, status) = (chain[0].0, chain[2].0);
            queue.add_chain(&[(status, 1, WRITE | NEXT, 1), (header, 16, 0, 0)]);
        }),
        ("table nowhere", |queue| {
            queue.add_chain(&[(NOWHERE, 64, flag::INDIRECT, 0)]);
        }),
        ("table in a table", |queue| {
            let table = queue.table_address(0);
            queue.set_table(table, 0, &[(table, 16, flag::INDIRECT, 0)]);
            queue.add_chain(&[(table, 16, flag::INDIRECT, 0)]);
        }),
        ("more entries than the ring", |queue| {
            queue.set_available(1000)
        }),
    ];
    for (what, break_ring) in cases {
        println!("{what}");
        let ram = Ram::new(2);
        let options = Options {
            queues: 2,
            ..Options::default()
        };
        let mut client = Client::connect(&ground.socket(), &ram, options);
        break_ring(&mut client.queues[0]);
        client.queues[0].kick_anyway();
        client.queues[0].wait_for_error();
        expect_event(&events, "Broken");
        assert_eq!(client.queues[0].take_completed(), []);
        // It stays so, and costs nothing but this look.
        client.queues[0].kick_anyway();
        let done = client.queues[1].run(&Op::read(0, SECTOR));
        assert_eq!(done.status, status::OK);
    }
}

#[test]
fn arbitrary_rings_neither_end_the_server_nor_reach_beyond_memory() {
    let ground = Ground::new();
    let (_server, _) = ground.serve(Arc::new(MemoryDevice::new(MIB)));
    for seed in 0..200 {
        let ram = Ram::new(1);
        let mut client = Client::connect(&ground.socket(), &ram, Options::default());
        let queue = &mut client.queues[0];
        let noise = pattern(seed, 32 * 16);
        let number = |at: usize, count: u64| {
            u64::from_le_bytes(noise[at..at + 8].try_into().unwrap()) % count
        };
        let target = |at: usize| match number(at, 8) {
            0 => NOWHERE,
            1 => u64::MAX - number(at + 1, 5000),
            2 => queue.address((16 << 20) - number(at + 1, 600)),
            3 => queue.address(number(at + 1, 0x20000)),
            _ => queue.header_address(number(at + 1, 8) as u16),
        };
        let descriptors: Vec<RawDescriptor> = (0..30)
            .map(|at| {
                let at = 16 * at;
                let length = [1, 16, 512, 4096, 1 << 20, u32::MAX][number(at + 2, 6) as usize];
                (
                    target(at),
                    length,
                    number(at + 3, 8) as u16,
                    number(at + 4, 34) as u16,
                )
            })
            .collect();
        for slot in 0..8 {
            let kinds = [0, 1, 4, 8, 11, 13, 77];
            queue.set_header(slot, kinds[number(usize::from(slot), 7) as usize], 3);
        }
        queue.add_chain(&descriptors);
        for head in 1..40 {
            queue.add_head(head);
        }
        queue.kick_anyway();
        // The reply comes when the ring has come to its end.
        client.stop(0);
    }
    let ram = Ram::new(1);
    let mut client = Client::connect(&ground.socket(), &ram, Options::default());
    let done = client.queues[0].run(&Op::of_kind(kind::FLUSH));
    assert_eq!(done.status, status::OK);
}
