//! Takes decoded rows of one column, keeps them on disk while there is room, gives one row's.
//!
//! One unlinked file of the cache folder, written in a ring: what is oldest is overwritten. Its length is leased from the same budget
//! as copies of manifests (`cache.disk`); where that has no more room, the ring stays as long as it is. Memory is
//! [`MAX_ENTRIES`] entries.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::manifest::{DiskBudget, DiskLease};

/// More pieces than this are not kept: 30 MB of memory.
const MAX_ENTRIES: usize = 1 << 18;

/// Column chunk: table, file, row group, leaf.
pub(super) type ChunkKey = (u32, u32, u32, u32);

/// Decoded rows on disk. Clones share it.
#[derive(Clone)]
pub struct RowCache {
    inner: Arc<Inner>,
}

struct Inner {
    folder: PathBuf,
    ring: Mutex<Ring>,
    tables: AtomicU32,
    hits: AtomicU64,
    misses: AtomicU64,
}

struct Ring {
    file: Option<Arc<File>>,
    lease: DiskLease,
    /// Bytes of the file.
    size: u64,
    /// Where the next piece is written.
    head: u64,
    next: u64,
    entries: BTreeMap<(ChunkKey, u64), Entry>,
    /// In the order in which they were written.
    order: VecDeque<((ChunkKey, u64), u64)>,
    failed: bool,
}

#[derive(Clone, Copy)]
struct Entry {
    id: u64,
    offset: u64,
    length: u64,
    rows: u64,
}

/// Rows of one column, one after another, and where each ends.
#[derive(Clone, Copy)]
pub(super) struct Piece<'a> {
    /// The end of each row in `bytes`, as u32 little-endian.
    pub(super) ends: &'a [u8],
    pub(super) bytes: &'a [u8],
}

impl Piece<'_> {
    fn rows(&self) -> u64 {
        self.ends.len() as u64 / 4
    }
}

impl std::fmt::Debug for RowCache {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("RowCache").field("folder", &self.inner.folder).finish_non_exhaustive()
    }
}

impl RowCache {
    /// A cache in `folder` that takes what room it finds in `disk`.
    #[must_use]
    pub fn new(folder: PathBuf, disk: &DiskBudget) -> Self {
        let ring = Ring {
            file: None,
            lease: disk.lease(),
            size: 0,
            head: 0,
            next: 0,
            entries: BTreeMap::new(),
            order: VecDeque::new(),
            failed: false,
        };
        Self {
            inner: Arc::new(Inner {
                folder,
                ring: Mutex::new(ring),
                tables: AtomicU32::new(0),
                hits: AtomicU64::new(0),
                misses: AtomicU64::new(0),
            }),
        }
    }

    /// How often a column of a row was found here, and how often not.
    #[must_use]
    pub fn hits_and_misses(&self) -> (u64, u64) {
        (self.inner.hits.load(Relaxed), self.inner.misses.load(Relaxed))
    }

    /// A number for a table's entries.
    pub(super) fn table(&self) -> u32 {
        self.inner.tables.fetch_add(1, Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.inner.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a piece that begins at `row` of the chunk, if there is room. A disk that fails ends the cache, not the stream.
    pub(super) fn put(&self, chunk: ChunkKey, row: u64, piece: Piece<'_>) {
        if piece.rows() == 0 {
            return;
        }
        let mut ring = self.lock();
        if ring.failed {
            return;
        }
        if let Err(error) = ring.put(&self.inner.folder, (chunk, row), piece) {
            ring.failed = true;
            ring.entries.clear();
            ring.order.clear();
            tracing::warn!(%error, folder = %self.inner.folder.display(), "decoded rows cannot be kept on disk: every row is fetched anew");
        }
    }

    /// The bytes of a row, or their number when that is above `room`; None when it is not here.
    pub(super) fn get(&self, chunk: ChunkKey, row: u64, room: u64) -> Option<Result<Bytes, u64>> {
        let found = self.find(chunk, row, room);
        let count = if found.is_some() { &self.inner.hits } else { &self.inner.misses };
        count.fetch_add(1, Relaxed);
        found
    }

    fn find(&self, chunk: ChunkKey, row: u64, room: u64) -> Option<Result<Bytes, u64>> {
        let (key, entry, file) = {
            let ring = self.lock();
            let (key, entry) = ring.entries.range((chunk, 0)..=(chunk, row)).next_back()?;
            (*key, *entry, Arc::clone(ring.file.as_ref()?))
        };
        let index = row.checked_sub(key.1).filter(|index| *index < entry.rows)?;
        let end_at = |index: u64| {
            let mut end = [0; 4];
            file.read_exact_at(&mut end, entry.offset + index * 4).ok()?;
            Some(u64::from(u32::from_le_bytes(end)))
        };
        let start = if index == 0 { 0 } else { end_at(index - 1)? };
        let end = end_at(index)?;
        let still = || self.lock().entries.get(&key).is_some_and(|now| now.id == entry.id);
        // Bytes that were overwritten meanwhile say nothing.
        if start > end || entry.rows * 4 + end > entry.length || !still() {
            return None;
        }
        if end - start > room {
            return Some(Err(end - start));
        }
        let mut bytes = vec![0; (end - start) as usize];
        file.read_exact_at(&mut bytes, entry.offset + entry.rows * 4 + start).ok()?;
        still().then(|| Ok(Bytes::from(bytes)))
    }
}

impl Ring {
    fn put(
        &mut self,
        folder: &std::path::Path,
        key: (ChunkKey, u64),
        piece: Piece<'_>,
    ) -> std::io::Result<()> {
        let length = (piece.ends.len() + piece.bytes.len()) as u64;
        let file = match &self.file {
            Some(file) => Arc::clone(file),
            None => {
                fs::create_dir_all(folder)?;
                let file = Arc::new(tempfile::tempfile_in(folder)?);
                Arc::clone(self.file.insert(file))
            }
        };
        if self.head + length > self.size {
            match self.lease.grow_to(self.head + length) {
                Ok(()) => self.size = self.head + length,
                Err(_) if length > self.size => return Ok(()),
                Err(_) => {
                    // Round again: what stands behind the head is the oldest.
                    let head = self.head;
                    while self.front().is_some_and(|entry| entry.is_none_or(|entry| entry.offset >= head)) {
                        self.pop();
                    }
                    self.head = 0;
                }
            }
        }
        let range = self.head..self.head + length;
        let overlaps = |entry: Entry| entry.offset < range.end && entry.offset + entry.length > range.start;
        while self.front().is_some_and(|entry| entry.is_none_or(overlaps)) || self.order.len() >= MAX_ENTRIES
        {
            self.pop();
        }
        file.write_all_at(piece.ends, range.start)?;
        file.write_all_at(piece.bytes, range.start + piece.ends.len() as u64)?;
        let id = self.next;
        self.next += 1;
        self.head = range.end;
        self.order.push_back((key, id));
        self.entries.insert(key, Entry { id, offset: range.start, length, rows: piece.rows() });
        Ok(())
    }

    /// The oldest entry; Some(None) when another has taken its key since.
    fn front(&self) -> Option<Option<Entry>> {
        let (key, id) = self.order.front()?;
        Some(self.entries.get(key).filter(|entry| entry.id == *id).copied())
    }

    fn pop(&mut self) {
        if let Some((key, id)) = self.order.pop_front()
            && self.entries.get(&key).is_some_and(|entry| entry.id == id)
        {
            self.entries.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(cache: &RowCache, chunk: ChunkKey, row: u64, rows: &[Vec<u8>]) {
        let (mut ends, mut bytes) = (Vec::new(), Vec::new());
        for row in rows {
            bytes.extend_from_slice(row);
            ends.extend((bytes.len() as u32).to_le_bytes());
        }
        cache.put(chunk, row, Piece { ends: &ends, bytes: &bytes });
    }

    #[test]
    fn the_oldest_pieces_give_way_and_what_is_found_is_right() {
        let folder = tempfile::tempdir().unwrap();
        let disk = DiskBudget::new(1000);
        let cache = RowCache::new(folder.path().to_owned(), &disk);
        let chunk = |number: u32| (0, 0, 0, number);
        let row = |number: u32, row: u8| vec![number as u8 ^ row; 30 + usize::from(row)];
        for number in 0..100 {
            let rows: Vec<Vec<u8>> = (0..4).map(|index| row(number, index)).collect();
            put(&cache, chunk(number), 10, &rows);
            let mut found = 0;
            for earlier in 0..=number {
                for index in 0..4 {
                    if let Some(got) = cache.get(chunk(earlier), 10 + u64::from(index), 100) {
                        assert_eq!(got.unwrap(), row(earlier, index));
                        found += 1;
                    }
                }
            }
            // Six pieces of 142 bytes fit; the newest is always one of them.
            assert!((4..=4 * 7).contains(&found), "{found}");
            assert_eq!(cache.get(chunk(number), 13, 100).unwrap().unwrap(), row(number, 3));
        }
        assert_eq!(cache.get(chunk(99), 14, 100), None);
        assert_eq!(cache.get(chunk(99), 9, 100), None);
        assert_eq!(cache.get(chunk(99), 10, 29), Some(Err(30)));
        assert!(disk.used() <= 1000 && disk.used() > 800);
        // A piece larger than all of it is not kept, and nothing is lost for it.
        put(&cache, chunk(200), 0, &[vec![0; 2000]]);
        assert_eq!(cache.get(chunk(200), 0, 5000), None);
        assert!(cache.get(chunk(99), 10, 100).is_some());
        drop(cache);
        assert_eq!(disk.used(), 0);
    }
}
