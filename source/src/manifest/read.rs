//! Takes the number of a record, gives its bytes.

use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt as _;
use std::sync::{MutexGuard, PoisonError};

use super::digest::{BLOCK_BYTES, TreeDigest};
use super::framing::{Scanner, Span};
use super::{Manifest, Record, RecordReadError, Stamp, Stamps};

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
        loop {
            match self.try_record(index) {
                Err(RecordReadError::Touched { .. }) => self.verify()?,
                record => return record,
            }
        }
    }

    /// The same, for threads that others wait for: a file that was touched is not read through.
    ///
    /// # Errors
    /// As [`record`](Self::record), and [`RecordReadError::Touched`]: [`verify`](Self::verify) says whether it can be read on.
    pub fn try_record(&self, index: u64) -> Result<Record, RecordReadError> {
        let place =
            self.index.find(index).ok_or(RecordReadError::OutOfRange { index, records: self.len() })?;
        let good = self.good();
        let found = self.locate(place, index - place.record);
        // Only now: what was read before the file changed is what was indexed.
        if self.stamp(place.offset)? == good {
            return found;
        }
        Err(RecordReadError::Touched { uri: self.uri.clone() })
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

    /// The last state of the file in which it had the bytes that were indexed, as far as is known. What is read between two looks that
    /// both show this state is what was indexed.
    pub(super) fn good(&self) -> Stamp {
        self.stamps().good
    }

    fn stamps(&self) -> MutexGuard<'_, Stamps> {
        self.stamps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn stamp(&self, offset: u64) -> Result<Stamp, RecordReadError> {
        match self.file.metadata() {
            Ok(metadata) => Ok(Stamp::of(&metadata)),
            Err(source) => Err(RecordReadError::Io { uri: self.uri.clone(), offset, source }),
        }
    }

    /// Looks whether a file that was touched has the bytes that were indexed after all, by reading all of it, once for each touch. Blocks
    /// for as long as that takes, also while another thread looks.
    ///
    /// # Errors
    /// It has other bytes, is being written to, or cannot be read.
    pub fn verify(&self) -> Result<(), RecordReadError> {
        let _turn = self.verifying.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.stamp(0)?;
        let Stamps { good, bad } = *self.stamps();
        if now == good {
            return Ok(());
        }
        let is_same = bad != Some(now) && now.size == good.size && self.digest_of_now()? == self.digest;
        if !is_same || self.stamp(0)? != now {
            self.stamps().bad = Some(now);
            return Err(RecordReadError::Changed { uri: self.uri.clone() });
        }
        tracing::warn!(manifest = %self.uri, "the manifest was touched, and has the same bytes as before");
        *self.stamps() = Stamps { good: now, bad: None };
        Ok(())
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
