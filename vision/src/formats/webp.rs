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
    let declared = bytes
        .get(4..8)
        .map(|size| u32::from_le_bytes([size[0], size[1], size[2], size[3]]));
    if declared.is_none_or(|size| u64::from(size) + 8 > bytes.len() as u64) {
        return Err(ImageError::corrupt("WebP is shorter than its header says"));
    }
    WebPDecoder::new(Cursor::new(bytes)).map_err(damaged)
}

pub(crate) fn header(bytes: &[u8]) -> Result<Outline, ImageError> {
    let mut decoder = open(bytes)?;
    decoder.set_memory_limit(bytes.len());
    let (width, height) = decoder.dimensions();
    let exif = decoder.exif_metadata().map_err(damaged)?;
    let orientation = exif.as_deref().and_then(exif::orientation).unwrap_or(1);
    // The decoder's own planes or transforms, a frame, a canvas, and our copy with alpha: 4 bytes each.
    let working_bytes = DECODER_BYTES.saturating_add(area_bytes(width, height, 5 * 4));
    Ok(Outline {
        width,
        height,
        orientation,
        working_bytes,
    })
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
        return Err(ImageError::corrupt(
            "WebP has another size than its header was read with",
        ));
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
