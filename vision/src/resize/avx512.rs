//! The kernels in 512 bit vectors with dot products. Sums of 16 bit products in 32 bits are exact, so every byte equals the
//! plain code's.

#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::{Axis, windows};

/// Bytes per step of the height pass.
const STEP: usize = 64;

/// Width pass of four rows at once: one row per 128 bit quarter.
///
/// Each source begins with the row's pixels and goes on for at least [`crate::scratch::PADDING`] bytes behind them; each
/// target has [`crate::scratch::PADDING`] bytes more than the row needs. The caller has checked that the processor has AVX-512 F, BW
/// and VNNI.
pub(super) fn across(axis: &Axis, sources: [&[u8]; 4], targets: [&mut [u8]; 4]) {
    let full = windows::check(axis, &sources, &targets);
    // SAFETY: AVX-512 is there (contract above), the lengths were just checked.
    unsafe {
        match axis.taps / 2 {
            2 => across_rows::<2>(axis, full, sources, targets),
            3 => across_rows::<3>(axis, full, sources, targets),
            4 => across_rows::<4>(axis, full, sources, targets),
            _ => across_rows::<0>(axis, full, sources, targets),
        }
    }
}

/// `PAIRS` is half the taps when that is known to the compiler, else 0. `full` windows have all their taps
/// inside the source; the others take only as many as they have.
///
/// # Safety
/// AVX-512 F, BW and VNNI must be available, and the lengths be as [`windows::check`] asserts.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn across_rows<const PAIRS: usize>(
    axis: &Axis,
    full: usize,
    sources: [&[u8]; 4],
    targets: [&mut [u8]; 4],
) {
    // From 16 bytes (R0 G0 B0 R1 …) the 16 bit pairs R0 R1, G0 G1, B0 B1, and the same of pixels 2 and 3.
    let z = -128;
    let shuffles = [
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, z, 3, z, 1, z, 4, z, 2, z, 5, z, z, z, z, z)),
        _mm512_broadcast_i32x4(_mm_setr_epi8(6, z, 9, z, 7, z, 10, z, 8, z, 11, z, z, z, z, z)),
    ];
    // R G B _ four times → R G B four times.
    let close_up = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, z, z, z, z));
    let shift = _mm_cvtsi32_si128(axis.precision as i32);
    let [one, two, three, four] = targets;
    for index in (0..axis.output).step_by(4) {
        // Behind the last window the last is taken again; it lands in the padding.
        let last = axis.output - 1;
        // SAFETY: the contract of this function is that of the windows.
        let (a, b, c, d) = unsafe {
            (
                sum_window::<PAIRS>(axis, full, sources, index, shuffles),
                sum_window::<PAIRS>(axis, full, sources, (index + 1).min(last), shuffles),
                sum_window::<PAIRS>(axis, full, sources, (index + 2).min(last), shuffles),
                sum_window::<PAIRS>(axis, full, sources, (index + 3).min(last), shuffles),
            )
        };
        let (a, b) = (_mm512_sra_epi32(a, shift), _mm512_sra_epi32(b, shift));
        let (c, d) = (_mm512_sra_epi32(c, shift), _mm512_sra_epi32(d, shift));
        let bytes = _mm512_packus_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
        let bytes = _mm512_shuffle_epi8(bytes, close_up);
        // SAFETY: 16 bytes from pixel `index` end at most 16 bytes behind the row, inside the padding.
        unsafe {
            let at = index * 3;
            _mm_storeu_si128(one.as_mut_ptr().add(at).cast(), _mm512_castsi512_si128(bytes));
            _mm_storeu_si128(two.as_mut_ptr().add(at).cast(), _mm512_extracti32x4_epi32::<1>(bytes));
            _mm_storeu_si128(three.as_mut_ptr().add(at).cast(), _mm512_extracti32x4_epi32::<2>(bytes));
            _mm_storeu_si128(four.as_mut_ptr().add(at).cast(), _mm512_extracti32x4_epi32::<3>(bytes));
        }
    }
}

/// Weighted sums of one window in all rows, four 32 bit lanes (R G B _) per row.
///
/// # Safety
/// As [`across_rows`]; `index` is a window of the table.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn sum_window<const PAIRS: usize>(
    axis: &Axis,
    full: usize,
    sources: [&[u8]; 4],
    index: usize,
    shuffles: [__m512i; 2],
) -> __m512i {
    let (start, count, weights) = axis.at(index);
    let pairs = match PAIRS {
        _ if index >= full => count.div_ceil(2),
        0 => axis.taps / 2,
        known => known,
    };
    let mut sum = _mm512_set1_epi32(1 << axis.precision >> 1);
    let mut pair = 0;
    while pair < pairs {
        let at = (start + pair * 2) * 3;
        // SAFETY: `at + 16` is inside all sources: the first pixel read is inside the window, and 16
        // bytes from there end in the padding (checked for `full` windows with all taps).
        let (one, two, three, four) = unsafe {
            (load(sources[0], at), load(sources[1], at), load(sources[2], at), load(sources[3], at))
        };
        let pixels = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(one), two);
        let pixels = _mm512_inserti32x4::<2>(pixels, three);
        let pixels = _mm512_inserti32x4::<3>(pixels, four);
        // SAFETY: the pair is inside the table row, which has an even length.
        let first = _mm512_set1_epi32(unsafe { weight_pair(weights, pair) });
        sum = _mm512_dpwssd_epi32(sum, _mm512_shuffle_epi8(pixels, shuffles[0]), first);
        if pair + 1 < pairs {
            // SAFETY: as above.
            let second = _mm512_set1_epi32(unsafe { weight_pair(weights, pair + 1) });
            sum = _mm512_dpwssd_epi32(sum, _mm512_shuffle_epi8(pixels, shuffles[1]), second);
        }
        pair += 2;
    }
    sum
}

/// # Safety
/// `at + 16` is inside the row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn load(row: &[u8], at: usize) -> __m128i {
    // SAFETY: by contract.
    unsafe { _mm_loadu_si128(row.as_ptr().add(at).cast()) }
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
/// the slices have no room for whole steps. The caller has checked that the processor has AVX-512 F, BW
/// and VNNI.
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
    // SAFETY: AVX-512 is there (contract above), every row has `whole` bytes, and every pair its weights.
    unsafe { down_steps(source, offsets, weights, precision, &mut target[..whole]) }
    whole
}

/// # Safety
/// AVX-512 F, BW and VNNI must be available, every row have the bytes of `target`, a multiple of [`STEP`], and every pair its
/// weights.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn down_steps(source: &[u8], offsets: &[usize], weights: &[i16], precision: u32, target: &mut [u8]) {
    let zero = _mm512_setzero_si512();
    let rounding = _mm512_set1_epi32(1 << precision >> 1);
    let shift = _mm_cvtsi32_si128(precision as i32);
    for (step, out) in target.chunks_exact_mut(STEP).enumerate() {
        let (mut a, mut b, mut c, mut d) = (rounding, rounding, rounding, rounding);
        for (pair, rows) in offsets.chunks(2).enumerate() {
            let (first, second) = (rows[0] + step * STEP, rows[rows.len() - 1] + step * STEP);
            // SAFETY: 64 bytes from there are inside each row, the pair is inside the weights (for an odd
            // count the last weight is a zero behind the window).
            let (above, below, weight) = unsafe {
                (
                    _mm512_loadu_si512(source.as_ptr().add(first).cast()),
                    _mm512_loadu_si512(source.as_ptr().add(second).cast()),
                    _mm512_set1_epi32(weight_pair(weights, pair)),
                )
            };
            let (low, high) = (_mm512_unpacklo_epi8(above, below), _mm512_unpackhi_epi8(above, below));
            a = _mm512_dpwssd_epi32(a, _mm512_unpacklo_epi8(low, zero), weight);
            b = _mm512_dpwssd_epi32(b, _mm512_unpackhi_epi8(low, zero), weight);
            c = _mm512_dpwssd_epi32(c, _mm512_unpacklo_epi8(high, zero), weight);
            d = _mm512_dpwssd_epi32(d, _mm512_unpackhi_epi8(high, zero), weight);
        }
        let (a, b) = (_mm512_sra_epi32(a, shift), _mm512_sra_epi32(b, shift));
        let (c, d) = (_mm512_sra_epi32(c, shift), _mm512_sra_epi32(d, shift));
        let bytes = _mm512_packus_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
        // SAFETY: the chunk has 64 bytes.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), bytes) };
    }
}
