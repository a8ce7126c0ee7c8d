//! What is kept of a pod.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateTerminated, ContainerStatus, KeyToPath, Pod, PodSpec,
};
use kube::ResourceExt as _;

use crate::desired::{DOCUMENT_VOLUME, PLAN_INPUTS, WORKER};
use crate::validate::are_others;

/// Says which of a ReplicaSet's pods goes first when it has too many.
pub const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
/// The template's hash, as the Deployment labels its pods.
const TEMPLATE_HASH: &str = "pod-template-hash";
/// The most of a dying worker's own words that is told.
const MAX_WORDS: usize = 400;

/// What is kept of a worker's pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerPod {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub uid: String,
    /// Its node; none while it waits for one.
    pub node: Option<String>,
    /// Its address, once it has one.
    pub address: Option<IpAddr>,
    /// Whether it speaks TLS.
    pub tls: bool,
    /// Whether it serves.
    pub ready: bool,
    /// Whether it is told to go.
    pub leaving: bool,
    /// Whether it is over: evicted, failed or done.
    pub over: bool,
    /// When it was made, in seconds.
    pub made: i64,
    /// Its template.
    pub template: Option<String>,
    /// A hash of the part of the spec that decides its plan.
    pub plan_inputs: Option<String>,
    /// What it needs, where it has a node and its volumes are not there: Secrets, with their keys. And since when it waits, in seconds.
    pub waits_for: Option<(String, i64)>,
    /// The ConfigMap with what it reads.
    pub document: Option<String>,
    /// What it costs to delete it, as annotated.
    pub deletion_cost: Option<i32>,
    /// What is wrong with it.
    pub trouble: Option<Trouble>,
    /// What was wrong with it before it was started again and served: how it ended, and when, in seconds.
    pub ended: Option<(Trouble, i64)>,
}

/// What is wrong with a pod, worst last.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Trouble {
    /// What it is.
    pub kind: TroubleKind,
    /// What was said about it.
    pub words: String,
}

/// What can be wrong with a pod, worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TroubleKind {
    /// There is no node for it.
    Unschedulable,
    /// Something it needs, such as a Secret, is missing or wrong.
    CannotStart,
    /// Its image cannot be had.
    Image,
    /// It was killed because it took more memory than it may.
    OutOfMemory,
    /// Its program ends.
    Crashes,
}

impl TroubleKind {
    /// The reason, as conditions have it.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::Unschedulable => "Unschedulable",
            Self::CannotStart => "WorkerCannotStart",
            Self::Image => "ImagePullFailed",
            Self::OutOfMemory => "OutOfMemory",
            Self::Crashes => "WorkerCrashes",
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Unschedulable => {
                "add nodes, lower spec.worker.resources or spec.cache, or change spec.placement"
            }
            Self::CannotStart => {
                "make the Secret or ConfigMap that it names, or correct the name in the spec"
            }
            Self::Image => "correct spec.worker.image or give its imagePullSecrets",
            Self::OutOfMemory => "raise spec.worker.resources.limits.memory or lower spec.cache",
            Self::Crashes => "see `kubectl logs` of the pod; the last line says what to change",
        }
    }
}

impl From<Pod> for WorkerPod {
    fn from(mut pod: Pod) -> Self {
        let status = pod.status.take().unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let ready =
            conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
        // Others are there only where spec.podTemplate says so.
        let (own, others): (Vec<ContainerStatus>, Vec<ContainerStatus>) = status
            .init_container_statuses
            .into_iter()
            .chain(status.container_statuses)
            .flatten()
            .partition(|container| container.name == WORKER);
        let waiting_for_node = conditions.iter().find(|condition| {
            condition.type_ == "PodScheduled" && condition.reason.as_deref() == Some("Unschedulable")
        });
        let trouble = match waiting_for_node {
            Some(condition) => {
                let words = short(condition.message.as_deref().unwrap_or_default());
                Some(Trouble { kind: TroubleKind::Unschedulable, words })
            }
            None if ready => None,
            None => own.iter().find_map(trouble).or_else(|| others.iter().find_map(of_another)),
        };
        let ended = own.iter().filter(|_| ready).find_map(last_end);
        // Volumes come before the sandbox; an image is only pulled after it.
        let waits = conditions
            .iter()
            .filter(|_| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()))
            .find(|condition| condition.type_ == "PodReadyToStartContainers" && condition.status == "False")
            // Not since it was made: it may have waited long for a node.
            .and_then(|condition| Some(condition.last_transition_time.as_ref()?.0.as_second()));
        Self {
            name: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
            node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
            address: status.pod_ip.and_then(|address| address.parse().ok()),
            tls: speaks_tls(&pod),
            ready,
            leaving: pod.metadata.deletion_timestamp.is_some(),
            over: matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")),
            made: pod.creation_timestamp().map_or(0, |time| time.0.as_second()),
            template: pod.labels().get(TEMPLATE_HASH).cloned(),
            plan_inputs: pod.annotations().get(PLAN_INPUTS).cloned(),
            waits_for: waits.map(|since| (needs(&pod), since)),
            document: pod.spec.as_ref().and_then(document).map(str::to_owned),
            deletion_cost: pod.annotations().get(DELETION_COST).and_then(|cost| cost.parse().ok()),
            trouble,
            ended,
        }
    }
}

impl WorkerPod {
    /// Whether it is, or will be, part of the fleet.
    #[must_use]
    pub fn stays(&self) -> bool {
        !self.leaving && !self.over
    }

    /// Whether it reads by other streams than those of these plan inputs.
    #[must_use]
    pub fn reads_by_others(&self, inputs: &str) -> bool {
        self.plan_inputs.as_deref().is_some_and(|theirs| are_others(theirs, inputs))
    }

    /// Whether it serves and stays.
    #[must_use]
    pub fn serves(&self) -> bool {
        self.ready && self.stays()
    }
}

/// The Secrets, and ConfigMaps of people, that a pod mounts, with the keys that must be there.
fn needs(pod: &Pod) -> String {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let mut needed = Vec::new();
    let mut add = |kind: &str, name: &str, items: Option<&Vec<KeyToPath>>, optional: Option<bool>| {
        let keys: Vec<&str> = items.into_iter().flatten().map(|item| item.key.as_str()).collect();
        if optional != Some(true) {
            needed.push(format!("{kind} {name} with {}", keys.join(" and ")));
        }
    };
    for volume in volumes {
        if let Some(secret) = &volume.secret {
            add(
                "Secret",
                secret.secret_name.as_deref().unwrap_or_default(),
                secret.items.as_ref(),
                secret.optional,
            );
        }
        // Those that the operator makes are mounted whole.
        if let Some(map) = volume.config_map.as_ref().filter(|map| map.items.is_some()) {
            add("ConfigMap", &map.name, map.items.as_ref(), map.optional);
        }
        let sources = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
        for secret in sources.filter_map(|source| source.secret.as_ref()) {
            add("Secret", &secret.name, secret.items.as_ref(), secret.optional);
        }
    }
    if needed.is_empty() { "the pipeline's ConfigMap".into() } else { needed.join(", ") }
}

/// The ConfigMap with what a pod's worker reads.
#[must_use]
pub fn document(pod: &PodSpec) -> Option<&str> {
    let volume = pod.volumes.iter().flatten().find(|volume| volume.name == DOCUMENT_VOLUME)?;
    Some(&volume.config_map.as_ref()?.name)
}

/// As it is asked by the kubelet.
fn speaks_tls(pod: &Pod) -> bool {
    let mut containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let probe = containers.find(|container| container.name == WORKER);
    let probe = probe.and_then(|container| container.readiness_probe.as_ref()?.http_get.as_ref());
    probe.is_some_and(|probe| probe.scheme.as_deref() == Some("HTTPS"))
}

/// What is wrong with a container that is not ready.
fn trouble(container: &ContainerStatus) -> Option<Trouble> {
    let state = container.state.as_ref();
    let ended = |state: Option<&ContainerState>| state.and_then(|state| state.terminated.clone());
    let died = ended(state).or_else(|| ended(container.last_state.as_ref()));
    if let Some(waiting) = state.and_then(|state| state.waiting.as_ref()) {
        let kind = match waiting.reason.as_deref() {
            Some(
                "ErrImagePull"
                | "ImagePullBackOff"
                | "InvalidImageName"
                | "ErrImageNeverPull"
                | "ImageInspectError"
                | "RegistryUnavailable",
            ) => Some(TroubleKind::Image),
            Some("CreateContainerConfigError" | "CreateContainerError" | "RunContainerError") => {
                Some(TroubleKind::CannotStart)
            }
            _ => None,
        };
        if let Some(kind) = kind {
            return Some(Trouble { kind, words: short(waiting.message.as_deref().unwrap_or_default()) });
        }
    }
    of_end(&died?)
}

/// How a container ended the last time, and when, if that was a failure.
fn last_end(container: &ContainerStatus) -> Option<(Trouble, i64)> {
    let ended = container.last_state.as_ref()?.terminated.as_ref()?;
    Some((of_end(ended)?, ended.finished_at.as_ref()?.0.as_second()))
}

/// An end that is a failure.
fn of_end(died: &ContainerStateTerminated) -> Option<Trouble> {
    if died.exit_code == 0 {
        return None;
    }
    let words = died.message.as_deref().map(str::trim).filter(|words| !words.is_empty());
    let words = words.map_or_else(|| format!("exit code {}", died.exit_code), last_line);
    let kind = match died.reason.as_deref() {
        Some("OOMKilled") => TroubleKind::OutOfMemory,
        _ => TroubleKind::Crashes,
    };
    Some(Trouble { kind, words })
}

/// The same of a container that is not the worker: by its name, for its image and memory are not where the worker's are.
fn of_another(container: &ContainerStatus) -> Option<Trouble> {
    let found = trouble(container).filter(|_| !container.ready)?;
    let words =
        format!("container {} of spec.podTemplate ({:?}): {}", container.name, found.kind, found.words);
    Some(Trouble { kind: TroubleKind::CannotStart, words })
}

/// The last line says what ended the program.
fn last_line(words: &str) -> String {
    short(words.lines().last().unwrap_or_default())
}

fn short(words: &str) -> String {
    words.chars().take(MAX_WORDS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(status: Value) -> WorkerPod {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "labels": {"pod-template-hash": "t"}},
            "spec": {"containers": [], "nodeName": "n1"},
            "status": status,
        }))
        .unwrap();
        pod.into()
    }

    fn container(state: &Value, last: &Value) -> Value {
        json!({"podIP": "10.0.0.1", "containerStatuses": [{
            "name": "worker", "image": "", "imageID": "", "ready": false, "restartCount": 1, "state": state, "lastState": last,
        }]})
    }

    #[test]
    fn how_a_worker_that_serves_again_ended_is_kept() {
        let ended = |ready: &str, code: i32| {
            pod(json!({
                "conditions": [{"type": "Ready", "status": ready}],
                "containerStatuses": [{
                    "name": "worker", "image": "", "imageID": "", "ready": true, "restartCount": 1, "state": {"running": {}},
                    "lastState": {"terminated": {"exitCode": code, "reason": "OOMKilled", "finishedAt": "2026-01-01T00:00:07Z"}},
                }],
            }))
            .ended
        };
        let words = "exit code 137".to_owned();
        assert_eq!(
            ended("True", 137),
            Some((Trouble { kind: TroubleKind::OutOfMemory, words }, 1_767_225_607))
        );
        assert_eq!(ended("False", 137), None);
        assert_eq!(ended("True", 0), None);
    }

    #[test]
    fn what_is_wrong_with_a_pod_is_told_in_its_own_words() {
        let none = json!({});
        let crash = json!({"terminated": {"exitCode": 1, "reason": "Error", "message": "INFO listening\nERROR access denied"}});
        let back_off = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}});
        let cases = [
            (container(&crash, &none), Some(("WorkerCrashes", "ERROR access denied"))),
            (container(&back_off, &crash), Some(("WorkerCrashes", "ERROR access denied"))),
            (
                container(&json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}), &none),
                Some(("OutOfMemory", "exit code 137")),
            ),
            (
                container(
                    &json!({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}),
                    &none,
                ),
                Some(("ImagePullFailed", "no such image")),
            ),
            (
                container(
                    &json!({"waiting": {"reason": "CreateContainerConfigError", "message": "secret \"x\" not found"}}),
                    &none,
                ),
                Some(("WorkerCannotStart", "secret \"x\" not found")),
            ),
            (
                json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}]}),
                Some(("Unschedulable", "0/3 nodes")),
            ),
            (container(&json!({"running": {}}), &none), None),
            (container(&json!({"terminated": {"exitCode": 0}}), &none), None),
            (json!({}), None),
        ];
        for (status, expected) in cases {
            let trouble = pod(status.clone()).trouble;
            let found = trouble.as_ref().map(|trouble| (trouble.kind.reason(), trouble.words.as_str()));
            assert_eq!(found, expected, "{status}");
        }
    }

    #[test]
    fn a_container_beside_the_worker_that_cannot_start_is_named() {
        let beside = json!({"containerStatuses": [
            {"name": "worker", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}}},
            {"name": "side", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}},
        ]});
        let found = pod(beside).trouble.unwrap();
        assert_eq!(found.kind, TroubleKind::CannotStart);
        assert_eq!(found.words, "container side of spec.podTemplate (Image): no such image");
    }

    #[test]
    fn a_pod_without_its_volumes_names_the_secrets_that_it_needs() {
        let of = |ready: &str| {
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {"name": "p"},
                "spec": {"containers": [], "nodeName": "n1", "volumes": [
                    {"name": "s3", "projected": {"sources": [
                        {"secret": {"name": "keys", "items": [{"key": "access-key-id", "path": "a"}, {"key": "secret-access-key", "path": "b"}]}},
                        {"secret": {"name": "keys", "optional": true, "items": [{"key": "session-token", "path": "c"}]}},
                    ]}},
                    {"name": "pipeline", "configMap": {"name": "p-pipeline-0"}},
                    {"name": "s3-ca", "configMap": {"name": "authorities", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                    {"name": "token", "secret": {"secretName": "tokens", "items": [{"key": "token", "path": "token"}]}},
                ]},
                "status": {"conditions": [{"type": "PodReadyToStartContainers", "status": ready,
                    "lastTransitionTime": "1970-01-01T00:01:40Z"}]},
            }))
            .unwrap();
            WorkerPod::from(pod).waits_for
        };
        let needs = "Secret keys with access-key-id and secret-access-key, ConfigMap authorities with ca.crt, Secret tokens with token";
        assert_eq!(of("False"), Some((needs.to_owned(), 100)));
        assert_eq!(of("True"), None);
    }

    #[test]
    fn a_pod_that_is_over_or_leaving_is_no_part_of_the_fleet() {
        let ready = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "podIP": "10.0.0.1"});
        let good = pod(ready);
        assert!(good.serves());
        assert_eq!((good.node.as_deref(), good.template.as_deref()), (Some("n1"), Some("t")));
        assert!(!pod(json!({"phase": "Failed", "reason": "Evicted"})).stays());
        assert!(!WorkerPod { leaving: true, ..good }.serves());
    }
}
