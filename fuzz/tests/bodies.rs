//! Every surface over its seeded cases: the same ones in every run.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::path::Path;

use feedmill_fuzz::body::{self, Surface};
use feedmill_fuzz::memory::{Counting, peak_of};
use feedmill_fuzz::{hostile, runner};
use feedmill_vision::{
    ColorPolicy, Geometry, Grid, ImageLimits, Scratch, fill_patches, read_header, smart_resize,
};

#[global_allocator]
static COUNTING: Counting = Counting;

const SEED: u64 = 20_261_130;

fn holds(name: &str) {
    let surface: Surface = body::surface(name).unwrap();
    let corpus = (surface.corpus)();
    for input in &corpus {
        (surface.body)(input);
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let taken =
        runner::run(&surface, &corpus, SEED, 0..surface.cases, folder, |_| {}).unwrap_or_else(|broken| {
            let input = broken.input.display();
            panic!("{name}, seed {SEED}, case {}: {}\nits input is {input}", broken.number, broken.reason)
        });
    // Changes that are all refused at the first byte would prove nothing, nor would those that change nothing.
    let cases = surface.cases;
    println!("{name}: {taken} of {cases} inputs were taken");
    assert!(taken * 100 > cases && (cases - taken) * 100 > cases, "{taken} of {cases} inputs were taken");
}

#[test]
fn frames() {
    holds("frame");
}

#[test]
fn records() {
    holds("record");
}

#[test]
fn texts() {
    holds("text");
}

#[test]
fn requests() {
    holds("request");
}

#[test]
fn image_headers() {
    holds("image-header");
}

#[test]
fn image_pixels() {
    holds("image-pixels");
}

#[test]
fn manifests() {
    holds("manifest");
}

#[test]
fn there_are_a_hundred_thousand_cases() {
    let cases: u64 = body::ALL.iter().map(|surface| surface.cases).sum();
    assert!(cases >= 100_000, "{cases}");
}

/// The other way round: a lossless WebP that is made for it takes nearly what `hidden_bytes` says.
#[test]
fn the_tables_of_a_lossless_webp_stay_below_what_its_header_admits() {
    let geometry = Geometry {
        patch: 16,
        merge: 2,
        temporal: 2,
        min_pixels: 4096,
        max_pixels: 32_768,
        mean: [0.5; 3],
        std: [0.5; 3],
    };
    let groups = 1000;
    let file = hostile::webp_of_tables(groups);
    let header = read_header(&file, &ImageLimits::default()).unwrap();
    let (width, height) = header.stored_size();
    let resized = smart_resize(height, width, &geometry).unwrap();
    let mut patches = vec![0; Grid::of(resized, &geometry).patch_bytes(&geometry)];
    let (peak, made) = peak_of(|| {
        let policy = ColorPolicy::default();
        fill_patches(&file, &header, resized, &geometry, &policy, &mut Scratch::default(), &mut patches)
    });
    assert!(made.is_err(), "it is cut behind its tables");
    assert!(peak > u64::from(groups) * 65_000, "only {peak} bytes: the file does not do what it is made for");
    assert!(peak <= header.decode_bytes() + header.hidden_bytes(), "{peak} bytes");
    assert!(header.hidden_bytes() < 2 * peak, "{} admitted for {peak}", header.hidden_bytes());
}
