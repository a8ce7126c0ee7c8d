//! Takes the committed photographs, gives JPEG files of the sizes wanted, the same every time.

use std::path::Path;

use anyhow::Context as _;
use feedmill_vision::{ColorPolicy, ImageLimits, RgbImage, Scratch, decode_rgb, read_header};

/// About 0.9 megapixels, upright and lying.
const SIZES: [(usize, usize); 5] = [(1164, 776), (776, 1164), (1100, 822), (952, 950), (1268, 713)];
/// What a photograph of this size has on disk, and what decoding it costs depends on.
const TARGET_BYTES: usize = 150 << 10;
/// Qualities among which the one is found whose file comes nearest.
const QUALITIES: std::ops::RangeInclusive<i32> = 60..=96;

/// The committed photographs, decoded.
///
/// # Errors
/// A photograph that is not there or cannot be read.
pub fn sources() -> anyhow::Result<Vec<RgbImage>> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/photos"));
    let listed =
        std::fs::read_dir(folder).with_context(|| format!("no photographs in {}", folder.display()))?;
    let mut paths: Vec<_> = listed.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    paths.sort();
    let mut scratch = Scratch::default();
    let mut decoded = Vec::new();
    for path in paths {
        let bytes = std::fs::read(&path)?;
        let header = read_header(&bytes, &ImageLimits::default())?;
        decoded.push(decode_rgb(&bytes, &header, &ColorPolicy::default(), &mut scratch)?);
    }
    Ok(decoded)
}

/// Photographs of 0.9 megapixels and about 150 KiB.
///
/// # Errors
/// What [`sources`] and the encoder give.
pub fn usual(count: usize) -> anyhow::Result<Vec<Vec<u8>>> {
    let sources = sources()?;
    let mut random = fastrand::Rng::with_seed(9);
    (0..count)
        .map(|number| {
            let source = &sources[number % sources.len()];
            let (width, height) = SIZES[number % SIZES.len()];
            let from = (random.usize(0..source.width as usize), random.usize(0..source.height as usize));
            let pixels = mirrored(source, from, width, height);
            let (mut low, mut high) = QUALITIES.into_inner();
            let mut best = Vec::new();
            while low <= high {
                let quality = (low + high) / 2;
                let jpeg = encode(&pixels, width, height, quality)?;
                (low, high) =
                    if jpeg.len() < TARGET_BYTES { (quality + 1, high) } else { (low, quality - 1) };
                if jpeg.len().abs_diff(TARGET_BYTES) < best.len().abs_diff(TARGET_BYTES) {
                    best = jpeg;
                }
            }
            Ok(best)
        })
        .collect()
}

/// Photographs of `side` × `side` pixels, enlarged, so that their files have a few megabytes.
///
/// # Errors
/// What [`sources`] and the encoder give.
pub fn large(count: usize, side: usize) -> anyhow::Result<Vec<Vec<u8>>> {
    of_sizes(&vec![(side, side); count])
}

/// One photograph for each width and height, each with other content.
///
/// # Errors
/// What [`sources`] and the encoder give.
pub fn of_sizes(sizes: &[(usize, usize)]) -> anyhow::Result<Vec<Vec<u8>>> {
    let sources = sources()?;
    sizes
        .iter()
        .enumerate()
        .map(|(number, (width, height))| {
            let source = &sources[number % sources.len()];
            let turn = number / sources.len() * 97;
            encode(&stretched(source, turn, *width, *height), *width, *height, 75)
        })
        .collect()
}

/// The photograph at another size, its rows turned by `turn`.
fn stretched(source: &RgbImage, turn: usize, width: usize, height: usize) -> Vec<u8> {
    let (from_width, from_height) = (source.width as usize, source.height as usize);
    let mut pixels = Vec::with_capacity(width * height * 3);
    for y in 0..height {
        let row = (y * from_height / height + turn) % from_height * from_width;
        for x in 0..width {
            // Neighbours mixed by their distance, so that enlarging makes no hard edges.
            let at = x * (from_width - 1) * 256 / width;
            let (left, share) = (at / 256, at % 256);
            for channel in 0..3 {
                let value = |column: usize| usize::from(source.pixels[(row + column) * 3 + channel]);
                let mixed = value(left) * (256 - share) + value(left + 1) * share;
                pixels.push((mixed / 256) as u8);
            }
        }
    }
    pixels
}

/// A JPEG with halved chroma.
fn encode(pixels: &[u8], width: usize, height: usize, quality: i32) -> anyhow::Result<Vec<u8>> {
    let format = turbojpeg::PixelFormat::RGB;
    let image = turbojpeg::Image { pixels, width, pitch: width * 3, height, format };
    Ok(turbojpeg::compress(image, quality, turbojpeg::Subsamp::Sub2x2)?.to_vec())
}

/// The photograph continued by its mirror images, so that its statistics stay those of a photograph at full
/// sharpness.
fn mirrored(photo: &RgbImage, from: (usize, usize), width: usize, height: usize) -> Vec<u8> {
    let fold = |at: usize, length: usize| {
        let at = at % (2 * length);
        if at < length { at } else { 2 * length - 1 - at }
    };
    let (from_width, from_height) = (photo.width as usize, photo.height as usize);
    let mut pixels = Vec::with_capacity(width * height * 3);
    for y in 0..height {
        for x in 0..width {
            let at = (fold(from.1 + y, from_height) * from_width + fold(from.0 + x, from_width)) * 3;
            pixels.extend_from_slice(&photo.pixels[at..at + 3]);
        }
    }
    pixels
}
