//! What one core spends on a picture: its decoder alone, and the whole way to patches, with each kind of kernels
//! that this processor has.
//!
//! `cargo bench -p feedmill-vision`. Photographs of 0.9 and of 12 megapixels are made from the committed ones, and
//! charts are drawn, the same every time. All ways run in turns, picture by picture, in thread CPU time, so a
//! busy machine disturbs the ratio little. The last line is JSON.

use std::path::Path;

use feedmill_vision::{
    ColorPolicy, Geometry, Grid, ImageLimits, Kernels, RgbImage, Scratch, decode_rgb, fill_patches,
    read_header, smart_resize,
};
use rustix::time::{ClockId, clock_gettime};

const PHOTOS: [&str; 6] =
    ["astronaut.png", "chelsea.png", "china.jpg", "coffee.png", "hubble_deep_field.jpg", "rocket.jpg"];
/// About 0.9 megapixels.
const USUAL: [(usize, usize); 4] = [(1200, 750), (750, 1200), (1024, 880), (960, 940)];
/// 12 megapixels.
const LARGE: [(usize, usize); 1] = [(4000, 3000)];
/// What plotting libraries draw by default, and twice as fine.
const CHARTS: [(usize, usize); 3] = [(640, 480), (800, 600), (1280, 960)];

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

/// Pictures of one kind, and what they are held against.
struct Case {
    name: &'static str,
    pictures: Vec<Vec<u8>>,
    rounds: usize,
    /// Decodes into a buffer that is kept.
    alone: Box<dyn FnMut(&[u8])>,
    /// Most that the whole may take of the decoder alone, by kernels.
    goals: fn(Kernels) -> Option<f64>,
}

fn main() {
    let sources = sources();
    let cases = [
        Case {
            name: "photos of 0.9 megapixels",
            pictures: photographs(&sources, &USUAL),
            rounds: 11,
            alone: jpeg_alone(),
            goals: |kernels| match kernels.name() {
                "avx512" => Some(1.5),
                "avx2" => Some(1.6),
                _ => None,
            },
        },
        Case {
            name: "photos of 12 megapixels",
            pictures: photographs(&sources, &LARGE),
            rounds: 5,
            alone: jpeg_alone(),
            goals: |_| None,
        },
        Case {
            name: "PNG charts",
            pictures: CHARTS.map(|size| chart(size)).to_vec(),
            rounds: 15,
            alone: png_alone(),
            goals: |_| None,
        },
    ];
    let lines: Vec<String> = cases.into_iter().map(measure).collect();
    println!(r#"{{"bench":"decode_resize_patchify","cases":[{}]}}"#, lines.join(","));
}

/// Prints a case's figures; gives them as JSON.
fn measure(mut case: Case) -> String {
    let mut out = Vec::new();
    // Plain code takes so long that what it leaves in the caches is of no use to the others.
    let mut ways: Vec<(Kernels, Scratch, Vec<u64>)> = Kernels::available()
        .iter()
        .filter(|kernels| **kernels != Kernels::Scalar || Kernels::detect() == Kernels::Scalar)
        .map(|kernels| (*kernels, Scratch::default().with_kernels(*kernels), Vec::new()))
        .collect();
    let mut alone = Vec::new();
    let mut tokens = 0;
    // The first round warms caches and buffers.
    for round in 0..=case.rounds {
        let mut decode = 0;
        let mut fills = vec![0; ways.len()];
        for picture in &case.pictures {
            decode += thread_time(|| (case.alone)(picture));
            for ((_, scratch, _), fill) in ways.iter_mut().zip(&mut fills) {
                *fill += thread_time(|| tokens = patches(picture, scratch, &mut out));
            }
        }
        if round > 0 {
            alone.push(decode);
            ways.iter_mut().zip(fills).for_each(|((.., times), fill)| times.push(fill));
        }
    }
    let count = case.pictures.len();
    let bytes: usize = case.pictures.iter().map(Vec::len).sum();
    let ms = |times: &[u64]| median(times.iter().map(|time| *time as f64 / 1e6 / count as f64));
    let decode = ms(&alone);
    println!(
        "{count} {}, {} KiB each, {tokens} tokens the last, medians of {} rounds, thread CPU time",
        case.name,
        bytes / count / 1024,
        case.rounds
    );
    println!("  decoder alone   {decode:.3} ms {:.0}/s", 1e3 / decode);
    let mut figures = Vec::new();
    for (kernels, _, times) in &ways {
        let ratio = median(times.iter().zip(&alone).map(|(whole, alone)| *whole as f64 / *alone as f64));
        let (name, whole) = (kernels.name(), ms(times));
        let goal = (case.goals)(*kernels).map_or(String::new(), |goal| format!(", goal: at most {goal}"));
        println!("  whole, {name:<7}  {whole:.3} ms {:.0}/s, {ratio:.3} x{goal}", 1e3 / whole);
        figures.push(format!(r#""{name}":{{"ms":{whole:.4},"ratio":{ratio:.4}}}"#));
    }
    format!(
        r#"{{"pictures":"{}","count":{count},"decoder_ms":{decode:.4},{}}}"#,
        case.name,
        figures.join(",")
    )
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

fn jpeg_alone() -> Box<dyn FnMut(&[u8])> {
    let mut decoder = turbojpeg::Decompressor::new().expect("a decompressor");
    let mut pixels = Vec::new();
    Box::new(move |photo| {
        let header = decoder.read_header(photo).expect("a header");
        let (width, height) = (header.width, header.height);
        pixels.resize(width * height * 3, 0);
        let format = turbojpeg::PixelFormat::RGB;
        let image =
            turbojpeg::Image { pixels: pixels.as_mut_slice(), width, pitch: width * 3, height, format };
        decoder.decompress(photo, image).expect("pixels");
    })
}

fn png_alone() -> Box<dyn FnMut(&[u8])> {
    let mut pixels = Vec::new();
    Box::new(move |picture| {
        let mut reader = png::Decoder::new(std::io::Cursor::new(picture)).read_info().expect("a header");
        pixels.resize(reader.output_buffer_size().expect("a size"), 0);
        reader.next_frame(&mut pixels).expect("pixels");
    })
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

fn sources() -> Vec<RgbImage> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/photos"));
    let mut scratch = Scratch::default();
    let read = |name| {
        let bytes = std::fs::read(folder.join(name)).expect("a committed photo");
        let header = read_header(&bytes, &ImageLimits::default()).expect("a header");
        decode_rgb(&bytes, &header, &ColorPolicy::default(), &mut scratch).expect("pixels")
    };
    PHOTOS.into_iter().map(read).collect()
}

/// Every photo in every size, as JPEG of quality 85 with halved chroma.
fn photographs(sources: &[RgbImage], sizes: &[(usize, usize)]) -> Vec<Vec<u8>> {
    let mut made = Vec::new();
    for photo in sources {
        for (width, height) in sizes.iter().copied() {
            let pixels = mirrored(photo, width, height);
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

/// Bars, a curve and a grid on white, RGBA without transparency, as plotting libraries write it.
fn chart((width, height): (usize, usize)) -> Vec<u8> {
    let mut pixels = vec![255; width * height * 4];
    for (at, pixel) in pixels.chunks_exact_mut(4).enumerate() {
        let (x, y) = (at % width, at / width);
        let (across, up) = (x as f64 / width as f64, 1.0 - y as f64 / height as f64);
        let bar = (across * 12.0) as usize;
        let bar_height = 0.2 + 0.05 * ((bar * 7) % 11) as f64;
        let curve = 0.5 + 0.3 * (across * 12.0).sin();
        // How much of the pixel the curve covers: its edge is smooth.
        let covered = (3.0 - (up - curve).abs() * height as f64).clamp(0.0, 1.0);
        if y % (height / 8) == 0 || x % (width / 8) == 0 {
            pixel[..3].fill(176);
        }
        if up < bar_height && (across * 12.0).fract() < 0.7 {
            pixel[..3].copy_from_slice(&[31, 119, 180]);
        }
        for (value, ink) in pixel.iter_mut().zip([214.0, 39.0, 40.0]) {
            *value = (f64::from(*value) * (1.0 - covered) + ink * covered) as u8;
        }
    }
    let mut bytes = Vec::new();
    let (wide, high) = (u32::try_from(width).expect("a width"), u32::try_from(height).expect("a height"));
    let mut encoder = png::Encoder::new(&mut bytes, wide, high);
    encoder.set_color(png::ColorType::Rgba);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().expect("a header");
    writer.write_image_data(&pixels).expect("pixels");
    writer.finish().expect("an end");
    bytes
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
