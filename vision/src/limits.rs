//! What a caller allows and chooses: limits, and the rules by which stored samples become RGB.

/// Bounds that are checked from the header, before anything is allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageLimits {
    /// Largest object in bytes. The default, 64 MiB, is far above photographs of 178 megapixels.
    pub max_bytes: u64,
    /// Most pixels that a header may declare. The default, 178,956,970, is Pillow's: twice the 256 MiB
    /// that it warns at, divided by three bytes per pixel.
    pub max_pixels: u64,
}

impl Default for ImageLimits {
    fn default() -> Self {
        Self { max_bytes: 64 << 20, max_pixels: 178_956_970 }
    }
}

/// How stored samples become 8 bit RGB. The default is what this project promises; other choices exist
/// because toolkits differ. Every field changes pixels and belongs to the plan.
///
/// Not a choice: 16 bit samples give their high byte, 1, 2 and 4 bit gray is spread over 0..255, every
/// four-component JPEG is read as stored inverted, ICC profiles and gAMA are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColorPolicy {
    /// Turn and flip by the EXIF orientation tag (default). Sizes are then those after turning.
    pub exif_orientation: bool,
    /// Put transparent pictures on white (default). Off: the alpha channel is dropped and the colours
    /// stay as stored.
    pub alpha_on_white: bool,
}

impl Default for ColorPolicy {
    fn default() -> Self {
        Self { exif_orientation: true, alpha_on_white: true }
    }
}
