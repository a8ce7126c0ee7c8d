//! Steps, skips and an end, for Python.

use feedmill_protocol::course::{self, LastStep, Skips};
use feedmill_protocol::position::{POSITION_END, Range};
use pyo3::prelude::*;

use crate::errors;

/// The ranges that a rank reads, one after another.
#[pyclass(module = "feedmill._feedmill")]
pub struct Course {
    pub inner: course::Course,
}

fn skips(py: Python<'_>, stretches: &[(u64, u64)]) -> PyResult<Skips> {
    let mut ranges = Vec::with_capacity(stretches.len());
    for (start, end) in stretches {
        let range =
            Range::new(*start, *end).map_err(|error| errors::config(py, &format!("skips: {error}")))?;
        ranges.push(range);
    }
    Skips::new(ranges).map_err(|error| errors::course(py, &error))
}

/// The position of the sample before which `consumed` others were consumed, round these skips.
#[pyfunction]
pub fn position_of(py: Python<'_>, consumed: u64, stretches: Vec<(u64, u64)>) -> PyResult<u64> {
    Ok(skips(py, &stretches)?.position(consumed))
}

/// Start, end, samples consumed before its step, global batch, number in the step.
type Place = (u64, u64, u64, u64, u64);

#[pymethods]
impl Course {
    /// The course of `rank` of `ranks` from `consumed` samples on.
    #[new]
    #[pyo3(signature = (ranks, rank, micro_batch, consumed, stretches, stop, drop_last))]
    #[expect(clippy::too_many_arguments, reason = "the package names each of them")]
    fn new(
        py: Python<'_>,
        ranks: u64,
        rank: u64,
        micro_batch: u64,
        consumed: u64,
        stretches: Vec<(u64, u64)>,
        stop: Option<u64>,
        drop_last: bool,
    ) -> PyResult<Self> {
        if consumed > POSITION_END {
            return Err(errors::config(py, &format!("consumed {consumed} is past position 2^53")));
        }
        let last_step = if drop_last { LastStep::Drop } else { LastStep::Pad };
        let inner = course::Course::new(ranks, rank, micro_batch, consumed)
            .map_err(|error| errors::course(py, &error))?
            .skipping(skips(py, &stretches)?)
            .until(stop, last_step);
        Ok(Self { inner })
    }

    /// Steps of this size to the end.
    fn go_on(&mut self, py: Python<'_>, global_batch: u64) -> PyResult<()> {
        self.inner.go_on(global_batch).map_err(|error| errors::course(py, &error))
    }

    /// One more step; False when the end has come.
    fn add_step(&mut self, py: Python<'_>, global_batch: u64) -> PyResult<bool> {
        self.inner.add_step(global_batch).map_err(|error| errors::course(py, &error))
    }

    /// Samples consumed before the first step whose size is not known; None when all are known.
    fn known_until(&self) -> Option<u64> {
        self.inner.known_until()
    }

    /// Micro batches whose range is known; None when all are.
    fn known_batches(&self) -> Option<u64> {
        self.inner.known_batches()
    }

    /// Samples consumed by whole steps when so many micro batches have been used.
    fn consumed_after(&self, batches: u64) -> u64 {
        self.inner.consumed_after(batches)
    }

    /// The end as samples consumed; None without an end.
    fn end(&self) -> Option<u64> {
        self.inner.end()
    }

    /// Steps of this size from `consumed` to the end; None without an end.
    fn steps_left(&self, consumed: u64, global_batch: u64) -> Option<u64> {
        self.inner.steps_left(consumed, global_batch)
    }

    /// (start, end, samples consumed before its step, global batch, number in the step) of a micro batch; None at
    /// the end or where steps are not known.
    fn batch(&self, py: Python<'_>, number: u64) -> PyResult<Option<Place>> {
        match self.inner.batch(number) {
            Ok(course::Next::Batch(place)) => {
                let (range, layout) = (place.range, place.layout);
                let place =
                    (range.start(), range.end(), place.consumed, layout.global_batch(), place.micro_batch);
                Ok(Some(place))
            }
            Ok(course::Next::End | course::Next::Unknown) => Ok(None),
            Err(error) => Err(errors::course(py, &error)),
        }
    }
}
