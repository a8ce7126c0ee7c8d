//! Takes what one reader asks for and releases, gives what it holds: never more than its share.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use feedmill_arena::SlabLease;
use feedmill_protocol::local::{AskedBatch, BatchPlace, Say};
use feedmill_protocol::plan::PlanDigestError;
use feedmill_protocol::position::RangeError;
use tokio::sync::Notify;

use crate::agent::Agent;
use crate::agent::http::bad_request;
use crate::agent::store::{Held, Refusal, Wanted, full};

/// What a reader holds.
pub(super) struct Reader {
    pub(super) agent: Arc<Agent>,
    pub(super) run: String,
    leases: Mutex<Leases>,
    released: Notify,
}

#[derive(Default)]
struct Leases {
    open: HashMap<u64, SlabLease>,
    bytes: u64,
    next: u64,
    ended: bool,
}

impl Reader {
    pub(super) fn new(agent: Arc<Agent>, run: String) -> Self {
        Self { agent, run, leases: Mutex::default(), released: Notify::new() }
    }

    fn leases(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lends a batch, unless more than the reader's share is lent: one goes beyond it, so that a reader that keeps its
    /// share can copy the next one out.
    fn lend(&self, held: Held) -> Option<BatchPlace> {
        let bytes = held.lease.len() as u64;
        let mut leases = self.leases();
        if leases.ended || leases.bytes > self.agent.settings.share {
            return None;
        }
        let lease = leases.next;
        leases.next += 1;
        leases.bytes += bytes;
        // As many slabs as there are fit a u32: each has 64 MiB.
        let slab = u32::try_from(held.lease.slab()).unwrap_or(u32::MAX);
        let place = BatchPlace { lease, slab, offset: held.lease.offset() as u64, bytes };
        leases.open.insert(lease, held.lease);
        let lent = &self.agent.lent;
        lent.bytes.fetch_add(bytes, Ordering::Relaxed);
        lent.batches.fetch_add(1, Ordering::Relaxed);
        lent.total_bytes.fetch_add(bytes, Ordering::Relaxed);
        Some(place)
    }

    /// What a reader released that was lent to it.
    pub(super) fn release(&self, lease: u64) {
        let mut leases = self.leases();
        let Some(held) = leases.open.remove(&lease) else {
            return;
        };
        leases.bytes -= held.len() as u64;
        drop(leases);
        self.agent.lent.bytes.fetch_sub(held.len() as u64, Ordering::Relaxed);
        drop(held);
        self.released.notify_waiters();
    }

    /// The reader is gone: everything comes back, and nothing is lent any more.
    pub(super) fn end(&self) {
        let mut leases = self.leases();
        leases.ended = true;
        let (open, bytes) = (std::mem::take(&mut leases.open), std::mem::take(&mut leases.bytes));
        drop(leases);
        self.agent.lent.bytes.fetch_sub(bytes, Ordering::Relaxed);
        drop(open);
    }

    /// A batch, lent. While the reader holds too much, nothing is held for it.
    async fn batch(&self, wanted: &Wanted) -> Result<Lending, Refusal> {
        loop {
            let mut released = pin!(self.released.notified());
            // Registered before looking, so that a release in between is not missed.
            released.as_mut().enable();
            let held = self.agent.store.get(wanted).await?;
            let (plan, worker) = (held.plan.to_string(), held.worker.to_string());
            if let Some(place) = self.lend(held) {
                return Ok(Lending { place, plan, worker });
            }
            if tokio::time::timeout(self.agent.settings.release, released).await.is_err() {
                self.agent.lent.refused.fetch_add(1, Ordering::Relaxed);
                let (open, has) = {
                    let leases = self.leases();
                    (leases.open.len(), leases.bytes)
                };
                return Err(full(format!(
                    "this reader holds {has} bytes in {open} batches and released none within {:?}; \
                     its share is {} bytes",
                    self.agent.settings.release, self.agent.settings.share
                )));
            }
        }
    }
}

/// A batch that was lent.
struct Lending {
    place: BatchPlace,
    plan: String,
    worker: String,
}

/// The answer to an ask for a batch.
pub(super) async fn answer_batch(reader: &Reader, id: u64, asked: &AskedBatch) -> Result<Say, Refusal> {
    let wanted = Wanted {
        stream: asked.stream.clone(),
        range: asked.range.parse().map_err(|error: RangeError| bad_request(error.to_string()))?,
        stop: asked.stop,
        plan: asked
            .plan
            .as_deref()
            .map(str::parse)
            .transpose()
            .map_err(|error: PlanDigestError| bad_request(error.to_string()))?,
        need: Duration::from_millis(asked.need_ms),
        run: reader.run.clone(),
        rank: asked.rank,
        deaths: asked.deaths,
    };
    let Lending { place, plan, worker } = reader.batch(&wanted).await?;
    Ok(Say::Batch { id, place, plan, worker })
}
