//! The resource as the cluster stores it.
//!
//! What workers read as well has the types of `feedmill_protocol::pipeline`, so that one document means the same on one machine
//! and in a cluster; what only a cluster reads is written here. A field stands here only when code reads it.
#![expect(clippy::duplicated_attributes, reason = "each column of kubectl has a type of its own")]

/// Who decides how many workers there are.
mod autoscaling;
/// On which nodes workers run.
mod placement;
/// The schema of a template that is merged.
mod pod_template;
/// What is observed of a pipeline.
mod status;

use std::collections::BTreeMap;

use feedmill_protocol::pipeline::spec::{
    CacheSpec, LimitsSpec, ProcessorSpec, S3Spec, ServingSpec, StreamSpec,
};
use k8s_openapi::api::core::v1::{EnvVar, ResourceRequirements};
use k8s_openapi::api::networking::v1::NetworkPolicyPeer;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use autoscaling::{
    AutoscalingMode, AutoscalingSpec, FallbackBehavior, FallbackSpec, ReportsSpec, SignalSpec, TargetSpec,
};
pub use placement::{GpuNodes, PlacementSpec, SpreadMode, SpreadSpec, WhenUnsatisfiable};
pub use status::{DataPipelineStatus, PlacementStatus, ScalingStatus};

/// Most workers of a pipeline.
pub const MAX_WORKERS: i32 = 10_000;

/// A share of workers.
const PERCENT: &str = "^([0-9]|[1-9][0-9]|100)%$";

/// A fleet of workers that reads training data and serves exact batches of it.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "feedmill.dev",
    version = "v1alpha1",
    kind = "DataPipeline",
    plural = "datapipelines",
    shortname = "dpl",
    category = "all",
    category = "ml",
    namespaced,
    status = "DataPipelineStatus",
    derive = "PartialEq",
    doc = "A fleet of workers that reads training data and serves exact batches of it.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason"
    ),
    printcolumn(
        name = "Degraded",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Degraded\")].status"
    ),
    printcolumn(name = "Workers", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(name = "Wanted", type_ = "integer", json_path = ".status.desiredReplicas"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.placement.nodes"),
    printcolumn(
        name = "Ranks",
        type_ = "integer",
        json_path = ".status.scaling.reportingRanks",
        priority = 1
    ),
    printcolumn(
        name = "Wait-Permille",
        type_ = "integer",
        json_path = ".status.scaling.waitPermille",
        priority = 1
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct DataPipelineSpec {
    /// No workers; everything else is kept. In mode Internal a fleet that is resumed begins with as many as it had, or with `replicas` where
    /// that is more. Streams, processor and limits may change only while this is true.
    #[serde(default)]
    pub suspend: bool,
    /// How many workers; `kubectl scale` and a HorizontalPodAutoscaler write it too.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = MAX_WORKERS))]
    pub replicas: i32,
    /// Where `s3://` addresses lead.
    #[serde(default)]
    pub s3: S3Spec,
    /// The streams that trainers read; usually one named `train`.
    #[schemars(length(min = 1, max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub streams: Vec<StreamSpec>,
    /// The model's processor.
    pub processor: ProcessorSpec,
    /// What makes a record bad. Part of the plan.
    #[serde(default)]
    pub limits: LimitsSpec,
    /// Memory and disk of each worker. Not part of the plan.
    #[serde(default)]
    pub cache: CacheSpec,
    /// How batches are served. Not part of the plan.
    #[serde(default)]
    pub serving: ServingSpec,
    /// Who decides how many workers there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<AutoscalingSpec>,
    /// On which nodes workers run.
    #[serde(default)]
    pub placement: PlacementSpec,
    /// How workers are replaced by newer ones. Absent: 25 % more at a time; with OnePerNode one fewer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<UpdateStrategySpec>,
    /// How many workers may be gone by decision, such as a drained node.
    #[serde(default)]
    pub disruption_budget: DisruptionBudgetSpec,
    /// How long a worker that is told to stop goes on with what it was asked for, in seconds.
    #[serde(default = "sixty")]
    #[schemars(range(min = 1, max = 3600))]
    pub drain_seconds: i32,
    /// Who may connect to workers.
    #[serde(default)]
    pub network_policy: NetworkPolicySpec,
    /// What workers are made of.
    #[serde(default)]
    pub worker: WorkerSpec,
    /// For what has no field here: merged over the template of workers' pods as Kubernetes merges patches, lists of containers, volumes
    /// and variables by their names. What the operator must decide itself is refused.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schemars(schema_with = "pod_template::schema")]
    pub pod_template: Map<String, Value>,
}

/// How workers are replaced by newer ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpdateStrategySpec {
    /// How many more than wanted, a number or percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = PERCENT, "minimum" = 0, "maximum" = MAX_WORKERS))]
    pub max_surge: Option<IntOrString>,
    /// How many fewer than wanted, a number or percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = PERCENT, "minimum" = 0, "maximum" = MAX_WORKERS))]
    pub max_unavailable: Option<IntOrString>,
}

/// How many workers may be gone by decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DisruptionBudgetSpec {
    /// A number or percent.
    #[schemars(extend("pattern" = PERCENT, "minimum" = 0, "maximum" = MAX_WORKERS))]
    pub max_unavailable: IntOrString,
}

impl Default for DisruptionBudgetSpec {
    fn default() -> Self {
        Self { max_unavailable: IntOrString::String("10%".into()) }
    }
}

/// Who may connect to workers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkPolicySpec {
    /// Whether anybody is kept out at all.
    pub enabled: bool,
    /// Who reads batches; empty: every pod of the namespace. The operator is always admitted.
    #[schemars(length(max = 32))]
    pub trainers: Vec<NetworkPolicyPeer>,
}

/// What workers are made of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkerSpec {
    /// Image; absent: the one that the operator was installed with.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512), regex(pattern = "^[^\\s]+$"))]
    pub image: Option<String>,
    /// When it is pulled; absent: as Kubernetes decides by the tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<PullPolicy>,
    /// Secrets for the registry.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub image_pull_secrets: Vec<feedmill_protocol::pipeline::spec::SecretRef>,
    /// An account that exists; absent: one is made for the pipeline.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub service_account_name: Option<String>,
    /// Annotations of the account that is made, such as a cloud role.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub service_account_annotations: BTreeMap<String, String>,
    /// CPU, and memory beside the shared memory; memory absent: what `cache` and the program need. No request is more than its limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Environment of the container.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<EnvVar>,
    /// Labels of the pods.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pods.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// When an image is pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PullPolicy {
    /// Every time.
    Always,
    /// When the node has none of that name.
    IfNotPresent,
    /// Never: it must be there.
    Never,
}

impl PullPolicy {
    /// As Kubernetes writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

impl DataPipelineSpec {
    /// Whether the operator decides how many workers there are.
    #[must_use]
    pub fn is_scaled_here(&self) -> bool {
        self.autoscaling.as_ref().is_some_and(|scaling| scaling.mode == AutoscalingMode::Internal)
    }

    /// Whether it decides by what trainers report to workers, and not by what a Prometheus server says.
    #[must_use]
    pub fn is_scaled_by_reports(&self) -> bool {
        self.is_scaled_here() && self.autoscaling.as_ref().is_some_and(|scaling| scaling.signal.is_none())
    }
}

fn one() -> i32 {
    1
}

fn sixty() -> i32 {
    60
}

#[cfg(test)]
mod tests {
    use crate::validate::tests::stored;

    #[test]
    fn workers_of_a_pipeline_that_is_decided_by_a_signal_were_asked_as_often_as_those_whose_reports_decide() {
        for (lines, here, by_reports) in [
            ("", false, false),
            ("autoscaling: {mode: External, maxReplicas: 2}", false, false),
            ("autoscaling: {mode: Internal, maxReplicas: 2}", true, true),
            ("autoscaling: {mode: Internal, maxReplicas: 2, signal: {prometheus: main}}", true, false),
        ] {
            let spec = stored(lines).spec;
            assert_eq!((spec.is_scaled_here(), spec.is_scaled_by_reports()), (here, by_reports), "{lines}");
        }
    }
}
