//! Requests to a file system as bytes, without a kernel: for fuzzing.

use std::fmt;
use std::sync::Arc;

use extant_space::{Error, ErrorKind, Result};

use crate::operations::{Export, Operations};
use crate::options::WriteCache;
use crate::protocol::Body;
use crate::protocol::connection::{Offer, Preferences};
use crate::protocol::reply::Reply;
use crate::serve::{Server, Slot};

/// Memory of a reply.
const REPLY_BYTES: usize = (1 << 20) + 4096;

/// A connection without a transport.
pub struct Wire {
    server: Server,
    slot: Slot,
    reply: Vec<u8>,
    scratch: Vec<u8>,
}

impl Wire {
    /// A connection that a kernel has opened with the body of an `INIT`.
    ///
    /// # Errors
    /// `Unsupported` for an old protocol; `InvalidArgument` for a body that is too short.
    pub fn new(operations: Arc<dyn Operations>, init: &[u8]) -> Result<Self> {
        let malformed = |_| Error::new(ErrorKind::InvalidArgument);
        let offer = Offer::read(Body::new(init)).map_err(malformed)?;
        let preferences = Preferences {
            write_cache: WriteCache::Back,
            export: Export::No,
            over_io_uring: false,
        };
        let server = Server::new(operations, &preferences.agree(&offer)?);
        Ok(Self {
            slot: server.slot(0),
            server,
            reply: vec![0; REPLY_BYTES],
            scratch: Vec::new(),
        })
    }

    /// The reply to a request, if it has one.
    pub fn answer(&mut self, request: &[u8]) -> Option<&[u8]> {
        let reply = Reply::new(&mut self.reply);
        self.server
            .answer(request, &self.slot, reply, &mut self.scratch)
    }

    /// Ends the connection.
    pub fn finish(&self) {
        self.server.finish();
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wire")
    }
}
