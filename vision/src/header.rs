//! Takes an image's bytes, gives its header: type, size, orientation, and what decoding it will cost.

use crate::error::ImageError;
use crate::formats::{Outline, area_bytes, bmp, gif, jpeg, png, tiff, webp};
use crate::limits::{ColorPolicy, ImageLimits};
use crate::orient;
use crate::panics::contained;
use crate::sniff::{Format, sniff};

/// What is known of an image before a pixel is decoded. Made by [`read_header`] only, so holding one means
/// that the limits were checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageHeader {
    pub(crate) format: Format,
    pub(crate) outline: Outline,
}

impl ImageHeader {
    /// The format, found from the content.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Stored size in pixels, width first.
    pub fn stored_size(&self) -> (u32, u32) {
        (self.outline.width, self.outline.height)
    }

    /// EXIF orientation, 1..=8; 1 when the tag is missing or invalid.
    pub fn orientation(&self) -> u8 {
        self.outline.orientation
    }

    /// Size in pixels of the picture as the policy shows it, width first. This is the size that counts for
    /// [`crate::smart_resize()`].
    pub fn oriented_size(&self, policy: &ColorPolicy) -> (u32, u32) {
        let (width, height) = self.stored_size();
        if policy.exif_orientation && orient::swaps_axes(self.outline.orientation) {
            (height, width)
        } else {
            (width, height)
        }
    }

    /// Upper bound of the memory in bytes that [`crate::fill_patches`] needs for this image beyond the
    /// compressed bytes and the patches: RGB pixels, the turned picture, the decoder's own buffers (with
    /// coefficients when the JPEG comes in several scans), rows and weights of the resize.
    pub fn decode_bytes(&self) -> u64 {
        /// Rows, planes and weights of the resize for pictures at the model's own pixel limits.
        const RESIZE_BYTES: u64 = 4 << 20;
        let (width, height) = self.stored_size();
        let pictures = if self.outline.orientation == 1 { 1 } else { 2 };
        area_bytes(width, height, 3 * pictures)
            .saturating_add(self.outline.working_bytes)
            // Windows of the width pass hold about four picture rows of output, weights 8 bytes per pixel
            // of a side.
            .saturating_add(64 * (u64::from(width) + u64::from(height)))
            .saturating_add(RESIZE_BYTES)
    }

    /// Memory in bytes that decoding may take beyond [`ImageHeader::decode_bytes`] when the file is made to: it
    /// depends on what stands in the compressed data, of which only the length is known. 0 but for lossless
    /// WebP, where a file of 1 MB can hold tables of 500 MB; usual files take a few megabytes of it.
    pub fn hidden_bytes(&self) -> u64 {
        self.outline.hidden_bytes
    }
}

/// Reads an image's header and checks it against the limits. Allocates nothing in proportion to the pixels,
/// so a decompression bomb costs nothing here.
///
/// # Errors
/// [`ImageError::Empty`], [`ImageError::TooManyBytes`], [`ImageError::Unsupported`],
/// [`ImageError::Corrupt`], [`ImageError::TooLarge`]. The aspect ratio is [`crate::smart_resize()`]'s business.
pub fn read_header(bytes: &[u8], limits: &ImageLimits) -> Result<ImageHeader, ImageError> {
    if bytes.is_empty() {
        return Err(ImageError::Empty);
    }
    if bytes.len() as u64 > limits.max_bytes {
        return Err(ImageError::TooManyBytes { bytes: bytes.len() as u64, limit: limits.max_bytes });
    }
    let format = sniff(bytes)?;
    let outline = contained(|| match format {
        Format::Jpeg => jpeg::header(bytes),
        Format::Png => png::header(bytes),
        Format::Gif => gif::header(bytes),
        Format::WebP => webp::header(bytes),
        Format::Bmp => bmp::header(bytes),
        Format::Tiff => tiff::header(bytes),
    })?;
    let (width, height) = (u64::from(outline.width), u64::from(outline.height));
    if width == 0 || height == 0 {
        return Err(ImageError::corrupt("image without pixels"));
    }
    if width * height > limits.max_pixels {
        return Err(ImageError::TooLarge { width, height, limit: limits.max_pixels });
    }
    Ok(ImageHeader { format, outline })
}
