//! Takes an input and an output length, gives windows and 16 bit weights of torchvision's bicubic antialias
//! filter for uint8.

/// Windows and weights of one axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Axis {
    /// Samples before.
    pub(crate) input: usize,
    /// Samples after.
    pub(crate) output: usize,
    /// Weights per window, even: the vector kernels take pairs. Windows that are shorter end in zeros.
    pub(crate) taps: usize,
    /// Where each window begins.
    pub(crate) starts: Vec<u32>,
    /// Samples in each window, at most `taps`.
    pub(crate) counts: Vec<u32>,
    /// `output * taps` weights, scaled by `2^precision`.
    pub(crate) weights: Vec<i16>,
    /// Bits behind the point of the weights, at most 22.
    pub(crate) precision: u32,
}

/// Sums of weighted bytes stay below 2^31 with this many bits behind the point.
const MAX_PRECISION: u32 = 22;

/// Weights in f64 that are kept between finding the precision and applying it, about: half a megabyte, more
/// than any usual picture has. What is behind them is computed again, since a table in f64 would be four times
/// the final one.
const MOST_KEPT: usize = 1 << 16;

/// The cubic of Keys with a = -0.5, as Pillow and torchvision use it for antialias.
fn cubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A
    } else {
        0.0
    }
}

/// One window in f64: where it begins, and its normalised weights.
fn window(input: usize, output: usize, index: usize, weights: &mut Vec<f64>) -> usize {
    let scale = input as f64 / output as f64;
    let stretch = scale.max(1.0);
    let support = 2.0 * stretch;
    let most = support.ceil() as usize * 2 + 1;
    let inverse = 1.0 / stretch;
    let center = scale * (index as f64 + 0.5);
    // Casts to integers truncate, and saturate at 0 below.
    let start = (center - support + 0.5) as usize;
    let end = ((center + support + 0.5) as usize).min(input);
    let count = end.saturating_sub(start).min(most);
    weights.clear();
    weights.extend((0..count).map(|j| cubic(((j + start) as f64 - center + 0.5) * inverse)));
    let total: f64 = weights.iter().sum();
    if total != 0.0 {
        weights.iter_mut().for_each(|weight| *weight /= total);
    }
    start
}

impl Axis {
    /// Computes windows and weights. Both lengths are at least 1.
    pub(crate) fn new(input: usize, output: usize) -> Self {
        let mut row = Vec::new();
        // All windows in f64, one behind the other, as long as they are few.
        let mut exact: Vec<f64> = Vec::new();
        let (mut starts, mut counts) = (Vec::with_capacity(output), Vec::with_capacity(output));
        let mut largest = 0.0f64;
        for index in 0..output {
            let start = window(input, output, index, &mut row);
            starts.push(u32::try_from(start).unwrap_or(u32::MAX));
            counts.push(u32::try_from(row.len()).unwrap_or(u32::MAX));
            largest = row.iter().copied().fold(largest, f64::max);
            if exact.len() < MOST_KEPT {
                exact.extend_from_slice(&row);
            }
        }
        let taps = counts.iter().copied().max().unwrap_or(0).next_multiple_of(2) as usize;
        // The first precision at which one bit more would not fit the largest weight into an i16.
        let overflows = |bits: u32| {
            let next = (0.5 + largest * f64::from(1u32 << (bits + 1))) as i64;
            next > i64::from(i16::MAX)
        };
        let precision = (0..MAX_PRECISION).find(|bits| overflows(*bits)).unwrap_or(MAX_PRECISION);
        let one = f64::from(1u32 << precision);
        let mut weights = vec![0i16; output * taps];
        if taps > 0 {
            let mut begin = 0;
            for (index, quantised) in weights.chunks_exact_mut(taps).enumerate() {
                let end = begin + counts[index] as usize;
                let kept = exact.get(begin..end).unwrap_or_else(|| {
                    window(input, output, index, &mut row);
                    &row
                });
                begin = end;
                for (weight, exact) in quantised.iter_mut().zip(kept) {
                    *weight = (exact * one + 0.5f64.copysign(*exact)) as i16;
                }
            }
        }
        Self { input, output, taps, starts, counts, weights, precision }
    }

    /// Window, count and weights of one output sample. The weights go on with zeros behind the count.
    #[inline]
    pub(crate) fn at(&self, index: usize) -> (usize, usize, &[i16]) {
        let weights = &self.weights[index * self.taps..(index + 1) * self.taps];
        (self.starts[index] as usize, self.counts[index] as usize, weights)
    }

    /// Bytes of the tables.
    pub(crate) fn bytes(&self) -> usize {
        self.weights.capacity() * 2 + (self.starts.capacity() + self.counts.capacity()) * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_of_every_window_sum_to_one_and_windows_stay_inside() {
        for (input, output) in
            [(1, 1), (1, 64), (2, 3648), (17, 16), (7, 700), (900, 32), (6000, 32), (100, 99)]
        {
            let axis = Axis::new(input, output);
            let mut previous = 0;
            for index in 0..output {
                let (start, count, weights) = axis.at(index);
                assert!(count >= 1 && start + count <= input, "{input} {output} {index}");
                assert!(start >= previous, "windows only move forward");
                previous = start;
                assert!(weights[count..].iter().all(|weight| *weight == 0));
                let sum: i64 = weights.iter().map(|weight| i64::from(*weight)).sum();
                let one = 1i64 << axis.precision;
                // Each weight is rounded by at most a half.
                assert!((sum - one).abs() <= count as i64, "{input} {output} {index}: {sum} of {one}");
            }
        }
    }

    #[test]
    fn sums_of_products_fit_in_31_bits() {
        for (input, output) in [(1, 64), (3, 64), (100, 99), (900, 32), (6000, 32), (13000, 28), (2, 10000)] {
            let axis = Axis::new(input, output);
            for index in 0..output {
                let (_, _, weights) = axis.at(index);
                let magnitude: i64 = weights.iter().map(|weight| i64::from(*weight).abs() * 255).sum();
                assert!(magnitude + (1 << 21) < i64::from(i32::MAX), "{input} {output}");
            }
        }
    }
}
