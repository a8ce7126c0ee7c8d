//! Takes the number of a record, gives it and all that follow, each byte read once.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use super::framing::{Scanner, Span};
use super::{Manifest, Record, RecordReadError};

/// Read at once. Places of the shortest possible records in it need 3 MB.
const CHUNK_BYTES: u64 = 256 << 10;

/// Records in order, see [`Manifest::records`].
pub struct Records<'m> {
    manifest: &'m Manifest,
    scanner: Option<Scanner>,
    chunk: Vec<u8>,
    /// Where `chunk` begins.
    begin: u64,
    /// Where the next one begins.
    end: u64,
    /// Records that end in `chunk` and were not given yet.
    spans: VecDeque<Span>,
    /// Records before the first one wanted.
    skip: u64,
    /// Records to be given.
    left: u64,
}

impl Manifest {
    /// The records from the 0-based number `from` on. Blocks on the disk: use it on a thread that may.
    ///
    /// Memory is the longest record, at most `max_line_bytes`, and one chunk of 256 KiB. A record that is too long is an item
    /// like others and the next ones follow; after any other error there is nothing more.
    #[must_use]
    pub fn records(&self, from: u64) -> Records<'_> {
        let place = self.index.find(from);
        let offset = place.map_or(0, |place| place.offset);
        Records {
            manifest: self,
            scanner: place.map(|place| Scanner::at(self.framing, place)),
            chunk: Vec::new(),
            begin: offset,
            end: offset,
            spans: VecDeque::new(),
            skip: place.map_or(0, |place| from - place.record),
            left: self.len().saturating_sub(from),
        }
    }
}

impl Records<'_> {
    /// Fills `spans` from the next chunk; false when there is none.
    fn advance(&mut self) -> Result<bool, RecordReadError> {
        let Some(scanner) = &mut self.scanner else { return Ok(false) };
        let length = CHUNK_BYTES.min(self.manifest.bytes.saturating_sub(self.end));
        // At most CHUNK_BYTES.
        self.chunk.resize(length as usize, 0);
        self.begin = self.end;
        self.manifest.read(&mut self.chunk, self.begin)?;
        self.manifest.check_unchanged(self.begin)?;
        self.end += length;
        let spans = &mut self.spans;
        let mut each = |span| {
            spans.push_back(span);
            ControlFlow::Continue(())
        };
        let scanned = if length == 0 {
            scanner.finish(&mut each)
        } else {
            scanner.feed(&self.chunk, &mut each).map(|_| ())
        };
        Ok(scanned.is_ok() && (length > 0 || !self.spans.is_empty()))
    }
}

impl Iterator for Records<'_> {
    type Item = Result<Record, RecordReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.left > 0 {
            if let Some(span) = self.spans.pop_front() {
                if self.skip > 0 {
                    self.skip -= 1;
                    continue;
                }
                let record = self.manifest.take(span, self.begin, &self.chunk);
                let over = record.as_ref().is_err_and(|error| !error.is_bad_record());
                self.left = if over { 0 } else { self.left - 1 };
                return Some(record);
            }
            match self.advance() {
                Ok(true) => {}
                // The record was there when the file was indexed.
                Ok(false) => {
                    self.left = 0;
                    return Some(Err(RecordReadError::Changed { uri: self.manifest.uri.clone() }));
                }
                Err(error) => {
                    self.left = 0;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}
