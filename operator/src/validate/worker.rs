//! What workers are made of.

use std::collections::{BTreeMap, BTreeSet};

use feedmill_protocol::pipeline::{FieldError, PROGRAM_BYTES, Quantity};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Amount;
use kube::ResourceExt as _;

use super::amount::billionths;
use super::{Account, RESTART_AT, ValidatedWorker, wrong};
use crate::desired::is_ours;
use crate::types::{DataPipeline, WorkerSpec};

/// The kernel rounds limits down to pages, and a worker that has a byte less than it needs refuses to start: whole mebibytes.
const STEP: u64 = 1 << 20;

/// What workers are made of.
pub(super) fn worker(raw: &DataPipeline, errors: &mut Vec<FieldError>) -> ValidatedWorker {
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
    let (requests, limits) = (resources.requests.unwrap_or_default(), resources.limits.unwrap_or_default());
    amounts(&requests, &limits, errors);
    let (requests, limits) = memory(raw, requests, limits, errors);
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

/// The API server refuses both only when workers are made, and the one without a field.
fn amounts(requests: &Amounts, limits: &Amounts, errors: &mut Vec<FieldError>) {
    for (kind, amounts) in [("requests", requests), ("limits", limits)] {
        // Memory must be whole bytes.
        for (name, amount) in amounts.iter().filter(|(name, _)| *name != "memory") {
            if billionths(&amount.0).is_none() {
                let reason = format!("{:?} must be an amount such as 8, 500m or 2Gi, not below 0", amount.0);
                errors.push(wrong(&format!("spec.worker.resources.{kind}.{name}"), reason));
            }
        }
    }
    for (name, request) in requests {
        let Some(limit) = limits.get(name) else { continue };
        if billionths(&request.0).zip(billionths(&limit.0)).is_some_and(|(request, limit)| request > limit) {
            let reason = format!("{} must not be more than limits.{name}, {}", request.0, limit.0);
            errors.push(wrong(&format!("spec.worker.resources.requests.{name}"), reason));
        }
    }
}

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
    requests.insert("memory".into(), whole(request.unwrap_or(limit)));
    limits.insert("memory".into(), whole(limit));
    // The scheduler places by requests: without one, all workers would fit on one node.
    requests.entry("cpu".into()).or_insert_with(|| limits.get("cpu").cloned().unwrap_or(Amount("1".into())));
    (requests, limits)
}
