//! Takes a validated pipeline, gives the objects it should consist of. Pure.

/// The pods of workers.
mod pod;

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdateDeployment};
use k8s_openapi::api::core::v1::{
    ConfigMap, PodTemplateSpec, Service, ServiceAccount, ServicePort, ServiceSpec,
};
use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::Resource as _;

use crate::plan::Agreed;
use crate::template::Model;
use crate::types::DataPipeline;
use crate::validate::{Account, ValidatedPipeline, short_hash};

pub use pod::{DOCUMENT_FOLDER, DOCUMENT_VOLUME, PLAN_FOLDER, PLAN_VOLUME, template};

/// Who manages the objects, as a label.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The value of that label, and the field manager of what is applied.
pub const MANAGER: &str = "feedmill-operator";
/// The field manager of the number of workers alone.
pub const SIZE_MANAGER: &str = "feedmill-operator-size";
/// The pipeline's name, as a label.
pub const PIPELINE: &str = "feedmill.dev/pipeline";
/// A hash of the spec that decides bytes, as an annotation of the recorded plan that belongs to it and of the pods that read by it.
pub const PLAN_INPUTS: &str = "feedmill.dev/plan-inputs";
/// What the container and its port are called.
pub const WORKER: &str = "worker";
/// Where workers listen.
pub const PORT: i32 = feedmill_protocol::http::DEFAULT_PORT as i32;

/// Whether a label or annotation is the operator's to write.
#[must_use]
pub fn is_ours(key: &str) -> bool {
    key.starts_with("feedmill.dev/") || key.starts_with("app.kubernetes.io/")
}

/// What the operator was installed with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    /// Image of workers whose pipeline names none.
    pub worker_image: String,
    /// Secrets for the registry of that image.
    pub pull_secrets: Vec<String>,
    /// Labels of nodes with accelerators.
    pub accelerator_labels: Vec<String>,
    /// The operator's own namespace.
    pub namespace: String,
    /// A namespace that may read metrics of workers.
    pub monitoring_namespace: Option<String>,
}

/// Names of a pipeline's objects. Only the Service, which trainers ask for, has the pipeline's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// Service.
    pub service: String,
    /// Deployment, PodDisruptionBudget, NetworkPolicy and ServiceAccount.
    pub worker: String,
    /// ConfigMap with the recorded plan.
    pub plan: String,
    /// ConfigMap with what one decision on the size leaves to the next.
    pub scaling: String,
}

impl Names {
    /// Those of a pipeline.
    #[must_use]
    pub fn of(pipeline: &str) -> Self {
        Self {
            service: pipeline.to_owned(),
            worker: format!("{pipeline}-worker"),
            plan: format!("{pipeline}-plan"),
            scaling: format!("{pipeline}-scaling"),
        }
    }
}

/// What the names of all ConfigMaps with a pipeline's documents begin with.
#[must_use]
pub fn documents(pipeline: &str) -> String {
    format!("{pipeline}-pipeline-")
}

/// ConfigMap with what workers read. Another document has another name, so that workers that were made for the one before find what they
/// were made for whenever they start again.
#[must_use]
pub fn document_name(pipeline: &str, document: &str) -> String {
    documents(pipeline) + &short_hash(document.as_bytes())
}

/// Everything a pipeline should consist of. Taken apart field by field where it is applied, so that an object that is added
/// here and forgotten there does not compile.
#[derive(Clone, Debug, PartialEq)]
pub struct Desired {
    /// The account of workers, unless the pipeline names one.
    pub service_account: Option<ServiceAccount>,
    /// What workers read.
    pub document: ConfigMap,
    /// The recorded plan; none while nothing is recorded.
    pub plan: Option<ConfigMap>,
    /// How workers are found.
    pub service: Service,
    /// The workers; never with a number of them.
    pub deployment: Deployment,
    /// How many may be gone by decision.
    pub disruption_budget: PodDisruptionBudget,
    /// Who may connect.
    pub network_policy: Option<NetworkPolicy>,
}

/// Labels that select the workers of a pipeline.
#[must_use]
pub fn selector(pipeline: &str) -> BTreeMap<String, String> {
    BTreeMap::from([
        ("app.kubernetes.io/component".to_owned(), WORKER.to_owned()),
        (PIPELINE.to_owned(), pipeline.to_owned()),
    ])
}

/// The same as text, as the scale subresource wants it.
#[must_use]
pub fn selector_text(pipeline: &str) -> String {
    let labels: Vec<String> =
        selector(pipeline).into_iter().map(|(key, value)| format!("{key}={value}")).collect();
    labels.join(",")
}

fn labels(pipeline: &str) -> BTreeMap<String, String> {
    let mut labels = selector(pipeline);
    labels.insert("app.kubernetes.io/name".into(), "feedmill".into());
    labels.insert("app.kubernetes.io/instance".into(), pipeline.to_owned());
    labels.insert(MANAGED_BY.into(), MANAGER.into());
    labels
}

/// The reference by which a pipeline's objects go with it.
#[must_use]
pub fn owner(pipeline: &ValidatedPipeline) -> OwnerReference {
    OwnerReference {
        api_version: DataPipeline::api_version(&()).into_owned(),
        kind: DataPipeline::kind(&()).into_owned(),
        name: pipeline.key.name.clone(),
        uid: pipeline.uid.clone(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Metadata of an object of the pipeline.
#[must_use]
pub fn metadata(pipeline: &ValidatedPipeline, name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(pipeline.key.namespace.clone()),
        labels: Some(labels(&pipeline.key.name)),
        owner_references: Some(vec![owner(pipeline)]),
        ..ObjectMeta::default()
    }
}

/// Everything a pipeline should consist of, around what was chosen before to make workers from.
#[must_use]
pub fn desired(
    pipeline: &ValidatedPipeline,
    installation: &Installation,
    model: Model,
    plan: Option<&Agreed>,
) -> Desired {
    let names = Names::of(&pipeline.key.name);
    let service_account = match &pipeline.worker.account {
        Account::Given(_) => None,
        Account::Made(annotations) => Some(ServiceAccount {
            metadata: ObjectMeta {
                annotations: (!annotations.is_empty()).then(|| annotations.clone()),
                ..metadata(pipeline, &names.worker)
            },
            automount_service_account_token: Some(false),
            ..ServiceAccount::default()
        }),
    };
    Desired {
        service_account,
        document: ConfigMap {
            metadata: metadata(pipeline, &document_name(&pipeline.key.name, &model.document)),
            immutable: Some(true),
            data: Some(BTreeMap::from([("pipeline.yaml".to_owned(), model.document)])),
            ..ConfigMap::default()
        },
        plan: plan.map(|agreed| plan_map(pipeline, &names.plan, agreed)),
        service: service(pipeline, &names.service),
        deployment: deployment(pipeline, &names.worker, model.template),
        disruption_budget: PodDisruptionBudget {
            metadata: metadata(pipeline, &names.worker),
            spec: Some(PodDisruptionBudgetSpec {
                max_unavailable: Some(pipeline.disruption.clone()),
                selector: Some(select(&pipeline.key.name)),
                // A worker that does not serve must not keep a node from being drained.
                unhealthy_pod_eviction_policy: Some("AlwaysAllow".into()),
                ..PodDisruptionBudgetSpec::default()
            }),
            ..PodDisruptionBudget::default()
        },
        network_policy: pipeline
            .trainers
            .as_ref()
            .map(|trainers| network_policy(pipeline, &names.worker, trainers, installation)),
    }
}

fn select(pipeline: &str) -> LabelSelector {
    LabelSelector { match_labels: Some(selector(pipeline)), ..LabelSelector::default() }
}

fn plan_map(pipeline: &ValidatedPipeline, name: &str, agreed: &Agreed) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            annotations: Some(BTreeMap::from([(PLAN_INPUTS.to_owned(), agreed.inputs.clone())])),
            ..metadata(pipeline, name)
        },
        data: Some(agreed.digests.clone()),
        ..ConfigMap::default()
    }
}

fn service(pipeline: &ValidatedPipeline, name: &str) -> Service {
    Service {
        metadata: metadata(pipeline, name),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".into()),
            selector: Some(selector(&pipeline.key.name)),
            ports: Some(vec![ServicePort {
                name: Some("http".into()),
                port: PORT,
                target_port: Some(IntOrString::String("http".into())),
                protocol: Some("TCP".into()),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

fn deployment(pipeline: &ValidatedPipeline, name: &str, template: PodTemplateSpec) -> Deployment {
    let (surge, unavailable) = pipeline.update.clone();
    Deployment {
        metadata: metadata(pipeline, name),
        spec: Some(DeploymentSpec {
            // Never the number: whoever writes it once and leaves it out later sets it to 1.
            replicas: None,
            selector: select(&pipeline.key.name),
            strategy: Some(DeploymentStrategy {
                type_: Some("RollingUpdate".into()),
                rolling_update: Some(RollingUpdateDeployment {
                    max_surge: Some(surge),
                    max_unavailable: Some(unavailable),
                }),
            }),
            revision_history_limit: Some(3),
            // Workers read manifests before they serve, which takes minutes where those are large.
            progress_deadline_seconds: Some(1800),
            template,
            ..DeploymentSpec::default()
        }),
        ..Deployment::default()
    }
}

fn network_policy(
    pipeline: &ValidatedPipeline,
    name: &str,
    trainers: &[NetworkPolicyPeer],
    installation: &Installation,
) -> NetworkPolicy {
    let everybody_here =
        NetworkPolicyPeer { pod_selector: Some(LabelSelector::default()), ..NetworkPolicyPeer::default() };
    let namespace = |name: &str, pods: Option<LabelSelector>| NetworkPolicyPeer {
        namespace_selector: Some(LabelSelector {
            match_labels: Some(BTreeMap::from([("kubernetes.io/metadata.name".to_owned(), name.to_owned())])),
            ..LabelSelector::default()
        }),
        pod_selector: pods,
        ..NetworkPolicyPeer::default()
    };
    let operator = LabelSelector {
        match_labels: Some(BTreeMap::from([("app.kubernetes.io/name".to_owned(), MANAGER.to_owned())])),
        ..LabelSelector::default()
    };
    let mut from = trainers.to_vec();
    if from.is_empty() {
        from.push(everybody_here);
    }
    from.push(namespace(&installation.namespace, Some(operator)));
    from.extend(installation.monitoring_namespace.as_deref().map(|name| namespace(name, None)));
    NetworkPolicy {
        metadata: metadata(pipeline, name),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(select(&pipeline.key.name)),
            policy_types: Some(vec!["Ingress".into()]),
            ingress: Some(vec![NetworkPolicyIngressRule {
                from: Some(from),
                ports: Some(vec![NetworkPolicyPort {
                    port: Some(IntOrString::String("http".into())),
                    protocol: Some("TCP".into()),
                    ..NetworkPolicyPort::default()
                }]),
            }]),
            ..NetworkPolicySpec::default()
        }),
    }
}

#[cfg(test)]
mod tests;
