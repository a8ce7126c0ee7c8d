//! R G B R G B … to three planes with byte shuffles, for patches of 16 and 14 pixels.

#![allow(unsafe_code)]

use std::arch::x86_64::*;

/// Writes the patches of one picture row to `places` (see [`super::Patcher::places`]); `patch` is 14 or 16.
///
/// The caller has checked that the processor has AVX2, which includes these instructions.
pub(super) fn put_row(patch: usize, row: &[u8], places: impl Iterator<Item = usize>, matrix: &mut [u8]) {
    // SAFETY: SSSE3 is there (contract above).
    unsafe {
        match patch {
            16 => put_patches::<16>(row, places, matrix),
            _ => put_patches::<14>(row, places, matrix),
        }
    }
}

/// # Safety
/// SSSE3 must be available.
#[target_feature(enable = "ssse3")]
unsafe fn put_patches<const PATCH: usize>(
    row: &[u8],
    places: impl Iterator<Item = usize>,
    matrix: &mut [u8],
) {
    let plane = PATCH * PATCH;
    for (at, pixels) in places.zip(row.chunks_exact(PATCH * 3)) {
        let mut wide = [0; 48];
        wide[..PATCH * 3].copy_from_slice(pixels);
        let matrix = &mut matrix[at..at + 2 * plane + PATCH];
        // SAFETY: SSSE3 by contract.
        let (red, green, blue) = unsafe { (channel(&wide, 0), channel(&wide, 1), channel(&wide, 2)) };
        matrix[..PATCH].copy_from_slice(&red[..PATCH]);
        matrix[plane..plane + PATCH].copy_from_slice(&green[..PATCH]);
        matrix[2 * plane..].copy_from_slice(&blue[..PATCH]);
    }
}

/// One channel of sixteen pixels.
///
/// # Safety
/// SSSE3 must be available.
#[inline]
#[target_feature(enable = "ssse3")]
unsafe fn channel(pixels: &[u8; 48], channel: usize) -> [u8; 16] {
    let masks = &MASKS[channel];
    // SAFETY: three loads of 16 bytes from 48, and one store of 16 bytes into 16.
    unsafe {
        let first = _mm_shuffle_epi8(_mm_loadu_si128(pixels.as_ptr().cast()), masks[0].vector());
        let second = _mm_shuffle_epi8(_mm_loadu_si128(pixels.as_ptr().add(16).cast()), masks[1].vector());
        let third = _mm_shuffle_epi8(_mm_loadu_si128(pixels.as_ptr().add(32).cast()), masks[2].vector());
        let mut out = [0; 16];
        _mm_storeu_si128(out.as_mut_ptr().cast(), _mm_or_si128(_mm_or_si128(first, second), third));
        out
    }
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
