//! One rank's batches.

use std::sync::{Mutex, TryLockError};

use feedmill_client::{Meter, PullerSettings};
use feedmill_protocol::plan::PlanDigest;
use feedmill_protocol::ranks::RankLayout;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tokio::runtime::Handle;

use crate::course::Course;
use crate::errors;
use crate::fleet::Fleet;
use crate::frame::Frame;
use crate::runtime::{self, Closing, Home};

/// The most ranges of a window that finds its size by itself; bytes bound it long before, where batches are not
/// small.
const MOST_RANGES: usize = 1024;

/// One rank's batches in order, a window of them outstanding.
#[pyclass(frozen, module = "feedmill._feedmill")]
pub struct Puller {
    /// None once it is closed.
    inner: Mutex<Option<feedmill_client::Puller>>,
    /// Whoever waits for it gives up.
    closing: Closing,
    meter: Meter,
    rank: u64,
    handle: Handle,
    home: Home,
}

impl Drop for Puller {
    fn drop(&mut self) {
        if self.home.is_here() {
            return;
        }
        // After a fork the tasks are the parent's: nothing of them may be touched, so they are left as they are.
        if let Ok(inner) = self.inner.get_mut() {
            std::mem::forget(inner.take());
        }
    }
}

#[pymethods]
impl Puller {
    /// The batches of `rank` of `ranks` along a course. A window of None finds its size by itself, up to
    /// `window_bytes`. `sole`: no other process may be this rank.
    #[new]
    #[expect(clippy::too_many_arguments, reason = "the package names each of them")]
    fn new(
        py: Python<'_>,
        fleet: &Fleet,
        stream: String,
        ranks: u64,
        rank: u64,
        micro_batch: u64,
        plan: Option<&str>,
        window: Option<usize>,
        window_bytes: u64,
        course: &Course,
        sole: bool,
    ) -> PyResult<Self> {
        fleet.home.check(py)?;
        let plan = plan.map(str::parse::<PlanDigest>).transpose();
        let plan = plan.map_err(|error| errors::config(py, &error.to_string()))?;
        let layout = RankLayout::new(ranks.saturating_mul(micro_batch), ranks, micro_batch)
            .map_err(|error| errors::config(py, &error.to_string()))?;
        let most = window.unwrap_or(MOST_RANGES);
        let settings = PullerSettings { stream, layout, rank, consumed: 0, stop: None, window: most, plan };
        let mut inner = feedmill_client::Puller::new(fleet.inner.clone(), settings)
            .map_err(|error| errors::client(py, &error, Some(rank)))?;
        if window.is_none() {
            inner = inner.adapting(window_bytes);
        }
        if sole {
            inner = inner.sole();
        }
        inner.follow(course.inner.clone());
        let meter = inner.meter();
        Ok(Self {
            inner: Mutex::new(Some(inner)),
            closing: Closing::default(),
            meter,
            rank,
            handle: fleet.handle.clone(),
            home: Home::here(),
        })
    }

    /// Waits until the first batch is there and the run's home has found that this rank begins as the others do.
    /// `counted`: the trainer wants that batch now, so this is waiting.
    fn wait_ready(&self, py: Python<'_>, counted: bool) -> PyResult<()> {
        self.with(py, |py, puller| {
            let ready = async {
                match counted {
                    true => puller.wait_first().await,
                    false => puller.wait_ready().await,
                }
            };
            runtime::wait(py, &self.handle, Box::pin(ready), || self.closing.check(py))?
                .map_err(|error| errors::client(py, &error, Some(self.rank)))
        })
    }

    /// The next batch, or None at the course's end. Python's lock is let go while it waits; Ctrl-C ends the
    /// waiting and loses nothing.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Frame>> {
        self.with(py, |py, puller| {
            let next = Box::pin(puller.next());
            let batch = runtime::wait(py, &self.handle, next, || self.closing.check(py))?
                .map_err(|error| errors::client(py, &error, Some(self.rank)))?;
            batch.map(|batch| Frame::new(py, batch)).transpose()
        })
    }

    /// Reads along another course from now on.
    fn follow(&self, py: Python<'_>, course: &Course) -> PyResult<()> {
        self.with(py, |_, puller| {
            puller.follow(course.inner.clone());
            Ok(())
        })
    }

    /// One more step, of this size; False when the end has come.
    fn add_step(&self, py: Python<'_>, global_batch: u64) -> PyResult<bool> {
        self.with(py, |py, puller| {
            puller.course_mut().add_step(global_batch).map_err(|error| errors::course(py, &error))
        })
    }

    /// How the queue stands, times in seconds.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.meter.stats();
        let described = PyDict::new(py);
        described.set_item("ready", stats.ready)?;
        described.set_item("outstanding", stats.outstanding)?;
        described.set_item("target", stats.target)?;
        described.set_item("batches", stats.batches)?;
        described.set_item("steps", stats.steps)?;
        described.set_item("waiting", stats.waiting.as_secs_f64())?;
        described.set_item("waited", stats.waited.as_secs_f64())?;
        described.set_item("stepped", stats.stepped.as_secs_f64())?;
        described.set_item("pace", stats.pace.as_secs_f64())?;
        described.set_item("batch_bytes", stats.batch_bytes)?;
        Ok(described)
    }

    /// Takes back all requests and says farewell to the run's home. A call of another thread, or of this one under a signal's handler, that
    /// waits meanwhile ends with an error within a moment, and that does it.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if !self.home.is_here() {
            return Ok(());
        }
        self.closing.close();
        let inner = match self.inner.try_lock() {
            Ok(mut inner) => inner.take(),
            Err(TryLockError::Poisoned(inner)) => inner.into_inner().take(),
            Err(TryLockError::WouldBlock) => None,
        };
        match inner {
            Some(puller) => runtime::wait(py, &self.handle, Box::pin(puller.close()), || Ok(())),
            None => Ok(()),
        }
    }
}

impl Puller {
    fn with<T>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(Python<'_>, &mut feedmill_client::Puller) -> PyResult<T>,
    ) -> PyResult<T> {
        self.home.check(py)?;
        let mut inner = match self.inner.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(inner)) => inner.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(errors::in_use(py)),
        };
        // Tasks are spawned where the caller is.
        let _runtime = self.handle.enter();
        let worked = match inner.as_mut() {
            Some(puller) => work(py, puller),
            None => Err(errors::closed(py)),
        };
        if self.closing.is_closed() {
            // Whoever closed it found it in use. Dropping it says farewell too.
            drop(inner.take());
        }
        worked
    }
}
