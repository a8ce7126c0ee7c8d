//! Takes an EXIF block, gives the orientation. Anything broken is orientation 1: a bad tag is ignored.

/// Tag number of Orientation.
const ORIENTATION: u16 = 0x0112;
/// TIFF type SHORT, the only one that the EXIF standard allows for Orientation.
const SHORT: u16 = 3;

/// Reads the orientation (1..=8) from an EXIF block: a TIFF header with its directory, with or without
/// the leading `Exif\0\0`. `None` when there is no valid tag. Only the first directory counts; the second
/// describes a thumbnail.
pub(crate) fn orientation(block: &[u8]) -> Option<u8> {
    let tiff = block.strip_prefix(b"Exif\0\0").unwrap_or(block);
    let big = match tiff.get(..4)? {
        b"II*\0" => false,
        b"MM\0*" => true,
        _ => return None,
    };
    let u16_at = |at: usize| {
        let two: [u8; 2] = tiff.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if big { u16::from_be_bytes(two) } else { u16::from_le_bytes(two) })
    };
    let u32_at = |at: usize| {
        let four: [u8; 4] = tiff.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if big { u32::from_be_bytes(four) } else { u32::from_le_bytes(four) })
    };
    let directory = usize::try_from(u32_at(4)?).ok()?;
    let entries = usize::from(u16_at(directory)?);
    for entry in 0..entries {
        let at = directory.checked_add(2 + 12 * entry)?;
        if u16_at(at)? == ORIENTATION {
            let (kind, count, value) = (u16_at(at + 2)?, u32_at(at + 4)?, u16_at(at + 8)?);
            let valid = kind == SHORT && count == 1 && (1..=8).contains(&value);
            return if valid { u8::try_from(value).ok() } else { None };
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::orientation;

    fn block(big: bool, entries: &[(u16, u16, u32, u16)]) -> Vec<u8> {
        let two = |v: u16| {
            if big { v.to_be_bytes() } else { v.to_le_bytes() }
        };
        let four = |v: u32| {
            if big { v.to_be_bytes() } else { v.to_le_bytes() }
        };
        let mut out = if big { b"MM\0*".to_vec() } else { b"II*\0".to_vec() };
        out.extend(four(8));
        out.extend(two(entries.len() as u16));
        for &(tag, kind, count, value) in entries {
            out.extend(two(tag));
            out.extend(two(kind));
            out.extend(four(count));
            out.extend(two(value));
            out.extend([0, 0]);
        }
        out
    }

    #[test]
    fn reads_both_byte_orders_with_and_without_prefix() {
        for big in [false, true] {
            let plain = block(big, &[(0x010F, 2, 4, 0), (0x0112, 3, 1, 6)]);
            assert_eq!(orientation(&plain), Some(6));
            let prefixed = [b"Exif\0\0".as_slice(), &plain].concat();
            assert_eq!(orientation(&prefixed), Some(6));
        }
    }

    #[test]
    fn ignores_what_is_not_a_valid_tag() {
        for entry in
            [(0x0112, 3, 1, 0), (0x0112, 3, 1, 9), (0x0112, 4, 1, 6), (0x0112, 3, 2, 6), (0x0113, 3, 1, 6)]
        {
            assert_eq!(orientation(&block(false, &[entry])), None, "{entry:?}");
        }
    }

    #[test]
    fn every_cut_block_is_ignored() {
        let whole = block(true, &[(0x010F, 2, 4, 0), (0x0112, 3, 1, 6)]);
        for cut in 0..whole.len() - 2 {
            assert_eq!(orientation(&whole[..cut]), None, "cut at {cut}");
        }
    }

    #[test]
    fn a_directory_offset_past_the_end_is_ignored() {
        assert_eq!(orientation(b"II*\0\xFF\xFF\xFF\xFF"), None);
    }
}
