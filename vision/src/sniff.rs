//! Takes the first bytes of an object, gives its type. Names and content types are never asked.

use crate::error::ImageError;

/// A supported picture format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// JPEG, any coding that libjpeg-turbo reads with 8 bit samples.
    Jpeg,
    /// PNG, the default image of an animated one.
    Png,
    /// GIF, first frame.
    Gif,
    /// WebP, first frame.
    WebP,
    /// Windows bitmap.
    Bmp,
    /// TIFF, first page.
    Tiff,
}

impl Format {
    /// The format's usual name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::Gif => "GIF",
            Self::WebP => "WebP",
            Self::Bmp => "BMP",
            Self::Tiff => "TIFF",
        }
    }
}

/// Finds the format from the leading bytes, or says what the bytes look like instead.
pub(crate) fn sniff(bytes: &[u8]) -> Result<Format, ImageError> {
    let starts = |magic: &[u8]| bytes.starts_with(magic);
    if starts(&[0xFF, 0xD8, 0xFF]) {
        return Ok(Format::Jpeg);
    }
    if starts(b"\x89PNG\r\n\x1a\n") {
        return Ok(Format::Png);
    }
    if starts(b"GIF87a") || starts(b"GIF89a") {
        return Ok(Format::Gif);
    }
    if starts(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
        return Ok(Format::WebP);
    }
    if starts(b"BM") {
        return Ok(Format::Bmp);
    }
    if starts(b"II*\0") || starts(b"MM\0*") || starts(b"II+\0") || starts(b"MM\0+") {
        return Ok(Format::Tiff);
    }
    Err(ImageError::Unsupported { detected: describe(bytes) })
}

/// Names common things that stand where pictures should be, so that people see what they fetched.
fn describe(bytes: &[u8]) -> &'static str {
    if let Some(brand) = bytes.get(4..12).filter(|box_| box_.starts_with(b"ftyp")) {
        return match &brand[4..] {
            b"avif" | b"avis" => "AVIF",
            b"heic" | b"heix" | b"heim" | b"heis" | b"hevc" | b"hevx" | b"mif1" | b"msf1" => "HEIC",
            _ => "ISO media file (video?)",
        };
    }
    let table: [(&[u8], &str); 9] = [
        (b"%PDF", "PDF"),
        (b"\xFF\x0A", "JPEG XL"),
        (b"\0\0\0\x0CJXL ", "JPEG XL"),
        (b"\0\0\0\x0CjP  ", "JPEG 2000"),
        (b"\xFF\x4F\xFF\x51", "JPEG 2000"),
        (b"8BPS", "Photoshop document"),
        (b"PK\x03\x04", "zip archive"),
        (b"\x1F\x8B", "gzip file"),
        (b"\0\0\x01\0", "icon file"),
    ];
    if let Some((_, name)) = table.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        return name;
    }
    describe_text(bytes)
}

/// How far text is looked at: an SVG may begin with long comments, but not endlessly.
const TEXT_WINDOW: usize = 1024;

fn describe_text(bytes: &[u8]) -> &'static str {
    let text = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
    let text = text.get(..TEXT_WINDOW).unwrap_or(text).trim_ascii_start().to_ascii_lowercase();
    let contains = |needle: &[u8]| text.windows(needle.len()).any(|window| window == needle);
    match text.first() {
        Some(b'<') if contains(b"<svg") => "SVG",
        Some(b'<') if contains(b"<html") || contains(b"<!doctype html") || contains(b"<head") => "HTML page",
        Some(b'<') => "XML or HTML text",
        Some(b'{' | b'[') => "JSON text",
        _ => "unknown content",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_what_stands_in_the_picture_s_place() {
        let cases: [(&[u8], &str); 8] = [
            (b"<!DOCTYPE html><html>", "HTML page"),
            (b"\xEF\xBB\xBF  <?xml version='1.0'?><svg/>", "SVG"),
            (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "XML or HTML text"),
            (b"{\"error\": 1}", "JSON text"),
            (b"%PDF-1.7", "PDF"),
            (b"\0\0\0\x18ftypavif\0\0\0\0", "AVIF"),
            (b"\0\0\0\x18ftypheic\0\0\0\0", "HEIC"),
            (b"\xFF\xD8", "unknown content"),
        ];
        for (bytes, name) in cases {
            assert_eq!(sniff(bytes), Err(ImageError::Unsupported { detected: name }));
        }
    }
}
