//! Takes objects as the cluster stores them, gives what is shown of them.

use feedmill_protocol::report::{KeptReport, WorkerState, WorkerStatus, newest};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A list of objects.
#[derive(Debug, Deserialize)]
pub struct List {
    /// They.
    pub items: Vec<Value>,
}

/// What a cluster says of its pipelines.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Reading {
    /// Pipelines.
    pub pipelines: Vec<Pipeline>,
}

/// One pipeline.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Pipeline {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Whether it is well: True, False or Unknown.
    pub ready: String,
    /// Why.
    pub reason: String,
    /// The same, as a sentence.
    pub message: String,
    /// Whether something is wrong although workers may serve, as when a rollout does not get on.
    pub degraded: bool,
    /// Workers that serve.
    pub ready_workers: i64,
    /// Workers that are wanted.
    pub wanted_workers: i64,
    /// Nodes that they stand on.
    pub nodes: i64,
    /// Ranks that report.
    pub ranks: i64,
    /// The largest share of its time that a rank waits, in thousandths.
    pub wait_permille: Option<i64>,
    /// The emptiest queue, in percent.
    pub queue_fill_percent: Option<i64>,
    /// Workers; only where one pipeline was asked for.
    pub workers: Vec<Worker>,
    /// Reports of ranks, by run, stream and rank; only where one pipeline was asked for.
    pub reports: Vec<Rank>,
}

/// One worker.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Worker {
    /// Its pod.
    pub pod: String,
    /// Its node.
    pub node: String,
    /// Whether it speaks TLS.
    pub tls: bool,
    /// What it says of itself; None when it cannot be asked.
    pub status: Option<WorkerStatus>,
}

/// What a rank reported last.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rank {
    /// The training.
    pub run: String,
    /// The stream.
    pub stream: String,
    /// The rank.
    pub rank: u32,
    /// Of so many.
    pub size: u32,
    /// The share of its time that it waited, in thousandths.
    pub wait_permille: Option<u32>,
    /// Batches in hand.
    pub ready: u32,
    /// Batches it wants in hand.
    pub target: u32,
    /// Samples consumed by whole steps.
    pub consumed: u64,
    /// How old the report is.
    pub age_ms: u64,
}

fn text(value: &Value, pointer: &str) -> String {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn number(value: &Value, pointer: &str) -> Option<i64> {
    value.pointer(pointer).and_then(Value::as_i64)
}

impl Pipeline {
    /// A stored pipeline.
    pub fn read(object: &Value) -> Self {
        let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
        let of = |kind: &str| conditions.into_iter().flatten().find(|condition| condition["type"] == kind);
        let ready = of("Ready");
        let said = |field: &str| ready.map(|ready| text(ready, field)).unwrap_or_default();
        Self {
            namespace: text(object, "/metadata/namespace"),
            name: text(object, "/metadata/name"),
            ready: if ready.is_some() { said("/status") } else { "Unknown".into() },
            reason: if ready.is_some() { said("/reason") } else { "NotSeenYet".into() },
            message: said("/message"),
            degraded: of("Degraded").is_some_and(|condition| condition["status"] == "True"),
            ready_workers: number(object, "/status/readyReplicas").unwrap_or_default(),
            wanted_workers: number(object, "/status/desiredReplicas").unwrap_or_default(),
            nodes: number(object, "/status/placement/nodes").unwrap_or_default(),
            ranks: number(object, "/status/scaling/reportingRanks").unwrap_or_default(),
            wait_permille: number(object, "/status/scaling/waitPermille"),
            queue_fill_percent: number(object, "/status/scaling/queueFillPercent"),
            workers: Vec::new(),
            reports: Vec::new(),
        }
    }

    /// The same with its workers, and of each rank the newest report that any of them has of each stream.
    pub fn with_workers(mut self, workers: Vec<Worker>) -> Self {
        let reports =
            workers.iter().filter_map(|worker| worker.status.as_ref()).flat_map(|status| &status.reports);
        self.reports = newest(reports).into_values().map(Rank::of).collect();
        self.workers = workers;
        self
    }
}

impl Rank {
    fn of(kept: &KeptReport) -> Self {
        let report = &kept.report;
        Self {
            run: report.run.clone(),
            stream: report.stream.clone(),
            rank: report.rank,
            size: report.size,
            wait_permille: report.wait_permille(),
            ready: report.ready,
            target: report.target,
            consumed: report.consumed,
            age_ms: kept.age_ms,
        }
    }
}

impl Worker {
    /// A stored pod, which has not been asked yet; None of one that is going.
    pub fn read(object: &Value) -> Option<Self> {
        if object.pointer("/metadata/deletionTimestamp").is_some() {
            return None;
        }
        let probe = text(object, "/spec/containers/0/readinessProbe/httpGet/scheme");
        Some(Self {
            pod: text(object, "/metadata/name"),
            node: text(object, "/spec/nodeName"),
            tls: probe == "HTTPS",
            status: None,
        })
    }

    /// Where the API server passes a request for its status on to it.
    pub fn status_path(&self, namespace: &str) -> String {
        let scheme = if self.tls { "https:" } else { "" };
        let port = feedmill_protocol::http::DEFAULT_PORT;
        let path = feedmill_protocol::http::PATH_STATUS;
        format!("/api/v1/namespaces/{namespace}/pods/{scheme}{}:{port}/proxy{path}", self.pod)
    }

    /// What it is doing, in one word.
    pub fn state(&self) -> &'static str {
        match self.status.as_ref().map(|status| status.state) {
            None => "silent",
            Some(WorkerState::Starting) => "starting",
            Some(WorkerState::Ready) => "ready",
            Some(WorkerState::Draining) => "draining",
        }
    }
}
