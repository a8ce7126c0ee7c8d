//! What is wrong with a file of tokens or certificates. No message carries what stands in the file.

use std::path::PathBuf;

use crate::file::chain;
use crate::token::TokenError;

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// It cannot be read.
    #[error("cannot read the file {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// It is no such file.
    #[error("the file {} has more than {limit} bytes; is it the right one?", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The most that is read.
        limit: u64,
    },
    /// It holds no tokens.
    #[error("the token file {} cannot be used", path.display())]
    Tokens {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: TokenError,
    },
    /// A token that was given in words.
    #[error("the token that was given cannot be used")]
    Token(#[from] TokenError),
    /// It holds no certificates or no key.
    #[error("the file {} has no {what} in PEM{hint}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// What was looked for.
        what: &'static str,
        /// What may be the matter.
        hint: &'static str,
    },
    /// Certificate and key do not make a server.
    #[error("certificate {} and key {} cannot be used together: {reason}", certificate.display(), key.display())]
    Pair {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What the TLS library said.
        reason: String,
    },
    /// A certificate of an authority that is none.
    #[error("the file {} has a certificate that cannot be trusted: {reason}", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// What the TLS library said.
        reason: String,
    },
    /// Somebody is asked over TLS, and this machine trusts nobody.
    #[error("this machine has no certificates of authorities ({reason}); name a file of them with {setting}")]
    NoAuthorities {
        /// Where a file is named.
        setting: &'static str,
        /// What was tried.
        reason: String,
    },
    /// The TLS library refuses its own settings.
    #[error("TLS cannot be set up: {0}")]
    Tls(String),
}

impl AccessError {
    /// The error and its sources in one line.
    #[must_use]
    pub fn words(&self) -> String {
        chain(self)
    }
}
