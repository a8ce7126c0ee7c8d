//! The pods of workers.

use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, ConfigMapVolumeSource, Container, ContainerPort, EmptyDirVolumeSource, EnvVar,
    HTTPGetAction, KeyToPath, Lifecycle, LifecycleHandler, LocalObjectReference, NodeAffinity, NodeSelector,
    NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm, PodAntiAffinity, PodSecurityContext, PodSpec,
    PodTemplateSpec, Probe, ProjectedVolumeSource, ResourceRequirements, SeccompProfile, SecretProjection,
    SecretVolumeSource, SecurityContext, SleepAction, Toleration, TopologySpreadConstraint, Volume,
    VolumeMount, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Amount;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{Installation, Names, PLAN_INPUTS, PORT, WORKER, document_name, labels, select};
use crate::types::{GpuNodes, PlacementSpec, SpreadMode, WhenUnsatisfiable};
use crate::validate::{Account, RESTART_AT, ValidatedPipeline};

/// Where workers find the recorded plan.
pub const PLAN_FOLDER: &str = "/etc/feedmill/plan";
const DOCUMENT_FOLDER: &str = "/etc/feedmill/pipeline";
const KEYS_FOLDER: &str = "/etc/feedmill/s3";
const TOKEN_FOLDER: &str = "/etc/feedmill/token";
const TLS_FOLDER: &str = "/etc/feedmill/tls";
const CACHE_FOLDER: &str = "/var/cache/feedmill";
/// The volume with the document.
pub const DOCUMENT_VOLUME: &str = "pipeline";

/// How long a worker that is told to stop is still found by name, in seconds: DNS answers are kept for 5 s by usual servers.
const UNLISTED_SECONDS: i64 = 5;
/// After draining, before the worker is killed, in seconds.
const SPARE_SECONDS: i64 = 10;
/// How long a worker stays on a node that does not answer, in seconds. Others make its ranges at once; its place should not be
/// empty for the five minutes that are Kubernetes' default.
const LOST_NODE_SECONDS: i64 = 30;

/// The template of workers' pods.
#[must_use]
pub fn template(pipeline: &ValidatedPipeline, installation: &Installation) -> PodTemplateSpec {
    let worker = &pipeline.worker;
    let mut pod_labels = worker.labels.clone();
    pod_labels.extend(labels(&pipeline.key.name));
    let mut annotations = worker.annotations.clone();
    // By it workers of former streams are told from those of the present ones.
    annotations.insert(PLAN_INPUTS.into(), pipeline.plan_inputs.clone());
    if let Some(value) = &worker.restart_at {
        annotations.insert(RESTART_AT.into(), value.clone());
    }
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(pod_labels),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        }),
        spec: Some(spec(pipeline, installation)),
    }
}

fn spec(pipeline: &ValidatedPipeline, installation: &Installation) -> PodSpec {
    let (worker, placement) = (&pipeline.worker, &pipeline.placement);
    let names = Names::of(&pipeline.key.name);
    let secrets = if worker.image.is_some() { &worker.pull_secrets } else { &installation.pull_secrets };
    let references: Vec<LocalObjectReference> =
        secrets.iter().map(|name| LocalObjectReference { name: name.clone() }).collect();
    let account = match &worker.account {
        Account::Given(name) => name,
        Account::Made(_) => &names.worker,
    };
    PodSpec {
        service_account_name: Some(account.clone()),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        image_pull_secrets: (!references.is_empty()).then_some(references),
        priority_class_name: placement.priority_class_name.clone(),
        node_selector: (!placement.node_selector.is_empty()).then(|| placement.node_selector.clone()),
        tolerations: Some(tolerations(placement)),
        affinity: affinity(&pipeline.key.name, placement, installation),
        topology_spread_constraints: spread(&pipeline.key.name, placement),
        termination_grace_period_seconds: Some(
            UNLISTED_SECONDS + i64::from(pipeline.drain_seconds) + SPARE_SECONDS,
        ),
        // The user is the image's or the namespace's: OpenShift gives one.
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".into(),
                ..SeccompProfile::default()
            }),
            ..PodSecurityContext::default()
        }),
        containers: vec![container(pipeline, installation)],
        volumes: Some(volumes(pipeline, &names)),
        ..PodSpec::default()
    }
}

fn container(pipeline: &ValidatedPipeline, installation: &Installation) -> Container {
    let worker = &pipeline.worker;
    let mut arguments = vec![
        format!("--pipeline={DOCUMENT_FOLDER}/pipeline.yaml"),
        format!("--listen=0.0.0.0:{PORT}"),
        format!("--cache-dir={CACHE_FOLDER}"),
        format!("--plan-dir={PLAN_FOLDER}"),
        format!("--drain-seconds={}", pipeline.drain_seconds),
    ];
    match worker.tokens {
        Some(_) => arguments.push(format!("--token-file={TOKEN_FOLDER}/token")),
        // Pods listen where others reach them; who may is the network policy's to say.
        None => arguments.push("--insecure-no-token".into()),
    }
    if worker.certificate.is_some() {
        arguments.push(format!("--tls-cert={TLS_FOLDER}/tls.crt"));
        arguments.push(format!("--tls-key={TLS_FOLDER}/tls.key"));
    }
    if worker.credentials.is_some() {
        arguments.push(format!("--s3-credentials-dir={KEYS_FOLDER}"));
    }
    let mut env = worker.env.clone();
    if !env.iter().any(|variable| variable.name == "TMPDIR") {
        // The root is read-only.
        env.push(EnvVar { name: "TMPDIR".into(), value: Some(CACHE_FOLDER.into()), ..EnvVar::default() });
    }
    let read = |name: &str, folder: &str| VolumeMount {
        name: name.into(),
        mount_path: folder.into(),
        read_only: Some(true),
        ..VolumeMount::default()
    };
    let mut mounts = vec![read(DOCUMENT_VOLUME, DOCUMENT_FOLDER), read("plan", PLAN_FOLDER)];
    if worker.credentials.is_some() {
        mounts.push(read("s3", KEYS_FOLDER));
    }
    if worker.tokens.is_some() {
        mounts.push(read("token", TOKEN_FOLDER));
    }
    if worker.certificate.is_some() {
        mounts.push(read("tls", TLS_FOLDER));
    }
    mounts.push(VolumeMount {
        name: "cache".into(),
        mount_path: CACHE_FOLDER.into(),
        ..VolumeMount::default()
    });
    let answers = |path: &str, period: i32, failures: i32| Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.into()),
            port: IntOrString::String("http".into()),
            scheme: worker.certificate.is_some().then(|| "HTTPS".into()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period),
        timeout_seconds: Some(2),
        failure_threshold: Some(failures),
        ..Probe::default()
    };
    Container {
        name: WORKER.into(),
        image: Some(worker.image.clone().unwrap_or_else(|| installation.worker_image.clone())),
        image_pull_policy: worker.pull_policy.map(|policy| policy.name().to_owned()),
        args: Some(arguments),
        env: Some(env),
        ports: Some(vec![ContainerPort {
            name: Some("http".into()),
            container_port: PORT,
            protocol: Some("TCP".into()),
            ..ContainerPort::default()
        }]),
        resources: Some(ResourceRequirements {
            requests: Some(worker.requests.clone()),
            limits: Some(worker.limits.clone()),
            ..ResourceRequirements::default()
        }),
        readiness_probe: Some(answers(feedmill_protocol::http::PATH_READY, 2, 2)),
        // A worker that only starts or is busy answers; one that does not for a minute never will.
        liveness_probe: Some(answers(feedmill_protocol::http::PATH_LIVE, 10, 6)),
        lifecycle: Some(Lifecycle {
            pre_stop: Some(LifecycleHandler {
                sleep: Some(SleepAction { seconds: UNLISTED_SECONDS }),
                ..LifecycleHandler::default()
            }),
            ..Lifecycle::default()
        }),
        termination_message_policy: Some("FallbackToLogsOnError".into()),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".into()]), ..Capabilities::default() }),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(mounts),
        ..Container::default()
    }
}

fn volumes(pipeline: &ValidatedPipeline, names: &Names) -> Vec<Volume> {
    let map = |volume: &str, name: &str, optional: bool| Volume {
        name: volume.into(),
        config_map: Some(ConfigMapVolumeSource {
            name: name.into(),
            optional: optional.then_some(true),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    };
    // The first workers start before a plan is agreed on.
    let document = document_name(&pipeline.key.name, &pipeline.document);
    let mut volumes = vec![map(DOCUMENT_VOLUME, &document, false), map("plan", &names.plan, true)];
    if let Some(secret) = &pipeline.worker.credentials {
        let keys = |keys: &[&str], optional: bool| VolumeProjection {
            secret: Some(SecretProjection {
                name: secret.clone(),
                items: Some(
                    keys.iter()
                        .map(|key| KeyToPath {
                            key: (*key).into(),
                            path: (*key).into(),
                            ..KeyToPath::default()
                        })
                        .collect(),
                ),
                optional: optional.then_some(true),
            }),
            ..VolumeProjection::default()
        };
        volumes.push(Volume {
            name: "s3".into(),
            projected: Some(ProjectedVolumeSource {
                sources: Some(vec![
                    keys(&["access-key-id", "secret-access-key"], false),
                    keys(&["session-token"], true),
                ]),
                ..ProjectedVolumeSource::default()
            }),
            ..Volume::default()
        });
    }
    let secret = |volume: &str, secret: &str, keys: &[&str]| Volume {
        name: volume.into(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(secret.into()),
            items: Some(
                keys.iter()
                    .map(|key| KeyToPath { key: (*key).into(), path: (*key).into(), ..KeyToPath::default() })
                    .collect(),
            ),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    };
    if let Some(tokens) = &pipeline.worker.tokens {
        volumes.push(secret("token", tokens, &["token"]));
    }
    if let Some(certificate) = &pipeline.worker.certificate {
        volumes.push(secret("tls", certificate, &["tls.crt", "tls.key"]));
    }
    volumes.push(Volume {
        name: "cache".into(),
        empty_dir: Some(EmptyDirVolumeSource {
            size_limit: Some(Amount(feedmill_protocol::pipeline::Quantity(pipeline.worker.disk).to_string())),
            ..EmptyDirVolumeSource::default()
        }),
        ..Volume::default()
    });
    volumes
}

fn tolerations(placement: &PlacementSpec) -> Vec<Toleration> {
    let mut tolerations = placement.tolerations.clone();
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        if !placement.tolerations.iter().any(|toleration| toleration.key.as_deref() == Some(key)) {
            tolerations.push(Toleration {
                key: Some(key.into()),
                operator: Some("Exists".into()),
                effect: Some("NoExecute".into()),
                toleration_seconds: Some(LOST_NODE_SECONDS),
                ..Toleration::default()
            });
        }
    }
    tolerations
}

fn affinity(name: &str, placement: &PlacementSpec, installation: &Installation) -> Option<Affinity> {
    let without: Vec<NodeSelectorRequirement> = match placement.gpu_nodes {
        GpuNodes::Allow => Vec::new(),
        GpuNodes::Avoid => installation
            .accelerator_labels
            .iter()
            .map(|label| NodeSelectorRequirement {
                key: label.clone(),
                operator: "DoesNotExist".into(),
                values: None,
            })
            .collect(),
    };
    let nodes = (!without.is_empty()).then(|| NodeAffinity {
        required_during_scheduling_ignored_during_execution: Some(NodeSelector {
            node_selector_terms: vec![NodeSelectorTerm {
                match_expressions: Some(without),
                ..NodeSelectorTerm::default()
            }],
        }),
        ..NodeAffinity::default()
    });
    let alone = (placement.spread.mode == SpreadMode::OnePerNode).then(|| PodAntiAffinity {
        required_during_scheduling_ignored_during_execution: Some(vec![PodAffinityTerm {
            label_selector: Some(select(name)),
            topology_key: placement.spread.topology_key.clone(),
            ..PodAffinityTerm::default()
        }]),
        ..PodAntiAffinity::default()
    });
    (nodes.is_some() || alone.is_some()).then_some(Affinity {
        node_affinity: nodes,
        pod_anti_affinity: alone,
        ..Affinity::default()
    })
}

fn spread(name: &str, placement: &PlacementSpec) -> Option<Vec<TopologySpreadConstraint>> {
    let spread = &placement.spread;
    (spread.mode == SpreadMode::Even).then(|| {
        vec![TopologySpreadConstraint {
            max_skew: spread.max_skew,
            topology_key: spread.topology_key.clone(),
            when_unsatisfiable: match spread.when_unsatisfiable {
                WhenUnsatisfiable::ScheduleAnyway => "ScheduleAnyway".into(),
                WhenUnsatisfiable::DoNotSchedule => "DoNotSchedule".into(),
            },
            label_selector: Some(select(name)),
            // Only workers of the same template are counted, or a rollout would fill the gaps of the old ones.
            match_label_keys: Some(vec!["pod-template-hash".into()]),
            // By default a node that takes no workers counts as the emptiest, and draining it would never end.
            node_taints_policy: Some("Honor".into()),
            ..TopologySpreadConstraint::default()
        }]
    })
}
