//! Takes the number of a record, gives its bytes.

use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt as _;
use std::sync::PoisonError;

use super::digest::{BLOCK_BYTES, TreeDigest};
use super::framing::{Scanner, Span};
use super::{Manifest, Record, RecordReadError, Stamp};

/// Read at once while looking for a record. 64 records of usual length fit.
const CHUNK_BYTES: u64 = 64 << 10;

impl Manifest {
    /// The record with the 0-based number `index`. Blocks on the disk: call it from a thread that may.
    ///
    /// Memory is the record's length, at most `max_line_bytes`, and one chunk.
    ///
    /// # Errors
    /// A record that is too long is bad and nothing else is wrong; every other error is fatal for what reads the manifest.
    pub fn record(&self, index: u64) -> Result<Record, RecordReadError> {
        let place =
            self.index.find(index).ok_or(RecordReadError::OutOfRange { index, records: self.len() })?;
        loop {
            let found = self.locate(place, index - place.record);
            // Only now: what was read before the file changed is what was indexed.
            if self.is_unchanged(place.offset)? {
                return found;
            }
        }
    }

    fn locate(&self, place: super::index::Place, mut skip: u64) -> Result<Record, RecordReadError> {
        let mut scanner = Scanner::at(self.framing, place);
        let mut offset = place.offset;
        let mut chunk = Vec::new();
        loop {
            let length = CHUNK_BYTES.min(self.bytes.saturating_sub(offset));
            // At most CHUNK_BYTES.
            chunk.resize(length as usize, 0);
            self.read(&mut chunk, offset)?;
            let mut found: Option<Span> = None;
            let mut each = |span| {
                if skip == 0 {
                    found = Some(span);
                    return ControlFlow::Break(());
                }
                skip -= 1;
                ControlFlow::Continue(())
            };
            let scanned = if length == 0 {
                scanner.finish(&mut each)
            } else {
                scanner.feed(&chunk, &mut each).map(|_| ())
            };
            if let Some(span) = found {
                return self.take(span, offset, &chunk);
            }
            if scanned.is_err() || length == 0 {
                // It was there when the file was indexed.
                return Err(RecordReadError::Changed { uri: self.uri.clone() });
            }
            offset += length;
            if skip == 0
                && let Some((start, line)) = scanner.open()
                // One more for a `\r` that would not count.
                && offset - start > self.max_line_bytes.saturating_add(1)
            {
                return Err(RecordReadError::TooLong { line, offset: start, limit: self.max_line_bytes });
            }
        }
    }

    pub(super) fn take(
        &self,
        span: Span,
        chunk_offset: u64,
        chunk: &[u8],
    ) -> Result<Record, RecordReadError> {
        let length = span.end - span.start;
        let too_long =
            RecordReadError::TooLong { line: span.line, offset: span.start, limit: self.max_line_bytes };
        if length > self.max_line_bytes {
            return Err(too_long);
        }
        let Ok(length) = usize::try_from(length) else {
            return Err(too_long);
        };
        let inside = span.start.checked_sub(chunk_offset).and_then(|start| {
            let start = usize::try_from(start).ok()?;
            chunk.get(start..start.checked_add(length)?)
        });
        let bytes = match inside {
            Some(bytes) => bytes.to_vec(),
            None => {
                let mut bytes = vec![0; length];
                self.read(&mut bytes, span.start)?;
                bytes
            }
        };
        Ok(Record { bytes, line: span.line, offset: span.start })
    }

    pub(super) fn read(&self, buffer: &mut [u8], offset: u64) -> Result<(), RecordReadError> {
        self.file.read_exact_at(buffer, offset).map_err(|source| match source.kind() {
            ErrorKind::UnexpectedEof => RecordReadError::Changed { uri: self.uri.clone() },
            _ => RecordReadError::Io { uri: self.uri.clone(), offset, source },
        })
    }

    /// Whether what was read before is what was indexed. False when the file was touched since, as by a backup, and has the same bytes
    /// after all: then it is to be read again, since nobody knows what it had in between.
    pub(super) fn is_unchanged(&self, offset: u64) -> Result<bool, RecordReadError> {
        let stamp = || match self.file.metadata() {
            Ok(metadata) => Ok(Stamp::of(&metadata)),
            Err(source) => Err(RecordReadError::Io { uri: self.uri.clone(), offset, source }),
        };
        let now = stamp()?;
        // Others wait meanwhile: all of it is read at most once for each touch.
        let mut stamps = self.stamps.lock().unwrap_or_else(PoisonError::into_inner);
        if now == stamps.good {
            return Ok(true);
        }
        let changed = || RecordReadError::Changed { uri: self.uri.clone() };
        if now.size != stamps.good.size || stamps.bad == Some(now) {
            return Err(changed());
        }
        let is_same = self.digest_of_now()? == self.digest;
        if stamp()? != now {
            // It is being written to.
            return Err(changed());
        }
        if !is_same {
            stamps.bad = Some(now);
            return Err(changed());
        }
        tracing::warn!(manifest = %self.uri, "the manifest was touched, and has the same bytes as before");
        stamps.good = now;
        Ok(false)
    }

    /// The digest of the file as it is now.
    fn digest_of_now(&self) -> Result<[u8; 32], RecordReadError> {
        let mut digest = TreeDigest::default();
        let mut block = vec![0; BLOCK_BYTES];
        let mut offset = 0;
        while offset < self.bytes {
            let length = usize::try_from(self.bytes - offset).unwrap_or(BLOCK_BYTES).min(BLOCK_BYTES);
            let block = block.get_mut(..length).unwrap_or_default();
            self.read(block, offset)?;
            digest.add_block(block);
            offset += length as u64;
        }
        Ok(digest.finish())
    }
}
