//! Zeros by direct I/O from a few threads, where io_uring cannot be had.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::sys::buffer::ZeroBuffer;
use crate::sys::uring::Completion;

const THREADS: usize = 4;

struct Request {
    tag: u64,
    offset: u64,
    len: u32,
}

/// Threads that write what is sent to them, in any order.
pub(super) struct ThreadWriter {
    requests: Option<Sender<Request>>,
    completions: Receiver<Completion>,
    threads: Vec<JoinHandle<()>>,
}

impl ThreadWriter {
    pub(super) fn new(file: &File, zeros: ZeroBuffer) -> io::Result<Self> {
        let zeros = Arc::new(zeros);
        let (requests, inbox) = channel::<Request>();
        let (outbox, completions) = channel();
        let inbox = Arc::new(Mutex::new(inbox));
        let mut threads = Vec::new();
        for _ in 0..THREADS {
            let file = file.try_clone()?;
            let (zeros, inbox, outbox) = (zeros.clone(), inbox.clone(), outbox.clone());
            let thread = std::thread::Builder::new()
                .name("extant-zeros".to_owned())
                .spawn(move || serve(&file, &zeros, &inbox, &outbox))?;
            threads.push(thread);
        }
        Ok(Self {
            requests: Some(requests),
            completions,
            threads,
        })
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

fn serve(
    file: &File,
    zeros: &ZeroBuffer,
    inbox: &Mutex<Receiver<Request>>,
    outbox: &Sender<Completion>,
) {
    loop {
        // The lock is held while waiting: one thread waits for work, the others for the lock.
        let Ok(request) = inbox
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .recv()
        else {
            return;
        };
        let result = file
            .write_at(&zeros.as_slice()[..request.len as usize], request.offset)
            .map(|written| written as u32);
        let completion = Completion {
            tag: request.tag,
            result,
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
