//! One rank's batches.

use std::sync::{Mutex, TryLockError};

use feedmill_client::{Meter, PullerSettings};
use feedmill_protocol::plan::PlanDigest;
use feedmill_protocol::ranks::RankLayout;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::course::Course;
use crate::errors;
use crate::fleet::Fleet;
use crate::frame::Frame;
use crate::runtime::{self, Home};

/// One rank's batches in order, a window of them outstanding.
#[pyclass(frozen, module = "feedmill._feedmill")]
pub struct Puller {
    /// None once it is closed.
    inner: Mutex<Option<feedmill_client::Puller>>,
    meter: Meter,
    rank: u64,
    handle: Handle,
    home: Home,
    reports: JoinHandle<()>,
}

impl Drop for Puller {
    fn drop(&mut self) {
        if self.home.is_here() {
            self.reports.abort();
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
    /// The batches of `rank` of `ranks` along a course.
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
        window: usize,
        course: &Course,
    ) -> PyResult<Self> {
        fleet.home.check(py)?;
        let plan = plan.map(str::parse::<PlanDigest>).transpose();
        let plan = plan.map_err(|error| errors::config(py, &error.to_string()))?;
        let layout = RankLayout::new(ranks.saturating_mul(micro_batch), ranks, micro_batch)
            .map_err(|error| errors::config(py, &error.to_string()))?;
        let settings = PullerSettings { stream, layout, rank, consumed: 0, stop: None, window, plan };
        let mut inner = feedmill_client::Puller::new(fleet.inner.clone(), settings)
            .map_err(|error| errors::client(py, &error, Some(rank)))?;
        inner.follow(course.inner.clone());
        let meter = inner.meter();
        let reports = fleet.handle.spawn(report(fleet.inner.clone(), meter.clone()));
        Ok(Self {
            inner: Mutex::new(Some(inner)),
            meter,
            rank,
            handle: fleet.handle.clone(),
            home: Home::here(),
            reports,
        })
    }

    /// The next batch, or None at the course's end. Python's lock is let go while it waits; Ctrl-C ends the
    /// waiting and loses nothing.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Frame>> {
        self.with(py, |py, puller| {
            let next = Box::pin(puller.next());
            let batch = runtime::wait(py, &self.handle, next)?
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
        Ok(described)
    }

    /// Takes back all requests.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.reports.abort();
        if !self.home.is_here() {
            return Ok(());
        }
        match self.inner.try_lock() {
            Ok(mut inner) => drop(inner.take()),
            Err(TryLockError::Poisoned(inner)) => drop(inner.into_inner().take()),
            Err(TryLockError::WouldBlock) => return Err(in_use(py)),
        }
        Ok(())
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
            Err(TryLockError::WouldBlock) => return Err(in_use(py)),
        };
        // Tasks are spawned where the caller is.
        let _runtime = self.handle.enter();
        match inner.as_mut() {
            Some(puller) => work(py, puller),
            None => Err(errors::named(py, "FeedmillError", "the loader is closed")),
        }
    }
}

fn in_use(py: Python<'_>) -> PyErr {
    errors::config(py, "two threads use one loader at once; give each rank's loader to one thread")
}

/// Reports the queue for as long as the puller lives, also while the rank starves.
async fn report(fleet: feedmill_client::Fleet, meter: Meter) {
    let mut ticks = tokio::time::interval(std::time::Duration::from_secs(2));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(error) = fleet.report(&meter.report()).await {
            // The next one says it all again.
            tracing::debug!(%error, "a report was not taken");
        }
    }
}
