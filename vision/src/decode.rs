//! Takes an image's bytes and header, gives RGB as the policy shows it.

use crate::error::ImageError;
use crate::formats::{bmp, gif, jpeg, png, tiff, webp};
use crate::header::ImageHeader;
use crate::limits::ColorPolicy;
use crate::orient;
use crate::panics::contained;
use crate::scratch::{PADDING, Scratch, room};
use crate::sniff::Format;

/// A decoded picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RgbImage {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// `height * width * 3` bytes, row-major, R G B.
    pub pixels: Vec<u8>,
}

/// Decodes to RGB by the policy (see [`ColorPolicy`]), turned as it should be seen.
///
/// # Errors
/// [`ImageError::Corrupt`] or [`ImageError::Unsupported`]; never a partly decoded picture.
pub fn decode_rgb(
    bytes: &[u8],
    header: &ImageHeader,
    policy: &ColorPolicy,
    scratch: &mut Scratch,
) -> Result<RgbImage, ImageError> {
    let (width, height) = header.oriented_size(policy);
    let length = width as usize * height as usize * 3;
    let pixels = decode_padded(bytes, header, policy, scratch).map(|padded| padded[..length].to_vec());
    scratch.trim();
    Ok(RgbImage { width, height, pixels: pixels? })
}

/// Decodes into the scratch. The slice is the oriented picture, and [`PADDING`] bytes of anything behind it.
pub(crate) fn decode_padded<'s>(
    bytes: &[u8],
    header: &ImageHeader,
    policy: &ColorPolicy,
    scratch: &'s mut Scratch,
) -> Result<&'s [u8], ImageError> {
    let outline = &header.outline;
    let (width, height) = (outline.width as usize, outline.height as usize);
    let length = width
        .checked_mul(height)
        .and_then(|pixels| pixels.checked_mul(3))
        .and_then(|length| length.checked_add(PADDING))
        .ok_or_else(|| ImageError::corrupt("image larger than the address space"))?;
    let padded = room(&mut scratch.rgb, length);
    let rgb = &mut padded[..length - PADDING];
    let (raw, on_white) = (&mut scratch.raw, policy.alpha_on_white);
    match header.format {
        Format::Jpeg => jpeg::decode(bytes, outline, raw, rgb)?,
        Format::Png => contained(|| png::decode(bytes, outline, on_white, rgb))?,
        Format::Gif => contained(|| gif::decode(bytes, outline, on_white, raw, rgb))?,
        Format::WebP => contained(|| webp::decode(bytes, outline, on_white, raw, rgb))?,
        Format::Bmp => contained(|| bmp::decode(bytes, outline, on_white, raw, rgb))?,
        Format::Tiff => contained(|| tiff::decode(bytes, outline, on_white, raw, rgb))?,
    }
    if policy.exif_orientation && outline.orientation != 1 {
        let turned = room(&mut scratch.oriented, length);
        orient::apply(rgb, width, height, outline.orientation, &mut turned[..length - PADDING]);
        return Ok(turned);
    }
    Ok(padded)
}
