//! Takes a JPEG's bytes, gives RGB exactly as libjpeg-turbo with default flags (islow DCT, fancy
//! upsampling): that is what Pillow and torchvision give.
//!
//! A cut picture is never given out partly grey: libjpeg fills up and only warns, and the TurboJPEG
//! interface tells the first warning of a picture. So every warning is an error, except those that are known
//! to change no pixel:
//! - stray bytes before the end mark, as the *first* warning: all scans were complete before it;
//! - warnings about the header ([`is_about_header`]): the header is put right in a copy and the picture is
//!   decoded again, so that a later warning cannot hide behind the harmless one.

use turbojpeg::{Decompressor, Image, PixelFormat};

use super::jpeg_markers::{self, Markers};
use super::{DECODER_BYTES, Outline, area_bytes};
use crate::color;
use crate::error::ImageError;
use crate::scratch::room;

/// Most scans of a progressive picture. Encoders write up to a few dozen; thousands of empty scans are an
/// attack on the processor. libjpeg-turbo's own fuzzers use this bound.
const MAX_SCANS: u32 = 500;

pub(crate) fn header(bytes: &[u8]) -> Result<Outline, ImageError> {
    let markers = jpeg_markers::read(bytes)?;
    let (width, height) = (markers.width, markers.height);
    // Sample rows in upsampling and colour conversion: at most 4 components, a few dozen rows.
    let mut working = DECODER_BYTES + u64::from(width) * 4 * 64;
    // A tidy copy of the file, made only for a damaged header.
    working += bytes.len() as u64;
    if markers.several_scans {
        working = working.saturating_add(jpeg_markers::coefficient_bytes(&markers));
    }
    if markers.components.len() == 4 {
        working = working.saturating_add(area_bytes(width, height, 4));
    }
    Ok(Outline { width, height, orientation: markers.orientation, working_bytes: working, hidden_bytes: 0 })
}

/// A decompressor for one picture only, which costs microseconds. A used one keeps the quantisation and
/// Huffman tables of the last picture and lends them to one that has none, and after an error in a header it
/// fails for every picture that follows (libjpeg-turbo 3.1.0).
fn fresh() -> Result<Decompressor, turbojpeg::Error> {
    let mut decompressor = Decompressor::new()?;
    decompressor.set_scan_limit(MAX_SCANS)?;
    Ok(decompressor)
}

/// Decodes into `rgb`, which holds exactly `width * height * 3` bytes.
pub(crate) fn decode(
    bytes: &[u8],
    outline: &Outline,
    raw: &mut Vec<u8>,
    rgb: &mut [u8],
) -> Result<(), ImageError> {
    let markers = jpeg_markers::read(bytes)?;
    if (markers.width, markers.height) != (outline.width, outline.height) {
        return Err(ImageError::corrupt("JPEG has another size than its header was read with"));
    }
    match attempt(bytes, &markers, raw, rgb) {
        Err(turbojpeg::Error::TurboJpegError(warning)) if is_about_header(&warning) => {
            let tidied = jpeg_markers::tidy(bytes, &markers).ok_or_else(|| ImageError::corrupt(warning))?;
            accept(attempt(&tidied, &markers, raw, rgb))
        }
        result => accept(result),
    }
}

fn attempt(
    bytes: &[u8],
    markers: &Markers,
    raw: &mut Vec<u8>,
    rgb: &mut [u8],
) -> Result<(), turbojpeg::Error> {
    let (width, height) = (markers.width as usize, markers.height as usize);
    let mut decompressor = fresh()?;
    if markers.components.len() == 4 {
        let pixels = room(raw, width * height * 4);
        let image =
            Image { pixels: &mut *pixels, width, pitch: width * 4, height, format: PixelFormat::CMYK };
        let result = decompressor.decompress(bytes, image);
        color::inverted_cmyk_to_rgb(pixels, rgb);
        result
    } else {
        let image = Image { pixels: rgb, width, pitch: width * 3, height, format: PixelFormat::RGB };
        decompressor.decompress(bytes, image)
    }
}

/// Keeps only the one warning that comes after the whole picture was decoded.
fn accept(result: Result<(), turbojpeg::Error>) -> Result<(), ImageError> {
    match result {
        Err(turbojpeg::Error::TurboJpegError(text)) if is_about_end(&text) => Ok(()),
        other => other.map_err(damaged),
    }
}

fn damaged(error: turbojpeg::Error) -> ImageError {
    let text = match error {
        turbojpeg::Error::TurboJpegError(text) => text,
        other => other.to_string(),
    };
    // A picture must not be bad on a machine that is short of memory and good on others.
    if text.starts_with("Insufficient memory") || text.contains("Memory allocation failure") {
        return ImageError::NoMemory;
    }
    // libjpeg's own prefix would say the same twice.
    ImageError::corrupt(text.trim_start_matches("Corrupt JPEG data: ").to_lowercase())
}

const STRAY: &str = "extraneous bytes before marker 0x";

/// Stray bytes between the last scan and the end mark (0xd9).
fn is_about_end(text: &str) -> bool {
    text.contains(STRAY) && text.ends_with("d9")
}

/// Warnings whose cause [`jpeg_markers::tidy`] removes. Stray bytes are among them: those between scans
/// cannot be told from entropy-coded data and survive the tidying, so the second attempt refuses them.
fn is_about_header(text: &str) -> bool {
    text.starts_with("Warning: unknown JFIF revision number")
        || text.starts_with("Unknown Adobe color transform code")
        || text.starts_with("Invalid SOS parameters for sequential JPEG")
        || (text.contains(STRAY) && !is_about_end(text))
}
