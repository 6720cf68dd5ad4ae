//! Certificates and keys in PEM files, for both sides of TLS.

use std::fmt;
use std::path::Path;

use extant_space::{Error, ErrorKind, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The certificates of a file, at least one.
///
/// # Errors
/// Those of reading; `InvalidArgument` without a certificate, or for an invalid one.
pub fn chain(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let pem = read(path)?;
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|error| unusable(path, error))?;
    if certificates.is_empty() {
        return Err(unusable(path, "no certificate in it"));
    }
    Ok(certificates)
}

/// The private key of a file.
///
/// # Errors
/// Those of reading; `InvalidArgument` without a key, or for an invalid one.
pub fn key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_slice(&read(path)?).map_err(|error| unusable(path, error))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|source| Error::from(source).during("read").at(path))
}

/// The error of a file that TLS cannot use.
pub fn unusable(path: &Path, why: impl fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidArgument)
        .detail(format!("unusable for TLS: {why}"))
        .at(path)
}
