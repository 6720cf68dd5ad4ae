//! The thread of a ring: runs its requests until the ring is stopped.
//!
//! A device that supports streams gets one for as long as it accepts it. Another one gets batches:
//! all that the ring has, or the buffers allow, is one submission.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, Scope};

use extant_blockdev::{Device, Request as DeviceRequest, TransferStream};
use parking_lot::Mutex;

use crate::context::Context;
use crate::request::Request;
use crate::transfers::Transfers;

/// Threads of one queue for flushes, discards and write zeroes beside transfers.
const SLOW_THREADS_MAX: usize = 4;
/// Most transfers of one batch.
const BATCH_MAX: usize = 64;

/// Serves the ring until it is stopped.
pub(crate) fn run(context: &Context) {
    let (sender, receiver) = channel();
    let slow = Slow {
        context,
        inbox: Mutex::new(receiver),
        idle: AtomicUsize::new(0),
        threads: AtomicUsize::new(0),
    };
    thread::scope(|scope| {
        // Dropped at the end, which ends the threads of slow requests.
        let sender = sender;
        let delegate = |request| {
            slow.prepare(scope);
            if slow.threads.load(Ordering::Relaxed) == 0 {
                context.run_slow(&request);
            } else {
                sender.send(request).expect("the inbox outlives the scope");
            }
        };
        let device = &**context.volume.device();
        let mut transfers = Transfers::new(context, &delegate);
        while !context.ring.is_stopping() {
            transfers.share_memory(device.shared_memory_alignment());
            if !device.run_stream(&mut transfers) {
                transfers.share_memory(None);
                run_batches(device, &mut transfers);
            }
        }
    });
    context.ring.signal();
}

fn run_batches(device: &dyn Device, transfers: &mut Transfers<'_>) {
    let mut batch = Vec::with_capacity(BATCH_MAX);
    loop {
        while batch.len() < BATCH_MAX
            && let Some(transfer) = transfers.next()
        {
            batch.push(transfer);
        }
        if batch.is_empty() {
            return;
        }
        let operations = batch.iter_mut().map(|transfer| transfer.operation());
        let mut requests: Vec<_> = operations.map(DeviceRequest::new).collect();
        device.submit(&mut requests);
        let results: Vec<_> = requests
            .into_iter()
            .map(DeviceRequest::into_result)
            .collect();
        for (transfer, result) in batch.drain(..).zip(results) {
            transfers.ended(transfer, result);
        }
    }
}

/// Threads of slow requests, started when there is one for them.
struct Slow<'a> {
    context: &'a Context,
    inbox: Mutex<Receiver<Request>>,
    idle: AtomicUsize,
    threads: AtomicUsize,
}

impl<'a> Slow<'a> {
    /// Starts a thread if none is idle. If that fails, another one runs the request later.
    fn prepare<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        let threads = self.threads.load(Ordering::Relaxed);
        if self.idle.load(Ordering::Relaxed) == 0 && threads < SLOW_THREADS_MAX {
            let thread = thread::Builder::new().name("vhost slow".to_owned());
            let started = thread.spawn_scoped(scope, || self.run());
            self.threads
                .store(threads + usize::from(started.is_ok()), Ordering::Relaxed);
        }
    }

    fn run(&self) {
        loop {
            self.idle.fetch_add(1, Ordering::Relaxed);
            // The lock is held while waiting: one thread waits for a request, the others for it.
            let next = self.inbox.lock().recv();
            self.idle.fetch_sub(1, Ordering::Relaxed);
            let Ok(request) = next else { return };
            self.context.run_slow(&request);
            self.context.ring.signal();
        }
    }
}
