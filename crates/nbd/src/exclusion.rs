//! Exclusion of other writers of an export on this host.
//!
//! NBD has no locks. A client that writes binds a socket in the abstract namespace, whose name is
//! derived from the URI; the kernel frees it when the process ends. Clients on other hosts, in
//! other network namespaces, or that name the export by another URI are not excluded.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use extant_space::{Error, ErrorKind, Result};
use extant_sys::process;

use crate::uri::{NbdTransport, NbdUri};

/// The right to write to an export, until it is dropped.
pub(crate) struct Writer {
    _name: UnixListener,
}

impl Writer {
    /// Of a URI with an absolute path.
    ///
    /// # Errors
    /// `InUse` if another client of this host writes to the export.
    pub(crate) fn of(uri: &NbdUri) -> Result<Self> {
        let mut hasher = DefaultHasher::new();
        match uri.transport() {
            NbdTransport::Unix(path) => path.hash(&mut hasher),
            NbdTransport::Tcp { host, port } => (host, port).hash(&mut hasher),
        }
        uri.export().hash(&mut hasher);
        let name = format!("extant-nbd-writer-{:016x}", hasher.finish());
        let name = SocketAddr::from_abstract_name(name)?;
        match UnixListener::bind_addr(&name) {
            Ok(name) => Ok(Self { _name: name }),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                let writer = UnixStream::connect_addr(&name).ok();
                let who = writer.and_then(|writer| process::peer(&writer));
                let who = who.unwrap_or_else(|| "another process of this host".to_owned());
                Err(Error::new(ErrorKind::InUse).detail(format!("{who} writes to the export")))
            }
            Err(error) => Err(error.into()),
        }
    }
}
