//! Queues of calls, and how threads make them.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use crate::call::Call;

/// Pending calls, and their results.
pub trait CallQueue<'a> {
    /// The next call, with a tag to know it again; `None` while there is none to be started.
    fn next(&mut self) -> Option<(usize, Call<'a>)>;

    /// A call has ended. Afterwards there may be a next one again.
    fn ended(&mut self, tag: usize, call: Call<'a>, result: io::Result<usize>);

    /// Becomes readable when there may be a next call though none has ended. `None`: only the end
    /// of a call brings more. [`Aio`](crate::aio::Aio) waits for it as well while calls are in
    /// flight; others ask again when a call has ended.
    fn input(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Longest wait for the end of a call before [`next`](Self::next) is called again. `None`: no
    /// bound. A [`Ring`](crate::ring::Ring) keeps to it where it
    /// [can](crate::ring::Ring::has_timeouts); Linux AIO does not.
    fn recheck_interval(&self) -> Option<Duration> {
        None
    }
}

/// Runs `queue` by plain calls, one after the other.
pub fn run_plain<'a>(file: &File, queue: &mut (impl CallQueue<'a> + ?Sized)) {
    while let Some((tag, mut call)) = queue.next() {
        let result = call.execute(file);
        queue.ended(tag, call, result);
    }
}

/// A call that has ended.
type Ended<'a> = (usize, Call<'a>, io::Result<usize>);

/// Runs `queue` by plain calls from up to `threads` threads. The queue is used by the calling
/// thread alone.
pub fn run_threads<'a>(file: &File, queue: &mut dyn CallQueue<'a>, threads: usize) {
    let (started, inbox) = channel();
    let (outbox, ended) = channel();
    let inbox = Mutex::new(inbox);
    thread::scope(|scope| {
        // Dropped at the end, which ends the threads.
        let started = started;
        let mut running = 0;
        let mut in_flight = 0;
        loop {
            while in_flight < threads.max(1)
                && let Some((tag, mut call)) = queue.next()
            {
                if in_flight == running {
                    let outbox = outbox.clone();
                    let serve = || serve(file, &inbox, outbox);
                    running +=
                        usize::from(thread::Builder::new().spawn_scoped(scope, serve).is_ok());
                }
                if running == 0 {
                    let result = call.execute(file);
                    queue.ended(tag, call, result);
                    continue;
                }
                started
                    .send((tag, call))
                    .expect("the inbox outlives the scope");
                in_flight += 1;
            }
            if in_flight == 0 {
                return;
            }
            if let Some((tag, call, result)) = wait(&ended, queue.recheck_interval()) {
                in_flight -= 1;
                queue.ended(tag, call, result);
            }
        }
    });
}

/// The next call that has ended; `None` when none did within `timeout`.
fn wait<'a>(ended: &Receiver<Ended<'a>>, timeout: Option<Duration>) -> Option<Ended<'a>> {
    const LOST: &str = "a thread answers each call, and the sender is kept here";
    match timeout {
        None => Some(ended.recv().expect(LOST)),
        Some(timeout) => match ended.recv_timeout(timeout) {
            Ok(ended) => Some(ended),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => panic!("{LOST}"),
        },
    }
}

fn serve<'a>(file: &File, inbox: &Mutex<Receiver<(usize, Call<'a>)>>, outbox: Sender<Ended<'a>>) {
    loop {
        // The lock is held while waiting: one thread waits for a call, the others for the lock.
        let next = inbox.lock().recv();
        let Ok((tag, mut call)) = next else { return };
        let result = call.execute(file);
        if outbox.send((tag, call, result)).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call_list::{List, read, write};

    #[test]
    fn threads_make_every_call_and_no_more_at_a_time_than_there_are() {
        let file = tempfile::tempfile().unwrap();
        let data: Vec<u8> = (0..64).collect();
        let writes = data.iter().enumerate();
        let writes = writes.map(|(at, byte)| write(std::slice::from_ref(byte), at as u64));
        let mut queue = List::new(writes.collect());
        run_threads(&file, &mut queue, 3);
        assert_eq!(queue.most_in_flight, 3);
        assert!(
            queue
                .results()
                .into_iter()
                .all(|result| result.unwrap() == 1)
        );
        let mut back = [0; 64];
        let mut queue = List::new(vec![read(&mut back, 0)]);
        run_threads(&file, &mut queue, 8);
        assert_eq!(queue.results().len(), 1);
        assert_eq!(back[..], data);
    }
}
