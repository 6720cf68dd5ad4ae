//! Clients that come and go, and servers that are replaced.

use std::mem;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use extant_blockdev::{Device, Geometry, MemoryDevice, RangeStatus, Request};
use extant_space::{ByteRange, ErrorKind, Result};
use extant_testkit::vhost_client::{Client, Op, Options, Ram, kind, status};
use extant_vhost::{Access, Server, ServerOptions, Volume};
use parking_lot::{Condvar, Mutex};

use crate::{Ground, MIB, SECTOR, expect_event, pattern};

/// A device whose requests wait until they are released.
struct Held {
    inner: MemoryDevice,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_released: bool,
    /// Requests so far.
    count: usize,
}

impl Held {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: MemoryDevice::new(MIB),
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    fn release(&self) {
        self.state.lock().is_released = true;
        self.changed.notify_all();
    }

    /// Waits until the device has that many requests.
    fn wait_for(&self, count: usize) {
        let mut state = self.state.lock();
        while state.count < count {
            self.changed.wait(&mut state);
        }
    }
}

impl Device for Held {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        let mut state = self.state.lock();
        state.count += requests.len();
        self.changed.notify_all();
        while !state.is_released {
            self.changed.wait(&mut state);
        }
        drop(state);
        self.inner.submit(requests);
    }

    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()> {
        self.inner.status(range, visit)
    }
}

#[test]
fn client_that_leaves_under_load_is_no_error_and_the_next_one_is_served() {
    let ground = Ground::new();
    for (name, device) in ground.devices(4 * MIB) {
        println!("{name}");
        let (_server, events) = ground.serve(device);
        for round in 0..10 {
            let ram = Ram::new(1);
            let mut client = Client::connect(&ground.socket(), &ram, Options::default());
            for slot in 0..100 {
                let data = pattern(round, 4096);
                client.queues[0].add(slot, &Op::write(8 * u64::from(slot), &data));
            }
            client.queues[0].kick();
            // Its memory is gone as well.
            drop((client, ram));
            let closed = expect_event(&events, "Closed");
            assert!(closed.contains("error: None"), "{closed}");
        }
        let ram = Ram::new(1);
        let mut client = Client::connect(&ground.socket(), &ram, Options::default());
        let done = client.queues[0].run(&Op::of_kind(kind::FLUSH));
        assert_eq!(done.status, status::OK);
    }
}

#[test]
fn stopped_ring_has_completed_what_it_took_and_goes_on_from_there() {
    let ground = Ground::new();
    let device = Held::new();
    let (_server, _) = ground.serve(device.clone());
    let ram = Ram::new(1);
    let mut client = Client::connect(&ground.socket(), &ram, Options::default());
    for slot in 0..20 {
        client.queues[0].add(slot, &Op::write(u64::from(slot), &pattern(1, SECTOR)));
    }
    client.queues[0].kick();
    device.wait_for(1);
    device.release();
    let base = client.stop(0);
    let mut done = client.queues[0].take_completed().len();
    assert_eq!(usize::from(base), done);
    drop(client);
    let options = Options {
        bases: vec![base],
        ..Options::default()
    };
    let mut client = Client::connect(&ground.socket(), &ram, options);
    client.queues[0].kick_anyway();
    while done < 20 {
        done += client.queues[0].take_completed().len();
        std::thread::yield_now();
    }
}

#[test]
fn next_server_finishes_the_requests_of_one_that_did_not() {
    let ground = Ground::new();
    let held = Held::new();
    let (server, _) = ground.serve(held.clone());
    let ram = Ram::new(1);
    let mut client = Client::connect(&ground.socket(), &ram, Options::default());
    let queue = &mut client.queues[0];
    // It stays in flight.
    queue.add(5, &Op::write(5, &pattern(5, SECTOR)));
    queue.kick();
    held.wait_for(1);
    let inflight = client.inflight;
    // Nothing of it runs any more: as if it had been killed.
    mem::forget((server, client.queues));
    let device = Arc::new(MemoryDevice::new(MIB));
    let volume = Volume::new("disk", device.clone(), Access::ReadWrite);
    let socket = ground.path("s2");
    let _server = Server::listen(volume, &socket, ServerOptions::default()).unwrap();
    let options = Options {
        inflight: Some(inflight),
        bases: vec![0],
        ..Options::default()
    };
    let mut client = Client::connect(&socket, &ram, options);
    let done = client.queues[0].wait();
    assert_eq!(
        (done.len(), done[0].slot, done[0].status),
        (1, 5, status::OK)
    );
    let mut written = vec![0; SECTOR];
    device.read_at(&mut written, 5 * SECTOR as u64).unwrap();
    assert!(written == pattern(5, SECTOR));
    let done = client.queues[0].run(&Op::read(5, SECTOR));
    assert_eq!(done.input, written);
}

#[test]
fn call_descriptor_is_exchanged_while_requests_are_in_flight() {
    let ground = Ground::new();
    let device = Held::new();
    let (_server, _) = ground.serve(device.clone());
    let ram = Ram::new(1);
    let mut client = Client::connect(&ground.socket(), &ram, Options::default());
    client.queues[0].add(0, &Op::read(0, SECTOR));
    client.queues[0].kick();
    device.wait_for(1);
    client.renew_call(0);
    device.release();
    assert_eq!(client.queues[0].wait()[0].status, status::OK);
}

#[test]
fn shutdown_completes_requests_in_flight_and_reports_a_stuck_device() {
    let ground = Ground::new();
    let device = Held::new();
    let (server, _) = ground.serve(device.clone());
    let ram = Ram::new(1);
    let mut client = Client::connect(&ground.socket(), &ram, Options::default());
    client.queues[0].add(0, &Op::write(0, &pattern(3, SECTOR)));
    client.queues[0].kick();
    device.wait_for(1);
    let stuck = server.shutdown(Duration::from_millis(1)).unwrap_err();
    assert_eq!(stuck.kind(), ErrorKind::InUse, "{stuck}");
    device.release();
    assert_eq!(client.queues[0].wait()[0].status, status::OK);
    assert!(!ground.socket().exists());
}

#[test]
fn second_server_on_a_socket_is_refused() {
    let ground = Ground::new();
    let device = Arc::new(MemoryDevice::new(MIB));
    let (_server, _) = ground.serve(device.clone());
    let volume = Volume::new("disk", device, Access::ReadWrite);
    let error = Server::listen(volume, &ground.socket(), ServerOptions::default());
    assert_eq!(error.err().expect("in use").kind(), ErrorKind::InUse);
}
