//! The kernels in 512 bit vectors with dot products and byte permutes. Sums of 16 bit products in 32 bits are
//! exact, so every byte equals the plain code's.

#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::lanes::{GROUP, Lanes, SPAN};
use super::{ROWS, windows};
use crate::scratch::PADDING;

/// Bytes per step of the height pass.
const STEP: usize = 64;

/// Of every four bytes the first and the third: two zero-extended 16 bit values.
const EVEN: u64 = 0x5555_5555_5555_5555;

/// Width pass of four rows at once, 16 bytes of each at a time.
///
/// Each source begins with the row's pixels and goes on for at least [`PADDING`] bytes behind them; each target
/// has [`PADDING`] bytes more than the row needs. The caller has checked that the processor has AVX-512 F, BW,
/// VBMI and VNNI.
pub(super) fn across(lanes: &Lanes, sources: [&[u8]; ROWS], mut targets: [&mut [u8]; ROWS]) {
    let (input, output) = lanes.lengths;
    let groups = lanes.begins.len();
    assert!(sources.iter().all(|source| source.len() >= input * 3 + PADDING), "source rows with padding");
    assert!(targets.iter().all(|target| target.len() >= output * 3 + PADDING), "target rows with padding");
    assert!(groups * GROUP < output * 3 + PADDING, "as many groups as the row needs");
    assert!(lanes.indexes.len() == groups && lanes.weights.len() == groups * lanes.pairs, "full tables");
    let from = sources.map(<[u8]>::as_ptr);
    let to = targets.each_mut().map(|target| target.as_mut_ptr());
    // SAFETY: the instructions are there (contract above), lengths were just checked, and every load of the
    // tables ends inside the row's padding (`Lanes::of`).
    unsafe {
        match (lanes.one_load, lanes.pairs) {
            (true, 2) => across_rows::<true, 2>(lanes, from, to),
            (true, 3) => across_rows::<true, 3>(lanes, from, to),
            (true, 4) => across_rows::<true, 4>(lanes, from, to),
            (true, 5) => across_rows::<true, 5>(lanes, from, to),
            (true, _) => across_rows::<true, 0>(lanes, from, to),
            (false, _) => across_rows::<false, 0>(lanes, from, to),
        }
    }
}

/// `PAIRS` is the number of pairs when that is known to the compiler, which then keeps their weights in
/// registers, else 0.
///
/// # Safety
/// AVX-512 F, BW, VBMI and VNNI must be available, the rows as long as [`across`] asserts, and the tables made
/// by [`Lanes::of`].
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vnni")]
unsafe fn across_rows<const ONE_LOAD: bool, const PAIRS: usize>(
    lanes: &Lanes,
    sources: [*const u8; ROWS],
    targets: [*mut u8; ROWS],
) {
    let pairs = if PAIRS == 0 { lanes.pairs } else { PAIRS };
    let ahead = lanes.lengths.0 * 3 * ROWS;
    let rounding = _mm512_set1_epi32(1 << lanes.precision >> 1);
    let shift = _mm_cvtsi32_si128(lanes.precision as i32);
    let next_pair = _mm512_set1_epi8(if ONE_LOAD { 6 } else { 0 });
    // 4 bytes of each row in every quarter → 16 bytes of one row in every quarter.
    let by_row = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    for (group, (begin, index)) in lanes.begins.iter().zip(&lanes.indexes).enumerate() {
        let begin = *begin as usize;
        windows::fetch_ahead(sources, begin + ahead);
        let mut sums = [rounding; ROWS];
        // SAFETY: 64 bytes from 64, here and at the weights, of which a group has `pairs` vectors. Loads of the
        // source end inside its padding by contract.
        unsafe {
            let mut index = _mm512_loadu_si512(index.as_ptr().cast());
            let weights = lanes.weights.as_ptr().add(group * pairs);
            let mut pixels = sources.map(|source| _mm512_loadu_si512(source.add(begin).cast()));
            for pair in 0..pairs {
                let weight = _mm512_loadu_si512(weights.add(pair).cast());
                if !ONE_LOAD && pair > 0 {
                    pixels = sources.map(|source| _mm512_loadu_si512(source.add(begin + pair * 6).cast()));
                }
                for (sum, pixels) in sums.iter_mut().zip(pixels) {
                    let taps = _mm512_maskz_permutexvar_epi8(EVEN, index, pixels);
                    *sum = _mm512_dpwssd_epi32(*sum, taps, weight);
                }
                index = _mm512_add_epi8(index, next_pair);
            }
        }
        let [a, b, c, d] = sums.map(|sum| _mm512_sra_epi32(sum, shift));
        let bytes = _mm512_packus_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
        let bytes = _mm512_permutexvar_epi32(by_row, bytes);
        let at = group * GROUP;
        // SAFETY: the last group begins inside the row or behind it by less than a group, and its 16 bytes end
        // inside the padding.
        unsafe {
            _mm_storeu_si128(targets[0].add(at).cast(), _mm512_castsi512_si128(bytes));
            _mm_storeu_si128(targets[1].add(at).cast(), _mm512_extracti32x4_epi32::<1>(bytes));
            _mm_storeu_si128(targets[2].add(at).cast(), _mm512_extracti32x4_epi32::<2>(bytes));
            _mm_storeu_si128(targets[3].add(at).cast(), _mm512_extracti32x4_epi32::<3>(bytes));
        }
    }
}

const _: () = assert!(SPAN == size_of::<__m512i>());

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
