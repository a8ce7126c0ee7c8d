//! What people see of a fleet: alerts with their pages, the dashboard, examples for autoscalers; all of it held against the metrics
//! that there are.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod dashboard;
mod tools;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Output;

use feedmill_operator::metrics::Metrics;
use feedmill_operator::scrape::Figures;
use feedmill_operator::validate::Key;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::{Value, json};

/// Labels that monitoring puts on every series; `pipeline` on workers' by the chart's PodMonitor.
const OF_TARGETS: [&str; 5] = ["namespace", "pod", "pipeline", "job", "instance"];
/// What a page on an alert tells.
const PARTS: [&str; 3] = ["## What it means", "## How to look", "## What to do"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn parsed(path: &str) -> Value {
    serde_saphyr::from_str(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// All rules of all groups.
fn rules() -> Vec<Value> {
    let file = parsed("charts/feedmill/rules/feedmill.yaml");
    let groups = file["groups"].as_array().unwrap();
    groups.iter().flat_map(|group| group["rules"].as_array().unwrap()).cloned().collect()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("no {key} in {value}"))
}

/// The operator's metrics, each with at least one series.
fn of_operator() -> String {
    let key = Key { namespace: "n".into(), name: "p".into() };
    let condition: Condition = serde_json::from_value(json!({
        "type": "Ready", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }))
    .unwrap();
    let metrics = Metrics::new().unwrap();
    metrics.written("Pod");
    metrics.reconciled("ok", 0.1);
    metrics.pipelines(1);
    metrics.leads();
    metrics.size(&key, 1, 1);
    metrics.decided(&key, "Enough");
    metrics.queried("main", "answered");
    metrics.trainers(&key, Some(Figures { ranks: 1, wait_permille: Some(1), queue_fill_percent: Some(1) }));
    metrics.conditions(&key, &[condition]);
    metrics.text().unwrap()
}

/// Every metric there is, with its labels: of the operator from its own words, of workers from the page that is made of theirs.
fn known() -> BTreeMap<String, BTreeSet<String>> {
    let (mut known, operator) = (BTreeMap::<String, BTreeSet<String>>::new(), of_operator());
    let mut put = |name: &str, kind: &str, labels: BTreeSet<String>| {
        let parts: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
        for part in parts {
            let mut labels = labels.clone();
            labels.extend((*part == "_bucket").then(|| "le".to_owned()));
            known.insert(format!("{name}{part}"), labels);
        }
    };
    for line in operator.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').unwrap();
        let series = operator.lines().find(|line| line.starts_with(name)).unwrap();
        let labels = series.split_once('{').map_or("", |(_, rest)| rest.split_once('}').unwrap().0);
        let labels = labels.split(',').filter_map(|pair| Some(pair.split_once('=')?.0.to_owned()));
        put(name, kind, labels.collect());
    }
    for row in read("docs/metrics.md").lines().filter_map(|line| line.strip_prefix("| `feedmill_")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let name = format!("feedmill_{}", cells[0].trim_matches('`'));
        let labels = cells[2].split(',').map(|label| label.trim().to_owned());
        put(&name, cells[1], labels.filter(|label| !label.is_empty()).collect());
    }
    known
}

/// Names that begin with `feedmill_` in a text, each with the labels that its braces select by.
fn named(text: &str) -> Vec<(String, Vec<String>)> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (start, _) in text.match_indices("feedmill_") {
        if text[..start].ends_with(word) {
            continue;
        }
        let rest = &text[start..];
        let (name, rest) = rest.split_at(rest.find(|c| !word(c)).unwrap_or(rest.len()));
        let selected =
            rest.strip_prefix('{').and_then(|rest| rest.split_once('}')).map_or("", |(inside, _)| inside);
        let labels = selected.split("\",").filter_map(|matcher| {
            let label = matcher.trim().split(|c| !word(c)).next()?;
            (!label.is_empty()).then(|| label.to_owned())
        });
        found.push((name.to_owned(), labels.collect()));
    }
    found
}

/// Expressions of panels and of what can be chosen.
fn drawn(dashboard: &Value) -> Vec<String> {
    let texts = |values: &Value, key: &str| -> Vec<String> {
        values
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|one| one[key].as_str().map(str::to_owned))
            .collect()
    };
    let panels = dashboard["panels"].as_array().unwrap();
    panels.iter().flat_map(|panel| texts(&panel["targets"], "expr")).collect()
}

#[test]
fn the_dashboard_is_made_from_code() {
    let path = root().join("charts/feedmill/dashboards/feedmill.json");
    let made = format!("{}\n", serde_json::to_string_pretty(&dashboard::dashboard()).unwrap());
    if std::env::var_os("FEEDMILL_WRITE_DOCS").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    assert!(std::fs::read_to_string(&path).is_ok_and(|stands| stands == made), "it differs; run: make docs");
}

#[test]
fn panels_lie_beside_each_other_and_explain_themselves() {
    let dashboard = dashboard::dashboard();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut taken = BTreeSet::new();
    for panel in panels {
        let place = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        for x in place("x")..place("x") + place("w") {
            assert!(x < 24, "{panel}");
            for y in place("y")..place("y") + place("h") {
                assert!(taken.insert((x, y)), "{panel}");
            }
        }
        if panel["type"] != "row" {
            assert!(text(panel, "description").ends_with('.'), "{panel}");
        }
    }
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
}

/// A misspelt metric is no error to Prometheus: it is an alert that never fires and a panel that stays empty.
#[test]
fn every_metric_and_label_that_is_named_exists() {
    let known = known();
    let mut places: Vec<(String, String)> = rules()
        .iter()
        .map(|rule| {
            (text(rule, "alert").to_owned(), format!("{} {}", text(rule, "expr"), rule["annotations"]))
        })
        .collect();
    places.extend(
        drawn(&dashboard::dashboard()).into_iter().map(|expression| ("a panel".to_owned(), expression)),
    );
    places.push(("what can be chosen".into(), dashboard::dashboard()["templating"].to_string()));
    places.push(("alerts.yaml".into(), read("operator/tests/alerts.yaml")));
    for file in ["keda-scaledobject.yaml", "prometheus-adapter.yaml"] {
        places.push((file.into(), read(&format!("examples/kubernetes/{file}"))));
    }
    let adapted =
        text(&parsed("examples/kubernetes/prometheus-adapter.yaml")["rules"]["external"][0]["name"], "as")
            .to_owned();
    let mut seen = 0;
    for (place, words) in &places {
        for (name, labels) in named(&words.replace("\\\"", "\"")) {
            if name == adapted {
                continue;
            }
            let Some(has) = known.get(&name) else { panic!("{place}: there is no metric {name}") };
            for label in labels {
                assert!(
                    has.contains(&label) || OF_TARGETS.contains(&label.as_str()),
                    "{place}: {name} has no label {label}"
                );
            }
            seen += 1;
        }
    }
    assert!(seen > 100, "{seen}");
    assert_eq!(
        named("feedmill_a{b=\"c\", d=~\"e\"} + x_feedmill_no"),
        [("feedmill_a".into(), vec!["b".into(), "d".into()])]
    );
}

/// What a label is compared with, alternatives one by one.
fn compared(text: &str, label: &str) -> Vec<String> {
    let mut found = Vec::new();
    for start in [format!("{label}=\""), format!("{label}=~\"")] {
        for (at, _) in text.match_indices(&start) {
            let rest = text[at + start.len()..].split('"').next().unwrap();
            found.extend(rest.split('|').map(str::to_owned));
        }
    }
    found
}

/// A condition or a reason that nobody writes is an alert that never fires.
#[test]
fn every_condition_and_reason_that_is_named_exists() {
    let (operations, autoscaling) = (read("docs/operations.md"), read("docs/autoscaling.md"));
    let words = |page: &str| -> BTreeSet<String> {
        page.split(|c: char| !c.is_ascii_alphanumeric()).map(str::to_owned).collect()
    };
    let reasons: BTreeSet<String> = words(&operations).union(&words(&autoscaling)).cloned().collect();
    let mut texts: Vec<String> = rules().iter().map(|rule| text(rule, "expr").to_owned()).collect();
    texts.extend(drawn(&dashboard::dashboard()));
    texts.push(read("operator/tests/alerts.yaml"));
    let mut seen = 0;
    for text in &texts {
        for kind in compared(text, "type") {
            assert!(operations.contains(&format!("**{kind}**")), "no condition {kind} in docs/operations.md");
            seen += 1;
        }
        for reason in compared(text, "reason") {
            assert!(
                reasons.contains(&reason),
                "no reason {reason} in docs/operations.md or docs/autoscaling.md"
            );
            seen += 1;
        }
    }
    assert!(seen > 30, "{seen}");
}

#[test]
fn the_operators_metrics_stand_in_its_page() {
    let (page, operator) = (read("docs/operations.md"), of_operator());
    for line in operator.lines().filter_map(|line| line.strip_prefix("# HELP ")) {
        let (name, help) = line.split_once(' ').unwrap();
        assert!(
            page.contains(&format!("| `{name}` |")) && page.contains(help),
            "docs/operations.md lacks {name}: {help}"
        );
    }
}

#[test]
fn every_alert_has_its_page_and_every_page_its_alert() {
    let mut alerts = BTreeSet::new();
    for rule in rules() {
        let name = text(&rule, "alert").to_owned();
        assert!(name.starts_with("Feedmill"), "{name}");
        assert!(["warning", "critical"].contains(&text(&rule["labels"], "severity")), "{name}");
        let annotations = &rule["annotations"];
        assert!(
            !text(annotations, "summary").contains("{{") && !text(annotations, "summary").ends_with('.'),
            "{name}"
        );
        assert!(text(annotations, "description").contains("$labels.namespace"), "{name} does not say where");
        let page = format!("https://github.com/feedmill/feedmill/blob/main/docs/runbooks/{name}.md");
        assert_eq!(text(annotations, "runbook_url"), page);
        alerts.insert(name);
    }
    let pages = std::fs::read_dir(root().join("docs/runbooks")).unwrap();
    let pages = pages.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let pages: BTreeSet<String> = pages.map(|name| name.strip_suffix(".md").unwrap().to_owned()).collect();
    assert_eq!(pages, alerts);
    let operations = read("docs/operations.md");
    for name in &alerts {
        let page = read(&format!("docs/runbooks/{name}.md"));
        assert!(page.starts_with(&format!("# {name}\n")), "{name}");
        let places: Vec<Option<usize>> = PARTS.iter().map(|part| page.find(part)).collect();
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{name}: {places:?}");
        assert!(
            operations.contains(&format!("[{name}](runbooks/{name}.md)")),
            "docs/operations.md does not name {name}"
        );
    }
}

#[test]
fn every_alert_is_tested_both_ways() {
    let file = parsed("operator/tests/alerts.yaml");
    let mut fires = BTreeSet::new();
    let mut silent = BTreeSet::new();
    for test in file["tests"].as_array().unwrap() {
        let checks = test["alert_rule_test"].as_array().unwrap();
        for check in checks {
            let none = check["exp_alerts"].as_array().unwrap().is_empty();
            // Not yet is not silent: what is silent is so throughout a test.
            let throughout = checks
                .iter()
                .filter(|other| other["alertname"] == check["alertname"])
                .all(|other| other["exp_alerts"].as_array().unwrap().is_empty());
            let name = text(check, "alertname").to_owned();
            if !none {
                fires.insert(name);
            } else if throughout {
                silent.insert(name);
            }
        }
    }
    let alerts: BTreeSet<String> = rules().iter().map(|rule| text(rule, "alert").to_owned()).collect();
    assert_eq!(fires, alerts);
    assert_eq!(silent, alerts);
}

/// Runs promtool; none where there is none, which is told.
fn promtool(arguments: &[&str]) -> Option<Output> {
    Some(tools::tool("promtool", "alert tests")?.args(arguments).output().unwrap())
}

fn must_succeed(output: &Output) {
    let told = [&output.stdout[..], &output.stderr[..]].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&told));
}

#[test]
fn alerts_fire_when_they_should_and_are_silent_otherwise() {
    let Some(output) = promtool(&["test", "rules", "operator/tests/alerts.yaml"]) else { return };
    must_succeed(&output);
}

/// Prometheus reads what the dashboard asks, the autoscalers' examples ask, and the rules.
#[test]
fn every_expression_can_be_read() {
    let mut expressions = drawn(&dashboard::dashboard());
    let keda = parsed("examples/kubernetes/keda-scaledobject.yaml");
    expressions.push(text(&keda["spec"]["triggers"][0]["metadata"], "query").to_owned());
    let adapter = parsed("examples/kubernetes/prometheus-adapter.yaml");
    let rule = &adapter["rules"]["external"][0];
    let query = text(rule, "metricsQuery").replace("<<.Series>>", "feedmill_trainer_queue_fill");
    expressions
        .push(query.replace("<<.LabelMatchers>>", "namespace=\"n\"").replace("<<.GroupBy>>", "namespace"));
    expressions.push(text(rule, "seriesQuery").to_owned());
    let records = expressions.iter().enumerate().map(|(number, expression)| {
        json!({"record": format!("expression_{number}"), "expr": expression.replace("$__rate_interval", "5m")})
    });
    let groups = json!({"groups": [{"name": "expressions", "rules": records.collect::<Vec<Value>>()}]});
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("expressions.json");
    std::fs::write(&file, groups.to_string()).unwrap();
    let Some(output) = promtool(&["check", "rules", file.to_str().unwrap()]) else { return };
    must_succeed(&output);
    must_succeed(&promtool(&["check", "rules", "charts/feedmill/rules/feedmill.yaml"]).unwrap());
}

/// An autoscaler that takes "no answer" for "nobody needs anything" takes a fleet away when Prometheus is down.
#[test]
fn autoscalers_of_the_examples_keep_the_fleet_while_they_see_nothing() {
    let keda = parsed("examples/kubernetes/keda-scaledobject.yaml");
    let spec = &keda["spec"];
    assert_eq!(spec["triggers"][0]["metadata"]["ignoreNullValues"], "false");
    assert_eq!(spec["triggers"][0]["metricType"], "AverageValue");
    assert_eq!(spec["fallback"]["behavior"], "currentReplicasIfHigher");
    assert!(spec["fallback"]["failureThreshold"].as_u64() > Some(1));
    let adapter = parsed("examples/kubernetes/prometheus-adapter.yaml");
    let rule = &adapter["rules"]["external"][0];
    // Filling in for what is missing would hide that it is.
    assert!(
        !text(rule, "metricsQuery").contains(" or ")
            && !text(&spec["triggers"][0]["metadata"], "query").contains(" or ")
    );
    let hpa = parsed("examples/kubernetes/hpa-queue.yaml");
    assert_eq!(hpa["spec"]["metrics"][0]["external"]["metric"]["name"], rule["name"]["as"]);
    for target in [&spec["scaleTargetRef"], &hpa["spec"]["scaleTargetRef"]] {
        assert_eq!(
            *target,
            json!({"apiVersion": "feedmill.dev/v1alpha1", "kind": "DataPipeline", "name": "qwen3vl-sft"})
        );
    }
}
