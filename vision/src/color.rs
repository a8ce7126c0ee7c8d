//! Small colour rules that several formats share (see [`crate::ColorPolicy`]).

/// Puts one channel on white: `round((c * a + 255 * (255 - a)) / 255)`, no gamma, no premultiplying.
#[inline]
pub(crate) fn over_white(channel: u8, alpha: u8) -> u8 {
    let sum = u32::from(channel) * u32::from(alpha) + 255 * (255 - u32::from(alpha));
    // At most 255 * 255, so the result fits.
    ((sum + 127) / 255) as u8
}

/// `round(a * b / 255)`.
#[inline]
pub(crate) fn multiply(a: u8, b: u8) -> u8 {
    ((u32::from(a) * u32::from(b) + 127) / 255) as u8
}

/// Turns stored-inverted CMYK (each byte 255 minus the ink) into RGB: `R = round((255-C)(255-K)/255)`.
///
/// `cmyk` holds four, `rgb` three bytes per pixel.
pub(crate) fn inverted_cmyk_to_rgb(cmyk: &[u8], rgb: &mut [u8]) {
    for (ink, pixel) in cmyk.chunks_exact(4).zip(rgb.chunks_exact_mut(3)) {
        pixel[0] = multiply(ink[0], ink[3]);
        pixel[1] = multiply(ink[1], ink[3]);
        pixel[2] = multiply(ink[2], ink[3]);
    }
}

/// Writes one pixel with alpha by the policy: on white, or with the alpha dropped.
#[inline]
pub(crate) fn put_rgba(pixel: &mut [u8], rgb: [u8; 3], alpha: u8, on_white: bool) {
    let shown = if on_white && alpha != 255 { rgb.map(|channel| over_white(channel, alpha)) } else { rgb };
    pixel[..3].copy_from_slice(&shown);
}

/// The alpha of four pixels.
const ALPHAS: u128 = 0xFF00_0000_FF00_0000_FF00_0000_FF00_0000;

/// Turns RGBA bytes into RGB bytes by the policy.
///
/// Charts and screenshots have alpha and make no use of it, so four pixels that show nothing of the ground are
/// closed up at once.
pub(crate) fn rgba_to_rgb(rgba: &[u8], rgb: &mut [u8], on_white: bool) {
    let (fours, rest) = rgba.as_chunks::<16>();
    let (targets, rest_target) = rgb.as_chunks_mut::<12>();
    for (source, target) in fours.iter().zip(targets) {
        let pixels = u128::from_le_bytes(*source);
        if on_white && pixels & ALPHAS != ALPHAS {
            put_each(source, target, on_white);
            continue;
        }
        let pixel = |at: u32| (pixels >> (32 * at)) as u64 & 0xFF_FFFF;
        let first = pixel(0) | pixel(1) << 24 | pixel(2) << 48;
        let last = pixel(2) >> 16 | pixel(3) << 8;
        target[..8].copy_from_slice(&first.to_le_bytes());
        target[8..].copy_from_slice(&(last as u32).to_le_bytes());
    }
    put_each(rest, rest_target, on_white);
}

/// One pixel after the other.
fn put_each(rgba: &[u8], rgb: &mut [u8], on_white: bool) {
    for (source, pixel) in rgba.chunks_exact(4).zip(rgb.chunks_exact_mut(3)) {
        put_rgba(pixel, [source[0], source[1], source[2]], source[3], on_white);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_pixels_at_once_are_what_each_is_alone() {
        for pixels in 0..14 {
            for clear in 0..=pixels {
                let rgba: Vec<u8> = (0..pixels * 4)
                    .map(|at| match at % 4 {
                        // The last round has no such pixel.
                        3 if at / 4 == clear => 77,
                        3 => 255,
                        _ => (at * 37 + 11) as u8,
                    })
                    .collect();
                for on_white in [true, false] {
                    let (mut got, mut expected) = (vec![1; pixels * 3], vec![2; pixels * 3]);
                    rgba_to_rgb(&rgba, &mut got, on_white);
                    put_each(&rgba, &mut expected, on_white);
                    assert_eq!(got, expected, "{pixels} pixels, number {clear} is not opaque, {on_white}");
                }
            }
        }
    }

    #[test]
    fn division_rounds_to_nearest_for_every_pair() {
        for c in 0..=255u8 {
            for a in 0..=255u8 {
                let exact = (f64::from(c) * f64::from(a) + 255.0 * (255.0 - f64::from(a))) / 255.0;
                assert_eq!(over_white(c, a), exact.round() as u8, "{c} {a}");
                assert_eq!(multiply(c, a), (f64::from(c) * f64::from(a) / 255.0).round() as u8, "{c} {a}");
            }
        }
    }
}
