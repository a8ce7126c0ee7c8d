//! The Python package's inside: the client and the numeric work, with Python's lock let go while either runs.
//!
//! ```text
//! Fleet ─► Puller ─► Frame ─► Array (numpy, by reference)
//!              └─► Course (steps, skips, end)
//! Turns (one thread at a time)
//! ```
//!
//! What a trainer sees is written in Python, in `python/feedmill`.

/// Memory that Python may look into.
mod array;
/// Steps, skips and an end.
mod course;
/// Errors as Python has them.
mod errors;
/// The workers.
mod fleet;
/// A batch, and the tensors made of it.
mod frame;
/// Plans held against each other.
mod plan;
/// One rank's batches.
mod puller;
/// The one thread that talks to workers.
mod runtime;
/// One thread at a time.
mod turns;

use pyo3::prelude::*;

/// Frames of a mebibyte and more come and go all the time; the system's allocator would map and unmap them,
/// which doubles the cost of receiving.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The compiled part of the package feedmill; its names are used by the package alone.
#[pymodule]
mod _feedmill {
    #[pymodule_export]
    use super::array::Array;
    #[pymodule_export]
    use super::course::{Course, position_of};
    #[pymodule_export]
    use super::fleet::{Fleet, Model};
    #[pymodule_export]
    use super::frame::Frame;
    #[pymodule_export]
    use super::plan::plan_differences;
    #[pymodule_export]
    use super::puller::Puller;
    #[pymodule_export]
    use super::turns::{Turn, Turns};
}
