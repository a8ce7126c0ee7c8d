//! Takes a GIF's bytes, gives its first frame on the logical screen, as Pillow does: the screen grows to
//! hold the frame, and what the frame leaves free is transparent when the frame knows transparency, else
//! palette entry 0.

use std::io::Cursor;
use std::num::NonZeroU64;

use gif::{ColorOutput, DecodeOptions, Decoder, Frame, MemoryLimit};

use super::{DECODER_BYTES, Outline, area_bytes};
use crate::color::put_rgba;
use crate::error::ImageError;
use crate::scratch::room;

fn damaged(error: gif::DecodingError) -> ImageError {
    ImageError::corrupt(error.to_string())
}

fn open(bytes: &[u8], limit: u64) -> Result<Decoder<Cursor<&[u8]>>, ImageError> {
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::Indexed);
    options.set_memory_limit(MemoryLimit::Bytes(NonZeroU64::new(limit).unwrap_or(NonZeroU64::MIN)));
    options.read_info(Cursor::new(bytes)).map_err(damaged)
}

/// Reads up to the first frame's description and gives the canvas.
fn canvas(decoder: &mut Decoder<Cursor<&[u8]>>) -> Result<(u32, u32, Frame<'static>), ImageError> {
    let screen = (u32::from(decoder.width()), u32::from(decoder.height()));
    let frame = decoder.next_frame_info().map_err(damaged)?;
    let frame = frame.ok_or_else(|| ImageError::corrupt("GIF without a frame"))?.clone();
    let right = u32::from(frame.left) + u32::from(frame.width);
    let bottom = u32::from(frame.top) + u32::from(frame.height);
    Ok((screen.0.max(right), screen.1.max(bottom), frame))
}

pub(crate) fn header(bytes: &[u8]) -> Result<Outline, ImageError> {
    // Application extensions are the only thing kept before the first frame; they are part of the file.
    let mut decoder = open(bytes, bytes.len() as u64)?;
    let (width, height, frame) = canvas(&mut decoder)?;
    let indices = area_bytes(frame.width.into(), frame.height.into(), 1);
    let working_bytes = DECODER_BYTES.saturating_add(indices).saturating_add(2 * bytes.len() as u64);
    Ok(Outline { width, height, orientation: 1, working_bytes, hidden_bytes: 0 })
}

/// Decodes into `rgb`, which holds exactly `width * height * 3` bytes.
pub(crate) fn decode(
    bytes: &[u8],
    outline: &Outline,
    on_white: bool,
    raw: &mut Vec<u8>,
    rgb: &mut [u8],
) -> Result<(), ImageError> {
    let mut decoder = open(bytes, outline.working_bytes)?;
    let (width, height, frame) = canvas(&mut decoder)?;
    if (width, height) != (outline.width, outline.height) {
        return Err(ImageError::corrupt("GIF has another size than its header was read with"));
    }
    let palette = decoder.palette().map_err(damaged)?.to_vec();
    // An index without an entry is black, as browsers show it.
    let colour = |index: usize| palette.get(index * 3..index * 3 + 3).map_or([0; 3], |e| [e[0], e[1], e[2]]);
    let transparent = frame.transparent.map(usize::from);
    let put = |pixel: &mut [u8], index: usize| {
        let alpha = if transparent == Some(index) { 0 } else { 255 };
        put_rgba(pixel, colour(index), alpha, on_white);
    };

    let (frame_width, frame_height) = (usize::from(frame.width), usize::from(frame.height));
    if frame_width == 0 || frame_height == 0 {
        return Err(ImageError::corrupt("GIF with an empty first frame"));
    }
    let indices = room(raw, frame_width * frame_height);
    decoder.read_into_buffer(indices).map_err(damaged)?;

    let background = transparent.unwrap_or(0);
    for pixel in rgb.chunks_exact_mut(3) {
        put(pixel, background);
    }
    let width = outline.width as usize;
    let rows = rgb.chunks_exact_mut(width * 3).skip(usize::from(frame.top));
    for (line, row) in rows.zip(indices.chunks_exact(frame_width)) {
        let pixels = line.chunks_exact_mut(3).skip(usize::from(frame.left));
        for (pixel, index) in pixels.zip(row) {
            put(pixel, usize::from(*index));
        }
    }
    Ok(())
}
