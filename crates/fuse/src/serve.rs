//! One request to one reply: decoding, the call of [`Operations`], encoding.
//!
//! Model: bytes in, bytes out, independent of the transport. An undecodable request is answered
//! with `INVAL`, an unknown one with `NOSYS`; only requests without a reply in the protocol get
//! none.
//!
//! A panic of the file system is caught here. It may have left anything half done, so from then on
//! every request is answered with `IO` and the file system is not called again; callers get errors
//! and do not hang.
//!
//! - `attributes`, `directories`, `files`, `names`, `xattrs`: the operations
//! - `worker_pool`: the threads and their watchdog
//! - `interrupts`: matching of signals to requests
//! - `deferred`: limit of the requests that wait in notifications
//! - `writers`: the files of which the kernel's cache may hold dirty data

mod attributes;
mod deferred;
mod directories;
mod files;
mod interrupts;
mod names;
#[cfg(test)]
mod tests;
pub(crate) mod worker_pool;
mod writers;
mod xattrs;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use extant_space::CancelToken;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::operations::{Caller, NodeId, Notifier, Operations, Privileges, Request};
use crate::protocol::connection::{Agreement, Capabilities};
use crate::protocol::opcode::Opcode;
use crate::protocol::reply::Reply;
use crate::protocol::{Body, RequestHeader, split};

pub(crate) use interrupts::{Slot, Slots};
use writers::Writers;

/// How long the kernel may cache a reply: indefinitely, because no other program changes the file
/// system.
const VALIDITY: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A file system with its connection state.
pub(crate) struct Server {
    operations: Arc<dyn Operations>,
    agreed: Capabilities,
    slots: Slots,
    writers: Writers,
    notifier: OnceLock<Notifier>,
    /// Message of the first panic.
    panic: OnceLock<String>,
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It has a reply: this number of bytes after the header, or an error.
    Reply(Result<usize, Errno>),
    /// The protocol has none for this request.
    NoReply,
}

/// A request in progress.
struct Call<'a> {
    request: Request<'a>,
    node: NodeId,
    body: Body<'a>,
    reply: Reply<'a>,
    /// Memory for values of unknown length.
    scratch: &'a mut Vec<u8>,
}

impl Server {
    pub fn new(operations: Arc<dyn Operations>, agreement: &Agreement) -> Self {
        Self {
            operations,
            agreed: agreement.capabilities,
            slots: Slots::default(),
            writers: Writers::default(),
            notifier: OnceLock::new(),
            panic: OnceLock::new(),
        }
    }

    /// Starts the file system, which may notify the kernel from now on.
    pub fn start(&self, notifier: Notifier) {
        self.operations.start(notifier.clone());
        let _ = self.notifier.set(notifier);
    }

    /// A slot for a worker of a queue.
    pub fn slot(&self, queue: usize) -> Slot {
        self.slots.add(queue)
    }

    /// The current requests of a queue's workers; 0 for an idle worker.
    pub fn current(&self, queue: usize) -> Vec<u64> {
        self.slots.current(queue)
    }

    /// Message of the first panic, if any.
    pub fn panic_message(&self) -> Option<&str> {
        self.panic.get().map(String::as_str)
    }

    /// Informs the file system that no more requests follow.
    pub fn finish(&self) {
        if self.panic.get().is_none() {
            self.guarded(|| self.operations.destroy());
        }
    }

    /// Answers a request. `None` if it has no reply. `scratch` has no content between calls.
    pub fn answer<'a>(
        &self,
        request: &[u8],
        slot: &Slot,
        mut reply: Reply<'a>,
        scratch: &mut Vec<u8>,
    ) -> Option<&'a [u8]> {
        let (header, body) = match split(request) {
            Ok(parts) => parts,
            // Without a request id no reply is possible.
            Err(_) => {
                let unique = request.get(8..16)?.try_into().map(u64::from_ne_bytes);
                return Some(reply.finish(unique.ok()?, Err(Errno::INVAL)));
            }
        };
        let outcome = match Opcode::new(header.opcode) {
            Some(Opcode::Forget | Opcode::BatchForget) if self.panic.get().is_some() => {
                Outcome::NoReply
            }
            _ if self.panic.get().is_some() => Outcome::Reply(Err(Errno::IO)),
            None => Outcome::Reply(Err(Errno::NOSYS)),
            Some(Opcode::Interrupt) => self.interrupt(body),
            Some(opcode) => {
                let cancel = self.slots.begin(slot, header.unique);
                let outcome = self.guarded(|| {
                    let mut call = Call::new(&header, body, &cancel, reply.reborrow(), scratch);
                    self.dispatch(opcode, &mut call)
                });
                slot.end(cancel);
                match (outcome, opcode) {
                    (Some(outcome), _) => outcome,
                    (None, Opcode::Forget | Opcode::BatchForget) => Outcome::NoReply,
                    (None, _) => Outcome::Reply(Err(Errno::IO)),
                }
            }
        };
        match outcome {
            Outcome::Reply(result) => Some(reply.finish(header.unique, result)),
            Outcome::NoReply => None,
        }
    }

    /// Calls the file system; `None` when it panics.
    fn guarded<T>(&self, call: impl FnOnce() -> T) -> Option<T> {
        // After a panic the file system is not called again.
        match catch_unwind(AssertUnwindSafe(call)) {
            Ok(value) => Some(value),
            Err(panic) => {
                self.panic.get_or_init(|| message(&*panic));
                None
            }
        }
    }

    fn dispatch(&self, opcode: Opcode, call: &mut Call<'_>) -> Outcome {
        let result = match opcode {
            Opcode::Forget => {
                self.forget(call);
                return Outcome::NoReply;
            }
            Opcode::BatchForget => {
                self.forget_batch(call);
                return Outcome::NoReply;
            }
            Opcode::Lookup => self.lookup(call),
            Opcode::Getattr => self.getattr(call),
            Opcode::Setattr => self.setattr(call),
            Opcode::Readlink => self.readlink(call),
            Opcode::Symlink => self.symlink(call),
            Opcode::Mknod => self.mknod(call),
            Opcode::Mkdir => self.mkdir(call),
            Opcode::Unlink => self.unlink(call),
            Opcode::Rmdir => self.rmdir(call),
            Opcode::Rename => self.rename(call),
            Opcode::Rename2 => self.rename2(call),
            Opcode::Link => self.link(call),
            Opcode::Open => self.open(call),
            Opcode::Read => self.read(call),
            Opcode::Write => self.write(call),
            Opcode::Statfs => self.statfs(call),
            Opcode::Release => self.release(call),
            Opcode::Fsync => self.fsync(call),
            Opcode::Setxattr => self.setxattr(call),
            Opcode::Getxattr => self.getxattr(call),
            Opcode::Listxattr => self.listxattr(call),
            Opcode::Removexattr => self.removexattr(call),
            Opcode::Flush => self.flush(call),
            Opcode::Opendir => self.opendir(call),
            Opcode::Readdir => self.readdir(call),
            Opcode::Readdirplus => self.readdirplus(call),
            Opcode::Releasedir => self.releasedir(call),
            Opcode::Fsyncdir => self.fsyncdir(call),
            Opcode::Create => self.create(call),
            Opcode::Tmpfile => self.tmpfile(call),
            Opcode::Ioctl => self.ioctl(call),
            Opcode::Fallocate => self.fallocate(call),
            Opcode::Lseek => self.lseek(call),
            Opcode::CopyFileRange => self.copy_file_range(call),
            Opcode::CopyFileRange64 => self.copy_file_range_64(call),
            Opcode::Syncfs => self.syncfs(call),
            Opcode::Statx => self.statx(call),
            // The channel detects the end; the file system is informed when every thread has ended.
            Opcode::Destroy => Ok(0),
            // The session has answered it; a second one is invalid.
            Opcode::Init => Err(Errno::INVAL),
            Opcode::Interrupt => unreachable!("it is no call of the file system"),
        };
        Outcome::Reply(result)
    }
}

impl<'a> Call<'a> {
    fn new(
        header: &RequestHeader,
        body: Body<'a>,
        cancel: &'a CancelToken,
        reply: Reply<'a>,
        scratch: &'a mut Vec<u8>,
    ) -> Self {
        let caller = Caller {
            uid: header.uid,
            gid: header.gid,
            pid: header.pid,
        };
        Self {
            request: Request { caller, cancel },
            node: NodeId(header.nodeid),
            body,
            reply,
            scratch,
        }
    }
}

/// Decodes the flag `kill` of a request.
fn privileges(flags: u32, kill: u32) -> Privileges {
    match flags & kill {
        0 => Privileges::Keep,
        _ => Privileges::Drop,
    }
}

/// The flags of an open file, unchecked.
fn open_flags(flags: u32) -> OFlags {
    OFlags::from_bits_retain(flags)
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("panic without a message").to_owned()
}
