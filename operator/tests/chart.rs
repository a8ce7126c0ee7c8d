//! The chart, linted and rendered by a real helm where there is one.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod chart_page;
mod tools;

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

/// Runs helm on the chart; none where there is no helm, which is told.
fn run(arguments: &[&str]) -> Option<Output> {
    let mut helm = tools::tool("helm", "chart tests")?;
    let (verb, rest) = arguments.split_first().unwrap();
    let name: &[&str] = if *verb == "template" { &["feedmill"] } else { &[] };
    let output = helm
        .arg(verb)
        .args(name)
        .arg("charts/feedmill")
        .args(["--namespace", "feedmill-system"])
        .args(rest)
        // Where it would put what it remembers.
        .env("HELM_CACHE_HOME", std::env::temp_dir())
        .output()
        .unwrap();
    Some(output)
}

fn rendered(arguments: &[&str]) -> Option<Vec<Value>> {
    let output = run(&[&["template", "--kube-version", "1.30.0"], arguments].concat())?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let documents = text.split("\n---\n").map(|part| part.strip_prefix("---\n").unwrap_or(part));
    let read =
        |part: &str| serde_saphyr::from_str::<Value>(part).unwrap_or_else(|error| panic!("{error}:\n{part}"));
    Some(documents.filter(|part| part.contains("apiVersion")).map(read).collect())
}

fn of<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|object| object["kind"] == kind).collect()
}

#[test]
fn the_chart_is_clean() {
    let Some(output) = run(&["lint", "--strict"]) else { return };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn by_default_two_operators_run_restricted_and_read_no_secrets() {
    let Some(objects) = rendered(&[]) else { return };
    let deployment = of(&objects, "Deployment")[0];
    assert_eq!(deployment["spec"]["replicas"], 2);
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(
        pod["securityContext"],
        json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}})
    );
    let container = &pod["containers"][0];
    assert_eq!(
        container["securityContext"],
        json!({"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}})
    );
    assert_eq!(container["image"], "feedmill/operator:0.1.0");
    for role in of(&objects, "ClusterRole").into_iter().chain(of(&objects, "Role")) {
        for rule in role["rules"].as_array().unwrap() {
            let words = rule.to_string();
            assert!(!words.contains("secrets") && !words.contains('*'), "{words}");
        }
    }
    let definition = of(&objects, "CustomResourceDefinition")[0];
    assert_eq!(definition["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
}

#[test]
fn a_namespaced_installation_has_no_right_beyond_its_namespace() {
    let Some(objects) = rendered(&["--set", "namespaced=true"]) else { return };
    assert!(of(&objects, "ClusterRole").is_empty() && of(&objects, "ClusterRoleBinding").is_empty());
    for object in of(&objects, "Role").into_iter().chain(of(&objects, "RoleBinding")) {
        assert_eq!(object["metadata"]["namespace"], "feedmill-system");
        assert!(!object.to_string().contains("\"nodes\""));
    }
    let arguments =
        of(&objects, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0]["args"].to_string();
    assert!(
        arguments.contains("--namespace=feedmill-system") && arguments.contains("--without-nodes"),
        "{arguments}"
    );
}

#[test]
fn values_reach_the_objects() {
    let digest = format!("sha256:{}", "0".repeat(64));
    let image = format!("worker.image.digest={digest}");
    let Some(objects) = rendered(&[
        "--set",
        "global.imageRegistry=registry.example/mirror/",
        "--set",
        "global.imagePullSecrets={registry}",
        "--set",
        &image,
        "--set",
        "operator.image.tag=other",
        "--set",
        "operator.podLabels.team=infra",
        "--set",
        "serviceAccount.name=mine",
        "--set",
        "crds.enabled=false",
        "--set",
        "rbac.aggregate=false",
        "--set",
        "replicas=1",
        "--set",
        "metrics.podMonitor=true",
        "--set",
        "metrics.namespace=monitoring",
    ]) else {
        return;
    };
    let template = &of(&objects, "Deployment")[0]["spec"]["template"];
    assert_eq!(template["metadata"]["labels"]["team"], "infra");
    assert_eq!(template["spec"]["containers"][0]["image"], "registry.example/mirror/feedmill/operator:other");
    assert_eq!(template["spec"]["serviceAccountName"], "mine");
    assert_eq!(template["spec"]["imagePullSecrets"], json!([{"name": "registry"}]));
    let arguments = template["spec"]["containers"][0]["args"].to_string();
    for argument in [
        format!("--worker-image=registry.example/mirror/feedmill/worker@{digest}"),
        "--worker-pull-secret=registry".into(),
        "--accelerator-label=nvidia.com/gpu.present".into(),
        "--monitoring-namespace=monitoring".into(),
    ] {
        assert!(arguments.contains(&argument), "{argument} in {arguments}");
    }
    for kind in ["ServiceAccount", "CustomResourceDefinition", "PodDisruptionBudget"] {
        assert!(of(&objects, kind).is_empty(), "{kind}");
    }
    assert_eq!((of(&objects, "PodMonitor").len(), of(&objects, "ClusterRole").len()), (2, 1));
}

/// Its account, and an image that is there anyway: `helm test` pulls nothing.
#[test]
fn a_test_looks_whether_an_operator_is_at_work() {
    let Some(objects) =
        rendered(&["--set", "namespaced=true", "--set", "global.imagePullSecrets={registry}"])
    else {
        return;
    };
    let pod = of(&objects, "Pod")[0];
    assert_eq!(pod["metadata"]["annotations"]["helm.sh/hook"], "test");
    let deployment = &of(&objects, "Deployment")[0]["spec"]["template"]["spec"];
    for field in ["serviceAccountName", "imagePullSecrets", "securityContext"] {
        assert_eq!(pod["spec"][field], deployment[field], "{field}");
    }
    let (test, operator) = (&pod["spec"]["containers"][0], &deployment["containers"][0]);
    for field in ["image", "imagePullPolicy", "securityContext"] {
        assert_eq!(test[field], operator[field], "{field}");
    }
    // Alerts and the disruption budget must not take it for an operator.
    let selector = &of(&objects, "Deployment")[0]["spec"]["selector"]["matchLabels"];
    assert_ne!(pod["metadata"]["labels"]["app.kubernetes.io/name"], selector["app.kubernetes.io/name"]);
    is_understood(&test["args"]);
}

/// The program goes on with these arguments, as a container gets them, to where an API server would be.
fn is_understood(arguments: &Value) {
    // Of $$ Kubernetes makes $.
    let given = |argument: &Value| argument.as_str().unwrap().replace("$$", "$");
    let output = Command::new(env!("CARGO_BIN_EXE_feedmill-operator"))
        .args(arguments.as_array().unwrap().iter().map(given))
        .env("POD_NAME", "operator")
        .env("POD_NAMESPACE", "feedmill-system")
        .env("KUBECONFIG", "/nowhere")
        .env_remove("KUBERNETES_SERVICE_HOST")
        .env("HOME", "/nowhere")
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("no API server"), "{error}");
}

fn values() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/feedmill/values.yaml");
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn every_value_says_what_it_means() {
    let lines = chart_page::lines(&values());
    assert!(lines.len() > 30, "{} values", lines.len());
    for line in lines {
        assert!(!line.meaning.is_empty(), "{} has no comment", line.path);
    }
}

#[test]
fn the_page_of_the_chart_is_made_from_its_values() {
    let (path, made) = (
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/feedmill/README.md"),
        chart_page::page(&values()),
    );
    if std::env::var_os("FEEDMILL_WRITE_DOCS").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    assert!(std::fs::read_to_string(&path).is_ok_and(|stands| stands == made), "it differs; run: make docs");
}

#[test]
fn monitoring_is_off_until_it_is_asked_for() {
    let Some(objects) = rendered(&[]) else { return };
    for kind in ["PodMonitor", "PrometheusRule", "ConfigMap"] {
        assert!(of(&objects, kind).is_empty(), "{kind}");
    }
}

#[test]
fn alerts_reach_prometheus_as_the_file_has_them() {
    let arguments = [
        "--set",
        "metrics.rules=true",
        "--set",
        "metrics.labels.release=prometheus",
        "--set",
        "metrics.runbooks=https://wiki.example/feedmill/",
        "--set",
        "metrics.disabledRules={FeedmillLeaderAbsent,FeedmillReconcileErrors,FeedmillSpreadBroken}",
    ];
    let Some(objects) = rendered(&arguments) else { return };
    let rule = of(&objects, "PrometheusRule")[0];
    assert_eq!(rule["metadata"]["labels"]["release"], "prometheus");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/feedmill/rules/feedmill.yaml");
    let mut expected: Value = serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let groups = expected["groups"].as_array_mut().unwrap();
    // Both of its alerts are left out, so the last group is, too.
    groups.pop().unwrap();
    for group in groups {
        let rules = group["rules"].as_array_mut().unwrap();
        rules.retain(|rule| rule["alert"] != "FeedmillSpreadBroken");
        for rule in rules {
            let page = format!("https://wiki.example/feedmill/{}.md", rule["alert"].as_str().unwrap());
            rule["annotations"]["runbook_url"] = page.into();
        }
    }
    assert_eq!(rule["spec"], expected);
}

#[test]
fn the_dashboard_is_found_by_its_label() {
    let Some(objects) = rendered(&["--set", "metrics.dashboard=true"]) else { return };
    let map = of(&objects, "ConfigMap")[0];
    assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/feedmill/dashboards/feedmill.json");
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let rendered = map["data"]["feedmill.json"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(rendered).unwrap(), dashboard);
}

/// A figure's namespace is its pipeline's, and workers' series say their pipeline as the operator's do.
#[test]
fn series_of_operator_and_workers_can_be_joined() {
    let Some(objects) = rendered(&["--set", "metrics.podMonitor=true"]) else { return };
    let endpoints: Vec<&Value> =
        of(&objects, "PodMonitor").iter().map(|monitor| &monitor["spec"]["podMetricsEndpoints"][0]).collect();
    assert_eq!(endpoints[0]["honorLabels"], true);
    assert_eq!(endpoints[1]["relabelings"][0]["targetLabel"], "pipeline");
    let workers = "__meta_kubernetes_pod_label_feedmill_dev_pipeline";
    assert_eq!(endpoints[1]["relabelings"][0]["sourceLabels"], json!([workers]));
}

#[test]
fn values_that_make_no_sense_are_refused() {
    for value in [
        "replicas=0",
        "operator.image.digest=latest",
        "crds.kep=true",
        "nodes.read=maybe",
        "operator.concurrency=0",
        "operator.requestsPerSecond=1",
        "operator.prometheus.main.url=http://p",
        "operator.prometheus.Main.url=http://p,operator.prometheus.Main.wait=w,operator.prometheus.Main.fill=f",
        "operator.prometheus.main.url=ftp://p,operator.prometheus.main.wait=w,operator.prometheus.main.fill=f",
        "worker.image.pullPolicy=Always",
        "metrics.rules=maybe",
        "metrics.runbooks=wiki",
    ] {
        let Some(output) = run(&["template", "--kube-version", "1.30.0", "--set", value]) else { return };
        assert!(!output.status.success(), "{value}");
    }
    for more in [
        r#""tokenSecret":{"name":"t"}"#,
        r#""caSecret":{"name":"c","key":"../k"}"#,
        r#""serviceAccountToken":"""#,
    ] {
        let value = server("https", more);
        let arguments = ["template", "--kube-version", "1.30.0", "--set-json", &value];
        let Some(output) = run(&arguments) else { return };
        assert!(!output.status.success(), "{value}");
    }
    let Some(output) = run(&["template", "--kube-version", "1.29.0"]) else { return };
    assert!(!output.status.success(), "Kubernetes 1.29");
}

/// A Prometheus server with these fields, as a value.
fn server(scheme: &str, more: &str) -> String {
    format!(r#"operator.prometheus={{"main":{{"url":"{scheme}://p","wait":"w","fill":"f",{more}}}}}"#)
}

/// A schema says of them that 'not' failed, or nothing.
#[test]
fn contradictions_of_values_were_refused_without_words_or_accepted() {
    let token = r#""tokenSecret":{"name":"t","key":"k"}"#;
    let account = r#""serviceAccountToken":true"#;
    let ca = r#""caSecret":{"name":"c","key":"k"}"#;
    let other_ca = r#""caConfigMap":{"name":"c","key":"k"}"#;
    for (value, words) in [
        (
            server("https", &format!("{token},{account}")),
            "operator.prometheus.main has tokenSecret and serviceAccountToken; only one token",
        ),
        (
            server("https", &format!("{ca},{other_ca}")),
            "operator.prometheus.main has caConfigMap and caSecret;",
        ),
        (server("http", token), "operator.prometheus.main has a token for http://p, where whoever listens"),
        (server("http", account), "operator.prometheus.main has a token for http://p, where whoever listens"),
        (
            server("http", ca),
            "operator.prometheus.main has authorities for http://p, which shows no certificate",
        ),
        (server("http", other_ca), "operator.prometheus.main has authorities for http://p"),
        (
            r#"metrics.disabledRules=["FeedmillNoSuch"]"#.into(),
            "metrics.disabledRules has FeedmillNoSuch, which is no alert of this chart; there are FeedmillGpuWaiting, FeedmillMaxWorkersReached,",
        ),
        (
            r#"nodes.acceleratorLabels=["bad label"]"#.into(),
            r#"nodes.acceleratorLabels has "bad label", which no label of a node can be called"#,
        ),
        (r#"nodes.acceleratorLabels=["gpu=true"]"#.into(), "without a value"),
        (r#"operator.log="blah""#.into(), r#"operator.log has "blah", which is no level; write off, error,"#),
        (r#"operator.log="info,kube=loud""#.into(), r#"operator.log has "kube=loud""#),
    ] {
        let arguments = ["template", "--kube-version", "1.30.0", "--set-json", &value];
        let Some(output) = run(&arguments) else { return };
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(words), "{value}: {error}");
    }
    for value in [
        &server("https", &format!("{token},\"serviceAccountToken\":false,{ca}")),
        r#"operator.log="info,feedmill_operator::run=debug, kube=OFF""#,
        r#"operator.log="warn,[reconcile{name=a}]=trace""#,
        r#"nodes.acceleratorLabels=["gpu", "habana.ai/gaudi"]"#,
        r#"metrics.disabledRules=["FeedmillGpuWaiting"]"#,
    ] {
        let Some(_) = rendered(&["--set-json", value]) else { return };
    }
}

/// What an operator is started with is what it understands.
#[test]
fn the_program_understands_the_charts_arguments() {
    let query = r#"operator.prometheus.main.wait=max(w{n="$namespace"\,p=~"^$(a|b)$$"}) < 1"#;
    let Some(objects) = rendered(&[
        "--set",
        "namespaced=true",
        "--set",
        "metrics.namespace=m",
        "--set",
        "operator.prometheus.main.url=http://prometheus:9090",
        "--set",
        query,
        "--set",
        "operator.prometheus.main.fill=f",
    ]) else {
        return;
    };
    let args = &of(&objects, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0]["args"];
    let server = args
        .as_array()
        .unwrap()
        .iter()
        .find_map(|argument| argument.as_str()?.strip_prefix("--prometheus=main="));
    let server: Value = serde_json::from_str(server.unwrap()).unwrap();
    // Kubernetes would take $( for the beginning of a variable, and two of them for one.
    assert_eq!(server["wait"], r#"max(w{n="$$namespace",p=~"^$$(a|b)$$$$"}) < 1"#);
    is_understood(args);
}

/// Files that are not there keep no operator from starting, and a server over plain HTTP needs none.
#[test]
fn tokens_and_authorities_of_prometheus_are_mounted() {
    let servers = json!({
        "a": {"url": "https://a", "wait": "w", "fill": "f", "tokenSecret": {"name": "ta", "key": "t"}, "caSecret": {"name": "ca", "key": "ca.crt"}},
        "b": {"url": "https://b", "wait": "w", "fill": "f", "serviceAccountToken": true, "caConfigMap": {"name": "cb", "key": "service-ca.crt"}},
        "c": {"url": "https://c", "wait": "w", "fill": "f", "serviceAccountToken": "prometheus"},
        "d": {"url": "http://d", "wait": "w", "fill": "f"},
    });
    let arguments = |servers: &Value| ["--set-json".to_owned(), format!("operator.prometheus={servers}")];
    let all = arguments(&servers);
    let Some(objects) = rendered(&["--set", "namespaced=true", &all[0], &all[1]]) else { return };
    let pod = &of(&objects, "Deployment")[0]["spec"]["template"]["spec"];
    let file = |name: &str, key: &str, path: &str| json!({"name": name, "optional": true, "items": [{"key": key, "path": path}]});
    assert_eq!(
        pod["volumes"],
        json!([{"name": "prometheus", "projected": {"sources": [
            {"secret": file("ca", "ca.crt", "a/ca")},
            {"secret": file("ta", "t", "a/token")},
            {"configMap": file("cb", "service-ca.crt", "b/ca")},
            {"serviceAccountToken": {"audience": "prometheus", "path": "c/token"}},
        ]}}])
    );
    let container = &pod["containers"][0];
    let at = "/etc/feedmill/prometheus";
    assert_eq!(container["volumeMounts"], json!([{"name": "prometheus", "mountPath": at, "readOnly": true}]));
    let files = container["args"].as_array().unwrap().iter().filter_map(|argument| {
        let (name, given) = argument.as_str()?.strip_prefix("--prometheus=")?.split_once('=')?;
        let given: Value = serde_json::from_str(given).unwrap();
        Some((name.to_owned(), given["ca"].clone(), given["token"].clone()))
    });
    let path = |text: &str| Value::from(format!("{at}/{text}"));
    assert_eq!(
        files.collect::<Vec<_>>(),
        [
            ("a".into(), path("a/ca"), path("a/token")),
            ("b".into(), path("b/ca"), json!("/var/run/secrets/kubernetes.io/serviceaccount/token")),
            ("c".into(), Value::Null, path("c/token")),
            ("d".into(), Value::Null, Value::Null),
        ]
    );
    is_understood(&container["args"]);
    let plain = arguments(&json!({"d": servers["d"]}));
    let Some(objects) = rendered(&[&plain[0], &plain[1]]) else { return };
    let pod = &of(&objects, "Deployment")[0]["spec"]["template"]["spec"];
    assert_eq!((&pod["volumes"], &pod["containers"][0]["volumeMounts"]), (&Value::Null, &Value::Null));
}
