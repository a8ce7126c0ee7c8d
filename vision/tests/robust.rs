//! Hostile and damaged files: an error or the right pixels, never a panic that gets out, never a partly
//! decoded picture.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::path::{Path, PathBuf};

use feedmill_vision::{
    ColorPolicy, Geometry, Grid, ImageClass, ImageError, ImageLimits, RgbImage, Scratch, decode_rgb,
    fill_patches, read_header, smart_resize,
};

const GEOMETRY: Geometry = Geometry {
    patch: 16,
    merge: 2,
    temporal: 2,
    min_pixels: 4096,
    max_pixels: 32_768,
    mean: [0.5; 3],
    std: [0.5; 3],
};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/images")
}

/// Small golden files, all formats, good and bad.
fn small_files() -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<(String, Vec<u8>)> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.metadata().unwrap().len() <= 30_000)
        .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
        .filter(|(name, _)| name != "huge_flat_6000x4000.png")
        .collect();
    files.sort();
    assert!(files.len() > 90, "{} files", files.len());
    files
}

fn decode(bytes: &[u8], scratch: &mut Scratch) -> Result<RgbImage, ImageError> {
    let header = read_header(bytes, &ImageLimits { max_pixels: 1 << 22, ..ImageLimits::default() })?;
    decode_rgb(bytes, &header, &ColorPolicy::default(), scratch)
}

fn patches(bytes: &[u8], scratch: &mut Scratch) -> Result<Vec<u8>, ImageError> {
    let policy = ColorPolicy::default();
    let header = read_header(bytes, &ImageLimits { max_pixels: 1 << 22, ..ImageLimits::default() })?;
    let (width, height) = header.oriented_size(&policy);
    let resized = smart_resize(height, width, &GEOMETRY)?;
    let mut out = vec![0; Grid::of(resized, &GEOMETRY).patch_bytes(&GEOMETRY)];
    fill_patches(bytes, &header, resized, &GEOMETRY, &policy, scratch, &mut out)?;
    Ok(out)
}

/// A small generator: the cases are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound.max(1)
    }
}

#[test]
fn a_cut_file_is_an_error_or_the_same_picture() {
    let mut scratch = Scratch::default();
    let mut cuts = 0;
    for (name, bytes) in small_files() {
        let Ok(whole) = decode(&bytes, &mut scratch) else {
            continue;
        };
        // About sixty cuts per file, and every one of the last bytes.
        let step = (bytes.len() / 60).max(1);
        let ends = bytes.len().saturating_sub(24)..bytes.len();
        for cut in (0..bytes.len()).step_by(step).chain(ends) {
            // Fresh buffers, so that nothing left over can look like the picture.
            match decode(&bytes[..cut], &mut Scratch::default()) {
                Ok(picture) => {
                    assert!(picture == whole, "{name} cut at {cut} of {}: other pixels", bytes.len())
                }
                Err(error) => {
                    let class = error.class();
                    let expected = [ImageClass::Corrupt, ImageClass::Unsupported, ImageClass::Empty];
                    assert!(expected.contains(&class), "{name} cut at {cut}: {error}");
                }
            }
            cuts += 1;
        }
    }
    assert!(cuts > 5000, "{cuts} cuts");
}

#[test]
fn mutated_files_never_panic() {
    let mut scratch = Scratch::default();
    let mut random = Random(0x5EED_0001);
    let (mut good, mut bad) = (0, 0);
    for (name, bytes) in small_files() {
        for case in 0..40 {
            let mut mutated = bytes.clone();
            // The header is the interesting part: half of the changes fall into the first 200 bytes.
            for _ in 0..=random.below(6) {
                let range = if random.below(2) == 0 { mutated.len().min(200) } else { mutated.len() };
                let at = random.below(range);
                let value = match random.below(4) {
                    0 => 0,
                    1 => 0xFF,
                    2 => mutated.get(at).copied().unwrap_or(0) ^ (1 << random.below(8)),
                    _ => random.below(256) as u8,
                };
                if let Some(byte) = mutated.get_mut(at) {
                    *byte = value;
                }
            }
            match random.below(8) {
                0 => mutated.truncate(random.below(bytes.len())),
                1 => {
                    let at = random.below(bytes.len());
                    let piece: Vec<u8> =
                        mutated.iter().skip(random.below(bytes.len())).take(40).copied().collect();
                    mutated.splice(at..at, piece);
                }
                _ => {}
            }
            match patches(&mutated, &mut scratch) {
                Ok(_) => good += 1,
                Err(error) => {
                    assert_ne!(error.class(), ImageClass::Internal, "{name} case {case}: {error}");
                    bad += 1;
                }
            }
        }
    }
    assert!(good > 200 && bad > 200, "{good} good, {bad} bad: the mutations reach both ends");
}

#[test]
fn the_same_damaged_file_always_gives_the_same_answer() {
    let mut random = Random(0x5EED_0002);
    let mut used = Scratch::default();
    for (name, bytes) in small_files() {
        for case in 0..24 {
            let mut mutated = bytes.clone();
            if mutated.is_empty() {
                continue;
            }
            let at = random.below(mutated.len());
            if case % 4 == 0 {
                mutated.truncate(at);
            } else {
                mutated[at] = random.below(256) as u8;
            }
            // Buffers that hold other pictures, and fresh ones.
            let first = patches(&mutated, &mut used);
            let second = patches(&mutated, &mut Scratch::default());
            assert!(first == second, "{name} byte {at}");
        }
    }
}

#[test]
fn random_bytes_behind_every_magic_never_panic() {
    let magics: [&[u8]; 8] = [
        b"\xFF\xD8\xFF\xE0",
        b"\x89PNG\r\n\x1a\n",
        b"GIF89a",
        b"RIFF\x40\0\0\0WEBPVP8 ",
        b"RIFF\x40\0\0\0WEBPVP8X",
        b"BM",
        b"II*\0\x08\0\0\0",
        b"MM\0*\0\0\0\x08",
    ];
    let mut random = Random(0x5EED_0003);
    let mut scratch = Scratch::default();
    for magic in magics {
        for _ in 0..200 {
            let mut bytes = magic.to_vec();
            bytes.extend((0..random.below(300)).map(|_| random.below(256) as u8));
            let _ = patches(&bytes, &mut scratch);
        }
    }
}

#[test]
fn limits_hold_from_the_header() {
    let bomb = std::fs::read(folder().join("bad_bomb_100k.png")).unwrap();
    let error = read_header(&bomb, &ImageLimits::default()).unwrap_err();
    assert_eq!(error, ImageError::TooLarge { width: 100_000, height: 100_000, limit: 178_956_970 });

    let picture = std::fs::read(folder().join("jpeg_gray.jpg")).unwrap();
    let exact = ImageLimits { max_bytes: picture.len() as u64, max_pixels: 138 * 147 };
    assert!(read_header(&picture, &exact).is_ok());
    let short = ImageLimits { max_bytes: exact.max_bytes - 1, ..exact };
    assert_eq!(read_header(&picture, &short).unwrap_err().class(), ImageClass::TooManyBytes);
    let small = ImageLimits { max_pixels: exact.max_pixels - 1, ..exact };
    assert_eq!(read_header(&picture, &small).unwrap_err().class(), ImageClass::TooLarge);
}

#[test]
fn a_place_of_the_wrong_size_is_the_caller_s_fault() {
    let picture = std::fs::read(folder().join("jpeg_gray.jpg")).unwrap();
    let header = read_header(&picture, &ImageLimits::default()).unwrap();
    let mut scratch = Scratch::default();
    let mut fill = |resized, length| {
        let mut out = vec![0; length];
        fill_patches(&picture, &header, resized, &GEOMETRY, &ColorPolicy::default(), &mut scratch, &mut out)
    };
    let expected = 64 * 96 * 3;
    assert_eq!(fill((64, 96), expected), Ok(()));
    assert_eq!(fill((64, 96), expected - 1), Err(ImageError::WrongPlace { expected, actual: expected - 1 }));
    assert_eq!(fill((64, 100), expected), Err(ImageError::WrongPlace { expected: 0, actual: expected }));
    assert_eq!(fill((0, 96), 0), Err(ImageError::WrongPlace { expected: 0, actual: 0 }));
}

#[test]
fn a_header_of_another_file_is_refused() {
    let one = std::fs::read(folder().join("jpeg_gray.jpg")).unwrap();
    let other = std::fs::read(folder().join("exif_1.jpg")).unwrap();
    let header = read_header(&one, &ImageLimits::default()).unwrap();
    let error = decode_rgb(&other, &header, &ColorPolicy::default(), &mut Scratch::default()).unwrap_err();
    assert_eq!(error.class(), ImageClass::Corrupt);
}

#[test]
fn large_buffers_are_given_back() {
    let picture = std::fs::read(folder().join("big_photo_1920x1080.jpg")).unwrap();
    let mut scratch = Scratch::new(1 << 20);
    let header = read_header(&picture, &ImageLimits::default()).unwrap();
    let (width, height) = header.oriented_size(&ColorPolicy::default());
    let resized = smart_resize(height, width, &GEOMETRY).unwrap();
    let mut out = vec![0; Grid::of(resized, &GEOMETRY).patch_bytes(&GEOMETRY)];
    fill_patches(&picture, &header, resized, &GEOMETRY, &ColorPolicy::default(), &mut scratch, &mut out)
        .unwrap();
    assert!(scratch.held_bytes() < 2 << 20, "{} bytes kept", scratch.held_bytes());
}

/// The segments of a JPEG with one kind left out.
fn without_segments(jpeg: &[u8], left_out: u8) -> Vec<u8> {
    let mut out = jpeg[..2].to_vec();
    let mut at = 2;
    while jpeg[at + 1] != 0xDA {
        let end = at + 2 + usize::from(u16::from_be_bytes([jpeg[at + 2], jpeg[at + 3]]));
        if jpeg[at + 1] != left_out {
            out.extend_from_slice(&jpeg[at..end]);
        }
        at = end;
    }
    out.extend_from_slice(&jpeg[at..]);
    out
}

#[test]
fn a_jpeg_without_tables_does_not_borrow_those_of_the_picture_before() {
    let picture = std::fs::read(folder().join("jpeg_optimized.jpg")).unwrap();
    let mut scratch = Scratch::default();
    assert!(decode(&picture, &mut scratch).is_ok());
    let bare = without_segments(&picture, 0xDB);
    assert!(bare.len() < picture.len());
    let error = decode(&bare, &mut scratch).unwrap_err();
    assert_eq!(error.class(), ImageClass::Corrupt, "{error}");
}

#[test]
fn a_jpeg_with_a_broken_table_does_not_spoil_the_picture_after_it() {
    let picture = std::fs::read(folder().join("jpeg_gray.jpg")).unwrap();
    let mut scratch = Scratch::default();
    let first = decode(&picture, &mut scratch);
    let mut broken = picture.clone();
    let table = broken.windows(2).position(|marker| marker == [0xFF, 0xC4]).unwrap();
    broken[table + 5] = 0xFF;
    assert_eq!(decode(&broken, &mut scratch).unwrap_err().class(), ImageClass::Corrupt);
    assert_eq!(decode(&picture, &mut scratch), first);
}
