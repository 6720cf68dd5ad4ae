//! Certificates, and whether clients must use and have them.
//!
//! Pre-shared keys are refused: rustls supports none from outside a session.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use extant_nbd::certificates::{chain, key, unusable};
use extant_space::{Error, ErrorKind, Result};
use rustls::crypto::ring;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

/// Whether a client may do without TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsRequirement {
    /// It learns nothing before TLS is on.
    Required,
    /// It may.
    Optional,
}

/// Whether a client must show a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCertificates {
    /// It is not asked for one.
    NotAsked,
    /// It must have one by the authority in `ca-cert.pem`.
    Required,
}

/// The server's side of TLS.
#[derive(Clone)]
pub struct Tls {
    pub(crate) config: Arc<ServerConfig>,
    pub(crate) requirement: TlsRequirement,
}

impl Tls {
    /// Reads `server-cert.pem`, `server-key.pem` and, for client certificates, `ca-cert.pem` from
    /// `directory`, the names that QEMU and libnbd use.
    ///
    /// # Errors
    /// - errors of reading;
    /// - `InvalidArgument` for an invalid certificate or key, or if they do not match;
    /// - `Unsupported` if there are only pre-shared keys (`keys.psk`).
    pub fn from_directory(
        directory: impl AsRef<Path>,
        clients: ClientCertificates,
        requirement: TlsRequirement,
    ) -> Result<Self> {
        let directory = directory.as_ref();
        let certificate = directory.join("server-cert.pem");
        if !certificate.exists() && directory.join("keys.psk").exists() {
            return Err(Error::new(ErrorKind::Unsupported)
                .detail("TLS with pre-shared keys is not supported")
                .advice("use certificates: server-cert.pem, server-key.pem, ca-cert.pem")
                .at(directory.join("keys.psk")));
        }
        let own_chain = chain(&certificate)?;
        let own_key = key(&directory.join("server-key.pem"))?;
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(&certificate, error))?;
        let builder = match clients {
            ClientCertificates::NotAsked => builder.with_no_client_auth(),
            ClientCertificates::Required => {
                let authority = directory.join("ca-cert.pem");
                let mut roots = RootCertStore::empty();
                for certificate in chain(&authority)? {
                    roots
                        .add(certificate)
                        .map_err(|error| unusable(&authority, error))?;
                }
                let provider = Arc::new(ring::default_provider());
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                        .build()
                        .map_err(|error| unusable(&authority, error))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let config = builder
            .with_single_cert(own_chain, own_key)
            .map_err(|error| unusable(&certificate, error))?;
        Ok(Self {
            config: Arc::new(config),
            requirement,
        })
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tls({:?})", self.requirement)
    }
}
