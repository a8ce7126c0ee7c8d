//! Takes a Windows bitmap's bytes, gives RGB. An alpha channel counts only when the file declares its mask.

use std::io::Cursor;

use image::codecs::bmp::BmpDecoder;
use image::{ColorType, ImageDecoder};

use super::{DECODER_BYTES, Outline, area_bytes};
use crate::color::rgba_to_rgb;
use crate::error::ImageError;
use crate::scratch::room;

fn damaged(error: image::ImageError) -> ImageError {
    match error {
        image::ImageError::Unsupported(_) => {
            ImageError::Unsupported { detected: "BMP of a rare kind (compression or colour masks)" }
        }
        other => ImageError::corrupt(other.to_string()),
    }
}

fn open(bytes: &[u8]) -> Result<BmpDecoder<Cursor<&[u8]>>, ImageError> {
    BmpDecoder::new(Cursor::new(bytes)).map_err(damaged)
}

pub(crate) fn header(bytes: &[u8]) -> Result<Outline, ImageError> {
    let (width, height) = open(bytes)?.dimensions();
    let working_bytes =
        DECODER_BYTES.saturating_add(area_bytes(width, height, 4)).saturating_add(u64::from(width) * 16);
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
    let decoder = open(bytes)?;
    if decoder.dimensions() != (outline.width, outline.height) {
        return Err(ImageError::corrupt("BMP has another size than its header was read with"));
    }
    match decoder.color_type() {
        ColorType::Rgb8 => decoder.read_image(rgb).map_err(damaged),
        ColorType::Rgba8 => {
            let rgba = room(raw, rgb.len() / 3 * 4);
            decoder.read_image(rgba).map_err(damaged)?;
            rgba_to_rgb(rgba, rgb, on_white);
            Ok(())
        }
        _ => Err(ImageError::Unsupported { detected: "BMP of a rare kind (colour type)" }),
    }
}
