//! What the header says about memory holds: reading headers allocates almost nothing, decoding at most what
//! was announced. Counts this process's Rust allocations, which is all of them except libjpeg's own.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use feedmill_vision::{
    ColorPolicy, Format, Geometry, Grid, ImageLimits, Scratch, decode_rgb, fill_patches, read_header,
    smart_resize,
};

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call goes to the system allocator unchanged; only sizes are counted.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Most bytes that were live at once during the work, beyond those before it.
fn peak_of<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let result = work();
    (PEAK.load(Ordering::Relaxed).saturating_sub(before), result)
}

/// One test: another thread's allocations would be counted too.
#[test]
fn headers_are_cheap_and_decoding_keeps_to_what_they_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden");
    let geometry = Geometry {
        patch: 16,
        merge: 2,
        temporal: 2,
        min_pixels: 65_536,
        max_pixels: 1 << 20,
        mean: [0.5; 3],
        std: [0.5; 3],
    };
    let policy = ColorPolicy::default();
    let mut decoded = 0;
    let mut random = 0x5EED_0004u64;
    let mut below = |bound: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 11) as usize % bound.max(1)
    };
    for folder in ["images", "photos"] {
        for entry in std::fs::read_dir(root.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let bytes = std::fs::read(&path).unwrap();
            let (header_peak, header) = peak_of(|| read_header(&bytes, &ImageLimits::default()));
            // Half of it is the buffer of the GIF reader's LZW tables.
            assert!(header_peak < 64 << 10, "{path:?}: the header took {header_peak} bytes");
            for _ in 0..60 {
                let mut mutated = bytes[..bytes.len().min(50_000)].to_vec();
                for _ in 0..=below(4) {
                    let at = below(mutated.len().min(300));
                    if let Some(byte) = mutated.get_mut(at) {
                        *byte = if below(2) == 0 { 0xFF } else { below(256) as u8 };
                    }
                }
                let limits = ImageLimits { max_pixels: 1 << 20, ..ImageLimits::default() };
                let (peak, header) = peak_of(|| read_header(&mutated, &limits));
                if let Ok(header) = header {
                    let (peak, _) =
                        peak_of(|| decode_rgb(&mutated, &header, &policy, &mut Scratch::default()).is_ok());
                    // The copy of the picture that is given out is not part of the bound.
                    let (width, height) = header.stored_size();
                    let given = u64::from(width) * u64::from(height) * 3;
                    // VP8 declares up to seven parts of 16 MiB, which are reserved but touched only as far
                    // as the file goes.
                    let reserved = if header.format() == Format::WebP { 7 << 24 } else { 0 };
                    let announced = header.decode_bytes() + given + reserved;
                    assert!(
                        peak as u64 <= announced,
                        "{path:?}: a mutated file took {peak} bytes, announced {announced}"
                    );
                }
                // The TIFF reader takes arrays of up to 65,536 values.
                assert!(peak < 4 << 20, "{path:?}: a mutated header took {peak} bytes");
            }
            let Ok(header) = header else {
                continue;
            };
            let (width, height) = header.oriented_size(&policy);
            let Ok(resized) = smart_resize(height, width, &geometry) else {
                continue;
            };
            let mut out = vec![0; Grid::of(resized, &geometry).patch_bytes(&geometry)];
            let (peak, result) = peak_of(|| {
                let mut scratch = Scratch::default();
                fill_patches(&bytes, &header, resized, &geometry, &policy, &mut scratch, &mut out)
            });
            let announced = header.decode_bytes();
            assert!(peak as u64 <= announced, "{path:?}: {peak} bytes, announced {announced}");
            // Loose bounds would waste the budget that admits images.
            let pixels = u64::from(width) * u64::from(height);
            assert!(announced <= 40 * pixels + (8 << 20), "{path:?}: {announced} announced");
            decoded += usize::from(result.is_ok());
        }
    }
    assert!(decoded > 110, "{decoded} decoded");
}
