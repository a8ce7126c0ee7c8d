//! A file that may be a picture.

use std::cell::RefCell;

use feedmill_vision::{
    ColorPolicy, Format, Geometry, Grid, ImageClass, ImageLimits, Scratch, fill_patches, read_header,
    smart_resize,
};

use crate::memory::peak_of;

/// Small, so that a case takes a millisecond.
const GEOMETRY: Geometry = Geometry {
    patch: 16,
    merge: 2,
    temporal: 2,
    min_pixels: 4096,
    max_pixels: 32_768,
    mean: [0.5; 3],
    std: [0.5; 3],
};

/// Most pixels of a case that is decoded.
const MOST_PIXELS: u64 = 1 << 20;
/// The TIFF reader takes arrays of up to 65,536 values.
const HEADER_BYTES: u64 = 4 << 20;
/// VP8 declares up to seven parts of 16 MiB, which are reserved but touched only as far as the file goes.
const VP8_RESERVE: u64 = 7 << 24;

thread_local! {
    /// What one thread of a worker keeps from picture to picture.
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
}

/// A header costs next to nothing, whatever it says.
pub(super) fn header(data: &[u8]) -> bool {
    let (peak, header) = peak_of(|| read_header(data, &ImageLimits::default()));
    assert!(peak <= HEADER_BYTES, "a header took {peak} bytes");
    match &header {
        Ok(header) => {
            let (width, height) = header.oriented_size(&ColorPolicy::default());
            let pixels = u64::from(width) * u64::from(height);
            assert!(width > 0 && height > 0 && pixels <= ImageLimits::default().max_pixels);
            assert!((1..=8).contains(&header.orientation()));
            assert!(header.decode_bytes() >= 3 * pixels, "an image without its own pixels");
        }
        Err(error) => assert_ne!(error.class(), ImageClass::Internal, "{error}"),
    }
    header.is_ok()
}

/// Decoding keeps to the memory that the header announced, and gives the same answer with used buffers and fresh
/// ones; a fault is the picture's.
pub(super) fn pixels(data: &[u8]) -> bool {
    let limits = ImageLimits { max_pixels: MOST_PIXELS, ..ImageLimits::default() };
    let Ok(header) = read_header(data, &limits) else { return false };
    let policy = ColorPolicy::default();
    let (width, height) = header.oriented_size(&policy);
    let Ok(resized) = smart_resize(height, width, &GEOMETRY) else { return false };
    let mut patches = vec![0; Grid::of(resized, &GEOMETRY).patch_bytes(&GEOMETRY)];
    let (peak, made) = peak_of(|| {
        let mut scratch = Scratch::default();
        fill_patches(data, &header, resized, &GEOMETRY, &policy, &mut scratch, &mut patches)
    });
    let reserved = if header.format() == Format::WebP { VP8_RESERVE } else { 0 };
    let announced = header.decode_bytes() + header.hidden_bytes() + reserved;
    assert!(peak <= announced, "decoding took {peak} bytes, announced were {announced}");
    if let Err(error) = &made {
        assert_ne!(error.class(), ImageClass::Internal, "{error}");
    }
    let mut again = vec![0xA5; patches.len()];
    let with_used = SCRATCH.with_borrow_mut(|scratch| {
        fill_patches(data, &header, resized, &GEOMETRY, &policy, scratch, &mut again)
    });
    assert_eq!(made, with_used, "used buffers change the answer");
    assert!(made.is_err() || patches == again, "used buffers change the pixels");
    made.is_ok()
}
