//! A device that can be stopped: nothing changes it afterwards.
//!
//! Model: a batch with changes holds a shared lock while the device below runs it, and the stop
//! takes the lock alone. So a change has completed when the stop returns, or is refused.
//!
//! Reads pass without the lock, also after the stop.

use std::fs::File;
use std::ops::ControlFlow;
use std::sync::PoisonError;

use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard};
use extant_space::{ByteRange, Error, ErrorKind, Extent, LayerRange, LayerVisitor, Result};

use crate::{Device, Geometry, Operation, RangeStatus, Request};

/// Whether changes pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Stopped,
}

/// A device that refuses changes and flushes with an error of kind `Io` once it is stopped.
pub struct StoppableDevice<D> {
    inner: D,
    state: ShardedLock<State>,
}

impl<D: Device> StoppableDevice<D> {
    /// Passes everything on to `inner` at first.
    pub fn new(inner: D) -> Self {
        Self {
            inner,
            state: ShardedLock::new(State::Running),
        }
    }

    /// Waits for changes in flight and stops the device.
    pub fn stop(&self) {
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = State::Stopped;
    }

    /// The same, with a flush of every change before the stop.
    ///
    /// # Errors
    /// Those of the flush; the device is stopped all the same.
    pub fn flush_and_stop(&self) -> Result<()> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let flushed = match *state {
            State::Running => self.inner.flush(),
            State::Stopped => Ok(()),
        };
        *state = State::Stopped;
        flushed
    }

    /// Holds off a stop.
    fn running(&self) -> Result<ShardedLockReadGuard<'_, State>> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        match *state {
            State::Running => Ok(state),
            State::Stopped => Err(Error::new(ErrorKind::Io).detail("the device was stopped")),
        }
    }
}

impl<D: Device> Device for StoppableDevice<D> {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn refresh(&self) -> Result<u64> {
        self.inner.refresh()
    }

    fn grow(&self, size: u64) -> Result<()> {
        let _running = self.running()?;
        self.inner.grow(size)
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        if requests.iter().all(is_read) {
            return self.inner.submit(requests);
        }
        let error = match self.running() {
            Ok(_running) => return self.inner.submit(requests),
            Err(error) => error,
        };
        for request in requests {
            if is_read(request) {
                self.inner.submit(std::slice::from_mut(request));
            } else {
                request.complete(Err(error.clone()));
            }
        }
    }

    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()> {
        self.inner.status(range, visit)
    }

    fn extents(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        self.inner.extents(range, visit)
    }

    fn visit_layers(
        &self,
        at: LayerRange,
        visit: &mut LayerVisitor<'_>,
    ) -> Result<ControlFlow<()>> {
        self.inner.visit_layers(at, visit)
    }

    fn open_store(&self) -> Result<Option<File>> {
        self.inner.open_store()
    }
}

fn is_read(request: &Request<'_>) -> bool {
    matches!(request.operation, Operation::Read { .. })
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::simulation::{Fault, FaultRule, FaultyDevice};
    use crate::{MemoryDevice, OperationKind, Persistence, Zeroing};

    #[test]
    fn stopped_device_reads_and_refuses_everything_else() {
        let device = StoppableDevice::new(MemoryDevice::new(1 << 20));
        device.write_at(&[1; 512], 0, Persistence::Cached).unwrap();
        device.flush_and_stop().unwrap();
        device.stop();
        let range = ByteRange::new(0, 4096);
        let refused = [
            device.write_at(&[2; 512], 0, Persistence::Cached),
            device.flush(),
            device.discard(range),
            device.write_zeroes(range, Zeroing::ANY),
            device.assign(range).map(drop),
            device.grow(2 << 20),
        ];
        for answer in refused {
            assert_eq!(answer.unwrap_err().kind(), ErrorKind::Io);
        }
        let (mut into, from) = ([0; 512], [3; 512]);
        let mut batch = [
            Request::write(0, &from, Persistence::Cached),
            Request::read(0, &mut into),
        ];
        device.submit(&mut batch);
        let results = batch.map(Request::into_result);
        assert!(matches!(results, [Err(_), Ok(())]));
        assert_eq!(into, [1; 512]);
    }

    #[test]
    fn stop_waits_for_a_write_in_flight() {
        let slow = Fault::Delay {
            least: Duration::from_millis(100),
            most: Duration::from_millis(100),
        };
        let rule = FaultRule::new(slow).on(&[OperationKind::Write]);
        let memory = MemoryDevice::new(1 << 20);
        let device = StoppableDevice::new(FaultyDevice::new(memory, 0, vec![rule]));
        let content = || {
            let mut bytes = vec![0; 4 * 512];
            device.read_at(&mut bytes, 0).unwrap();
            bytes
        };
        thread::scope(|scope| {
            for place in 0..4 {
                let device = &device;
                scope.spawn(move || {
                    let write =
                        |round| device.write_at(&[round; 512], place * 512, Persistence::Cached);
                    (1..=255).take_while(|&round| write(round).is_ok()).count()
                });
            }
            thread::sleep(Duration::from_millis(150));
            device.stop();
            let stopped = content();
            // Longer than the write that one might have begun.
            thread::sleep(Duration::from_millis(150));
            assert_ne!(stopped, vec![0; 4 * 512], "no write was in flight");
            assert!(stopped == content(), "written after the stop");
        });
    }
}
