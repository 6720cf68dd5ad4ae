//! Lines for another program, on a pipe or a socket, without ever blocking the operation.
//!
//! A thread writes them. One line at most waits for it, the newest: a slow reader misses lines, and
//! always gets complete ones. If the reader disappears, only the thread ends.

use std::fs::File;
use std::io::{self, ErrorKind as IoErrorKind, Write};
use std::os::fd::{OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use extant_space::{Error, ErrorKind, Result};
use extant_sys::inherited;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// For the last line. A reader with room receives it at once; a reader without room has had a full
/// buffer for long.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest wait for a listener with a full backlog.
const BACKLOG_TIMEOUT: Duration = Duration::from_secs(1);

/// A way to the other program.
pub struct Stream {
    slot: Arc<Slot>,
    /// No data arrives; closed by the end of the thread.
    is_over: Receiver<()>,
}

#[derive(Default)]
struct Slot {
    next: Mutex<Next>,
    changed: Condvar,
}

#[derive(Default)]
struct Next {
    line: Option<String>,
    is_closed: bool,
}

impl Stream {
    /// To a descriptor inherited by this process.
    ///
    /// # Errors
    /// `InvalidArgument` when that is nothing to write to.
    pub fn to_descriptor(number: RawFd) -> Result<Self> {
        let refuse = |detail: &str| {
            Error::new(ErrorKind::InvalidArgument).detail(format!("descriptor {number} {detail}"))
        };
        let file = inherited::copy(number).map_err(|_| refuse("is not open"))?;
        let flags = fcntl_getfl(&file).map_err(io::Error::from)?;
        if flags & OFlags::ACCMODE == OFlags::RDONLY {
            return Err(refuse("is not open for writing"));
        }
        Self::new(file)
    }

    /// To the listener on the socket `path`.
    ///
    /// # Errors
    /// If there is no listener; `InUse` if its queue is full.
    pub fn to_socket(path: &Path) -> Result<Self> {
        let fail = |errno: Errno| {
            let error = Error::from(io::Error::from(errno)).at(path);
            match errno {
                Errno::AGAIN => error
                    .with_kind(ErrorKind::InUse)
                    .detail("the listener there accepts no more connections"),
                _ => error.during("connect"),
            }
        };
        let address = SocketAddrUnix::new(path).map_err(fail)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let socket = socket.map_err(fail)?;
        let started = Instant::now();
        loop {
            match connect(&socket, &address) {
                Ok(()) => return Self::new(socket),
                Err(Errno::AGAIN) if started.elapsed() < BACKLOG_TIMEOUT => {
                    thread::sleep(Duration::from_millis(5));
                }
                Err(errno) => return Err(fail(errno)),
            }
        }
    }

    fn new(to: OwnedFd) -> Result<Self> {
        let slot = Arc::new(Slot::default());
        let (over, is_over) = channel();
        let lines = Arc::clone(&slot);
        thread::Builder::new()
            .name("progress".to_owned())
            .spawn(move || write_lines(&lines, File::from(to), over))
            .map_err(Error::from)?;
        Ok(Self { slot, is_over })
    }

    /// Leaves a line to be written, in place of one that waits.
    pub fn tell(&self, line: String) {
        self.slot.lock().line = Some(line);
        self.slot.changed.notify_one();
    }

    /// Leaves the last line, and waits a moment for it to be written.
    pub fn end(&self, line: String) {
        self.tell(line);
        self.close();
        // Whether it was written or not, nothing is left to be done.
        let _ = self.is_over.recv_timeout(WRITE_TIMEOUT);
    }

    fn close(&self) {
        self.slot.lock().is_closed = true;
        self.slot.changed.notify_one();
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.close();
    }
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, Next> {
        self.next.lock()
    }

    /// Waits for the next line; `None` after the last.
    fn take(&self) -> Option<String> {
        let mut next = self.lock();
        loop {
            match next.line.take() {
                None if !next.is_closed => {
                    self.changed.wait(&mut next);
                }
                line => return line,
            }
        }
    }
}

/// Ends with the last line, or when the reader disappears.
fn write_lines(slot: &Slot, mut to: File, _over: Sender<()>) {
    while let Some(line) = slot.take() {
        if write_whole(&mut to, line.as_bytes()).is_err() {
            return;
        }
    }
}

/// Even if the other program has set the descriptor to non-blocking.
fn write_whole(to: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(0) => return Err(IoErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == IoErrorKind::Interrupted => {}
            Err(error) if error.kind() == IoErrorKind::WouldBlock => {
                poll(&mut [PollFd::new(to, PollFlags::OUT)], None)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, PipeWriter, Read, pipe};
    use std::os::fd::AsFd;

    use rustix::fs::fcntl_setfl;

    use super::*;

    /// Nothing fits into the pipe any more. Each byte is a newline.
    fn fill(writer: &PipeWriter) -> usize {
        let flags = fcntl_getfl(writer).unwrap();
        fcntl_setfl(writer, flags | OFlags::NONBLOCK).unwrap();
        let mut filled = 0;
        for size in [4096, 1] {
            while let Ok(written) = (&mut &*writer).write(&vec![b'\n'; size]) {
                filled += written;
            }
        }
        fcntl_setfl(writer, flags).unwrap();
        filled
    }

    fn copy(writer: &PipeWriter) -> OwnedFd {
        writer.as_fd().try_clone_to_owned().unwrap()
    }

    #[test]
    fn lines_come_in_order_and_the_last_before_the_end() {
        let (reader, writer) = pipe().unwrap();
        let stream = Stream::new(writer.into()).unwrap();
        let mut lines = BufReader::new(reader).lines();
        for number in 0..10 {
            stream.tell(format!("{number}\n"));
            assert_eq!(lines.next().unwrap().unwrap(), number.to_string());
        }
        stream.end("end\n".to_owned());
        assert_eq!(lines.next().unwrap().unwrap(), "end");
        assert!(lines.next().is_none(), "the pipe is closed");
    }

    #[test]
    fn slow_reader_gets_whole_lines_and_the_newest() {
        for blocks in [true, false] {
            let (mut reader, writer) = pipe().unwrap();
            let filled = fill(&writer);
            if !blocks {
                let flags = fcntl_getfl(&writer).unwrap();
                fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
            }
            let stream = Stream::new(copy(&writer)).unwrap();
            // None of these writes waits for the reader, which reads only after the last one.
            for number in 0..10_000 {
                stream.tell(format!("{number}\n"));
            }
            drop(writer);
            let drained = thread::spawn(move || {
                let mut text = vec![0; filled];
                reader.read_exact(&mut text).unwrap();
                let lines = BufReader::new(reader).lines();
                lines.collect::<io::Result<Vec<_>>>().unwrap()
            });
            stream.end("end\n".to_owned());
            drop(stream);
            let lines = drained.join().unwrap();
            assert_eq!(lines.last().unwrap(), "end");
            // One that was being written when the pipe was full, and one that waited.
            assert!(lines.len() <= 3, "{lines:?}");
            let numbers = lines[..lines.len() - 1].iter();
            assert!(
                numbers.clone().all(|line| line.parse::<u32>().is_ok()),
                "{lines:?}"
            );
        }
    }

    #[test]
    fn reader_that_never_reads_does_not_delay_the_end() {
        let (reader, writer) = pipe().unwrap();
        fill(&writer);
        let stream = Stream::new(copy(&writer)).unwrap();
        stream.tell("a\n".to_owned());
        stream.end("end\n".to_owned());
        drop(stream);
        drop(reader);
    }

    #[test]
    fn reader_that_has_disconnected_causes_no_error() {
        let (reader, writer) = pipe().unwrap();
        let stream = Stream::new(writer.into()).unwrap();
        drop(reader);
        stream.tell("a\n".to_owned());
        // The thread ends by itself.
        assert!(stream.is_over.recv().is_err());
        stream.tell("b\n".to_owned());
        stream.end("end\n".to_owned());
    }

    #[test]
    fn unwritable_descriptor_is_refused() {
        let read_only = File::open("/dev/null").unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&read_only);
        for number in [number, RawFd::MAX] {
            let error = Stream::to_descriptor(number).map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
        let place = tempfile::tempdir().unwrap();
        let nobody = place.path().join("nobody");
        let error = Stream::to_socket(&nobody).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        drop(std::os::unix::net::UnixListener::bind(&nobody).unwrap());
        assert!(
            Stream::to_socket(&nobody).is_err(),
            "a listener that is gone"
        );
    }
}
