//! Every metric of the worker, with its help text; `docs/metrics.md` is made from this file.
//!
//! Counting happens where things happen, in plain atomics; this file reads them when somebody asks.

use std::sync::atomic::{AtomicU64, Ordering};

use feedmill_protocol::report::WorkerState;
use feedmill_source::{LATENCY_BOUNDS, TransientKind};
use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{Encoder, TextEncoder};

use crate::app::App;

/// One family: name, type, label, help.
pub(crate) struct Family {
    pub(crate) name: &'static str,
    pub(crate) kind: MetricType,
    pub(crate) labels: &'static str,
    pub(crate) help: &'static str,
}

macro_rules! families {
    ($prefix:literal: $($constant:ident: $kind:ident $name:literal [$labels:literal] $help:literal;)*) => {
        $(const $constant: $crate::metrics::Family = $crate::metrics::Family {
            name: concat!($prefix, $name),
            kind: prometheus::proto::MetricType::$kind,
            labels: $labels,
            help: $help,
        };)*
        pub(crate) const FAMILIES: &[&$crate::metrics::Family] = &[$(&$constant,)*];
    };
}
pub(crate) use families;

families! {
    "feedmill_worker_":
    STATE: GAUGE "state" ["state"] "1 for the state the worker is in: starting, ready or draining.";
    CONNECTIONS: GAUGE "connections" [""] "Open connections.";
    BATCHES: COUNTER "batches_total" [""] "Batches handed to connections.";
    SAMPLES: COUNTER "samples_total" [""] "Samples handed to connections, filler rows included.";
    BYTES_OUT: COUNTER "sent_bytes_total" [""] "Bytes of batches handed to connections.";
    OVERDUE: COUNTER "overdue_leases_total" [""] "Answers cut because their reader was too slow.";
    TOKENS: GAUGE "tokens" [""] "Tokens that are admitted; 0 when none is asked for.";
    REFUSED: COUNTER "refused_requests_total" [""] "Requests that were refused for want of a token, or for the name they were sent to.";
    ACCESS_CHANGES: COUNTER "access_files_changed_total" [""] "Times that a changed token file or certificate came into use.";
    ACCESS_FAILURES: COUNTER "access_files_unusable_total" [""] "Times that a changed token file or certificate could not be used, and the one before stayed.";
    RANGES: GAUGE "ranges_waiting" [""] "Ranges asked for and not answered yet.";
    MAKING: GAUGE "samples_wanted" [""] "Samples that somebody waits for and that are not finished.";
    IN_FLIGHT: GAUGE "samples_in_flight" [""] "Samples between their first step and the arena.";
    READY: GAUGE "samples_ready" [""] "Finished samples that are remembered.";
    CPU_THREADS: GAUGE "cpu_threads" [""] "Threads for CPU work.";
    CPU_PENDING: GAUGE "cpu_jobs_pending" [""] "Jobs waiting for a thread.";
    CPU_RUNNING: GAUGE "cpu_jobs_running" [""] "Jobs running now.";
    CPU_BUSY: COUNTER "cpu_busy_seconds_total" [""] "Time that threads have worked.";
    STAGE_BUSY: COUNTER "stage_busy_seconds_total" ["stage"] "CPU time by stage: record, size, fill, hash.";
    STAGE_RUNS: COUNTER "stage_runs_total" ["stage"] "Runs by stage.";
    BUDGET_CAPACITY: GAUGE "budget_bytes" ["budget"] "Size of a byte budget: arena, fetch, decode.";
    BUDGET_USED: GAUGE "budget_used_bytes" ["budget"] "Bytes in use of a budget.";
    BUDGET_WAITING: GAUGE "budget_waiting_bytes" ["budget"] "Bytes that work waits for, the queue before a budget.";
    ARENA: GAUGE "arena_bytes" ["state"] "Shared memory by state of its regions: empty, filling, ready, leased.";
    EVICTIONS: COUNTER "arena_evictions_total" [""] "Finished samples given up for more urgent ones.";
    REVOCATIONS: COUNTER "arena_revocations_total" [""] "Reservations taken back for more urgent ones.";
    GETS: COUNTER "fetched_objects_total" [""] "Objects and parts of them fetched.";
    BYTES_IN: COUNTER "fetched_bytes_total" [""] "Bytes fetched.";
    GETS_WAITING: GAUGE "fetches_waiting" [""] "Requests to storage waiting for a place.";
    GETS_IN_FLIGHT: GAUGE "fetches_in_flight" [""] "Requests to storage in flight.";
    THROTTLE: GAUGE "fetch_limit" [""] "Requests to S3 allowed in flight now; falls when it throttles.";
    RETRIES: COUNTER "fetch_failed_attempts_total" ["kind"] "Attempts that failed for now, by kind.";
    MISSING: COUNTER "fetch_missing_total" [""] "Objects that do not exist.";
    DENIED: COUNTER "fetch_denied_total" [""] "Requests that storage refused.";
    LATENCY: HISTOGRAM "fetch_seconds" [""] "Time of successful requests to storage.";
    CHILDREN: COUNTER "suspect_children_total" [""] "Child processes started for pictures that may kill whoever decodes them.";
    LETHAL: GAUGE "lethal_records" [""] "Records known to kill the process that makes them; their ranges are refused.";
    BAD: COUNTER "bad_records_total" ["dataset, class"] "Bad records met, each time, by data set and class.";
}

pub(crate) fn label(name: &str, value: &str) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.into());
    pair.set_value(value.into());
    pair
}

/// The metrics as Prometheus reads them.
#[must_use]
pub fn text(app: &App) -> Vec<u8> {
    gathered(app).text()
}

#[derive(Default)]
pub(crate) struct Gatherer(Vec<MetricFamily>);

impl Gatherer {
    /// The metrics as Prometheus reads them.
    pub(crate) fn text(&self) -> Vec<u8> {
        let mut out = Vec::new();
        // Writing to memory fails only for families without metrics, which are left out.
        drop(TextEncoder::new().encode(&self.0, &mut out));
        out
    }

    pub(crate) fn put(&mut self, family: &Family, values: impl IntoIterator<Item = (Vec<LabelPair>, f64)>) {
        let metrics: Vec<Metric> = values
            .into_iter()
            .map(|(labels, value)| {
                let mut metric = Metric::default();
                metric.set_label(labels);
                if family.kind == MetricType::COUNTER {
                    let mut counter = Counter::default();
                    counter.set_value(value);
                    metric.set_counter(counter);
                } else {
                    let mut gauge = Gauge::default();
                    gauge.set_value(value);
                    metric.set_gauge(gauge);
                }
                metric
            })
            .collect();
        self.put_metrics(family, metrics);
    }

    fn put_metrics(&mut self, family: &Family, metrics: Vec<Metric>) {
        if metrics.is_empty() {
            return;
        }
        let mut proto = MetricFamily::default();
        proto.set_name(family.name.into());
        proto.set_help(family.help.into());
        proto.set_field_type(family.kind);
        proto.set_metric(metrics);
        self.0.push(proto);
    }

    pub(crate) fn one(&mut self, family: &Family, value: f64) {
        self.put(family, [(Vec::new(), value)]);
    }
}

fn gathered(app: &App) -> Gatherer {
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
    let mut out = Gatherer(Vec::new());
    let state = match app.state() {
        WorkerState::Starting => "starting",
        WorkerState::Ready => "ready",
        WorkerState::Draining => "draining",
    };
    let states = ["starting", "ready", "draining"];
    out.put(&STATE, states.map(|name| (vec![label("state", name)], f64::from(name == state))));
    out.one(&CONNECTIONS, count(&app.served.connections));
    out.one(&BATCHES, count(&app.served.batches));
    out.one(&SAMPLES, count(&app.served.samples));
    out.one(&BYTES_OUT, count(&app.served.bytes));
    out.one(&OVERDUE, count(&app.served.overdue));
    let access = app.guard.stats();
    out.one(&TOKENS, access.tokens as f64);
    out.one(&REFUSED, access.denied as f64);
    out.one(&ACCESS_CHANGES, access.changes as f64);
    out.one(&ACCESS_FAILURES, access.failures as f64);
    let pool = &app.machinery.pool;
    out.one(&CPU_THREADS, pool.threads() as f64);
    out.one(&CPU_PENDING, pool.pending() as f64);
    out.one(&CPU_RUNNING, pool.running() as f64);
    out.one(&CPU_BUSY, pool.busy_nanoseconds() as f64 / 1e9);
    budgets(app, &mut out);
    fetching(app, &mut out);
    if let Some(loaded) = app.loaded.get() {
        let engine = loaded.engine.stats();
        out.one(&RANGES, engine.ranges as f64);
        out.one(&MAKING, engine.making as f64);
        out.one(&IN_FLIGHT, engine.in_flight as f64);
        out.one(&READY, engine.ready as f64);
        let maker = loaded.engine.maker();
        let stages = maker.stages.all().map(|(name, stage)| (vec![label("stage", name)], stage.read()));
        out.put(&STAGE_BUSY, stages.clone().map(|(labels, (seconds, _))| (labels, seconds)));
        out.put(&STAGE_RUNS, stages.map(|(labels, (_, runs))| (labels, runs as f64)));
        let bad = maker.bad.counts().into_iter().map(|((dataset, class), times)| {
            (vec![label("dataset", &dataset), label("class", class.name())], times as f64)
        });
        out.one(&CHILDREN, count(&maker.suspects.children));
        out.one(&LETHAL, maker.suspects.lethal() as f64);
        out.put(&BAD, bad);
    }
    out
}

fn budgets(app: &App, out: &mut Gatherer) {
    let arena = app.machinery.arena.stats();
    let (fetch, decode) = (app.machinery.fetch.stats(), app.machinery.decode.stats());
    let rows = [
        ("arena", arena.capacity, arena.committed, arena.waiting_bytes),
        ("fetch", fetch.capacity, fetch.used, fetch.waiting_bytes),
        ("decode", decode.capacity, decode.used, decode.waiting_bytes),
    ];
    let by = |name: &str| vec![label("budget", name)];
    out.put(&BUDGET_CAPACITY, rows.map(|(name, capacity, _, _)| (by(name), capacity as f64)));
    out.put(&BUDGET_USED, rows.map(|(name, _, used, _)| (by(name), used as f64)));
    out.put(&BUDGET_WAITING, rows.map(|(name, _, _, waiting)| (by(name), waiting as f64)));
    let states = [
        ("empty", arena.empty),
        ("filling", arena.filling),
        ("ready", arena.ready),
        ("leased", arena.leased),
    ];
    out.put(&ARENA, states.map(|(name, bytes)| (vec![label("state", name)], bytes as f64)));
    out.one(&EVICTIONS, arena.evictions as f64);
    out.one(&REVOCATIONS, arena.revocations as f64);
}

fn fetching(app: &App, out: &mut Gatherer) {
    let stats = app.machinery.stores.stats();
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
    out.one(&GETS, count(&stats.gets));
    out.one(&BYTES_IN, count(&stats.bytes));
    out.one(&GETS_WAITING, count(&stats.waiting));
    out.one(&GETS_IN_FLIGHT, count(&stats.in_flight));
    out.one(&THROTTLE, count(&stats.throttle_limit));
    let kinds = TransientKind::ALL.map(|kind| (vec![label("kind", kind.label())], stats.failed(kind) as f64));
    out.put(&RETRIES, kinds);
    out.one(&MISSING, count(&stats.missing));
    out.one(&DENIED, count(&stats.denied));
    let mut histogram = Histogram::default();
    let mut total = 0;
    let mut buckets = Vec::new();
    let bounds = LATENCY_BOUNDS.iter().copied().chain([f64::INFINITY]);
    for (bound, bucket) in bounds.zip(&stats.latency_buckets) {
        total += bucket.load(Ordering::Relaxed);
        let mut row = Bucket::default();
        row.set_cumulative_count(total);
        row.set_upper_bound(bound);
        buckets.push(row);
    }
    histogram.set_bucket(buckets);
    histogram.set_sample_count(total);
    histogram.set_sample_sum(count(&stats.latency_micros) / 1e6);
    let mut metric = Metric::default();
    metric.set_histogram(histogram);
    out.put_metrics(&LATENCY, vec![metric]);
}

/// The page that documents the metrics.
#[must_use]
pub fn document() -> String {
    let mut page = String::from(
        "# Metrics of a worker\n\nServed at `/metrics`. This page is made from `worker/src/metrics.rs`; \
         `make docs` writes it anew.\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n",
    );
    page += &table(FAMILIES);
    page += "\n# Metrics of an agent\n\nOf `feedmill-worker agent`, at its `/metrics`.\n\n\
             | metric | type | labels | meaning |\n|---|---|---|---|\n";
    page += &table(crate::agent::METRICS);
    page
}

fn table(families: &[&Family]) -> String {
    let mut page = String::new();
    for family in families {
        let kind = match family.kind {
            MetricType::COUNTER => "counter",
            MetricType::HISTOGRAM => "histogram",
            _ => "gauge",
        };
        page += &format!("| `{}` | {kind} | {} | {} |\n", family.name, family.labels, family.help);
    }
    page
}
