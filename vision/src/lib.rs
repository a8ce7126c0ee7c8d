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

/// Why an image cannot be used.
mod error;

/// What a caller allows and chooses.
mod limits;

/// First bytes → format.
mod sniff;

/// Bytes → size, orientation, cost.
mod header;

/// EXIF block → orientation.
mod exif;

/// One decoder per format: bytes → RGB rows as stored.
mod formats;

/// A decoder's panic is one bad image.
mod panics;

/// Alpha, ink: rules that formats share.
mod color;

/// RGB as stored → RGB as seen.
mod orient;

/// Bytes → RGB: the formats and the orientation together.
mod decode;

/// preprocessor_config.json → patch sizes, limits, statistics.
mod geometry;

/// Size → size that fits the geometry.
mod smart_resize;

/// Size → patches and tokens.
mod grid;

/// Which vector instructions run.
mod kernels;

/// RGB → rows at the new size.
mod resize;

/// Rows → patches in the model's order, and back.
mod patchify;

/// Bytes → patches in the caller's slice.
mod fill;

/// Byte → value that the model sees.
mod lut;

/// Buffers kept from image to image.
mod scratch;

pub use decode::{RgbImage, decode_rgb};
pub use error::{ImageClass, ImageError};
pub use fill::fill_patches;
pub use geometry::{Geometry, GeometryError};
pub use grid::Grid;
pub use header::{ImageHeader, read_header};
pub use kernels::Kernels;
pub use limits::{ColorPolicy, ImageLimits};
pub use lut::{normalisation_lut, normalisation_lut_bf16};
pub use patchify::patches_to_rgb;
pub use scratch::Scratch;
pub use smart_resize::smart_resize;
pub use sniff::Format;
