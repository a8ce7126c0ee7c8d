//! Takes threads that want to change one loader, gives it to one of them at a time and an error to the others. Nobody waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;

use crate::errors;
use crate::runtime::Home;

/// Whose turn it is.
#[pyclass(frozen, module = "feedmill._feedmill")]
pub struct Turns {
    taken: Arc<AtomicBool>,
    home: Home,
}

#[pymethods]
impl Turns {
    /// Nobody's.
    #[new]
    fn new() -> Self {
        Self { taken: Arc::default(), home: Home::here() }
    }

    /// This thread's, for a `with` statement. `ConfigError` while another one has it.
    fn take(&self, py: Python<'_>) -> PyResult<Turn> {
        if self.taken.swap(true, Ordering::Acquire) {
            // A fork of the moment in which a thread had it: that thread is not here.
            self.home.check(py)?;
            return Err(errors::in_use(py));
        }
        Ok(Turn { taken: Arc::clone(&self.taken), over: AtomicBool::new(false) })
    }
}

/// A thread's turn. It ends with the `with` statement, or when it is forgotten: Ctrl-C may come before that statement has it.
#[pyclass(frozen, module = "feedmill._feedmill")]
pub struct Turn {
    taken: Arc<AtomicBool>,
    over: AtomicBool,
}

impl Turn {
    fn end(&self) {
        if !self.over.swap(true, Ordering::Relaxed) {
            self.taken.store(false, Ordering::Release);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.end();
    }
}

#[pymethods]
impl Turn {
    /// It has begun already.
    fn __enter__(&self) {}

    /// The next thread may have it.
    fn __exit__(&self, kind: &Bound<'_, PyAny>, error: &Bound<'_, PyAny>, traceback: &Bound<'_, PyAny>) {
        // Whatever was raised is none of its business.
        let _ = (kind, error, traceback);
        self.end();
    }
}
