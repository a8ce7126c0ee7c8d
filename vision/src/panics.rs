//! A decoder of somebody else's that panics on a hostile file makes that file corrupt, and nothing more.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::ImageError;

/// Runs a decoder. The buffers that it writes to are plain bytes, complete or not, so nothing is left in a
/// broken state; a half-written picture is dropped with the error.
pub(crate) fn contained<T>(decoder: impl FnOnce() -> Result<T, ImageError>) -> Result<T, ImageError> {
    catch_unwind(AssertUnwindSafe(decoder))
        .unwrap_or_else(|_| Err(ImageError::corrupt("the decoder gave up on it (panic)")))
}
