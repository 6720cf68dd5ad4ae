//! Uninterruptible system calls in detached threads.
//!
//! `fsync` waits for the disk. The last `close` of a removed file waits until its blocks are
//! freed, with `discard` also for the disk: a quarter of a second per GiB and more. A thread makes
//! these calls, so that a cancelled operation returns at once.
//!
//! A process exits only after all of its threads. A program that has to exit at once becomes its
//! own helper ([`use_helper`]): it is started again for each call, and that process is left behind.
//! A library starts no processes by itself: they would run the fork handlers of the host program
//! and appear in its `wait`.

use std::convert::Infallible;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The name (`argv[0]`) under which the helper is started.
pub const HELPER: &str = "extant-helper";
const HOLD: &str = "hold";
const SYNC: &str = "sync";

static HAS_HELPER: AtomicBool = AtomicBool::new(false);
/// Helpers that may not have ended, to be reaped.
static STARTED: Mutex<Vec<Child>> = Mutex::new(Vec::new());

/// Makes helper processes of this program perform slow calls from now on. The program must run
/// [`help`] when it is started as [`HELPER`].
pub fn use_helper() {
    HAS_HELPER.store(true, Ordering::Relaxed);
}

/// The main function of a process started as [`HELPER`]; `task` is its second argument.
pub fn help(task: Option<&OsStr>) -> ExitCode {
    let (stdin, mut stdout) = (io::stdin(), io::stdout());
    if task == Some(OsStr::new(HOLD)) {
        // Until the other end is closed; the file is standard output, and is closed by the end of
        // the process.
        let _ = io::copy(&mut stdin.lock(), &mut io::sink());
    } else if task == Some(OsStr::new(SYNC)) {
        let errno = match rustix::fs::fsync(stdin) {
            Ok(()) => 0,
            Err(errno) => errno.raw_os_error(),
        };
        let _ = stdout.write_all(&errno.to_ne_bytes());
        let _ = stdout.flush();
    }
    ExitCode::SUCCESS
}

/// Starts the helper; `None` if the program has none.
fn start(task: &str, input: OwnedFd, output: OwnedFd) -> Option<()> {
    if !HAS_HELPER.load(Ordering::Relaxed) {
        return None;
    }
    let mut command = Command::new("/proc/self/exe");
    command.arg0(HELPER).arg(task);
    // It must not receive Ctrl-C, nor keep a directory busy.
    command.process_group(0).current_dir("/");
    command.stdin(input).stdout(output).stderr(Stdio::null());
    let child = command.spawn().ok()?;
    let mut started = STARTED.lock();
    started.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    started.push(child);
    Some(())
}

/// Keeps a file open in a detached thread or process. A caller that drops it after the file does
/// not wait for the last close.
pub(crate) enum Holder {
    Process { _go: PipeWriter },
    Thread { _go: Sender<Infallible> },
}

/// Keeps `file` open in a detached thread or process until the result is dropped; `None` when none
/// can be started.
pub(crate) fn hold(file: &File) -> Option<Holder> {
    let (wait, go) = io::pipe().ok()?;
    if start(HOLD, wait.into(), file.try_clone().ok()?.into()).is_some() {
        return Some(Holder::Process { _go: go });
    }
    let file = file.try_clone().ok()?;
    let (go, wait) = channel::<Infallible>();
    let hold = move || {
        let _ = wait.recv();
        drop(file);
    };
    let thread = thread::Builder::new().name("extant-hold".to_owned());
    thread.spawn(hold).ok()?;
    Some(Holder::Thread { _go: go })
}

/// An `fsync` in a detached thread or process.
pub(crate) enum Sync {
    Process(PipeReader),
    Thread(Receiver<io::Result<()>>),
}

impl Sync {
    /// Starts it.
    pub(crate) fn start(file: &File) -> io::Result<Self> {
        let (answer, sender) = io::pipe()?;
        if start(SYNC, file.try_clone()?.into(), sender.into()).is_some() {
            return Ok(Self::Process(answer));
        }
        let file = file.try_clone()?;
        let (sender, answer) = channel();
        let sync = move || {
            let result = file.sync_all();
            // The file is closed before the result is known.
            drop(file);
            let _ = sender.send(result);
        };
        let thread = thread::Builder::new().name("extant-sync".to_owned());
        thread.spawn(sync)?;
        Ok(Self::Thread(answer))
    }

    /// Its result; `None` when there is none within `timeout`.
    pub(crate) fn wait(&mut self, timeout: Duration) -> Option<io::Result<()>> {
        // The outcome of a sync is unknown when its thread or process ended without a result.
        let unknown = || Err(io::Error::from_raw_os_error(libc::EIO));
        match self {
            Self::Thread(answer) => match answer.recv_timeout(timeout) {
                Ok(result) => Some(result),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => Some(unknown()),
            },
            Self::Process(answer) => {
                let timeout = Timespec {
                    tv_sec: timeout.as_secs() as i64,
                    tv_nsec: timeout.subsec_nanos().into(),
                };
                let mut events = [PollFd::from_borrowed_fd(answer.as_fd(), PollFlags::IN)];
                match poll(&mut events, Some(&timeout)) {
                    Ok(0) | Err(rustix::io::Errno::INTR) => return None,
                    Ok(_) => {}
                    Err(errno) => return Some(Err(errno.into())),
                }
                let mut errno = [0; 4];
                Some(match answer.read_exact(&mut errno) {
                    Ok(()) => match i32::from_ne_bytes(errno) {
                        0 => Ok(()),
                        errno => Err(io::Error::from_raw_os_error(errno)),
                    },
                    Err(_) => unknown(),
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer_of(file: &File) -> io::Result<()> {
        let mut sync = Sync::start(file).unwrap();
        let answer = (0..500).find_map(|_| sync.wait(Duration::from_millis(20)));
        answer.expect("within ten seconds")
    }

    #[test]
    fn detached_sync_returns() {
        answer_of(&tempfile::tempfile().unwrap()).unwrap();
    }

    #[test]
    fn detached_sync_returns_the_error() {
        let (reader, _writer) = io::pipe().unwrap();
        let error = answer_of(&File::from(OwnedFd::from(reader))).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    fn held_file_remains_open_until_released() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_path_buf();
        let open = || {
            let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
            all.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|link| link == path))
                .count()
        };
        let holder = hold(file.as_file()).unwrap();
        assert_eq!(open(), 2);
        drop(holder);
        let is_let_go = (0..500).any(|_| {
            thread::sleep(Duration::from_millis(10));
            open() == 1
        });
        assert!(is_let_go);
    }
}
