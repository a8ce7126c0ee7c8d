//! The kernels in plain code: what the vector kernels must equal, and what other processors run.

use super::Axis;

/// Rounds a sum of weighted samples back to a byte.
#[inline]
fn byte(sum: i32, precision: u32) -> u8 {
    ((sum + (1 << precision >> 1)) >> precision).clamp(0, 255) as u8
}

/// Width pass of one row: `source` holds `axis.input` RGB pixels, `target` gets `axis.output`.
pub(super) fn across(axis: &Axis, source: &[u8], target: &mut [u8]) {
    for (index, pixel) in target.chunks_exact_mut(3).take(axis.output).enumerate() {
        let (start, count, weights) = axis.at(index);
        let mut sums = [0i32; 3];
        for (sample, weight) in source[start * 3..(start + count) * 3].chunks_exact(3).zip(weights) {
            for (sum, value) in sums.iter_mut().zip(sample) {
                *sum += i32::from(*value) * i32::from(*weight);
            }
        }
        for (value, sum) in pixel.iter_mut().zip(sums) {
            *value = byte(sum, axis.precision);
        }
    }
}

/// Height pass of one row: bytes `from..` of `target` from the rows of `buffer` that begin at `offsets`.
pub(super) fn down(
    buffer: &[u8],
    offsets: &[usize],
    weights: &[i16],
    precision: u32,
    from: usize,
    target: &mut [u8],
) {
    for (place, value) in target.iter_mut().enumerate().skip(from) {
        let samples = offsets.iter().zip(weights);
        let sum = samples.map(|(at, weight)| i32::from(buffer[at + place]) * i32::from(*weight)).sum();
        *value = byte(sum, precision);
    }
}
