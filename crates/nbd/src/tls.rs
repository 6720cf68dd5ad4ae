//! The client's side of TLS: certificates by the names that QEMU and libnbd use.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use extant_space::{Error, ErrorKind, Result};
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::certificates::{chain, key, unusable};
use crate::uri::{NbdTls, NbdTransport};

/// The name that a server at a Unix socket must have, unless `tls-hostname` says another.
const LOCAL_NAME: &str = "localhost";

/// Certificates of a client, and the name of the server.
pub(crate) struct ClientTls {
    config: Arc<ClientConfig>,
    server: ServerName<'static>,
}

impl ClientTls {
    /// Reads `ca-cert.pem` and, if present, `client-cert.pem` and `client-key.pem`.
    ///
    /// # Errors
    /// Those of reading; `InvalidArgument` for unusable files or names, `NotFound` without a
    /// directory.
    pub(crate) fn new(tls: &NbdTls, transport: &NbdTransport) -> Result<Self> {
        let directory = match &tls.certificates {
            Some(directory) => directory.clone(),
            None => default_directory()?,
        };
        let authority = directory.join("ca-cert.pem");
        let mut roots = RootCertStore::empty();
        for certificate in chain(&authority)? {
            roots
                .add(certificate)
                .map_err(|error| unusable(&authority, error))?;
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(&authority, error))?
            .with_root_certificates(roots);
        let certificate = directory.join("client-cert.pem");
        let config = if certificate.exists() {
            let key_path = directory.join("client-key.pem");
            builder
                .with_client_auth_cert(chain(&certificate)?, key(&key_path)?)
                .map_err(|error| unusable(&certificate, error))?
        } else {
            builder.with_no_client_auth()
        };
        let name = match (&tls.hostname, transport) {
            (Some(name), _) => name,
            (None, NbdTransport::Tcp { host, .. }) => host,
            (None, NbdTransport::Unix(_)) => LOCAL_NAME,
        };
        let server = ServerName::try_from(name.to_owned()).map_err(|_| {
            Error::new(ErrorKind::InvalidArgument)
                .detail(format!("no name that a certificate can have: {name:?}"))
        })?;
        Ok(Self {
            config: Arc::new(config),
            server,
        })
    }

    pub(crate) fn connection(&self) -> Result<ClientConnection, rustls::Error> {
        ClientConnection::new(self.config.clone(), self.server.clone())
    }
}

/// The first directory with an authority, of those that libnbd searches.
fn default_directory() -> Result<PathBuf> {
    let home = env::var_os("HOME").map(PathBuf::from);
    let own = home.iter().flat_map(|home| {
        let of_home = [".pki/libnbd", ".config/pki/libnbd"];
        of_home.map(|directory| home.join(directory))
    });
    let system = Path::new("/etc/pki/libnbd").to_path_buf();
    own.chain([system])
        .find(|directory| directory.join("ca-cert.pem").exists())
        .ok_or_else(|| {
            Error::new(ErrorKind::NotFound)
                .detail("no ca-cert.pem to verify the server with")
                .advice("name its directory: ?tls-certificates=DIRECTORY")
        })
}
