use feedmill_protocol::pipeline::{PROGRAM_BYTES, Quantity};
use kube::core::ObjectMeta;
use serde_json::Value;

use super::*;
use crate::desired::Installation;

/// What tests are installed with.
pub(crate) fn installation() -> Installation {
    Installation {
        worker_image: "worker:1".into(),
        pull_secrets: vec!["registry".into()],
        accelerator_labels: vec!["nvidia.com/gpu.present".into()],
        namespace: "feedmill-system".into(),
        monitoring_namespace: Some("monitoring".into()),
    }
}

const STREAMS: &str = r#"
streams:
- {name: train, seed: 42, datasets: [{name: chartqa, uri: "s3://b/train.jsonl"}]}
processor: {uri: "s3://b/qwen3-vl/"}
cache: {sharedMemory: 1Gi, fetch: 256Mi, decode: 512Mi}
limits: {maxImagePixels: 16777216}
"#;

/// A stored pipeline with these lines in its spec as well, after the API server filled in its defaults.
pub(crate) fn stored(lines: &str) -> DataPipeline {
    let spec = serde_saphyr::from_str(&format!("{STREAMS}{lines}\n")).unwrap();
    let mut stored = DataPipeline::new("qwen3vl-sft", spec);
    stored.metadata = ObjectMeta {
        name: Some("qwen3vl-sft".into()),
        namespace: Some("team".into()),
        uid: Some("u1".into()),
        generation: Some(3),
        ..ObjectMeta::default()
    };
    stored
}

/// The same, validated.
pub(crate) fn pipeline(lines: &str) -> ValidatedPipeline {
    validate(&stored(lines)).unwrap()
}

#[test]
fn contradictions_name_their_field() {
    let cases = [
        ("autoscaling: {mode: External, minReplicas: 5, maxReplicas: 2}", "spec.autoscaling.minReplicas"),
        ("autoscaling: {mode: Internal, minReplicas: 0, maxReplicas: 2}", "spec.autoscaling.minReplicas"),
        (
            "autoscaling: {mode: Internal, maxReplicas: 2, reports: {fallback: {behavior: CurrentReplicasIfHigher}}}",
            "spec.autoscaling.reports.fallback.replicas",
        ),
        (
            "autoscaling: {mode: Internal, maxReplicas: 2, reports: {fallback: {replicas: 16}}}",
            "spec.autoscaling.reports.fallback.replicas",
        ),
        (
            "autoscaling: {mode: External, maxReplicas: 2, signal: {prometheus: main}}",
            "spec.autoscaling.signal",
        ),
        (
            "placement: {spread: {mode: OnePerNode}}\nupdateStrategy: {maxSurge: 1}",
            "spec.updateStrategy.maxSurge",
        ),
        ("updateStrategy: {maxSurge: 0, maxUnavailable: 0%}", "spec.updateStrategy.maxUnavailable"),
        ("worker: {labels: {feedmill.dev/pipeline: other}}", "spec.worker.labels"),
        ("worker: {annotations: {feedmill.dev/restart-at: x}}", "spec.worker.annotations"),
        ("worker: {env: [{name: A, value: x}, {name: A, value: y}]}", "spec.worker.env"),
        ("worker: {imagePullSecrets: [{name: a}, {name: a}]}", "spec.worker.imagePullSecrets"),
        ("worker: {resources: {limits: {memory: 100Mi}}}", "spec.worker.resources.limits.memory"),
        ("worker: {resources: {limits: {memory: 1.5Gi}}}", "spec.worker.resources.limits.memory"),
        ("worker: {resources: {requests: {memory: lots}}}", "spec.worker.resources.requests.memory"),
        ("worker: {resources: {limits: {cpu: 8 cores}}}", "spec.worker.resources.limits.cpu"),
        ("worker: {resources: {limits: {cpu: -1}}}", "spec.worker.resources.limits.cpu"),
    ];
    for (lines, field) in cases {
        let errors = validate(&stored(lines)).unwrap_err();
        assert!(errors.iter().any(|error| error.field == field), "{lines}: {errors:?}");
    }
}

#[test]
fn what_workers_refuse_is_told_before_they_start() {
    let mut raw = stored("");
    raw.spec.streams[0].datasets[0].percent = 0;
    raw.spec.cache.fetch = Quantity(1);
    let errors = validate(&raw).unwrap_err();
    let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
    assert_eq!(fields, ["spec.streams[0].datasets[0].percent", "spec.cache.fetch"]);
}

#[test]
fn workers_read_the_document_and_nothing_that_only_the_cluster_reads() {
    let one = pipeline("");
    let document: Pipeline = serde_saphyr::from_str(&one.document).unwrap();
    assert_eq!(document.validate().unwrap().streams[0].seed, 42);
    for lines in [
        "replicas: 9",
        "suspend: true",
        "drainSeconds: 9",
        "placement: {gpuNodes: Allow}",
        "worker: {image: other}",
        "s3: {credentialsSecretRef: {name: keys}}",
    ] {
        let other = pipeline(lines);
        assert_eq!((&other.document, &other.plan_inputs), (&one.document, &one.plan_inputs), "{lines}");
    }
    let other = pipeline("s3: {region: eu-west-1}");
    assert_ne!(other.document, one.document);
    assert_eq!(other.plan_inputs, one.plan_inputs);
    let mut raw = stored("");
    raw.spec.streams[0].seed = 43;
    assert_ne!(validate(&raw).unwrap().plan_inputs, one.plan_inputs);
}

#[test]
fn the_document_says_what_was_asked_for_and_nothing_else() {
    let expected = "apiVersion: feedmill.dev/v1alpha1\nkind: DataPipeline\nmetadata:\n  name: qwen3vl-sft\n";
    let document = pipeline("").document;
    assert!(document.starts_with(expected), "{document}");
    for left_out in ["shuffle", "percent", "maxRange", "tooLong", "maxSampleBytes"] {
        assert!(!document.contains(left_out), "{left_out} in {document}");
    }
    // Read again it is the whole spec.
    for lines in ["", "s3: {forcePathStyle: true}\nserving: {maxRange: 32}"] {
        let raw = stored(lines).spec;
        let spec =
            PipelineSpec::of_data(raw.s3, raw.streams, raw.processor, raw.limits, raw.cache, raw.serving);
        assert_eq!(serde_saphyr::from_str::<Pipeline>(&pipeline(lines).document).unwrap().spec, spec);
    }
}

#[test]
fn the_size_is_clamped_only_where_another_scaler_writes_it() {
    let size = |lines: &str| {
        let size = pipeline(lines).size;
        (size.workers, size.limited)
    };
    assert_eq!(size(""), (1, None));
    assert_eq!(size("replicas: 7"), (7, None));
    assert_eq!(size("replicas: 7\nautoscaling: {mode: Manual, maxReplicas: 4}"), (7, None));
    assert_eq!(size("replicas: 7\nautoscaling: {mode: External, maxReplicas: 4}"), (4, Some(7)));
    assert_eq!(size("replicas: 0\nautoscaling: {mode: External, maxReplicas: 4}"), (1, Some(0)));
    assert_eq!(size("replicas: 7\nsuspend: true\nautoscaling: {mode: External, maxReplicas: 4}"), (0, None));
}

#[test]
fn shared_memory_is_part_of_the_pods_memory() {
    let memory = |lines: &str| {
        let worker = pipeline(lines).worker;
        (worker.requests["memory"].0.clone(), worker.limits["memory"].0.clone())
    };
    // 300 MB are not a whole number of pages.
    let needed =
        Quantity(((1u64 << 30) + (256 << 20) + (512 << 20) + PROGRAM_BYTES).next_multiple_of(1 << 20))
            .to_string();
    assert_eq!(needed, "2079Mi");
    assert_eq!(memory(""), (needed.clone(), needed));
    assert_eq!(memory("worker: {resources: {limits: {memory: 2Gi}}}"), ("3Gi".into(), "3Gi".into()));
    assert_eq!(
        memory("worker: {resources: {requests: {memory: 1536Mi}, limits: {memory: 2Gi}}}"),
        ("2560Mi".into(), "3Gi".into())
    );
    assert_eq!(pipeline("").worker.requests["cpu"].0, "1");
    assert_eq!(pipeline("worker: {resources: {limits: {cpu: 500m}}}").worker.requests["cpu"].0, "500m");
}

#[test]
fn one_per_node_replaces_one_after_another() {
    let number = |number: i32| IntOrString::Int(number);
    assert_eq!(pipeline("").update, (IntOrString::String("25%".into()), number(0)));
    assert_eq!(pipeline("placement: {spread: {mode: OnePerNode}}").update, (number(0), number(1)));
    assert_eq!(pipeline("updateStrategy: {maxSurge: 0}").update, (number(0), number(1)));
}

#[test]
fn no_text_of_a_spec_is_another_one_in_the_document() {
    let texts = [
        "yes",
        "null",
        "~",
        "1e3",
        "0x10",
        "2024-01-01",
        " a: b ",
        "- x",
        "{{ a }}\n  \"b\": 'c'\n\n",
        "#",
        "é\u{1F600}\t",
        "",
    ];
    let mut raw = stored("");
    let spec = &mut raw.spec;
    spec.processor.template_kwargs =
        texts.iter().enumerate().map(|(number, text)| (format!("k{number}"), Value::from(*text))).collect();
    spec.processor
        .template_kwargs
        .insert("nested".into(), json!({"z": {}, "a": [null, 1.5, true], "long": "x".repeat(5000)}));
    spec.streams[0].datasets[0].template = Some(texts.join("\n"));
    let document = validate(&raw).unwrap().document;
    let read = serde_saphyr::from_str::<Pipeline>(&document).unwrap().spec;
    assert_eq!((read.processor, read.streams), (raw.spec.processor, raw.spec.streams));
}

#[test]
fn requests_beyond_their_limit_were_lowered_without_a_word_or_refused_by_the_api_server_alone() {
    let refused = |resources: &str| {
        let found = validate(&stored(&format!("worker: {{resources: {resources}}}")));
        found.err().unwrap_or_default().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    for (name, resources, words) in [
        (
            "memory",
            "{requests: {memory: 4Gi}, limits: {memory: 2Gi}}",
            "4Gi must not be more than limits.memory, 2Gi",
        ),
        ("cpu", "{requests: {cpu: 1500m}, limits: {cpu: 1}}", "1500m must not be more than limits.cpu, 1"),
        (
            "ephemeral-storage",
            "{requests: {ephemeral-storage: 2G}, limits: {ephemeral-storage: 1Gi}}",
            "2G must not be more than limits.ephemeral-storage, 1Gi",
        ),
    ] {
        assert_eq!(refused(resources), [format!("spec.worker.resources.requests.{name}: {words}")]);
    }
    for resources in
        ["{requests: {cpu: 1000m, memory: 2Gi}, limits: {cpu: 1, memory: 2048Mi}}", "{requests: {cpu: 64}}"]
    {
        assert_eq!(refused(resources), [""; 0], "{resources}");
    }
}

#[test]
fn an_amount_that_is_none_was_told_by_the_api_server_without_its_field() {
    let errors =
        validate(&stored("worker: {resources: {requests: {cpu: eight, nvidia.com/gpu: one}}}")).unwrap_err();
    let words: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let field = "spec.worker.resources.requests";
    let rest = "must be an amount such as 8, 500m or 2Gi, not below 0";
    assert_eq!(
        words,
        [format!("{field}.cpu: \"eight\" {rest}"), format!("{field}.nvidia.com/gpu: \"one\" {rest}")]
    );
}
