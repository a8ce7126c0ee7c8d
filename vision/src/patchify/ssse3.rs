//! R G B R G B … to three planes with byte shuffles, for patches of 16 and 14 pixels.

#![allow(unsafe_code)]

use std::arch::x86_64::*;

/// Writes the patches of one picture row to `places` (see [`super::Patcher::places`]); `patch` is 14 or 16.
/// `soon` are the places of a row that comes a little later: their memory is fetched meanwhile, since a patch is
/// written in many short pieces that are far from each other, which no processor foresees.
///
/// The caller has checked that the processor has AVX2, which includes these instructions.
pub(super) fn put_row(
    patch: usize,
    row: &[u8],
    places: impl Iterator<Item = usize>,
    soon: impl Iterator<Item = usize>,
    matrix: &mut [u8],
) {
    // SAFETY: SSSE3 is there (contract above).
    unsafe {
        match patch {
            16 => put_patches::<16>(row, places, soon, matrix),
            _ => put_patches::<14>(row, places, soon, matrix),
        }
    }
}

/// # Safety
/// SSSE3 must be available.
#[target_feature(enable = "ssse3")]
unsafe fn put_patches<const PATCH: usize>(
    row: &[u8],
    places: impl Iterator<Item = usize>,
    soon: impl Iterator<Item = usize>,
    matrix: &mut [u8],
) {
    let plane = PATCH * PATCH;
    let (shortest, whole) = (2 * plane + PATCH, matrix.len());
    for (patch, (at, soon)) in places.zip(soon).enumerate() {
        for channel in 0..3 {
            // A hint only: it reads and writes nothing, and any address will do.
            _mm_prefetch::<_MM_HINT_ET0>(matrix.as_ptr().wrapping_add(soon + channel * plane).cast());
        }
        assert!(at.checked_add(shortest).is_some_and(|end| end <= whole), "patches inside the matrix");
        // Sixteen pixels are read also where a patch has fourteen: the next patch's follow, or the padding.
        let wide = row[patch * PATCH * 3..][..3 * 16].as_ptr();
        // SAFETY: the three loads are of the 48 bytes above; the three stores are of `PATCH` bytes and end at
        // `at + shortest`.
        unsafe {
            let parts = [0, 16, 32].map(|part| _mm_loadu_si128(wide.add(part).cast()));
            for (channel, masks) in MASKS.iter().enumerate() {
                let values = channel_of(parts, masks);
                let target = matrix.as_mut_ptr().add(at + channel * plane);
                if PATCH == 16 {
                    _mm_storeu_si128(target.cast(), values);
                } else {
                    _mm_storel_epi64(target.cast(), values);
                    // Pixels 6..14 again with the first eight: two stores that overlap by two bytes.
                    _mm_storel_epi64(target.add(6).cast(), _mm_srli_si128::<6>(values));
                }
            }
        }
    }
}

/// One channel of sixteen pixels.
#[inline]
#[target_feature(enable = "ssse3")]
fn channel_of(parts: [__m128i; 3], masks: &[Mask; 3]) -> __m128i {
    let [first, second, third] = parts;
    let first = _mm_shuffle_epi8(first, masks[0].vector());
    let second = _mm_shuffle_epi8(second, masks[1].vector());
    let third = _mm_shuffle_epi8(third, masks[2].vector());
    _mm_or_si128(_mm_or_si128(first, second), third)
}

/// Sixteen byte positions; 0x80 gives 0.
#[derive(Clone, Copy)]
#[repr(align(16))]
struct Mask([u8; 16]);

impl Mask {
    #[inline]
    #[target_feature(enable = "ssse3")]
    fn vector(&self) -> __m128i {
        // SAFETY: 16 bytes from 16.
        unsafe { _mm_loadu_si128(self.0.as_ptr().cast()) }
    }
}

/// For each channel and each 16 byte part: which byte of the part is which pixel's.
const MASKS: [[Mask; 3]; 3] = masks();

const fn masks() -> [[Mask; 3]; 3] {
    let mut masks = [[Mask([0x80; 16]); 3]; 3];
    let mut channel = 0;
    while channel < 3 {
        let mut pixel = 0;
        while pixel < 16 {
            let byte = pixel * 3 + channel;
            masks[channel][byte / 16].0[pixel] = (byte % 16) as u8;
            pixel += 1;
        }
        channel += 1;
    }
    masks
}
