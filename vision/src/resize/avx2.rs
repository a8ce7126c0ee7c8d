//! The kernels in 256 bit vectors. Sums of 16 bit products in 32 bits are exact, so every byte equals the
//! plain code's.

#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::{Axis, ROWS, windows};

/// Bytes per step of the height pass.
const STEP: usize = 32;

/// Windows whose bytes are stored together.
const GROUP: usize = 4;

/// Width pass of four rows at once: two vectors, one row per 128 bit half.
///
/// Each source begins with the row's pixels and goes on for at least [`crate::scratch::PADDING`] bytes behind
/// them; each target has [`crate::scratch::PADDING`] bytes more than the row needs. The caller has checked
/// that the processor has AVX2.
pub(super) fn across(axis: &Axis, sources: [&[u8]; ROWS], mut targets: [&mut [u8]; ROWS]) {
    let full = windows::check(axis, &sources, &targets);
    let from = sources.map(<[u8]>::as_ptr);
    let to = targets.each_mut().map(|target| target.as_mut_ptr());
    // SAFETY: AVX2 is there (contract above), the lengths were just checked.
    unsafe {
        match axis.taps / 2 {
            1 => across_rows::<1>(axis, full, from, to),
            2 => across_rows::<2>(axis, full, from, to),
            3 => across_rows::<3>(axis, full, from, to),
            4 => across_rows::<4>(axis, full, from, to),
            5 => across_rows::<5>(axis, full, from, to),
            6 => across_rows::<6>(axis, full, from, to),
            _ => across_rows::<0>(axis, full, from, to),
        }
    }
}

/// `PAIRS` is half the taps when that is known to the compiler, which then unrolls the windows, else 0.
/// `full` windows have all their taps inside the sources; the others take only as many as they have.
///
/// # Safety
/// AVX2 must be available, and the pointers be those of slices that [`windows::check`] has passed.
#[target_feature(enable = "avx2")]
unsafe fn across_rows<const PAIRS: usize>(
    axis: &Axis,
    full: usize,
    sources: [*const u8; ROWS],
    targets: [*mut u8; ROWS],
) {
    // From 16 bytes (R0 G0 B0 R1 …) the 16 bit pairs R0 R1, G0 G1, B0 B1, and the same of pixels 2 and 3.
    let z = -128;
    let shuffles = [
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, z, 3, z, 1, z, 4, z, 2, z, 5, z, z, z, z, z)),
        _mm256_broadcastsi128_si256(_mm_setr_epi8(6, z, 9, z, 7, z, 10, z, 8, z, 11, z, z, z, z, z)),
    ];
    // R G B _ four times → R G B four times.
    let close_up =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, z, z, z, z));
    let rounding = _mm256_set1_epi32(1 << axis.precision >> 1);
    let shift = _mm_cvtsi32_si128(axis.precision as i32);
    let ahead = axis.input * 3 * ROWS;
    for index in (0..axis.output).step_by(GROUP) {
        windows::fetch_ahead(sources, axis.starts[index] as usize * 3 + ahead);
        let mut sums = [[rounding; 2]; GROUP];
        if index + GROUP <= full {
            for (offset, sum) in sums.iter_mut().enumerate() {
                let pairs = if PAIRS == 0 { axis.taps / 2 } else { PAIRS };
                // SAFETY: the window is in the table, and all its taps inside the sources.
                unsafe { add_window(axis, sources, index + offset, pairs, shuffles, sum) };
            }
        } else {
            for (offset, sum) in sums.iter_mut().enumerate() {
                // Behind the last window the last is taken again; it lands in the padding.
                let window = (index + offset).min(axis.output - 1);
                let (_, count, _) = axis.at(window);
                // SAFETY: as above, with no more taps than are inside.
                unsafe { add_window(axis, sources, window, count.div_ceil(2), shuffles, sum) };
            }
        }
        for half in [0, 1] {
            let [a, b, c, d] = sums.map(|sum| _mm256_sra_epi32(sum[half], shift));
            let bytes = _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
            let bytes = _mm256_shuffle_epi8(bytes, close_up);
            // SAFETY: 16 bytes from pixel `index` end at most 16 bytes behind the row, inside the padding.
            unsafe {
                let (upper, lower) = (targets[half * 2].add(index * 3), targets[half * 2 + 1].add(index * 3));
                _mm_storeu_si128(upper.cast(), _mm256_castsi256_si128(bytes));
                _mm_storeu_si128(lower.cast(), _mm256_extracti128_si256::<1>(bytes));
            }
        }
    }
}

/// Adds the weighted pixels of one window, four 32 bit lanes (R G B _) per row: rows 0 and 1, rows 2 and 3.
///
/// # Safety
/// As [`across_rows`]; `index` is a window of the table, and the first pixel of each of its `pairs` is inside
/// the row or at most `PADDING - 16` bytes behind it.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn add_window(
    axis: &Axis,
    sources: [*const u8; ROWS],
    index: usize,
    pairs: usize,
    shuffles: [__m256i; 2],
    sums: &mut [__m256i; 2],
) {
    // SAFETY: the table has `output` starts and `output * taps` weights, `index` is below `output`.
    let (start, weights) = unsafe {
        let start = *axis.starts.as_ptr().add(index) as usize;
        (start * 3, axis.weights.as_ptr().add(index * axis.taps).cast::<i32>())
    };
    let mut pair = 0;
    while pair < pairs {
        let at = start + pair * 6;
        // SAFETY: `at + 16` is inside every source, by contract.
        let pixels = unsafe { [rows(sources[0], sources[1], at), rows(sources[2], sources[3], at)] };
        for (offset, shuffle) in shuffles.into_iter().enumerate().take(pairs - pair) {
            // SAFETY: the pair is inside the table row, which has an even length.
            let weight = _mm256_set1_epi32(unsafe { weights.add(pair + offset).read_unaligned() });
            for (sum, pixels) in sums.iter_mut().zip(pixels) {
                let products = _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, shuffle), weight);
                *sum = _mm256_add_epi32(*sum, products);
            }
        }
        pair += 2;
    }
}

/// 16 bytes of two rows.
///
/// # Safety
/// `at + 16` is inside both rows.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn rows(upper: *const u8, lower: *const u8, at: usize) -> __m256i {
    // SAFETY: by contract.
    let (upper, lower) =
        unsafe { (_mm_loadu_si128(upper.add(at).cast()), _mm_loadu_si128(lower.add(at).cast())) };
    _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(upper), lower)
}

/// Two neighbouring weights as one 32 bit lane.
///
/// # Safety
/// `pair * 2 + 1` is inside the weights.
#[inline]
unsafe fn weight_pair(weights: &[i16], pair: usize) -> i32 {
    // SAFETY: by contract.
    unsafe { weights.as_ptr().add(pair * 2).cast::<i32>().read_unaligned() }
}

/// Height pass of one row of `length` bytes; gives how many bytes of `target` are done: all, or none when
/// the slices have no room for whole steps. The caller has checked that the processor has AVX2.
pub(super) fn down(
    source: &[u8],
    offsets: &[usize],
    weights: &[i16],
    precision: u32,
    length: usize,
    target: &mut [u8],
) -> usize {
    let whole = length.next_multiple_of(STEP);
    if !windows::rows_hold(source, offsets, weights, whole) || whole > target.len() {
        return 0;
    }
    // SAFETY: AVX2 is there (contract above), every row has `whole` bytes, and every pair its weights.
    unsafe { down_steps(source, offsets, weights, precision, &mut target[..whole]) }
    whole
}

/// # Safety
/// AVX2 must be available, every row have the bytes of `target`, a multiple of [`STEP`], and every pair its
/// weights.
#[target_feature(enable = "avx2")]
unsafe fn down_steps(source: &[u8], offsets: &[usize], weights: &[i16], precision: u32, target: &mut [u8]) {
    let zero = _mm256_setzero_si256();
    let rounding = _mm256_set1_epi32(1 << precision >> 1);
    let shift = _mm_cvtsi32_si128(precision as i32);
    for (step, out) in target.chunks_exact_mut(STEP).enumerate() {
        let (mut a, mut b, mut c, mut d) = (rounding, rounding, rounding, rounding);
        for (pair, rows) in offsets.chunks(2).enumerate() {
            let (first, second) = (rows[0] + step * STEP, rows[rows.len() - 1] + step * STEP);
            // SAFETY: 32 bytes from there are inside each row, the pair is inside the weights (for an odd
            // count the last weight is a zero behind the window).
            let (above, below, weight) = unsafe {
                (
                    _mm256_loadu_si256(source.as_ptr().add(first).cast()),
                    _mm256_loadu_si256(source.as_ptr().add(second).cast()),
                    _mm256_set1_epi32(weight_pair(weights, pair)),
                )
            };
            let (low, high) = (_mm256_unpacklo_epi8(above, below), _mm256_unpackhi_epi8(above, below));
            a = _mm256_add_epi32(a, _mm256_madd_epi16(_mm256_unpacklo_epi8(low, zero), weight));
            b = _mm256_add_epi32(b, _mm256_madd_epi16(_mm256_unpackhi_epi8(low, zero), weight));
            c = _mm256_add_epi32(c, _mm256_madd_epi16(_mm256_unpacklo_epi8(high, zero), weight));
            d = _mm256_add_epi32(d, _mm256_madd_epi16(_mm256_unpackhi_epi8(high, zero), weight));
        }
        let (a, b) = (_mm256_sra_epi32(a, shift), _mm256_sra_epi32(b, shift));
        let (c, d) = (_mm256_sra_epi32(c, shift), _mm256_sra_epi32(d, shift));
        let bytes = _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
        // SAFETY: the chunk has 32 bytes.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), bytes) };
    }
}
