//! Takes where records begin, one after another, gives the nearest known place at or before any record.
//!
//! A place is kept for every 64th record: 16 bytes each, so 100 million records need 25 MB. Where 64 records span more than 1 MiB (as
//! with images inside the records) places are kept in between too, at most one a MiB, so a look-up never scans much more than that.

use std::fmt;

/// A place is kept for each record whose number is a multiple of this.
const STRIDE: u64 = 64;

/// And for a record this far or further behind the place before it.
const MAX_SCAN_BYTES: u64 = 1 << 20;

/// Where a record begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// 0-based number.
    pub(super) record: u64,
    /// Byte in the decompressed manifest.
    pub(super) offset: u64,
    /// 1-based physical line.
    pub(super) line: u64,
}

#[derive(Default)]
pub(super) struct Index {
    /// Offset and line of records 0, 64, 128, …
    regular: Vec<(u64, u64)>,
    /// Places in between, in order.
    extra: Vec<Place>,
    last_offset: u64,
    len: u64,
}

impl Index {
    pub(super) fn push(&mut self, offset: u64, line: u64) {
        if self.len.is_multiple_of(STRIDE) {
            self.regular.push((offset, line));
            self.last_offset = offset;
        } else if offset - self.last_offset >= MAX_SCAN_BYTES {
            self.extra.push(Place { record: self.len, offset, line });
            self.last_offset = offset;
        }
        self.len += 1;
    }

    pub(super) fn finish(&mut self) {
        self.regular.shrink_to_fit();
        self.extra.shrink_to_fit();
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// The last known place at or before `record`.
    pub(super) fn find(&self, record: u64) -> Option<Place> {
        if record >= self.len {
            return None;
        }
        let slot = record / STRIDE;
        let (offset, line) = *self.regular.get(usize::try_from(slot).ok()?)?;
        let after = self.extra.partition_point(|place| place.record <= record);
        let nearer = self.extra[..after].last().filter(|place| place.record >= slot * STRIDE);
        Some(nearer.copied().unwrap_or(Place { record: slot * STRIDE, offset, line }))
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.regular.capacity() * size_of::<(u64, u64)>() + self.extra.capacity() * size_of::<Place>()
    }
}

impl fmt::Debug for Index {
    /// Not the places: there may be millions.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Index").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_near_whatever_the_records_lengths_are() {
        for length in [1, 300, 20_000, 1 << 20, 5 << 20] {
            let mut index = Index::default();
            for record in 0..1000 {
                index.push(record * length, record * 2 + 1);
            }
            for record in 0..1000 {
                let place = index.find(record).unwrap();
                assert_eq!((place.offset, place.line), (place.record * length, place.record * 2 + 1));
                assert!(place.record <= record && record - place.record < STRIDE);
                assert!((record - place.record) * length < MAX_SCAN_BYTES);
            }
            assert_eq!(index.find(1000), None);
        }
        assert_eq!(Index::default().find(0), None);
    }

    #[test]
    fn a_hundred_million_records_need_25_megabytes() {
        let mut index = Index::default();
        for record in 0..1_000_000 {
            index.push(record * 300, record + 1);
        }
        index.finish();
        assert_eq!(index.heap_bytes(), 250_000);
    }
}
