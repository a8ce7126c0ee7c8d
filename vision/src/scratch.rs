//! Buffers that one thread keeps from image to image.

use crate::kernels::Kernels;
use crate::resize::{Axis, Lanes};

/// Bytes that may be read, never used, behind a picture's last row: vector loads are 64 bytes wide.
pub(crate) const PADDING: usize = 64;

/// Reusable buffers of one decoding thread. Page faults and the kernel's zeroing cost more than the resize
/// when every image gets fresh memory.
///
/// After each image buffers are given back until all together hold at most what was given to [`Scratch::new`].
pub struct Scratch {
    /// The picture in RGB, as stored.
    pub(crate) rgb: Vec<u8>,
    /// A decoder's own samples (CMYK, RGBA, indices).
    pub(crate) raw: Vec<u8>,
    /// The picture after turning.
    pub(crate) oriented: Vec<u8>,
    pub(crate) rows: RowBuffers,
    /// What runs.
    pub(crate) kernels: Kernels,
    keep_bytes: usize,
}

/// Buffers of the resize.
#[derive(Default)]
pub(crate) struct RowBuffers {
    /// Ring of rows after the width pass.
    pub(crate) ring: Vec<u8>,
    /// One row after both passes.
    pub(crate) line: Vec<u8>,
    /// Where the rows of one window begin.
    pub(crate) offsets: Vec<usize>,
    /// Weights of the width pass of the last image: pictures of a data set often share their sizes.
    pub(crate) across: Option<Axis>,
    /// The same for 512 bit vectors.
    pub(crate) lanes: Option<Lanes>,
    /// Weights of the height pass.
    pub(crate) down: Option<Axis>,
}

impl Scratch {
    /// The size of [`Default`]: a picture of 13 megapixels in RGB, as telephones make them, stays in its buffer.
    /// Fresh memory for one costs a third of its decoding again.
    pub const DEFAULT_KEEP_BYTES: usize = 40 << 20;

    /// New, empty buffers that between images hold at most `keep_bytes` together.
    pub fn new(keep_bytes: usize) -> Self {
        Self {
            rgb: Vec::new(),
            raw: Vec::new(),
            oriented: Vec::new(),
            rows: RowBuffers::default(),
            kernels: Kernels::detect(),
            keep_bytes,
        }
    }

    /// Runs the fastest kernels that this processor has and that are not faster than `most`. For comparing
    /// them: all give the same bytes.
    #[must_use]
    pub fn with_kernels(self, most: Kernels) -> Self {
        let fits = Kernels::available().iter().rfind(|kernels| **kernels <= most);
        Self { kernels: fits.copied().unwrap_or(Kernels::Scalar), ..self }
    }

    /// Bytes that the kept buffers hold now.
    pub fn held_bytes(&self) -> usize {
        let rows = &self.rows;
        [&self.rgb, &self.raw, &self.oriented, &rows.ring, &rows.line]
            .iter()
            .map(|buffer| buffer.capacity())
            .sum::<usize>()
            + rows.offsets.capacity() * size_of::<usize>()
            + [&rows.across, &rows.down].into_iter().flatten().map(Axis::bytes).sum::<usize>()
            + rows.lanes.as_ref().map_or(0, Lanes::bytes)
    }

    /// Gives buffers back until what is kept is small enough: first those that few pictures need.
    pub(crate) fn trim(&mut self) {
        let drops: [fn(&mut Self); 7] = [
            |scratch| scratch.raw = Vec::new(),
            |scratch| scratch.oriented = Vec::new(),
            |scratch| scratch.rgb = Vec::new(),
            |scratch| scratch.rows.ring = Vec::new(),
            |scratch| scratch.rows.line = Vec::new(),
            |scratch| scratch.rows.offsets = Vec::new(),
            |scratch| (scratch.rows.across, scratch.rows.lanes, scratch.rows.down) = (None, None, None),
        ];
        for give_back in drops {
            if self.held_bytes() <= self.keep_bytes {
                return;
            }
            give_back(self);
        }
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new(Self::DEFAULT_KEEP_BYTES)
    }
}

/// The first `length` bytes of a buffer, which grows if it must. What they hold is left over from before;
/// fresh memory comes zeroed from the allocator and is never copied.
pub(crate) fn room(buffer: &mut Vec<u8>, length: usize) -> &mut [u8] {
    if buffer.len() < length {
        *buffer = Vec::new();
        *buffer = vec![0; length];
    }
    &mut buffer[..length]
}
