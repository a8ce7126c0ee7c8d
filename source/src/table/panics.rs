//! A panic of the crate `parquet` on a hostile file makes that file, or its page, damaged, and nothing more.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs somebody else's code. What it worked on is dropped with the error, so nothing is left in a broken state.
pub(super) fn contained<T, E: From<&'static str>>(work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(E::from("the reader gave up on it (panic)")))
}
