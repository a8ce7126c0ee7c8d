//! Takes the address of a manifest, gives its records by number.
//!
//! ```text
//!   s3:// ─► pieces ─┐
//!                    ├─► decompress ─► blocks of 4 MiB ─┬─► cache file (not for a plain local file)
//!   file:// ─────────┘                                  ├─► framing ─► index
//!                                                       └─► digest
//!
//!   record(i) ─► index ─► pread ─► framing ─► bytes
//! ```
//!
//! A manifest is JSON lines or one JSON array; plain, gzip or zstd by its first bytes. One pass finds the records, computes the digest
//! and, unless the file can be read where it lies, writes the decompressed bytes to an unlinked file of the cache folder. Records are
//! read by `pread`, never mapped: a file that somebody truncates is an error here, not a SIGBUS.

/// The one pass over all bytes.
mod open;

/// An object in pieces, in order.
mod download;

/// Compression by the first bytes; decompressed bytes.
mod input;

/// Room in the cache folder.
mod disk;

/// The digest of all bytes.
mod digest;

/// Lines or an array.
mod framing;

/// JSON lines → spans.
mod lines;

/// One JSON array → spans.
mod array;

/// Spans → the place before any record.
mod index;

/// A record by number.
mod read;

/// Neighbouring records, one after another.
mod sequence;

/// What can be wrong.
mod error;

#[cfg(test)]
mod tests;

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Mutex;

use index::Index;

use crate::table::RowCache;
use crate::uri::ObjectUri;

pub use digest::BLOCK_BYTES;
pub use disk::DiskBudget;
pub(crate) use disk::DiskLease;
pub use error::{ManifestError, RecordReadError};
pub use sequence::Records;

/// Where manifests may be kept, and how long a record may be.
#[derive(Clone, Debug)]
pub struct ManifestSettings {
    /// Folder for decompressed copies. They are unlinked at once, so nothing is left behind, whatever ends the program.
    pub cache_dir: PathBuf,
    /// A longer record is bad. Part of the data's definition, because it decides which records are bad.
    pub max_line_bytes: u64,
    /// Room in `cache_dir`, shared by all manifests.
    pub disk: DiskBudget,
    /// Decoded rows of Parquet files, in what room manifests leave.
    pub rows: RowCache,
}

impl ManifestSettings {
    /// Records of at most 16 MiB, `max_disk_bytes` for all manifests opened with (clones of) these settings.
    #[must_use]
    pub fn new(cache_dir: PathBuf, max_disk_bytes: u64) -> Self {
        let disk = DiskBudget::new(max_disk_bytes);
        let rows = RowCache::new(cache_dir.clone(), &disk);
        Self { cache_dir, max_line_bytes: 16 << 20, disk, rows }
    }
}

/// How a manifest is compressed, told by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    Plain,
    /// One or more gzip members.
    Gzip,
    /// One or more zstd frames.
    Zstd,
}

/// How records stand in a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// One record a line. Split at `\n` alone; lines of nothing but spaces, tabs and `\r` are no records.
    Lines,
    /// The elements of one JSON array, however its lines are broken.
    JsonArray,
}

/// How far opening has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes read as they are stored.
    pub input_bytes: u64,
    /// Bytes as they are stored, in all.
    pub input_total: u64,
    /// Bytes after decompression.
    pub bytes: u64,
    /// Records found.
    pub records: u64,
}

/// One record as it stands in the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its bytes: a line without its end (`\n` or `\r\n`), or an element of the array.
    pub bytes: Vec<u8>,
    /// 1-based physical line where it begins, blank lines counted, as an editor shows it.
    pub line: u64,
    /// Byte where it begins in the decompressed manifest.
    pub offset: u64,
}

/// An opened, indexed manifest.
#[derive(Debug)]
pub struct Manifest {
    uri: ObjectUri,
    file: File,
    /// States of `file` that are known: that in which it was indexed, at first.
    stamps: Mutex<Stamps>,
    /// Held by whoever reads all of it to see whether it changed.
    verifying: Mutex<()>,
    bytes: u64,
    compression: Compression,
    framing: Framing,
    digest: [u8; 32],
    index: Index,
    max_line_bytes: u64,
    /// Room of the copy, given back on drop; of size 0 for a file read in place.
    _disk: disk::DiskLease,
}

impl Manifest {
    /// Number of records: lines that are not blank, or elements. Whether a record is usable is found when it is used.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.index.len()
    }

    /// Whether there is no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Digest of the decompressed bytes; the same for a plain and a compressed copy. See [`BLOCK_BYTES`] for its definition.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// Bytes after decompression.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How it is compressed.
    #[must_use]
    pub fn compression(&self) -> Compression {
        self.compression
    }

    /// How its records stand.
    #[must_use]
    pub fn framing(&self) -> Framing {
        self.framing
    }

    /// Where it came from.
    #[must_use]
    pub fn uri(&self) -> &ObjectUri {
        &self.uri
    }

    /// Memory of the index in bytes.
    #[must_use]
    pub fn index_bytes(&self) -> usize {
        self.index.heap_bytes()
    }
}

/// States of a file whose bytes were looked at.
#[derive(Clone, Copy, Debug)]
struct Stamps {
    /// The last in which it had the bytes that were indexed.
    good: Stamp,
    /// The last in which it had others, or was being written to; none since it was good again.
    bad: Option<Stamp>,
}

/// What shows that a file was written to, or only touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    size: u64,
    seconds: i64,
    nanoseconds: i64,
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self { size: metadata.len(), seconds: metadata.mtime(), nanoseconds: metadata.mtime_nsec() }
    }
}
