//! Takes the entries of a row of one column, gives them packed, as the row cache holds them; and the other way round.
//!
//! Packed are the number of entries as u32 little-endian, then for each its definition and repetition level and, where there is a value,
//! its length plus one and its bytes. Numbers are varints. Without entries it is a row that is too large, and its length follows.

use bytes::Bytes;

use super::schema::Entry;

/// The row that is being collected: its number of entries as u32 little-endian, then these. Beside the page, each thread that decodes
/// has one of them.
#[derive(Default)]
pub(super) struct Open {
    pub(super) entries: u32,
    bytes: Vec<u8>,
    too_large: u64,
}

/// Memory of an entry when it is taken out again, beside its value: the entry, and the cell that is made of it.
/// Entries without a value take three bytes here, and would not be counted otherwise.
const ENTRY_BYTES: u64 = 80;

/// In front of the entries.
const COUNT_BYTES: usize = 4;

impl Open {
    pub(super) fn add(&mut self, definition: i16, repetition: i16, value: Option<&[u8]>, longest: u64) {
        // A row of 2^32 entries is long since too large.
        self.entries = self.entries.saturating_add(1);
        let length = value.map_or(0, <[u8]>::len);
        let bytes = (self.bytes.len() + length) as u64 + u64::from(self.entries) * ENTRY_BYTES;
        if self.too_large > 0 || bytes > longest {
            self.too_large = self.too_large.max(bytes);
            self.bytes = Vec::new();
            return;
        }
        if self.bytes.is_empty() {
            self.bytes.reserve_exact(COUNT_BYTES + 12 + length);
            self.bytes.extend([0; COUNT_BYTES]);
        }
        put_number(&mut self.bytes, u64::try_from(definition).unwrap_or(0));
        put_number(&mut self.bytes, u64::try_from(repetition).unwrap_or(0));
        match value {
            None => self.bytes.push(0),
            Some(value) => {
                put_number(&mut self.bytes, value.len() as u64 + 1);
                self.bytes.extend_from_slice(value);
            }
        }
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        if self.too_large > 0 {
            // No row has no entry; so 0 says that it is too large, and how large.
            let mut row = vec![0; COUNT_BYTES];
            put_number(&mut row, self.too_large);
            return row;
        }
        if let Some(count) = self.bytes.first_chunk_mut::<COUNT_BYTES>() {
            *count = self.entries.to_le_bytes();
        }
        self.bytes
    }
}

fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take_number(bytes: &mut Bytes) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.first()?;
        *bytes = bytes.slice(1..);
        number |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// The entries of a row of one column; None for bytes that are not such a row. Err is the length of a row that is too large.
pub(super) fn entries(mut row: Bytes) -> Option<Result<Vec<Entry>, u64>> {
    let count = u32::from_le_bytes(*row.first_chunk::<COUNT_BYTES>()?);
    row = row.slice(COUNT_BYTES..);
    if count == 0 {
        return take_number(&mut row).map(Err);
    }
    let mut entries = Vec::new();
    for _ in 0..count {
        let definition = i16::try_from(take_number(&mut row)?).ok()?;
        let repetition = i16::try_from(take_number(&mut row)?).ok()?;
        let value = match take_number(&mut row)? {
            0 => None,
            length => {
                let length = usize::try_from(length - 1).ok().filter(|length| *length <= row.len())?;
                Some(row.split_to(length))
            }
        };
        entries.push(Entry { definition, repetition, value });
    }
    row.is_empty().then_some(Ok(entries))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries without a value take three bytes packed and eighty when they are taken out again: a row of millions of
    /// them took gigabytes that no budget knew of.
    #[test]
    fn a_row_of_nothing_but_entries_is_too_large_by_what_they_take() {
        let row = |entries: u64| {
            let mut open = Open::default();
            (0..entries).for_each(|_| open.add(1, 1, None, 100 * ENTRY_BYTES));
            entries_of(open.finish())
        };
        assert_eq!(row(50), Ok(50));
        assert!(row(101).is_err_and(|bytes| bytes > 100 * ENTRY_BYTES));
    }

    fn entries_of(row: Vec<u8>) -> Result<usize, u64> {
        entries(row.into()).expect("a packed row").map(|entries| entries.len())
    }
}
