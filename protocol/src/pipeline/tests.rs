use super::*;

const GOOD: &str = r#"
apiVersion: feedmill.dev/v1alpha1
kind: DataPipeline
metadata: {name: qwen3vl-sft, labels: {team: vision}}
spec:
  s3: {region: eu-west-1, forcePathStyle: true}
  streams:
  - name: train
    seed: 42
    datasets:
    - {name: chartqa, uri: "s3://b/train.jsonl", imageBaseUri: "s3://b/images/", percent: 250}
  - name: eval
    purpose: Evaluation
    datasets: [{name: held-out, uri: "file:///data/eval.jsonl"}]
  processor: {uri: "s3://b/qwen3-vl/", minPixels: 65536, maxPixels: 1048576, maxTokens: 8192}
  cache: {sharedMemory: 512Mi, fetch: 268435456}
"#;

fn read(yaml: &str) -> Pipeline {
    serde_saphyr::from_str(yaml).unwrap()
}

#[test]
fn a_good_pipeline_gets_its_defaults() {
    let pipeline = read(GOOD).validate().unwrap();
    assert_eq!(pipeline.streams[0].bad_samples, spec::BadSamplePolicy::Substitute);
    assert_eq!(pipeline.streams[1].bad_samples, spec::BadSamplePolicy::ZeroLoss);
    assert!(pipeline.streams[1].shuffle);
    assert_eq!(pipeline.cache.shared_memory, Quantity(512 << 20));
    assert_eq!(pipeline.cache.fetch, Quantity(256 << 20));
    assert_eq!(pipeline.max_range, 64);
}

#[test]
fn contradictions_name_their_field() {
    let cases = [
        ("v1alpha1", "v1", "apiVersion"),
        ("kind: DataPipeline", "kind: Deployment", "kind"),
        ("qwen3vl-sft", "Qwen_3", "metadata.name"),
        ("name: eval", "name: train", "spec.streams"),
        ("seed: 42", "seed: 9007199254740992", "spec.streams[0].seed"),
        ("percent: 250", "percent: 0", "spec.streams[0].datasets[0].percent"),
        ("percent: 250", "percent: 100, exclude: [0]", "spec.streams[0].datasets[0].exclude"),
        ("s3://b/train.jsonl", "gs://b/train.jsonl", "spec.streams[0].datasets[0].uri"),
        ("s3://b/images/", "images/", "spec.streams[0].datasets[0].imageBaseUri"),
        ("name: chartqa", "name: \"chart qa\"", "spec.streams[0].datasets[0].name"),
        ("percent: 250", "imageRoots: [\"/images\"]", "spec.streams[0].datasets[0].imageRoots[0]"),
        (
            "percent: 250",
            "imagePrefixes: [{from: \"/mnt\", to: \"\"}]",
            "spec.streams[0].datasets[0].imagePrefixes[0].from",
        ),
        (
            "percent: 250",
            "imagePrefixes: [{from: \"/mnt/\", to: \"../x\"}]",
            "spec.streams[0].datasets[0].imagePrefixes[0].to",
        ),
        (
            "percent: 250",
            "imagePrefixes: [{from: \"/mnt/\", to: \"gs://b/x\"}]",
            "spec.streams[0].datasets[0].imagePrefixes[0].to",
        ),
        ("percent: 250", "columns: {question: q, answer: q}", "spec.streams[0].datasets[0].columns"),
        ("percent: 250", "template: \"[]\", columns: {question: q}", "spec.streams[0].datasets[0].columns"),
        (
            "percent: 250",
            "template: \"[]\", recordFormat: Messages",
            "spec.streams[0].datasets[0].recordFormat",
        ),
        ("percent: 250", "template: \"\"", "spec.streams[0].datasets[0].template"),
        ("minPixels: 65536", "minPixels: 2097152", "spec.processor.minPixels"),
        ("maxTokens: 8192", "maxTokens: 0", "spec.processor.maxTokens"),
        ("maxTokens: 8192", "date: \"2026-02-29\"", "spec.processor.date"),
        ("forcePathStyle: true", "endpoint: \"localhost:9000\"", "spec.s3.endpoint"),
        ("fetch: 268435456", "fetch: 1Mi", "spec.cache.fetch"),
        ("sharedMemory: 512Mi", "sharedMemory: 1Mi", "spec.cache.sharedMemory"),
    ];
    for (from, to, field) in cases {
        let changed = GOOD.replace(from, to);
        assert_ne!(changed, GOOD, "{from}");
        let errors = read(&changed).validate().unwrap_err();
        assert!(errors.iter().any(|e| e.field == field), "{from} -> {to} gave {errors:?}");
    }
}

#[test]
fn two_data_sets_of_one_name_could_not_be_told_apart_in_metrics() {
    let second = "percent: 250}\n    - {name: chartqa, uri: \"s3://b/other.jsonl\"}";
    let errors = read(&GOOD.replace("percent: 250}", second)).validate().unwrap_err();
    assert_eq!(errors[0].to_string(), "spec.streams[0].datasets: the name \"chartqa\" stands twice");
    let same_file = "percent: 250}\n    - {name: again, uri: \"s3://b/train.jsonl\"}";
    assert!(read(&GOOD.replace("percent: 250}", same_file)).validate().is_ok());
}

#[test]
fn numbers_that_are_not_whole_name_their_field_and_what_is_allowed() {
    let cases = [
        ("percent: 250", "percent: 12.5", "percent must be a whole number from 1 to 100000, not 12.5"),
        ("percent: 250", "percent: -1", "percent must be a whole number from 1 to 100000, not -1"),
        ("percent: 250", "percent: 5000000000", "not 5000000000"),
        ("seed: 42", "seed: -1", "seed must be a whole number from 0 to 2^53-1, not -1"),
        ("seed: 42", "seed: lucky", "seed must be a whole number from 0 to 2^53-1, not \"lucky\""),
        ("maxTokens: 8192", "maxTokens: 8e3", "maxTokens must be a whole number"),
        ("minPixels: 65536", "minPixels: 0.5", "minPixels must be a whole number from 1 to 2^32, not 0.5"),
    ];
    for (from, to, message) in cases {
        let changed = GOOD.replace(from, to);
        assert_ne!(changed, GOOD, "{from}");
        let error = serde_saphyr::from_str::<Pipeline>(&changed).unwrap_err().to_string();
        assert!(error.contains(message), "{to}: {error}");
    }
}

#[test]
fn unknown_fields_are_refused_by_name() {
    for (from, to) in [("seed: 42", "sed: 42"), ("percent: 250", "percnt: 250"), ("maxTokens", "maxToken")] {
        let error = serde_saphyr::from_str::<Pipeline>(&GOOD.replace(from, to)).unwrap_err();
        assert!(error.to_string().contains(to.split(':').next().unwrap()), "{error}");
    }
}

#[test]
fn quantities() {
    let cases = [("4Gi", 4 << 30), ("512Mi", 512 << 20), ("1G", 1_000_000_000), ("17", 17), ("3k", 3000)];
    for (text, bytes) in cases {
        assert_eq!(text.parse(), Ok(Quantity(bytes)));
    }
    for text in ["", "Gi", "-1", "1.5Gi", "1 Gi", "1gi", "99999999999Pi"] {
        assert!(text.parse::<Quantity>().is_err(), "{text}");
    }
    for bytes in [0, 1, 1023, 1024, 3 << 20, 5 << 30] {
        assert_eq!(Quantity(bytes).to_string().parse(), Ok(Quantity(bytes)));
    }
}

#[test]
fn an_endpoint_with_a_path_or_a_blank_was_accepted_and_tried_without_end() {
    let pattern = regex::Regex::new(spec::ENDPOINT).unwrap();
    let errors = |endpoint: &str| {
        let spec = format!("forcePathStyle: true, endpoint: {endpoint:?}");
        read(&GOOD.replace("forcePathStyle: true", &spec)).validate().err().unwrap_or_default()
    };
    for endpoint in [
        "http://minio:9000",
        "https://minio:9000/",
        "https://s3.eu-central-1.example",
        "http://10.0.0.1:9000",
        "http://[::1]:9000",
        "https://[fd00::1:2]",
        "http://object_store.team.svc.cluster.local:80",
    ] {
        assert_eq!(errors(endpoint), [], "{endpoint}");
        assert!(pattern.is_match(endpoint), "{endpoint}");
    }
    for endpoint in [
        "minio:9000",
        "s3://minio",
        "http://",
        "http:///",
        "http://:9000",
        "http://minio:9000 ",
        " http://minio:9000",
        "http://minio:9000/bucket",
        "http://minio:9000//",
        "http://minio:",
        "http://minio:port",
        "http://minio:900000",
        "http://minio:+80",
        "http://key:secret@minio:9000",
        "http://minio?x=1",
        "http://minio#x",
        "http://::1:9000",
        "http://[::1",
        "http://[minio]",
        "http://[::1]9000",
    ] {
        let errors = errors(endpoint);
        assert_eq!(errors.len(), 1, "{endpoint}");
        assert_eq!(errors[0].field, "spec.s3.endpoint");
        assert!(errors[0].reason.contains(&format!("{endpoint:?}")), "{errors:?}");
        assert!(!pattern.is_match(endpoint), "{endpoint}");
    }
    // What a pattern cannot say.
    for endpoint in ["http://minio:0", "http://minio:65536", "http://[::1::2]"] {
        assert_eq!(errors(endpoint).len(), 1, "{endpoint}");
    }
}
