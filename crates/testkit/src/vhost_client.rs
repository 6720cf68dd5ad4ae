//! A driver of vhost-user disks without a guest: the client's side of vhost-user, and of the rings.
//!
//! Model: one region of shared memory ([`Ram`]), which outlives connections as that of a guest
//! does. Each queue has a part of it: its ring, and slots for requests, each with a page for
//! header, status and tables, and with memory for data. Everything in the ring can be written as a
//! hostile guest would ([`Queue::add_chain`]).
//!
//! A failure panics. Nothing waits longer than [`TIMEOUT`].

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// A server that takes longer is reported.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// Where the guest, and where the client, has its memory.
const GUEST_BASE: u64 = 0x1_0000_0000;
const CLIENT_BASE: u64 = 0x7f00_0000_0000;
const QUEUE_BYTES: u64 = 16 << 20;
const AVAIL: u64 = 0x8000;
const USED: u64 = 0x10000;
const PAGES: u64 = 0x20000;
const DATA: u64 = 0x100000;
/// Data of one slot.
pub const SLOT_BYTES: usize = 64 << 10;
/// Requests of one queue at a time.
pub const SLOTS: u16 = 128;
// Offsets in the page of a slot.
const STATUS: u64 = 64;
const TABLE: u64 = 1024;

/// Feature bits of virtio, as it numbers them.
pub mod feature {
    #![allow(missing_docs)]
    pub const RO: u32 = 5;
    pub const FLUSH: u32 = 9;
    pub const DISCARD: u32 = 13;
    pub const INDIRECT: u32 = 28;
    pub const EVENT_IDX: u32 = 29;
}

/// Types of requests, as virtio numbers them.
pub mod kind {
    #![allow(missing_docs)]
    pub const IN: u32 = 0;
    pub const OUT: u32 = 1;
    pub const FLUSH: u32 = 4;
    pub const GET_ID: u32 = 8;
    pub const DISCARD: u32 = 11;
    pub const WRITE_ZEROES: u32 = 13;
}

/// Results of requests.
pub mod status {
    #![allow(missing_docs)]
    pub const OK: u8 = 0;
    pub const IOERR: u8 = 1;
    pub const UNSUPP: u8 = 2;
}

/// Flags of descriptors.
pub mod flag {
    #![allow(missing_docs)]
    pub const NEXT: u16 = 1;
    pub const WRITE: u16 = 2;
    pub const INDIRECT: u16 = 4;
}

/// Memory of a guest.
#[derive(Debug)]
pub struct Ram {
    file: File,
    memory: GuestMemoryMmap,
    bytes: u64,
}

impl Ram {
    /// Room for that many queues.
    pub fn new(queues: usize) -> Self {
        let bytes = QUEUE_BYTES * queues as u64;
        let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, bytes).unwrap();
        let offset = FileOffset::new(file.try_clone().unwrap(), 0);
        let range = (GuestAddress(GUEST_BASE), bytes as usize, Some(offset));
        let memory = GuestMemoryMmap::from_ranges_with_files([range]).unwrap();
        Self {
            file,
            memory,
            bytes,
        }
    }
}

/// How a client sets the device up.
pub struct Options {
    /// Queues.
    pub queues: usize,
    /// Entries of each.
    pub queue_size: u16,
    /// Features that are not taken though offered.
    pub without: Vec<u32>,
    /// The table of requests in flight of the connection before.
    pub inflight: Option<(VhostUserInflight, File)>,
    /// Index of the next request of each queue, after a reconnect.
    pub bases: Vec<u16>,
    /// The server gets the memory as two regions, of which the second starts this many bytes after
    /// the first; whole pages.
    pub second_region: Option<u64>,
}

impl Default for Options {
    /// One queue of 256, with all features.
    fn default() -> Self {
        Self {
            queues: 1,
            queue_size: 256,
            without: Vec::new(),
            inflight: None,
            bases: Vec::new(),
            second_region: None,
        }
    }
}

/// A connected client whose rings run.
pub struct Client {
    frontend: Frontend,
    /// Its queues.
    pub queues: Vec<Queue>,
    /// Features of both sides.
    pub features: u64,
    /// The table of requests in flight, for the next connection.
    pub inflight: (VhostUserInflight, File),
    channel: UnixStream,
    regions: Vec<VhostUserMemoryRegionInfo>,
}

impl Client {
    /// Connects, and starts the rings.
    #[track_caller]
    pub fn connect(socket: &Path, ram: &Ram, options: Options) -> Self {
        let mut frontend = Frontend::connect(socket, options.queues as u64).unwrap();
        frontend.set_owner().unwrap();
        let mut features = frontend.get_features().unwrap();
        for bit in &options.without {
            features &= !(1 << bit);
        }
        frontend.set_features(features).unwrap();
        let protocol = frontend.get_protocol_features().unwrap();
        frontend.set_protocol_features(protocol).unwrap();
        assert!(protocol.contains(VhostUserProtocolFeatures::MQ));
        assert!(frontend.get_queue_num().unwrap() >= options.queues as u64);
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        let (channel, theirs) = UnixStream::pair().unwrap();
        channel.set_read_timeout(Some(TIMEOUT)).unwrap();
        frontend.set_backend_request_fd(&theirs).unwrap();
        let second = options.second_region.unwrap_or(ram.bytes);
        let regions: Vec<_> = [0..second, second..ram.bytes]
            .into_iter()
            .filter(|range| !range.is_empty())
            .map(|range| VhostUserMemoryRegionInfo {
                guest_phys_addr: GUEST_BASE + range.start,
                memory_size: range.end - range.start,
                userspace_addr: CLIENT_BASE + range.start,
                mmap_offset: range.start,
                mmap_handle: ram.file.as_raw_fd(),
            })
            .collect();
        frontend.set_mem_table(&regions).unwrap();
        let inflight = match options.inflight {
            Some((layout, file)) => {
                frontend.set_inflight_fd(&layout, file.as_raw_fd()).unwrap();
                (layout, file)
            }
            None => {
                let (queues, size) = (options.queues as u16, options.queue_size);
                let wanted = VhostUserInflight::new(0, 0, queues, size);
                let (layout, file) = frontend.get_inflight_fd(&wanted).unwrap();
                frontend.set_inflight_fd(&layout, file.as_raw_fd()).unwrap();
                (layout, file)
            }
        };
        let queues = (0..options.queues)
            .map(|index| {
                let base = options.bases.get(index).copied();
                Queue::start(
                    &mut frontend,
                    ram,
                    index,
                    options.queue_size,
                    features,
                    base,
                )
            })
            .collect();
        Self {
            frontend,
            queues,
            features,
            inflight,
            channel,
            regions,
        }
    }

    /// Whether both sides have a feature.
    pub fn has(&self, bit: u32) -> bool {
        self.features & 1 << bit != 0
    }

    /// The configuration space.
    #[track_caller]
    pub fn config(&mut self) -> Vec<u8> {
        let flags = VhostUserConfigFlags::empty();
        let config = self.frontend.get_config(0, 60, flags, &[0; 60]);
        config.unwrap().1
    }

    /// Its first field.
    #[track_caller]
    pub fn capacity_sectors(&mut self) -> u64 {
        u64::from_le_bytes(self.config()[..8].try_into().unwrap())
    }

    /// Waits for the message that the configuration has changed.
    #[track_caller]
    pub fn wait_for_config_change(&mut self) {
        let mut message = [0; 12];
        std::io::Read::read_exact(&mut self.channel, &mut message).unwrap();
        assert_eq!(message[..4], 2_u32.to_ne_bytes());
    }

    /// Stops a ring; the index of its next request.
    #[track_caller]
    pub fn stop(&mut self, queue: usize) -> u16 {
        self.frontend.get_vring_base(queue).unwrap() as u16
    }

    /// Takes the last region of memory from the server.
    #[track_caller]
    pub fn remove_region(&mut self) {
        let region = self.regions.pop().unwrap();
        self.frontend.remove_mem_region(&region).unwrap();
    }

    /// Exchanges the descriptor of calls, as QEMU does while the ring runs.
    #[track_caller]
    pub fn renew_call(&mut self, queue: usize) {
        let call = EventFd::new(EFD_NONBLOCK).unwrap();
        self.frontend.set_vring_call(queue, &call).unwrap();
        self.queues[queue].call = call;
    }
}

/// A request of a driver.
#[derive(Clone, Debug)]
pub struct Op {
    /// Its type.
    pub kind: u32,
    /// First sector.
    pub sector: u64,
    /// Data for the device.
    pub output: Vec<u8>,
    /// Bytes of data from the device.
    pub input: usize,
}

impl Op {
    /// A read.
    pub fn read(sector: u64, bytes: usize) -> Self {
        Self {
            kind: kind::IN,
            sector,
            output: Vec::new(),
            input: bytes,
        }
    }

    /// A write.
    pub fn write(sector: u64, data: &[u8]) -> Self {
        Self {
            kind: kind::OUT,
            sector,
            output: data.to_vec(),
            input: 0,
        }
    }

    /// A request without data.
    pub fn of_kind(kind: u32) -> Self {
        Self {
            kind,
            ..Self::read(0, 0)
        }
    }

    /// A discard or write zeroes of one range.
    pub fn range(kind: u32, sector: u64, sectors: u32, flags: u32) -> Self {
        let mut output = sector.to_le_bytes().to_vec();
        output.extend(sectors.to_le_bytes());
        output.extend(flags.to_le_bytes());
        Self {
            kind,
            sector: 0,
            output,
            input: 0,
        }
    }
}

/// A completed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// Its slot.
    pub slot: u16,
    /// Its status; 255 if the device wrote none.
    pub status: u8,
    /// Data from the device.
    pub input: Vec<u8>,
    /// Bytes that the device says it has written.
    pub used: u32,
}

/// A descriptor, as it is in a table.
pub type RawDescriptor = (u64, u32, u16, u16);

/// One queue of a client.
pub struct Queue {
    memory: GuestMemoryMmap,
    base: u64,
    size: u16,
    next_avail: u16,
    next_used: u16,
    has_event_index: bool,
    is_indirect: bool,
    kick: EventFd,
    call: EventFd,
    error: EventFd,
    inputs: Vec<usize>,
}

impl Queue {
    fn start(
        frontend: &mut Frontend,
        ram: &Ram,
        index: usize,
        size: u16,
        features: u64,
        base: Option<u16>,
    ) -> Self {
        let event = || EventFd::new(EFD_NONBLOCK).unwrap();
        let start = GUEST_BASE + index as u64 * QUEUE_BYTES;
        let mut queue = Self {
            memory: ram.memory.clone(),
            base: start,
            size,
            next_avail: base.unwrap_or(0),
            next_used: 0,
            has_event_index: features & 1 << feature::EVENT_IDX != 0,
            is_indirect: features & 1 << feature::INDIRECT != 0,
            kick: event(),
            call: event(),
            error: event(),
            inputs: vec![0; usize::from(SLOTS)],
        };
        match base {
            None => queue.zero(0, PAGES as usize),
            Some(_) => {
                queue.next_used = queue.load(USED + 2);
                queue.next_avail = queue.load(AVAIL + 2);
            }
        }
        let address = |offset| start - GUEST_BASE + CLIENT_BASE + offset;
        let config = VringConfigData {
            queue_max_size: size,
            queue_size: size,
            flags: 0,
            desc_table_addr: address(0),
            used_ring_addr: address(USED),
            avail_ring_addr: address(AVAIL),
            log_addr: None,
        };
        frontend.set_vring_num(index, size).unwrap();
        frontend.set_vring_base(index, base.unwrap_or(0)).unwrap();
        frontend.set_vring_addr(index, &config).unwrap();
        frontend.set_vring_call(index, &queue.call).unwrap();
        frontend.set_vring_err(index, &queue.error).unwrap();
        frontend.set_vring_kick(index, &queue.kick).unwrap();
        frontend.set_vring_enable(index, true).unwrap();
        queue
    }

    /// Address of a byte of the queue's memory for the guest.
    pub fn address(&self, offset: u64) -> u64 {
        self.base + offset
    }

    /// Address of the data of a slot.
    pub fn data_address(&self, slot: u16) -> u64 {
        self.address(DATA + u64::from(slot) * SLOT_BYTES as u64)
    }

    /// Address of the header of a slot.
    pub fn header_address(&self, slot: u16) -> u64 {
        self.address(PAGES + u64::from(slot) * 4096)
    }

    /// Address of the status of a slot.
    pub fn status_address(&self, slot: u16) -> u64 {
        self.header_address(slot) + STATUS
    }

    /// Address of a table that is not the ring's, with room for 192 descriptors.
    pub fn table_address(&self, slot: u16) -> u64 {
        self.header_address(slot) + TABLE
    }

    /// Writes memory, as the guest does.
    pub fn write_memory(&self, address: u64, bytes: &[u8]) {
        self.memory
            .write_slice(bytes, GuestAddress(address))
            .unwrap();
    }

    /// Reads memory.
    pub fn read_memory(&self, address: u64, bytes: usize) -> Vec<u8> {
        let mut into = vec![0; bytes];
        self.memory
            .read_slice(&mut into, GuestAddress(address))
            .unwrap();
        into
    }

    /// Writes the header of a slot.
    pub fn set_header(&self, slot: u16, kind: u32, sector: u64) {
        let at = self.header_address(slot) - self.base;
        self.store(at, kind);
        self.store(at + 4, 0_u32);
        self.store(at + 8, sector);
        self.store(at + STATUS, 255_u8);
    }

    /// Writes descriptors into a table.
    pub fn set_table(&self, address: u64, first: u16, descriptors: &[RawDescriptor]) {
        for (at, &(target, length, flags, next)) in descriptors.iter().enumerate() {
            let at = address - self.base + (u64::from(first) + at as u64) * 16;
            self.store(at, target);
            self.store(at + 8, length);
            self.store(at + 12, flags);
            self.store(at + 14, next);
        }
    }

    /// Makes a chain available, whatever it is.
    pub fn add_head(&mut self, head: u16) {
        let entry = AVAIL + 4 + 2 * u64::from(self.next_avail % self.size);
        self.store(entry, head);
        self.next_avail = self.next_avail.wrapping_add(1);
        self.set_available(self.next_avail);
    }

    /// Writes the index of the available ring, whatever it is.
    pub fn set_available(&self, index: u16) {
        let at = GuestAddress(self.address(AVAIL + 2));
        self.memory.store(index, at, Ordering::Release).unwrap();
    }

    /// Puts descriptors into the ring's table, from the first one, and makes them available.
    pub fn add_chain(&mut self, descriptors: &[RawDescriptor]) {
        self.set_table(self.base, 0, descriptors);
        self.add_head(0);
    }

    /// Makes a request available in a free slot, without a kick.
    pub fn add(&mut self, slot: u16, op: &Op) {
        assert!(op.output.len().max(op.input) <= SLOT_BYTES);
        self.set_header(slot, op.kind, op.sector);
        let data = self.data_address(slot);
        self.memory
            .write_slice(&op.output, GuestAddress(data))
            .unwrap();
        self.inputs[usize::from(slot)] = op.input;
        let mut parts = vec![(self.header_address(slot), 16, 0)];
        if !op.output.is_empty() {
            parts.push((data, op.output.len() as u32, 0));
        }
        if op.input > 0 {
            parts.push((data, op.input as u32, flag::WRITE));
        }
        parts.push((self.status_address(slot), 1, flag::WRITE));
        let last = parts.len() - 1;
        let first = if self.is_indirect {
            0
        } else {
            4 * slot % self.size
        };
        let descriptors: Vec<RawDescriptor> = parts
            .iter()
            .enumerate()
            .map(|(at, &(address, length, flags))| {
                if at == last {
                    (address, length, flags, 0)
                } else {
                    (address, length, flags | flag::NEXT, first + at as u16 + 1)
                }
            })
            .collect();
        if self.is_indirect {
            let table = self.table_address(slot);
            self.set_table(table, 0, &descriptors);
            let bytes = 16 * descriptors.len() as u32;
            self.set_table(self.base, slot, &[(table, bytes, flag::INDIRECT, 0)]);
            self.add_head(slot);
        } else {
            self.set_table(self.base, first, &descriptors);
            self.add_head(first);
        }
    }

    /// Kicks if the device wants it.
    pub fn kick(&self) {
        fence(Ordering::SeqCst);
        let is_wanted = if self.has_event_index {
            let wanted: u16 = self.load(USED + 4 + 8 * u64::from(self.size));
            // One kick too many does no harm: the driver does not keep the index before.
            self.next_avail.wrapping_sub(wanted).wrapping_sub(1) < self.size
        } else {
            self.load::<u16>(USED) & 1 == 0
        };
        if is_wanted {
            self.kick_anyway();
        }
    }

    /// Kicks.
    pub fn kick_anyway(&self) {
        self.kick.write(1).unwrap();
    }

    /// Requests that were completed since the last call.
    pub fn take_completed(&mut self) -> Vec<Done> {
        let index = GuestAddress(self.address(USED + 2));
        let used: u16 = self.memory.load(index, Ordering::Acquire).unwrap();
        let mut done = Vec::new();
        while self.next_used != used {
            let entry = USED + 4 + 8 * u64::from(self.next_used % self.size);
            let (head, length): (u32, u32) = (self.load(entry), self.load(entry + 4));
            let slot = if self.is_indirect { head } else { head / 4 } as u16;
            let mut input = vec![0; self.inputs[usize::from(slot % SLOTS)]];
            let data = GuestAddress(self.data_address(slot));
            self.memory.read_slice(&mut input, data).unwrap();
            let status = self.load(self.status_address(slot) - self.base);
            done.push(Done {
                slot,
                status,
                input,
                used: length,
            });
            self.next_used = self.next_used.wrapping_add(1);
        }
        done
    }

    /// Index of the used ring up to which completions were taken.
    pub fn used_index(&self) -> u16 {
        self.next_used
    }

    /// Waits for at least one completed request.
    #[track_caller]
    pub fn wait(&mut self) -> Vec<Done> {
        loop {
            let done = self.take_completed();
            if !done.is_empty() {
                return done;
            }
            // used_event: call for the next one.
            self.store(AVAIL + 4 + 2 * u64::from(self.size), self.next_used);
            fence(Ordering::SeqCst);
            if self.load::<u16>(USED + 2) == self.next_used {
                wait_for(&self.call, "a call");
            }
        }
    }

    /// Waits until the device says that the ring is broken.
    #[track_caller]
    pub fn wait_for_error(&self) {
        wait_for(&self.error, "an error");
    }

    /// Runs one request in the first slot: nothing else is in flight.
    #[track_caller]
    pub fn run(&mut self, op: &Op) -> Done {
        self.add(0, op);
        self.kick();
        let mut done = self.wait();
        assert_eq!(done.len(), 1);
        done.remove(0)
    }

    /// Runs requests with at most `depth` in flight; `visit` gets each with its index.
    #[track_caller]
    pub fn run_all(&mut self, depth: u16, ops: &[Op], mut visit: impl FnMut(usize, Done)) {
        let mut of_slot = vec![0; usize::from(depth)];
        let mut free: Vec<u16> = (0..depth).collect();
        let (mut next, mut done) = (0, 0);
        while done < ops.len() {
            while next < ops.len()
                && let Some(slot) = free.pop()
            {
                of_slot[usize::from(slot)] = next;
                self.add(slot, &ops[next]);
                next += 1;
            }
            self.kick();
            for completed in self.wait() {
                free.push(completed.slot);
                done += 1;
                visit(of_slot[usize::from(completed.slot)], completed);
            }
        }
    }

    fn zero(&self, offset: u64, bytes: usize) {
        let at = GuestAddress(self.address(offset));
        self.memory.write_slice(&vec![0; bytes], at).unwrap();
    }

    fn load<T: vm_memory::ByteValued>(&self, offset: u64) -> T {
        let at = GuestAddress(self.address(offset));
        self.memory.read_obj(at).unwrap()
    }

    fn store<T: vm_memory::ByteValued>(&self, offset: u64, value: T) {
        let at = GuestAddress(self.address(offset));
        self.memory.write_obj(value, at).unwrap();
    }
}

#[track_caller]
fn wait_for(event: &EventFd, what: &str) {
    let epoll = Epoll::new().unwrap();
    let wanted = EpollEvent::new(EventSet::IN, 0);
    epoll
        .ctl(ControlOperation::Add, event.as_raw_fd(), wanted)
        .unwrap();
    let mut events = [EpollEvent::default()];
    let count = loop {
        match epoll.wait(TIMEOUT.as_millis() as i32, &mut events) {
            // A signal by which the server in this process ends calls.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            count => break count.unwrap(),
        }
    };
    assert_eq!(count, 1, "no {what}");
    let _ = event.read();
}
