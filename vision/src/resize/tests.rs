//! The kernels against each other, and against the recipe written down once more, plainly.

use super::*;
use proptest::prelude::*;

/// The recipe of one axis, independent of the crate's tables: windows and weights in f64, one precision, i16.
fn recipe(input: usize, output: usize) -> (Vec<(usize, Vec<i64>)>, u32) {
    let cubic = |x: f64| {
        let (x, a) = (x.abs(), -0.5);
        if x < 1.0 {
            ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
        } else if x < 2.0 {
            ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
        } else {
            0.0
        }
    };
    let scale = input as f64 / output as f64;
    let support = 2.0 * scale.max(1.0);
    let inverse = 1.0 / scale.max(1.0);
    let most = support.ceil() as i64 * 2 + 1;
    let mut exact = Vec::new();
    for i in 0..output {
        let center = scale * (i as f64 + 0.5);
        let first = ((center - support + 0.5).trunc() as i64).max(0);
        let count = (((center + support + 0.5).trunc() as i64).min(input as i64) - first).clamp(0, most);
        let weights: Vec<f64> =
            (0..count).map(|j| cubic(((j + first) as f64 - center + 0.5) * inverse)).collect();
        let sum: f64 = weights.iter().sum();
        exact.push((first as usize, weights.iter().map(|weight| weight / sum).collect::<Vec<_>>()));
    }
    let largest = exact.iter().flat_map(|(_, weights)| weights).copied().fold(0.0, f64::max);
    let too_large = |p: &u32| (0.5 + largest * 2f64.powi(*p as i32 + 1)).trunc() >= 32768.0;
    let p = (0..22).find(too_large).unwrap_or(22);
    let quantised = |weight: f64| (weight * 2f64.powi(p as i32) + 0.5 * weight.signum()).trunc() as i64;
    let rows =
        exact.into_iter().map(|(first, weights)| (first, weights.into_iter().map(quantised).collect()));
    (rows.collect(), p)
}

/// The two passes over a whole picture, width first.
fn reference(
    rgb: &[u8],
    (width, height): (usize, usize),
    (out_width, out_height): (usize, usize),
) -> Vec<u8> {
    let round = |sum: i64, p: u32| ((sum + (1 << (p - 1))) >> p).clamp(0, 255) as u8;
    let mut wide = rgb.to_vec();
    if width != out_width {
        let (windows, p) = recipe(width, out_width);
        wide = vec![0; out_width * height * 3];
        for y in 0..height {
            for (x, (first, weights)) in windows.iter().enumerate() {
                for c in 0..3 {
                    let at = |j: usize| i64::from(rgb[(y * width + first + j) * 3 + c]);
                    let sum = weights.iter().enumerate().map(|(j, weight)| weight * at(j)).sum();
                    wide[(y * out_width + x) * 3 + c] = round(sum, p);
                }
            }
        }
    }
    if height == out_height {
        return wide;
    }
    let (windows, p) = recipe(height, out_height);
    let row = out_width * 3;
    let mut out = vec![0; row * out_height];
    for (y, (first, weights)) in windows.iter().enumerate() {
        for x in 0..row {
            let at = |j: usize| i64::from(wide[(first + j) * row + x]);
            let sum = weights.iter().enumerate().map(|(j, weight)| weight * at(j)).sum();
            out[y * row + x] = round(sum, p);
        }
    }
    out
}

fn run(rgb: &[u8], from: (usize, usize), to: (usize, usize), kernels: Kernels, fill: u8) -> Vec<u8> {
    // What stands in the padding and in used buffers must not matter.
    let mut padded = rgb.to_vec();
    padded.extend([fill; PADDING]);
    let mut buffers =
        RowBuffers { ring: vec![fill; 600_000], line: vec![fill; 20_000], ..RowBuffers::default() };
    let mut out = vec![0; to.0 * to.1 * 3];
    let mut rows = out.chunks_exact_mut(to.0 * 3).enumerate();
    Resize { padded: &padded, from, to, kernels }.rows(&mut buffers, |y, row| {
        let (expected, line) = rows.next().unwrap();
        assert_eq!(y, expected);
        line.copy_from_slice(&row[..to.0 * 3]);
    });
    assert!(rows.next().is_none(), "every row was given out");
    out
}

/// Noise, or hard edges of 0 and 255, where the first pass clips.
fn picture((width, height): (usize, usize), seed: u64, edges: bool) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..width * height * 3).map(|_| if edges { (next() & 1) * 255 } else { next() }).collect()
}

fn check(from: (usize, usize), to: (usize, usize), seed: u64, edges: bool) {
    let rgb = picture(from, seed, edges);
    let expected = reference(&rgb, from, to);
    for kernels in Kernels::available().iter().copied() {
        for fill in [0, 255] {
            let got = run(&rgb, from, to, kernels, fill);
            let differing = got.iter().zip(&expected).filter(|(a, b)| a != b).count();
            assert_eq!(differing, 0, "{from:?} -> {to:?} seed {seed} edges {edges} {kernels:?}");
        }
    }
}

#[test]
fn extreme_shapes_equal_the_recipe() {
    let cases = [
        ((1, 1), (28, 28)),
        ((1, 200), (32, 608)),
        ((200, 1), (608, 32)),
        ((2, 300), (1, 300)),
        ((3, 2), (3, 2)),
        ((64, 64), (64, 32)),
        ((64, 64), (32, 64)),
        ((65, 64), (64, 64)),
        ((3000, 2), (32, 64)),
        ((2, 3000), (64, 32)),
        ((5000, 3), (1, 1)),
        ((3, 5000), (1, 1)),
        ((7, 9), (7, 448)),
        ((1000, 40), (28, 1400)),
    ];
    for (index, (from, to)) in cases.into_iter().enumerate() {
        check(from, to, index as u64 + 7, index % 2 == 0);
    }
}

#[test]
fn every_small_length_pair_equals_the_recipe() {
    for input in 1..40 {
        for output in 1..40 {
            check((input, 2), (output, 2), 11, true);
            check((2, input), (2, output), 13, true);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_sizes_equal_the_recipe(
        from in (1usize..180, 1usize..180),
        to in (1usize..180, 1usize..180),
        seed in any::<u64>(),
        edges in any::<bool>(),
    ) {
        check(from, to, seed, edges);
    }

    #[test]
    fn random_lengths_have_the_recipe_s_weights(input in 1usize..20_000, output in 1usize..4_000) {
        let axis = Axis::new(input, output);
        let (rows, precision) = recipe(input, output);
        prop_assert_eq!(axis.precision, precision);
        for (index, (first, weights)) in rows.iter().enumerate() {
            let (start, count, got) = axis.at(index);
            prop_assert_eq!((start, count), (*first, weights.len()));
            let got: Vec<i64> = got[..count].iter().map(|weight| i64::from(*weight)).collect();
            prop_assert_eq!(&got, weights);
        }
    }
}
