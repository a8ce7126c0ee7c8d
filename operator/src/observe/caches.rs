//! All kinds together.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ControllerRevision, Deployment};
use k8s_openapi::api::core::v1::{ConfigMap, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use super::{Cache, NodeFacts, WorkerPod, nobodys};
use crate::types::DataPipeline;

/// Everything that is known of the cluster.
#[derive(Default)]
pub struct Caches {
    /// Pipelines.
    pub pipelines: Arc<Cache<DataPipeline>>,
    /// Deployments of workers.
    pub deployments: Arc<Cache<Deployment>>,
    /// Services.
    pub services: Arc<Cache<Service>>,
    /// ConfigMaps.
    pub maps: Arc<Cache<ConfigMap>>,
    /// Service accounts.
    pub accounts: Arc<Cache<ServiceAccount>>,
    /// Disruption budgets.
    pub budgets: Arc<Cache<PodDisruptionBudget>>,
    /// Network policies.
    pub policies: Arc<Cache<NetworkPolicy>>,
    /// Kept templates.
    pub revisions: Arc<Cache<ControllerRevision>>,
    /// Pods of workers.
    pub pods: Arc<Cache<WorkerPod>>,
    /// Nodes; none where they may not be read.
    pub nodes: Option<Arc<Cache<NodeFacts>>>,
}

impl Caches {
    /// All nodes; none where they may not be read.
    pub(crate) fn nodes(&self) -> Option<Vec<Arc<NodeFacts>>> {
        Some(self.nodes.as_ref().filter(|nodes| nodes.is_complete())?.all(&nobodys()))
    }
}
