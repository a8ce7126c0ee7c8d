//! Takes the address of Parquet files, gives their rows by number.
//!
//! ```text
//!   file, folder or pattern ─► list ─► footers ─► rows of each row group, where each column chunk lies
//!
//!   row(i) ─► row group ─► row cache ─┬──────────────────────────────► columns' entries ─► row
//!                                     └─► page or chunk ─► decode ─► cache ─┘
//! ```
//!
//! Nothing but footers is read at the start. A row is read column by column: the page that holds it where the file has an offset index,
//! else the column chunk, window by window. What is decoded on the way is kept on disk, so that neighbours cost a `pread`.

/// Thrift's compact protocol.
mod thrift;

/// Files by name.
mod list;

/// A footer → row groups.
mod footer;

/// Columns → rows.
mod schema;

/// A column's bytes → a value.
mod cell;

/// A stored page → a page.
mod page;

/// Pages → levels and values.
mod values;

/// A row of one column ↔ bytes.
mod packed;

/// A chunk's bytes → packed rows.
mod decode;

/// Decoded rows on disk.
mod row_cache;

/// A row by number.
mod read;

/// The crate's panics.
mod panics;

/// What can be wrong.
mod error;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use sha2::{Digest as _, Sha256};

use crate::error::FetchError;
use crate::manifest::ManifestSettings;
use crate::stores::{ObjectVersion, Stores};
use crate::uri::ObjectUri;

use footer::{Footer, PagePlace, TAIL_BYTES};

pub use cell::Cell;
pub use error::{Refusal, RowError, TableError};
pub use read::{Cpu, RowLimits, RowOutcome, TableRow};
pub use row_cache::RowCache;

/// Read from the end of a file before anything is known of it. The footer of a file of a hundred row groups fits.
const FIRST_TAIL_BYTES: u64 = 64 << 10;

/// Files whose footers are asked for at once.
const FOOTERS_AT_ONCE: usize = 16;

/// Most pages that offset indexes in memory may have in all: 24 MB.
const MAX_INDEX_PAGES: usize = 1 << 20;

/// Locks, so that what a chunk needs is fetched by one row and waited for by the others.
const LOCKS: usize = 256;

const TAG: &[u8; 24] = b"feedmill table digest 1\n";

/// How far opening has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableProgress {
    /// Footers read.
    pub files: u64,
    /// Files in all.
    pub files_total: u64,
    /// Rows found.
    pub rows: u64,
}

/// Parquet files whose footers are read.
pub struct Table {
    /// Its number in the row cache.
    number: u32,
    files: Vec<TableFile>,
    /// First row of each file, and the number of all rows.
    starts: Vec<u64>,
    digest: [u8; 32],
    cache: RowCache,
    locks: Vec<tokio::sync::Mutex<()>>,
    indexes: Mutex<Indexes>,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Table").field("files", &self.files.len()).field("rows", &self.len()).finish()
    }
}

/// One file.
#[derive(Debug)]
struct TableFile {
    uri: ObjectUri,
    /// The state in which its footer was read. Later reads of another state are refused.
    version: ObjectVersion,
    footer: Footer,
    /// First row of each row group, and the number of all rows of the file.
    starts: Vec<u64>,
    digest: [u8; 32],
    footer_bytes: u64,
}

/// Offset indexes read so far, the oldest first.
#[derive(Default)]
struct Indexes {
    known: HashMap<(u32, u32, u32), Arc<Vec<PagePlace>>>,
    order: VecDeque<(u32, u32, u32)>,
    pages: usize,
}

impl Table {
    /// Lists the files and reads their footers, and nothing else of them. `uri` is a file, a folder that ends in `/` (its files that
    /// end in `.parquet`), or a file whose last part has `*`. Files stand in the order of their names, byte by byte. Of each file the
    /// top-level columns are read whose name `wanted` accepts.
    ///
    /// Memory is about 100 bytes for each column chunk that is read, and for a moment the largest footer and what the crate makes of it.
    ///
    /// # Errors
    /// See [`TableError`]. [`TableError::Fetch`] may hold a transient error: open again later.
    pub async fn open(
        stores: &Stores,
        uri: &str,
        wanted: impl Fn(&str) -> bool,
        settings: &ManifestSettings,
        progress: impl Fn(TableProgress),
    ) -> Result<Self, TableError> {
        let uris = list::files(stores, uri).await?;
        if uris.is_empty() {
            return Err(TableError::NoFiles { uri: uri.to_owned() });
        }
        let mut done = TableProgress { files_total: uris.len() as u64, ..TableProgress::default() };
        let footers = stream::iter(uris.into_iter().map(|uri| fetch_footer(stores, uri)));
        let mut footers = std::pin::pin!(footers.buffered(FOOTERS_AT_ONCE));
        let (mut files, mut starts) = (Vec::new(), vec![0u64]);
        while let Some((uri, version, bytes)) = footers.try_next().await? {
            let file = TableFile::new(uri, version, &bytes, &wanted)?;
            let rows = file.starts.last().copied().unwrap_or(0);
            let all =
                starts.last().copied().unwrap_or(0).checked_add(rows).ok_or_else(|| TableError::File {
                    uri: file.uri.clone(),
                    source: Refusal::Footer { what: "there are more rows than can be counted".into() },
                })?;
            starts.push(all);
            files.push(file);
            done.files += 1;
            done.rows = all;
            progress(done);
        }
        let mut digest = Sha256::new();
        digest.update(TAG);
        for file in &files {
            digest.update(file.version.size.to_le_bytes());
            digest.update(file.footer_bytes.to_le_bytes());
            digest.update(file.digest);
        }
        let cache = settings.rows.clone();
        Ok(Self {
            number: cache.table(),
            files,
            starts,
            digest: digest.finalize().into(),
            cache,
            locks: (0..LOCKS).map(|_| tokio::sync::Mutex::new(())).collect(),
            indexes: Mutex::default(),
        })
    }

    /// A row as the first file's footer describes it: every column has a value of its type, lists have one element. Tells what records
    /// look like before any of them is read. A column that cannot be read is null.
    ///
    /// # Errors
    /// As [`Table::open`].
    pub async fn example(stores: &Stores, uri: &str) -> Result<Vec<(String, Cell)>, TableError> {
        let uris = list::files(stores, uri).await?;
        let first = uris.into_iter().next().ok_or_else(|| TableError::NoFiles { uri: uri.to_owned() })?;
        let (uri, _, bytes) = fetch_footer(stores, first).await?;
        footer::example(&bytes).map_err(|source| TableError::File { uri, source })
    }

    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Whether there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of files.
    #[must_use]
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// SHA-256 of: the 24 bytes `feedmill table digest 1\n`, then for each file in order its length as u64 little-endian, its footer's
    /// length as u64 little-endian, and the SHA-256 of its footer (the Thrift bytes, without their length and `PAR1`).
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// Names of the top-level columns that are read, of all files, in the order in which they are first met.
    #[must_use]
    pub fn columns(&self) -> Vec<&str> {
        let mut names = Vec::new();
        for name in self.files.iter().flat_map(|file| file.footer.schema.names()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// The file that holds the row with the 0-based number `index`, and the row's 0-based number there.
    #[must_use]
    pub fn place(&self, index: u64) -> Option<(&ObjectUri, u64)> {
        let (number, row) = find(&self.starts, index)?;
        self.files.get(number).map(|file| (&file.uri, row))
    }

    /// Bytes of the largest column chunk without an offset index: what the first row of it costs, whichever row is asked for.
    #[must_use]
    pub fn largest_chunk_without_index(&self) -> u64 {
        let groups = self.files.iter().flat_map(|file| &file.footer.groups);
        let chunks = groups.flat_map(|group| &group.chunks).filter(|chunk| chunk.index.is_none());
        chunks.map(|chunk| chunk.bytes.end - chunk.bytes.start).max().unwrap_or(0)
    }
}

impl TableFile {
    fn new(
        uri: ObjectUri,
        version: ObjectVersion,
        bytes: &[u8],
        wanted: &impl Fn(&str) -> bool,
    ) -> Result<Self, TableError> {
        let refused = |source| TableError::File { uri: uri.clone(), source };
        let footer = footer::read(bytes, version.size, wanted).map_err(refused)?;
        if footer.schema.leaves.is_empty() {
            return Err(refused(Refusal::NoColumns));
        }
        let mut starts = vec![0u64];
        for group in &footer.groups {
            let all = starts.last().copied().unwrap_or(0).checked_add(group.rows);
            let what = "it says that it has more rows than can be counted".to_owned();
            starts.push(all.ok_or_else(|| refused(Refusal::Footer { what }))?);
        }
        let (digest, footer_bytes) = (Sha256::digest(bytes).into(), bytes.len() as u64);
        Ok(Self { uri, version, footer, starts, digest, footer_bytes })
    }
}

/// The part that holds `index`, by the first index of each part and the end of the last; and the place in that part.
fn find(starts: &[u64], index: u64) -> Option<(usize, u64)> {
    if index >= starts.last().copied().unwrap_or(0) {
        return None;
    }
    // Parts without rows begin where the next one begins.
    let part = starts.partition_point(|start| *start <= index).checked_sub(1)?;
    Some((part, index - starts.get(part)?))
}

async fn fetch_footer(
    stores: &Stores,
    uri: ObjectUri,
) -> Result<(ObjectUri, ObjectVersion, bytes::Bytes), TableError> {
    let failed = |source: FetchError| TableError::Fetch { uri: uri.to_string(), source: Box::new(source) };
    let refused = |source| TableError::File { uri: uri.clone(), source };
    let version = stores.head(&uri).await.map_err(failed)?;
    let size = version.size;
    if size < TAIL_BYTES + 4 {
        return Err(refused(Refusal::NotParquet));
    }
    let start = size.saturating_sub(FIRST_TAIL_BYTES);
    let tail = stores.get_range(&uri, start..size, &version).await.map_err(failed)?;
    let length = footer::footer_length(&tail, size).map_err(refused)?;
    let begin = size - TAIL_BYTES - length;
    let bytes = if begin >= start {
        // Within the tail, so within a slice's length.
        tail.slice((begin - start) as usize..tail.len() - TAIL_BYTES as usize)
    } else {
        stores.get_range(&uri, begin..size - TAIL_BYTES, &version).await.map_err(failed)?
    };
    Ok((uri, version, bytes))
}
