//! Colour and layout rules that the golden files do not reach, on small files written here.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod bmp;
mod gif;
mod jpeg;
mod png;
mod tiff;
mod webp;

use std::path::Path;

use feedmill_vision::{
    ColorPolicy, ImageClass, ImageError, ImageHeader, ImageLimits, RgbImage, Scratch, decode_rgb, read_header,
};

fn golden(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/images").join(name)).unwrap()
}

fn header(bytes: &[u8]) -> ImageHeader {
    read_header(bytes, &ImageLimits::default()).unwrap()
}

fn try_decode(bytes: &[u8]) -> Result<RgbImage, ImageError> {
    let header = read_header(bytes, &ImageLimits::default())?;
    decode_rgb(bytes, &header, &ColorPolicy::default(), &mut Scratch::default())
}

fn decode(bytes: &[u8]) -> RgbImage {
    try_decode(bytes).unwrap()
}

fn decode_with(bytes: &[u8], policy: ColorPolicy) -> RgbImage {
    decode_rgb(bytes, &header(bytes), &policy, &mut Scratch::default()).unwrap()
}

fn class(bytes: &[u8]) -> ImageClass {
    try_decode(bytes).unwrap_err().class()
}

/// Pixels as triples, row after row.
fn triples(picture: &RgbImage) -> Vec<[u8; 3]> {
    picture.pixels.chunks_exact(3).map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect()
}

fn grays(picture: &RgbImage) -> Vec<u8> {
    triples(picture)
        .into_iter()
        .map(|[r, g, b]| {
            assert!(r == g && g == b, "gray");
            r
        })
        .collect()
}

/// A picture turned by orientation 6: the stored left column, read from below, becomes the top row.
fn turned_right(picture: &RgbImage) -> RgbImage {
    let (width, height) = (picture.width as usize, picture.height as usize);
    let mut pixels = Vec::new();
    for y in 0..width {
        for x in 0..height {
            let at = ((height - 1 - x) * width + y) * 3;
            pixels.extend_from_slice(&picture.pixels[at..at + 3]);
        }
    }
    RgbImage { width: picture.height, height: picture.width, pixels }
}
