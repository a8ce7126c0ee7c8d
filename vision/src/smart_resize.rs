//! Takes a size and a geometry, gives the size to resize to, as transformers' `smart_resize` does.

use crate::error::ImageError;
use crate::geometry::Geometry;

/// One side may be this many times the other, not more.
const MAX_RATIO: u64 = 200;

/// The size after the resize, height first: multiples of patch × merge with a pixel count between the
/// geometry's limits, as near as possible to the picture's own shape. In f64 and in the reference's order of
/// operations, so that ties and last bits fall the same way.
///
/// # Errors
/// [`ImageError::AspectRatio`] when one side is more than 200 times the other (exactly 200 is fine);
/// [`ImageError::Corrupt`] when a side is 0.
pub fn smart_resize(
    height: u32,
    width: u32,
    geometry: &Geometry,
) -> Result<(u32, u32), ImageError> {
    let (short, long) = (u64::from(height.min(width)), u64::from(height.max(width)));
    if short == 0 {
        return Err(ImageError::corrupt("image without pixels"));
    }
    // The reference divides; in integers the comparison is the same and exact.
    if long > short * MAX_RATIO {
        return Err(ImageError::AspectRatio { width, height });
    }
    let factor = f64::from(geometry.factor());
    let (h, w) = (f64::from(height), f64::from(width));
    let (min, max) = (geometry.min_pixels as f64, geometry.max_pixels as f64);
    let mut h_bar = (h / factor).round_ties_even() * factor;
    let mut w_bar = (w / factor).round_ties_even() * factor;
    if h_bar * w_bar > max {
        let beta = (h * w / max).sqrt();
        h_bar = ((h / beta / factor).floor() * factor).max(factor);
        w_bar = ((w / beta / factor).floor() * factor).max(factor);
    } else if h_bar * w_bar < min {
        let beta = (min / (h * w)).sqrt();
        h_bar = (h * beta / factor).ceil() * factor;
        w_bar = (w * beta / factor).ceil() * factor;
    }
    // Sides stay far below 2^32: the pixel limits are at most 2^30 and the ratio is bounded.
    Ok((h_bar as u32, w_bar as u32))
}
