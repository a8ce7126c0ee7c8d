//! What a worker is made of, and where it is in its life.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use feedmill_access::Guard;
use feedmill_arena::{Arena, ArenaSettings, Budget, BudgetError, Demand, check_against_cgroup};
use feedmill_protocol::pipeline::ValidatedPipeline;
use feedmill_protocol::pipeline::spec::DatasetSpec;
use feedmill_protocol::report::{StreamStatus, WorkerState, WorkerStatus};
use feedmill_source::{
    CredentialsSource, FetchSettings, ManifestSettings, Progress, RowLimits, S3Settings, SetupError, Stores,
};
use tokio::sync::Semaphore;

use crate::cpu_pool::CpuPool;
use crate::engine::{Engine, EngineSettings};
use crate::make::SampleMaker;
use crate::reports::Reports;
use crate::settings::Settings;
use crate::stream::{self, Stream, StreamError};
use crate::suspect::Sandbox;

/// Ranges waiting at once before more are refused.
const MAX_RANGES: usize = 1024;
/// Samples in flight for each thread: enough to cover 30 ms of storage latency at 3 ms a sample, twice.
const IN_FLIGHT_A_THREAD: u64 = 24;
/// Padded batches expanded at once: each is eight times its compact form.
const EXPANDING_AT_ONCE: usize = 2;
/// Samples and pictures made for people at once; trainers go first only in what they share with them.
const LOOKING_AT_ONCE: usize = 2;
/// Steps of searches at once: reading manifests must not become what a worker does.
const SEARCHING_AT_ONCE: usize = 1;

/// Everything that is fixed before data is read.
pub struct Machinery {
    /// The checked pipeline.
    pub pipeline: ValidatedPipeline,
    /// Objects.
    pub stores: Stores,
    /// Threads for CPU work.
    pub pool: Arc<CpuPool>,
    /// Shared memory.
    pub arena: Arc<Arena>,
    /// Fetched bytes.
    pub fetch: Arc<Budget>,
    /// Memory of decoding.
    pub decode: Arc<Budget>,
    /// Where pictures are made that may kill whoever decodes them.
    pub sandbox: Sandbox,
    manifests: ManifestSettings,
}

/// Settings that cannot work on this machine.
#[derive(Debug, thiserror::Error)]
pub enum MachineryError {
    /// Memory.
    #[error("the worker's memory does not fit")]
    Cgroup(#[from] feedmill_arena::CgroupError),
    /// Shared memory.
    #[error("shared memory cannot be had")]
    Arena(#[from] feedmill_arena::ArenaError),
    /// A budget.
    #[error("a budget cannot be kept")]
    Budget(#[from] BudgetError),
    /// Threads.
    #[error("threads cannot be started")]
    Threads(#[from] std::io::Error),
    /// Storage.
    #[error("storage settings cannot be used")]
    Stores(#[from] SetupError),
    /// The decode budget.
    #[error(
        "cache.decode = {budget} bytes cannot hold one picture at limits.maxImagePixels = {pixels}, which may \
         take {needed} bytes while it is decoded; raise the one or lower the other"
    )]
    Decode {
        /// The budget.
        budget: u64,
        /// The limit of pixels.
        pixels: u64,
        /// What one picture may take.
        needed: u64,
    },
}

/// Bytes that decoding may take for each pixel, whatever the picture: RGB, the turned copy, and what the
/// decoder itself keeps, which is most for WebP: 20.
const DECODE_BYTES_A_PIXEL: u64 = 26;
/// What decoding takes apart from pixels.
const DECODE_BYTES_APART: u64 = 64 << 20;

impl Machinery {
    /// Makes budgets, threads and shared memory; reads no data.
    ///
    /// # Errors
    /// See [`MachineryError`]: each names the setting.
    pub fn new(pipeline: ValidatedPipeline, settings: &Settings) -> Result<Self, MachineryError> {
        let fetching =
            FetchSettings { jitter_seed: u64::from(std::process::id()), ..FetchSettings::default() };
        Self::with_fetching(pipeline, settings, fetching)
    }

    /// The same with other bounds of fetching.
    ///
    /// # Errors
    /// As [`Machinery::new`].
    pub fn with_fetching(
        pipeline: ValidatedPipeline,
        settings: &Settings,
        fetching: FetchSettings,
    ) -> Result<Self, MachineryError> {
        let cache = &pipeline.cache;
        let demands = [
            Demand { setting: "cache.sharedMemory", bytes: cache.shared_memory.0 },
            Demand { setting: "cache.fetch", bytes: cache.fetch.0 },
            Demand { setting: "cache.decode", bytes: cache.decode.0 },
        ];
        check_against_cgroup(&demands)?;
        let pixels = pipeline.limits.max_image_pixels;
        let needed = pixels.saturating_mul(DECODE_BYTES_A_PIXEL).saturating_add(DECODE_BYTES_APART);
        if needed > cache.decode.0 {
            return Err(MachineryError::Decode { budget: cache.decode.0, pixels, needed });
        }
        let s3 = S3Settings {
            region: pipeline.s3.region.clone(),
            endpoint: settings.s3_endpoint.clone().or_else(|| pipeline.s3.endpoint.clone()),
            force_path_style: pipeline.s3.force_path_style || settings.s3_endpoint.is_some(),
            connect_to: None,
            ca_file: settings.s3_ca_file.clone(),
            credentials: match &settings.s3_credentials {
                Some(folder) => CredentialsSource::Folder(folder.clone()),
                None => CredentialsSource::DefaultChain,
            },
        };
        let mut manifests = ManifestSettings::new(settings.cache_dir.clone(), cache.disk.0);
        manifests.max_line_bytes = pipeline.limits.max_line_bytes.0;
        // The head may always fetch one record and decode one picture, whatever the others hold.
        let record = pipeline.limits.max_sample_bytes.0;
        let mut datasets = pipeline.streams.iter().flat_map(|stream| &stream.datasets);
        let record = match datasets.any(DatasetSpec::is_parquet) {
            true => RowLimits::most(record),
            false => record,
        };
        Ok(Self {
            stores: Stores::new(s3, fetching)?,
            pool: Arc::new(CpuPool::new(settings.threads)?),
            arena: Arena::create(ArenaSettings { bytes: cache.shared_memory.0 })?,
            fetch: Budget::new("cache.fetch", cache.fetch.0, record)?,
            decode: Budget::new("cache.decode", cache.decode.0, 0)?,
            sandbox: settings.sandbox.clone(),
            manifests,
            pipeline,
        })
    }

    /// Reads manifests and processor, gives what serves ranges.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub async fn load(
        &self,
        progress: impl Fn(&str, Progress) + Clone + Send + 'static,
    ) -> Result<Loaded, StreamError> {
        let streams = stream::open(&self.pipeline, &self.stores, &self.manifests, progress).await?;
        let streams: Vec<Arc<Stream>> = streams.into_iter().map(Arc::new).collect();
        let threads = self.pool.threads();
        let maker = SampleMaker {
            streams,
            stores: self.stores.clone(),
            pool: Arc::clone(&self.pool),
            arena: Arc::clone(&self.arena),
            fetch: Arc::clone(&self.fetch),
            decode: Arc::clone(&self.decode),
            bad: Arc::default(),
            sandbox: self.sandbox.clone(),
            suspects: Arc::default(),
            stages: Arc::default(),
            guess: crate::make::SizeGuess::default(),
        };
        let settings = EngineSettings {
            in_flight: IN_FLIGHT_A_THREAD * threads as u64,
            max_ranges: MAX_RANGES,
            threads,
            max_range_bytes: self.arena.capacity() / 4,
        };
        Ok(Loaded { engine: Engine::new(maker, settings), max_range: self.pipeline.max_range })
    }
}

/// Streams and the engine over them.
pub struct Loaded {
    /// The order and the cache of samples.
    pub engine: Engine<SampleMaker>,
    /// Most samples of one range.
    pub max_range: u32,
}

impl Loaded {
    /// The stream of this name, and its index.
    #[must_use]
    pub fn stream(&self, name: &str) -> Option<(usize, &Arc<Stream>)> {
        self.streams().iter().enumerate().find(|(_, stream)| stream.name == name)
    }

    /// All streams.
    #[must_use]
    pub fn streams(&self) -> &[Arc<Stream>] {
        &self.engine.maker().streams
    }
}

/// A whole worker, shared by all requests.
pub struct App {
    /// Its name, unique in its fleet.
    pub name: String,
    /// What is fixed before data is read.
    pub machinery: Machinery,
    /// Who is admitted.
    pub guard: Arc<Guard>,
    /// Set once data is read.
    pub loaded: OnceLock<Loaded>,
    state: AtomicU8,
    /// What it is doing while it starts, for people.
    doing: Mutex<String>,
    /// What it has served.
    pub served: Arc<Served>,
    /// Padded batches being expanded.
    pub expanding: Arc<Semaphore>,
    /// Samples and pictures being made for people.
    pub looking: Arc<Semaphore>,
    /// Steps of searches.
    pub searching: Arc<Semaphore>,
    reports: Mutex<Reports>,
}

/// Counters of what was served.
#[derive(Debug, Default)]
pub struct Served {
    /// Batches.
    pub batches: AtomicU64,
    /// Samples.
    pub samples: AtomicU64,
    /// Bytes handed to connections.
    pub bytes: AtomicU64,
    /// Leases that outlived their deadline.
    pub overdue: AtomicU64,
    /// Open connections.
    pub connections: AtomicU64,
}

impl App {
    /// A worker that has not read its data.
    #[must_use]
    pub fn new(name: String, machinery: Machinery) -> Self {
        Self {
            name,
            machinery,
            guard: Arc::default(),
            loaded: OnceLock::new(),
            state: AtomicU8::new(0),
            doing: Mutex::new("starting".into()),
            served: Arc::default(),
            expanding: Arc::new(Semaphore::new(EXPANDING_AT_ONCE)),
            looking: Arc::new(Semaphore::new(LOOKING_AT_ONCE)),
            searching: Arc::new(Semaphore::new(SEARCHING_AT_ONCE)),
            reports: Mutex::default(),
        }
    }

    /// The same, with a guard before it; without one everybody is admitted.
    #[must_use]
    pub fn guarded(self, guard: Guard) -> Self {
        Self { guard: Arc::new(guard), ..self }
    }

    /// Where it is in its life.
    #[must_use]
    pub fn state(&self) -> WorkerState {
        match self.state.load(Ordering::Acquire) {
            0 => WorkerState::Starting,
            1 => WorkerState::Ready,
            _ => WorkerState::Draining,
        }
    }

    /// Data is read: batches can be asked for, unless it is draining already.
    pub fn ready(&self, loaded: Loaded) {
        self.hold(loaded);
        self.open();
    }

    /// Data is read, and told of; batches cannot be asked for yet. What was read before stays.
    pub fn hold(&self, loaded: Loaded) -> &Loaded {
        self.loaded.get_or_init(|| loaded)
    }

    /// Batches can be asked for from now on.
    pub fn open(&self) {
        // A worker that was told to drain while it started goes on draining.
        let _ = self.state.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Batches cannot be asked for until it is opened again; what was asked for is answered.
    pub fn close(&self) {
        // A worker that drains goes on draining.
        let _ = self.state.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Nothing new is taken from now on.
    pub fn drain(&self) {
        self.state.store(2, Ordering::Release);
    }

    /// What it is doing while it starts.
    #[must_use]
    pub fn doing(&self) -> String {
        self.doing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets what it is doing while it starts.
    pub fn set_doing(&self, doing: String) {
        *self.doing.lock().unwrap_or_else(PoisonError::into_inner) = doing;
    }

    /// What ranks report here.
    #[expect(clippy::disallowed_methods, reason = "reports have ages, never wall clocks")]
    pub fn reports<T>(&self, use_them: impl FnOnce(&mut Reports, Instant) -> T) -> T {
        use_them(&mut self.reports.lock().unwrap_or_else(PoisonError::into_inner), Instant::now())
    }

    /// What it says of itself; the ranks' reports are many, and left out for those who ask often.
    #[must_use]
    pub fn status(&self, with_reports: bool) -> WorkerStatus {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let loaded = self.loaded.get();
        let engine = loaded.map(|loaded| loaded.engine.stats()).unwrap_or_default();
        let streams = loaded.map(Loaded::streams).unwrap_or_default();
        WorkerStatus {
            worker: self.name.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            state: self.state(),
            doing: (self.state() == WorkerState::Starting).then(|| self.doing()),
            cores: u32::try_from(self.machinery.pool.threads()).unwrap_or(u32::MAX),
            streams: streams
                .iter()
                .map(|stream| {
                    let status = StreamStatus {
                        plan: stream.digest.to_string(),
                        samples_per_epoch: stream.order.samples_per_epoch(),
                    };
                    (stream.name.clone(), status)
                })
                .collect(),
            work_ahead: engine.making,
            ready: engine.ready,
            batches: count(&self.served.batches),
            samples: count(&self.served.samples),
            bytes_out: count(&self.served.bytes),
            bytes_in: count(&self.machinery.stores.stats().bytes),
            busy_ms: self.machinery.pool.busy_nanoseconds() / 1_000_000,
            bad: loaded.map(|loaded| loaded.engine.maker().bad.by_class()).unwrap_or_default(),
            problems: streams.iter().flat_map(|stream| stream.problems()).collect(),
            reports: match with_reports {
                true => self.reports(|reports, now| reports.list(now)),
                false => Vec::new(),
            },
            agent: None,
        }
    }
}
