//! Queues of calls, and how threads make them.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};

use crate::call::Call;
use crate::end_signal::EndSignal;

/// Pending calls, and their results.
pub trait CallQueue<'a> {
    /// The next call, with a tag to know it again; `None` while there is none to be started.
    fn next(&mut self) -> Option<(usize, Call<'a>)>;

    /// A call has ended. Afterwards there may be a next one again.
    fn ended(&mut self, tag: usize, call: Call<'a>, result: io::Result<usize>);

    /// Becomes readable when there may be a next call though none has ended: it is waited for as
    /// well while calls are in flight. `None`: only the end of a call brings more.
    fn input(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Longest wait for the end of a call before [`next`](Self::next) is called again. `None`: no
    /// bound. A [`Ring`](crate::ring::Ring) keeps to it where it
    /// [can](crate::ring::Ring::has_timeouts), and the queue has no input; Linux AIO does not.
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
    let threads = threads.max(1);
    let (started, inbox) = unbounded();
    let (outbox, ended) = unbounded();
    // Without a signal the input is checked when a call ends.
    let signal = queue.input().and_then(|_| EndSignal::new().ok());
    thread::scope(|scope| {
        // Dropped at the end, which ends the threads.
        let started = started;
        let mut running = 0;
        let mut in_flight = 0;
        loop {
            while in_flight < threads
                && let Some((tag, mut call)) = queue.next()
            {
                if in_flight == running {
                    let (inbox, outbox, signal) = (inbox.clone(), outbox.clone(), &signal);
                    let serve = move || serve(file, &inbox, &outbox, signal.as_ref());
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
            let input = queue.input().filter(|_| in_flight < threads);
            let first = match (&signal, input) {
                (Some(signal), Some(input)) => {
                    if ended.is_empty() {
                        signal.wait(input);
                    }
                    ended.try_recv().ok()
                }
                _ => wait(&ended, queue.recheck_interval()),
            };
            for (tag, call, result) in first.into_iter().chain(ended.try_iter()) {
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

fn serve<'a>(
    file: &File,
    inbox: &Receiver<(usize, Call<'a>)>,
    outbox: &Sender<Ended<'a>>,
    signal: Option<&EndSignal>,
) {
    for (tag, mut call) in inbox {
        let result = call.execute(file);
        if outbox.send((tag, call, result)).is_err() {
            return;
        }
        if let Some(signal) = signal {
            signal.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call_list::{Fed, List, direct_file, read, write};

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
    #[test]
    fn queue_with_an_input_is_run_by_threads_until_neither_calls_nor_input_are_left() {
        let file = direct_file();
        Fed::check(&file, 16, |fed| run_threads(&file, fed, 16));
    }
}
