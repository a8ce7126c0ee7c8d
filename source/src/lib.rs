//! Where the data comes from: objects in S3 or on disk, and manifests of records. The only crate that fetches.
//!
//! ```text
//!   reference in a record ──► uri ──► stores ──► throttle ──► s3 | file ──► bytes
//!                                       │                        │
//!                                     stats                  classify: missing, denied, or for now
//!
//!   address of a manifest ──► manifest (open once, index, digest) ──► record(i)
//! ```
//!
//! No TLS provider is installed for the process: the S3 client is given ring explicitly.

mod classify;
mod credentials;
mod error;
mod file;
mod manifest;
mod s3;
mod settings;
mod stats;
mod stores;
mod throttle;
mod uri;

pub use error::{FetchError, PermanentKind, SetupError, TransientKind};
pub use manifest::{
    BLOCK_BYTES, Compression, DiskBudget, Framing, Manifest, ManifestError, ManifestSettings,
    Progress, Record, RecordReadError,
};
pub use settings::{CredentialsSource, FetchSettings, S3Settings};
pub use stats::{FetchStats, LATENCY_BOUNDS};
pub use stores::{MissingLooksLike, ObjectVersion, Stores};
pub use uri::{
    MAX_KEY_BYTES, ObjectPrefix, ObjectUri, ReferenceError, UriError, resolve_reference,
};
