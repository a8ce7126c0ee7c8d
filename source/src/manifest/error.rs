//! What can be wrong with a manifest as a whole, and with one record of it.

use std::io;
use std::path::PathBuf;

use crate::error::FetchError;
use crate::uri::ObjectUri;

/// Why a manifest cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// The store gave no bytes; [`FetchError`] says whether asking again later makes sense.
    #[error("cannot read the manifest {uri}")]
    Fetch {
        /// Which manifest.
        uri: ObjectUri,
        /// Why.
        #[source]
        source: Box<FetchError>,
    },
    /// A copy could not be written.
    #[error(
        "cannot write a copy of the manifest {uri} to {}; it needs room for all of it, decompressed; --cache-dir of a worker, or TMPDIR, names \
         another folder", folder.display()
    )]
    Copy {
        /// Which manifest.
        uri: ObjectUri,
        /// Where to.
        folder: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The local file failed.
    #[error("cannot read the manifest {uri}")]
    Io {
        /// Which manifest.
        uri: ObjectUri,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Broken or cut gzip or zstd data.
    #[error("the manifest {uri} is damaged: decompression fails after {offset} decompressed bytes")]
    Damaged {
        /// Which manifest.
        uri: ObjectUri,
        /// Decompressed bytes before the damage.
        offset: u64,
        /// The decompressor's words.
        #[source]
        source: io::Error,
    },
    /// Another format, known by its first bytes.
    #[error(
        "the manifest {uri} is {found}, not JSON lines or a JSON array (plain, gzip or zstd): convert it"
    )]
    Format {
        /// Which manifest.
        uri: ObjectUri,
        /// What it is.
        found: &'static str,
    },
    /// The one JSON array that the manifest should be is broken.
    #[error("the JSON array in the manifest {uri} is broken at byte {offset}, line {line}: {what}")]
    BrokenArray {
        /// Which manifest.
        uri: ObjectUri,
        /// Byte in the decompressed manifest.
        offset: u64,
        /// 1-based line of that byte.
        line: u64,
        /// What stands there or is missing.
        what: &'static str,
    },
    /// Decompressed, it needs more room than the cache has.
    #[error(
        "the manifest {uri} needs more than {needed} bytes of the manifest cache, which has {limit} bytes, {used} of them used by \
         others: raise cache.disk"
    )]
    CacheFull {
        /// Which manifest.
        uri: ObjectUri,
        /// What it needs at least, all of it, decompressed.
        needed: u64,
        /// Size of the cache.
        limit: u64,
        /// Used by other manifests.
        used: u64,
    },
    /// It was written to while it was read.
    #[error(
        "the manifest {uri} changed while it was read: manifests must not change, give a new version a new name"
    )]
    Changed {
        /// Which manifest.
        uri: ObjectUri,
    },
    /// Opening was given up, because nobody waits for it.
    #[error("opening the manifest {uri} was given up")]
    Cancelled {
        /// Which manifest.
        uri: ObjectUri,
    },
}

impl ManifestError {
    /// What the store said, when it gave no bytes. A transient error means to open again later.
    #[must_use]
    pub fn fetch_error(&self) -> Option<&FetchError> {
        match self {
            Self::Fetch { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Why a record cannot be had. Only [`RecordReadError::TooLong`] is the record's own fault.
#[derive(Debug, thiserror::Error)]
pub enum RecordReadError {
    /// A bad record: longer than the limit.
    #[error("line {line}, byte {offset}: the record is longer than {limit} bytes")]
    TooLong {
        /// 1-based physical line where it begins.
        line: u64,
        /// Byte where it begins in the decompressed manifest.
        offset: u64,
        /// The limit.
        limit: u64,
    },
    /// The caller asked for a record that the manifest does not have.
    #[error("there is no record {index}: the manifest has {records}")]
    OutOfRange {
        /// 0-based number asked for.
        index: u64,
        /// Records there are.
        records: u64,
    },
    /// The file was written to, or only touched; nobody has looked yet whether its bytes are the same.
    #[error("the manifest {uri} was touched after it was opened")]
    Touched {
        /// Which manifest.
        uri: ObjectUri,
    },
    /// The file is not the one that was indexed. Fatal for the stream: what would be read now is other data.
    #[error(
        "the manifest {uri} changed after it was opened: manifests must not change; put it back, or give a new version a new name and start again"
    )]
    Changed {
        /// Which manifest.
        uri: ObjectUri,
    },
    /// The disk failed.
    #[error("cannot read the manifest {uri} at byte {offset}")]
    Io {
        /// Which manifest.
        uri: ObjectUri,
        /// Byte in the decompressed manifest.
        offset: u64,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl RecordReadError {
    /// Whether the record itself is bad, as part of the data's definition.
    #[must_use]
    pub fn is_bad_record(&self) -> bool {
        matches!(self, Self::TooLong { .. })
    }
}
