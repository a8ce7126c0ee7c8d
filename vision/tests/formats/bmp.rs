use super::*;

/// A bitmap with a 40 byte header; rows must be padded by the caller.
fn bitmap(width: i32, height: i32, bits: u16, compression: u32, palette: &[[u8; 4]], rows: &[u8]) -> Vec<u8> {
    let offset = 14 + 40 + palette.len() * 4;
    let mut out = b"BM".to_vec();
    out.extend(((offset + rows.len()) as u32).to_le_bytes());
    out.extend([0; 4]);
    out.extend((offset as u32).to_le_bytes());
    out.extend(40u32.to_le_bytes());
    out.extend(width.to_le_bytes());
    out.extend(height.to_le_bytes());
    out.extend(1u16.to_le_bytes());
    out.extend(bits.to_le_bytes());
    out.extend(compression.to_le_bytes());
    out.extend((rows.len() as u32).to_le_bytes());
    out.extend([0; 8]);
    out.extend((palette.len() as u32).to_le_bytes());
    out.extend([0; 4]);
    out.extend(palette.iter().flatten());
    out.extend(rows);
    out
}

#[test]
fn the_fourth_byte_of_plain_32_bit_pixels_is_not_alpha() {
    let file = bitmap(2, 1, 32, 0, &[], &[3, 2, 1, 0, 30, 20, 10, 128]);
    assert_eq!(triples(&decode(&file)), [[1, 2, 3], [10, 20, 30]]);
}

#[test]
fn one_and_four_bit_palettes_and_both_row_orders() {
    let palette = [[10, 20, 30, 0], [40, 50, 60, 0], [70, 80, 90, 0]];
    // Rows from below; the upper one is 0 1 0.
    let file = bitmap(3, 2, 1, 0, &palette[..2], &[0b1110_0000, 0, 0, 0, 0b0100_0000, 0, 0, 0]);
    let expected = [[30, 20, 10], [60, 50, 40], [30, 20, 10], [60, 50, 40], [60, 50, 40], [60, 50, 40]];
    assert_eq!(triples(&decode(&file)), expected);
    // A negative height: rows from above.
    let file = bitmap(3, -2, 4, 0, &palette, &[0x01, 0x20, 0, 0, 0x22, 0x20, 0, 0]);
    let expected = [[30, 20, 10], [60, 50, 40], [90, 80, 70], [90, 80, 70], [90, 80, 70], [90, 80, 70]];
    assert_eq!(triples(&decode(&file)), expected);
}

#[test]
fn run_lengths() {
    let palette = [[0, 0, 0, 0], [255, 255, 255, 0]];
    // Three times 1, one times 0, end of line, four times 1, end of bitmap.
    let file = bitmap(4, 2, 8, 1, &palette, &[3, 1, 1, 0, 0, 0, 4, 1, 0, 1]);
    assert_eq!(grays(&decode(&file)), [255, 255, 255, 255, 255, 255, 255, 0]);
}

#[test]
fn a_huge_declared_size_is_refused_from_the_header() {
    let file = bitmap(60_000, 60_000, 24, 0, &[], &[0; 12]);
    assert_eq!(class(&file), ImageClass::TooLarge);
}
