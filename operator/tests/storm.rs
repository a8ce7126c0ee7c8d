//! An API server that fails, and two that act at once: what a real cluster shows seldom.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use std::sync::Arc;

use clap::{Args as _, Command, FromArgMatches as _};
use feedmill_operator::leader::Candidate;
use feedmill_operator::metrics::Metrics;
use feedmill_operator::run::{Unreadable, look_after};
use feedmill_operator::settings::OperatorArgs;
use serde_json::{Value, json};
use support::{DEPLOYMENTS, PIPELINES, SERVICES, Server, pipeline};
use tokio::task::JoinHandle;

const LEASES: &str = "apis/coordination.k8s.io/v1/leases";

fn operator(server: &Server, name: &str) -> JoinHandle<()> {
    let command = OperatorArgs::augment_args(Command::new("operator"));
    let words = ["operator", "--worker-image=worker:1", "--identity", name, "--without-nodes"];
    let settings = OperatorArgs::from_arg_matches(&command.get_matches_from(words)).unwrap();
    let client = server.client.clone();
    tokio::spawn(async move {
        let ended =
            look_after(client, &settings, Arc::new(Metrics::new().unwrap()), &Unreadable::default()).await;
        panic!("{ended:?}")
    })
}

fn replicas(server: &Server, name: &str) -> Option<i64> {
    server.get(DEPLOYMENTS, "team", name)?["spec"]["replicas"].as_i64()
}

fn stands(server: &Server, name: &str) -> Value {
    let deployment = server.get(DEPLOYMENTS, "team", &format!("{name}-worker")).unwrap_or_default();
    let document = &deployment["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"];
    let objects = [
        (DEPLOYMENTS, format!("{name}-worker")),
        (SERVICES, name.to_owned()),
        ("api/v1/configmaps", document.as_str().unwrap_or_default().to_owned()),
        ("api/v1/serviceaccounts", format!("{name}-worker")),
        ("apis/policy/v1/poddisruptionbudgets", format!("{name}-worker")),
    ];
    let specs = objects.iter().map(|(group, name)| {
        let object = server.get(group, "team", name).unwrap_or_default();
        json!([name, object["spec"], object["data"]])
    });
    specs.collect()
}

async fn brought_there(seed: Option<u64>) -> Value {
    let server = Server::start().await;
    if let Some(seed) = seed {
        server.storm(seed, 0.25);
    }
    server.put(PIPELINES, pipeline("fleet", &json!({"replicas": 3})));
    server.put(PIPELINES, pipeline("other", &json!({"replicas": 1})));
    let operator = operator(&server, "me");
    server.until("it stands", |server| replicas(server, "fleet-worker") == Some(3)).await;
    server.change(PIPELINES, "team", "fleet", |object| {
        object["spec"]["replicas"] = json!(5);
        object["spec"]["drainSeconds"] = json!(30);
    });
    let ended = |server: &Server| {
        let fleet = server.get(DEPLOYMENTS, "team", "fleet-worker").unwrap_or_default();
        let grace = &fleet["spec"]["template"]["spec"]["terminationGracePeriodSeconds"];
        replicas(server, "fleet-worker") == Some(5)
            && *grace == 45
            && replicas(server, "other-worker") == Some(1)
    };
    server.until("both are as asked", ended).await;
    server.calm();
    let known = |server: &Server| {
        ["fleet", "other"].iter().all(|name| {
            let object = server.get(PIPELINES, "team", name).unwrap_or_default();
            object["status"]["observedGeneration"] == object["metadata"]["generation"]
                && object["status"]["conditions"]
                    .as_array()
                    .is_some_and(|all| all.iter().any(|one| one["type"] == "Ready"))
        })
    };
    server.until("their status says so", known).await;
    operator.abort();
    json!([stands(&server, "fleet"), stands(&server, "other")])
}

#[tokio::test]
async fn whatever_requests_fail_a_fleet_ends_as_it_was_asked_for() {
    let calm = brought_there(None).await;
    let storms = (0..8).map(|seed| tokio::spawn(brought_there(Some(seed))));
    for (seed, storm) in storms.collect::<Vec<_>>().into_iter().enumerate() {
        assert_eq!(storm.await.unwrap(), calm, "seed {seed}");
    }
}

#[tokio::test]
async fn two_that_act_at_once_agree() {
    let server = Server::start().await;
    server.put(PIPELINES, pipeline("fleet", &json!({"replicas": 3})));
    let both = [operator(&server, "one"), operator(&server, "two")];
    for wanted in 4..10 {
        server.change(PIPELINES, "team", "fleet", |object| object["spec"]["replicas"] = json!(wanted));
        server.until("it is as asked", |server| replicas(server, "fleet-worker") == Some(wanted)).await;
    }
    // Neither undoes what the other does: each makes every object once, writes each number at most once, and its status.
    let writes = server.writes();
    let sizes = writes.iter().filter(|write| write.contains("deployments")).count();
    assert!(sizes <= 2 * (6 + 3), "{writes:#?}");
    both.iter().for_each(JoinHandle::abort);
}

#[tokio::test]
async fn of_two_candidates_one_has_the_lease_and_the_other_gets_it_when_it_is_given_back() {
    let server = Server::start().await;
    let candidate = |name: &str| Candidate::new(server.client.clone(), "team", "feedmill", name);
    let holder =
        || server.get(LEASES, "team", "feedmill").map(|lease| lease["spec"]["holderIdentity"].clone());
    let (mut one, mut two) = (candidate("one"), candidate("two"));
    one.acquire().await;
    assert_eq!(holder(), Some(json!("one")));
    let waiting = tokio::spawn(async move {
        two.acquire().await;
        two
    });
    one.release().await;
    let mut two = waiting.await.unwrap();
    assert_eq!(holder(), Some(json!("two")));
    // One that no longer has it gives nothing back.
    one.release().await;
    assert_eq!(holder(), Some(json!("two")));
    two.release().await;
    assert_eq!(holder(), Some(Value::Null));
}
