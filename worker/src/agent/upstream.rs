//! The workers behind: batches, plans, reports.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use feedmill_client::{ClientError, Fleet, FleetSettings, StreamPlan};
use feedmill_protocol::bad::BadClass;
use feedmill_protocol::http::{Problem, problem_kind};
use feedmill_protocol::report::{RankReport, StreamStatus, WorkerState};
use serde_json::{Value, json};

use super::settings::AgentSettings;
use super::store::Refusal;

/// Runs that are told apart to the workers, which share themselves fairly between runs; those of more come as one.
const MOST_RUNS: usize = 16;

/// How long the workers' facts are believed.
const FACTS_LIFE: Duration = Duration::from_secs(2);

/// A batch that no worker made for so long after it was needed: readers are told why, and ask again.
const PATIENCE: Duration = Duration::from_secs(60);

/// Pause before workers are asked again that did not answer.
const PAUSE: Duration = Duration::from_millis(500);

/// The workers.
pub(crate) struct Upstream {
    settings: FleetSettings,
    common: Fleet,
    runs: Mutex<HashMap<String, Fleet>>,
    /// One task at a time asks; the others read what it learnt.
    known: tokio::sync::Mutex<Option<(Instant, Facts)>>,
}

/// What the workers say of themselves.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// Workers that are ready.
    pub(crate) ready: u32,
    /// Their threads for CPU work.
    pub(crate) cores: u32,
    /// Streams by name.
    pub(crate) streams: BTreeMap<String, StreamStatus>,
    /// Bad samples that they met.
    pub(crate) bad: BTreeMap<BadClass, u64>,
    /// What is wrong until a person acts.
    pub(crate) problems: Vec<String>,
}

impl Upstream {
    pub(crate) fn new(settings: &AgentSettings) -> Result<Self, ClientError> {
        let mut fleet = settings.upstream.clone();
        fleet.max_batch_bytes = settings.max_batch;
        fleet.timeouts.total = PATIENCE;
        Ok(Self {
            common: Fleet::new(fleet.clone())?,
            settings: fleet,
            runs: Mutex::default(),
            known: tokio::sync::Mutex::default(),
        })
    }

    /// The workers' addresses.
    pub(crate) fn workers(&self) -> Vec<String> {
        self.common.workers().iter().map(ToString::to_string).collect()
    }

    /// The workers, asked in a run's name.
    pub(crate) fn fleet(&self, run: &str) -> Fleet {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(fleet) = runs.get(run) {
            return fleet.clone();
        }
        if runs.len() < MOST_RUNS
            && let Ok(fleet) = Fleet::new(FleetSettings { run: run.to_owned(), ..self.settings.clone() })
        {
            runs.insert(run.to_owned(), fleet.clone());
            return fleet;
        }
        self.common.clone()
    }

    /// Waits until a worker is ready.
    pub(crate) async fn wait_ready(&self) {
        while self.facts().await.streams.is_empty() {
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// What the workers say of themselves, at most two seconds old.
    #[expect(clippy::disallowed_methods, reason = "the age of what was learnt")]
    pub(crate) async fn facts(&self) -> Facts {
        let mut known = self.known.lock().await;
        if let Some((at, facts)) = known.as_ref()
            && at.elapsed() < FACTS_LIFE
        {
            return facts.clone();
        }
        let mut facts = Facts::default();
        for (worker, status) in self.common.status().await {
            match status {
                Ok(status) if status.state == WorkerState::Ready => {
                    facts.ready += 1;
                    facts.cores = facts.cores.saturating_add(status.cores);
                    facts.streams.extend(status.streams);
                    for (class, times) in status.bad {
                        *facts.bad.entry(class).or_default() += times;
                    }
                    let problems = status.problems.iter().map(|problem| format!("{worker}: {problem}"));
                    facts.problems.extend(problems);
                }
                Ok(_) => {}
                Err(error) => facts.problems.push(error.to_string()),
            }
        }
        // Workers that were just started are asked again at once.
        *known = (!facts.streams.is_empty()).then(|| (Instant::now(), facts.clone()));
        facts
    }

    /// The document of `/v1/plan`: what the workers say.
    pub(crate) async fn plan(&self) -> Result<Value, Refusal> {
        let mut streams = serde_json::Map::new();
        for name in self.facts().await.streams.into_keys() {
            let plan = self.common.plan(&name).await.map_err(|error| refusal(&error))?;
            streams.insert(name, described(&plan));
        }
        if streams.is_empty() {
            let detail = "none of the workers behind this agent is ready";
            return Err(Problem::new(problem_kind::NOT_READY, 503, "this agent is starting", detail).into());
        }
        Ok(json!({"streams": streams, "agent": {"upstream": self.workers()}}))
    }

    /// Passes a report on.
    pub(crate) async fn report(&self, report: &RankReport) -> Result<(), Refusal> {
        self.common.report(report).await.map_err(|error| refusal(&error))
    }
}

fn described(plan: &StreamPlan) -> Value {
    json!({
        "plan": plan.plan.to_string(),
        "samples_per_epoch": plan.samples_per_epoch,
        "datasets": plan.datasets,
        "facts": plan.facts,
        "model": plan.model,
    })
}

/// What the client gave up with, as whoever asked here is told.
pub(crate) fn refusal(error: &ClientError) -> Refusal {
    let text = error.to_string();
    match error {
        // The worker's own words, and status.
        ClientError::Refused { worker, .. }
        | ClientError::Denied { worker, .. }
        | ClientError::Control { worker, .. }
            if let Some(problem) = error.problem() =>
        {
            Refusal { problem: Arc::new(problem.clone()), plan: None, worker: Some(worker.clone()) }
        }
        ClientError::LethalSample { problem, .. } | ClientError::RunMismatch { problem, .. } => {
            (**problem).clone().into()
        }
        ClientError::OtherPlan { workers, .. } => {
            let other = workers.first();
            Refusal {
                problem: Arc::new(Problem::new(problem_kind::OTHER_PLAN, 409, "the plans differ", text)),
                plan: other.and_then(|other| other.plan),
                worker: other.map(|other| other.worker.clone()),
            }
        }
        ClientError::TimedOut { .. } | ClientError::NoAnswer { .. } => {
            Problem::new(problem_kind::NOT_READY, 503, "no worker behind this agent gave an answer", text)
                .into()
        }
        ClientError::Denied { worker, .. } => Refusal {
            problem: Arc::new(Problem::new(
                problem_kind::DENIED,
                403,
                "the workers do not admit this agent",
                text,
            )),
            plan: None,
            worker: Some(worker.clone()),
        },
        ClientError::UnknownStream { .. } => {
            Problem::new(problem_kind::NOT_FOUND, 404, "there is no such stream", text).into()
        }
        ClientError::Setting { .. } | ClientError::Report(_) => {
            Problem::new(problem_kind::BAD_REQUEST, 400, "the request makes no sense", text).into()
        }
        _ => Problem::new(problem_kind::INTERNAL, 500, "the agent could not fetch it", text).into(),
    }
}
