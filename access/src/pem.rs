//! Takes PEM, gives certificates and keys.

use std::path::Path;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::error::AccessError;

/// All certificates of a file, at least one.
pub(crate) fn certificates(path: &Path, bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, AccessError> {
    let none = |hint| AccessError::Pem { path: path.to_owned(), what: "certificate", hint };
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
    match parsed {
        Ok(parsed) if !parsed.is_empty() => Ok(parsed),
        Ok(_) => Err(none("; it should have a part that begins with -----BEGIN CERTIFICATE-----")),
        Err(_) => Err(none(": a part of it is damaged; is it written only half?")),
    }
}

/// The one private key of a file.
pub(crate) fn key(path: &Path, bytes: &[u8]) -> Result<PrivateKeyDer<'static>, AccessError> {
    PrivateKeyDer::from_pem_slice(bytes).map_err(|_| AccessError::Pem {
        path: path.to_owned(),
        what: "private key",
        hint: ": an unencrypted one is needed, in a part that ends with PRIVATE KEY-----",
    })
}
