//! Buffers that one thread keeps from image to image.

use crate::resize::Axis;

/// Bytes that may be read, never used, behind a picture's last row: vector loads are 64 bytes wide.
pub(crate) const PADDING: usize = 64;

/// Reusable buffers of one decoding thread. Page faults and the kernel's zeroing cost more than the resize
/// when every image gets fresh memory.
///
/// After each image a buffer that has grown past the size given to [`Scratch::new`] is given back, so a
/// thread keeps at most about four times that.
pub struct Scratch {
    /// The picture in RGB, as stored.
    pub(crate) rgb: Vec<u8>,
    /// A decoder's own samples (CMYK, RGBA, indices).
    pub(crate) raw: Vec<u8>,
    /// The picture after turning.
    pub(crate) oriented: Vec<u8>,
    pub(crate) rows: RowBuffers,
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
    /// Weights of the height pass.
    pub(crate) down: Option<Axis>,
}

impl Scratch {
    /// The size of [`Default`]: an RGB picture of 2.7 megapixels stays in kept buffers; larger ones are
    /// rarer, and pay their page faults beside tens of milliseconds of decoding.
    pub const DEFAULT_KEEP_BYTES: usize = 8 << 20;

    /// New, empty buffers of which each is kept up to `keep_bytes`.
    pub fn new(keep_bytes: usize) -> Self {
        Self {
            rgb: Vec::new(),
            raw: Vec::new(),
            oriented: Vec::new(),
            rows: RowBuffers::default(),
            keep_bytes,
        }
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
    }

    /// Gives large buffers back.
    pub(crate) fn trim(&mut self) {
        let rows = &mut self.rows;
        for buffer in [&mut self.rgb, &mut self.raw, &mut self.oriented, &mut rows.ring, &mut rows.line] {
            if buffer.capacity() > self.keep_bytes {
                *buffer = Vec::new();
            }
        }
        for axis in [&mut rows.across, &mut rows.down] {
            if axis.as_ref().is_some_and(|axis| axis.bytes() > self.keep_bytes) {
                *axis = None;
            }
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
