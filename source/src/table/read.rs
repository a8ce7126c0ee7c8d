//! Takes the number of a row, gives the row: from the cache, or from the pages that hold it.

use std::future::Future;
use std::ops::Range;
use std::sync::{Arc, PoisonError};

use bytes::{Bytes, BytesMut};

use super::cell::Cell;
use super::decode::{Damage, Decoder, Progress, Wanted};
use super::error::RowError;
use super::footer::{Chunk, PagePlace, offset_index};
use super::packed::entries;
use super::row_cache::{ChunkKey, Piece};
use super::schema::Schema;
use super::{MAX_INDEX_PAGES, Table, TableFile, find};
use crate::stores::Stores;

/// A column chunk that is not longer is read whole, whatever index there is: one request, and every row of it is at hand. An eighth of the
/// limit where that is less.
pub(super) const WHOLE_BYTES: u64 = 2 << 20;

/// A longer chunk without an index is read in windows of this many bytes, or an eighth of the limit where that is less.
const WINDOW_BYTES: u64 = 4 << 20;

/// Where decoding runs.
pub trait Cpu: Sync {
    /// Runs `work` elsewhere and waits for it; an error says why it did not run.
    fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = Result<T, String>> + Send;
}

/// What makes a row bad, and what it may take.
#[derive(Clone, Copy, Debug)]
pub struct RowLimits {
    /// Bytes of a row, and of a page with all that decoding it takes; more is bad. Part of the data's definition.
    pub bytes: u64,
    /// Bytes that this call may take.
    pub room: u64,
}

impl RowLimits {
    /// No call needs more room than this, whatever the file says: a row, a page, and what is fetched beyond it.
    #[must_use]
    pub fn most(bytes: u64) -> u64 {
        bytes.saturating_mul(2)
    }

    /// Enough room for usual rows: the windows beside a page, and as much again for the page and the row.
    /// [`RowOutcome::NeedsRoom`] tells when it is not.
    #[must_use]
    pub fn usual(bytes: u64) -> u64 {
        Self { bytes, room: 0 }.window().saturating_mul(4).min(Self::most(bytes))
    }

    fn whole(&self) -> u64 {
        WHOLE_BYTES.min(self.bytes / 8)
    }

    fn window(&self) -> u64 {
        WINDOW_BYTES.min(self.bytes / 8).max(1)
    }

    /// The largest page; with a window on both sides it takes no more than `bytes`.
    fn page(&self) -> u64 {
        self.bytes - self.window().saturating_mul(2).min(self.bytes / 2)
    }
}

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub struct TableRow {
    /// Names and values of the columns in the file's order.
    pub columns: Vec<(String, Cell)>,
    /// Bytes that it keeps in memory.
    pub bytes: u64,
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq)]
pub enum RowOutcome {
    /// The row.
    Row(TableRow),
    /// The room was too small: so much would have been enough to come this far.
    NeedsRoom(u64),
}

/// One column of one row group of one file.
#[derive(Clone, Copy)]
struct At<'a> {
    file: &'a TableFile,
    chunk: &'a Chunk,
    key: ChunkKey,
    /// Rows of the row group.
    rows: u64,
    /// The row asked for, in the row group.
    row: u64,
}

/// Why a column could not be had just now.
enum Stop {
    Room(u64),
    Error(RowError),
}

impl From<RowError> for Stop {
    fn from(error: RowError) -> Self {
        Self::Error(error)
    }
}

impl Table {
    /// The row with the 0-based number `index`.
    ///
    /// It takes at most `limits.room` bytes of memory; what it returns takes [`TableRow::bytes`] of these. While it runs it may wait for
    /// another call that fetches the same pages, which in turn waits for nothing but the store and `cpu`.
    ///
    /// # Errors
    /// See [`RowError`]. Whether a row is bad depends on the file and on `limits.bytes` alone, never on what was read before.
    pub async fn row(
        &self,
        stores: &Stores,
        index: u64,
        limits: RowLimits,
        cpu: &impl Cpu,
    ) -> Result<RowOutcome, RowError> {
        match self.read(stores, index, limits, cpu).await {
            Ok(row) => Ok(RowOutcome::Row(row)),
            Err(Stop::Room(bytes)) => Ok(RowOutcome::NeedsRoom(bytes)),
            Err(Stop::Error(error)) => Err(error),
        }
    }

    async fn read(
        &self,
        stores: &Stores,
        index: u64,
        limits: RowLimits,
        cpu: &impl Cpu,
    ) -> Result<TableRow, Stop> {
        let missing = || RowError::OutOfRange { index, rows: self.len() };
        let (number, row) = find(&self.starts, index).ok_or_else(missing)?;
        let file = self.files.get(number).ok_or_else(missing)?;
        let (group_number, row) = find(&file.starts, row).ok_or_else(missing)?;
        let group = file.footer.groups.get(group_number).ok_or_else(missing)?;
        let key = |leaf: usize| (self.number, number as u32, group_number as u32, leaf as u32);
        let mut found = self.cached((0..group.chunks.len()).map(key).collect(), row, limits, cpu).await?;
        let mut held: u64 = found.iter().flatten().map(|bytes| bytes.len() as u64).sum();
        let fits = |held: u64| if held > limits.bytes { Err(too_large(held, limits.bytes)) } else { Ok(()) };
        fits(held)?;
        for (leaf, chunk) in group.chunks.iter().enumerate() {
            let Some(place) = found.get_mut(leaf).filter(|place| place.is_none()) else { continue };
            let at = At { file, chunk, key: key(leaf), rows: group.rows, row };
            let inner = RowLimits { room: limits.room.saturating_sub(held), ..limits };
            let bytes = self.column(stores, at, inner, cpu).await.map_err(|stop| match stop {
                Stop::Room(bytes) => Stop::Room(held.saturating_add(bytes)),
                Stop::Error(RowError::Bad { too_large, what }) => {
                    let path = file.footer.schema.leaves.get(leaf).map_or("", |leaf| leaf.path.as_str());
                    Stop::Error(RowError::Bad { too_large, what: format!("column {path}: {what}") })
                }
                stop => stop,
            })?;
            held += bytes.len() as u64;
            *place = Some(bytes);
            fits(held)?;
        }
        let columns: Vec<Bytes> = found.into_iter().flatten().collect();
        let columns = assemble(&file.footer.schema, columns)?;
        Ok(TableRow { columns, bytes: held })
    }

    /// What the cache has of a row's columns.
    async fn cached(
        &self,
        keys: Vec<ChunkKey>,
        row: u64,
        limits: RowLimits,
        cpu: &impl Cpu,
    ) -> Result<Vec<Option<Bytes>>, Stop> {
        let cache = self.cache.clone();
        let found = cpu.run(move || {
            let mut held = 0;
            let mut found = Vec::with_capacity(keys.len());
            for key in keys {
                found.push(match cache.get(key, row, limits.room.saturating_sub(held)) {
                    Some(Ok(bytes)) => {
                        held += bytes.len() as u64;
                        Some(bytes)
                    }
                    Some(Err(bytes)) => {
                        let bytes = bytes.saturating_add(held);
                        let bad = bytes > limits.bytes;
                        return Err(if bad {
                            too_large(bytes, limits.bytes).into()
                        } else {
                            Stop::Room(bytes)
                        });
                    }
                    None => None,
                });
            }
            Ok(found)
        });
        match found.await {
            Ok(found) => found,
            Err(lost) => Err(RowError::Lost(lost).into()),
        }
    }

    /// A row of one column, which was not in the cache.
    async fn column(
        &self,
        stores: &Stores,
        at: At<'_>,
        limits: RowLimits,
        cpu: &impl Cpu,
    ) -> Result<Bytes, Stop> {
        let (_, _, group, leaf) = at.key;
        let lock = at.key.1.wrapping_mul(31).wrapping_add(group).wrapping_mul(31).wrapping_add(leaf);
        let lock = self.locks.get(lock as usize % self.locks.len());
        let _turn = match lock {
            Some(lock) => Some(lock.lock().await),
            None => None,
        };
        // Whoever had the turn before may have brought it.
        if let Some(Some(bytes)) = self.cached(vec![at.key], at.row, limits, cpu).await?.pop() {
            return Ok(bytes);
        }
        let chunk = &at.chunk.bytes;
        let whole = || (vec![chunk.clone()], 0..at.rows);
        let (segments, rows) = match &at.chunk.index {
            Some(index) if chunk.end - chunk.start > limits.whole() => {
                match self.pages(stores, at, index.clone(), cpu).await? {
                    Some(pages) => match page_of(&pages, &at) {
                        Some(found) => found,
                        None => whole(),
                    },
                    None => whole(),
                }
            }
            _ => whole(),
        };
        self.decode(stores, at, segments, rows, limits, cpu).await
    }

    /// The pages of a chunk by its offset index; None when that is damaged, which is the same each time.
    async fn pages(
        &self,
        stores: &Stores,
        at: At<'_>,
        index: Range<u64>,
        cpu: &impl Cpu,
    ) -> Result<Option<Arc<Vec<PagePlace>>>, Stop> {
        let key = (at.key.1, at.key.2, at.key.3);
        let known = || self.indexes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pages) = known().known.get(&key) {
            return Ok(Some(Arc::clone(pages)));
        }
        // 16 bytes a page at least; an index of more pages than may be kept is no help.
        if index.end - index.start > MAX_INDEX_PAGES as u64 {
            return Ok(None);
        }
        let bytes = fetch(stores, at.file, index).await?;
        let (chunk, rows) = (at.chunk.clone(), at.rows);
        let pages = cpu.run(move || offset_index(&bytes, &chunk, rows).ok()).await.map_err(RowError::Lost)?;
        let Some(pages) = pages else { return Ok(None) };
        let pages = Arc::new(pages);
        let mut indexes = known();
        if indexes.known.insert(key, Arc::clone(&pages)).is_none() {
            indexes.pages += pages.len();
            indexes.order.push_back(key);
        }
        while indexes.pages > MAX_INDEX_PAGES {
            let Some(oldest) = indexes.order.pop_front() else { break };
            let dropped = indexes.known.remove(&oldest).map_or(0, |pages| pages.len());
            indexes.pages -= dropped;
        }
        Ok(Some(pages))
    }

    /// Fetches and decodes segments of a file that together give `rows`.
    async fn decode(
        &self,
        stores: &Stores,
        at: At<'_>,
        segments: Vec<Range<u64>>,
        rows: Range<u64>,
        limits: RowLimits,
        cpu: &impl Cpu,
    ) -> Result<Bytes, Stop> {
        let window = limits.window();
        let leaf = at.file.footer.schema.leaves.get(at.key.3 as usize);
        let leaf = leaf.ok_or_else(|| RowError::Lost("a column is not in the schema".into()))?;
        // Windows are taken beside the page.
        let beside = window.saturating_mul(2);
        if limits.room <= beside {
            return Err(Stop::Room(beside.saturating_add(window)));
        }
        let wanted = Wanted {
            first: rows.start,
            rows: rows.end.saturating_sub(rows.start),
            row: at.row,
            room: limits.room - beside,
            largest_page: limits.page(),
            longest: limits.bytes,
        };
        let mut decoder = Decoder::new(leaf, at.chunk.codec, wanted);
        let segments_left = segments.len();
        for (number, segment) in segments.into_iter().enumerate() {
            let last_segment = number + 1 == segments_left;
            let mut input = Bytes::new();
            // Where `input` begins, and how much of the file is wanted from there on.
            let mut start = segment.start;
            let mut want = if segments_left > 1 || rows.start > 0 || rows.end < at.rows {
                segment.end - segment.start
            } else {
                window
            };
            while start < segment.end {
                let left = segment.end - start;
                let length = want.max(window.min(left)).min(left);
                if length > limits.page() {
                    return Err(damaged(Damage {
                        too_large: true,
                        what: format!("a page has {length} bytes, the limit is {}", limits.page()),
                    }));
                }
                if length > wanted.room.saturating_add(window) {
                    return Err(Stop::Room(length.saturating_add(beside)));
                }
                input = match input.len() as u64 {
                    // A page beyond the window comes as one piece, without a copy of what is here.
                    0 => fetch(stores, at.file, start..start + length).await?,
                    _ if length > window => {
                        drop(input);
                        fetch(stores, at.file, start..start + length).await?
                    }
                    held => {
                        let more = window.min(left - held);
                        let next = fetch(stores, at.file, start + held..start + held + more).await?;
                        let mut both = BytesMut::with_capacity(input.len() + next.len());
                        both.extend_from_slice(&input);
                        both.extend_from_slice(&next);
                        both.freeze()
                    }
                };
                let before = input.len();
                let reaches_end = start + before as u64 == segment.end;
                let (cache, key, last) = (self.cache.clone(), at.key, last_segment && reaches_end);
                let (fed, rest, progress) = cpu
                    .run(move || {
                        let mut keep = |row, piece: Piece<'_>| cache.put(key, row, piece);
                        let progress = decoder.feed(&mut input, last, &mut keep);
                        (decoder, input, progress)
                    })
                    .await
                    .map_err(RowError::Lost)?;
                (decoder, input) = (fed, rest);
                start += (before - input.len()) as u64;
                match progress {
                    Ok(Progress::Done) => break,
                    Ok(Progress::From(bytes)) => want = bytes,
                    Ok(Progress::Room(bytes)) => return Err(Stop::Room(bytes.saturating_add(beside))),
                    // The row may stand before the damage.
                    Err(damage) if decoder.found.is_none() => return Err(damaged(damage)),
                    Err(_) => break,
                }
                if reaches_end && !last_segment {
                    if !input.is_empty() {
                        return Err(damaged("a dictionary ends inside a page".into()));
                    }
                    break;
                }
            }
        }
        decoder.found.take().ok_or_else(|| damaged("the row asked for did not come".into()))
    }
}

fn damaged(damage: Damage) -> Stop {
    Stop::Error(RowError::Bad { too_large: damage.too_large, what: damage.what })
}

fn too_large(bytes: u64, limit: u64) -> RowError {
    RowError::Bad { too_large: true, what: format!("the row has {bytes} bytes, the limit is {limit}") }
}

async fn fetch(stores: &Stores, file: &TableFile, range: Range<u64>) -> Result<Bytes, RowError> {
    stores
        .get_range(&file.uri, range, &file.version)
        .await
        .map_err(|source| RowError::Fetch { uri: file.uri.clone(), source: Box::new(source) })
}

/// The dictionary and the page that holds the row, and the page's rows.
fn page_of(pages: &[PagePlace], at: &At<'_>) -> Option<(Vec<Range<u64>>, Range<u64>)> {
    let number = pages.partition_point(|page| page.row <= at.row).checked_sub(1)?;
    let page = pages.get(number)?;
    let end = pages.get(number + 1).map_or(at.rows, |next| next.row);
    let dictionary = at.chunk.bytes.start..at.chunk.data;
    let mut segments = vec![dictionary, page.offset..page.offset + page.length];
    segments.retain(|segment| !segment.is_empty());
    Some((segments, page.row..end))
}

fn assemble(schema: &Schema, columns: Vec<Bytes>) -> Result<Vec<(String, Cell)>, RowError> {
    let mut lists = Vec::with_capacity(columns.len());
    for row in columns {
        lists.push(match entries(row) {
            Some(Ok(list)) => list,
            Some(Err(bytes)) => {
                return Err(RowError::Bad {
                    too_large: true,
                    what: format!("a value of the row has {bytes} bytes or more"),
                });
            }
            None => return Err(RowError::Lost("decoded rows are not what was written".into())),
        });
    }
    schema.assemble(&lists).map_err(|what| RowError::Bad { too_large: false, what })
}
