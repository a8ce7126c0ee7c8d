//! The workers of a stream, and one range fetched from whichever of them can.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use feedmill_protocol::plan::PlanDigest;
use feedmill_protocol::position::Range;
use feedmill_protocol::report::is_plain;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::agent::{Agent, AgentStats};
use crate::batch::Batch;
use crate::discovery::Sources;
use crate::error::{ClientError, SharedHistory, lock};
use crate::hedge::{Budget, ReadyTimes};
use crate::member::Member;
use crate::pursuit::{LONGEST_NEED, Ticket};
use crate::settings::{Endpoint, FleetSettings};

/// A handle to the workers, shared by whoever pulls in this process. Cheap to clone. Connections are
/// opened when first needed, on the runtime of whoever needs them; any tokio runtime with I/O and time
/// will do, also one of a single thread.
#[derive(Clone)]
pub struct Fleet {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) settings: FleetSettings,
    /// Asked in the workers' stead, where there is one.
    pub(crate) agent: Option<Agent>,
    /// Sorted by endpoint: the order that all ranks share.
    pub(crate) members: Mutex<Arc<[Arc<Member>]>>,
    /// Where workers are looked for.
    pub(crate) sources: Mutex<Sources>,
    /// A worker came back, or the list changed.
    pub(crate) changed: Arc<Notify>,
    /// Told when the keeper should look at once.
    pub(crate) nudge: Arc<Notify>,
    pub(crate) keeper: Mutex<Option<JoinHandle<()>>>,
    /// How long ranges took, and how many may be asked twice.
    pub(crate) ready_times: Mutex<ReadyTimes>,
    pub(crate) budget: Mutex<Budget>,
    pub(crate) counts: Mutex<FleetStats>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(keeper) = lock(&self.keeper).take() {
            keeper.abort();
        }
    }
}

/// What a fleet was asked since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FleetStats {
    /// Ranges asked for.
    pub ranges: u64,
    /// Requests for them, repetitions and second ones included.
    pub requests: u64,
    /// Ranges asked of a second worker because the first one was late.
    pub hedged: u64,
    /// Those that the second worker gave first.
    pub hedges_won: u64,
    /// Requests given up because a worker fell silent.
    pub silenced: u64,
}

/// The plan that a trainer reads by: given, or fixed by the first batch that comes. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct ExpectedPlan(Arc<OnceLock<PlanDigest>>);

impl ExpectedPlan {
    /// Any plan, until the first batch fixes it.
    #[must_use]
    pub fn any() -> Self {
        Self::default()
    }

    /// The plan, once it is fixed.
    #[must_use]
    pub fn get(&self) -> Option<PlanDigest> {
        self.0.get().copied()
    }

    /// Fixes it, unless it is fixed already; gives what it is then.
    pub(crate) fn fix(&self, plan: PlanDigest) -> PlanDigest {
        *self.0.get_or_init(|| plan)
    }
}

impl From<Option<PlanDigest>> for ExpectedPlan {
    fn from(plan: Option<PlanDigest>) -> Self {
        let expected = Self::any();
        if let Some(plan) = plan {
            expected.fix(plan);
        }
        expected
    }
}

/// One range of one stream, asked for.
#[derive(Clone, Debug)]
pub struct BatchRequest {
    /// The stream.
    pub stream: String,
    /// The positions.
    pub range: Range,
    /// The trainer's end; rows at or past it are filler.
    pub stop: Option<u64>,
    /// How long until it is needed; zero = it is waited for now.
    pub need: Duration,
    /// The asker's rank in the run.
    pub rank: u64,
    /// The plan it must be made by.
    pub plan: ExpectedPlan,
    /// Workers known to have died under it before; 0 when nothing is known.
    pub deaths: u32,
}

impl Fleet {
    /// A fleet of these workers. Opens nothing yet.
    ///
    /// # Errors
    /// A run name that cannot stand in a header, bounds of zero.
    pub fn new(settings: FleetSettings) -> Result<Self, ClientError> {
        let setting = |name, reason: &str| ClientError::Setting { name, reason: reason.to_owned() };
        if !is_plain(&settings.run) {
            return Err(setting("run", "must have 1 to 128 characters out of letters, digits and ._:/@-"));
        }
        if settings.streams_per_connection == 0 {
            return Err(setting("streams_per_connection", "must be at least 1"));
        }
        if settings.timeouts.backoff_min.is_zero() {
            return Err(setting("timeouts.backoff_min", "must be above zero"));
        }
        let inner = Inner {
            members: Mutex::new(Arc::new([])),
            sources: Mutex::new(Sources::new(settings.workers.clone(), &settings.lists)),
            changed: Arc::default(),
            nudge: Arc::default(),
            keeper: Mutex::default(),
            ready_times: Mutex::default(),
            budget: Mutex::default(),
            counts: Mutex::default(),
            agent: settings.agent.clone().map(|socket| Agent::new(socket, &settings)),
            settings,
        };
        inner.update_members();
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Addresses and names of workers from now on. Those that stay keep their connections; requests
    /// outstanding at others are not cut off.
    pub fn set_workers(&self, workers: Vec<Endpoint>) {
        lock(&self.inner.sources).give(workers);
        self.inner.update_members();
        self.inner.nudge.notify_one();
    }

    /// What was asked since the start.
    #[must_use]
    pub fn stats(&self) -> FleetStats {
        *lock(&self.inner.counts)
    }

    /// How batches lent by an agent stand; None without an agent.
    #[must_use]
    pub fn agent_stats(&self) -> Option<AgentStats> {
        self.inner.agent.as_ref().map(Agent::stats)
    }

    /// The workers that are known now, sorted.
    #[must_use]
    pub fn workers(&self) -> Vec<Endpoint> {
        let members = self.members();
        members.iter().map(|member| member.endpoint.clone()).collect()
    }

    pub(crate) fn members(&self) -> Arc<[Arc<Member>]> {
        Arc::clone(&lock(&self.inner.members))
    }

    /// One range from whichever worker can make it. Dropping the future takes the request back.
    ///
    /// # Errors
    /// A refusal that every worker would repeat, no worker with this plan, or nothing within
    /// `timeouts.total` after it was needed.
    pub async fn fetch(&self, request: &BatchRequest) -> Result<Batch, ClientError> {
        let ticket = Ticket::default();
        let pursuit = pin!(self.pursue(request, 1, &ticket));
        self.patiently(request, &ticket.history, pursuit).await?
    }

    /// Waits for a pursuit, warns when it lasts, gives up when it lasts too long after it was needed.
    pub(crate) async fn patiently<F: Future + Unpin>(
        &self,
        request: &BatchRequest,
        history: &SharedHistory,
        pursuit: F,
    ) -> Result<F::Output, ClientError> {
        let waited = self.within_patience(request, history, pursuit);
        match &self.inner.agent {
            Some(agent) => agent.unless_gone(waited).await,
            None => waited.await,
        }
    }

    async fn within_patience<F: Future + Unpin>(
        &self,
        request: &BatchRequest,
        history: &SharedHistory,
        mut pursuit: F,
    ) -> Result<F::Output, ClientError> {
        let timeouts = &self.inner.settings.timeouts;
        let need = request.need.min(LONGEST_NEED);
        let warning = timeouts.warning.min(timeouts.total);
        if let Ok(output) = tokio::time::timeout(need.saturating_add(warning), &mut pursuit).await {
            return Ok(output);
        }
        let BatchRequest { stream, range, rank, .. } = request;
        if warning < timeouts.total {
            tracing::warn!(stream, %range, rank, waited = ?warning, history = %history.snapshot(), "still waiting for a batch");
            let rest = timeouts.total - warning;
            if let Ok(output) = tokio::time::timeout(rest, &mut pursuit).await {
                return Ok(output);
            }
        }
        if let Some(unreachable) =
            self.inner.agent.as_ref().and_then(|agent| agent.unreachable(timeouts.total))
        {
            return Err(unreachable);
        }
        Err(ClientError::TimedOut {
            stream: stream.clone(),
            range: *range,
            rank: *rank,
            waited: timeouts.total,
            history: history.snapshot(),
        })
    }
}

impl Inner {
    /// Makes the members what the sources say.
    pub(crate) fn update_members(&self) {
        // Held to the end: two updates at once must not swap.
        let sources = lock(&self.sources);
        let workers = sources.endpoints();
        let mut members = lock(&self.members);
        if members.iter().map(|member| &member.endpoint).eq(&workers) {
            return;
        }
        *members = workers
            .into_iter()
            .map(|endpoint| {
                let known = members.iter().find(|member| member.endpoint == endpoint);
                known.cloned().unwrap_or_else(|| Arc::new(Member::new(endpoint, &self.settings)))
            })
            .collect();
        let count = members.len();
        drop(members);
        drop(sources);
        tracing::debug!(workers = count, "the list of workers changed");
        self.changed.notify_waiters();
    }

    /// Why there may be nobody to ask.
    pub(crate) fn sources_note(&self) -> Option<String> {
        let faults = lock(&self.sources).faults();
        let words: Vec<String> =
            faults.into_iter().map(|(source, fault)| format!("{source} gives no worker: {fault}")).collect();
        (!words.is_empty()).then(|| words.join(", "))
    }
}
