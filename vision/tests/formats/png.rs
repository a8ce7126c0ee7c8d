use ::png::{BitDepth, ColorType, Encoder};

use super::*;

struct File<'a> {
    size: (u32, u32),
    color: ColorType,
    depth: BitDepth,
    palette: &'a [u8],
    transparent: &'a [u8],
    data: &'a [u8],
}

impl File<'_> {
    fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut encoder = Encoder::new(&mut out, self.size.0, self.size.1);
        encoder.set_color(self.color);
        encoder.set_depth(self.depth);
        if !self.palette.is_empty() {
            encoder.set_palette(self.palette);
        }
        if !self.transparent.is_empty() {
            encoder.set_trns(self.transparent);
        }
        let mut writer = encoder.write_header().unwrap();
        writer.write_image_data(self.data).unwrap();
        writer.finish().unwrap();
        out
    }
}

#[test]
fn a_gray_key_is_compared_at_the_file_s_depth() {
    let file = File {
        size: (4, 1),
        color: ColorType::Grayscale,
        depth: BitDepth::Four,
        palette: &[],
        transparent: &[0, 3],
        data: &[0x03, 0x3F],
    };
    assert_eq!(grays(&decode(&file.bytes())), [0, 255, 255, 255]);
    let kept = decode_with(&file.bytes(), ColorPolicy { alpha_on_white: false, ..Default::default() });
    assert_eq!(grays(&kept), [0, 51, 51, 255]);
    // 0x1234 is the key, 0x1235 and 0x1200 have the same high byte.
    let file = File {
        size: (3, 1),
        color: ColorType::Grayscale,
        depth: BitDepth::Sixteen,
        palette: &[],
        transparent: &[0x12, 0x34],
        data: &[0x12, 0x34, 0x12, 0x35, 0x12, 0x00],
    };
    assert_eq!(grays(&decode(&file.bytes())), [255, 0x12, 0x12]);
}

#[test]
fn a_colour_key_is_compared_at_the_file_s_depth() {
    let file = File {
        size: (2, 1),
        color: ColorType::Rgb,
        depth: BitDepth::Sixteen,
        palette: &[],
        transparent: &[0, 1, 0, 2, 0, 3],
        data: &[0, 1, 0, 2, 0, 3, 0, 1, 0, 2, 0, 4],
    };
    assert_eq!(triples(&decode(&file.bytes())), [[255; 3], [0; 3]]);
}

#[test]
fn palette_entries_without_alpha_are_opaque_and_missing_entries_are_black() {
    let file = File {
        size: (4, 1),
        color: ColorType::Indexed,
        depth: BitDepth::Two,
        palette: &[10, 20, 30, 40, 50, 60, 70, 80, 90],
        transparent: &[0, 128],
        data: &[0b00_01_10_11],
    };
    let blend = |channel: u32| ((channel * 128 + 255 * 127 + 127) / 255) as u8;
    let expected = [[255; 3], [blend(40), blend(50), blend(60)], [70, 80, 90], [0; 3]];
    assert_eq!(triples(&decode(&file.bytes())), expected);
}

/// Interlacing by hand is left to the golden file; its damage is not.
#[test]
fn a_checksum_that_is_wrong_is_corrupt() {
    let mut bytes = golden("png_rgb_interlaced.png");
    let data = bytes.windows(4).position(|kind| kind == b"IDAT").unwrap();
    bytes[data + 40] ^= 1;
    assert_eq!(class(&bytes), ImageClass::Corrupt);
}

#[test]
fn orientation_is_found_behind_the_pixels_too() {
    let plain = golden("png_exif6.png");
    let at = plain.windows(4).position(|kind| kind == b"eXIf").unwrap() - 4;
    let length = u32::from_be_bytes(plain[at..at + 4].try_into().unwrap()) as usize + 12;
    let mut moved = plain.clone();
    let chunk: Vec<u8> = moved.splice(at..at + length, []).collect();
    let end = moved.len() - 12;
    moved.splice(end..end, chunk);
    assert_eq!(header(&moved).orientation(), 6);
    assert!(decode(&moved) == decode(&plain), "same picture");
}
