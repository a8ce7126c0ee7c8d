//! The whole operator against an API server in the process, in virtual time: what a real cluster shows badly.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use serde_json::{Value, json};
use support::{
    ACCOUNTS, BUDGETS, DEPLOYMENTS, Fleet, MAPS, NAMESPACE, PIPELINES, PODS, SERVICES, Server, pipeline,
};

#[tokio::test(start_paused = true)]
async fn the_number_of_workers_outlives_everything_that_is_applied() {
    let mut fleet = Fleet::of(16).await;
    // Something else about it changes, which applies the Deployment again.
    fleet.edit(|spec| spec["drainSeconds"] = json!(30));
    fleet.until("the template is another", |_| fleet.grace() == 45).await;
    assert_eq!(fleet.replicas("fleet"), Some(16));
    fleet.crash().await;
    fleet.recover();
    fleet.edit(|spec| spec["replicas"] = json!(17));
    fleet.sized(17).await;
    // Made with the default of 1, and never back there, whoever applied what.
    let history = fleet.history(DEPLOYMENTS, "fleet-worker");
    let mut numbers: Vec<Value> = history.iter().map(|object| object["spec"]["replicas"].clone()).collect();
    numbers.dedup();
    assert_eq!(numbers, [json!(1), json!(16), json!(17)]);
}

#[tokio::test(start_paused = true)]
async fn a_suspended_pipeline_that_never_ran_gets_no_workers() {
    let fleet = Fleet::on(Server::start(), &json!({"replicas": 4, "suspend": true}));
    fleet.tells("Ready", "Suspended").await;
    assert_eq!(fleet.count(DEPLOYMENTS), 0);
    fleet.edit(|spec| spec["suspend"] = json!(false));
    fleet.sized(4).await;
    fleet.edit(|spec| spec["suspend"] = json!(true));
    fleet.sized(0).await;
}

#[tokio::test(start_paused = true)]
async fn other_streams_that_come_and_are_resumed_at_once_are_not_served_beside_the_former() {
    let mut fleet = Fleet::serving(2).await;
    let former = fleet.plan_inputs();
    // Suspended, changed and resumed faster than the operator looks: it sees another seed and nothing else.
    fleet.edit(|spec| spec["streams"][0]["seed"] = json!(7));
    fleet.tells("Ready", "PlanChanging").await;
    fleet.sized(0).await;
    // While they stay nothing is made of the new streams, whoever looks.
    fleet.crash().await;
    fleet.recover();
    fleet.edit(|spec| spec["drainSeconds"] = json!(30));
    fleet.looked_at().await;
    assert_eq!((fleet.plan_inputs(), fleet.replicas("fleet")), (former.clone(), Some(0)));
    fleet.deploy();
    fleet.sized(2).await;
    assert_ne!(fleet.plan_inputs(), former);
}

#[tokio::test(start_paused = true)]
async fn a_fleet_that_is_suspended_goes_before_anything_of_it_is_written_anew() {
    let fleet = Fleet::of(2).await;
    fleet.deploy();
    let (writes, former) = (fleet.writes().len(), fleet.plan_inputs());
    fleet.edit(|spec| {
        spec["suspend"] = json!(true);
        spec["streams"][0]["seed"] = json!(7);
    });
    fleet.sized(0).await;
    let first = fleet.writes().split_off(writes);
    let first = first.iter().find(|write| !write.contains("/status"));
    assert_eq!(first.unwrap(), "PATCH apis/apps/v1/deployments fleet-worker");
    assert_eq!(fleet.plan_inputs(), former);
    fleet.deploy();
    fleet.until("its template is the new one", |_| fleet.plan_inputs() != former).await;
    assert_eq!(fleet.replicas("fleet"), Some(0));
}

#[tokio::test(start_paused = true)]
async fn workers_that_start_again_find_the_document_they_were_made_for() {
    let mut fleet = Fleet::serving(2).await;
    let text =
        |server: &Server, name: &str| server.get(MAPS, name).map(|map| map["data"]["pipeline.yaml"].clone());
    let former = fleet.document();
    let before = text(&fleet, &former);
    fleet.edit(|spec| spec["cache"]["sharedMemory"] = json!("8Gi"));
    fleet.until("there is another", |_| fleet.document() != former).await;
    let present = fleet.document();
    fleet.tells("Progressing", "RollingOut").await;
    // The rollout stands still, the operator is another one, and the nodes of all workers are lost: no pod names what those read that are made
    // in their place.
    fleet.crash().await;
    for number in 0..2 {
        fleet.remove(PODS, &format!("fleet-{number}"));
    }
    fleet.recover();
    fleet.edit(|spec| spec["disruptionBudget"]["maxUnavailable"] = json!(1));
    let budget =
        |server: &Server| server.get(BUDGETS, "fleet-worker").unwrap()["spec"]["maxUnavailable"] == 1;
    fleet.until("that is applied", budget).await;
    fleet.looked_at().await;
    let kept = fleet.get(MAPS, &former).unwrap()["immutable"].clone();
    assert_eq!((text(&fleet, &former), kept), (before.clone(), json!(true)));
    assert_ne!(text(&fleet, &present), before);
    // A former worker is the last to end.
    fleet.deploy();
    fleet.until("what nobody reads goes", |server| server.get(MAPS, &former).is_none()).await;
    assert!(text(&fleet, &present).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_change_is_never_said_to_be_complete_before_its_rollout_has_begun() {
    let fleet = Fleet::serving(2).await;
    // Once all goes well, and once the Deployment is not taken.
    for (seconds, refused) in [(30, false), (31, true)] {
        let generation = fleet.object()["metadata"]["generation"].as_i64().unwrap();
        fleet.break_writes(DEPLOYMENTS, refused);
        fleet.edit(|spec| spec["drainSeconds"] = json!(seconds));
        fleet.looked_at().await;
        fleet.break_writes(DEPLOYMENTS, false);
        fleet.tells("Progressing", "RollingOut").await;
        for object in fleet.history(PIPELINES, "fleet") {
            let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let progressing = conditions.iter().find(|condition| condition["type"] == "Progressing");
            assert!(
                object["status"]["observedGeneration"].as_i64() <= Some(generation)
                    || progressing.is_none_or(|condition| condition["reason"] == "RollingOut"),
                "{}",
                object["status"]
            );
        }
        fleet.until("the template is another", |_| fleet.grace() == 15 + seconds).await;
        fleet.deploy();
        fleet.tells("Progressing", "Complete").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_may_not_be_listed_stops_no_pipeline() {
    let server = Server::start();
    server.forbid_lists("apis/networking.k8s.io/v1/networkpolicies");
    server.forbid_lists(SERVICES);
    let fleet = Fleet::on(server, &json!({"replicas": 2, "networkPolicy": {"enabled": true}}));
    fleet.sized(2).await;
    assert_eq!(fleet.count(SERVICES), 1);
}

#[tokio::test(start_paused = true)]
async fn a_status_that_somebody_overwrites_is_written_again() {
    let fleet = Fleet::serving(2).await;
    let before = fleet.object()["status"].clone();
    assert_eq!(before["readyReplicas"], 2);
    fleet.change(PIPELINES, "fleet", |object| {
        object["status"] = json!({"selector": "", "readyReplicas": 9});
    });
    fleet
        .until("the status is right again", |_| {
            let now = fleet.object()["status"].take();
            (&now["selector"], &now["readyReplicas"]) == (&before["selector"], &before["readyReplicas"])
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn workers_that_were_left_behind_with_former_streams_go_first_as_well() {
    let mut fleet = Fleet::of(2).await;
    fleet.deploy();
    fleet.crash().await;
    // As `kubectl delete --cascade=orphan` and a pipeline of the same name leave it.
    fleet.change(DEPLOYMENTS, "fleet-worker", |object| {
        object["metadata"].as_object_mut().unwrap().remove("ownerReferences");
    });
    fleet.edit(|spec| spec["streams"][0]["seed"] = json!(7));
    let former = fleet.plan_inputs();
    fleet.recover();
    fleet.sized(0).await;
    assert_eq!(fleet.plan_inputs(), former);
    fleet.deploy();
    fleet.sized(2).await;
    assert_ne!(fleet.plan_inputs(), former);
    assert_eq!(fleet.deployment()["metadata"]["ownerReferences"][0]["uid"], "uid-of-fleet");
}

#[tokio::test(start_paused = true)]
async fn what_fails_again_and_again_is_told_and_goes_on_being_told() {
    let server = Server::start();
    server.break_writes(SERVICES, true);
    let mut fleet = Fleet::on(server, &json!({"replicas": 2}));
    fleet.tells("Ready", "ApplyFailed").await;
    let ready = fleet.object()["status"]["conditions"][0].clone();
    assert!(ready["message"].as_str().unwrap().contains("Service fleet: 500 WebhookBroken"), "{ready}");
    // Also by an operator that meets it for the first time.
    fleet.crash().await;
    fleet.recover();
    fleet.edit(|spec| spec["replicas"] = json!(3));
    fleet.looked_at().await;
    assert!(fleet.says("Ready", "ApplyFailed"));
    fleet.break_writes(SERVICES, false);
    fleet.sized(3).await;
    fleet.until("it is no longer told", |_| !fleet.says("Ready", "ApplyFailed")).await;
}

#[tokio::test(start_paused = true)]
async fn the_account_of_workers_stays_while_one_of_them_may_use_it() {
    let fleet = Fleet::serving(2).await;
    fleet.edit(|spec| spec["worker"]["serviceAccountName"] = json!("own"));
    fleet.tells("Progressing", "RollingOut").await;
    assert_eq!(fleet.deployment()["spec"]["template"]["spec"]["serviceAccountName"], "own");
    assert!(fleet.get(ACCOUNTS, "fleet-worker").is_some());
    fleet.deploy();
    fleet.until("it goes", |server| server.get(ACCOUNTS, "fleet-worker").is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_document_that_is_lost_is_made_again() {
    let fleet = Fleet::of(2).await;
    let name = fleet.document();
    let before = fleet.get(MAPS, &name).unwrap()["data"].clone();
    fleet.remove(MAPS, &name);
    fleet.until("it is there again", |server| server.get(MAPS, &name).is_some()).await;
    assert_eq!(fleet.get(MAPS, &name).unwrap()["data"], before);
}

#[tokio::test(start_paused = true)]
async fn an_object_of_somebody_else_is_never_taken_over() {
    let server = Server::start();
    let theirs =
        json!({"metadata": {"name": "fleet", "namespace": NAMESPACE}, "spec": {"clusterIP": "10.0.0.1"}});
    server.put(SERVICES, theirs);
    server.put(PIPELINES, pipeline("other", &json!({"replicas": 2})));
    let fleet = Fleet::on(server, &json!({}));
    fleet.tells("Ready", "NameConflict").await;
    assert_eq!(fleet.get(SERVICES, "fleet").unwrap()["spec"], json!({"clusterIP": "10.0.0.1"}));
    // Others go on.
    fleet.wanted("other", 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_between_any_two_writes_leaves_nothing_that_the_next_start_does_not_mend() {
    let whole = {
        let mut fleet = Fleet::of(3).await;
        fleet.crash().await;
        fleet.settled()
    };
    for writes in 0.. {
        let server = Server::start();
        server.fail_after(writes);
        let mut fleet = Fleet::on(server, &json!({"replicas": 3}));
        let ends = |server: &Server| server.failed() || server.replicas("fleet") == Some(3);
        fleet.until("it fails or stands", ends).await;
        let crashed = fleet.failed();
        fleet.crash().await;
        fleet.fail_after(usize::MAX);
        fleet.recover();
        fleet.sized(3).await;
        fleet.crash().await;
        assert_eq!(fleet.settled(), whole, "after a crash at write {writes}");
        if !crashed {
            assert!(writes > 5, "only {writes} writes");
            break;
        }
    }
}

type Holds<'a> = &'a (dyn Fn(&Server) -> bool + Sync);

/// Other streams and another document for a fleet that stands, with a crash after so many writes. Gives what stands there in the end, and
/// whether there was a crash.
async fn changed(writes: usize) -> (Vec<(&'static str, Value)>, bool) {
    let mut fleet = Fleet::of(2).await;
    fleet.deploy();
    let former = fleet.document();
    fleet.fail_after(writes);
    fleet.edit(|spec| {
        spec["streams"][0]["seed"] = json!(7);
        spec["cache"]["sharedMemory"] = json!("8Gi");
    });
    let mut crashed = false;
    let gone = |server: &Server| server.replicas("fleet") == Some(0);
    let wanted = |server: &Server| server.replicas("fleet") == Some(2);
    let cleared = |server: &Server| server.get(MAPS, &former).is_none();
    let steps: [(&str, Holds<'_>, bool); 3] = [
        ("all are to go", &gone, true),
        ("2 are wanted again", &wanted, true),
        ("it is cleared", &cleared, false),
    ];
    for (what, is_done, deploys) in steps {
        fleet.until(what, |server| is_done(server) || (!crashed && server.failed())).await;
        if !crashed && fleet.failed() {
            crashed = true;
            fleet.crash().await;
            fleet.fail_after(usize::MAX);
            fleet.recover();
            fleet.until(what, is_done).await;
        }
        if deploys {
            fleet.deploy();
        }
    }
    fleet.crash().await;
    (fleet.settled(), crashed)
}

#[tokio::test(start_paused = true)]
async fn a_crash_between_any_two_writes_of_a_change_leaves_nothing_that_the_next_start_does_not_mend() {
    let (whole, _) = changed(usize::MAX).await;
    let mut crashes = 0;
    for writes in 0..16 {
        let (stands, crashed) = changed(writes).await;
        crashes += usize::from(crashed);
        assert_eq!(stands, whole, "after a crash at write {writes}");
    }
    // The number, the template, its document, the Deployment, the number, and two that go.
    assert!(crashes >= 7, "only {crashes} crashes");
}

#[tokio::test(start_paused = true)]
async fn one_object_that_cannot_be_read_stops_no_other() {
    let server = Server::start();
    let mut newer = pipeline("newer", &json!({}));
    newer["spec"]["processor"] = json!("a name");
    server.put(PIPELINES, newer);
    let fleet = Fleet::on(server, &json!({"replicas": 2}));
    fleet.sized(2).await;
    fleet.told("newer", "Ready", "Undecodable").await;
    assert_eq!(fleet.get(DEPLOYMENTS, "newer-worker"), None);
}

#[tokio::test(start_paused = true)]
async fn a_contradiction_that_came_past_the_rules_changes_nothing() {
    let fleet = Fleet::of(2).await;
    fleet.edit(|spec| {
        spec["replicas"] = json!(9);
        spec["cache"]["fetch"] = json!("1Mi");
    });
    fleet.tells("Ready", "InvalidSpec").await;
    assert_eq!(fleet.replicas("fleet"), Some(2));
}

/// A ready worker on each of these nodes, the first one the oldest.
fn stand(fleet: &Fleet, nodes: &[&str]) {
    for (number, node) in nodes.iter().enumerate() {
        fleet.put(
            PODS,
            json!({
                "metadata": {"name": format!("p{number}"), "namespace": NAMESPACE, "creationTimestamp": format!("2026-01-01T00:00:0{number}Z"),
                    "labels": {"app.kubernetes.io/managed-by": "feedmill-operator", "feedmill.dev/pipeline": "fleet"}},
                "spec": {"nodeName": node, "containers": []},
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
            }),
        );
    }
}

#[tokio::test(start_paused = true)]
async fn those_that_go_first_are_marked_before_the_number_is_written() {
    let fleet = Fleet::of(3).await;
    stand(&fleet, &["n1", "n1", "n2"]);
    let before = fleet.writes().len();
    fleet.edit(|spec| spec["replicas"] = json!(2));
    fleet.sized(2).await;
    let cost = |name: &str| {
        fleet.get(PODS, name).unwrap()["metadata"]["annotations"]["controller.kubernetes.io/pod-deletion-cost"].clone()
    };
    // The newest of the fullest node.
    assert_eq!([cost("p0"), cost("p1"), cost("p2")], [Value::Null, json!("-100"), Value::Null]);
    let writes = fleet.writes().split_off(before);
    let first = |what: &str| writes.iter().position(|write| write == what).unwrap();
    let (marked, written) =
        (first("PATCH api/v1/pods p1"), first("PATCH apis/apps/v1/deployments fleet-worker"));
    assert!(marked < written, "{writes:#?}");
}

#[tokio::test(start_paused = true)]
async fn marks_were_written_again_when_another_pod_was_gone() {
    let fleet = Fleet::of(4).await;
    stand(&fleet, &["n1", "n1", "n2", "n2"]);
    fleet.until("4 serve", |_| fleet.object()["status"]["readyReplicas"] == 4).await;
    fleet.hold(PODS, true);
    fleet.remove(PODS, "p3");
    let before = fleet.writes().len();
    fleet.edit(|spec| spec["replicas"] = json!(2));
    let marks = |pod: &str| {
        let write = format!("PATCH api/v1/pods {pod}");
        fleet.writes().split_off(before).into_iter().filter(|other| *other == write).count()
    };
    // Both are to go.
    fleet.until("both are marked", |_| marks("p1") > 0 && marks("p3") > 0).await;
    fleet.hold(PODS, false);
    fleet.sized(2).await;
    assert_eq!((marks("p1"), marks("p3")), (1, 1), "{:#?}", fleet.writes().split_off(before));
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_label_was_taken_away_holds_up_no_smaller_number() {
    let fleet = Fleet::of(3).await;
    fleet.deploy();
    let serve = |workers: i64| {
        let fleet = &fleet;
        async move {
            fleet
                .until(&format!("{workers} serve"), |_| fleet.object()["status"]["readyReplicas"] == workers)
                .await;
        }
    };
    serve(3).await;
    fleet.change(PODS, "fleet-0", |object| {
        object["metadata"]["labels"].as_object_mut().unwrap().remove("feedmill.dev/pipeline");
    });
    serve(2).await;
    fleet.remove(PODS, "fleet-0");
    fleet.edit(|spec| spec["replicas"] = json!(1));
    fleet.sized(1).await;
}

#[tokio::test(start_paused = true)]
async fn a_pipeline_that_is_gone_is_written_to_no_more() {
    let fleet = Fleet::of(2).await;
    fleet.remove(PIPELINES, "fleet");
    // Another one shows that the first was looked at since.
    fleet.put(PIPELINES, pipeline("other", &json!({"replicas": 2})));
    fleet.wanted("other", 2).await;
    assert_eq!(fleet.get(DEPLOYMENTS, "fleet-worker"), None);
    assert_eq!((fleet.count(DEPLOYMENTS), fleet.count(SERVICES)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn conditions_are_told_as_metrics_until_the_pipeline_is_gone() {
    let fleet = Fleet::on(Server::start(), &json!({"replicas": 2}));
    fleet.tells("Ready", "WorkersStarting").await;
    let text = fleet.metrics.text().unwrap();
    for line in [
        r#"feedmill_pipeline_condition{namespace="team",pipeline="fleet",status="false",type="Ready"} 1"#,
        r#"feedmill_pipeline_condition_reason{namespace="team",pipeline="fleet",reason="WorkersStarting",type="Ready"} 1"#,
        r#"feedmill_reporting_ranks{namespace="team",pipeline="fleet"} 0"#,
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    // A pipeline that cannot be worked on has no figures of trainers: what was known of them is old.
    fleet.edit(|spec| spec["cache"]["fetch"] = json!("1Mi"));
    fleet.tells("Ready", "InvalidSpec").await;
    assert!(!fleet.metrics.text().unwrap().contains("feedmill_reporting_ranks"));
    fleet.remove(PIPELINES, "fleet");
    fleet.put(PIPELINES, pipeline("other", &json!({"replicas": 2})));
    fleet.wanted("other", 2).await;
    let text = fleet.metrics.text().unwrap();
    assert!(!text.contains("pipeline=\"fleet\""), "{text}");
}
