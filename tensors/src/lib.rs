//! Compact batches → the tensors that the model takes: what the trainer's side makes of the wire. Pure: no
//! I/O, no clock.
//!
//! ```text
//! batch ─► rows ─┬─► positions ─┬─► padded
//!                │              └─► packed
//!                └─► pixels
//! ```
//!
//! The reference is transformers: its processor's padding and the model's `get_rope_index`. Everything
//! here is held against the goldens in `tests/golden`.
#![forbid(unsafe_code)]

/// A batch's rows as all stages read them, with the extra masked row where one is asked for.
mod rows;

/// Where each token stands in text, height and width.
mod positions;

/// Rows side by side, filled up on the right.
mod padded;

/// Rows one after another in one long row.
mod packed;

/// u8 patches → the values that the model sees.
mod pixels;

pub use packed::{Packed, PackedSettings};
pub use padded::Padded;
pub use pixels::{extra_patches, pixel_values, statistics};
pub use positions::positions;
pub use rows::{Row, Rows, TensorError};

/// A label that carries no loss.
pub const IGNORED: i64 = -100;
