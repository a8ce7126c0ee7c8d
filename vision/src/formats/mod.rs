//! One module per format, each with `header` (bytes → `Outline`, nothing proportional to the pixels is
//! allocated) and `decode` (bytes → RGB rows in the stored orientation).

pub(crate) mod bmp;
pub(crate) mod gif;
pub(crate) mod jpeg;
pub(crate) mod jpeg_markers;
pub(crate) mod png;
pub(crate) mod tiff;
mod tiff_directory;
pub(crate) mod webp;

/// What a format's header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Outline {
    /// Stored width in pixels.
    pub(crate) width: u32,
    /// Stored height in pixels.
    pub(crate) height: u32,
    /// EXIF orientation, 1..=8; 1 when there is none or it is invalid.
    pub(crate) orientation: u8,
    /// Upper bound of the bytes that the decoder needs besides the compressed file and the RGB output.
    pub(crate) working_bytes: u64,
    /// What it may need beyond that, when the file is made to; see [`crate::ImageHeader::hidden_bytes`].
    pub(crate) hidden_bytes: u64,
}

/// Room for a decoder's tables, windows and row buffers, whatever the size of the picture. zlib's and LZW's
/// windows and libjpeg's tables together stay under 1 MiB.
pub(crate) const DECODER_BYTES: u64 = 1 << 20;

/// `width * height * bytes_per_pixel`, saturating: it is only compared with budgets and limits.
pub(crate) fn area_bytes(width: u32, height: u32, bytes_per_pixel: u64) -> u64 {
    (u64::from(width) * u64::from(height)).saturating_mul(bytes_per_pixel)
}
