//! Writes from threads: a few with direct I/O if io_uring is unavailable, or a single one through
//! the page cache, which keeps the order.
//!
//! The caller waits for a channel, not for the disk, so it reports progress and handles signals
//! even while a write hangs.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::sys::uring::Completion;

/// Writes a number of zeros at an offset; returns the bytes written.
pub(super) type Write = Box<dyn FnMut(u64, u32) -> io::Result<u32> + Send>;

struct Request {
    tag: u64,
    offset: u64,
    len: u32,
}

/// Threads that write what is sent to them.
pub(super) struct ThreadWriter {
    requests: Option<Sender<Request>>,
    completions: Receiver<Completion>,
    threads: Vec<JoinHandle<()>>,
}

impl ThreadWriter {
    /// A thread for each of `writes`. With one, requests are done in the order they come.
    pub(super) fn new(writes: Vec<Write>) -> io::Result<Self> {
        let (requests, inbox) = channel::<Request>();
        let (outbox, completions) = channel();
        let inbox = Arc::new(Mutex::new(inbox));
        let mut writer = Self {
            requests: Some(requests),
            completions,
            threads: Vec::new(),
        };
        for write in writes {
            let (inbox, outbox) = (inbox.clone(), outbox.clone());
            let thread = std::thread::Builder::new()
                .name("extant-zeros".to_owned())
                .spawn(move || serve(write, &inbox, &outbox))?;
            writer.threads.push(thread);
        }
        Ok(writer)
    }

    pub(super) fn submit(&mut self, tag: u64, offset: u64, len: u32) -> io::Result<()> {
        let request = Request { tag, offset, len };
        self.requests
            .as_ref()
            .and_then(|requests| requests.send(request).ok())
            .ok_or_else(|| io::Error::other("the writing threads have ended"))
    }

    pub(super) fn wait(&mut self, timeout: Duration) -> Option<Completion> {
        self.completions.recv_timeout(timeout).ok()
    }
}

fn serve(mut write: Write, inbox: &Mutex<Receiver<Request>>, outbox: &Sender<Completion>) {
    loop {
        // The lock is held while waiting: one thread waits for work, the others for the lock.
        let Ok(request) = inbox.lock().unwrap_or_else(PoisonError::into_inner).recv() else {
            return;
        };
        let completion = Completion {
            tag: request.tag,
            result: write(request.offset, request.len),
        };
        if outbox.send(completion).is_err() {
            return;
        }
    }
}

impl Drop for ThreadWriter {
    fn drop(&mut self) {
        // Without a sender the threads end after what they hold.
        self.requests = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
