//! The pods of workers.

use feedmill_protocol::pipeline::spec::{BundleKind, BundleRef};
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
/// Where they find what they read.
pub const DOCUMENT_FOLDER: &str = "/etc/feedmill/pipeline";
const KEYS_FOLDER: &str = "/etc/feedmill/s3";
const AUTHORITIES_FOLDER: &str = "/etc/feedmill/s3-ca";
const TOKEN_FOLDER: &str = "/etc/feedmill/token";
const TLS_FOLDER: &str = "/etc/feedmill/tls";
const CACHE_FOLDER: &str = "/var/cache/feedmill";
/// The volume with the document.
pub const DOCUMENT_VOLUME: &str = "pipeline";
/// The volume with the recorded plan.
pub const PLAN_VOLUME: &str = "plan";

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
    let rendered = PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(pod_labels),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        }),
        spec: Some(spec(pipeline, installation)),
    };
    pipeline.pod_template.over(rendered)
}

fn spec(pipeline: &ValidatedPipeline, installation: &Installation) -> PodSpec {
    let (worker, placement) = (&pipeline.worker, &pipeline.placement);
    let names = Names::of(&pipeline.key.name);
    let volumes = volumes(pipeline);
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
        containers: vec![container(pipeline, installation, &volumes)],
        volumes: Some(volumes.into_iter().map(|(volume, _)| volume).collect()),
        ..PodSpec::default()
    }
}

fn container(
    pipeline: &ValidatedPipeline,
    installation: &Installation,
    volumes: &[(Volume, &'static str)],
) -> Container {
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
    if let Some(bundle) = &worker.authorities {
        arguments.push(format!("--s3-ca-file={AUTHORITIES_FOLDER}/{}", bundle.key));
    }
    let mut env = worker.env.clone();
    if !env.iter().any(|variable| variable.name == "TMPDIR") {
        // The root is read-only.
        env.push(EnvVar { name: "TMPDIR".into(), value: Some(CACHE_FOLDER.into()), ..EnvVar::default() });
    }
    let mounts = volumes.iter().map(|(volume, folder)| VolumeMount {
        name: volume.name.clone(),
        mount_path: (*folder).into(),
        read_only: (*folder != CACHE_FOLDER).then_some(true),
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
        volume_mounts: Some(mounts.collect()),
        ..Container::default()
    }
}

/// What a worker finds in files: each volume, and the folder where it is.
fn volumes(pipeline: &ValidatedPipeline) -> Vec<(Volume, &'static str)> {
    let (worker, names) = (&pipeline.worker, Names::of(&pipeline.key.name));
    // The first workers start before a plan is agreed on.
    let document = document_name(&pipeline.key.name, &pipeline.document);
    let mut volumes = vec![
        (of_map(DOCUMENT_VOLUME, &document, &[], false), DOCUMENT_FOLDER),
        (of_map(PLAN_VOLUME, &names.plan, &[], true), PLAN_FOLDER),
    ];
    if let Some(secret) = &worker.credentials {
        let keys = |keys: &[&str], optional: bool| VolumeProjection {
            secret: Some(SecretProjection {
                name: secret.clone(),
                items: items(keys),
                optional: optional.then_some(true),
            }),
            ..VolumeProjection::default()
        };
        let sources =
            vec![keys(&["access-key-id", "secret-access-key"], false), keys(&["session-token"], true)];
        let projected = ProjectedVolumeSource { sources: Some(sources), ..ProjectedVolumeSource::default() };
        volumes.push((
            Volume { name: "s3".into(), projected: Some(projected), ..Volume::default() },
            KEYS_FOLDER,
        ));
    }
    if let Some(BundleRef { kind, name, key }) = &worker.authorities {
        let bundle = match kind {
            BundleKind::ConfigMap => of_map("s3-ca", name, &[key], false),
            BundleKind::Secret => of_secret("s3-ca", name, &[key]),
        };
        volumes.push((bundle, AUTHORITIES_FOLDER));
    }
    if let Some(tokens) = &worker.tokens {
        volumes.push((of_secret("token", tokens, &["token"]), TOKEN_FOLDER));
    }
    if let Some(certificate) = &worker.certificate {
        volumes.push((of_secret("tls", certificate, &["tls.crt", "tls.key"]), TLS_FOLDER));
    }
    let room = EmptyDirVolumeSource {
        size_limit: Some(Amount(feedmill_protocol::pipeline::Quantity(worker.disk).to_string())),
        ..EmptyDirVolumeSource::default()
    };
    volumes.push((Volume { name: "cache".into(), empty_dir: Some(room), ..Volume::default() }, CACHE_FOLDER));
    volumes
}

/// These keys, each as a file of its own name; all when none is named.
fn items(keys: &[&str]) -> Option<Vec<KeyToPath>> {
    let item = |key: &&str| KeyToPath { key: (*key).into(), path: (*key).into(), ..KeyToPath::default() };
    (!keys.is_empty()).then(|| keys.iter().map(item).collect())
}

fn of_map(volume: &str, map: &str, keys: &[&str], optional: bool) -> Volume {
    Volume {
        name: volume.into(),
        config_map: Some(ConfigMapVolumeSource {
            name: map.into(),
            items: items(keys),
            optional: optional.then_some(true),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    }
}

fn of_secret(volume: &str, secret: &str, keys: &[&str]) -> Volume {
    Volume {
        name: volume.into(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(secret.into()),
            items: items(keys),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    }
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
