//! Memory that numpy looks into without a copy.

use std::any::Any;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Memory with a dtype and a shape. numpy.asarray makes an array of it that shares the memory and keeps it
/// alive.
#[pyclass(frozen, module = "feedmill._feedmill")]
pub struct Array {
    /// Whose memory it is; held, never looked at.
    _owner: Arc<dyn Any + Send + Sync>,
    address: usize,
    shape: Vec<usize>,
    kind: &'static str,
    is_writable: bool,
}

/// A number that a tensor holds.
pub trait Number: Send + Sync + 'static {
    /// As `__array_interface__` names it.
    const KIND: &'static str;
}

impl Number for u8 {
    const KIND: &'static str = "|u1";
}
impl Number for i32 {
    const KIND: &'static str = "<i4";
}
impl Number for i64 {
    const KIND: &'static str = "<i8";
}
impl Number for f32 {
    const KIND: &'static str = "<f4";
}

impl Array {
    /// Takes numbers over; whoever gets the array may write into them.
    pub fn owning<T: Number>(numbers: Vec<T>, shape: impl Into<Vec<usize>>) -> Self {
        let numbers = Arc::new(numbers);
        let address = numbers.as_ptr() as usize;
        Self { _owner: numbers, address, shape: shape.into(), kind: T::KIND, is_writable: true }
    }

    /// Looks into memory that `owner` keeps at its place; never written to.
    pub fn borrowing(
        owner: Arc<dyn Any + Send + Sync>,
        bytes: &[u8],
        kind: &'static str,
        shape: Vec<usize>,
    ) -> Self {
        Self { _owner: owner, address: bytes.as_ptr() as usize, shape, kind, is_writable: false }
    }
}

#[pymethods]
impl Array {
    /// What numpy.asarray asks for.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", self.kind)?;
        interface.set_item("shape", pyo3::types::PyTuple::new(py, &self.shape)?)?;
        interface.set_item("data", (self.address, !self.is_writable))?;
        Ok(interface)
    }
}
