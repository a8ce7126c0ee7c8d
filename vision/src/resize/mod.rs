//! Takes an RGB picture, gives it row by row at another size: bicubic, antialias, uint8, width pass first.
//!
//! The result of the width pass is uint8 and clips, so the order of the passes matters. Equal to torchvision's
//! CPU kernel in every value. An axis whose size stays is not touched. The width pass runs only a window
//! ahead of the height pass, in a ring of rows that stays in the cache.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod axis;
mod lanes;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod windows;

pub(crate) use axis::Axis;
pub(crate) use lanes::Lanes;

use crate::kernels::Kernels;
use crate::scratch::{PADDING, RowBuffers, room};

/// Rows that the width pass makes at a time: the weights of a window are loaded once for all of them.
const ROWS: usize = 4;

/// A picture and the size that it should get.
pub(crate) struct Resize<'a> {
    /// RGB rows, [`PADDING`] readable bytes behind them.
    pub(crate) padded: &'a [u8],
    /// Stored size, width first.
    pub(crate) from: (usize, usize),
    /// Wanted size, width first.
    pub(crate) to: (usize, usize),
    pub(crate) kernels: Kernels,
}

impl Resize<'_> {
    /// Hands out the rows of the resized picture, top to bottom: `put(y, row)` with `row` of `to.0 * 3`
    /// bytes, at least [`PADDING`] more behind them.
    pub(crate) fn rows(&self, buffers: &mut RowBuffers, mut put: impl FnMut(usize, &[u8])) {
        let ((width, height), (out_width, out_height)) = (self.from, self.to);
        assert!(self.padded.len() >= width * height * 3 + PADDING, "picture with padding");
        let RowBuffers { ring, line, offsets, across, lanes, down } = buffers;
        let across = (width != out_width).then(|| table(across, width, out_width));
        let lanes = across.and_then(|axis| self.lane_table(lanes, axis));
        let down = (height != out_height).then(|| table(down, height, out_height));

        // Rows after the width pass: of the picture itself, or of the ring.
        let stride =
            if across.is_some() { (out_width * 3 + PADDING).next_multiple_of(64) } else { width * 3 };
        let capacity = down.map_or(1, |axis| axis.taps) + ROWS;
        let mut ready = 0;
        let line = room(line, out_width * 3 + PADDING);
        for y in 0..out_height {
            let (start, count, weights) = down.map_or((y, 1, [].as_slice()), |axis| axis.at(y));
            if let Some(axis) = across {
                let ring = room(ring, capacity * stride);
                while ready < start + count {
                    ready += self.make_rows(axis, lanes, ready, ring, capacity, stride);
                }
            }
            let source: &[u8] = if across.is_some() { ring } else { self.padded };
            let place = |row: usize| {
                if across.is_some() { row % capacity * stride } else { row * stride }
            };
            if let Some(axis) = down {
                offsets.clear();
                offsets.extend((start..start + count).map(place));
                let target = &mut line[..out_width * 3 + PADDING];
                self.weigh_rows(source, offsets, weights, axis.precision, out_width * 3, target);
                put(y, line);
            } else {
                put(y, &source[place(y)..]);
            }
        }
    }

    /// The tables of the 512 bit width pass, where it runs and can serve this axis.
    fn lane_table<'k>(&self, kept: &'k mut Option<Lanes>, axis: &Axis) -> Option<&'k Lanes> {
        #[cfg(target_arch = "x86_64")]
        if self.kernels == Kernels::Avx512 {
            if kept.as_ref().is_none_or(|lanes| lanes.lengths != (axis.input, axis.output)) {
                *kept = Lanes::of(axis);
            }
            return kept.as_ref();
        }
        *kept = None;
        None
    }

    /// Width pass of the rows from `first` on into the ring; gives how many were made.
    fn make_rows(
        &self,
        axis: &Axis,
        lanes: Option<&Lanes>,
        first: usize,
        ring: &mut [u8],
        capacity: usize,
        stride: usize,
    ) -> usize {
        let row_bytes = axis.input * 3;
        let source = |row: usize| &self.padded[row * row_bytes..];
        let place = |row: usize| row % capacity * stride..row % capacity * stride + stride;
        #[cfg(target_arch = "x86_64")]
        if self.kernels != Kernels::Scalar
            && let Ok(targets) = ring.get_disjoint_mut([0, 1, 2, 3].map(|row| place(first + row)))
        {
            // Behind the last row the last is taken again; it lands in rows of the ring that nobody reads.
            let last = self.from.1 - 1;
            let sources = [0, 1, 2, 3].map(|row| source((first + row).min(last)));
            match (self.kernels, lanes) {
                (Kernels::Avx512, Some(lanes)) => avx512::across(lanes, sources, targets),
                _ => avx2::across(axis, sources, targets),
            }
            return ROWS;
        }
        scalar::across(axis, &source(first)[..row_bytes], &mut ring[place(first)]);
        1
    }

    /// Height pass of one row of `length` bytes.
    fn weigh_rows(
        &self,
        source: &[u8],
        offsets: &[usize],
        weights: &[i16],
        precision: u32,
        length: usize,
        target: &mut [u8],
    ) {
        #[cfg(target_arch = "x86_64")]
        let done = match self.kernels {
            Kernels::Scalar => 0,
            Kernels::Avx2 => avx2::down(source, offsets, weights, precision, length, target),
            Kernels::Avx512 => avx512::down(source, offsets, weights, precision, length, target),
        };
        #[cfg(not(target_arch = "x86_64"))]
        let done = 0;
        scalar::down(source, offsets, weights, precision, done, &mut target[..length]);
    }
}

/// The table for these lengths: the one kept from the last picture, when it fits.
fn table(kept: &mut Option<Axis>, input: usize, output: usize) -> &Axis {
    if kept.as_ref().is_some_and(|axis| (axis.input, axis.output) != (input, output)) {
        *kept = None;
    }
    kept.get_or_insert_with(|| Axis::new(input, output))
}

#[cfg(test)]
mod tests;
