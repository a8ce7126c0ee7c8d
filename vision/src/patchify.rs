//! Takes rows of a resized picture, gives patches in the model's order; and back, for people to look at.
//!
//! Rows of the patch matrix go by merge blocks: `row = ((bi*GW + bj)*m + i)*m + j` with `GW = gw/m`; columns
//! are `c*p*p + py*p + px`, one temporal slot.

use crate::decode::RgbImage;
use crate::geometry::Geometry;
use crate::grid::Grid;

/// Where the pixels of a picture row go in the patch matrix.
pub(crate) struct Patcher {
    patch: usize,
    merge: usize,
    /// Patches across.
    across: usize,
}

impl Patcher {
    pub(crate) fn new(geometry: &Geometry, grid: &Grid) -> Self {
        Self {
            patch: geometry.patch as usize,
            merge: geometry.merge as usize,
            across: grid.w as usize,
        }
    }

    /// The matrix row of the patch at (down, across).
    fn matrix_row(&self, down: usize, across: usize) -> usize {
        let merge = self.merge;
        let block = (down / merge) * (self.across / merge) + across / merge;
        (block * merge + down % merge) * merge + across % merge
    }

    /// Writes picture row `y` (RGB, at least `across * patch * 3` bytes) to its places in the matrix.
    /// `planes` has room for three planes of the row.
    pub(crate) fn put_row(&self, y: usize, row: &[u8], planes: &mut [u8], matrix: &mut [u8]) {
        let (width, patch) = (self.across * self.patch, self.patch);
        split_planes(&row[..width * 3], width, planes);
        for (channel, plane) in planes.chunks_exact(width).take(3).enumerate() {
            for (across, pixels) in plane.chunks_exact(patch).enumerate() {
                let matrix_row = self.matrix_row(y / patch, across);
                let at = ((matrix_row * 3 + channel) * patch + y % patch) * patch;
                matrix[at..at + patch].copy_from_slice(pixels);
            }
        }
    }
}

/// R G B R G B … → R R …, G G …, B B …
fn split_planes(row: &[u8], width: usize, planes: &mut [u8]) {
    let (red, rest) = planes.split_at_mut(width);
    let (green, blue) = rest.split_at_mut(width);
    for (((pixel, r), g), b) in row.chunks_exact(3).zip(red).zip(green).zip(blue) {
        *r = pixel[0];
        *g = pixel[1];
        *b = pixel[2];
    }
}

/// Puts a picture together again from its patches, for people to look at. Missing patches are black.
pub fn patches_to_rgb(patches: &[u8], grid: &Grid, geometry: &Geometry) -> RgbImage {
    let patcher = Patcher::new(geometry, grid);
    let patch = patcher.patch;
    let (height, width) = (grid.h as usize * patch, patcher.across * patch);
    let mut pixels = vec![0; height * width * 3];
    for (place, pixel) in pixels.chunks_exact_mut(3).enumerate() {
        let (y, x) = (place / width, place % width);
        for (channel, value) in pixel.iter_mut().enumerate() {
            let matrix_row = patcher.matrix_row(y / patch, x / patch);
            let at = ((matrix_row * 3 + channel) * patch + y % patch) * patch + x % patch;
            *value = patches.get(at).copied().unwrap_or(0);
        }
    }
    RgbImage {
        width: grid.w * geometry.patch,
        height: grid.h * geometry.patch,
        pixels,
    }
}
