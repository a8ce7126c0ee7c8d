//! Every metric of an agent, with its help text; `docs/metrics.md` has them too.

use std::sync::atomic::{AtomicU64, Ordering};

use feedmill_protocol::report::WorkerState;

use super::Agent;
use crate::metrics::{Gatherer, families, label};

families! {
    "feedmill_agent_":
    STATE: GAUGE "state" ["state"] "1 for the state the agent is in: starting, ready or draining.";
    UPSTREAM: GAUGE "upstream_workers" ["state"] "Workers behind: all that were named, and those that are ready.";
    CORES: GAUGE "upstream_cpu_threads" [""] "Threads for CPU work of the ready workers behind.";
    CONNECTIONS: GAUGE "connections" [""] "Open HTTP connections.";
    READERS: GAUGE "readers" [""] "Processes of this node that are connected to the socket.";
    FETCHED: COUNTER "fetched_batches_total" [""] "Batches fetched from workers.";
    FETCHED_BYTES: COUNTER "fetched_bytes_total" [""] "Bytes of batches fetched from workers.";
    SHARED: COUNTER "shared_batches_total" [""] "Asks that were answered by another one's transfer.";
    FAILED: COUNTER "failed_batches_total" [""] "Ranges that no worker gave.";
    MAKING: GAUGE "batches_in_flight" [""] "Ranges between the first ask and shared memory.";
    READY: GAUGE "batches_ready" [""] "Ranges in shared memory.";
    LENT: COUNTER "lent_batches_total" [""] "Batches lent to processes of this node.";
    LENT_BYTES: COUNTER "lent_bytes_total" [""] "Bytes of batches lent to processes of this node.";
    REFUSED: COUNTER "refused_shares_total" [""] "Batches refused to readers that held their share and released nothing.";
    SERVED: COUNTER "sent_batches_total" [""] "Batches sent over HTTP.";
    SERVED_BYTES: COUNTER "sent_bytes_total" [""] "Bytes of batches sent over HTTP.";
    OVERDUE: COUNTER "overdue_leases_total" [""] "Answers over HTTP cut because their reader was too slow.";
    MEMORY: GAUGE "memory_bytes" ["state"] "Shared memory: capacity, made (slabs that exist), and in them filling, idle, leased.";
    HELD: GAUGE "held_bytes" ["by"] "Bytes that readers and answers over HTTP hold; a batch held by several counts for each.";
    EVICTIONS: COUNTER "evictions_total" [""] "Batches given up for others.";
    WAITING: GAUGE "batches_waiting_for_memory" ["memory"] "Batches that wait for a place: on the way (fetch), in a slab (slab).";
}

/// The metrics as Prometheus reads them.
pub(super) async fn text(agent: &Agent) -> Vec<u8> {
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
    let mut out = Gatherer::default();
    let state = match agent.state() {
        WorkerState::Starting => "starting",
        WorkerState::Ready => "ready",
        WorkerState::Draining => "draining",
    };
    let states = ["starting", "ready", "draining"];
    out.put(&STATE, states.map(|name| (vec![label("state", name)], f64::from(name == state))));
    let facts = agent.store.upstream().facts().await;
    let named = agent.store.upstream().workers().len() as f64;
    let workers = [("named", named), ("ready", f64::from(facts.ready))];
    out.put(&UPSTREAM, workers.map(|(name, value)| (vec![label("state", name)], value)));
    out.one(&CORES, f64::from(facts.cores));
    out.one(&CONNECTIONS, count(&agent.served.connections));
    out.one(&READERS, f64::from(agent.lent.readers.load(Ordering::Relaxed)));
    let counts = agent.store.counts();
    out.one(&FETCHED, counts.fetched as f64);
    out.one(&FETCHED_BYTES, counts.fetched_bytes as f64);
    out.one(&SHARED, counts.shared as f64);
    out.one(&FAILED, counts.failed as f64);
    out.one(&MAKING, counts.making as f64);
    out.one(&READY, counts.ready as f64);
    out.one(&LENT, count(&agent.lent.batches));
    out.one(&LENT_BYTES, count(&agent.lent.total_bytes));
    out.one(&REFUSED, count(&agent.lent.refused));
    out.one(&SERVED, count(&agent.served.batches));
    out.one(&SERVED_BYTES, count(&agent.served.bytes));
    out.one(&OVERDUE, count(&agent.served.overdue));
    let slabs = agent.store.slabs().stats();
    let memory = [
        ("capacity", slabs.capacity),
        ("made", slabs.made),
        ("filling", slabs.filling),
        ("idle", slabs.idle),
        ("leased", slabs.leased),
    ];
    out.put(&MEMORY, memory.map(|(name, bytes)| (vec![label("state", name)], bytes as f64)));
    let held = [("readers", count(&agent.lent.bytes)), ("http", agent.answers.stats().used as f64)];
    out.put(&HELD, held.map(|(name, bytes)| (vec![label("by", name)], bytes)));
    out.one(&EVICTIONS, slabs.evictions as f64);
    let waiting = [("fetch", agent.store.fetch_budget().stats().waiting), ("slab", slabs.waiting)];
    out.put(&WAITING, waiting.map(|(name, number)| (vec![label("memory", name)], number as f64)));
    out.text()
}
