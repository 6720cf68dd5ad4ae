//! An image as a block device.
//!
//! Requests go to librbd as they are: it splits them among the objects, and all are in flight at
//! once. Only ranges without data are cut here, at whole stripes, to stay below
//! [`RANGE_BYTES_MAX`]. Assign is refused: RBD reserves nothing.

mod stream;

use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_blockdev::{
    Device, Features, Geometry, Limits, Operation, Persistence, RangeLimit, RangeStatus, Request,
    TransferStream, ZeroedSpace, submit_within,
};
use extant_space::{ByteRange, Error, ErrorKind, Result};
use parking_lot::Mutex;

use crate::cancellable::RANGE_BYTES_MAX;
use crate::cluster::Cluster;
use crate::image::{Image, ObjectDetail, RbdAccess};
use crate::name::RbdName;
use crate::options::ClusterOptions;
use crate::pool::Pool;
use crate::sys::{Aio, Piece};
use stream::Streamed;

/// Most bytes of one read or write.
const TRANSFER_BYTES_MAX: u64 = 64 << 20;
/// `rbd_discard_granularity_bytes`: smaller discards do nothing.
const DISCARD_GRANULARITY: u64 = 64 << 10;
/// Requests of a batch in flight.
const DEPTH_MAX: usize = 128;
/// Objects whose state is asked for at once.
const STATUS_OBJECTS: u64 = 16384;

/// An image, or a snapshot, as a device.
///
/// A failed flush stays: every later one fails with the same error.
pub struct RbdDevice {
    image: Arc<Image>,
    geometry: Geometry,
    size: AtomicU64,
    failed_flush: Mutex<Option<Error>>,
}

impl RbdDevice {
    /// Connects to the cluster, and opens the image.
    ///
    /// # Errors
    /// Those of [`Cluster::connect`] and [`Image::open`], with the name as the path.
    pub fn open(name: &RbdName, access: RbdAccess) -> Result<Self> {
        Self::open_by(name, access, &name.cluster())
    }

    /// As [`open`](Self::open), with other options of the cluster than the name has.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_by(name: &RbdName, access: RbdAccess, options: &ClusterOptions) -> Result<Self> {
        let open = || {
            let cluster = Cluster::connect(options)?;
            let pool = Pool::open(&cluster, &name.pool, &name.namespace)?;
            Image::open(&pool, &name.image, name.snapshot.as_deref(), access)
        };
        let place = name.without_options().to_string();
        let image = open().map_err(|error| error.at(&place))?;
        Self::new(image, access)
    }

    /// An open image.
    ///
    /// # Errors
    /// Those of the library.
    pub fn new(image: Image, access: RbdAccess) -> Result<Self> {
        let size = image.size()?;
        let mut features = Features::VOLATILE_CACHE
            | Features::DISCARD
            | Features::WRITE_ZEROES
            | Features::WRITE_ZEROES_UNMAP
            | Features::WRITE_ZEROES_ALLOCATE
            | Features::STATUS;
        if access != RbdAccess::ReadWrite {
            features |= Features::READ_ONLY;
        }
        let logical_block = if size.is_multiple_of(512) { 512 } else { 1 };
        let geometry = Geometry {
            size,
            logical_block,
            physical_block: 4096,
            limits: Limits {
                transfer: TRANSFER_BYTES_MAX,
                discard: RangeLimit {
                    bytes: u64::MAX,
                    granularity: DISCARD_GRANULARITY,
                },
                write_zeroes: RangeLimit::NONE,
                assign: RangeLimit::NONE,
            },
            features,
        };
        Ok(Self {
            image: Arc::new(image),
            geometry,
            size: AtomicU64::new(size),
            failed_flush: Mutex::default(),
        })
    }

    /// The image.
    pub fn image(&self) -> &Arc<Image> {
        &self.image
    }

    fn execute(&self, requests: &mut [Request<'_>]) {
        let mut results: Vec<Result<()>> = requests.iter().map(|_| Ok(())).collect();
        let ranges: Vec<_> = requests
            .iter()
            .map(|request| request.operation.range())
            .collect();
        let mut plan = Plan {
            range_bytes: self.range_bytes(),
            pieces: Vec::with_capacity(requests.len()),
            owners: Vec::with_capacity(requests.len()),
            flushed: Vec::new(),
        };
        for (owner, request) in requests.iter_mut().enumerate() {
            if let Err(error) = plan.add(owner, &mut request.operation) {
                results[owner] = Err(error);
            }
        }
        let Plan {
            mut pieces,
            owners,
            flushed,
            ..
        } = plan;
        let ended = self.image.handle().run(&mut pieces, DEPTH_MAX);
        drop(pieces);
        for (owner, result) in owners.into_iter().zip(ended) {
            let first = std::mem::replace(&mut results[owner], Ok(()));
            results[owner] = first.and(result);
        }
        if !flushed.is_empty() {
            let flush = self.flush_now();
            for owner in flushed {
                let result = flush.clone().map_err(Error::caused_by);
                results[owner] = std::mem::replace(&mut results[owner], Ok(())).and(result);
            }
        }
        for ((request, result), range) in requests.iter_mut().zip(results).zip(ranges) {
            request.complete(self.result_of(range, result));
        }
    }

    /// The result of a request, given what librbd says: it cuts a request at the end of an image
    /// that another client has made smaller.
    fn result_of(&self, range: Option<ByteRange>, result: Result<()>) -> Result<()> {
        let Some(range) = range else { return result };
        let size = self.image.size()?;
        if range.end() > size {
            return Err(Error::new(ErrorKind::Io)
                .detail(format!(
                    "another client has made the image smaller, it has {size} bytes"
                ))
                .in_range(range)
                .at(self.image.place()));
        }
        result.map_err(|error| self.image.explain(error).in_range(range))
    }

    /// Bytes of a request without data, in whole stripes where these are smaller.
    fn range_bytes(&self) -> u64 {
        let stripe = self.image.stripe_bytes();
        (RANGE_BYTES_MAX / stripe * stripe).max(stripe.min(RANGE_BYTES_MAX))
    }

    fn flush_now(&self) -> Result<()> {
        let mut failed = self.failed_flush.lock();
        if let Some(error) = &*failed {
            return Err(error.clone());
        }
        let [result] = self
            .image
            .handle()
            .run(&mut [Piece::Other(Aio::Flush)], 1)
            .try_into()
            .expect("one result for one request");
        result.map_err(|error| {
            let error =
                self.image.explain(error).during("flush").advice(
                    "what was written since the last flush is in doubt; open the image again",
                );
            *failed = Some(error.clone());
            error
        })
    }
}

/// The requests of a batch, as librbd gets them.
struct Plan<'a, 'r> {
    range_bytes: u64,
    pieces: Vec<Piece<'r, 'a>>,
    /// The request of each piece.
    owners: Vec<usize>,
    /// Requests that a flush afterwards completes.
    flushed: Vec<usize>,
}

impl<'a, 'r> Plan<'a, 'r> {
    fn add(&mut self, owner: usize, operation: &'r mut Operation<'a>) -> Result<()> {
        match operation {
            Operation::Read { offset, into } => self.push(owner, Piece::Read(*offset, into)),
            Operation::Write {
                offset,
                from,
                persistence,
            } => {
                self.push(owner, Piece::Write(*offset, from));
                self.persist(owner, *persistence);
            }
            Operation::Flush => self.flushed.push(owner),
            Operation::Discard(range) => {
                for part in range.chunks(self.range_bytes) {
                    self.push(owner, Piece::Other(Aio::Discard(part)));
                }
            }
            Operation::WriteZeroes(range, zeroing) => {
                let thick = zeroing.space != ZeroedSpace::MayUnmap;
                for range in range.chunks(self.range_bytes) {
                    self.push(owner, Piece::Other(Aio::Zeroes { range, thick }));
                }
                self.persist(owner, zeroing.persistence);
            }
            Operation::Assign(_) => {
                return Err(Error::new(ErrorKind::Unsupported)
                    .detail("RBD reserves no space without writing it"));
            }
        }
        Ok(())
    }

    fn push(&mut self, owner: usize, piece: Piece<'r, 'a>) {
        self.pieces.push(piece);
        self.owners.push(owner);
    }

    fn persist(&mut self, owner: usize, persistence: Persistence) {
        if persistence == Persistence::Fua {
            self.flushed.push(owner);
        }
    }
}

impl Device for RbdDevice {
    fn geometry(&self) -> Geometry {
        Geometry {
            size: self.size.load(Ordering::Relaxed),
            ..self.geometry.clone()
        }
    }

    fn refresh(&self) -> Result<u64> {
        let block = u64::from(self.geometry.logical_block);
        let size = self.image.size()? / block * block;
        self.size.store(size, Ordering::Relaxed);
        Ok(size)
    }

    fn grow(&self, size: u64) -> Result<()> {
        if size <= self.geometry().size {
            return Ok(());
        }
        if self.geometry.features.contains(Features::READ_ONLY) {
            return Err(Error::new(ErrorKind::ReadOnly).at(self.image.place()));
        }
        self.image.resize(size, false, &|_, _| {})?;
        self.refresh().map(drop)
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        submit_within(&self.geometry(), requests, |requests| {
            self.execute(requests)
        });
    }

    fn run_stream(&self, stream: &mut dyn TransferStream) -> bool {
        match Streamed::new(self, stream) {
            Ok(mut streamed) => {
                streamed.run();
                true
            }
            // Out of descriptors.
            Err(_) => false,
        }
    }

    /// By objects that exist, here or in a parent.
    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()> {
        let admitted = self.geometry().admit_status(range);
        admitted.map_err(|error| error.at(self.image.place()))?;
        for window in range.chunks(STATUS_OBJECTS * self.image.stripe_bytes()) {
            let mut at = window.start();
            let mut step = |to: u64, status| {
                let part = ByteRange::new(at, to.max(at));
                at = part.end();
                if part.is_empty() {
                    ControlFlow::Continue(())
                } else {
                    visit(part, status)
                }
            };
            for data in self.image.data_in(window, ObjectDetail::Objects)? {
                if step(data.start(), RangeStatus::Hole).is_break()
                    || step(data.end(), RangeStatus::Data).is_break()
                {
                    return Ok(());
                }
            }
            if step(window.end(), RangeStatus::Hole).is_break() {
                return Ok(());
            }
        }
        Ok(())
    }
}

impl fmt::Debug for RbdDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RbdDevice({})", Path::new(self.image.place()).display())
    }
}
