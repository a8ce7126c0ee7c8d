//! What is observed of a pipeline.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is observed of a pipeline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DataPipelineStatus {
    /// The generation of the spec that this speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Selects the workers; a HorizontalPodAutoscaler needs it.
    pub selector: String,
    /// Workers that exist.
    pub replicas: i32,
    /// Workers that are wanted.
    pub desired_replicas: i32,
    /// Workers that serve.
    pub ready_replicas: i32,
    /// The plan of each stream, by which batches are made.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub plan_digests: BTreeMap<String, String>,
    /// Samples in one epoch of each stream.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub samples_per_epoch: BTreeMap<String, i64>,
    /// Where workers run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementStatus>,
    /// What trainers report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaling: Option<ScalingStatus>,
    /// Ready, Progressing, Degraded, Suspended, SourceReady, PlanConsistent, UpToDate, ScalingActive, ScalingLimited,
    /// SpreadSatisfied.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Where workers run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlacementStatus {
    /// Nodes with workers.
    pub nodes: i32,
    /// Most workers on one node.
    pub max_per_node: i32,
    /// By how many workers the fullest and the emptiest usable node differ; absent where nodes cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skew: Option<i32>,
}

/// What trainers report, and what came of it. Only streams that train are counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScalingStatus {
    /// Why there are so many workers, in one word; in mode Internal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What kept the size from being another: Min, Max or Step; in mode Internal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limited_by: Option<String>,
    /// When another number of workers was wanted last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_scale_time: Option<Time>,
    /// How many were wanted before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous_replicas: Option<i32>,
    /// Ranks with a fresh report.
    pub reporting_ranks: i32,
    /// The largest share of its time that a rank waits, in thousandths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_permille: Option<i32>,
    /// The emptiest queue of a rank, in percent of what it wants in hand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_fill_percent: Option<i32>,
}
