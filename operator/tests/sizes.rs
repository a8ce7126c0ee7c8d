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
