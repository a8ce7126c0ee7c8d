//! `feedmill top` with a kubectl that answers from files.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};
use support::{feedmill, said};

/// Answers as kubectl does: pipelines, pods, what one of two workers says. Anything else is an error.
const KUBECTL: &str = r#"#!/bin/sh
here=$(dirname "$0")
echo "$*" >>"$here/asked"
case "$*" in
  *"get datapipelines.feedmill.dev nothing"*) echo 'Error from server (NotFound): "nothing" not found' >&2; exit 1;;
  *"get datapipelines.feedmill.dev fleet"*) cat "$here/fleet.json";;
  *"get datapipelines.feedmill.dev"*) cat "$here/all.json";;
  *"get pods"*) cat "$here/pods.json";;
  *"pods/fleet-worker-1:8470/proxy/v1/status"*) cat "$here/status.json";;
  *) echo "unexpected: $*" >&2; exit 1;;
esac
"#;

fn pipeline(name: &str, ready: &str, reason: &str, message: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "team"},
        "status": {
            "readyReplicas": 2, "desiredReplicas": 3, "placement": {"nodes": 2}, "scaling": {"reportingRanks": 8, "waitPermille": 21, "queueFillPercent": 75},
            "conditions": [{"type": "Ready", "status": ready, "reason": reason, "message": message}],
        },
    })
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    let rank = |stream: &str, rank: u32, sequence: u32, wait_ms: u32| {
        json!({"age_ms": 900, "run": "r", "stream": stream, "plan": "p", "rank": rank, "size": 2, "ready": 3, "target": 4,
            "waiting_ms": 0, "wait_ms": wait_ms, "step_ms": 1000, "consumed": 4096, "sequence": sequence})
    };
    let status = json!({"worker": "w", "version": "0", "state": "ready", "cores": 1, "streams": {}, "work_ahead": 12, "ready": 3, "batches": 1,
        "samples": 123_456, "bytes_out": 2_500_000, "bytes_in": 0, "busy_ms": 0, "bad": {},
        "problems": ["images of captions are refused\u{1b}[2J"], "reports": [rank("eval", 0, 9, 900), rank("train", 0, 2, 20), rank("train", 1, 1, 10)]});
    let pod =
        |name: &str| json!({"metadata": {"name": name}, "spec": {"nodeName": "n1", "containers": [{}]}});
    let files = [
        ("fleet.json", pipeline("fleet", "True", "WorkersServe", "")),
        (
            "all.json",
            json!({"items": [pipeline("fleet", "True", "WorkersServe", ""), pipeline("other", "False", "ImagePullFailed", "0 of 3 workers serve"),
            {"metadata": {"name": "new", "namespace": "team"}}]}),
        ),
        (
            "pods.json",
            json!({"items": [pod("fleet-worker-2"), pod("fleet-worker-1"),
            {"metadata": {"name": "going", "deletionTimestamp": "2026-01-01T00:00:00Z"}}]}),
        ),
        ("status.json", status),
    ];
    for (name, value) in files {
        std::fs::write(folder.join(name), value.to_string()).unwrap();
    }
    std::fs::write(folder.join("kubectl"), KUBECTL).unwrap();
    std::fs::set_permissions(folder.join("kubectl"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    feedmill().arg("top").args(arguments).env("PATH", path).output().unwrap()
}

#[test]
fn all_pipelines_are_listed_with_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), &["-A", "--context", "there"]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "NAMESPACE  NAME   READY    REASON           WORKERS  NODES  RANKS  WAIT   QUEUE\n\
         team       fleet  True     WorkersServe     2/3      2      8      2.1 %  75 %\n\
         team       other  False    ImagePullFailed  2/3      2      8      2.1 %  75 %\n\
         team       new    Unknown  NotSeenYet       0/0      0      0      -      -\n\
         team/other: 0 of 3 workers serve\n"
    );
    let asked = std::fs::read_to_string(folder.path().join("asked")).unwrap();
    assert!(asked.starts_with("--context there ") && asked.trim_end().ends_with("-o json -A"), "{asked}");
}

#[test]
fn one_pipeline_is_shown_with_its_workers_and_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), &["fleet"]);
    assert!(output.status.success(), "{}", said(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    for line in [
        "fleet-worker-1  n1    ready   123,456  -          2.50 MB  12     3      0",
        "fleet-worker-2  n1    silent",
        "fleet-worker-1: images of captions are refused\\u{1b}[2J",
        "r    eval    0/2   90.0 %  3/4      4,096     0 s ago",
        "r    train   0/2   2.0 %   3/4      4,096     0 s ago",
    ] {
        assert!(text.lines().any(|found| found == line), "{line:?} is not in:\n{text}");
    }
    assert!(!text.contains("going"), "{text}");
    let output = run(folder.path(), &["fleet", "--json"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = &json["pipelines"][0];
    assert_eq!((of["workers"].as_array().unwrap().len(), of["reports"].as_array().unwrap().len()), (2, 3));
}

#[test]
fn what_kubectl_says_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), &["nothing"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("kubectl: Error from server (NotFound)"), "{}", said(&output));
    let output = feedmill().arg("top").env("PATH", "/nonexistent").output().unwrap();
    assert!(said(&output).contains("is it in PATH"), "{}", said(&output));
}
