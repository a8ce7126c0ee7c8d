//! Bytes of an image → patches, exactly as the model's own processor makes them. Pure: no I/O, no clock.
//!
//! ```text
//! bytes ─► sniff ─► header ─────────► smart_resize ─► grid      lengths, before a pixel is decoded
//!            │         │                                │
//!            └─► formats ─► color, orient ─► resize ─► patchify ─► the caller's slice
//!                 (libjpeg-turbo for JPEG)   (width, then height)
//! ```
//!
//! The reference is transformers' Qwen2-VL image processor with torchvision's CPU uint8 kernel, on pictures
//! decoded by the rules of [`ColorPolicy`]. Stages in the order of flow:

// Why an image cannot be used, and what a caller allows and chooses.
mod error;
mod limits;

// Bytes → type, size, orientation, cost.
mod sniff;

mod header;

mod exif;

// Bytes → RGB.
mod formats;

mod panics;

mod color;

mod orient;

mod decode;

// Size → size, tokens, values.
mod geometry;

mod smart_resize;

mod grid;

mod lut;

// RGB → patches.
mod kernels;

mod resize;

mod patchify;

mod fill;

mod scratch;

pub use decode::{RgbImage, decode_rgb};
pub use error::{ImageClass, ImageError};
pub use fill::fill_patches;
pub use geometry::{Geometry, GeometryError};
pub use grid::Grid;
pub use header::{ImageHeader, read_header};
pub use limits::{ColorPolicy, ImageLimits};
pub use lut::{normalisation_lut, normalisation_lut_bf16};
pub use patchify::patches_to_rgb;
pub use scratch::Scratch;
pub use smart_resize::smart_resize;
pub use sniff::Format;
