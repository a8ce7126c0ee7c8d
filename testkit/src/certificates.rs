//! An authority that signs whatever a test needs.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair,
    date_time_ymd,
};

/// An authority with a folder for what it makes.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: tempfile::TempDir,
}

/// Files of a certificate and its key.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// The chain, PEM.
    pub certificate: PathBuf,
    /// The key, PEM.
    pub key: PathBuf,
}

/// When a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// Now.
    Now,
    /// No longer.
    Past,
    /// Not yet.
    Future,
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl Authority {
    /// A new one, which nobody else trusts.
    #[must_use]
    pub fn new() -> Self {
        let mut params = params("feedmill test authority", &[], Validity::Now);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, folder }
    }

    /// The file of its certificate.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// A certificate for these names and addresses, signed by it, in files that begin with `what`.
    #[must_use]
    pub fn sign(&self, what: &str, names: &[&str], validity: Validity) -> Certificate {
        let key = KeyPair::generate().unwrap();
        let signed = params(what, names, validity).signed_by(&key, &self.issuer).unwrap();
        write(self.folder.path(), what, &signed.pem(), &key)
    }

    /// A certificate that only itself vouches for.
    #[must_use]
    pub fn self_signed(&self, what: &str, names: &[&str]) -> Certificate {
        let key = KeyPair::generate().unwrap();
        let signed = params(what, names, Validity::Now).self_signed(&key).unwrap();
        write(self.folder.path(), what, &signed.pem(), &key)
    }
}

fn params(what: &str, names: &[&str], validity: Validity) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, what);
    let (from, to) = match validity {
        Validity::Now => (2000, 3000),
        Validity::Past => (2000, 2001),
        Validity::Future => (2999, 3000),
    };
    params.not_before = date_time_ymd(from, 1, 1);
    params.not_after = date_time_ymd(to, 1, 1);
    params
}

fn write(folder: &Path, what: &str, certificate: &str, key: &KeyPair) -> Certificate {
    let at = |end: &str| folder.join(format!("{what}{end}"));
    let files = Certificate { certificate: at(".pem"), key: at("-key.pem") };
    std::fs::write(&files.certificate, certificate).unwrap();
    std::fs::write(&files.key, key.serialize_pem()).unwrap();
    files
}
