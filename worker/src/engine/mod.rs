//! Takes ranges with a need, gives their samples, leased.
//!
//! ```text
//!  range ─► table: one slot a sample, shared by ranges ─► place in flight ─► maker ─► Ready ─► lease all
//!                       ▲ order of need: key = when it is needed, + what the asker has too much
//! ```
//!
//! A range registers with the table; each of its samples has one slot, however many ranges want it, and
//! its urgency is that of the most urgent of them. The first range of all is the head: it draws on the
//! reserve of every budget, so it always goes on. What nobody waits for is dropped.

/// A finished sample and its leases.
pub mod sample;
/// Who waits for what, in the order of need.
mod table;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use feedmill_arena::{Budget, Permit, Urgency};
use tokio::sync::Notify;

use sample::{LeasedSample, Sample, SampleBytes};
use table::{RangeKey, Table};

/// A sample of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SampleKey {
    /// Index of the stream.
    pub stream: usize,
    /// Position.
    pub position: u64,
}

/// Makes one sample; what the engine schedules. Errors are final for now: the next range that asks
/// for the position tries again.
pub trait Maker: Send + Sync + 'static {
    /// Why a sample cannot be had.
    type Error: Clone + Send + Sync + std::fmt::Debug + 'static;

    /// Makes the sample at a position. Everything it waits for, it waits for with `urgency`.
    fn make(
        &self,
        key: SampleKey,
        urgency: &Urgency,
    ) -> impl Future<Output = Result<Sample, Self::Error>> + Send;

    /// What is told when making ended without a result: a fault of ours, which must not leave anybody
    /// waiting.
    fn lost(&self) -> Self::Error;
}

/// How much the engine takes on.
#[derive(Clone, Copy, Debug)]
pub struct EngineSettings {
    /// Samples being made at once, the head's apart.
    pub in_flight: u64,
    /// Ranges waiting at once; more are refused.
    pub max_ranges: usize,
    /// Threads that make samples, for estimates of how long work takes.
    pub threads: usize,
    /// Most bytes of one range; at most a quarter of the arena, so that ranges never starve each other.
    pub max_range_bytes: u64,
}

/// Finished samples that nobody waits for are remembered up to this number; their bytes go earlier
/// when the arena needs the room. Text-only samples are small, so bytes alone would not bound them.
const MAX_REMEMBERED: usize = 16_384;

/// Most samples of one range.
const HEAD_RESERVE: u64 = 4096;

/// The order and the cache of all samples of a worker.
pub struct Engine<M: Maker> {
    inner: Arc<Inner<M>>,
}

impl<M: Maker> Clone for Engine<M> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

struct Inner<M: Maker> {
    maker: M,
    places: Arc<Budget>,
    table: Mutex<Table<M::Error>>,
    max_ranges: usize,
    max_range_bytes: u64,
    threads: usize,
    begun: Instant,
}

/// Why a range cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError<E> {
    /// Too many ranges wait already.
    #[error("{0} ranges are waiting here already")]
    Full(usize),
    /// The samples have more bytes than a range may have.
    #[error(
        "the range has {bytes} bytes; this worker serves at most {limit}, a quarter of its shared memory"
    )]
    TooLarge {
        /// Bytes of the range.
        bytes: u64,
        /// Bytes it may have.
        limit: u64,
    },
    /// A sample cannot be made.
    #[error("position {position}: {error:?}")]
    Sample {
        /// Which.
        position: u64,
        /// Why.
        error: E,
    },
}

/// What the engine has in hand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Ranges that wait.
    pub ranges: usize,
    /// Samples wanted and not finished.
    pub making: u64,
    /// Samples finished and remembered.
    pub ready: u64,
    /// Samples in flight.
    pub in_flight: u64,
}

/// One sample: being made, ready, or failed.
pub(crate) struct Slot<E> {
    key: SampleKey,
    urgency: Urgency,
    state: Mutex<SlotState<E>>,
    changed: Notify,
}

#[derive(Clone)]
enum SlotState<E> {
    Making,
    Ready(Arc<Sample>),
    Failed(E),
}

impl<E: Clone> Slot<E> {
    fn new(key: SampleKey) -> Self {
        let urgency = Urgency::new(Urgency::IDLE);
        Self { key, urgency, state: Mutex::new(SlotState::Making), changed: Notify::new() }
    }

    fn state(&self) -> SlotState<E> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn settle(&self, state: SlotState<E>) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
        self.changed.notify_waiters();
    }

    async fn done(&self) -> Result<Arc<Sample>, E> {
        loop {
            let mut changed = Pin::from(Box::new(self.changed.notified()));
            // Registered before looking, so that a change in between is not missed.
            changed.as_mut().enable();
            match self.state() {
                SlotState::Making => changed.await,
                SlotState::Ready(sample) => return Ok(sample),
                SlotState::Failed(error) => return Err(error),
            }
        }
    }

    /// Whether it is of no use: failed, or its bytes evicted.
    fn spent(&self) -> bool {
        match self.state() {
            SlotState::Making => false,
            SlotState::Failed(_) => true,
            SlotState::Ready(sample) => {
                matches!(&sample.bytes, SampleBytes::Region(region) if region.is_void())
            }
        }
    }
}

/// Settles a slot as lost when its task ends without having settled it, by a panic.
struct Settling<'a, E: Clone> {
    slot: &'a Slot<E>,
    lost: Option<E>,
}

impl<E: Clone> Drop for Settling<'_, E> {
    fn drop(&mut self) {
        if let Some(error) = self.lost.take() {
            self.slot.settle(SlotState::Failed(error));
        }
    }
}

impl<M: Maker> Engine<M> {
    /// An engine over a maker.
    ///
    /// # Panics
    /// Never: the reserve is part of the capacity by construction.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the engine's one clock: keys are ages since its start")]
    pub fn new(maker: M, settings: EngineSettings) -> Self {
        let capacity = settings.in_flight.max(1) + HEAD_RESERVE;
        let places = Budget::new("samples in flight", capacity, HEAD_RESERVE)
            .expect("the reserve is smaller than the capacity");
        let inner = Inner {
            maker,
            places,
            table: Mutex::new(Table::new(MAX_REMEMBERED)),
            max_ranges: settings.max_ranges,
            max_range_bytes: settings.max_range_bytes,
            threads: settings.threads.max(1),
            begun: Instant::now(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The samples at `positions`, which are needed in `need`, for the job named `job`. Dropping the
    /// future takes the request back.
    ///
    /// # Errors
    /// Too much is waiting, or one of the samples cannot be made.
    pub async fn range(
        &self,
        stream: usize,
        positions: impl Iterator<Item = u64>,
        need: Duration,
        job: &str,
    ) -> Result<Vec<LeasedSample>, EngineError<M::Error>> {
        let keys: Vec<SampleKey> = positions.map(|position| SampleKey { stream, position }).collect();
        let mut ticket = self.enter(&keys, need, job)?;
        loop {
            let mut bytes = 0;
            for slot in &ticket.slots {
                match slot.done().await {
                    Ok(sample) => bytes += sample.meta.shape.region_len() as u64,
                    Err(error) => {
                        return Err(EngineError::Sample { position: slot.key.position, error });
                    }
                }
            }
            if bytes > self.inner.max_range_bytes {
                return Err(EngineError::TooLarge { bytes, limit: self.inner.max_range_bytes });
            }
            // Leased all at once or not at all: nothing is held while waiting for something else.
            let mut leases = Vec::with_capacity(ticket.slots.len());
            for slot in &ticket.slots {
                if let SlotState::Ready(sample) = slot.state()
                    && let Some(lease) = sample.lease()
                {
                    leases.push(lease);
                } else {
                    break;
                }
            }
            if leases.len() == ticket.slots.len() {
                return Ok(leases);
            }
            drop(leases);
            self.renew(&mut ticket);
        }
    }

    /// What is in hand now.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        let (ranges, making, ready) = self.inner.lock().counts();
        EngineStats { ranges, making, ready, in_flight: self.inner.places.stats().used }
    }

    /// The maker.
    #[must_use]
    pub fn maker(&self) -> &M {
        &self.inner.maker
    }

    #[expect(clippy::disallowed_methods, reason = "the engine's one clock: keys are ages since its start")]
    fn enter(
        &self,
        keys: &[SampleKey],
        need: Duration,
        job: &str,
    ) -> Result<Ticket<M>, EngineError<M::Error>> {
        let now = Instant::now().duration_since(self.inner.begun);
        let mut table = self.inner.lock();
        if table.ranges() >= self.inner.max_ranges {
            return Err(EngineError::Full(table.ranges()));
        }
        let key = table.key(now, need, job, keys.len() as u64, self.inner.threads);
        let (slots, new) = table.enter(key, job, keys);
        for slot in new {
            self.spawn(&mut table, slot);
        }
        drop(table);
        Ok(Ticket { engine: self.clone(), key, job: job.to_owned(), slots })
    }

    /// Slots whose bytes were evicted before the range was whole are made again.
    fn renew(&self, ticket: &mut Ticket<M>) {
        let mut table = self.inner.lock();
        for slot in &mut ticket.slots {
            let (current, new) = table.renew(slot);
            if new {
                self.spawn(&mut table, Arc::clone(&current));
            }
            *slot = current;
        }
    }

    fn spawn(&self, table: &mut Table<M::Error>, slot: Arc<Slot<M::Error>>) {
        let inner = Arc::clone(&self.inner);
        let making = Arc::clone(&slot);
        let task = tokio::spawn(async move {
            // Asking for less than the capacity cannot fail.
            let _place: Option<Permit> = inner.places.acquire(1, &making.urgency).await.ok();
            #[expect(
                clippy::disallowed_methods,
                reason = "how long making takes feeds the estimate of work ahead"
            )]
            let begun = Instant::now();
            let mut settling = Settling { slot: &making, lost: Some(inner.maker.lost()) };
            let state = match inner.maker.make(making.key, &making.urgency).await {
                Ok(sample) => SlotState::Ready(Arc::new(sample)),
                Err(error) => SlotState::Failed(error),
            };
            // Counted before anybody is told: whoever is told may take its range out at once.
            inner.lock().finished(&making, begun.elapsed());
            settling.lost = None;
            making.settle(state);
        });
        table.set_task(slot.key, task.abort_handle());
    }
}

impl<M: Maker> Inner<M> {
    fn lock(&self) -> MutexGuard<'_, Table<M::Error>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A range's place in the table; dropping it takes the range out.
struct Ticket<M: Maker> {
    engine: Engine<M>,
    key: RangeKey,
    job: String,
    slots: Vec<Arc<Slot<M::Error>>>,
}

impl<M: Maker> Drop for Ticket<M> {
    fn drop(&mut self) {
        let dropped = self.engine.inner.lock().leave(self.key, &self.job);
        // Samples may free regions when they go, so they go without the table's lock.
        drop(dropped);
    }
}

#[cfg(test)]
mod tests;
