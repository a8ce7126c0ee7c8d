use feedmill_protocol::report::{CANNOT_READ, WorkerState};
use feedmill_scaler::{Limit, Reason};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::json;

use super::*;
use crate::observe::{Trouble, TroubleKind};
use crate::scrape::tests::worker;
use crate::validate::tests::pipeline;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn pod(name: &str, ready: bool) -> Arc<WorkerPod> {
    Arc::new(WorkerPod { name: name.into(), node: Some(name.into()), ready, ..WorkerPod::default() })
}

fn troubled(name: &str, trouble: Trouble) -> Arc<WorkerPod> {
    Arc::new(WorkerPod { name: name.into(), trouble: Some(trouble), ..WorkerPod::default() })
}

fn deployment(replicas: i32, updated: i32, available: i32) -> Deployment {
    serde_json::from_value(json!({
        "metadata": {"generation": 2},
        "spec": {"replicas": replicas, "selector": {}, "template": {}},
        "status": {"observedGeneration": 2, "replicas": replicas, "updatedReplicas": updated, "availableReplicas": available},
    }))
    .unwrap()
}

#[derive(Clone, Default)]
struct Case {
    lines: &'static str,
    pods: Vec<Arc<WorkerPod>>,
    deployment: Option<Deployment>,
    deployment_is_old: bool,
    changing: bool,
    scaled: Option<Scaled>,
    workers: Vec<(&'static str, WorkerStatus)>,
    silent: Option<ScrapeError>,
    consistency: Option<Consistency>,
    obstacle: Option<Obstacle>,
    unasked: bool,
}

impl Case {
    fn status(&self, before: &DataPipelineStatus, now: i64) -> DataPipelineStatus {
        let pipeline = pipeline(self.lines);
        let workers: Vec<(&str, &WorkerStatus)> =
            self.workers.iter().map(|(name, status)| (*name, status)).collect();
        let facts = Facts {
            pipeline: &pipeline,
            pods: &self.pods,
            deployment: self.deployment.as_ref(),
            deployment_is_old: self.deployment_is_old,
            workers: &workers,
            silent: self.silent.as_ref().map(|error| ("a", error)),
            agreed: None,
            consistency: self.consistency.as_ref().unwrap_or(&Consistency::Agree),
            placement: PlacementStatus { nodes: 1, max_per_node: 1, skew: Some(0) },
            figures: Figures::default(),
            up_to_date: true,
            scaled: self.scaled.as_ref(),
            changing: self.changing,
            obstacle: self.obstacle.as_ref(),
            unasked: self.unasked,
        };
        status(before, &facts, at(now))
    }
}

fn condition<'a>(status: &'a DataPipelineStatus, kind: &str) -> &'a Condition {
    status.conditions.iter().find(|condition| condition.type_ == kind).unwrap()
}

fn short(status: &DataPipelineStatus, kind: &str) -> (String, String) {
    let found = condition(status, kind);
    (found.status.clone(), found.reason.clone())
}

#[test]
fn ready_says_the_one_thing_that_is_in_the_way() {
    let mut starting = worker("p");
    starting.streams.clear();
    starting.state = WorkerState::Starting;
    starting.doing = Some("reading data set chartqa: 1 of 9 MB".into());
    let differ = Consistency::Differ {
        stream: "train".into(),
        workers: vec!["b".into()],
        theirs: "sha256:1".into(),
        recorded: "sha256:0".into(),
    };
    let cases = [
        (
            Case { lines: "replicas: 1", pods: vec![pod("a", true)], ..Case::default() },
            "True",
            "WorkersServe",
        ),
        (
            Case { lines: "replicas: 2", pods: vec![pod("a", true)], ..Case::default() },
            "False",
            "WorkersStarting",
        ),
        (Case { lines: "replicas: 0", ..Case::default() }, "True", "NoWorkersWanted"),
        (Case { lines: "suspend: true", ..Case::default() }, "False", "Suspended"),
        (
            Case {
                pods: vec![troubled(
                    "a",
                    Trouble { kind: TroubleKind::Image, words: "no such image".into() },
                )],
                ..Case::default()
            },
            "False",
            "ImagePullFailed",
        ),
        (
            Case {
                pods: vec![troubled(
                    "a",
                    Trouble { kind: TroubleKind::Unschedulable, words: "0/3 nodes".into() },
                )],
                ..Case::default()
            },
            "False",
            "Unschedulable",
        ),
        (
            Case { pods: vec![pod("a", false)], workers: vec![("a", starting)], ..Case::default() },
            "False",
            "WorkersStarting",
        ),
        (
            Case { pods: vec![pod("a", false)], consistency: Some(differ.clone()), ..Case::default() },
            "False",
            "PlanDiffers",
        ),
        (
            Case {
                lines: "replicas: 2",
                pods: vec![pod("a", true), pod("b", true)],
                consistency: Some(differ),
                ..Case::default()
            },
            "False",
            "PlanDiffers",
        ),
        (Case { pods: vec![pod("a", true)], changing: true, ..Case::default() }, "False", "PlanChanging"),
        (
            Case { obstacle: Some(Obstacle::NameConflict("Service a".into())), ..Case::default() },
            "False",
            "NameConflict",
        ),
        (Case { obstacle: Some(Obstacle::Forbidden("x".into())), ..Case::default() }, "False", "Forbidden"),
        (Case { obstacle: Some(Obstacle::Refused("x".into())), ..Case::default() }, "False", "ApplyFailed"),
    ];
    for (case, truth, reason) in cases {
        let status = case.status(&DataPipelineStatus::default(), 0);
        let found = short(&status, "Ready");
        assert_eq!(
            (found.0.as_str(), found.1.as_str()),
            (truth, reason),
            "{:?}",
            condition(&status, "Ready")
        );
        assert!(!condition(&status, "Ready").message.is_empty());
        assert!(!status.selector.is_empty());
    }
}

#[test]
fn why_no_worker_answers_is_told() {
    let told = |silent| {
        let case = Case { pods: vec![pod("a", true)], silent, ..Case::default() };
        condition(&case.status(&DataPipelineStatus::default(), 0), "SourceReady").message.clone()
    };
    assert_eq!(told(None), "no worker says what it has read");
    assert_eq!(
        told(Some(ScrapeError::Timeout)),
        "no worker says what it has read; a: it did not answer within 2 s"
    );
}

#[test]
fn a_worker_that_does_not_start_degrades_what_serves() {
    let case = Case {
        lines: "replicas: 1",
        pods: vec![
            pod("a", true),
            troubled("b", Trouble { kind: TroubleKind::Crashes, words: "error: access denied".into() }),
        ],
        deployment: Some(deployment(1, 0, 1)),
        workers: vec![("a", worker("p"))],
        ..Case::default()
    };
    let status = case.status(&DataPipelineStatus::default(), 0);
    assert_eq!(short(&status, "Ready").0, "True");
    assert_eq!(short(&status, "Degraded"), ("True".into(), "WorkerCrashes".into()));
    assert_eq!(short(&status, "Progressing"), ("True".into(), "RollingOut".into()));
    assert_eq!(short(&status, "SourceReady").0, "True");
    assert!(condition(&status, "Degraded").message.contains("access denied"));
}

#[test]
fn a_rollout_ends_when_all_are_new_and_available() {
    let of = |deployment| {
        let case = Case {
            lines: "replicas: 2",
            pods: vec![pod("a", true), pod("b", true)],
            deployment: Some(deployment),
            ..Case::default()
        };
        short(&case.status(&DataPipelineStatus::default(), 0), "Progressing").1
    };
    assert_eq!(of(deployment(2, 2, 2)), "Complete");
    assert_eq!(of(deployment(2, 1, 2)), "RollingOut");
    assert_eq!(of(deployment(6, 6, 6)), "RollingOut");
    let mut stuck = deployment(2, 1, 2);
    stuck.status.as_mut().unwrap().conditions = Some(vec![
        serde_json::from_value(json!({
        "type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}))
        .unwrap(),
    ]);
    assert_eq!(of(stuck), "ProgressDeadlineExceeded");
}

#[test]
fn a_cache_that_is_older_than_the_last_write_is_no_end_of_a_rollout() {
    let case = |deployment_is_old| Case {
        lines: "replicas: 2",
        pods: vec![pod("a", true), pod("b", true)],
        deployment: Some(deployment(2, 2, 2)),
        deployment_is_old,
        ..Case::default()
    };
    let reason = |is_old| short(&case(is_old).status(&DataPipelineStatus::default(), 0), "Progressing").1;
    assert_eq!([reason(false), reason(true)], ["Complete", "RollingOut"]);
}

#[test]
fn a_transition_keeps_its_time_until_the_next() {
    let well = Case { pods: vec![pod("a", true)], ..Case::default() };
    let ill = Case { pods: vec![pod("a", false)], ..Case::default() };
    let first = well.status(&DataPipelineStatus::default(), 10);
    let second = well.status(&first, 20);
    assert_eq!(first, second);
    let third = ill.status(&second, 30);
    assert_eq!(condition(&third, "Ready").last_transition_time.0, at(30));
    assert_eq!(condition(&third, "Suspended").last_transition_time.0, at(10));
}

/// A worker was killed for its memory and served again two seconds later, before anybody had looked: nobody was told.
#[test]
fn a_worker_that_ended_and_was_soon_back_is_told_of() {
    let trouble = Trouble { kind: TroubleKind::OutOfMemory, words: "exit code 137".into() };
    let back = WorkerPod { ended: Some((trouble, 100)), ..WorkerPod::clone(&pod("a", true)) };
    let well = Case { pods: vec![pod("a", true)], ..Case::default() };
    let ended = Case { pods: vec![Arc::new(back)], ..Case::default() };
    let good = well.status(&DataPipelineStatus::default(), 90);
    let told = ended.status(&good, 101);
    assert_eq!(condition(&told, "Ready").status, "True");
    let degraded = condition(&told, "Degraded");
    assert_eq!((&*degraded.status, &*degraded.reason), ("True", "OutOfMemory"));
    assert_eq!(
        degraded.message,
        "a: exit code 137 at 1970-01-01T00:01:40Z, and serves again; raise spec.worker.resources.limits.memory or lower spec.cache"
    );
    let news = edges(&good.conditions, &told.conditions);
    assert!(news.iter().any(|edge| edge.warning && edge.reason == "OutOfMemory"), "{news:?}");
    // It says the same until it is long ago.
    assert_eq!(ended.status(&told, 399), told);
    assert_eq!(condition(&ended.status(&told, 400), "Degraded").status, "False");
}

#[test]
fn news_is_told_once() {
    let well = Case { pods: vec![pod("a", true)], workers: vec![("a", worker("p"))], ..Case::default() };
    let ill = Case {
        pods: vec![troubled("a", Trouble { kind: TroubleKind::Crashes, words: "x".into() })],
        ..Case::default()
    };
    let start =
        Case { pods: vec![pod("a", false)], consistency: Some(Consistency::Unknown), ..Case::default() };
    let reasons = |before: &DataPipelineStatus, after: &DataPipelineStatus| -> Vec<(bool, String)> {
        edges(&before.conditions, &after.conditions)
            .into_iter()
            .map(|edge| (edge.warning, edge.reason))
            .collect()
    };
    let none = DataPipelineStatus::default();
    let started = start.status(&none, 0);
    assert_eq!(reasons(&none, &started), []);
    let good = well.status(&started, 1);
    let told: Vec<String> = reasons(&started, &good).into_iter().map(|(_, reason)| reason).collect();
    assert_eq!(told, ["WorkersServe", "DataRead", "PlansAgree"]);
    assert_eq!(reasons(&good, &well.status(&good, 2)), []);
    let bad = ill.status(&good, 3);
    assert_eq!(reasons(&good, &bad), [(true, "WorkerCrashes".into()), (true, "CannotReadData".into())]);
    assert_eq!(reasons(&bad, &ill.status(&bad, 4)), []);
}

#[test]
fn figures_alone_are_written_seldom_and_only_when_they_moved() {
    let figures_of = |wait, ranks| Figures { ranks, wait_permille: Some(wait), queue_fill_percent: Some(50) };
    let first = figures(None, figures_of(20, 8));
    assert_eq!(figures(Some(&first), figures_of(69, 8)), first);
    let moved = figures(Some(&first), figures_of(70, 8));
    assert_eq!(moved.wait_permille, Some(70));
    assert_eq!(figures(Some(&first), figures_of(20, 7)).reporting_ranks, 7);
    let (before, mut after) = (
        DataPipelineStatus { scaling: Some(first), ..DataPipelineStatus::default() },
        DataPipelineStatus::default(),
    );
    after.scaling = Some(moved);
    #[expect(clippy::disallowed_methods, reason = "any instant will do")]
    let t = Instant::now();
    let seconds = Duration::from_secs;
    assert_eq!(due(&before, &before, None, t), None);
    assert_eq!(due(&before, &after, None, t), Some(Duration::ZERO));
    assert_eq!(due(&before, &after, Some(t), t + seconds(20)), Some(seconds(40)));
    after.ready_replicas = 1;
    assert_eq!(due(&before, &after, Some(t), t + seconds(2)), Some(seconds(3)));
    assert_eq!(due(&before, &after, Some(t), t + seconds(5)), Some(Duration::ZERO));
    // Words alone, such as how much has been read, in between.
    let reading = |words: &str| {
        let mut conditions = Conditions::after(&[], 1, at(0));
        conditions.set("SourceReady", Truth::False, "ReadingData", words);
        DataPipelineStatus { conditions: conditions.done(), ..DataPipelineStatus::default() }
    };
    assert_eq!(due(&reading("1 of 9"), &reading("2 of 9"), Some(t), t + seconds(5)), Some(seconds(10)));
}

#[test]
fn a_size_that_the_operator_decides_has_its_reason_and_says_when_nobody_can_be_seen() {
    let scaled = |reason, limited_by| Scaled {
        ignored: None,
        workers: 8,
        reason,
        limited_by,
        fresh: true,
        next: Duration::from_secs(10),
        keep: None,
    };
    let enough = |wait| Reason::Enough { wait, needed: None };
    let of = |scaled| Case {
        lines: "replicas: 8\nautoscaling: {mode: Internal, maxReplicas: 8}",
        scaled: Some(scaled),
        ..Case::default()
    };
    let well = of(scaled(enough(0.0), None)).status(&DataPipelineStatus::default(), 0);
    assert_eq!(short(&well, "ScalingActive"), ("True".into(), "Enough".into()));
    assert_eq!(short(&well, "ScalingLimited"), ("False".into(), "WithinBounds".into()));
    assert_eq!(well.scaling.as_ref().unwrap().reason.as_deref(), Some("Enough"));
    let full = of(scaled(enough(0.5), Some(Limit::Max))).status(&well, 10);
    assert_eq!(short(&full, "ScalingLimited"), ("True".into(), "MaxReplicas".into()));
    assert_eq!(full.scaling.as_ref().unwrap().limited_by.as_deref(), Some("Max"));
    let lost = Reason::LABELS.iter().find(|label| **label == "ReportsLost").unwrap();
    let blind: Reason = serde_json::from_value(json!({"Lost": {"why": "Nobody", "windows": 1}})).unwrap();
    let blind = of(scaled(blind, None)).status(&well, 20);
    assert_eq!(short(&blind, "ScalingActive"), ("False".into(), (*lost).into()));
    assert!(
        edges(&well.conditions, &blind.conditions).iter().any(|edge| edge.warning && edge.reason == *lost)
    );
    // Another figure in the sentence is no haste.
    let other = of(scaled(enough(0.01), None)).status(&well, 30);
    #[expect(clippy::disallowed_methods, reason = "any instant will do")]
    let t = Instant::now();
    assert_ne!(other, well);
    assert_eq!(due(&well, &other, Some(t), t), Some(FIGURES));
}

#[test]
fn pods_that_are_refused_and_secrets_that_are_missing_are_told() {
    let mut quota = deployment(2, 0, 0);
    quota.status.as_mut().unwrap().conditions = Some(vec![
        serde_json::from_value(json!({"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate",
            "message": "exceeded quota: small"}))
        .unwrap(),
    ]);
    let case = Case { lines: "replicas: 2", deployment: Some(quota), ..Case::default() };
    let told = case.status(&DataPipelineStatus::default(), 0);
    assert_eq!(short(&told, "Ready"), ("False".into(), "PodsRefused".into()));
    assert_eq!(short(&told, "Degraded"), ("True".into(), "PodsRefused".into()));
    assert!(condition(&told, "Ready").message.contains("exceeded quota: small"));
    let waiting = WorkerPod {
        name: "a".into(),
        // It had no node for a long time before.
        made: 0,
        waits_for: Some(("Secret keys with token".into(), 100)),
        ..WorkerPod::default()
    };
    let case = Case { pods: vec![Arc::new(waiting)], ..Case::default() };
    assert_eq!(short(&case.status(&DataPipelineStatus::default(), 129), "Ready").1, "WorkersStarting");
    let told = case.status(&DataPipelineStatus::default(), 130);
    assert_eq!(short(&told, "Ready").1, "WorkerCannotStart");
    assert!(condition(&told, "Ready").message.contains("Secret keys with token"));
}

#[test]
fn workers_that_serve_by_two_plans_are_not_well() {
    let differ = Consistency::Differ {
        stream: "train".into(),
        workers: vec!["b".into()],
        theirs: "sha256:1".into(),
        recorded: "sha256:0".into(),
    };
    let case = Case {
        lines: "replicas: 2",
        pods: vec![pod("a", true), pod("b", true)],
        consistency: Some(differ),
        ..Case::default()
    };
    let told = case.status(&DataPipelineStatus::default(), 0);
    assert_eq!(short(&told, "Ready"), ("False".into(), "PlanDiffers".into()));
}

#[test]
fn workers_of_former_streams_end_before_there_are_new_ones() {
    let case = Case { pods: vec![pod("a", true)], changing: true, ..Case::default() };
    let told = case.status(&DataPipelineStatus::default(), 0);
    assert_eq!(short(&told, "Ready"), ("False".into(), "PlanChanging".into()));
    assert_eq!(short(&told, "Progressing"), ("True".into(), "PlanChanging".into()));
}

#[test]
fn an_invalid_spec_changes_nothing_but_what_is_said() {
    let before =
        Case { pods: vec![pod("a", true)], ..Case::default() }.status(&DataPipelineStatus::default(), 0);
    let errors: Vec<FieldError> = (0..7)
        .map(|number| FieldError { field: format!("spec.f{number}"), reason: "is wrong".into() })
        .collect();
    let after = invalid(&before, "qwen3vl-sft", 4, &errors, &[pod("a", true), pod("b", false)], at(1));
    assert_eq!((after.replicas, after.ready_replicas), (2, 1));
    assert_eq!(short(&after, "Ready"), ("False".into(), "InvalidSpec".into()));
    assert!(condition(&after, "Ready").message.contains("spec.f4: is wrong; and 2 more"));
    assert_eq!((after.ready_replicas, after.observed_generation), (1, Some(4)));
    assert_eq!(short(&after, "PlanConsistent"), short(&before, "PlanConsistent"));
}

/// Every start of an operator turned conditions of healthy pipelines, with events, until it had asked their workers.
#[test]
fn what_was_said_of_workers_stands_until_they_have_been_asked_again() {
    let well = Case {
        lines: "replicas: 1",
        pods: vec![pod("a", true)],
        workers: vec![("a", worker("p"))],
        ..Case::default()
    };
    let before = well.status(&DataPipelineStatus::default(), 0);
    let unknown = || Case { consistency: Some(Consistency::Unknown), workers: Vec::new(), ..well.clone() };
    let begun = Case { unasked: true, ..unknown() }.status(&before, 10);
    assert_eq!(edges(&before.conditions, &begun.conditions), []);
    for kind in ["SourceReady", "PlanConsistent"] {
        assert_eq!(condition(&begun, kind), condition(&before, kind));
    }
    // Asked, and without an answer; or never spoken of before.
    for (case, before) in
        [(unknown(), before), (Case { unasked: true, ..unknown() }, DataPipelineStatus::default())]
    {
        let told = case.status(&before, 20);
        assert_eq!(short(&told, "SourceReady"), ("Unknown".into(), "NoWorkerAnswers".into()));
        assert_eq!(short(&told, "PlanConsistent"), ("Unknown".into(), "NoPlanYet".into()));
    }
}

#[test]
fn limits_stand_until_another_operator_has_decided() {
    let scaled = |reason, limited_by| Scaled {
        workers: 4,
        reason,
        limited_by,
        ignored: None,
        fresh: false,
        next: Duration::ZERO,
        keep: None,
    };
    let internal = "autoscaling: {mode: Internal, minReplicas: 1, maxReplicas: 4}";
    let case = |scaled| Case {
        lines: internal,
        pods: vec![pod("a", true)],
        scaled: Some(scaled),
        ..Case::default()
    };
    let full = case(scaled(Reason::Rollout, Some(Limit::Max))).status(&DataPipelineStatus::default(), 0);
    let begun = case(scaled(Reason::Watching, None)).status(&full, 10);
    assert_eq!(condition(&begun, "ScalingLimited"), condition(&full, "ScalingLimited"));
    assert_eq!(begun.scaling.unwrap().limited_by.as_deref(), Some("Max"));
    let decided = case(scaled(Reason::Rollout, None)).status(&full, 20);
    assert_eq!(short(&decided, "ScalingLimited"), ("False".into(), "WithinBounds".into()));
}

/// A rollout that did not get on was not to be seen in `kubectl get -o wide`.
#[test]
fn what_is_wrong_beside_a_whole_fleet_stands_in_the_message_of_ready() {
    let trouble = Trouble { kind: TroubleKind::Image, words: "\"worker:typo\": not found".into() };
    let case =
        Case { lines: "replicas: 1", pods: vec![pod("a", true), troubled("b", trouble)], ..Case::default() };
    let told = case.status(&DataPipelineStatus::default(), 0);
    let ready = condition(&told, "Ready");
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("True", "WorkersServe"));
    assert!(
        ready.message.starts_with("1 of 1 workers serve; ImagePullFailed: b: \"worker:typo\""),
        "{}",
        ready.message
    );
    // Which the pipeline does not name.
    assert!(ready.message.contains("worker.image of the operator's chart"), "{}", ready.message);
}

/// Storage that refuses was told as a worker that starts.
#[test]
fn a_worker_that_cannot_read_is_no_worker_that_starts() {
    let mut trying = worker("p");
    trying.streams.clear();
    trying.state = WorkerState::Starting;
    trying.doing = Some(format!("{CANNOT_READ}: processor s3://b/p: Connection refused"));
    let case = Case {
        lines: "replicas: 1",
        pods: vec![pod("a", false)],
        workers: vec![("a", trying)],
        ..Case::default()
    };
    let told = case.status(&DataPipelineStatus::default(), 0);
    for (kind, truth) in [("Ready", "False"), ("SourceReady", "False"), ("Degraded", "True")] {
        assert_eq!(short(&told, kind), (truth.into(), "CannotReadData".into()), "{kind}");
        assert!(condition(&told, kind).message.contains("a: cannot read the data yet"), "{kind}");
    }
}
