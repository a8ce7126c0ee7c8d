//! Takes a range of record numbers, gives the records one after another: for whoever reads all of a manifest.
//!
//! [`Manifest::record`] reads 64 KiB for each record, which is right for records in random order and wasteful for neighbours. Here every
//! byte is read once, in blocks.

use std::collections::VecDeque;
use std::iter::FusedIterator;
use std::ops::{ControlFlow, Range};

use super::framing::{Scanner, Span};
use super::index::Place;
use super::{Manifest, Record, RecordReadError};

/// Read at once. A call to the system is then under a thousandth of what parsing the block costs.
const BLOCK_BYTES: u64 = 1 << 20;

/// Neighbouring records in order. Blocks on the disk: use it on a thread that may.
///
/// Memory is one block and the longest record, at most `max_line_bytes`. After an error other than
/// [`RecordReadError::TooLong`] there is no further record.
#[derive(Debug)]
pub struct Records<'a> {
    manifest: &'a Manifest,
    scanner: Scanner,
    /// Records before the first wanted one that are still to be passed over.
    skip: u64,
    /// Records still to be given.
    left: u64,
    found: VecDeque<Span>,
    buffer: Vec<u8>,
    /// Byte of the manifest at which `buffer` begins.
    base: u64,
    block_bytes: u64,
}

impl Manifest {
    /// The records with the 0-based numbers `range`, as far as there are so many.
    #[must_use]
    pub fn records(&self, range: Range<u64>) -> Records<'_> {
        self.records_in_blocks(range, BLOCK_BYTES)
    }

    pub(super) fn records_in_blocks(&self, range: Range<u64>, block_bytes: u64) -> Records<'_> {
        let left = range.end.min(self.len()).saturating_sub(range.start);
        let place = self.index.find(range.start);
        let place = place.unwrap_or(Place { record: range.start, offset: self.bytes, line: 1 });
        Records {
            manifest: self,
            scanner: Scanner::at(self.framing, place),
            skip: range.start.saturating_sub(place.record),
            left,
            found: VecDeque::new(),
            buffer: Vec::new(),
            base: place.offset,
            block_bytes: block_bytes.max(1),
        }
    }
}

impl Records<'_> {
    /// Reads one more block and finds what ends in it.
    fn advance(&mut self) -> Result<(), RecordReadError> {
        let manifest = self.manifest;
        let end = self.base + self.buffer.len() as u64;
        // Of the old block only the record that has not ended is needed, and not even that when it is too long.
        let kept = match self.scanner.open() {
            Some((start, _)) if end - start <= manifest.max_line_bytes.saturating_add(1) => {
                start.max(self.base)
            }
            _ => end,
        };
        self.buffer.drain(..usize::try_from(kept - self.base).unwrap_or(self.buffer.len()));
        self.base = kept;
        let length = self.block_bytes.min(manifest.bytes.saturating_sub(end));
        let old = self.buffer.len();
        self.buffer.resize(old + length as usize, 0);
        let block = self.buffer.get_mut(old..).unwrap_or_default();
        loop {
            let good = manifest.good();
            manifest.read(block, end)?;
            // Only now: what was read before the file changed is what was indexed.
            if manifest.stamp(end)? == good {
                break;
            }
            manifest.verify()?;
        }
        let (found, skip, left) = (&mut self.found, &mut self.skip, self.left);
        let mut each = |span| {
            if *skip > 0 {
                *skip -= 1;
            } else {
                found.push_back(span);
            }
            if found.len() as u64 >= left { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let scanned = if length == 0 {
            self.scanner.finish(&mut each)
        } else {
            self.scanner.feed(block, &mut each).map(|_| ())
        };
        if scanned.is_err() || (length == 0 && self.found.is_empty()) {
            // They were there when the file was indexed.
            return Err(RecordReadError::Changed { uri: manifest.uri.clone() });
        }
        Ok(())
    }
}

impl Iterator for Records<'_> {
    type Item = Result<Record, RecordReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        while self.found.is_empty() {
            if let Err(error) = self.advance() {
                self.left = 0;
                return Some(Err(error));
            }
        }
        let span = self.found.pop_front()?;
        self.left -= 1;
        let record = self.manifest.take(span, self.base, &self.buffer);
        if !matches!(record, Ok(_) | Err(RecordReadError::TooLong { .. })) {
            self.left = 0;
        }
        Some(record)
    }
}

impl FusedIterator for Records<'_> {}
