//! Takes a stored resource, gives a pipeline whose fields agree with each other. Pure.
//!
//! After this nobody reads the stored form again. The rules between fields that the API server checks are checked here too:
//! an object may be older than the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use feedmill_protocol::hash::hex;
use feedmill_protocol::pipeline::spec::{BundleRef, Metadata, PipelineSpec, Purpose, S3Spec, ServingSpec};
use feedmill_protocol::pipeline::validated::{API_VERSION, KIND};
use feedmill_protocol::pipeline::{FieldError, PROGRAM_BYTES, Pipeline, Quantity};
use feedmill_scaler::ScalingSpec;
use feedmill_scaler::spec::{Fallback, Reports, Target, Timing};
use k8s_openapi::api::core::v1::EnvVar;
use k8s_openapi::api::networking::v1::NetworkPolicyPeer;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Amount;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::desired::is_ours;
use crate::pod_template::PodPatch;
use crate::sparse::sparse;
use crate::types::{
    AutoscalingMode, AutoscalingSpec, DataPipeline, FallbackBehavior, PlacementSpec, PullPolicy, SpreadMode,
    WorkerSpec,
};

/// Nothing is written for a pipeline with this annotation.
pub const PAUSE: &str = "feedmill.dev/pause";
/// A new value replaces all workers.
pub const RESTART_AT: &str = "feedmill.dev/restart-at";

/// The kernel rounds limits down to pages, and a worker that has a byte less than it needs refuses to start: whole mebibytes.
const STEP: u64 = 1 << 20;

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

/// The first 16 hexadecimal digits of a SHA-256.
#[must_use]
pub fn short_hash(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    hex(digest.get(..8).unwrap_or_default())
}

/// How inputs are hashed. An operator that hashes otherwise writes another word here, and must know this form as well: what it finds by
/// another hash it takes for another pipeline's, and replaces every fleet.
const FORM: &str = "v1-";

/// Whether these inputs are others, by hashes that may not be comparable: then they are not.
#[must_use]
pub fn are_others(theirs: &str, inputs: &str) -> bool {
    let form = |inputs: &str| inputs.split_once('-').map(|(form, _)| form.to_owned());
    theirs != inputs && form(theirs) == form(inputs)
}

/// The hashes of what decides bytes and of what pods are made from.
fn inputs(raw: &DataPipeline) -> (String, String) {
    let mut spec = sparse(&raw.spec);
    let hash = |inputs: &Value| FORM.to_owned() + &short_hash(inputs.to_string().as_bytes());
    let part = |name: &str| spec.get(name).cloned().unwrap_or_default();
    let plan = hash(&json!([part("streams"), part("processor"), part("limits")]));
    if let Value::Object(spec) = &mut spec {
        // By these alone no pod differs.
        let apart =
            ["suspend", "replicas", "autoscaling", "updateStrategy", "disruptionBudget", "networkPolicy"];
        if let Some(Value::Object(worker)) = spec.get_mut("worker") {
            worker.retain(|field, _| field != "serviceAccountAnnotations");
        }
        // Their order stays; taking fields out one by one would change it.
        spec.retain(|field, value| !apart.contains(&field.as_str()) && *value != json!({}));
    }
    (plan, hash(&json!([&spec])))
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

fn size(
    suspended: bool,
    replicas: i32,
    scaling: Option<&AutoscalingSpec>,
    errors: &mut Vec<FieldError>,
) -> Size {
    let (mode, within) = match scaling {
        Some(scaling) if scaling.mode != AutoscalingMode::Manual => {
            if scaling.min_replicas > scaling.max_replicas {
                errors.push(wrong("spec.autoscaling.minReplicas", "must not be more than maxReplicas"));
                return Size { workers: 0, suspended, asked: replicas, mode: scaling.mode, limited: None };
            }
            (scaling.mode, replicas.clamp(scaling.min_replicas, scaling.max_replicas))
        }
        _ => (AutoscalingMode::Manual, replicas.max(0)),
    };
    // What the operator decides itself is within the bounds from the beginning.
    let limited = (within != replicas && !suspended && mode != AutoscalingMode::Internal).then_some(replicas);
    Size { workers: if suspended { 0 } else { within }, suspended, asked: replicas, mode, limited }
}

/// What the operator decides by.
fn internal(scaling: &AutoscalingSpec, first: i32, errors: &mut Vec<FieldError>) -> ScalingSpec {
    let count = |number: i32| u32::try_from(number).unwrap_or_default();
    let share = |percent: i32| f64::from(percent) / 100.0;
    if scaling.min_replicas < 1 {
        let reason = "must be at least 1 in mode Internal: trainers report to workers, so nobody could wake a fleet of 0";
        errors.push(wrong("spec.autoscaling.minReplicas", reason));
    }
    let reports = &scaling.reports;
    let fallback = match (reports.fallback.behavior, reports.fallback.replicas) {
        (FallbackBehavior::CurrentReplicas, _) => Fallback::CurrentReplicas,
        (FallbackBehavior::CurrentReplicasIfHigher, Some(least)) => {
            Fallback::CurrentReplicasIfHigher(count(least))
        }
        (FallbackBehavior::CurrentReplicasIfHigher, None) => {
            let reason = "must say at least how many, with behavior CurrentReplicasIfHigher";
            errors.push(wrong("spec.autoscaling.reports.fallback.replicas", reason));
            Fallback::CurrentReplicas
        }
    };
    ScalingSpec {
        first: count(first.clamp(scaling.min_replicas.min(scaling.max_replicas), scaling.max_replicas)),
        min: count(scaling.min_replicas),
        max: count(scaling.max_replicas),
        target: Target {
            wait: share(scaling.target.max_wait_percent),
            fill: share(scaling.target.queue_fill_percent),
            utilization: share(scaling.target.utilization_percent),
        },
        reports: Reports {
            stale_after_ms: u64::from(count(reports.stale_after_seconds)) * 1000,
            min_ranks_percent: count(reports.min_ranks_percent),
            failure_threshold: count(reports.failure_threshold),
            fallback,
        },
        idle_after_ms: u64::from(count(scaling.idle_after_seconds)) * 1000,
        timing: Timing::default(),
    }
}

fn is_zero(number: &IntOrString) -> bool {
    match number {
        IntOrString::Int(number) => *number == 0,
        IntOrString::String(text) => text == "0%" || text == "0",
    }
}

fn update(raw: &DataPipeline, errors: &mut Vec<FieldError>) -> (IntOrString, IntOrString) {
    let alone = raw.spec.placement.spread.mode == SpreadMode::OnePerNode;
    let given = raw.spec.update_strategy.as_ref();
    let surge = given.and_then(|given| given.max_surge.clone());
    let unavailable = given.and_then(|given| given.max_unavailable.clone());
    if alone && surge.as_ref().is_some_and(|surge| !is_zero(surge)) {
        let reason =
            "must be 0 or absent with placement.spread.mode OnePerNode: there is no node for one more";
        errors.push(wrong("spec.updateStrategy.maxSurge", reason));
    }
    // With room for more, nobody who serves has to go first; where each needs a node of its own, one goes first.
    let surge = surge.unwrap_or(if alone { IntOrString::Int(0) } else { IntOrString::String("25%".into()) });
    let unavailable = unavailable.unwrap_or(IntOrString::Int(i32::from(is_zero(&surge))));
    if is_zero(&surge) && is_zero(&unavailable) {
        let reason = "must not be 0 together with maxSurge: nothing could ever be replaced";
        errors.push(wrong("spec.updateStrategy.maxUnavailable", reason));
    }
    (surge, unavailable)
}

fn worker(raw: &DataPipeline, errors: &mut Vec<FieldError>) -> ValidatedWorker {
    let WorkerSpec {
        image,
        image_pull_policy,
        image_pull_secrets,
        service_account_name,
        service_account_annotations,
        resources,
        env,
        labels,
        annotations,
    } = &raw.spec.worker;
    for key in labels.keys().filter(|key| is_ours(key)) {
        errors.push(wrong(
            "spec.worker.labels",
            format!("{key} is the operator's own: it finds workers by it"),
        ));
    }
    for key in annotations.keys().filter(|key| is_ours(key)) {
        errors.push(wrong("spec.worker.annotations", format!("{key} is the operator's own")));
    }
    let account = match service_account_name {
        Some(name) => Account::Given(name.clone()),
        None => Account::Made(service_account_annotations.clone()),
    };
    twice("spec.worker.env", env.iter().map(|variable| &variable.name), errors);
    twice("spec.worker.imagePullSecrets", image_pull_secrets.iter().map(|secret| &secret.name), errors);
    let resources = resources.clone().unwrap_or_default();
    let (requests, limits) =
        memory(raw, resources.requests.unwrap_or_default(), resources.limits.unwrap_or_default(), errors);
    ValidatedWorker {
        image: image.clone(),
        pull_policy: *image_pull_policy,
        pull_secrets: image_pull_secrets.iter().map(|secret| secret.name.clone()).collect(),
        account,
        credentials: raw.spec.s3.credentials_secret_ref.as_ref().map(|secret| secret.name.clone()),
        authorities: raw.spec.s3.ca_bundle_ref.clone(),
        tokens: raw.spec.serving.token_secret_ref.as_ref().map(|secret| secret.name.clone()),
        certificate: raw.spec.serving.tls_secret_ref.as_ref().map(|secret| secret.name.clone()),
        requests,
        limits,
        disk: raw.spec.cache.disk.0,
        env: env.clone(),
        labels: labels.clone(),
        annotations: annotations.clone(),
        restart_at: raw.annotations().get(RESTART_AT).cloned(),
    }
}

/// A name that stands twice is refused by the API server when workers are made; told here, where the field is known.
fn twice<'a>(field: &str, names: impl Iterator<Item = &'a String>, errors: &mut Vec<FieldError>) {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            errors.push(wrong(field, format!("has {name} twice")));
        }
    }
}

type Amounts = BTreeMap<String, Amount>;

/// Shared memory counts as the pod's memory, so it is added to what is asked for beside it.
fn memory(
    raw: &DataPipeline,
    mut requests: Amounts,
    mut limits: Amounts,
    errors: &mut Vec<FieldError>,
) -> (Amounts, Amounts) {
    let cache = &raw.spec.cache;
    let needed = cache.fetch.0.saturating_add(cache.decode.0).saturating_add(PROGRAM_BYTES);
    let mut read = |field: &str, amounts: &Amounts| {
        let text = &amounts.get("memory")?.0;
        let bytes = text.parse::<Quantity>().map(|quantity| quantity.0);
        if bytes.is_err() {
            errors.push(wrong(field, format!("{text:?} must be a whole number of bytes such as 2Gi")));
        }
        bytes.ok()
    };
    let limit = read("spec.worker.resources.limits.memory", &limits);
    let request = read("spec.worker.resources.requests.memory", &requests);
    let limit = limit.or(request.filter(|request| *request >= needed)).unwrap_or(needed);
    if limit < needed {
        errors.push(wrong(
            "spec.worker.resources.limits.memory",
            format!(
                "{} cannot hold cache.fetch {}, cache.decode {} and the {} MB of the program; raise it or lower them \
                 (cache.sharedMemory is added to it)",
                Quantity(limit),
                cache.fetch,
                cache.decode,
                PROGRAM_BYTES / 1_000_000
            ),
        ));
    }
    let whole = |bytes: u64| {
        let bytes = bytes.saturating_add(cache.shared_memory.0);
        Amount(Quantity(bytes.checked_next_multiple_of(STEP).unwrap_or(bytes)).to_string())
    };
    requests.insert("memory".into(), whole(request.unwrap_or(limit).min(limit)));
    limits.insert("memory".into(), whole(limit));
    // The scheduler places by requests: without one, all workers would fit on one node.
    requests.entry("cpu".into()).or_insert_with(|| limits.get("cpu").cloned().unwrap_or(Amount("1".into())));
    (requests, limits)
}

#[cfg(test)]
pub(crate) mod tests;
