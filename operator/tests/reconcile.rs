//! The whole operator against an API server in the process: what a real cluster shows badly.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use std::sync::Arc;

use clap::{Args as _, Command, FromArgMatches as _};
use feedmill_operator::metrics::Metrics;
use feedmill_operator::run::{Unreadable, look_after};
use feedmill_operator::settings::OperatorArgs;
use serde_json::{Value, json};
use support::{DEPLOYMENTS, PIPELINES, PODS, SERVICES, Server, pipeline};
use tokio::task::JoinHandle;

const MAPS: &str = "api/v1/configmaps";
const ACCOUNTS: &str = "api/v1/serviceaccounts";
const BUDGETS: &str = "apis/policy/v1/poddisruptionbudgets";

fn settings() -> OperatorArgs {
    let command = OperatorArgs::augment_args(Command::new("operator"));
    let matches =
        command.get_matches_from(["operator", "--worker-image=worker:1", "--identity=me", "--without-nodes"]);
    OperatorArgs::from_arg_matches(&matches).unwrap()
}

/// An operator that has the lease.
fn operator(server: &Server) -> JoinHandle<()> {
    let client = server.client.clone();
    tokio::spawn(async move {
        let ended =
            look_after(client, &settings(), Arc::new(Metrics::new().unwrap()), &Unreadable::default()).await;
        panic!("{ended:?}")
    })
}

async fn stop(operator: JoinHandle<()>) {
    operator.abort();
    assert!(operator.await.unwrap_err().is_cancelled());
}

fn replicas(server: &Server, name: &str) -> Option<i64> {
    server.get(DEPLOYMENTS, "team", name)?["spec"]["replicas"].as_i64()
}

fn reason(server: &Server, name: &str, kind: &str) -> Option<String> {
    let status = server.get(PIPELINES, "team", name)?["status"].take();
    let conditions = status["conditions"].as_array()?;
    let found = conditions.iter().find(|condition| condition["type"] == kind)?;
    found["reason"].as_str().map(str::to_owned)
}

/// What stands there, without what differs from run to run.
fn settled(server: &Server) -> Vec<(String, Value)> {
    ["deployments", "controllerrevisions"]
        .iter()
        .map(|plural| format!("apis/apps/v1/{plural}"))
        .chain(["services", "configmaps", "serviceaccounts"].iter().map(|plural| format!("api/v1/{plural}")))
        .chain(["apis/policy/v1/poddisruptionbudgets".to_owned()])
        .map(|group| {
            let mut objects = server.all(&group);
            for object in &mut objects {
                for field in ["uid", "resourceVersion", "generation"] {
                    object["metadata"].as_object_mut().unwrap().remove(field);
                }
            }
            (group, json!(objects))
        })
        .collect()
}

#[tokio::test]
async fn the_number_of_workers_outlives_everything_that_is_applied() {
    let server = Server::start().await;
    server.put(PIPELINES, pipeline("fleet", &json!({"replicas": 16})));
    let first = operator(&server);
    server.until("16 workers are wanted", |server| replicas(server, "fleet-worker") == Some(16)).await;
    // Something else about it changes, which applies the Deployment again.
    server.change(PIPELINES, "team", "fleet", |object| object["spec"]["drainSeconds"] = json!(30));
    server
        .until("the template is another", |server| {
            let deployment = server.get(DEPLOYMENTS, "team", "fleet-worker").unwrap();
            deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 45
        })
        .await;
    assert_eq!(replicas(&server, "fleet-worker"), Some(16));
    stop(first).await;
    let second = operator(&server);
    server.change(PIPELINES, "team", "fleet", |object| object["spec"]["replicas"] = json!(17));
    server.until("17 workers are wanted", |server| replicas(server, "fleet-worker") == Some(17)).await;
    stop(second).await;
    // Made with the default of 1, and never back there, whoever applied what.
    let mut numbers: Vec<Value> = server
        .history(DEPLOYMENTS, "team", "fleet-worker")
        .iter()
        .map(|object| object["spec"]["replicas"].clone())
        .collect();
    numbers.dedup();
    assert_eq!(numbers, [json!(1), json!(16), json!(17)]);
}

#[tokio::test]
async fn a_suspended_pipeline_that_never_ran_gets_no_workers() {
    let server = Server::start().await;
    server.put(PIPELINES, pipeline("fleet", &json!({"replicas": 4, "suspend": true})));
    let operator = operator(&server);
    server
        .until("it is suspended", |server| reason(server, "fleet", "Ready").as_deref() == Some("Suspended"))
        .await;
    assert_eq!(server.count(DEPLOYMENTS), 0);
    server.change(PIPELINES, "team", "fleet", |object| object["spec"]["suspend"] = json!(false));
    server.until("4 workers are wanted", |server| replicas(server, "fleet-worker") == Some(4)).await;
    server.change(PIPELINES, "team", "fleet", |object| object["spec"]["suspend"] = json!(true));
    server.until("none are wanted", |server| replicas(server, "fleet-worker") == Some(0)).await;
    stop(operator).await;
}

/// Whether the status speaks of the present spec.
fn is_looked_at(server: &Server) -> bool {
    let object = server.get(PIPELINES, "team", "fleet").unwrap();
    object["status"]["observedGeneration"] == object["metadata"]["generation"]
}

/// Does what the Deployment's controller does: as many pods of the present template as are wanted, and no others.
fn deploy(server: &Server, name: &str) {
    let worker = format!("{name}-worker");
    let deployment = server.get(DEPLOYMENTS, "team", &worker).unwrap();
    let (wanted, template) = (replicas(server, &worker).unwrap(), &deployment["spec"]["template"]);
    for number in 0.. {
        let pod = format!("{name}-{number}");
        if server.get(PODS, "team", &pod).is_some() {
            server.remove(PODS, "team", &pod);
        } else if number >= wanted {
            break;
        }
        if number < wanted {
            let mut object = template.clone();
            object["metadata"]["name"] = pod.into();
            object["metadata"]["namespace"] = "team".into();
            object["status"] =
                json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
            server.put(PODS, object);
        }
    }
    server.change(DEPLOYMENTS, "team", &worker, |object| {
        object["status"] = json!({"observedGeneration": object["metadata"]["generation"], "replicas": wanted,
            "updatedReplicas": wanted, "availableReplicas": wanted, "readyReplicas": wanted});
    });
}

fn plan_inputs(server: &Server, name: &str) -> Value {
    server.get(DEPLOYMENTS, "team", name).unwrap()["spec"]["template"]["metadata"]["annotations"]["feedmill.dev/plan-inputs"]
        .clone()
}

#[tokio::test]
async fn other_streams_that_come_and_are_resumed_at_once_are_not_served_beside_the_former() {
    let server = Server::start().await;
    server.put(PIPELINES, pipeline("fleet", &json!({"replicas": 2})));
    let running = operator(&server);
    server.until("2 are wanted", |server| replicas(server, "fleet-worker") == Some(2)).await;
    deploy(&server, "fleet");
    server
        .until("they serve", |server| reason(server, "fleet", "Progressing").as_deref() == Some("Complete"))
        .await;
    let former = plan_inputs(&server, "fleet-worker");
    // Suspended, changed and resumed faster than the operator looks: it sees another seed and nothing else.
    server.change(PIPELINES, "team", "fleet", |object| object["spec"]["streams"][0]["seed"] = json!(7));
    server
        .until("it is told", |server| reason(server, "fleet", "Ready").as_deref() == Some("PlanChanging"))
        .await;
    server.until("all are to go", |server| replicas(server, "fleet-worker") == Some(0)).await;
    // While they stay nothing is made of the new streams, whoever looks.
    stop(running).await;
    let running = operator(&server);
    server.change(PIPELINES, "team", "fleet", |object| object["spec"]["drainSeconds"] = json!(30));
    server.until("it is looked at again", is_looked_at).await;
    assert_eq!(
        (plan_inputs(&server, "fleet-worker"), replicas(&server, "fleet-worker")),
        (former.clone(), Some(0))
    );
    deploy(&server, "fleet");
    server.until("2 are wanted again", |server| replicas(server, "fleet-worker") == Some(2)).await;
    assert_ne!(plan_inputs(&server, "fleet-worker"), former);
    stop(running).await;
}

#[tokio::test]
async fn a_fleet_that_is_suspended_goes_before_anything_of_it_is_written_anew() {
    let server = Server::start().await;
    server.put(PIPELINES, pipeline("fleet", &json!({"replicas": 2})));
    let operator = operator(&server);
    server.until("2 are wanted", |server| replicas(server, "fleet-worker") == Some(2)).await;
    deploy(&server, "fleet");
    let (writes, former) = (server.writes().len(), plan_inputs(&server, "fleet-worker"));
    server.change(PIPELINES, "team", "fleet", |object| {
        object["spec"]["suspend"] = json!(true);
        object["spec"]["streams"][0]["seed"] = json!(7);
    });
    server.until("all are to go", |server| replicas(server, "fleet-worker") == Some(0)).await;
    let first = server.writes().split_off(writes);
    let first = first.iter().find(|write| !write.contains("/status"));
    assert_eq!(first.unwrap(), "PATCH apis/apps/v1/deployments fleet-worker");
    assert_eq!(plan_inputs(&server, "fleet-worker"), former);
    deploy(&server, "fleet");
    server.until("its template is the new one", |server| plan_inputs(server, "fleet-worker") != former).await;
    assert_eq!(replicas(&server, "fleet-worker"), Some(0));
    stop(operator).await;
}

fn document(server: &Server, name: &str) -> String {
    let deployment = server.get(DEPLOYMENTS, "team", name).unwrap();
    deployment["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn workers_that_start_again_find_the_document_they_were_made_for() {
    let server = Server::start().await;
    let text = |name: &str| server.get(MAPS, "team", name).map(|map| map["data"]["pipeline.yaml"].clone());
    server.put(PIPELINES, pipeline("fleet", &json!({"replicas": 2})));
    let running = operator(&server);
    server.until("2 are wanted", |server| replicas(server, "fleet-worker") == Some(2)).await;
    deploy(&server, "fleet");
    server
        .until("they serve", |server| reason(server, "fleet", "Progressing").as_deref() == Some("Complete"))
        .await;
    let former = document(&server, "fleet-worker");
    let before = text(&former);
    server
        .change(PIPELINES, "team", "fleet", |object| object["spec"]["cache"]["sharedMemory"] = json!("8Gi"));
    server.until("there is another", |server| document(server, "fleet-worker") != former).await;
    let present = document(&server, "fleet-worker");
    server
        .until("the rollout is told", |server| {
            reason(server, "fleet", "Progressing").as_deref() == Some("RollingOut")
        })
        .await;
    // The rollout stands still, the operator is another one, and the nodes of all workers are lost: no pod names what those read that are made
    // in their place.
    stop(running).await;
    for number in 0..2 {
        server.remove(PODS, "team", &format!("fleet-{number}"));
    }
    let running = operator(&server);
    server.change(PIPELINES, "team", "fleet", |object| {
        object["spec"]["disruptionBudget"]["maxUnavailable"] = json!(1)
    });
    let budget =
        |server: &Server| server.get(BUDGETS, "team", "fleet-worker").unwrap()["spec"]["maxUnavailable"] == 1;
    server.until("that is applied", budget).await;
    server.until("nothing more is done", is_looked_at).await;
    assert_eq!(
        (text(&former), server.get(MAPS, "team", &former).unwrap()["immutable"].clone()),
        (before.clone(), json!(true))
    );
    assert_ne!(text(&present), before);
    // A former worker is the last to end.
    deploy(&server, "fleet");
    server.until("what nobody reads goes", |server| server.get(MAPS, "team", &former).is_none()).await;
    assert!(text(&present).is_some());
    stop(running).await;
}

#[tokio::test]
async fn a_change_is_never_said_to_be_complete_before_its_rollout_has_begun() {
    let server = Server::start().await;
    server.put(PIPELINES, pipeline("fleet", &json!({"replicas": 2})));
    let operator = operator(&server);
    server.until("2 are wanted", |server| replicas(server, "fleet-worker") == Some(2)).await;
    deploy(&server, "fleet");
    let told = |server: &Server, word: &str| reason(server, "fleet", "Progressing").as_deref() == Some(word);
    server.until("they serve", |server| told(server, "Complete")).await;
    // Once all goes well, and once the Deployment is not taken.
    for (seconds, refused) in [(30, false), (31, true)] {
        let generation =
            server.get(PIPELINES, "team", "fleet").unwrap()["metadata"]["generation"].as_i64().unwrap();
        server.break_writes(DEPLOYMENTS, refused);
        server.change(PIPELINES, "team", "fleet", |object| object["spec"]["drainSeconds"] = json!(seconds));
        server.until("it is looked at", is_looked_at).await;
        server.break_writes(DEPLOYMENTS, false);
        server.until("the rollout is told", |server| told(server, "RollingOut")).await;
        for object in server.history(PIPELINES, "team", "fleet") {
            let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let progressing = conditions.iter().find(|condition| condition["type"] == "Progressing");
            assert!(
                object["status"]["observedGeneration"].as_i64() <= Some(generation)
                    || progressing.is_none_or(|condition| condition["reason"] == "RollingOut"),
                "{}",
                object["status"]
            );
        }
        server
            .until("the template is another", |server| {
                let deployment = server.get(DEPLOYMENTS, "team", "fleet-worker").unwrap();
                deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 15 + seconds
            })
            .await;
        deploy(&server, "fleet");
        server.until("they serve again", |server| told(server, "Complete")).await;
    }
    stop(operator).await;
}

#[tokio::test]
async fn a_kind_that_may_not_be_listed_stops_no_pipeline() {
    let server = Server::start().await;
    server.forbid_lists("apis/networking.k8s.io/v1/networkpolicies");
    server.forbid_lists(SERVICES);
    server.put(PIPELINES, pipeline("fleet", &json!({"replicas": 2, "networkPolicy": {"enabled": true}})));
    let operator = operator(&server);
    server.until("2 are wanted", |server| replicas(server, "fleet-worker") == Some(2)).await;
    assert_eq!(server.count(SERVICES), 1);
    stop(operator).await;
}

#[tokio::test]
async fn a_status_that_somebody_overwrites_is_written_again() {
    let server = Server::start().await;
    server.put(PIPELINES, pipeline("fleet", &json!({"replicas": 2})));
    let operator = operator(&server);
    server.until("2 are wanted", |server| replicas(server, "fleet-worker") == Some(2)).await;
    deploy(&server, "fleet");
    let told = |server: &Server, word: &str| reason(server, "fleet", "Progressing").as_deref() == Some(word);
    server.until("they serve", |server| told(server, "Complete")).await;
    let status = |server: &Server| server.get(PIPELINES, "team", "fleet").unwrap()["status"].clone();
    let before = status(&server);
    assert_eq!(before["readyReplicas"], 2);
    server.change(PIPELINES, "team", "fleet", |object| {
        object["status"] = json!({"selector": "", "readyReplicas": 9});
    });
    server
        .until("the status is right again", |server| {
            let now = status(server);
            (&now["selector"], &now["readyReplicas"]) == (&before["selector"], &before["readyReplicas"])
        })
        .await;
    stop(operator).await;
}

#[tokio::test]
async fn workers_that_were_left_behind_with_former_streams_go_first_as_well() {
    let server = Server::start().await;
    server.put(PIPELINES, pipeline("fleet", &json!({"replicas": 2})));
    let running = operator(&server);
    server.until("2 are wanted", |server| replicas(server, "fleet-worker") == Some(2)).await;
    deploy(&server, "fleet");
    stop(running).await;
    // As `kubectl delete --cascade=orphan` and a pipeline of the same name leave it.
    server.change(DEPLOYMENTS, "team", "fleet-worker", |object| {
        object["metadata"].as_object_mut().unwrap().remove("ownerReferences");
    });
    server.change(PIPELINES, "team", "fleet", |object| object["spec"]["streams"][0]["seed"] = json!(7));
    let former = plan_inputs(&server, "fleet-worker");
    let running = operator(&server);
    server.until("all are to go", |server| replicas(server, "fleet-worker") == Some(0)).await;
    assert_eq!(plan_inputs(&server, "fleet-worker"), former);
    deploy(&server, "fleet");
    server.until("2 are wanted again", |server| replicas(server, "fleet-worker") == Some(2)).await;
    assert_ne!(plan_inputs(&server, "fleet-worker"), former);
    let owners =
        server.get(DEPLOYMENTS, "team", "fleet-worker").unwrap()["metadata"]["ownerReferences"].clone();
    assert_eq!(owners[0]["uid"], "uid-of-fleet");
    stop(running).await;
}

#[tokio::test]
async fn what_fails_again_and_again_is_told_and_goes_on_being_told() {
    let server = Server::start().await;
    server.break_writes(SERVICES, true);
    server.put(PIPELINES, pipeline("fleet", &json!({"replicas": 2})));
    let running = operator(&server);
    let is_told = |server: &Server| reason(server, "fleet", "Ready").as_deref() == Some("ApplyFailed");
    server.until("it is told", is_told).await;
    let ready = server.get(PIPELINES, "team", "fleet").unwrap()["status"]["conditions"][0].clone();
    assert!(ready["message"].as_str().unwrap().contains("Service fleet: 500 WebhookBroken"), "{ready}");
    // Also by an operator that meets it for the first time.
    stop(running).await;
    let running = operator(&server);
    server.change(PIPELINES, "team", "fleet", |object| object["spec"]["replicas"] = json!(3));
    server.until("it is looked at", is_looked_at).await;
    assert!(is_told(&server));
    server.break_writes(SERVICES, false);
    server.until("3 are wanted", |server| replicas(server, "fleet-worker") == Some(3)).await;
    server.until("it is no longer told", |server| !is_told(server)).await;
    stop(running).await;
}

#[tokio::test]
async fn the_account_of_workers_stays_while_one_of_them_may_use_it() {
    let server = Server::start().await;
    server.put(PIPELINES, pipeline("fleet", &json!({"replicas": 2})));
    let operator = operator(&server);
    server.until("2 are wanted", |server| replicas(server, "fleet-worker") == Some(2)).await;
    deploy(&server, "fleet");
    let told = |server: &Server, word: &str| reason(server, "fleet", "Progressing").as_deref() == Some(word);
    server.until("they serve", |server| told(server, "Complete")).await;
    server.change(PIPELINES, "team", "fleet", |object| {
        object["spec"]["worker"]["serviceAccountName"] = json!("own")
    });
    server.until("the rollout is told", |server| told(server, "RollingOut")).await;
    let deployment = server.get(DEPLOYMENTS, "team", "fleet-worker").unwrap();
    assert_eq!(deployment["spec"]["template"]["spec"]["serviceAccountName"], "own");
    assert!(server.get(ACCOUNTS, "team", "fleet-worker").is_some());
    deploy(&server, "fleet");
    server.until("it goes", |server| server.get(ACCOUNTS, "team", "fleet-worker").is_none()).await;
    stop(operator).await;
}

#[tokio::test]
async fn a_document_that_is_lost_is_made_again() {
    let server = Server::start().await;
    server.put(PIPELINES, pipeline("fleet", &json!({"replicas": 2})));
    let operator = operator(&server);
    server.until("2 are wanted", |server| replicas(server, "fleet-worker") == Some(2)).await;
    let name = document(&server, "fleet-worker");
    let before = server.get(MAPS, "team", &name).unwrap()["data"].clone();
    server.remove(MAPS, "team", &name);
    server.until("it is there again", |server| server.get(MAPS, "team", &name).is_some()).await;
    assert_eq!(server.get(MAPS, "team", &name).unwrap()["data"], before);
    stop(operator).await;
}

#[tokio::test]
async fn an_object_of_somebody_else_is_never_taken_over() {
    let server = Server::start().await;
    let theirs =
        json!({"metadata": {"name": "fleet", "namespace": "team"}, "spec": {"clusterIP": "10.0.0.1"}});
    server.put(SERVICES, theirs);
    server.put(PIPELINES, pipeline("fleet", &json!({})));
    server.put(PIPELINES, pipeline("other", &json!({"replicas": 2})));
    let operator = operator(&server);
    server
        .until("the conflict is told", |server| {
            reason(server, "fleet", "Ready").as_deref() == Some("NameConflict")
        })
        .await;
    assert_eq!(server.get(SERVICES, "team", "fleet").unwrap()["spec"], json!({"clusterIP": "10.0.0.1"}));
    // Others go on.
    server.until("the other one stands", |server| replicas(server, "other-worker") == Some(2)).await;
    stop(operator).await;
}

#[tokio::test]
async fn a_crash_between_any_two_writes_leaves_nothing_that_the_next_start_does_not_mend() {
    let whole = {
        let server = Server::start().await;
        server.put(PIPELINES, pipeline("fleet", &json!({"replicas": 3})));
        let operator = operator(&server);
        server.until("it stands", |server| replicas(server, "fleet-worker") == Some(3)).await;
        stop(operator).await;
        settled(&server)
    };
    for writes in 0.. {
        let server = Server::start().await;
        server.put(PIPELINES, pipeline("fleet", &json!({"replicas": 3})));
        server.fail_after(writes);
        let first = operator(&server);
        server
            .until("it fails or stands", |server| {
                server.failed() || replicas(server, "fleet-worker") == Some(3)
            })
            .await;
        let crashed = server.failed();
        stop(first).await;
        server.fail_after(usize::MAX);
        let second = operator(&server);
        server.until("it stands", |server| replicas(server, "fleet-worker") == Some(3)).await;
        stop(second).await;
        assert_eq!(settled(&server), whole, "after a crash at write {writes}");
        if !crashed {
            assert!(writes > 5, "only {writes} writes");
            break;
        }
    }
}

type Holds<'a> = &'a (dyn Fn(&Server) -> bool + Sync);

/// Other streams and another document for a fleet that stands, with a crash after so many writes. Gives what stands there in the end, and
/// whether there was a crash.
async fn changed(writes: usize) -> (Vec<(String, Value)>, bool) {
    let server = Server::start().await;
    server.put(PIPELINES, pipeline("fleet", &json!({"replicas": 2})));
    let mut running = operator(&server);
    server.until("2 are wanted", |server| replicas(server, "fleet-worker") == Some(2)).await;
    deploy(&server, "fleet");
    let former = document(&server, "fleet-worker");
    server.fail_after(writes);
    server.change(PIPELINES, "team", "fleet", |object| {
        object["spec"]["streams"][0]["seed"] = json!(7);
        object["spec"]["cache"]["sharedMemory"] = json!("8Gi");
    });
    let mut crashed = false;
    let gone = |server: &Server| replicas(server, "fleet-worker") == Some(0);
    let wanted = |server: &Server| replicas(server, "fleet-worker") == Some(2);
    let cleared = |server: &Server| server.get(MAPS, "team", &former).is_none();
    let steps: [(&str, Holds<'_>, bool); 3] = [
        ("all are to go", &gone, true),
        ("2 are wanted again", &wanted, true),
        ("it is cleared", &cleared, false),
    ];
    for (what, is_done, deploys) in steps {
        server.until(what, |server| is_done(server) || (!crashed && server.failed())).await;
        if !crashed && server.failed() {
            crashed = true;
            stop(running).await;
            server.fail_after(usize::MAX);
            running = operator(&server);
            server.until(what, is_done).await;
        }
        if deploys {
            deploy(&server, "fleet");
        }
    }
    stop(running).await;
    (settled(&server), crashed)
}

#[tokio::test]
async fn a_crash_between_any_two_writes_of_a_change_leaves_nothing_that_the_next_start_does_not_mend() {
    let (whole, _) = changed(usize::MAX).await;
    let attempts: Vec<_> = (0..16).map(|writes| tokio::spawn(changed(writes))).collect();
    let mut crashes = 0;
    for (writes, attempt) in attempts.into_iter().enumerate() {
        let (stands, crashed) = attempt.await.unwrap();
        crashes += usize::from(crashed);
        assert_eq!(stands, whole, "after a crash at write {writes}");
    }
    // The number, the template, its document, the Deployment, the number, and two that go.
    assert!(crashes >= 7, "only {crashes} crashes");
}

#[tokio::test]
async fn one_object_that_cannot_be_read_stops_no_other() {
    let server = Server::start().await;
    let mut newer = pipeline("newer", &json!({}));
    newer["spec"]["processor"] = json!("a name");
    server.put(PIPELINES, newer);
    server.put(PIPELINES, pipeline("fleet", &json!({"replicas": 2})));
    let operator = operator(&server);
    server.until("the good one stands", |server| replicas(server, "fleet-worker") == Some(2)).await;
    server
        .until("the other is told of", |server| {
            reason(server, "newer", "Ready").as_deref() == Some("Undecodable")
        })
        .await;
    assert_eq!(server.get(DEPLOYMENTS, "team", "newer-worker"), None);
    stop(operator).await;
}

#[tokio::test]
async fn a_contradiction_that_came_past_the_rules_changes_nothing() {
    let server = Server::start().await;
    server.put(PIPELINES, pipeline("fleet", &json!({"replicas": 2})));
    let operator = operator(&server);
    server.until("it stands", |server| replicas(server, "fleet-worker") == Some(2)).await;
    server.change(PIPELINES, "team", "fleet", |object| {
        object["spec"]["replicas"] = json!(9);
        object["spec"]["cache"]["fetch"] = json!("1Mi");
    });
    server
        .until("it is told", |server| reason(server, "fleet", "Ready").as_deref() == Some("InvalidSpec"))
        .await;
    assert_eq!(replicas(&server, "fleet-worker"), Some(2));
    stop(operator).await;
}

#[tokio::test]
async fn those_that_go_first_are_marked_before_the_number_is_written() {
    let server = Server::start().await;
    server.put(PIPELINES, pipeline("fleet", &json!({"replicas": 3})));
    let operator = operator(&server);
    server.until("3 are wanted", |server| replicas(server, "fleet-worker") == Some(3)).await;
    for (number, node) in ["n1", "n1", "n2"].iter().enumerate() {
        server.put(
            PODS,
            json!({
                "metadata": {"name": format!("p{number}"), "namespace": "team", "creationTimestamp": format!("2026-01-01T00:00:0{number}Z"),
                    "labels": {"app.kubernetes.io/managed-by": "feedmill-operator", "feedmill.dev/pipeline": "fleet"}},
                "spec": {"nodeName": node, "containers": []},
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
            }),
        );
    }
    server.change(PIPELINES, "team", "fleet", |object| object["spec"]["replicas"] = json!(2));
    server.until("2 are wanted", |server| replicas(server, "fleet-worker") == Some(2)).await;
    let cost = |name: &str| {
        server.get(PODS, "team", name).unwrap()["metadata"]["annotations"]["controller.kubernetes.io/pod-deletion-cost"].clone()
    };
    // The newest of the fullest node.
    assert_eq!([cost("p0"), cost("p1"), cost("p2")], [Value::Null, json!("-100"), Value::Null]);
    stop(operator).await;
}

#[tokio::test]
async fn a_pod_whose_label_was_taken_away_holds_up_no_smaller_number() {
    let server = Server::start().await;
    server.put(PIPELINES, pipeline("fleet", &json!({"replicas": 3})));
    let operator = operator(&server);
    server.until("3 are wanted", |server| replicas(server, "fleet-worker") == Some(3)).await;
    deploy(&server, "fleet");
    let ready =
        |server: &Server| server.get(PIPELINES, "team", "fleet").unwrap()["status"]["readyReplicas"].clone();
    server.until("they serve", |server| ready(server) == 3).await;
    server.change(PODS, "team", "fleet-0", |object| {
        object["metadata"]["labels"].as_object_mut().unwrap().remove("feedmill.dev/pipeline");
    });
    server.until("it is not counted", |server| ready(server) == 2).await;
    server.remove(PODS, "team", "fleet-0");
    server.change(PIPELINES, "team", "fleet", |object| object["spec"]["replicas"] = json!(1));
    server.until("one is wanted", |server| replicas(server, "fleet-worker") == Some(1)).await;
    stop(operator).await;
}

#[tokio::test]
async fn a_pipeline_that_is_gone_is_written_to_no_more() {
    let server = Server::start().await;
    server.put(PIPELINES, pipeline("fleet", &json!({"replicas": 2})));
    let operator = operator(&server);
    server.until("it stands", |server| replicas(server, "fleet-worker") == Some(2)).await;
    server.remove(PIPELINES, "team", "fleet");
    // Another one shows that the first was looked at since.
    server.put(PIPELINES, pipeline("other", &json!({"replicas": 2})));
    server.until("the other stands", |server| replicas(server, "other-worker") == Some(2)).await;
    assert_eq!(server.get(DEPLOYMENTS, "team", "fleet-worker"), None);
    assert_eq!((server.count(DEPLOYMENTS), server.count(SERVICES)), (1, 1));
    stop(operator).await;
}

#[tokio::test]
async fn conditions_are_told_as_metrics_until_the_pipeline_is_gone() {
    let server = Server::start().await;
    server.put(PIPELINES, pipeline("fleet", &json!({"replicas": 2})));
    let metrics = Arc::new(Metrics::new().unwrap());
    let (client, told) = (server.client.clone(), Arc::clone(&metrics));
    let operator = tokio::spawn(async move {
        drop(look_after(client, &settings(), told, &Unreadable::default()).await);
    });
    server
        .until("it starts", |server| reason(server, "fleet", "Ready").as_deref() == Some("WorkersStarting"))
        .await;
    let text = metrics.text().unwrap();
    for line in [
        r#"feedmill_pipeline_condition{namespace="team",pipeline="fleet",status="false",type="Ready"} 1"#,
        r#"feedmill_pipeline_condition_reason{namespace="team",pipeline="fleet",reason="WorkersStarting",type="Ready"} 1"#,
        r#"feedmill_reporting_ranks{namespace="team",pipeline="fleet"} 0"#,
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    // A pipeline that cannot be worked on has no figures of trainers: what was known of them is old.
    server.change(PIPELINES, "team", "fleet", |object| object["spec"]["cache"]["fetch"] = json!("1Mi"));
    server
        .until("it is told", |server| reason(server, "fleet", "Ready").as_deref() == Some("InvalidSpec"))
        .await;
    assert!(!metrics.text().unwrap().contains("feedmill_reporting_ranks"));
    server.remove(PIPELINES, "team", "fleet");
    server.put(PIPELINES, pipeline("other", &json!({"replicas": 2})));
    server.until("the other stands", |server| replicas(server, "other-worker") == Some(2)).await;
    let text = metrics.text().unwrap();
    assert!(!text.contains("pipeline=\"fleet\""), "{text}");
    stop(operator).await;
}
