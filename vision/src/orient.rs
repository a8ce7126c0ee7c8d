//! Takes an RGB picture and an EXIF orientation, gives the picture as it should be seen.

/// Whether the orientation swaps width and height.
pub(crate) fn swaps_axes(orientation: u8) -> bool {
    (5..=8).contains(&orientation)
}

/// Writes the turned and flipped picture. `source` is `width * height * 3` bytes, `target` has the same
/// length; orientation is 2..=8.
pub(crate) fn apply(source: &[u8], width: usize, height: usize, orientation: u8, target: &mut [u8]) {
    let out_width = if swaps_axes(orientation) { height } else { width };
    if out_width == 0 {
        return;
    }
    for (y, row) in target.chunks_exact_mut(out_width * 3).enumerate() {
        for (x, pixel) in row.chunks_exact_mut(3).enumerate() {
            // Where in the stored picture this pixel comes from, by the table of the EXIF standard.
            let (sx, sy) = match orientation {
                2 => (width - 1 - x, y),
                3 => (width - 1 - x, height - 1 - y),
                4 => (x, height - 1 - y),
                5 => (y, x),
                6 => (y, height - 1 - x),
                7 => (width - 1 - y, height - 1 - x),
                8 => (width - 1 - y, x),
                _ => (x, y),
            };
            let at = (sy * width + sx) * 3;
            pixel.copy_from_slice(&source[at..at + 3]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_pixel_of_each_orientation_is_the_right_corner() {
        // Stored 3 x 2: the number is the pixel's index.
        let source: Vec<u8> = (0..6).flat_map(|i| [i; 3]).collect();
        let cases: [(u8, [u8; 6]); 8] = [
            (1, [0, 1, 2, 3, 4, 5]),
            (2, [2, 1, 0, 5, 4, 3]),
            (3, [5, 4, 3, 2, 1, 0]),
            (4, [3, 4, 5, 0, 1, 2]),
            (5, [0, 3, 1, 4, 2, 5]),
            (6, [3, 0, 4, 1, 5, 2]),
            (7, [5, 2, 4, 1, 3, 0]),
            (8, [2, 5, 1, 4, 0, 3]),
        ];
        for (orientation, expected) in cases {
            let mut target = vec![0; 18];
            apply(&source, 3, 2, orientation, &mut target);
            let seen: Vec<u8> = target.chunks_exact(3).map(|pixel| pixel[0]).collect();
            assert_eq!(seen, expected, "orientation {orientation}");
        }
    }
}
