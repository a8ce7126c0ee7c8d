//! Who decides how many workers there are.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::MAX_WORKERS;

/// Who decides how many workers there are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AutoscalingSpec {
    /// Manual: `replicas`, whatever the bounds are. External: `replicas`, written by another scaler, within the bounds. Internal: the operator, from what trainers
    /// report; `replicas` is then only the first size.
    #[serde(default)]
    pub mode: AutoscalingMode,
    /// Fewest workers; at least 1 in mode Internal, because trainers report to workers.
    #[serde(default = "super::one")]
    #[schemars(range(min = 0, max = MAX_WORKERS))]
    pub min_replicas: i32,
    /// Most workers.
    #[schemars(range(min = 1, max = MAX_WORKERS))]
    pub max_replicas: i32,
    /// What mode Internal listens to; absent: to what ranks report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<SignalSpec>,
    /// What mode Internal aims at.
    #[serde(default)]
    pub target: TargetSpec,
    /// When reports count in mode Internal, and what happens when they are lost.
    #[serde(default)]
    pub reports: ReportsSpec,
    /// In mode Internal a fleet from which nobody has read for so long, in seconds, becomes as small as it may.
    #[serde(default = "half_an_hour")]
    #[schemars(range(min = 60, max = 604_800))]
    pub idle_after_seconds: i32,
}

/// What mode Internal listens to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SignalSpec {
    /// The name of a Prometheus server that the operator was given with its queries; they count instead of reports.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[-a-z0-9]+$"))]
    pub prometheus: String,
}

/// What mode Internal aims at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TargetSpec {
    /// A rank that waits for a larger share of its time is hungry, in percent.
    #[schemars(range(min = 1, max = 50))]
    pub max_wait_percent: i32,
    /// Unless its queue is at least so full, in percent.
    #[schemars(range(min = 1, max = 100))]
    pub queue_fill_percent: i32,
    /// The share of its capacity that a worker is planned to work at, in percent.
    #[schemars(range(min = 10, max = 100))]
    pub utilization_percent: i32,
}

impl Default for TargetSpec {
    fn default() -> Self {
        Self { max_wait_percent: 2, queue_fill_percent: 50, utilization_percent: 80 }
    }
}

/// When reports count in mode Internal, and what happens when they are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ReportsSpec {
    /// Reports older than this, and than three steps, do not count, in seconds.
    #[schemars(range(min = 5, max = 3600))]
    pub stale_after_seconds: i32,
    /// The share of a run's ranks that must report, in percent.
    #[schemars(range(min = 1, max = 100))]
    pub min_ranks_percent: i32,
    /// So many windows of 10 s without reports until the fallback counts.
    #[schemars(range(min = 1, max = 8640))]
    pub failure_threshold: i32,
    /// The size without reports.
    pub fallback: FallbackSpec,
}

impl Default for ReportsSpec {
    fn default() -> Self {
        Self {
            stale_after_seconds: 15,
            min_ranks_percent: 80,
            failure_threshold: 12,
            fallback: FallbackSpec::default(),
        }
    }
}

/// The size without reports. None of these makes a fleet smaller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FallbackSpec {
    /// What is kept.
    pub behavior: FallbackBehavior,
    /// At least so many, with CurrentReplicasIfHigher; absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MAX_WORKERS))]
    pub replicas: Option<i32>,
}

/// The size without reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FallbackBehavior {
    /// As it is.
    #[default]
    CurrentReplicas,
    /// As it is, and at least `replicas`.
    CurrentReplicasIfHigher,
}

/// Who decides how many workers there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AutoscalingMode {
    /// People. Not `Off`, which YAML without quotes reads as false.
    #[default]
    Manual,
    /// Another scaler, through the scale subresource.
    External,
    /// The operator.
    Internal,
}

fn half_an_hour() -> i32 {
    1800
}
