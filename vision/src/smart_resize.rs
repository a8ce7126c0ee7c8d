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
pub fn smart_resize(height: u32, width: u32, geometry: &Geometry) -> Result<(u32, u32), ImageError> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn geometry(patch: u32, min_pixels: u64, max_pixels: u64) -> Geometry {
        Geometry { patch, merge: 2, temporal: 2, min_pixels, max_pixels, mean: [0.5; 3], std: [0.5; 3] }
    }

    #[test]
    fn the_known_examples() {
        let geometry = geometry(16, 65_536, 16_777_216);
        for (from, to) in [
            ((272, 272), (256, 256)),
            ((336, 500), (320, 512)),
            ((1080, 1920), (1088, 1920)),
            ((1, 200), (32, 3648)),
            ((20_000, 300), (20_000, 288)),
        ] {
            assert_eq!(smart_resize(from.0, from.1, &geometry), Ok(to));
        }
        let refused = smart_resize(201, 1, &geometry);
        assert_eq!(refused, Err(ImageError::AspectRatio { width: 1, height: 201 }));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn sides_are_whole_units_within_the_limits(
            height in 1u32..40_000, width in 1u32..40_000, patch in prop::sample::select(vec![14u32, 16])
        ) {
            let geometry = geometry(patch, 65_536, 1 << 20);
            if let Ok((h, w)) = smart_resize(height, width, &geometry) {
                let factor = geometry.factor();
                prop_assert!(h >= factor && w >= factor && h % factor == 0 && w % factor == 0);
                // Only a side that cannot get shorter than one unit lets the picture exceed the limit.
                let within = u64::from(h) * u64::from(w) <= 1 << 20;
                prop_assert!(within || h == factor || w == factor);
                prop_assert!(u64::from(h) * u64::from(w) >= 65_536);
            }
        }
    }
}
