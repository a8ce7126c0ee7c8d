//! What one core spends on a photograph: libjpeg-turbo alone, and the whole way to patches.
//!
//! `cargo bench -p feedmill-vision`. Photographs of about 0.9 megapixels are made from the committed ones,
//! the same every time; both ways run in alternating rounds, in thread CPU time, so a busy machine disturbs
//! the ratio little. The last line is JSON.

use std::path::Path;

use feedmill_vision::{
    ColorPolicy, Geometry, Grid, ImageLimits, RgbImage, Scratch, decode_rgb, fill_patches, read_header,
    smart_resize,
};
use rustix::time::{ClockId, clock_gettime};

const PHOTOS: [&str; 6] =
    ["astronaut.png", "chelsea.png", "china.jpg", "coffee.png", "hubble_deep_field.jpg", "rocket.jpg"];
const SIZES: [(usize, usize); 4] = [(1200, 750), (750, 1200), (1024, 880), (960, 940)];
const ROUNDS: usize = 11;

/// Patch 16, merge 2, at most 0.6 megapixels after the resize: about 590 tokens.
const GEOMETRY: Geometry = Geometry {
    patch: 16,
    merge: 2,
    temporal: 2,
    min_pixels: 65_536,
    max_pixels: 602_112,
    mean: [0.5; 3],
    std: [0.5; 3],
};

fn main() {
    let photos = photographs();
    let bytes: usize = photos.iter().map(Vec::len).sum();
    let mut decoder = turbojpeg::Decompressor::new().expect("a decompressor");
    let mut pixels = Vec::new();
    let mut scratch = Scratch::default();
    let mut out = Vec::new();
    let (mut alone, mut whole, mut headers) = (Vec::new(), Vec::new(), Vec::new());
    let mut tokens = 0;
    for round in 0..=ROUNDS {
        let (mut decode, mut fill, mut header) = (0, 0, 0);
        for photo in &photos {
            decode += thread_time(|| decode_alone(&mut decoder, photo, &mut pixels));
            header += thread_time(|| drop(read_header(photo, &ImageLimits::default())));
            fill += thread_time(|| tokens = patches(photo, &mut scratch, &mut out));
        }
        // The first round warms caches and buffers.
        if round > 0 {
            alone.push(decode);
            headers.push(header);
            whole.push(fill);
        }
    }
    let count = photos.len() as f64;
    let ms = |samples: &mut Vec<u64>| {
        samples.sort_unstable();
        samples[samples.len() / 2] as f64 / 1e6 / count
    };
    let mut ratios: Vec<f64> = whole.iter().zip(&alone).map(|(w, a)| *w as f64 / *a as f64).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    let ratio = ratios[ratios.len() / 2];
    let (alone, headers, whole) = (ms(&mut alone), ms(&mut headers), ms(&mut whole));
    println!(
        "{} photos of 0.9 megapixels, {} KiB each, {tokens} tokens, medians of {ROUNDS} rounds, thread CPU time",
        photos.len(),
        bytes / photos.len() / 1024
    );
    println!("libjpeg-turbo alone       {alone:.3} ms {:.0}/s", 1e3 / alone);
    println!("header                    {headers:.4} ms");
    println!("resize and patches        {:.3} ms", whole - alone);
    println!("whole                     {whole:.3} ms {:.0}/s", 1e3 / whole);
    println!("whole / libjpeg-turbo     {ratio:.3} (goal: at most 1.7)");
    println!(
        r#"{{"bench":"decode_resize_patchify","photos":{},"decode_ms":{alone:.4},"header_ms":{headers:.4},"resize_patchify_ms":{:.4},"whole_ms":{whole:.4},"ratio":{ratio:.4},"per_second":{:.1}}}"#,
        photos.len(),
        whole - alone,
        1e3 / whole
    );
}

fn decode_alone(decoder: &mut turbojpeg::Decompressor, photo: &[u8], pixels: &mut Vec<u8>) {
    let header = decoder.read_header(photo).expect("a header");
    let (width, height) = (header.width, header.height);
    pixels.resize(width * height * 3, 0);
    let image = turbojpeg::Image {
        pixels: pixels.as_mut_slice(),
        width,
        pitch: width * 3,
        height,
        format: turbojpeg::PixelFormat::RGB,
    };
    decoder.decompress(photo, image).expect("pixels");
}

fn patches(photo: &[u8], scratch: &mut Scratch, out: &mut Vec<u8>) -> u64 {
    let policy = ColorPolicy::default();
    let header = read_header(photo, &ImageLimits::default()).expect("a header");
    let (width, height) = header.oriented_size(&policy);
    let resized = smart_resize(height, width, &GEOMETRY).expect("a size");
    let grid = Grid::of(resized, &GEOMETRY);
    out.resize(grid.patch_bytes(&GEOMETRY), 0);
    fill_patches(photo, &header, resized, &GEOMETRY, &policy, scratch, out).expect("patches");
    grid.tokens(&GEOMETRY)
}

/// Every photo in every size, as JPEG of quality 85 with halved chroma.
fn photographs() -> Vec<Vec<u8>> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/photos"));
    let mut scratch = Scratch::default();
    let mut made = Vec::new();
    for name in PHOTOS {
        let bytes = std::fs::read(folder.join(name)).expect("a committed photo");
        let header = read_header(&bytes, &ImageLimits::default()).expect("a header");
        let photo = decode_rgb(&bytes, &header, &ColorPolicy::default(), &mut scratch).expect("pixels");
        for (width, height) in SIZES {
            let pixels = mirrored(&photo, width, height);
            let image = turbojpeg::Image {
                pixels: pixels.as_slice(),
                width,
                pitch: width * 3,
                height,
                format: turbojpeg::PixelFormat::RGB,
            };
            let jpeg = turbojpeg::compress(image, 85, turbojpeg::Subsamp::Sub2x2).expect("a JPEG");
            made.push(jpeg.to_vec());
        }
    }
    made
}

/// The photo continued by its mirror images, so that its statistics stay those of a photo at full sharpness.
fn mirrored(photo: &RgbImage, width: usize, height: usize) -> Vec<u8> {
    let fold = |at: usize, length: usize| {
        let at = at % (2 * length);
        if at < length { at } else { 2 * length - 1 - at }
    };
    let (from_width, from_height) = (photo.width as usize, photo.height as usize);
    let mut pixels = Vec::with_capacity(width * height * 3);
    for y in 0..height {
        for x in 0..width {
            let at = (fold(y, from_height) * from_width + fold(x, from_width)) * 3;
            pixels.extend_from_slice(&photo.pixels[at..at + 3]);
        }
    }
    pixels
}

/// Nanoseconds of this thread's CPU time.
fn thread_time(work: impl FnOnce()) -> u64 {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    };
    let start = now();
    work();
    now() - start
}
