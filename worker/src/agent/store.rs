//! Takes ranges that are asked for, gives them leased in shared memory: each is fetched once, for all who ask.
//!
//! ```text
//! get ─► entry: being made ──► Ready ─► lease          making: place in the fetch memory ─► workers
//!          │  nobody waits: dropped                            ─► place in a slab ─► copy
//!          └─ given up for others: made again
//! ```

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use feedmill_arena::{Budget, BudgetError, SlabError, SlabLease, SlabRegion, Slabs, Urgency};
use feedmill_client::{Batch, BatchRequest, Endpoint, ExpectedPlan};
use feedmill_protocol::http::{Problem, problem_kind};
use feedmill_protocol::plan::PlanDigest;
use feedmill_protocol::position::Range;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::settings::AgentSettings;
use super::upstream::{self, Upstream};

/// A place on the way is asked for by the largest sample so far and this much in a hundred more.
const ALLOWANCE: u64 = 125;

/// Ranges being fetched at once, however small; as many as a worker takes.
const MOST_MAKING: usize = 1024;

/// Entries are looked through when there are twice as many as after the last time, and so many at least.
const LEAST_SWEPT: usize = 512;

/// Why a range cannot be had.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) problem: Arc<Problem>,
    /// The plan that the workers have, when it is another one.
    pub(crate) plan: Option<PlanDigest>,
    /// The worker that said so.
    pub(crate) worker: Option<Endpoint>,
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self { problem: Arc::new(problem), plan: None, worker: None }
    }
}

/// A range as somebody asks for it.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) stream: String,
    pub(crate) range: Range,
    pub(crate) stop: Option<u64>,
    pub(crate) plan: Option<PlanDigest>,
    pub(crate) need: Duration,
    pub(crate) run: String,
    pub(crate) rank: u64,
    pub(crate) deaths: u32,
}

/// What decides the bytes of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    stream: String,
    range: Range,
    stop: Option<u64>,
    plan: Option<PlanDigest>,
}

impl Wanted {
    fn key(&self) -> Key {
        // An end behind the range changes nothing in it.
        let stop = self.stop.filter(|stop| *stop < self.range.end());
        Key { stream: self.stream.clone(), range: self.range, stop, plan: self.plan }
    }
}

/// A range in shared memory, held there.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) lease: SlabLease,
    pub(crate) plan: PlanDigest,
    pub(crate) worker: Endpoint,
}

struct Stored {
    region: SlabRegion,
    plan: PlanDigest,
    worker: Endpoint,
}

impl Stored {
    fn held(&self) -> Option<Held> {
        let lease = self.region.lease()?;
        Some(Held { lease, plan: self.plan, worker: self.worker.clone() })
    }
}

#[derive(Clone)]
enum State {
    Making,
    Ready(Arc<Stored>),
    Failed(Refusal),
}

struct Entry {
    /// Tells it from others of the same key, before and after.
    number: u64,
    rows: u64,
    urgency: Urgency,
    state: watch::Sender<State>,
    waiting: usize,
    /// Holds what was made until whoever waited for it has looked: nothing else may take its place before.
    pin: Option<SlabLease>,
    task: Option<AbortHandle>,
}

#[derive(Default)]
struct Entries {
    by_key: HashMap<Key, Entry>,
    next: u64,
    making: usize,
    making_samples: u64,
    swept: usize,
}

/// Counts at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) making: u64,
    pub(crate) making_samples: u64,
    pub(crate) ready: u64,
    pub(crate) ready_samples: u64,
    pub(crate) fetched: u64,
    pub(crate) fetched_bytes: u64,
    pub(crate) shared: u64,
    pub(crate) failed: u64,
}

/// All ranges.
pub(crate) struct Store {
    upstream: Upstream,
    slabs: Arc<Slabs>,
    fetch: Arc<Budget>,
    max_batch: u64,
    /// How long is waited for room that readers hold before whoever asks is told.
    patience: Duration,
    entries: Mutex<Entries>,
    /// Bytes of the largest sample so far.
    largest_sample: AtomicU64,
    fetched: AtomicU64,
    fetched_bytes: AtomicU64,
    /// Asks that another one's transfer answered.
    shared: AtomicU64,
    failed: AtomicU64,
    begun: Instant,
}

impl Store {
    #[expect(
        clippy::disallowed_methods,
        reason = "the store's one clock: urgencies are ages since its start"
    )]
    pub(crate) fn new(
        upstream: Upstream,
        slabs: Arc<Slabs>,
        settings: &AgentSettings,
    ) -> Result<Self, BudgetError> {
        Ok(Self {
            upstream,
            slabs,
            fetch: Budget::new("--fetch-memory", settings.fetch_memory, 0)?,
            max_batch: settings.max_batch,
            patience: settings.release,
            entries: Mutex::default(),
            largest_sample: AtomicU64::new(0),
            fetched: AtomicU64::new(0),
            fetched_bytes: AtomicU64::new(0),
            shared: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            begun: Instant::now(),
        })
    }

    pub(crate) fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    pub(crate) fn slabs(&self) -> &Arc<Slabs> {
        &self.slabs
    }

    pub(crate) fn fetch_budget(&self) -> &Budget {
        &self.fetch
    }

    pub(crate) fn counts(&self) -> Counts {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let entries = self.entries();
        let ready = entries.by_key.values().filter(|entry| matches!(*entry.state.borrow(), State::Ready(_)));
        let (ready, ready_samples) = ready.fold((0, 0), |(n, rows), entry| (n + 1, rows + entry.rows));
        Counts {
            making: entries.making as u64,
            making_samples: entries.making_samples,
            ready,
            ready_samples,
            fetched: count(&self.fetched),
            fetched_bytes: count(&self.fetched_bytes),
            shared: count(&self.shared),
            failed: count(&self.failed),
        }
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A range, held in shared memory. Dropping the future takes the ask back; what nobody asks for any more is not
    /// fetched.
    ///
    /// # Errors
    /// What the workers said, or that there is no room.
    pub(crate) async fn get(self: &Arc<Self>, wanted: &Wanted) -> Result<Held, Refusal> {
        loop {
            let (mut state, _ticket) = match self.enter(wanted)? {
                Entered::Held(held) => return Ok(held),
                Entered::Waits(state, ticket) => (state, ticket),
            };
            let settled = match state.wait_for(|state| !matches!(state, State::Making)).await {
                Ok(state) => state.clone(),
                Err(_) => State::Failed(lost()),
            };
            match settled {
                State::Failed(refusal) => return Err(refusal),
                State::Ready(stored) => {
                    if let Some(held) = stored.held() {
                        return Ok(held);
                    }
                    // Its place went to something else before this task ran: it is made again.
                }
                State::Making => {}
            }
        }
    }

    fn enter(self: &Arc<Self>, wanted: &Wanted) -> Result<Entered, Refusal> {
        let key = wanted.key();
        let needed = self.begun.elapsed().saturating_add(wanted.need);
        let value = u64::try_from(needed.as_millis()).unwrap_or(u64::MAX - 1);
        let mut entries = self.entries();
        if let Some(entry) = entries.by_key.get_mut(&key) {
            let ready = match &*entry.state.borrow() {
                State::Making => None,
                State::Ready(stored) => Some(stored.held()),
                State::Failed(_) => Some(None),
            };
            match ready {
                None => {
                    entry.waiting += 1;
                    if value < entry.urgency.get() {
                        entry.urgency.set(value);
                    }
                    self.shared.fetch_add(1, Ordering::Relaxed);
                    let ticket = Ticket { store: Arc::clone(self), key, number: entry.number };
                    return Ok(Entered::Waits(entry.state.subscribe(), ticket));
                }
                Some(Some(held)) => {
                    self.shared.fetch_add(1, Ordering::Relaxed);
                    return Ok(Entered::Held(held));
                }
                Some(None) => {
                    entries.by_key.remove(&key);
                }
            }
        }
        if entries.making >= MOST_MAKING {
            let detail = format!("{MOST_MAKING} ranges are being fetched here already");
            return Err(Problem::new(problem_kind::FULL, 503, "too much is waiting here", detail).into());
        }
        entries.sweep();
        let number = entries.next;
        entries.next += 1;
        let urgency = Urgency::new(value);
        let (state, subscribed) = watch::channel(State::Making);
        let rows = wanted.range.len();
        let entry =
            Entry { number, rows, urgency: urgency.clone(), state, waiting: 1, pin: None, task: None };
        entries.by_key.insert(key.clone(), entry);
        entries.making += 1;
        entries.making_samples += rows;
        let ticket = Ticket { store: Arc::clone(self), key: key.clone(), number };
        let making = Making { store: Arc::clone(self), key: key.clone(), number, outcome: None };
        let task = tokio::spawn(making.run(wanted.clone(), needed, urgency)).abort_handle();
        if let Some(entry) = entries.by_key.get_mut(&key) {
            entry.task = Some(task);
        }
        Ok(Entered::Waits(subscribed, ticket))
    }

    /// Bytes to reserve on the way for so many samples.
    fn expected_bytes(&self, samples: u64) -> u64 {
        match self.largest_sample.load(Ordering::Relaxed) {
            0 => self.max_batch,
            largest => {
                (largest.saturating_mul(samples).saturating_mul(ALLOWANCE) / 100).clamp(1, self.max_batch)
            }
        }
    }

    async fn make(&self, wanted: Wanted, needed: Duration, urgency: &Urgency) -> Result<Stored, Refusal> {
        let samples = wanted.range.len();
        let permit = self.fetch.acquire(self.expected_bytes(samples), urgency).await.map_err(|error| {
            Refusal::from(Problem::new(problem_kind::INTERNAL, 500, "no place on the way", error.to_string()))
        })?;
        let fleet = self.upstream.fleet(&wanted.run);
        let key = wanted.key();
        let request = BatchRequest {
            stream: key.stream,
            range: key.range,
            stop: key.stop,
            need: needed.saturating_sub(self.begun.elapsed()),
            rank: wanted.rank,
            plan: ExpectedPlan::from(key.plan),
            deaths: wanted.deaths,
        };
        let batch = fleet.fetch(&request).await.map_err(|error| upstream::refusal(&error))?;
        let bytes = batch.bytes().len() as u64;
        self.fetched.fetch_add(1, Ordering::Relaxed);
        self.fetched_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.largest_sample.fetch_max(bytes.div_ceil(samples), Ordering::Relaxed);
        let stored = self.lay_down(batch, urgency).await;
        drop(permit);
        stored
    }

    async fn lay_down(&self, batch: Batch, urgency: &Urgency) -> Result<Stored, Refusal> {
        let bytes = batch.bytes().len();
        let reserved = tokio::time::timeout(self.patience, self.slabs.reserve(bytes, urgency)).await;
        let mut writer = match reserved {
            Ok(Ok(writer)) => writer,
            Ok(Err(error @ SlabError::TooLarge { .. })) => {
                let title = "the batch is too large";
                return Err(Problem::new(problem_kind::TOO_LARGE, 413, title, error.to_string()).into());
            }
            Ok(Err(error)) => {
                let title = "there is no shared memory";
                return Err(Problem::new(problem_kind::INTERNAL, 500, title, error.to_string()).into());
            }
            Err(_) => {
                let stats = self.slabs.stats();
                let detail = format!(
                    "no place for {bytes} bytes came free within {:?}: of {} bytes {} are being read",
                    self.patience, stats.capacity, stats.leased
                );
                return Err(full(detail));
            }
        };
        let (plan, worker) = (batch.plan(), batch.worker().clone());
        // Some milliseconds for a large batch: not on a thread that serves.
        let copied = tokio::task::spawn_blocking(move || {
            writer.as_mut_slice().copy_from_slice(batch.bytes());
            writer.finish()
        });
        let region = copied.await.map_err(|_| lost())?;
        Ok(Stored { region, plan, worker })
    }
}

/// 503: no room now.
pub(crate) fn full(detail: String) -> Refusal {
    let problem = Problem {
        remedy: Some("release batches that are not read any more, or raise --memory".into()),
        ..Problem::new(problem_kind::FULL, 503, "the agent's memory is held by its readers", detail)
    };
    problem.into()
}

fn lost() -> Refusal {
    let detail = "the task that fetched the range ended without a result";
    Problem::new(problem_kind::INTERNAL, 500, "the agent failed", detail).into()
}

enum Entered {
    Held(Held),
    Waits(watch::Receiver<State>, Ticket),
}

impl Entries {
    /// Forgets entries whose bytes were given up for others.
    fn sweep(&mut self) {
        if self.by_key.len() < (2 * self.swept).max(LEAST_SWEPT) {
            return;
        }
        self.by_key.retain(|_, entry| match &*entry.state.borrow() {
            State::Making => true,
            State::Ready(stored) => !stored.region.is_void(),
            State::Failed(_) => false,
        });
        self.swept = self.by_key.len();
    }
}

/// Somebody waits for an entry; dropping it says that they do not any more.
struct Ticket {
    store: Arc<Store>,
    key: Key,
    number: u64,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut entries = self.store.entries();
        let Some(entry) = entries.by_key.get_mut(&self.key).filter(|entry| entry.number == self.number)
        else {
            return;
        };
        entry.waiting -= 1;
        let _pin = if entry.waiting == 0 { entry.pin.take() } else { None };
        let is_unwanted = entry.waiting == 0 && matches!(*entry.state.borrow(), State::Making);
        let dropped = is_unwanted.then(|| entries.by_key.remove(&self.key)).flatten();
        drop(entries);
        // The task takes itself out of the counts as it goes.
        if let Some(task) = dropped.and_then(|entry| entry.task) {
            task.abort();
        }
    }
}

/// Settles an entry however its task ends: an abort or a panic leaves nobody waiting.
struct Making {
    store: Arc<Store>,
    key: Key,
    number: u64,
    outcome: Option<Result<Arc<Stored>, Refusal>>,
}

impl Making {
    async fn run(mut self, wanted: Wanted, needed: Duration, urgency: Urgency) {
        let made = self.store.make(wanted, needed, &urgency).await;
        self.outcome = Some(made.map(Arc::new));
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        let outcome = self.outcome.take().unwrap_or_else(|| Err(lost()));
        let mut entries = self.store.entries();
        entries.making -= 1;
        entries.making_samples -= self.key.range.len();
        let entry = entries.by_key.get_mut(&self.key).filter(|entry| entry.number == self.number);
        match (entry, outcome) {
            (None, _) => {}
            (Some(entry), Ok(stored)) => {
                entry.pin = stored.region.lease();
                entry.state.send_replace(State::Ready(stored));
            }
            (Some(entry), Err(refusal)) => {
                self.store.failed.fetch_add(1, Ordering::Relaxed);
                entry.state.send_replace(State::Failed(refusal));
                // The next one who asks tries again.
                entries.by_key.remove(&self.key);
            }
        }
    }
}
