//! The ring of ended calls of a context, which the kernel maps into the process: read without a
//! system call, as libaio does.
//!
//! The kernel writes events and the tail; the process moves the head past the events it has read.
//! The system call moves the head as well, so both are called by one thread at a time.
//!
//! Format: `struct aio_ring` of fs/aio.c, which is at the address that is the number of a context.

use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Event;

/// `struct aio_ring`, before its events.
#[repr(C)]
struct Header {
    id: u32,
    count: u32,
    head: AtomicU32,
    tail: AtomicU32,
    magic: u32,
    compatible: u32,
    incompatible: u32,
    header_bytes: u32,
}

const MAGIC: u32 = 0xa10a_10a1;

/// Takes the events in the ring of `context`, as many as there is room for. `None`: its layout is
/// unknown.
///
/// # Safety
/// The context exists, and no other thread takes events of it meanwhile.
pub(super) unsafe fn take(context: libc::c_ulong, into: &mut [Event]) -> Option<usize> {
    let header: *const Header = ptr::with_exposed_provenance(context as usize);
    // SAFETY: the kernel maps the ring at this address for as long as the context exists. It
    // changes the atomic fields alone.
    let header_fields = unsafe { &*header };
    let is_known = header_fields.magic == MAGIC
        && header_fields.incompatible == 0
        && header_fields.header_bytes as usize == size_of::<Header>()
        && header_fields.count > 0;
    if !is_known {
        return None;
    }
    // SAFETY: the events follow the header.
    let events: *const Event = unsafe { header.add(1).cast() };
    let mut head = header_fields.head.load(Ordering::Relaxed) % header_fields.count;
    let tail = header_fields.tail.load(Ordering::Acquire);
    let mut taken = 0;
    while head != tail && taken < into.len() {
        // SAFETY: the index is less than the number of events, and the kernel does not write to
        // this one before the head has passed it.
        into[taken] = unsafe { events.add(head as usize).read() };
        head = (head + 1) % header_fields.count;
        taken += 1;
    }
    if taken > 0 {
        header_fields.head.store(head, Ordering::Release);
    }
    Some(taken)
}
