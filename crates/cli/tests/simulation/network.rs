//! A network between an NBD server and its client: delays, and connections that break.
//!
//! Bytes of the client are forwarded in pieces. After a number of them, which follows from the
//! seed, both sides lose the connection. A few connections break, later ones do not.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fastrand::Rng;

/// A handshake is shorter; the first of a device must succeed.
const FIRST_BYTES: u64 = 2048;

/// A listening socket whose connections lead to another one.
pub struct Network {
    socket: PathBuf,
    is_over: Arc<AtomicBool>,
    broken: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Network {
    /// Listens at `socket`, for the server at `server`; at most `breaks` connections break.
    pub fn new(socket: &Path, server: &Path, seed: u64, breaks: u64) -> Self {
        let listener = UnixListener::bind(socket).unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let broken = Arc::new(AtomicU64::new(0));
        let (over, count, server) = (is_over.clone(), broken.clone(), server.to_owned());
        let thread = thread::spawn(move || {
            let mut random = Rng::with_seed(seed);
            let mut pumps = Vec::new();
            for client in listener.incoming().map_while(Result::ok) {
                if over.load(Ordering::Acquire) {
                    break;
                }
                let Ok(server) = UnixStream::connect(&server) else {
                    continue;
                };
                let breaks_after = (count.load(Ordering::Acquire) < breaks)
                    .then(|| FIRST_BYTES + random.u64(..200_000));
                let delays = Rng::with_seed(random.u64(..));
                pumps.extend(connect(client, server, breaks_after, delays, &count));
            }
            for pump in pumps {
                pump.join().expect("a pump does not panic");
            }
        });
        Self {
            socket: socket.to_owned(),
            is_over,
            broken,
            thread: Some(thread),
        }
    }

    /// The connections that broke.
    pub fn broken(&self) -> u64 {
        self.broken.load(Ordering::Acquire)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        // Wakes the listener.
        let _ = UnixStream::connect(&self.socket);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn connect(
    client: UnixStream,
    server: UnixStream,
    breaks_after: Option<u64>,
    mut delays: Rng,
    broken: &Arc<AtomicU64>,
) -> [JoinHandle<()>; 2] {
    let again = |stream: &UnixStream| stream.try_clone().unwrap();
    let (from, to) = (again(&server), again(&client));
    let broken = broken.clone();
    [
        thread::spawn(move || {
            let mut left = breaks_after.unwrap_or(u64::MAX);
            pump(&client, &server, &mut |bytes| {
                if delays.u8(..16) == 0 {
                    thread::sleep(Duration::from_micros(delays.u64(..2000)));
                }
                let passed = left.min(bytes as u64);
                left -= passed;
                passed as usize
            });
            if left == 0 {
                broken.fetch_add(1, Ordering::AcqRel);
            }
            for stream in [&client, &server] {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }),
        thread::spawn(move || {
            pump(&from, &to, &mut |bytes| bytes);
            for stream in [&from, &to] {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }),
    ]
}

/// Forwards bytes until an end, an error, or fewer than there are may pass.
fn pump(mut from: &UnixStream, mut to: &UnixStream, pass: &mut dyn FnMut(usize) -> usize) {
    let mut bytes = [0; 4096];
    loop {
        let read = match from.read(&mut bytes) {
            Ok(0) | Err(_) => return,
            Ok(read) => read,
        };
        let passed = pass(read);
        if to.write_all(&bytes[..passed]).is_err() || passed < read {
            return;
        }
    }
}
