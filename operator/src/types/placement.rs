//! On which nodes workers run.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Toleration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// On which nodes workers run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlacementSpec {
    /// How workers are spread, so that no node's network card carries them all.
    #[serde(default)]
    pub spread: SpreadSpec,
    /// Whether nodes with accelerators may be used.
    #[serde(default)]
    pub gpu_nodes: GpuNodes,
    /// Labels that nodes must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints of nodes that do not matter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub tolerations: Vec<Toleration>,
    /// Priority class of the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
}

/// How workers are spread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SpreadSpec {
    /// How.
    pub mode: SpreadMode,
    /// By how many workers two places may differ.
    #[schemars(range(min = 1, max = 100))]
    pub max_skew: i32,
    /// What happens to a worker for which there is no such place.
    pub when_unsatisfiable: WhenUnsatisfiable,
    /// The node label whose values are the places.
    #[schemars(length(min = 1, max = 316))]
    pub topology_key: String,
}

impl Default for SpreadSpec {
    fn default() -> Self {
        Self {
            mode: SpreadMode::default(),
            max_skew: 1,
            when_unsatisfiable: WhenUnsatisfiable::default(),
            topology_key: "kubernetes.io/hostname".into(),
        }
    }
}

/// How workers are spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SpreadMode {
    /// As evenly as can be.
    #[default]
    Even,
    /// No two on one node.
    OnePerNode,
    /// As the scheduler likes.
    None,
}

/// What happens to a worker for which there is no place within `maxSkew`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WhenUnsatisfiable {
    /// It runs anyway.
    #[default]
    ScheduleAnyway,
    /// It waits.
    DoNotSchedule,
}

/// Whether nodes with accelerators may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum GpuNodes {
    /// Not those with one of the operator's accelerator labels.
    #[default]
    Avoid,
    /// Like any other.
    Allow,
}
