//! Takes an axis, gives what the 512 bit width pass needs of it: for every 16 bytes of a row where 64 bytes of
//! the source begin, which of them each lane takes, and each lane's weights.
//!
//! A lane is one byte of the result, so nothing is wasted on a fourth channel, and one load serves five
//! pixels. It works while the windows of 16 bytes begin near each other: pictures made up to about three and
//! a half times smaller. Others take the 256 bit kernel.

use super::Axis;
use crate::scratch::PADDING;

/// Bytes of a row that are made together, one in each 32 bit lane.
pub(super) const GROUP: usize = 16;
/// Bytes of the source that a lane can choose from.
pub(super) const SPAN: usize = 64;

/// Tables of one axis, group by group from the left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lanes {
    /// Samples before and after: which axis this is of.
    pub(super) lengths: (usize, usize),
    /// Pairs of taps of every window.
    pub(super) pairs: usize,
    /// Bits behind the point of the weights.
    pub(super) precision: u32,
    /// Whether all taps of a group lie in the same [`SPAN`] bytes; else each pair of taps has a load of its
    /// own, two pixels behind the last.
    pub(super) one_load: bool,
    /// Byte of the source row at which each group's first load begins.
    pub(super) begins: Vec<u32>,
    /// For each lane of each group: the byte of the first tap, twice, and of the second, twice. The kernel
    /// masks the odd ones out.
    pub(super) indexes: Vec<[[u8; 4]; GROUP]>,
    /// `groups * pairs` vectors: for each lane the weights of one pair of taps.
    pub(super) weights: Vec<[[i16; 2]; GROUP]>,
}

impl Lanes {
    /// The tables, or None when the axis has windows that one load cannot serve.
    pub(super) fn of(axis: &Axis) -> Option<Self> {
        let pairs = axis.taps / 2;
        let row_bytes = axis.output * 3;
        let groups = row_bytes.div_ceil(GROUP);
        let mut begins = Vec::with_capacity(groups);
        let mut indexes = vec![[[0; 4]; GROUP]; groups];
        let mut weights = vec![[[0; 2]; GROUP]; groups * pairs];
        // Behind the row's last byte the last pixel is taken again; it lands in the padding.
        let pixel = |group: usize, lane: usize| ((group * GROUP + lane) / 3).min(axis.output - 1);
        let widest = (0..groups)
            .map(|group| axis.starts[pixel(group, GROUP - 1)] - axis.starts[pixel(group, 0)])
            .max()
            .unwrap_or(0) as usize;
        let one_load = (widest + axis.taps) * 3 <= SPAN;
        // How far behind the group's begin bytes are read: all of it must be inside the row and its padding.
        let reach = if one_load { SPAN } else { pairs.saturating_sub(1) * 6 + SPAN };
        let last_begin = (axis.input * 3 + PADDING).checked_sub(reach)?;
        for group in 0..groups {
            let begin = (axis.starts[pixel(group, 0)] as usize * 3).min(last_begin);
            begins.push(u32::try_from(begin).ok()?);
            for lane in 0..GROUP {
                let window = pixel(group, lane);
                let (start, _, taps) = axis.at(window);
                let first = start * 3 + (group * GROUP + lane) % 3 - begin;
                // Where each tap stands in its load. A tap without weight may name any byte.
                let place = |tap: usize| first + tap % 2 * 3 + if one_load { tap / 2 * 6 } else { 0 };
                if taps.iter().enumerate().any(|(tap, weight)| *weight != 0 && place(tap) >= SPAN) {
                    return None;
                }
                // As the instruction does: only the lower bits of an index count.
                let index = |tap: usize| u8::try_from(place(tap) % SPAN).unwrap_or(0);
                indexes[group][lane] = [index(0), index(0), index(1), index(1)];
                for (pair, weight) in taps.chunks_exact(2).enumerate() {
                    weights[group * pairs + pair][lane] = [weight[0], weight[1]];
                }
            }
        }
        let lengths = (axis.input, axis.output);
        Some(Self { lengths, pairs, precision: axis.precision, one_load, begins, indexes, weights })
    }

    /// Bytes of the tables.
    pub(crate) fn bytes(&self) -> usize {
        self.begins.capacity() * 4 + (self.indexes.capacity() + self.weights.capacity()) * SPAN
    }
}
