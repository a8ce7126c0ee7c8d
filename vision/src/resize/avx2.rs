//! The kernels in 256 bit vectors. Sums of 16 bit products in 32 bits are exact, so every byte equals the
//! plain code's.

#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::Axis;
use crate::scratch::PADDING;

/// Pixels that one 16 byte load covers: four of three bytes.
const PER_LOAD: usize = 4;
/// Bytes per step of the height pass.
const STEP: usize = 32;

/// Width pass of two rows at once: one row per 128 bit half.
///
/// Each source begins with the row's pixels and goes on for at least [`PADDING`] bytes behind them; each
/// target has [`PADDING`] bytes more than the row needs. The caller has checked that the processor has AVX2.
pub(super) fn across(axis: &Axis, sources: [&[u8]; 2], targets: [&mut [u8]; 2]) {
    for source in sources {
        assert!(
            source.len() >= axis.input * 3 + PADDING,
            "source row with padding"
        );
    }
    for target in &targets {
        assert!(
            target.len() >= axis.output * 3 + PADDING,
            "target row with padding"
        );
    }
    assert!(
        axis.weights.len() >= axis.output * axis.taps && axis.taps.is_multiple_of(2),
        "a full table"
    );
    // SAFETY: AVX2 is there (contract above), the lengths were just checked.
    unsafe { across_two(axis, sources, targets) }
}

/// # Safety
/// AVX2 must be available, and the lengths be as [`across`] asserts.
#[target_feature(enable = "avx2")]
unsafe fn across_two(axis: &Axis, [upper, lower]: [&[u8]; 2], [up, low]: [&mut [u8]; 2]) {
    // From 16 bytes (R0 G0 B0 R1 …) the 16 bit pairs R0 R1, G0 G1, B0 B1, and the same of pixels 2 and 3.
    let z = -128;
    let half = _mm_setr_epi8(0, z, 3, z, 1, z, 4, z, 2, z, 5, z, z, z, z, z);
    let first_pair = _mm256_broadcastsi128_si256(half);
    let half = _mm_setr_epi8(6, z, 9, z, 7, z, 10, z, 8, z, 11, z, z, z, z, z);
    let second_pair = _mm256_broadcastsi128_si256(half);
    // R G B _ R G B _ → R G B R G B.
    let close_up = _mm256_broadcastsi128_si256(_mm_setr_epi8(
        0, 1, 2, 4, 5, 6, z, z, z, z, z, z, z, z, z, z,
    ));
    let rounding = _mm256_set1_epi32(1 << axis.precision >> 1);
    let shift = _mm_cvtsi32_si128(axis.precision as i32);

    let window = |index: usize| {
        let (start, count, weights) = axis.at(index);
        // All windows take the same number of steps, unless that would read behind the padding.
        let full = (start + axis.taps + PER_LOAD) * 3
            <= upper.len().min(lower.len()).saturating_sub(PADDING);
        let pairs = if full {
            axis.taps / 2
        } else {
            count.div_ceil(2)
        };
        let mut sum = rounding;
        let mut pair = 0;
        while pair < pairs {
            let at = (start + pair * 2) * 3;
            // SAFETY: `at + 16` is inside both sources: the first pixel read is inside the window (or
            // `full` was checked for the whole table width), and 16 bytes from there end in the padding.
            // The weights of `pair` are inside the table row, which has an even length.
            let (one, two, first) = unsafe {
                (
                    _mm_loadu_si128(upper.as_ptr().add(at).cast()),
                    _mm_loadu_si128(lower.as_ptr().add(at).cast()),
                    weights
                        .as_ptr()
                        .add(pair * 2)
                        .cast::<i32>()
                        .read_unaligned(),
                )
            };
            let pixels = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(one), two);
            let products = _mm256_madd_epi16(
                _mm256_shuffle_epi8(pixels, first_pair),
                _mm256_set1_epi32(first),
            );
            sum = _mm256_add_epi32(sum, products);
            if pair + 1 < pairs {
                // SAFETY: as above, the next pair of the same table row.
                let second = unsafe {
                    weights
                        .as_ptr()
                        .add(pair * 2 + 2)
                        .cast::<i32>()
                        .read_unaligned()
                };
                let products = _mm256_madd_epi16(
                    _mm256_shuffle_epi8(pixels, second_pair),
                    _mm256_set1_epi32(second),
                );
                sum = _mm256_add_epi32(sum, products);
            }
            pair += 2;
        }
        _mm256_sra_epi32(sum, shift)
    };

    let mut index = 0;
    while index < axis.output {
        let left = window(index);
        let right = if index + 1 < axis.output {
            window(index + 1)
        } else {
            left
        };
        let words = _mm256_packs_epi32(left, right);
        let bytes = _mm256_shuffle_epi8(_mm256_packus_epi16(words, words), close_up);
        // SAFETY: 8 bytes from pixel `index` end at most 8 bytes behind the row, inside the padding.
        unsafe {
            _mm_storel_epi64(
                up.as_mut_ptr().add(index * 3).cast(),
                _mm256_castsi256_si128(bytes),
            );
            _mm_storel_epi64(
                low.as_mut_ptr().add(index * 3).cast(),
                _mm256_extracti128_si256::<1>(bytes),
            );
        }
        index += 2;
    }
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
    let fits = offsets
        .iter()
        .all(|at| at.checked_add(whole).is_some_and(|end| end <= source.len()));
    if !fits || whole > target.len() || weights.len() < offsets.len().next_multiple_of(2) {
        return 0;
    }
    // SAFETY: AVX2 is there (contract above), every row has `whole` bytes, and every pair its weights.
    unsafe { down_steps(source, offsets, weights, precision, whole, target) }
    whole
}

/// # Safety
/// AVX2 must be available, and the lengths be as [`down`] checks; `whole` is a multiple of [`STEP`].
#[target_feature(enable = "avx2")]
unsafe fn down_steps(
    source: &[u8],
    offsets: &[usize],
    weights: &[i16],
    precision: u32,
    whole: usize,
    target: &mut [u8],
) {
    let zero = _mm256_setzero_si256();
    let rounding = _mm256_set1_epi32(1 << precision >> 1);
    let shift = _mm_cvtsi32_si128(precision as i32);
    let mut place = 0;
    while place < whole {
        let mut sums = [rounding; 4];
        for (pair, rows) in offsets.chunks(2).enumerate() {
            let (first, second) = (rows[0], rows[rows.len() - 1]);
            // SAFETY: 32 bytes from `place` are inside each row, the pair is inside the weights (for an odd
            // count the last weight is a zero behind the window).
            let (above, below, weight) = unsafe {
                (
                    _mm256_loadu_si256(source.as_ptr().add(first + place).cast()),
                    _mm256_loadu_si256(source.as_ptr().add(second + place).cast()),
                    weights
                        .as_ptr()
                        .add(pair * 2)
                        .cast::<i32>()
                        .read_unaligned(),
                )
            };
            let weight = _mm256_set1_epi32(weight);
            let low = _mm256_unpacklo_epi8(above, below);
            let high = _mm256_unpackhi_epi8(above, below);
            let products = [
                _mm256_madd_epi16(_mm256_unpacklo_epi8(low, zero), weight),
                _mm256_madd_epi16(_mm256_unpackhi_epi8(low, zero), weight),
                _mm256_madd_epi16(_mm256_unpacklo_epi8(high, zero), weight),
                _mm256_madd_epi16(_mm256_unpackhi_epi8(high, zero), weight),
            ];
            for (sum, product) in sums.iter_mut().zip(products) {
                *sum = _mm256_add_epi32(*sum, product);
            }
        }
        let [a, b, c, d] = sums.map(|sum| _mm256_sra_epi32(sum, shift));
        let bytes = _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
        // SAFETY: the target has `whole` bytes.
        unsafe { _mm256_storeu_si256(target.as_mut_ptr().add(place).cast(), bytes) };
        place += STEP;
    }
}
