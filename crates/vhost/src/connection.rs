//! The state that the messages of one client set up: guest memory, features, rings.
//!
//! A ring runs while it has addresses and a kick descriptor, and is enabled. The request for its
//! base stops it, and its requests in flight are completed before the reply.
//!
//! Guest memory may be exchanged while rings run. Each access translates the address by the memory
//! that is current then; a mapping lives until the last access to it has ended.

use std::fs::File;
use std::io;
use std::mem;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVirtioFeatures,
    VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};
use virtio_bindings::virtio_blk::VIRTIO_BLK_F_FLUSH;
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use virtio_queue::{Queue, QueueT};
use vm_memory::mmap::GuestRegionMmap;
use vm_memory::{GuestAddress, GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};

use crate::context::Context;
use crate::events::Observer;
use crate::inflight::InflightMemory;
use crate::queue;
use crate::request::DESCRIPTORS_MAX;
use crate::ring::{Memory, Notifiers, Ring};
use crate::volume::Volume;

/// Most entries of a ring.
const QUEUE_SIZE_MAX: u16 = DESCRIPTORS_MAX as u16;
/// Regions of guest memory; that of QEMU's vhost-user.
const MEMORY_REGIONS_MAX: u64 = 509;

/// One client.
pub(crate) struct Connection {
    volume: Arc<Volume>,
    observer: Option<Observer>,
    memory: Memory,
    mappings: Vec<Mapping>,
    features: u64,
    vrings: Vec<Vring>,
    inflight: Option<InflightMemory>,
}

/// Where the client sees a region of guest memory.
#[derive(Debug)]
struct Mapping {
    client: u64,
    guest: u64,
    bytes: u64,
}

/// A ring, as the client has described it so far.
struct Vring {
    size: u16,
    /// Guest addresses of descriptors, available ring and used ring.
    addresses: Option<[u64; 3]>,
    /// Index of the next request.
    base: u16,
    has_kick: bool,
    is_enabled: bool,
    notifiers: Notifiers,
    running: Option<Running>,
}

struct Running {
    context: Arc<Context>,
    thread: JoinHandle<()>,
}

impl Connection {
    pub(crate) fn new(volume: Arc<Volume>, observer: Option<Observer>) -> Self {
        let vrings = (0..volume.queues()).map(|_| Vring::new()).collect();
        Self {
            volume,
            observer,
            memory: GuestMemoryAtomic::new(GuestMemoryMmap::new()),
            mappings: Vec::new(),
            features: 0,
            vrings,
            inflight: None,
        }
    }

    /// Stops all rings, after their requests in flight.
    pub(crate) fn stop(&mut self) {
        // All are asked before the first is waited for.
        for vring in &self.vrings {
            if let Some(running) = &vring.running {
                running.context.ring.stop();
            }
        }
        self.vrings.iter_mut().for_each(Vring::stop);
    }

    fn vring(&mut self, index: u32) -> Result<&mut Vring> {
        self.vrings
            .get_mut(index as usize)
            .ok_or(Error::InvalidParam)
    }

    /// Starts or stops a ring according to its state.
    fn update(&mut self, index: u32) -> Result<()> {
        let vring = self.vring(index)?;
        let is_wanted = vring.has_kick && vring.is_enabled && vring.addresses.is_some();
        match (is_wanted, vring.running.is_some()) {
            (true, false) => self.start(index as usize),
            (false, true) => {
                vring.stop();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn start(&mut self, index: usize) -> Result<()> {
        let is_set = |bit: u32| self.features & 1 << bit != 0;
        let event_index = is_set(VIRTIO_RING_F_EVENT_IDX);
        let is_write_through = !is_set(VIRTIO_BLK_F_FLUSH);
        let vring = &mut self.vrings[index];
        let queue = vring.queue(event_index, &self.memory)?;
        let inflight = self
            .inflight
            .as_ref()
            .and_then(|memory| memory.of_queue(index, vring.size));
        let notifiers = mem::take(&mut vring.notifiers);
        let ring = Ring::new(self.memory.clone(), queue, inflight, notifiers);
        let context = Arc::new(Context {
            ring: ring.map_err(Error::ReqHandlerError)?,
            volume: self.volume.clone(),
            queue: index,
            is_write_through,
            observer: self.observer.clone(),
        });
        let thread = thread::Builder::new()
            .name(format!("vhost queue {index}"))
            .spawn({
                let context = context.clone();
                move || queue::run(&context)
            });
        let thread = thread.map_err(Error::ReqHandlerError)?;
        vring.running = Some(Running { context, thread });
        Ok(())
    }

    /// The guest address of an address of the client.
    fn guest_address(&self, client: u64) -> Result<u64> {
        let inside = |mapping: &&Mapping| {
            client
                .checked_sub(mapping.client)
                .is_some_and(|offset| offset < mapping.bytes)
        };
        let mapping = self.mappings.iter().find(inside);
        let mapping = mapping.ok_or(Error::InvalidParam)?;
        Ok(client - mapping.client + mapping.guest)
    }

    fn exchange_memory(&self, memory: GuestMemoryMmap) {
        let lock = self.memory.lock();
        lock.unwrap_or_else(std::sync::PoisonError::into_inner)
            .replace(memory);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Vring {
    fn new() -> Self {
        Self {
            size: QUEUE_SIZE_MAX,
            addresses: None,
            base: 0,
            has_kick: false,
            is_enabled: false,
            notifiers: Notifiers::default(),
            running: None,
        }
    }

    fn queue(&self, event_index: bool, memory: &Memory) -> Result<Queue> {
        let [descriptors, available, used] = self.addresses.ok_or(Error::InvalidParam)?;
        let mut queue = Queue::new(QUEUE_SIZE_MAX).map_err(|_| Error::InvalidParam)?;
        queue
            .try_set_size(self.size)
            .and_then(|()| queue.try_set_desc_table_address(GuestAddress(descriptors)))
            .and_then(|()| queue.try_set_avail_ring_address(GuestAddress(available)))
            .and_then(|()| queue.try_set_used_ring_address(GuestAddress(used)))
            .map_err(|_| Error::InvalidParam)?;
        queue.set_event_idx(event_index);
        queue.set_ready(true);
        let memory = memory.memory();
        if !queue.is_valid(&*memory) {
            return Err(Error::InvalidParam);
        }
        let used = queue.used_idx(&*memory, std::sync::atomic::Ordering::Acquire);
        queue.set_next_used(used.map_err(|_| Error::InvalidParam)?.0);
        queue.set_next_avail(self.base);
        Ok(queue)
    }

    fn stop(&mut self) {
        let Some(running) = self.running.take() else {
            return;
        };
        running.context.ring.stop();
        // A panic was reported by the thread.
        let _ = running.thread.join();
        if let Some(context) = Arc::into_inner(running.context) {
            (self.base, self.notifiers) = context.ring.into_parts();
        }
    }
}

fn handler_error(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::ReqHandlerError(io::Error::other(error))
}

impl VhostUserBackendReqHandlerMut for Connection {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.reset_device()
    }

    fn reset_device(&mut self) -> Result<()> {
        self.stop();
        for vring in &mut self.vrings {
            vring.is_enabled = false;
            vring.base = 0;
        }
        self.features = 0;
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.volume.features() | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !self.get_features()? != 0 {
            return Err(Error::InvalidParam);
        }
        self.features = features;
        if features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() == 0 {
            // Such a client has no message to enable a ring.
            for index in 0..self.vrings.len() {
                self.vrings[index].is_enabled = true;
                self.update(index as u32)?;
            }
        }
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::RESET_DEVICE
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS)
    }

    fn set_protocol_features(&mut self, _features: u64) -> Result<()> {
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.vrings.len() as u64)
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        let mut mapped = Vec::new();
        let mut mappings = Vec::new();
        for (region, file) in regions.iter().zip(files) {
            let address = GuestAddress(region.guest_phys_addr);
            mapped.push(
                GuestRegionMmap::new(region.mmap_region(file)?, address)
                    .ok_or(Error::InvalidParam)?,
            );
            mappings.push(Mapping {
                client: region.user_addr,
                guest: region.guest_phys_addr,
                bytes: region.memory_size,
            });
        }
        self.exchange_memory(GuestMemoryMmap::from_regions(mapped).map_err(handler_error)?);
        self.mappings = mappings;
        Ok(None)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(MEMORY_REGIONS_MAX)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        if self.mappings.len() as u64 >= MEMORY_REGIONS_MAX {
            return Err(Error::InvalidParam);
        }
        let address = GuestAddress(region.guest_phys_addr);
        let mapped =
            GuestRegionMmap::new(region.mmap_region(file)?, address).ok_or(Error::InvalidParam)?;
        let memory = self.memory.memory().insert_region(Arc::new(mapped));
        self.exchange_memory(memory.map_err(handler_error)?);
        self.mappings.push(Mapping {
            client: region.user_addr,
            guest: region.guest_phys_addr,
            bytes: region.memory_size,
        });
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let address = GuestAddress(region.guest_phys_addr);
        let memory = self.memory.memory();
        let (memory, _) = memory
            .remove_region(address, region.memory_size)
            .map_err(handler_error)?;
        self.exchange_memory(memory);
        self.mappings
            .retain(|mapping| mapping.guest != region.guest_phys_addr);
        Ok(())
    }

    fn set_vring_num(&mut self, index: u32, size: u32) -> Result<()> {
        let valid = u16::try_from(size)
            .ok()
            .filter(|size| size.is_power_of_two() && *size <= QUEUE_SIZE_MAX);
        let vring = self.stopped(index)?;
        vring.size = valid.ok_or(Error::InvalidParam)?;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        let addresses = [
            self.guest_address(descriptors)?,
            self.guest_address(available)?,
            self.guest_address(used)?,
        ];
        let vring = self.vring(index)?;
        if vring.addresses == Some(addresses) && vring.running.is_some() {
            // Only the flag of the log has changed.
            return Ok(());
        }
        self.stopped(index)?.addresses = Some(addresses);
        Ok(())
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.stopped(index)?.base = base as u16;
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let vring = self.vring(index)?;
        vring.stop();
        vring.has_kick = false;
        vring.notifiers = Notifiers::default();
        Ok(VhostUserVringState::new(index, u32::from(vring.base)))
    }

    fn set_vring_kick(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let vring = self.vring(index.into())?;
        vring.stop();
        vring.notifiers.kick = file;
        vring.has_kick = true;
        self.update(index.into())
    }

    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let vring = self.vring(index.into())?;
        match &vring.running {
            Some(running) => running.context.ring.set_call(file),
            None => vring.notifiers.call = file,
        }
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let vring = self.vring(index.into())?;
        match &vring.running {
            Some(running) => running.context.ring.set_error(file),
            None => vring.notifiers.error = file,
        }
        Ok(())
    }

    fn set_vring_enable(&mut self, index: u32, is_enabled: bool) -> Result<()> {
        self.vring(index)?.is_enabled = is_enabled;
        self.update(index)
    }

    fn get_config(
        &mut self,
        offset: u32,
        size: u32,
        _flags: VhostUserConfigFlags,
    ) -> Result<Vec<u8>> {
        let mut config = self.volume.config();
        let end = offset.checked_add(size).ok_or(Error::InvalidParam)? as usize;
        // The fields of newer versions of virtio are zero.
        config.resize(config.len().max(end), 0);
        Ok(config[offset as usize..end].to_vec())
    }

    fn set_config(
        &mut self,
        _offset: u32,
        _bytes: &[u8],
        _flags: VhostUserConfigFlags,
    ) -> Result<()> {
        Err(Error::InvalidOperation("nothing can be configured"))
    }

    fn get_inflight_fd(&mut self, wanted: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let (queues, size) = (wanted.num_queues, wanted.queue_size);
        if queues == 0 || size == 0 || queues > self.volume.queues() || size > QUEUE_SIZE_MAX {
            return Err(Error::InvalidParam);
        }
        let (memory, file) =
            InflightMemory::create(queues, size).map_err(Error::ReqHandlerError)?;
        let reply = VhostUserInflight::new(memory.len(), 0, queues, size);
        self.inflight = Some(memory);
        Ok((reply, file))
    }

    fn set_inflight_fd(&mut self, kept: &VhostUserInflight, file: File) -> Result<()> {
        if kept.num_queues == 0 || kept.queue_size > QUEUE_SIZE_MAX {
            return Err(Error::InvalidParam);
        }
        let (queues, size) = (kept.num_queues, kept.queue_size);
        let memory = InflightMemory::open(file, kept.mmap_offset, queues, size)
            .map_err(Error::ReqHandlerError)?;
        if memory.len() > kept.mmap_size {
            return Err(Error::InvalidParam);
        }
        self.inflight = Some(memory);
        Ok(())
    }

    fn set_gpu_socket(&mut self, _socket: GpuBackend) -> Result<()> {
        Err(Error::InvalidOperation("a disk has no display"))
    }

    fn get_shared_object(&mut self, _object: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InvalidOperation("a disk has no shared objects"))
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _file: File,
    ) -> Result<Option<File>> {
        Err(Error::InvalidOperation("a disk has no state to transfer"))
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(Error::InvalidOperation("a disk has no state to transfer"))
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(Error::InvalidOperation("a disk has no shared memory"))
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        Err(Error::InvalidOperation("dirty pages are not logged"))
    }
}

impl Connection {
    /// A ring whose layout may be changed.
    fn stopped(&mut self, index: u32) -> Result<&mut Vring> {
        let vring = self.vring(index)?;
        match vring.running {
            None => Ok(vring),
            Some(_) => Err(Error::InvalidOperation("the ring is running")),
        }
    }
}
