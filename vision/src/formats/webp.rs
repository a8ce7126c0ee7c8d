//! Takes a WebP's bytes, gives its first frame as RGB.

use std::io::Cursor;

use image_webp::WebPDecoder;

use super::{DECODER_BYTES, Outline, area_bytes};
use crate::color::rgba_to_rgb;
use crate::error::ImageError;
use crate::exif;
use crate::scratch::room;

fn damaged(error: image_webp::DecodingError) -> ImageError {
    ImageError::corrupt(error.to_string())
}

fn open(bytes: &[u8]) -> Result<WebPDecoder<Cursor<&[u8]>>, ImageError> {
    // The decoder would read on with what is there; a file that is shorter than it says is cut.
    let declared = bytes.get(4..8).map(|size| u32::from_le_bytes([size[0], size[1], size[2], size[3]]));
    if declared.is_none_or(|size| u64::from(size) + 8 > bytes.len() as u64) {
        return Err(ImageError::corrupt("WebP is shorter than its header says"));
    }
    let decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(damaged)?;
    // The decoder allocates for the size that the picture's own stream says, and compares afterwards.
    let (width, height) = decoder.dimensions();
    for (frame_width, frame_height) in stream_sizes(bytes) {
        if frame_width > width || frame_height > height {
            return Err(ImageError::corrupt("WebP frame larger than its canvas"));
        }
    }
    Ok(decoder)
}

/// Chunks from `bytes` on: kind, and data as far as the file goes.
fn chunks(bytes: &[u8]) -> impl Iterator<Item = ([u8; 4], &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (kind, behind) = rest.split_first_chunk::<4>()?;
        let (size, behind) = behind.split_first_chunk::<4>()?;
        let size = usize::try_from(u32::from_le_bytes(*size)).ok()?;
        let data = &behind[..size.min(behind.len())];
        // Chunks begin at even places.
        rest = behind.get(size.checked_next_multiple_of(2)?..).unwrap_or_default();
        Some((*kind, data))
    })
}

/// All chunks of a file, those inside frames too.
fn all_chunks(bytes: &[u8]) -> impl Iterator<Item = ([u8; 4], &[u8])> {
    /// Bytes of a frame's own header, before its chunks.
    const FRAME_HEADER: usize = 16;
    chunks(bytes.get(12..).unwrap_or_default()).flat_map(|(kind, data)| {
        let inside = if kind == *b"ANMF" { data.get(FRAME_HEADER..) } else { None };
        std::iter::once((kind, data)).chain(chunks(inside.unwrap_or_default()))
    })
}

/// Most bytes of the Huffman tables that lossless streams of this length can make their decoder hold. A code of
/// 2,048 symbols, 11 bits each, is written in 136 bytes and takes 4 KiB for its table and 64 KiB for its tree:
/// 512 times as much, the most there is; some room above that for what vectors keep in reserve.
fn table_bytes(bytes: &[u8]) -> u64 {
    const TABLE_BYTES_A_BYTE: u64 = 640;
    /// 65,536 groups of five codes, of which one has the large alphabet.
    const MOST: u64 = 65_536 * (128 << 10);
    let streams = all_chunks(bytes).filter(|(kind, _)| matches!(kind, b"VP8L" | b"ALPH"));
    let length: u64 = streams.map(|(_, data)| data.len() as u64).sum();
    length.saturating_mul(TABLE_BYTES_A_BYTE).min(MOST)
}

/// Width and height that every VP8 and VP8L stream declares, in frames too.
fn stream_sizes(bytes: &[u8]) -> impl Iterator<Item = (u32, u32)> {
    all_chunks(bytes).filter_map(|(kind, data)| match &kind {
        b"VP8 " => {
            let [w0, w1, h0, h1] = *data.get(6..)?.first_chunk::<4>()?;
            let side = |low, high| u32::from(u16::from_le_bytes([low, high]) & 0x3FFF);
            Some((side(w0, w1), side(h0, h1)))
        }
        b"VP8L" => {
            let bits = u32::from_le_bytes(*data.get(1..)?.first_chunk::<4>()?);
            Some(((bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1))
        }
        _ => None,
    })
}

pub(crate) fn header(bytes: &[u8]) -> Result<Outline, ImageError> {
    let mut decoder = open(bytes)?;
    decoder.set_memory_limit(bytes.len());
    let (width, height) = decoder.dimensions();
    let exif = decoder.exif_metadata().map_err(damaged)?;
    let orientation = exif.as_deref().and_then(exif::orientation).unwrap_or(1);
    // The decoder's own planes or transforms, a frame, a canvas, and our copy with alpha: 4 bytes each.
    let working_bytes = DECODER_BYTES.saturating_add(area_bytes(width, height, 5 * 4));
    Ok(Outline { width, height, orientation, working_bytes, hidden_bytes: table_bytes(bytes) })
}

/// Decodes into `rgb`, which holds exactly `width * height * 3` bytes.
pub(crate) fn decode(
    bytes: &[u8],
    outline: &Outline,
    on_white: bool,
    raw: &mut Vec<u8>,
    rgb: &mut [u8],
) -> Result<(), ImageError> {
    let mut decoder = open(bytes)?;
    if decoder.dimensions() != (outline.width, outline.height) {
        return Err(ImageError::corrupt("WebP has another size than its header was read with"));
    }
    decoder.set_memory_limit(usize::try_from(outline.working_bytes).unwrap_or(usize::MAX));
    if decoder.has_alpha() {
        let rgba = room(raw, rgb.len() / 3 * 4);
        decoder.read_image(rgba).map_err(damaged)?;
        rgba_to_rgb(rgba, rgb, on_white);
    } else {
        decoder.read_image(rgb).map_err(damaged)?;
    }
    Ok(())
}
