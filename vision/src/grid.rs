//! Patches per axis, and the sizes that follow.

use crate::geometry::Geometry;

/// `image_grid_thw` of one image: patches per axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grid {
    /// Temporal slots; 1 for a still image.
    pub t: u32,
    /// Patches down.
    pub h: u32,
    /// Patches across.
    pub w: u32,
}

impl Grid {
    /// The grid of a resized picture (height, width in pixels), which [`crate::smart_resize()`] gives.
    pub fn of(resized: (u32, u32), geometry: &Geometry) -> Self {
        let patch = geometry.patch.max(1);
        Self { t: 1, h: resized.0 / patch, w: resized.1 / patch }
    }

    /// Rows of the patch matrix: one per patch.
    pub fn rows(&self) -> u64 {
        u64::from(self.t) * u64::from(self.h) * u64::from(self.w)
    }

    /// Placeholder tokens in the text: patches, merged.
    pub fn tokens(&self, geometry: &Geometry) -> u64 {
        let merged = u64::from(geometry.merge).pow(2).max(1);
        self.rows() / merged
    }

    /// Bytes of the patches: rows × 3 × patch × patch (u8, one temporal slot).
    pub fn patch_bytes(&self, geometry: &Geometry) -> usize {
        let per_row = 3 * u64::from(geometry.patch) * u64::from(geometry.patch);
        usize::try_from(self.rows().saturating_mul(per_row)).unwrap_or(usize::MAX)
    }
}
