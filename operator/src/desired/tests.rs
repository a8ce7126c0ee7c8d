use std::path::Path;

use super::*;
use crate::validate::tests::{installation, pipeline};

const EVERYTHING: &str = r#"
suspend: false
replicas: 4
s3: {region: eu-west-1, endpoint: "http://s3:9000", forcePathStyle: true, credentialsSecretRef: {name: s3-keys}}
placement:
  spread: {mode: Even, maxSkew: 2, whenUnsatisfiable: DoNotSchedule, topologyKey: topology.kubernetes.io/zone}
  gpuNodes: Allow
  nodeSelector: {pool: cpu}
  tolerations: [{key: pool, operator: Equal, value: cpu, effect: NoSchedule}]
  priorityClassName: training
updateStrategy: {maxSurge: 2, maxUnavailable: 1}
disruptionBudget: {maxUnavailable: 1}
drainSeconds: 30
serving: {tokenSecretRef: {name: token}, tlsSecretRef: {name: tls}}
networkPolicy: {enabled: true, trainers: [{podSelector: {matchLabels: {app: trainer}}}]}
worker:
  image: registry.example/worker@sha256:0000
  imagePullPolicy: IfNotPresent
  imagePullSecrets: [{name: own}]
  serviceAccountAnnotations: {eks.amazonaws.com/role-arn: "arn:aws:iam::1:role/r"}
  resources: {requests: {cpu: "4"}, limits: {memory: 2Gi}}
  env: [{name: RUST_LOG, value: debug}]
  labels: {team: vision}
  annotations: {note: x}
"#;

const OPEN: &str = r#"
s3: {endpoint: "https://s3:9000", caBundleRef: {kind: Secret, name: authorities}}
podTemplate:
  metadata: {annotations: {note: x}}
  spec:
    runtimeClassName: gvisor
    containers: [{name: worker, volumeMounts: [{name: models, mountPath: /models, readOnly: true}]}, {name: side, image: "side:1"}]
    volumes: [{name: models, persistentVolumeClaim: {claimName: models}}]
"#;

/// All objects as one YAML text.
fn rendered(lines: &str, agreed: Option<&Agreed>) -> String {
    let (pipeline, installation) = (pipeline(lines), installation());
    let model = Model { template: template(&pipeline, &installation), document: pipeline.document.clone() };
    let Desired { service_account, document, plan, service, deployment, disruption_budget, network_policy } =
        desired(&pipeline, &installation, model, agreed);
    let mut text = String::new();
    let mut add = |value: serde_json::Value| {
        if !value.is_null() {
            text += &format!("---\n{}", serde_saphyr::to_string(&value).unwrap());
        }
    };
    let json = |object: Result<serde_json::Value, serde_json::Error>| object.unwrap();
    add(json(serde_json::to_value(&service_account)));
    add(json(serde_json::to_value(&document)));
    add(json(serde_json::to_value(&plan)));
    add(json(serde_json::to_value(&service)));
    add(json(serde_json::to_value(&deployment)));
    add(json(serde_json::to_value(&disruption_budget)));
    add(json(serde_json::to_value(&network_policy)));
    text
}

fn golden(name: &str, made: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("FEEDMILL_WRITE_DOCS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, made).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == made,
        "{} differs from what is rendered; running fleets keep what they were made from until their spec changes. If that is meant, \
         run `make docs`. Rendered:\n{made}",
        path.display()
    );
}

#[test]
fn objects_are_rendered_as_they_were() {
    let agreed = Agreed {
        inputs: "0123456789abcdef".into(),
        digests: BTreeMap::from([("train".into(), "sha256:00".into())]),
    };
    golden("defaults.yaml", &rendered("", None));
    golden("everything.yaml", &rendered(EVERYTHING, Some(&agreed)));
    golden("open.yaml", &rendered(OPEN, None));
    golden("one-per-node.yaml", &rendered("placement: {spread: {mode: OnePerNode}}", None));
}

#[test]
fn inputs_are_hashed_as_they_were() {
    // Another hash of the same resource replaces every fleet at an upgrade of the operator; another one of its plan stops them all first.
    let hashes = |lines: &str| {
        let pipeline = pipeline(lines);
        [pipeline.plan_inputs, pipeline.template_inputs]
    };
    let all = ["", EVERYTHING, "placement: {spread: {mode: OnePerNode}}"].map(hashes);
    let plan = "v1-8bba5f5dd62c897d";
    assert_eq!(
        all,
        [[plan, "v1-0c51db24eaa18f02"], [plan, "v1-7a1f4694859e4f8e"], [plan, "v1-a00f684e2eb8408c"]]
    );
}

#[test]
fn what_no_pod_is_made_from_replaces_none() {
    let inputs = |lines: &str| pipeline(lines).template_inputs;
    for lines in [
        "replicas: 9",
        "suspend: true",
        "autoscaling: {mode: External, maxReplicas: 4}",
        "updateStrategy: {maxSurge: 0}",
        "disruptionBudget: {maxUnavailable: 1}",
        "networkPolicy: {enabled: true}",
        "worker: {serviceAccountAnnotations: {a: b}}",
        // Defaults that are written out.
        "drainSeconds: 60",
        "worker: {}",
        "placement: {gpuNodes: Avoid, spread: {maxSkew: 1}}",
        "serving: {maxRange: 64}",
    ] {
        assert_eq!(inputs(lines), inputs(""), "{lines}");
    }
    for lines in ["drainSeconds: 30", "worker: {labels: {a: b}}", "serving: {tlsSecretRef: {name: t}}"] {
        assert_ne!(inputs(lines), inputs(""), "{lines}");
    }
}

#[test]
fn the_number_of_workers_is_in_no_object() {
    for lines in ["replicas: 9", "replicas: 0", "suspend: true"] {
        assert_eq!(rendered(lines, None), rendered("", None));
    }
    assert!(!rendered("replicas: 9", None).contains("replicas:"));
}

#[test]
fn no_name_of_an_object_is_too_long_for_the_longest_pipeline() {
    let names = Names::of(&"a".repeat(52));
    for name in [names.service, names.worker, names.plan] {
        assert!(name.len() <= 63, "{name}");
    }
}

#[test]
fn a_user_cannot_take_the_pods_away_from_the_selector() {
    let mut pipeline = pipeline("");
    // As if it had come past the rules.
    pipeline.worker.labels.insert(PIPELINE.into(), "other".into());
    let labels = template(&pipeline, &installation()).metadata.unwrap().labels.unwrap();
    assert!(selector("qwen3vl-sft").iter().all(|(key, value)| labels.get(key) == Some(value)));
}
