//! The workers.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use feedmill_client::{ClientError, FleetSettings, Pass, PassSettings, Token, TokenSource};
use feedmill_protocol::model::ModelFacts;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tokio::runtime::Handle;

use crate::errors;
use crate::runtime::{self, Closing, Home};

/// The workers of a stream, from this process.
#[pyclass(frozen, module = "feedmill._feedmill")]
pub struct Fleet {
    pub inner: feedmill_client::Fleet,
    pub handle: Handle,
    pub home: Home,
    /// Whoever waits for a plan gives up.
    closing: Closing,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if !self.home.is_here() {
            // After a fork connections are the parent's: one owner more than there are, so they stay as they are.
            std::mem::forget(self.inner.clone());
        }
    }
}

/// What requests carry, and whom this process trusts.
fn pass(
    py: Python<'_>,
    token: Option<String>,
    token_file: Option<PathBuf>,
    authorities: Option<PathBuf>,
) -> PyResult<Pass> {
    let token = match (token, token_file) {
        (Some(token), _) => {
            let token = Token::new(&token).map_err(|error| errors::config(py, &format!("token: {error}")))?;
            Some(TokenSource::Text(token))
        }
        (None, Some(file)) => Some(TokenSource::File(file)),
        (None, None) => None,
    };
    Pass::new(PassSettings { token, authorities }).map_err(|error| errors::access(py, &error))
}

#[pymethods]
impl Fleet {
    /// Workers at these addresses, `http://HOST:PORT` or `https://`, names with many addresses, and `file:` lists, for
    /// a run; opens nothing yet. The token is given as
    /// it is or in a file; authorities are those of the machine unless a file names others. With an agent's socket
    /// that is asked instead.
    #[new]
    #[pyo3(signature = (sources, run, timeout, verify, token=None, token_file=None, ca_file=None, agent=None))]
    #[expect(clippy::too_many_arguments, reason = "the package names each of them")]
    fn new(
        py: Python<'_>,
        sources: Vec<String>,
        run: String,
        timeout: f64,
        verify: bool,
        token: Option<String>,
        token_file: Option<PathBuf>,
        ca_file: Option<PathBuf>,
        agent: Option<PathBuf>,
    ) -> PyResult<Self> {
        let error = |error: &ClientError| errors::client(py, error, None);
        let sources = sources.iter().map(String::as_str);
        let mut settings = FleetSettings::from_sources(run, sources).map_err(|e| error(&e))?;
        settings.timeouts.total = Duration::try_from_secs_f64(timeout)
            .map_err(|_| errors::config(py, &format!("timeout {timeout} is no number of seconds")))?;
        settings.verify_hashes = verify;
        settings.pass = pass(py, token, token_file, ca_file)?;
        settings.agent = agent;
        // Who waits for less than an agent's restart is told that it is away, not only that time is over.
        settings.timeouts.agent = settings.timeouts.agent.min(settings.timeouts.total / 2);
        let handle = runtime::handle()?;
        let inner = feedmill_client::Fleet::new(settings).map_err(|e| error(&e))?;
        Ok(Self { inner, handle, home: Home::here(), closing: Closing::default() })
    }

    /// Where workers are known to be now, sorted.
    fn workers(&self) -> Vec<String> {
        self.inner.workers().iter().map(ToString::to_string).collect()
    }

    /// What was asked since the start: ranges, requests, hedged, hedges_won, silenced.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.inner.stats();
        let described = PyDict::new(py);
        described.set_item("ranges", stats.ranges)?;
        described.set_item("requests", stats.requests)?;
        described.set_item("hedged", stats.hedged)?;
        described.set_item("hedges_won", stats.hedges_won)?;
        described.set_item("silenced", stats.silenced)?;
        Ok(described)
    }

    /// (bytes held of the agent's memory, bytes that may be held, batches copied out); None without an agent.
    fn agent(&self) -> Option<(u64, u64, u64)> {
        self.inner.agent_stats().map(|stats| (stats.held_bytes, stats.share_bytes, stats.copied_out))
    }

    /// Another thread that waits for a plan ends with an error within a moment.
    fn close(&self) {
        self.closing.close();
    }

    /// The stream's plan from the first worker that is ready: a dict with plan, samples_per_epoch, datasets,
    /// facts (JSON) and model.
    fn plan<'py>(&self, py: Python<'py>, stream: String, rank: u64) -> PyResult<Bound<'py, PyDict>> {
        self.home.check(py)?;
        // The list of a machine's own workers goes when they do: whoever looked for it now would warn that it cannot be read.
        self.closing.check(py)?;
        let asked = Box::pin(self.inner.plan(&stream));
        let plan = runtime::wait(py, &self.handle, asked, || self.closing.check(py))?
            .map_err(|error| errors::client(py, &error, Some(rank)))?;
        let described = PyDict::new(py);
        described.set_item("plan", plan.plan.to_string())?;
        described.set_item("samples_per_epoch", plan.samples_per_epoch)?;
        described.set_item("datasets", &plan.datasets)?;
        described.set_item("facts", serde_json::to_string(&plan.facts).unwrap_or_default())?;
        described.set_item("model", plan.model.map(Model::from))?;
        Ok(described)
    }
}

/// What rebuilding the model's tensors needs.
#[pyclass(frozen, from_py_object, module = "feedmill._feedmill")]
#[derive(Clone)]
pub struct Model(pub Arc<ModelFacts>);

impl From<ModelFacts> for Model {
    fn from(facts: ModelFacts) -> Self {
        Self(Arc::new(facts))
    }
}

#[pymethods]
impl Model {
    /// Side of a patch in pixels.
    #[getter]
    fn patch(&self) -> u32 {
        self.0.patch
    }

    /// Patches per side that are merged into one token.
    #[getter]
    fn merge(&self) -> u32 {
        self.0.merge
    }

    /// Frames per patch.
    #[getter]
    fn temporal(&self) -> u32 {
        self.0.temporal
    }

    /// 255 × mean per channel, in f32.
    #[getter]
    fn means(&self) -> [f32; 3] {
        feedmill_tensors::statistics(&self.0).0
    }

    /// 255 × standard deviation per channel, in f32.
    #[getter]
    fn stds(&self) -> [f32; 3] {
        feedmill_tensors::statistics(&self.0).1
    }

    /// The token that fills rows up.
    #[getter]
    fn pad_id(&self) -> i32 {
        self.0.pad_id
    }

    /// The token that stands for a merged patch.
    #[getter]
    fn image_pad_id(&self) -> i32 {
        self.0.image_pad_id
    }

    /// The token before an image's.
    #[getter]
    fn vision_start_id(&self) -> i32 {
        self.0.vision_start_id
    }

    /// The token behind an image's.
    #[getter]
    fn vision_end_id(&self) -> i32 {
        self.0.vision_end_id
    }
}
