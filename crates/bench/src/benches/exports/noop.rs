//! A device that answers at once and moves no data, behind our vhost-user server: the floor of the
//! transport.
//!
//! The bench program starts itself for this, so that the server is a separate process.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use extant_blockdev::{
    Access, Device, Features, Geometry, Limits, RangeStatus, Request, TransferStream,
};
use extant_space::{ByteRange, Result as DeviceResult};
use extant_vhost::{Server, ServerOptions, Volume};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// The server's word on the command line.
pub(crate) const WORD: &str = "__vhost_noop";

/// Serves a device of `size` bytes at `socket` until a signal arrives.
pub(crate) fn serve(socket: &Path, size: u64) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let volume = Volume::new("noop", Arc::new(Noop { size }), Access::ReadWrite);
    let server = Server::listen(volume, socket, ServerOptions::default())?;
    signals.forever().next();
    server.shutdown(Duration::from_secs(1))?;
    Ok(())
}

/// The device.
struct Noop {
    size: u64,
}

impl Device for Noop {
    fn geometry(&self) -> Geometry {
        Geometry {
            size: self.size,
            logical_block: 512,
            physical_block: 4096,
            limits: Limits::NONE,
            features: Features::empty(),
        }
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        for request in requests {
            request.complete(Ok(()));
        }
    }

    fn run_stream(&self, stream: &mut dyn TransferStream) -> bool {
        while let Some(transfer) = stream.next() {
            stream.ended(transfer, Ok(()));
        }
        true
    }

    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> DeviceResult<()> {
        let _ = visit(range, RangeStatus::Data);
        Ok(())
    }
}
