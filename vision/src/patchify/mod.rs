//! Takes rows of a resized picture, gives patches in the model's order; and back, for people to look at.
//!
//! Rows of the patch matrix go by merge blocks: `row = ((bi*GW + bj)*m + i)*m + j` with `GW = gw/m`; columns
//! are `c*p*p + py*p + px`, one temporal slot.

#[cfg(target_arch = "x86_64")]
mod ssse3;

use crate::decode::RgbImage;
use crate::geometry::Geometry;
use crate::grid::Grid;
use crate::kernels::Kernels;

/// Where the pixels of a picture row go in the patch matrix.
pub(crate) struct Patcher {
    patch: usize,
    merge: usize,
    /// Patches across.
    across: usize,
    kernels: Kernels,
}

impl Patcher {
    pub(crate) fn new(geometry: &Geometry, grid: &Grid, kernels: Kernels) -> Self {
        let (patch, merge) = (geometry.patch.max(1) as usize, geometry.merge.max(1) as usize);
        Self { patch, merge, across: grid.w as usize, kernels }
    }

    /// Bytes of one row of the matrix: a patch.
    fn patch_bytes(&self) -> usize {
        3 * self.patch * self.patch
    }

    /// The places in the matrix where red pixels of picture row `y` go, patch by patch from the left; green
    /// and blue follow `patch²` and `2 patch²` later.
    fn places(&self, y: usize) -> impl Iterator<Item = usize> + use<> {
        let (merge, patch, step) = (self.merge, self.patch, self.patch_bytes());
        let down = y / patch;
        let first_row = (down / merge) * (self.across / merge) * merge * merge + (down % merge) * merge;
        let first = first_row * step + y % patch * patch;
        let blocks = self.across / merge;
        // One division per picture row: places are found by adding.
        (0..blocks).flat_map(move |block| {
            let in_block = first + block * merge * merge * step;
            (0..merge).map(move |j| in_block + j * step)
        })
    }

    /// Writes picture row `y` (RGB, `across * patch * 3` bytes and [`crate::scratch::PADDING`] of anything behind them) to its places in the matrix.
    pub(crate) fn put_row(&self, y: usize, row: &[u8], matrix: &mut [u8]) {
        let plane = self.patch * self.patch;
        #[cfg(target_arch = "x86_64")]
        if self.kernels != Kernels::Scalar && matches!(self.patch, 14 | 16) {
            // As many rows ahead as a line of memory has of a patch of 16 pixels.
            let soon = self.places(y + 4);
            return ssse3::put_row(self.patch, row, self.places(y), soon, matrix);
        }
        let pixels = row.chunks_exact(self.patch * 3);
        for (at, patch_row) in self.places(y).zip(pixels) {
            let matrix = &mut matrix[at..at + 2 * plane + self.patch];
            for (x, pixel) in patch_row.chunks_exact(3).enumerate() {
                matrix[x] = pixel[0];
                matrix[plane + x] = pixel[1];
                matrix[2 * plane + x] = pixel[2];
            }
        }
    }
}

/// Puts a picture together again from its patches, for people to look at. Missing patches are black.
pub fn patches_to_rgb(patches: &[u8], grid: &Grid, geometry: &Geometry) -> RgbImage {
    let patcher = Patcher::new(geometry, grid, Kernels::Scalar);
    let (patch, plane) = (patcher.patch, patcher.patch * patcher.patch);
    let width = patcher.across * patch;
    let mut pixels = vec![0; grid.h as usize * patch * width * 3];
    for (y, row) in pixels.chunks_exact_mut((width * 3).max(1)).enumerate() {
        for (at, patch_row) in patcher.places(y).zip(row.chunks_exact_mut(patch * 3)) {
            for (x, pixel) in patch_row.chunks_exact_mut(3).enumerate() {
                for (channel, value) in pixel.iter_mut().enumerate() {
                    *value = patches.get(at + channel * plane + x).copied().unwrap_or(0);
                }
            }
        }
    }
    RgbImage { width: grid.w * geometry.patch, height: grid.h * geometry.patch, pixels }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::PADDING;

    fn geometry(patch: u32, merge: u32) -> Geometry {
        Geometry {
            patch,
            merge,
            temporal: 2,
            min_pixels: 1,
            max_pixels: 1 << 20,
            mean: [0.5; 3],
            std: [0.5; 3],
        }
    }

    #[test]
    fn every_kernel_puts_every_value_where_the_formula_says() {
        for (p, m, down, across) in [(16, 2, 4, 6), (14, 2, 2, 4), (16, 1, 3, 1), (14, 3, 3, 6), (8, 2, 4, 2)]
        {
            let geometry = geometry(p, m);
            let grid = Grid { t: 1, h: down, w: across };
            let (p, m, down, across) = (p as usize, m as usize, down as usize, across as usize);
            let width = across * p;
            let value = |y: usize, x: usize, c: usize| (y * 31 + x * 7 + c * 101 + y * x) as u8;
            let mut expected = vec![0; grid.patch_bytes(&geometry)];
            for y in 0..down * p {
                for x in 0..width {
                    for c in 0..3 {
                        let (gi, gj) = (y / p, x / p);
                        let (bi, i, bj, j) = (gi / m, gi % m, gj / m, gj % m);
                        let row = ((bi * (across / m) + bj) * m + i) * m + j;
                        expected[row * 3 * p * p + c * p * p + y % p * p + x % p] = value(y, x, c);
                    }
                }
            }
            for kernels in Kernels::available() {
                let patcher = Patcher::new(&geometry, &grid, *kernels);
                let mut matrix = vec![0xEE; expected.len()];
                for y in 0..down * p {
                    let mut row: Vec<u8> =
                        (0..width).flat_map(|x| [0, 1, 2].map(|c| value(y, x, c))).collect();
                    row.extend([0xDD; PADDING]);
                    patcher.put_row(y, &row, &mut matrix);
                }
                assert!(matrix == expected, "patch {p} merge {m} {kernels:?}");
            }
        }
    }
}
