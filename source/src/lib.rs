//! Where the data comes from: objects in S3 or on disk, and manifests of records. The only crate that fetches.
//!
//! ```text
//!   reference in a record ──► uri ──► stores ──► throttle ──► s3 | file ──► bytes
//!                                       │                        │
//!                                     stats                  classify: missing, denied, or for now
//!
//!   address of a manifest ──► manifest (open once, index, digest) ──► record(i)
//!   address of Parquet files ──► table (footers, digest) ──► row(i)
//! ```
//!
//! No TLS provider is installed for the process: the S3 client is given ring explicitly.

/// References and addresses → objects, or a refusal.
mod uri;

/// A data set's places of images: references → objects below them.
mod roots;

/// What a person can choose.
mod settings;

/// The loop of attempts: `get`, `head`, `probe`.
mod stores;

/// Objects known to be missing, for a while.
mod missing;

/// Places for requests in flight.
mod throttle;

/// Keys from a folder of files.
mod credentials;

/// One attempt on S3.
mod s3;

/// One attempt on a local file.
mod file;

/// An error of the S3 client → what it means.
mod classify;

/// How long to wait before the next attempt.
mod backoff;

/// Missing or unusable, denied, or for now.
mod error;

/// Counters to export.
mod stats;

/// A file of records → record by number.
mod manifest;

/// Parquet files → row by number.
mod table;

pub use error::{FetchError, PermanentKind, SetupError, TransientKind, with_causes};
pub use manifest::{
    BLOCK_BYTES, Compression, DiskBudget, Framing, Manifest, ManifestError, ManifestSettings, Progress,
    Record, RecordReadError, Records,
};
pub use roots::ImageRoots;
pub use settings::{CredentialsSource, FetchSettings, S3Settings};
pub use stats::{FetchStats, LATENCY_BOUNDS};
pub use stores::{MissingLooksLike, ObjectVersion, Stores};
pub use table::{
    Cell, Cpu, Refusal, RowCache, RowError, RowLimits, RowOutcome, Table, TableError, TableProgress, TableRow,
};
pub use uri::{MAX_KEY_BYTES, ObjectPrefix, ObjectUri, ReferenceError, UriError, resolve_reference};
