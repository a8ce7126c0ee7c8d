//! Takes a TIFF's bytes, checks its first directory before the decoder believes it.
//!
//! The decoder allocates arrays by the count that a directory entry declares, whatever the file holds. Here
//! every array that it will read must lie inside the file and have a sane length.

use crate::error::ImageError;

/// Most entries of a directory; real ones have a few dozen.
const MAX_ENTRIES: u64 = 4096;
/// Most values of one entry: a strip per row in the highest picture that other formats can hold.
const MAX_VALUES: u64 = 1 << 16;

/// Tags of which the decoder reads the values: sizes, samples, strips, tiles, tables.
const READ: [std::ops::RangeInclusive<u16>; 7] =
    [256..=262, 273..=279, 284..=284, 317..=325, 338..=339, 347..=347, 530..=530];

struct Numbers<'a> {
    bytes: &'a [u8],
    big_endian: bool,
}

impl Numbers<'_> {
    /// An unsigned number of up to 8 bytes.
    fn at(&self, place: u64, length: usize) -> Option<u64> {
        let place = usize::try_from(place).ok()?;
        let bytes = self.bytes.get(place..place.checked_add(length)?)?;
        let add = |sum: u64, byte: &u8| (sum << 8) | u64::from(*byte);
        Some(if self.big_endian { bytes.iter().fold(0, add) } else { bytes.iter().rev().fold(0, add) })
    }
}

/// Bytes of one value of a TIFF type; 0 for a type that does not exist.
fn value_bytes(kind: u64) -> u64 {
    match kind {
        1 | 2 | 6 | 7 => 1,
        3 | 8 => 2,
        4 | 9 | 11 | 13 => 4,
        5 | 10 | 12 | 16 | 17 | 18 => 8,
        _ => 0,
    }
}

/// Checks the first directory of a classic or big TIFF; gives how many values the decoder will read.
pub(super) fn check(bytes: &[u8]) -> Result<u64, ImageError> {
    let numbers = Numbers { bytes, big_endian: bytes.starts_with(b"MM") };
    let cut = || ImageError::corrupt("TIFF ends inside its directory");
    let big = numbers.at(2, 2).ok_or_else(cut)? == 43;
    // Widths of an offset, of the count of entries, and of an entry.
    let (offset, count, entry) = if big { (8, 8, 20) } else { (4, 2, 12) };
    let directory = numbers.at(if big { 8 } else { 4 }, offset).ok_or_else(cut)?;
    let entries = numbers.at(directory, count).ok_or_else(cut)?;
    if entries > MAX_ENTRIES {
        return Err(ImageError::corrupt("TIFF with too many directory entries"));
    }
    let first = directory.checked_add(count as u64).ok_or_else(cut)?;
    let mut all_values = 0u64;
    for index in 0..entries {
        let at = first.checked_add(index * entry).ok_or_else(cut)?;
        let (tag, kind) = (numbers.at(at, 2).ok_or_else(cut)?, numbers.at(at + 2, 2).ok_or_else(cut)?);
        if !READ.iter().any(|tags| u16::try_from(tag).is_ok_and(|tag| tags.contains(&tag))) {
            continue;
        }
        let values = numbers.at(at + 4, offset).ok_or_else(cut)?;
        if values > MAX_VALUES {
            return Err(ImageError::corrupt("TIFF with too many strips, tiles or samples"));
        }
        all_values = all_values.saturating_add(values);
        let length = values * value_bytes(kind);
        let place = numbers.at(at + 4 + offset as u64, offset).ok_or_else(cut)?;
        let end = place.checked_add(length).ok_or_else(cut)?;
        if length > offset as u64 && end > bytes.len() as u64 {
            return Err(cut());
        }
    }
    Ok(all_values)
}
