//! Takes a TIFF's bytes, gives its first page as RGB: gray of 1 to 16 bits, gray with alpha, RGB, RGBA and
//! CMYK of 8 or 16 bits, in strips or tiles, chunky or in planes; uncompressed, LZW, deflate or PackBits.
//!
//! JPEG inside TIFF is refused: the decoder at hand does not give libjpeg-turbo's pixels.

use std::io::Cursor;

use tiff::decoder::{BufferLayoutPreference, Decoder, Limits};
use tiff::tags::{SampleFormat, Tag};
use tiff::{ColorType, TiffError};

use super::{DECODER_BYTES, Outline, tiff_directory};
use crate::color::{inverted_cmyk_to_rgb, put_rgba};
use crate::error::ImageError;
use crate::scratch::room;

/// Widest strip or tile, when the picture is narrower: tiles of 16 to 1024 pixels are usual, a far wider one
/// would only make the decoder allocate.
const WIDEST_TILE: u32 = 8192;

fn damaged(error: TiffError) -> ImageError {
    match error {
        TiffError::UnsupportedError(_) => ImageError::Unsupported {
            detected: "TIFF of a rare kind (compression, colours or sample format)",
        },
        other => ImageError::corrupt(other.to_string()),
    }
}

/// A file at its first page.
struct Opened<'a> {
    decoder: Decoder<Cursor<&'a [u8]>>,
    page: Page,
    /// Values in the directory that the decoder reads.
    values: u64,
    /// Width, height in pixels.
    size: (u32, u32),
}

/// How the samples of a page lie in the decoder's output.
struct Page {
    color: ColorType,
    layout: BufferLayoutPreference,
    /// ExtraSamples of the first extra channel: 1 alpha already multiplied in, 2 alpha, else not alpha.
    extra: u16,
}

fn open(bytes: &[u8]) -> Result<Opened<'_>, ImageError> {
    let values = tiff_directory::check(bytes)?;
    let mut decoder = Decoder::new(Cursor::new(bytes)).map_err(damaged)?;
    let size = decoder.dimensions().map_err(damaged)?;
    let color = decoder.colortype().map_err(damaged)?;
    if decoder.chunk_dimensions().0 > size.0.max(WIDEST_TILE) {
        return Err(ImageError::corrupt("TIFF with tiles far wider than the picture"));
    }
    let layout = decoder.image_buffer_layout().map_err(damaged)?;
    let extra = decoder.find_tag_unsigned_vec::<u16>(Tag::ExtraSamples).map_err(damaged)?;
    let extra = extra.and_then(|kinds| kinds.first().copied()).unwrap_or(0);
    if layout.sample_format != SampleFormat::Uint {
        return Err(ImageError::Unsupported { detected: "TIFF with signed or floating-point samples" });
    }
    Ok(Opened { decoder, page: Page { color, layout, extra }, values, size })
}

pub(crate) fn header(bytes: &[u8]) -> Result<Outline, ImageError> {
    let Opened { mut decoder, page, values, size: (width, height) } = open(bytes)?;
    let orientation = decoder.find_tag(Tag::Orientation).ok().flatten();
    let orientation = orientation.and_then(|value| value.into_u16().ok()).unwrap_or(1);
    let orientation = u8::try_from(orientation).ok().filter(|value| (1..=8).contains(value)).unwrap_or(1);
    // Besides the samples: one row of a tile, and the directory's arrays while they are read.
    let working_bytes = DECODER_BYTES
        .saturating_add(page.layout.complete_len as u64)
        .saturating_add(u64::from(width.max(WIDEST_TILE)) * 16)
        .saturating_add(values.saturating_mul(64));
    Ok(Outline { width, height, orientation, working_bytes, hidden_bytes: 0 })
}

/// Decodes into `rgb`, which holds exactly `width * height * 3` bytes.
pub(crate) fn decode(
    bytes: &[u8],
    outline: &Outline,
    on_white: bool,
    raw: &mut Vec<u8>,
    rgb: &mut [u8],
) -> Result<(), ImageError> {
    let Opened { decoder, page, size, .. } = open(bytes)?;
    if size != (outline.width, outline.height) {
        return Err(ImageError::corrupt("TIFF has another size than its header was read with"));
    }
    let length = page.layout.complete_len;
    if length as u64 > outline.working_bytes {
        return Err(ImageError::corrupt("TIFF needs more memory than its header was read with"));
    }
    let mut limits = Limits::default();
    limits.decoding_buffer_size = length;
    // A compressed strip or tile is never longer than the file.
    limits.intermediate_buffer_size = bytes.len();
    let mut decoder = decoder.with_limits(limits);
    let samples = room(raw, length);
    decoder.read_image_bytes(samples).map_err(damaged)?;
    page.to_rgb(samples, outline.width as usize, on_white, rgb)
}

impl Page {
    fn to_rgb(&self, samples: &[u8], width: usize, on_white: bool, rgb: &mut [u8]) -> Result<(), ImageError> {
        let rare = ImageError::Unsupported { detected: "TIFF of a rare kind (colours)" };
        let row_stride = self.layout.row_stride.map_or(0, |stride| stride.get());
        let plane_stride = self.layout.plane_stride.map_or(0, |stride| stride.get());
        let depth = self.color.bit_depth();
        let channels = usize::from(self.color.num_samples());
        let sample_bytes = match depth {
            1 | 2 | 4 | 8 => 1,
            16 => 2,
            _ => return Err(rare),
        };
        let planes = self.layout.planes > 1;
        let lines = rgb.chunks_exact_mut(width * 3).enumerate();
        // The 8 bit value (for 16 bits: the high byte) of one channel of one pixel.
        let at = |x: usize, y: usize, channel: usize| {
            let (plane, column) = if planes { (channel, x) } else { (0, x * channels + channel) };
            let place = plane * plane_stride + y * row_stride + column * sample_bytes;
            match samples.get(place..place + sample_bytes) {
                Some([value]) => *value,
                Some([first, second]) => u16::from_ne_bytes([*first, *second]).to_be_bytes()[0],
                _ => 0,
            }
        };
        match self.color {
            ColorType::Gray(1 | 2 | 4) => {
                let bits = usize::from(depth);
                let (mask, spread) = ((1u8 << bits) - 1, 255 / ((1u8 << bits) - 1));
                for (y, line) in lines {
                    for (x, pixel) in line.chunks_exact_mut(3).enumerate() {
                        let byte = samples.get(y * row_stride + x * bits / 8).copied().unwrap_or(0);
                        let value = (byte >> (8 - bits - (x * bits) % 8)) & mask;
                        pixel.fill(value * spread);
                    }
                }
            }
            ColorType::Gray(8 | 16) => {
                for (y, line) in lines {
                    for (x, pixel) in line.chunks_exact_mut(3).enumerate() {
                        pixel.fill(at(x, y, 0));
                    }
                }
            }
            ColorType::Multiband { bit_depth: 8 | 16, num_samples: 2 } => {
                for (y, line) in lines {
                    for (x, pixel) in line.chunks_exact_mut(3).enumerate() {
                        self.put_alpha(pixel, [at(x, y, 0); 3], at(x, y, 1), on_white);
                    }
                }
            }
            ColorType::RGB(8 | 16) => {
                for (y, line) in lines {
                    for (x, pixel) in line.chunks_exact_mut(3).enumerate() {
                        pixel.copy_from_slice(&[at(x, y, 0), at(x, y, 1), at(x, y, 2)]);
                    }
                }
            }
            ColorType::RGBA(8 | 16) => {
                for (y, line) in lines {
                    for (x, pixel) in line.chunks_exact_mut(3).enumerate() {
                        self.put_alpha(pixel, [at(x, y, 0), at(x, y, 1), at(x, y, 2)], at(x, y, 3), on_white);
                    }
                }
            }
            ColorType::CMYK(8 | 16) => {
                for (y, line) in lines {
                    for (x, pixel) in line.chunks_exact_mut(3).enumerate() {
                        let inverted = [0, 1, 2, 3].map(|channel| 255 - at(x, y, channel));
                        inverted_cmyk_to_rgb(&inverted, pixel);
                    }
                }
            }
            _ => return Err(rare),
        }
        Ok(())
    }

    /// The fourth channel counts as alpha only when the file says so.
    fn put_alpha(&self, pixel: &mut [u8], rgb: [u8; 3], alpha: u8, on_white: bool) {
        match self.extra {
            // Alpha multiplied in: divided out first, as Pillow does, so that the colours are as stored.
            1 if alpha != 0 => {
                let divided = rgb
                    .map(|channel| u8::try_from(255 * u32::from(channel) / u32::from(alpha)).unwrap_or(255));
                put_rgba(pixel, divided, alpha, on_white);
            }
            1 | 2 => put_rgba(pixel, rgb, alpha, on_white),
            _ => put_rgba(pixel, rgb, 255, on_white),
        }
    }
}
