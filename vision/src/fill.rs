//! Takes an image's bytes, gives its patches in the caller's slice: decode, resize, patchify in one go.

use crate::decode::decode_padded;
use crate::error::ImageError;
use crate::geometry::Geometry;
use crate::grid::Grid;
use crate::header::ImageHeader;
use crate::limits::ColorPolicy;
use crate::patchify::Patcher;
use crate::resize::Resize;
use crate::scratch::Scratch;

/// Decodes an image, resizes it to `resized` (height, width; from [`crate::smart_resize()`]) and writes its
/// patches (u8, [`Grid::rows`] × 3·patch·patch, merge-block order, one temporal slot) to `out`, which has
/// [`Grid::patch_bytes`] bytes and is written completely.
///
/// # Errors
/// [`ImageError::Corrupt`] or [`ImageError::Unsupported`] when the pixels cannot be had (then `out` holds
/// nothing of value); [`ImageError::WrongPlace`] when the caller's sizes do not fit each other.
pub fn fill_patches(
    bytes: &[u8],
    header: &ImageHeader,
    resized: (u32, u32),
    geometry: &Geometry,
    policy: &ColorPolicy,
    scratch: &mut Scratch,
    out: &mut [u8],
) -> Result<(), ImageError> {
    let result = fill(bytes, header, resized, geometry, policy, scratch, out);
    scratch.trim();
    result
}

fn fill(
    bytes: &[u8],
    header: &ImageHeader,
    resized: (u32, u32),
    geometry: &Geometry,
    policy: &ColorPolicy,
    scratch: &mut Scratch,
    out: &mut [u8],
) -> Result<(), ImageError> {
    let grid = Grid::of(resized, geometry);
    let (height, width) = resized;
    let factor = geometry.factor();
    if factor == 0 || height == 0 || width == 0 || height % factor != 0 || width % factor != 0 {
        return Err(ImageError::WrongPlace { expected: 0, actual: out.len() });
    }
    if out.len() != grid.patch_bytes(geometry) {
        return Err(ImageError::WrongPlace { expected: grid.patch_bytes(geometry), actual: out.len() });
    }
    let (from_width, from_height) = header.oriented_size(policy);
    let kernels = scratch.kernels;
    // The row buffers go out of the scratch while the picture in it is borrowed.
    let mut rows = std::mem::take(&mut scratch.rows);
    let result = decode_padded(bytes, header, policy, scratch).map(|padded| {
        let resize = Resize {
            padded,
            from: (from_width as usize, from_height as usize),
            to: (width as usize, height as usize),
            kernels,
        };
        let patcher = Patcher::new(geometry, &grid, kernels);
        resize.rows(&mut rows, |y, row| patcher.put_row(y, row, out));
    });
    scratch.rows = rows;
    result
}
