//! Takes a stored resource, gives a pipeline whose fields agree with each other. Pure.
//!
//! After this nobody reads the stored form again. The rules between fields that the API server checks are checked here too:
//! an object may be older than the rules.

/// Amounts of resources.
pub(crate) mod amount;
/// Hashes of a spec.
mod inputs;
/// How many workers, and who decides.
mod scaling;
/// What workers are made of.
mod worker;

use std::collections::BTreeMap;
use std::fmt;

use feedmill_protocol::pipeline::spec::{BundleRef, Metadata, PipelineSpec, Purpose, S3Spec, ServingSpec};
use feedmill_protocol::pipeline::validated::{API_VERSION, KIND};
use feedmill_protocol::pipeline::{FieldError, Pipeline};
use feedmill_scaler::ScalingSpec;
use k8s_openapi::api::core::v1::EnvVar;
use k8s_openapi::api::networking::v1::NetworkPolicyPeer;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Amount;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use serde_json::json;

use crate::pod_template::PodPatch;
use crate::sparse::sparse;
use crate::types::{AutoscalingMode, DataPipeline, PlacementSpec, PullPolicy, SpreadMode};

use inputs::inputs;
pub use inputs::{are_others, short_hash};
use scaling::{internal, signal, size, update};
use worker::worker;

/// Nothing is written for a pipeline with this annotation.
pub const PAUSE: &str = "feedmill.dev/pause";
/// A new value replaces all workers.
pub const RESTART_AT: &str = "feedmill.dev/restart-at";

/// Which pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl Key {
    /// The key of a stored object.
    #[must_use]
    pub fn of(object: &impl ResourceExt) -> Self {
        Self { namespace: object.namespace().unwrap_or_default(), name: object.name_any() }
    }
}

/// A pipeline whose fields agree with each other.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidatedPipeline {
    /// Which one.
    pub key: Key,
    /// Its identity; a namesake that was made later has another.
    pub uid: String,
    /// The generation of the spec.
    pub generation: i64,
    /// Whether nothing may be written.
    pub paused: bool,
    /// What workers read, as YAML, without what is so by default: an older worker may not know a field that this operator knows.
    pub document: String,
    /// A hash of everything in the spec that decides bytes.
    pub plan_inputs: String,
    /// A hash of everything in the resource that workers' pods are made from, and of nothing of the operator's own.
    pub template_inputs: String,
    /// What each stream is read for.
    pub purposes: Vec<(String, Purpose)>,
    /// How many workers.
    pub size: Size,
    /// How many there are is decided by the operator, like this; none in all other modes.
    pub scaling: Option<ScalingSpec>,
    /// The Prometheus server that is asked instead of listening to reports, by its name.
    pub signal: Option<String>,
    /// On which nodes.
    pub placement: PlacementSpec,
    /// How many more and fewer workers there may be while they are replaced.
    pub update: (IntOrString, IntOrString),
    /// How many workers may be gone by decision.
    pub disruption: IntOrString,
    /// How long a worker drains, in seconds.
    pub drain_seconds: i32,
    /// Who may connect; none: anybody.
    pub trainers: Option<Vec<NetworkPolicyPeer>>,
    /// What workers are made of.
    pub worker: ValidatedWorker,
    /// What is written over the template of their pods.
    pub pod_template: PodPatch,
}

impl ValidatedPipeline {
    /// Whether a stream is read for training.
    #[must_use]
    pub fn trains(&self, stream: &str) -> bool {
        self.purposes.iter().any(|(name, purpose)| name == stream && *purpose == Purpose::Train)
    }
}

/// How many workers are wanted, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// How many.
    pub workers: i32,
    /// Whether there are none because the pipeline is suspended.
    pub suspended: bool,
    /// The number in the spec.
    pub asked: i32,
    /// Who decides.
    pub mode: AutoscalingMode,
    /// The number that was asked for, when it lies outside of the bounds.
    pub limited: Option<i32>,
}

/// What a worker is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidatedWorker {
    /// Image; none: the operator's default.
    pub image: Option<String>,
    /// When it is pulled.
    pub pull_policy: Option<PullPolicy>,
    /// Secrets for the registry.
    pub pull_secrets: Vec<String>,
    /// The account that is made, with its annotations, or one that exists.
    pub account: Account,
    /// The Secret with S3 keys.
    pub credentials: Option<String>,
    /// Certificates of S3's authorities.
    pub authorities: Option<BundleRef>,
    /// The Secret with the tokens that are admitted.
    pub tokens: Option<String>,
    /// The Secret with the workers' certificate and its key.
    pub certificate: Option<String>,
    /// Requests by resource.
    pub requests: BTreeMap<String, Amount>,
    /// Limits by resource.
    pub limits: BTreeMap<String, Amount>,
    /// Disk for manifests, in bytes.
    pub disk: u64,
    /// Environment.
    pub env: Vec<EnvVar>,
    /// Labels of pods.
    pub labels: BTreeMap<String, String>,
    /// Annotations of pods.
    pub annotations: BTreeMap<String, String>,
    /// Value of the annotation that replaces all workers.
    pub restart_at: Option<String>,
}

/// The service account of workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Account {
    /// It exists.
    Given(String),
    /// It is made for the pipeline, with these annotations.
    Made(BTreeMap<String, String>),
}

/// Checks a stored pipeline.
///
/// # Errors
/// All fields that are wrong, each with its reason.
pub fn validate(raw: &DataPipeline) -> Result<ValidatedPipeline, Vec<FieldError>> {
    let spec = &raw.spec;
    let mut errors = Vec::new();
    let document = Pipeline {
        api_version: API_VERSION.into(),
        kind: KIND.into(),
        metadata: Metadata { name: raw.name_any() },
        spec: PipelineSpec::of_data(
            // Workers find keys, tokens and certificates where they are mounted.
            S3Spec { credentials_secret_ref: None, ca_bundle_ref: None, ..spec.s3.clone() },
            spec.streams.clone(),
            spec.processor.clone(),
            spec.limits.clone(),
            spec.cache.clone(),
            ServingSpec { token_secret_ref: None, tls_secret_ref: None, ..spec.serving.clone() },
        ),
    };
    if let Err(found) = document.validate() {
        errors.extend(found);
    }
    let (plan_inputs, template_inputs) = inputs(raw);
    let text = json!({
        "apiVersion": document.api_version, "kind": document.kind, "metadata": document.metadata, "spec": sparse(&document.spec),
    });
    let text = serde_saphyr::to_string(&text).unwrap_or_else(|error| {
        errors.push(wrong("spec", format!("cannot be written for workers: {error}")));
        String::new()
    });
    let size = size(spec.suspend, spec.replicas, spec.autoscaling.as_ref(), &mut errors);
    let scaling = spec.autoscaling.as_ref().filter(|scaling| scaling.mode == AutoscalingMode::Internal);
    let scaling = scaling.map(|scaling| internal(scaling, spec.replicas, &mut errors));
    let signal = signal(spec.autoscaling.as_ref(), &mut errors);
    let update = update(raw, &mut errors);
    let worker = worker(raw, &mut errors);
    let alone = spec.placement.spread.mode == SpreadMode::OnePerNode;
    let pod_template = PodPatch::new(&spec.pod_template, alone).unwrap_or_else(|found| {
        errors.extend(found);
        PodPatch::default()
    });
    if !errors.is_empty() {
        return Err(errors);
    }
    Ok(ValidatedPipeline {
        key: Key::of(raw),
        uid: raw.uid().unwrap_or_default(),
        generation: raw.metadata.generation.unwrap_or_default(),
        paused: raw.annotations().get(PAUSE).is_some_and(|value| value != "false"),
        document: text,
        plan_inputs,
        template_inputs,
        purposes: spec.streams.iter().map(|stream| (stream.name.clone(), stream.purpose)).collect(),
        size,
        scaling,
        signal,
        placement: spec.placement.clone(),
        update,
        disruption: spec.disruption_budget.max_unavailable.clone(),
        drain_seconds: spec.drain_seconds,
        trainers: spec.network_policy.enabled.then(|| spec.network_policy.trainers.clone()),
        worker,
        pod_template,
    })
}

fn wrong(field: &str, reason: impl Into<String>) -> FieldError {
    FieldError { field: field.into(), reason: reason.into() }
}

#[cfg(test)]
pub(crate) mod tests;
