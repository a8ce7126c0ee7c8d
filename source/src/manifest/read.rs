//! Takes the number of a record, gives its bytes.

use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt as _;

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
        let found = self.locate(place, index - place.record);
        // Only now: what was read before the file changed is what was indexed.
        self.check_unchanged(place.offset)?;
        found
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

    fn take(&self, span: Span, chunk_offset: u64, chunk: &[u8]) -> Result<Record, RecordReadError> {
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

    pub(super) fn check_unchanged(&self, offset: u64) -> Result<(), RecordReadError> {
        match self.file.metadata() {
            Ok(metadata) if Stamp::of(&metadata) == self.stamp => Ok(()),
            Ok(_) => Err(RecordReadError::Changed { uri: self.uri.clone() }),
            Err(source) => Err(RecordReadError::Io { uri: self.uri.clone(), offset, source }),
        }
    }
}
