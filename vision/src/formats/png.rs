//! Takes a PNG's bytes, gives RGB: own conversion from the file's samples, row by row, because the exact
//! rules (16 bit → high byte, tRNS compared at the file's own depth) are ours. ICC profiles and gAMA are
//! ignored. Interlaced rows are put straight into their places.

use std::io::Cursor;

use png::{BitDepth, ColorType, Decoder, Limits, Reader, Transformations};

use super::{DECODER_BYTES, Outline};
use crate::color::{put_rgba, rgba_to_rgb};
use crate::error::ImageError;
use crate::exif;

/// What ancillary chunks and row buffers may allocate in the decoder: a picture at the pixel limit that is
/// one row high needs 8 bytes per pixel of it, everything else is ignored or far smaller.
const CHUNK_LIMIT: usize = 64 << 20;

/// Adam7: first column, first row, column step, row step of each pass.
const ADAM7: [[usize; 4]; 7] =
    [[0, 0, 8, 8], [4, 0, 8, 8], [0, 4, 4, 8], [2, 0, 4, 4], [0, 2, 2, 4], [1, 0, 2, 2], [0, 1, 1, 2]];

pub(crate) fn header(bytes: &[u8]) -> Result<Outline, ImageError> {
    let cut = || ImageError::corrupt("PNG ends inside its header");
    let first = bytes.get(8..33).ok_or_else(cut)?;
    if first[..8] != *b"\0\0\0\x0DIHDR" {
        return Err(ImageError::corrupt("PNG does not begin with its header chunk"));
    }
    let number = |at: usize| u32::from_be_bytes([first[at], first[at + 1], first[at + 2], first[at + 3]]);
    let (width, height) = (number(8), number(12));
    // The decoder keeps a few rows at up to 8 bytes per pixel.
    let working = DECODER_BYTES + u64::from(width) * 8 * 8 + chunk_bytes(bytes);
    Ok(Outline {
        width,
        height,
        orientation: orientation(bytes).unwrap_or(1),
        working_bytes: working,
        hidden_bytes: 0,
    })
}

/// Walks the chunks, which may stand before or after the pixels.
fn chunks(bytes: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut at = 8;
    std::iter::from_fn(move || {
        let head = bytes.get(at..at + 8)?;
        let length = usize::try_from(u32::from_be_bytes(head[..4].try_into().ok()?)).ok()?;
        let data = bytes.get(at + 8..at.checked_add(8)?.checked_add(length)?)?;
        at = at + 12 + length;
        Some((&head[4..8], data))
    })
}

fn orientation(bytes: &[u8]) -> Option<u8> {
    chunks(bytes).find(|(kind, _)| *kind == b"eXIf").and_then(|(_, data)| exif::orientation(data))
}

/// The decoder takes chunks other than pixels as a whole, and keeps a copy of some.
fn chunk_bytes(bytes: &[u8]) -> u64 {
    let others = chunks(bytes).filter(|(kind, _)| *kind != b"IDAT");
    2 * others.map(|(_, data)| data.len() as u64).max().unwrap_or(0)
}

fn damaged(error: png::DecodingError) -> ImageError {
    ImageError::corrupt(error.to_string())
}

/// Decodes into `rgb`, which holds exactly `width * height * 3` bytes.
pub(crate) fn decode(
    bytes: &[u8],
    outline: &Outline,
    on_white: bool,
    rgb: &mut [u8],
) -> Result<(), ImageError> {
    let mut decoder = Decoder::new_with_limits(Cursor::new(bytes), Limits { bytes: CHUNK_LIMIT });
    decoder.set_transformations(Transformations::IDENTITY);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let mut reader = decoder.read_info().map_err(damaged)?;
    let info = reader.info();
    if (info.width, info.height) != (outline.width, outline.height) {
        return Err(ImageError::corrupt("PNG has another size than its header was read with"));
    }
    let interlaced = info.interlaced;
    let samples = Samples {
        color: info.color_type,
        depth: info.bit_depth,
        palette: info.palette.as_deref().unwrap_or_default().to_vec(),
        key: info.trns.as_deref().map(<[u8]>::to_vec),
        on_white,
    };
    let (width, height) = (outline.width as usize, outline.height as usize);
    let whole = [[0, 0, 1, 1]];
    for [x0, y0, dx, dy] in if interlaced { &ADAM7[..] } else { &whole[..] }.iter().copied() {
        let columns = width.saturating_sub(x0).div_ceil(dx);
        if columns == 0 {
            continue;
        }
        for y in (y0..height).step_by(dy) {
            let row = next_row(&mut reader, samples.row_bytes(columns))?;
            let line = &mut rgb[y * width * 3..(y + 1) * width * 3];
            samples.put_row(row, x0, dx, line);
        }
    }
    // Reads to the end of the pixel chunks, so that a checksum or a cut there is seen.
    match reader.next_row().map_err(damaged)? {
        None => Ok(()),
        Some(_) => Err(ImageError::corrupt("PNG has more rows than its header says")),
    }
}

fn next_row<'a>(reader: &'a mut Reader<Cursor<&[u8]>>, expected: usize) -> Result<&'a [u8], ImageError> {
    let row = reader.next_row().map_err(damaged)?;
    let row = row.ok_or_else(|| ImageError::corrupt("PNG has fewer rows than its header says"))?;
    if row.data().len() != expected {
        return Err(ImageError::corrupt("PNG row of the wrong length"));
    }
    Ok(row.data())
}

/// How the file's samples become RGB.
struct Samples {
    color: ColorType,
    depth: BitDepth,
    palette: Vec<u8>,
    /// tRNS: alpha per palette entry, or the transparent gray or colour at the file's depth.
    key: Option<Vec<u8>>,
    on_white: bool,
}

impl Samples {
    fn row_bytes(&self, columns: usize) -> usize {
        (columns * self.color.samples() * self.depth as usize).div_ceil(8)
    }

    /// Writes a row (or a row of an interlaced pass) to `line` at columns `x0`, `x0 + dx`, …
    fn put_row(&self, row: &[u8], x0: usize, dx: usize, line: &mut [u8]) {
        let bytes_per_sample = if self.depth == BitDepth::Sixteen { 2 } else { 1 };
        let pixels = line.chunks_exact_mut(3).skip(x0).step_by(dx);
        match (self.color, self.depth, dx) {
            (ColorType::Rgb, BitDepth::Eight, 1) if self.key.is_none() => line.copy_from_slice(row),
            (ColorType::Rgba, BitDepth::Eight, 1) => rgba_to_rgb(row, line, self.on_white),
            (ColorType::Rgb, ..) => {
                let key = self.key.as_deref();
                for (source, pixel) in row.chunks_exact(3 * bytes_per_sample).zip(pixels) {
                    let alpha = if key == Some(source) { 0 } else { 255 };
                    let at = |channel: usize| source[channel * bytes_per_sample];
                    put_rgba(pixel, [at(0), at(1), at(2)], alpha, self.on_white);
                }
            }
            (ColorType::Rgba, ..) => {
                for (source, pixel) in row.chunks_exact(4 * bytes_per_sample).zip(pixels) {
                    let at = |channel: usize| source[channel * bytes_per_sample];
                    put_rgba(pixel, [at(0), at(1), at(2)], at(3), self.on_white);
                }
            }
            (ColorType::GrayscaleAlpha, ..) => {
                for (source, pixel) in row.chunks_exact(2 * bytes_per_sample).zip(pixels) {
                    put_rgba(pixel, [source[0]; 3], source[bytes_per_sample], self.on_white);
                }
            }
            (ColorType::Grayscale, BitDepth::Sixteen, _) => {
                let key = self.key.as_deref();
                for (source, pixel) in row.chunks_exact(2).zip(pixels) {
                    let alpha = if key == Some(source) { 0 } else { 255 };
                    put_rgba(pixel, [source[0]; 3], alpha, self.on_white);
                }
            }
            (ColorType::Grayscale, ..) => {
                let key = self.key.as_deref().and_then(|key| key.first());
                // 1 bit: 255, 2 bit: 85, 4 bit: 17, 8 bit: 1.
                let spread = (255u16 / ((1 << self.depth as u16) - 1)) as u8;
                for (x, pixel) in pixels.enumerate() {
                    let value = self.packed(row, x);
                    let alpha = if key == Some(&value) { 0 } else { 255 };
                    put_rgba(pixel, [value.wrapping_mul(spread); 3], alpha, self.on_white);
                }
            }
            (ColorType::Indexed, ..) => {
                let alphas = self.key.as_deref().unwrap_or_default();
                for (x, pixel) in pixels.enumerate() {
                    let index = usize::from(self.packed(row, x));
                    // An index without an entry is black, as browsers show it.
                    let entry = self.palette.get(index * 3..index * 3 + 3);
                    let rgb = entry.map_or([0; 3], |entry| [entry[0], entry[1], entry[2]]);
                    let alpha = alphas.get(index).copied().unwrap_or(255);
                    put_rgba(pixel, rgb, alpha, self.on_white);
                }
            }
        }
    }

    /// Sample `x` of a row with at most 8 bits per sample; the leftmost is in the high bits.
    fn packed(&self, row: &[u8], x: usize) -> u8 {
        let bits = self.depth as usize;
        let shift = 8 - bits - (x * bits) % 8;
        let mask = (0xFFu16 >> (8 - bits)) as u8;
        (row[x * bits / 8] >> shift) & mask
    }
}
