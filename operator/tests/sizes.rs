//! The number of workers, by the whole operator against an API server in the process: what one decision leaves to the next, and what is told.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use serde_json::{Value, json};
use support::{Fleet, MAPS, NAMESPACE, PODS, Server};

fn scaled() -> Value {
    json!({"replicas": 2, "autoscaling": {"mode": "Internal", "minReplicas": 1, "maxReplicas": 9}})
}

#[tokio::test(start_paused = true)]
async fn a_map_of_somebody_else_is_told_of_and_holds_up_no_worker() {
    let server = Server::start();
    let theirs =
        json!({"metadata": {"name": "fleet-scaling", "namespace": NAMESPACE}, "data": {"mine": "1"}});
    server.put(MAPS, theirs);
    let before = server.get(MAPS, "fleet-scaling");
    let fleet = Fleet::on(server, &scaled());
    fleet.tells("Ready", "NameConflict").await;
    let conditions = fleet.object()["status"]["conditions"].clone();
    let ready = conditions.as_array().unwrap().iter().find(|condition| condition["type"] == "Ready").unwrap();
    assert!(ready["message"].as_str().unwrap().contains("ConfigMap fleet-scaling"), "{ready}");
    fleet.sized(2).await;
    assert_eq!(fleet.get(MAPS, "fleet-scaling"), before);
}

#[tokio::test(start_paused = true)]
async fn a_map_that_was_left_behind_is_taken_back_and_its_state_is_not_believed() {
    let server = Server::start();
    // As `kubectl delete --cascade=orphan` leaves it.
    let left = json!({"metadata": {"name": "fleet-scaling", "namespace": NAMESPACE, "labels": {
        "app.kubernetes.io/managed-by": "feedmill-operator", "feedmill.dev/pipeline": "fleet"}},
        "data": {"state": "of a namesake"}});
    server.put(MAPS, left);
    let fleet = Fleet::on(server, &scaled());
    fleet
        .until("it is taken back", |server| {
            let map = server.get(MAPS, "fleet-scaling").unwrap();
            map["metadata"]["ownerReferences"][0]["uid"] == "uid-of-fleet"
                && map["data"]["state"] != "of a namesake"
        })
        .await;
    fleet.sized(2).await;
}

#[tokio::test(start_paused = true)]
async fn workers_of_a_pipeline_with_a_contradiction_are_counted() {
    let fleet = Fleet::of(2).await;
    fleet.edit(|spec| spec["cache"]["fetch"] = json!("1Mi"));
    fleet.tells("Ready", "InvalidSpec").await;
    let ready = || {
        let text = fleet.metrics.text().unwrap();
        let line = text.lines().find(|line| line.starts_with("feedmill_ready_workers{")).unwrap().to_owned();
        line.rsplit(' ').next().unwrap().to_owned()
    };
    assert_eq!(ready(), "0");
    let pod = json!({"metadata": {"name": "p", "namespace": NAMESPACE, "labels": {
        "app.kubernetes.io/managed-by": "feedmill-operator", "feedmill.dev/pipeline": "fleet"}},
        "spec": {"containers": []}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    fleet.put(PODS, pod);
    fleet.until("one is ready", |_| fleet.object()["status"]["readyReplicas"] == 1).await;
    assert_eq!(ready(), "1");
}

/// Nobody listens on a port that was given back; in virtual time it may as well be too late to say so.
fn silent() -> String {
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    format!(r#"--prometheus=main={{"url": "http://{address}", "wait": "w", "fill": "f", "desired": "d"}}"#)
}

fn asking(server: &str) -> Value {
    let mut spec = scaled();
    spec["autoscaling"]["signal"] = json!({"prometheus": server});
    spec
}

/// Windows are counted by the calendar, which no test can make virtual; what becomes of them is a matter of `scale`.
#[tokio::test(start_paused = true)]
async fn a_server_is_asked_and_holds_up_no_first_worker() {
    let fleet = Fleet::given(Server::start(), &asking("main"), &[&silent()]);
    fleet.sized(2).await;
    fleet.tells("ScalingActive", "FirstSize").await;
    let counted = |query: &str| {
        let text = fleet.metrics.text().unwrap();
        text.lines()
            .any(|line| line.starts_with("feedmill_prometheus_queries_total{") && line.contains(query))
    };
    // What is counted changes nothing that a watch would tell; the clock is virtual.
    for _ in 0..60 {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    assert!(counted("server=\"main\"") && !counted("result=\"answered\""));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_the_operator_was_not_given_is_an_invalid_spec() {
    let fleet = Fleet::given(Server::start(), &scaled(), &[&silent()]);
    fleet.sized(2).await;
    fleet.edit(|spec| spec["autoscaling"] = asking("other")["autoscaling"].clone());
    fleet.tells("Ready", "InvalidSpec").await;
    let conditions = fleet.object()["status"]["conditions"].to_string();
    let words = "spec.autoscaling.signal.prometheus";
    assert!(
        conditions.contains(words) && conditions.contains("the operator was given: main"),
        "{conditions}"
    );
    assert_eq!(fleet.replicas("fleet"), Some(2));
}
