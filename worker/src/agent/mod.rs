//! The same server filled from other workers, and by reference to this node's processes.
//!
//! ```text
//!                    ┌─► store: one entry a range ─► upstream: one transfer ─► workers
//! readers ─► local ──┤     └─ slabs: one copy for all who ask
//! others  ─► http  ──┘
//! ```
//!
//! An agent makes nothing. A range is fetched once, laid into a slab of shared memory, and lent to whoever asks for
//! it: to processes of this node by descriptor, to others over HTTP, by reference as well.
//!
//! Memory is bounded: of the slabs, half is for the readers of this node in equal shares, a quarter for answers over
//! HTTP, and at least a quarter is always free to be filled, whatever readers keep.

/// Paths and what answers them.
mod http;
/// Processes of this node: asks over a Unix socket, leases by descriptor.
mod local;
/// Every metric of an agent.
mod metrics;
/// Arguments and settings.
mod settings;
/// Ranges in shared memory, each fetched once.
mod store;
/// The workers behind: batches, plans, reports.
mod upstream;

use std::process::ExitCode;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::Context;
use feedmill_access::Guard;
use feedmill_arena::{Budget, Demand, SlabSettings, Slabs, check_against_cgroup};
use feedmill_protocol::report::{AgentStatus, RankReport, WorkerState, WorkerStatus};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::app::Served;
use crate::reports::Reports;
use crate::run::{announce, raise_descriptor_limit, set_up_log, told_to_stop};
use crate::serve::serve_router;
use local::Door;
use store::Store;
use upstream::Upstream;

pub use settings::{AgentArgs, AgentSettings, AgentSettingsError};

pub(crate) const METRICS: &[&crate::metrics::Family] = metrics::FAMILIES;

/// A whole agent, shared by all requests and readers.
pub(crate) struct Agent {
    pub(crate) settings: AgentSettings,
    /// Where it serves HTTP.
    pub(crate) url: String,
    pub(crate) store: Arc<Store>,
    /// Bytes of slabs that answers over HTTP may hold.
    pub(crate) answers: Arc<Budget>,
    pub(crate) served: Arc<Served>,
    reports: Mutex<Reports>,
    pub(crate) lent: Lent,
    state: AtomicU8,
}

/// What readers of this node have.
#[derive(Debug, Default)]
pub(crate) struct Lent {
    /// Connected readers.
    pub(crate) readers: AtomicU32,
    /// Bytes of batches that they hold.
    pub(crate) bytes: AtomicU64,
    /// Batches lent.
    pub(crate) batches: AtomicU64,
    /// Bytes of them.
    pub(crate) total_bytes: AtomicU64,
    /// Batches refused to readers that hold their share.
    pub(crate) refused: AtomicU64,
}

impl Agent {
    fn new(settings: AgentSettings, url: String) -> anyhow::Result<Self> {
        let demands = [
            Demand { setting: "--memory", bytes: settings.memory },
            Demand { setting: "--fetch-memory", bytes: settings.fetch_memory },
        ];
        check_against_cgroup(&demands).context("the agent's memory does not fit")?;
        let sizes = SlabSettings { bytes: settings.memory, slab_bytes: settings.slab_bytes };
        let slabs = Slabs::create(sizes).context("--memory is too small")?;
        let upstream = Upstream::new(&settings)?;
        Ok(Self {
            answers: Budget::new("answers over HTTP", settings.answers_bytes(), 0)?,
            store: Arc::new(Store::new(upstream, slabs, &settings)?),
            url,
            served: Arc::default(),
            reports: Mutex::default(),
            lent: Lent::default(),
            state: AtomicU8::new(0),
            settings,
        })
    }

    /// Where it is in its life.
    pub(crate) fn state(&self) -> WorkerState {
        match self.state.load(Ordering::Acquire) {
            0 => WorkerState::Starting,
            1 => WorkerState::Ready,
            _ => WorkerState::Draining,
        }
    }

    fn ready(&self) {
        // One that was told to drain while it started goes on draining.
        let _ = self.state.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire);
    }

    #[expect(clippy::disallowed_methods, reason = "reports have ages, never wall clocks")]
    fn reports<T>(&self, use_them: impl FnOnce(&mut Reports, Instant) -> T) -> T {
        use_them(&mut self.reports.lock().unwrap_or_else(PoisonError::into_inner), Instant::now())
    }

    /// Keeps a rank's report and passes it on.
    pub(crate) async fn report(&self, report: RankReport) -> Result<(), store::Refusal> {
        let kept = self.reports(|reports, now| reports.keep(now, report.clone()));
        kept.map_err(|refusal| store::Refusal::from(refusal.problem()))?;
        self.store.upstream().report(&report).await
    }

    /// What it says of itself: its own counts, and the workers' facts; the ranks' reports only on request.
    pub(crate) async fn status(&self, with_reports: bool) -> WorkerStatus {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let facts = self.store.upstream().facts().await;
        let counts = self.store.counts();
        WorkerStatus {
            worker: self.settings.name.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            state: self.state(),
            doing: None,
            cores: facts.cores,
            streams: facts.streams,
            work_ahead: counts.making_samples,
            ready: counts.ready_samples,
            batches: count(&self.served.batches) + count(&self.lent.batches),
            samples: count(&self.served.samples),
            bytes_out: count(&self.served.bytes) + count(&self.lent.total_bytes),
            bytes_in: counts.fetched_bytes,
            busy_ms: 0,
            bad: facts.bad,
            problems: facts.problems,
            reports: match with_reports {
                true => self.reports(|reports, now| reports.list(now)),
                false => Vec::new(),
            },
            agent: Some(AgentStatus {
                upstream: self.store.upstream().workers(),
                upstream_ready: facts.ready,
                readers: self.lent.readers.load(Ordering::Relaxed),
                lent_bytes: count(&self.lent.bytes),
                memory_bytes: self.store.slabs().capacity(),
                fetched: counts.fetched,
            }),
        }
    }
}

/// Runs an agent until SIGTERM or SIGINT; logs go to standard error.
#[must_use]
pub fn main(args: &AgentArgs) -> ExitCode {
    set_up_log();
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &AgentArgs) -> anyhow::Result<()> {
    let settings = AgentSettings::new(args)?;
    let guard = Guard::new(settings.access.clone())?;
    raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        // Receiving is mostly copying by the kernel; more threads only wake each other.
        .worker_threads((crate::settings::cpu_quota() / 4).clamp(1, 4))
        // Batches are copied into slabs on these; each copy runs at the speed of memory.
        .max_blocking_threads(4)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let result = runtime.block_on(live(settings, guard));
    // Reading standard input blocks a thread that cannot be woken.
    runtime.shutdown_background();
    result
}

async fn live(settings: AgentSettings, guard: Guard) -> anyhow::Result<()> {
    let listener = TcpListener::bind(settings.listen).await.with_context(|| {
        format!("cannot listen on {}; choose another address with --listen", settings.listen)
    })?;
    let address = listener.local_addr()?;
    let door = Door::open(&settings.socket, settings.socket_mode)?;
    let scheme = if guard.is_tls() { "https" } else { "http" };
    let agent = Arc::new(Agent::new(settings, format!("{scheme}://{address}"))?);
    let settings = &agent.settings;
    announce(&settings.name, address, &guard, Some(&settings.socket))?;
    let (stop, stopped) = watch::channel(false);
    let router = http::router(Arc::clone(&agent));
    let served = Arc::clone(&agent.served);
    let server = tokio::spawn(serve_router(
        router,
        served,
        Arc::new(guard),
        listener,
        stopped.clone(),
        settings.drain,
    ));
    let readers = tokio::spawn(local::serve(Arc::clone(&agent), door, stopped));
    let result = tokio::select! {
        () = agent.store.upstream().wait_ready() => {
            agent.ready();
            tracing::info!(upstream = ?agent.store.upstream().workers(), "the workers behind answer");
            told_to_stop(settings.exit_with_stdin).await
        }
        told = told_to_stop(settings.exit_with_stdin) => told,
    };
    agent.state.store(2, Ordering::Release);
    stop.send_replace(true);
    server.await.context("the server ended unexpectedly")?;
    readers.await.context("the socket's server ended unexpectedly")?;
    result
}
