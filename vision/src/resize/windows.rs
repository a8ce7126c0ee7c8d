//! What the vector kernels share: the bounds that they rely on, checked once per row, and hints to the
//! processor.

#![allow(unsafe_code)]

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

use super::{Axis, ROWS};
use crate::scratch::PADDING;

/// Bytes that a vector kernel reads from the first pixel of a group of taps.
const LOAD: usize = 16;

/// Asserts what the width kernels rely on; gives how many windows, from the left, may take all `axis.taps`
/// taps without reading behind a source.
///
/// Windows are inside the row ([`Axis`]), so a window that takes only its own pixels reads at most
/// [`LOAD`] bytes behind the row's last pixel.
pub(super) fn check(axis: &Axis, sources: &[&[u8]], targets: &[&mut [u8]]) -> usize {
    let shortest = sources.iter().map(|source| source.len()).min().unwrap_or(0);
    assert!(shortest >= axis.input * 3 + PADDING, "source row with padding");
    assert!(
        targets.iter().all(|target| target.len() >= axis.output * 3 + PADDING),
        "target row with padding"
    );
    assert!(axis.weights.len() >= axis.output * axis.taps && axis.taps.is_multiple_of(2), "a full table");
    let reach = (axis.taps * 3 + LOAD).min(shortest);
    let last_start = (shortest - reach) / 3;
    axis.starts.partition_point(|start| *start as usize <= last_start)
}

/// Whether every row of a window has `whole` bytes in the source, and every pair of rows its weights.
pub(super) fn rows_hold(source: &[u8], offsets: &[usize], weights: &[i16], whole: usize) -> bool {
    let inside = |at: &usize| at.checked_add(whole).is_some_and(|end| end <= source.len());
    offsets.iter().all(inside) && weights.len() >= offsets.len().next_multiple_of(2)
}

/// Fetches a line of each of the next rows while these are worked on: a decoded picture is larger than the
/// second cache, and processors look ahead only inside a page of memory, which is about a row.
#[inline]
pub(super) fn fetch_ahead(rows: [*const u8; ROWS], at: usize) {
    for row in rows {
        // SAFETY: a hint only: it reads and writes nothing, and any address will do.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(at).cast()) };
    }
}
