//! R G B R G B … to three planes with byte shuffles, for patches of 16 and 14 pixels.

#![allow(unsafe_code)]

use std::arch::x86_64::*;

/// Writes the patches of one picture row to `places` (see [`super::Patcher::places`]).
///
/// The caller has checked that the processor has AVX2, which includes these instructions.
pub(super) fn put_row(
    patch: usize,
    row: &[u8],
    places: impl Iterator<Item = usize>,
    matrix: &mut [u8],
) {
    for (at, pixels) in places.zip(row.chunks_exact(patch * 3)) {
        if patch == 16
            && let (Some(pixels), Some(target)) = (
                pixels.first_chunk::<48>(),
                matrix.get_mut(at..at + 2 * 256 + 16),
            )
        {
            // SAFETY: SSSE3 is there (contract above).
            let planes = unsafe { split(pixels) };
            for (channel, plane) in planes.into_iter().enumerate() {
                target[channel * 256..channel * 256 + 16].copy_from_slice(&plane);
            }
        } else if patch == 14
            && let (Some(pixels), Some(target)) = (
                pixels.first_chunk::<42>(),
                matrix.get_mut(at..at + 2 * 196 + 14),
            )
        {
            let mut wide = [0; 48];
            wide[..42].copy_from_slice(pixels);
            // SAFETY: SSSE3 is there (contract above).
            let planes = unsafe { split(&wide) };
            for (channel, plane) in planes.into_iter().enumerate() {
                target[channel * 196..channel * 196 + 14].copy_from_slice(&plane[..14]);
            }
        }
    }
}

/// Sixteen pixels to sixteen reds, greens and blues.
///
/// # Safety
/// SSSE3 must be available.
#[target_feature(enable = "ssse3")]
unsafe fn split(pixels: &[u8; 48]) -> [[u8; 16]; 3] {
    // SAFETY: three loads of 16 bytes from 48.
    let parts = [0, 16, 32].map(|at| unsafe { _mm_loadu_si128(pixels.as_ptr().add(at).cast()) });
    [0, 1, 2].map(|channel| {
        let mut plane = _mm_setzero_si128();
        for (part, bytes) in parts.iter().enumerate() {
            let taken = _mm_shuffle_epi8(*bytes, MASKS[channel][part].into_vector());
            plane = _mm_or_si128(plane, taken);
        }
        let mut out = [0; 16];
        // SAFETY: 16 bytes into 16.
        unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), plane) };
        out
    })
}

/// Sixteen byte positions; 0x80 gives 0.
#[derive(Clone, Copy)]
#[repr(align(16))]
struct Mask([u8; 16]);

impl Mask {
    #[inline]
    #[target_feature(enable = "ssse3")]
    fn into_vector(self) -> __m128i {
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
