//! An API server that fails, and two that act at once: what a real cluster shows seldom. In virtual time.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use std::sync::Arc;

use feedmill_operator::leader::Candidate;
use feedmill_operator::metrics::Metrics;
use serde_json::{Value, json};
use support::{DEPLOYMENTS, Fleet, NAMESPACE, PIPELINES, REVISIONS, Server, operator, pipeline};

const LEASES: &str = "apis/coordination.k8s.io/v1/leases";
/// Each takes a tenth of a second.
const SEEDS: u64 = 100;

/// A runtime of its own for each seed: what one does changes the time and the chance of no other.
fn in_virtual_time<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(work)
}

async fn brought_there(seed: Option<u64>) -> Vec<(&'static str, Value)> {
    let server = Server::start();
    if let Some(seed) = seed {
        // The pauses after failures.
        fastrand::seed(seed);
        server.storm(seed, 0.25);
    }
    server.put(PIPELINES, pipeline("other", &json!({"replicas": 1})));
    let fleet = Fleet::on(server, &json!({"replicas": 3}));
    fleet.sized(3).await;
    fleet.edit(|spec| {
        spec["replicas"] = json!(5);
        spec["drainSeconds"] = json!(30);
    });
    let ended = |server: &Server| {
        let deployment = server.get(DEPLOYMENTS, "fleet-worker").unwrap_or_default();
        let grace = &deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"];
        server.replicas("fleet") == Some(5) && *grace == 45 && server.replicas("other") == Some(1)
    };
    fleet.until("both are as asked", ended).await;
    fleet.calm();
    let known = |server: &Server| {
        ["fleet", "other"].iter().all(|name| {
            let object = server.get(PIPELINES, name).unwrap_or_default();
            object["status"]["observedGeneration"] == object["metadata"]["generation"]
                && object["status"]["conditions"]
                    .as_array()
                    .is_some_and(|all| all.iter().any(|one| one["type"] == "Ready"))
        })
    };
    fleet.until("their status says so", known).await;
    fleet.still().await;
    let mut settled = fleet.settled();
    // Which one it is depends on whether those before it were seen.
    for (_, objects) in settled.iter_mut().filter(|(group, _)| *group == REVISIONS) {
        for object in objects.as_array_mut().unwrap() {
            let number = object.as_object_mut().unwrap().remove("revision").unwrap();
            let name = object["metadata"]["name"].as_str().unwrap();
            object["metadata"]["name"] = name.strip_suffix(&format!("-{number}")).unwrap().into();
        }
    }
    settled
}

#[test]
fn whatever_requests_fail_a_fleet_ends_as_it_was_asked_for() {
    let calm = in_virtual_time(brought_there(None));
    for seed in 0..SEEDS {
        assert_eq!(in_virtual_time(brought_there(Some(seed))), calm, "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn two_that_act_at_once_agree() {
    // Both begin at once, with nothing there yet.
    let fleet = Fleet::on(Server::start(), &json!({"replicas": 3}));
    let second = operator(&fleet, "two", &Arc::new(Metrics::new().unwrap()));
    for wanted in 4..10 {
        fleet.edit(|spec| spec["replicas"] = json!(wanted));
        fleet.sized(wanted).await;
    }
    // Neither undoes what the other does: each makes every object once, writes each number at most once, and its status.
    let writes = fleet.writes();
    let sizes = writes.iter().filter(|write| write.contains("deployments")).count();
    assert!(sizes <= 2 * (6 + 3), "{writes:#?}");
    second.abort();
}

#[tokio::test(start_paused = true)]
async fn a_cache_that_lags_behind_own_writes_undoes_none_of_them() {
    let fleet = Fleet::serving(3).await;
    fleet.hold(DEPLOYMENTS, true);
    for wanted in [5, 4, 7] {
        fleet.edit(|spec| {
            spec["replicas"] = json!(wanted);
            spec["drainSeconds"] = json!(30 + wanted);
        });
        fleet.sized(wanted).await;
        // Looked at again, with what was so before all of that.
        fleet.still().await;
        assert_eq!((fleet.replicas("fleet"), fleet.grace()), (Some(wanted), json!(45 + wanted)));
        assert!(!fleet.says("Progressing", "Complete"));
    }
    let sizes = fleet.history(DEPLOYMENTS, "fleet-worker").into_iter();
    let mut sizes: Vec<i64> = sizes.filter_map(|object| object["spec"]["replicas"].as_i64()).collect();
    sizes.dedup();
    assert_eq!(sizes, [1, 3, 5, 4, 7], "never back");
    fleet.hold(DEPLOYMENTS, false);
    fleet.deploy();
    fleet.tells("Progressing", "Complete").await;
}

#[tokio::test(start_paused = true)]
async fn of_two_candidates_one_has_the_lease_and_the_other_gets_it_when_it_is_given_back() {
    let server = Server::start();
    let candidate = |name: &str| Candidate::new(server.client(), NAMESPACE, "feedmill", name);
    let holder = || server.get(LEASES, "feedmill").map(|lease| lease["spec"]["holderIdentity"].clone());
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
