use std::collections::BTreeMap;

use feedmill_protocol::report::KeptReport;
use feedmill_scaler::prometheus::{Mute, Numbers};
use serde_json::json;

use super::*;
use crate::scrape::ScrapeError;
use crate::scrape::tests::{seen, worker};
use crate::validate::tests::pipeline;

const SCALED: &str = "replicas: 2\nautoscaling: {mode: Internal, minReplicas: 1, maxReplicas: 20}";
/// A plan.
fn digest(number: u8) -> String {
    format!("{number:064x}")
}

/// By the calendar.
const START: u64 = 1_700_000_000_000;

/// A fleet, a training and both clocks.
struct World {
    pipeline: ValidatedPipeline,
    agreed: Agreed,
    scalers: Scalers,
    begin: Instant,
    seconds: u64,
    /// Workers that the Deployment has.
    workers: i32,
    kept: Option<ConfigMap>,
    /// The share of its time that the training's only rank waits while there are too few workers; none when nobody trains.
    wait: Option<f64>,
    /// The training's name.
    run: String,
    /// What Prometheus says, of a pipeline that names it.
    heard: Option<Numbers>,
    /// Whether what it reports arrives.
    arrives: bool,
    waited_ms: u64,
    computed_ms: u64,
    samples: u64,
}

impl World {
    fn new(workers: i32) -> Self {
        let agreed = Agreed { inputs: "i".into(), digests: BTreeMap::from([("train".into(), digest(1))]) };
        #[expect(clippy::disallowed_methods, reason = "any instant will do")]
        let begin = Instant::now();
        Self {
            pipeline: pipeline(SCALED),
            agreed,
            scalers: Scalers::default(),
            begin,
            seconds: 0,
            workers,
            kept: None,
            wait: None,
            run: "r".into(),
            heard: None,
            arrives: true,
            waited_ms: 0,
            computed_ms: 0,
            samples: 0,
        }
    }

    /// What each worker says: together they make 20 samples a second each, and the trainer could use 100.
    fn answers(&self, now: Instant) -> Vec<(String, Seen)> {
        let of = |number: i32| {
            let mut status = worker(&digest(1));
            status.worker = format!("w{number}");
            status.samples = self.samples;
            status.batches = self.samples;
            status.busy_ms = self.seconds * 1000;
            status.work_ahead = 8;
            if number == 0 && self.wait.is_some() && self.arrives {
                status.reports = vec![self.report()];
            }
            (status.worker.clone(), seen(now, Ok(status)))
        };
        (0..self.workers).map(of).collect()
    }

    fn report(&self) -> KeptReport {
        let waits = self.waits();
        let report = json!({
            "age_ms": 0, "run": self.run, "stream": "train", "plan": digest(1), "rank": 0, "size": 1,
            "ready": if waits > 0.0 { 0 } else { 4 }, "target": 4, "waiting_ms": 0,
            "wait_ms": (waits * 5000.0) as u64, "step_ms": 5000,
            "waited_ms": self.waited_ms, "computed_ms": self.computed_ms, "trained": self.computed_ms / 10,
            "quickest_us": 100_000, "quickest_samples": 10, "consumed": self.computed_ms / 10, "sequence": self.seconds,
        });
        serde_json::from_value(report).unwrap()
    }

    /// Five seconds later; what is decided is done at once.
    fn look(&mut self) -> Scaled {
        self.seconds += 5;
        if self.wait.is_some() {
            self.waited_ms += (self.waits() * 5000.0) as u64;
            self.computed_ms += ((1.0 - self.waits()) * 5000.0) as u64;
            self.samples += 100;
        }
        let scaled = self.seen();
        if let Some(text) = &scaled.keep {
            let mut data = BTreeMap::from([(STATE.to_owned(), text.clone())]);
            data.extend(self.pipeline.signal.clone().map(|signal| (SIGNAL.to_owned(), signal)));
            self.kept = Some(ConfigMap { data: Some(data), ..ConfigMap::default() });
            self.scalers.kept(&self.pipeline.key);
        }
        self.workers = scaled.workers;
        scaled
    }

    /// Five workers are enough.
    fn waits(&self) -> f64 {
        if self.workers < 5 { self.wait.unwrap_or_default() } else { 0.0 }
    }

    fn seen(&self) -> Scaled {
        let now = self.begin + Duration::from_secs(self.seconds);
        let answers = self.answers(now);
        let heard = self.heard.clone().map(|numbers| Heard::new("main", now, numbers));
        let sight = Sight {
            wanted: (self.workers > 0).then_some(self.workers),
            ready: self.workers,
            rollout: false,
            answers: &answers,
            agreed: Some(&self.agreed),
            heard: heard.as_ref(),
            kept: self.kept.as_ref(),
        };
        let spec = self.pipeline.scaling.clone().unwrap();
        self.scalers.look(&self.pipeline, &spec, &sight, now, START + self.seconds * 1000)
    }

    fn looks(&mut self, count: usize) -> Vec<i32> {
        (0..count).map(|_| self.look().workers).collect()
    }
}

#[test]
fn what_stands_in_the_spec_is_the_first_size_only() {
    let mut world = World::new(0);
    let scaled = world.look();
    assert_eq!((scaled.workers, scaled.reason, scaled.fresh), (2, Reason::FirstSize, true));
    // A fleet that stands is watched and stays, whatever its size.
    let mut world = World::new(7);
    let scaled = world.look();
    assert_eq!((scaled.workers, scaled.reason), (7, Reason::Watching));
    assert_eq!(scaled.next, Duration::from_secs(10));
}

#[test]
fn a_number_that_is_written_in_vain_is_told_once() {
    let mut world = World::new(7);
    assert_eq!(world.look().ignored, None);
    world.pipeline.size.asked = 3;
    assert_eq!([(); 2].map(|()| world.look().ignored), [Some(3), None]);
    // What is so anyway is not ignored.
    world.pipeline.size.asked = 7;
    assert_eq!(world.look().ignored, None);
}

#[test]
fn hungry_ranks_make_it_grow_and_each_window_is_one_decision() {
    let mut world = World::new(2);
    world.wait = Some(0.8);
    let sizes = world.looks(9);
    assert_eq!(sizes[0], 2);
    // 100 samples a second with headroom, 20 of each worker planned at 80 %: 7.2.
    assert_eq!(*sizes.last().unwrap(), 8, "{sizes:?}");
    assert!(sizes.windows(2).filter(|pair| pair[0] != pair[1]).count() <= 2, "{sizes:?}");
    let scaled = world.look();
    assert_eq!(scaled.limited_by, None);
    // Between two windows nothing is decided.
    assert!(!world.seen().fresh);
}

#[test]
fn reports_that_are_lost_freeze_the_size_and_say_so() {
    let mut world = World::new(2);
    world.wait = Some(0.8);
    world.looks(9);
    world.arrives = false;
    let sizes = world.looks(12);
    assert_eq!(sizes, [8; 12]);
    assert_eq!(world.seen().reason.label(), "ReportsLost");
}

#[test]
fn workers_that_do_not_answer_are_lost_ones_and_nothing_shrinks() {
    let mut world = World::new(6);
    world.wait = Some(0.8);
    world.looks(4);
    let spec = world.pipeline.scaling.clone().unwrap();
    // The second of these windows has nothing else in it.
    let [_, scaled] = [10, 20].map(|later| {
        let now = world.begin + Duration::from_secs(world.seconds + later);
        let silent =
            |number: i32| (format!("w{number}"), Seen { misses: 1, ..seen(now, Err(ScrapeError::Timeout)) });
        let answers: Vec<_> = (0..world.workers).map(silent).collect();
        let sight = Sight {
            wanted: Some(world.workers),
            ready: world.workers,
            rollout: false,
            answers: &answers,
            agreed: Some(&world.agreed),
            heard: None,
            kept: None,
        };
        world.scalers.look(&world.pipeline, &spec, &sight, now, START + (world.seconds + later) * 1000)
    });
    assert_eq!((scaled.workers >= world.workers, scaled.reason.label()), (true, "ReportsLost"));
}

#[test]
fn a_state_that_is_older_than_the_fleet_never_makes_it_smaller() {
    let mut world = World::new(2);
    world.wait = Some(0.8);
    world.looks(3);
    let old = world.kept.clone();
    world.looks(6);
    assert_eq!(world.workers, 8);
    // The operator ended after it wrote the size and before it wrote the state.
    (world.kept, world.scalers) = (old, Scalers::default());
    let scaled = world.look();
    assert_eq!((scaled.workers, scaled.fresh), (8, false), "one whole window is watched");
    assert!(world.looks(6).iter().all(|size| *size >= 8));
}

/// A fleet of 64 that was suspended for a minute began again with the number in its spec.
#[test]
fn a_fleet_that_was_suspended_goes_on_with_as_many_as_it_had() {
    let mut world = World::new(2);
    world.wait = Some(0.8);
    world.looks(9);
    let had = world.workers;
    assert!(had > 2, "{had}");
    let key = world.pipeline.key.clone();
    world.scalers.forget(&key);
    world.workers = 0;
    let resumed = world.look();
    assert_eq!((resumed.workers, resumed.reason.label()), (had, "FirstSize"));
    // What was learnt is less than the spec asks for to begin with.
    world.scalers.forget(&key);
    (world.workers, world.pipeline.size.asked) = (0, 9);
    world.pipeline.scaling.as_mut().unwrap().first = 15;
    assert_eq!(world.look().workers, 15);
}

#[test]
fn another_leader_knows_what_was_learnt() {
    let mut world = World::new(2);
    world.wait = Some(0.8);
    world.looks(9);
    world.scalers = Scalers::default();
    // Nobody reports to the new one: it knows that somebody did.
    world.arrives = false;
    world.looks(4);
    assert_eq!(world.seen().reason.label(), "ReportsLost");
    world.kept = None;
    world.scalers = Scalers::default();
    world.looks(4);
    assert_ne!(world.seen().reason.label(), "ReportsLost");
}

#[test]
fn windows_that_were_counted_outlive_the_longest_change_of_the_leader() {
    let counted = |world: &World| {
        let kept = world.kept.as_ref().unwrap().data.as_ref().unwrap();
        serde_json::from_str::<State>(&kept[STATE]).unwrap().sated
    };
    let mut world = World::new(10);
    world.wait = Some(0.8);
    world.looks(30);
    let before = counted(&world);
    assert!(before > 3, "{before} windows of plenty");
    // What was written is a minute old, and a lease runs out.
    world.seconds += 75;
    world.scalers = Scalers::default();
    world.looks(3);
    assert_eq!(counted(&world), before + 1);
}

#[test]
fn another_pipeline_of_the_name_begins_anew() {
    let mut world = World::new(2);
    world.wait = Some(0.8);
    world.looks(9);
    world.pipeline.uid = "u2".into();
    (world.kept, world.wait) = (None, None);
    assert_eq!(world.look().reason, Reason::Watching);
}

#[test]
fn reports_by_another_plan_do_not_count() {
    let mut world = World::new(2);
    world.wait = Some(0.8);
    world.agreed.digests.insert("train".into(), digest(2));
    assert_eq!(world.looks(9), [2; 9]);
    // Neither do those of a stream for evaluation.
    let mut world = World::new(2);
    world.wait = Some(0.8);
    world.pipeline.purposes[0].1 = feedmill_protocol::pipeline::spec::Purpose::Evaluation;
    assert_eq!(world.looks(9), [2; 9]);
}

#[test]
fn the_state_is_written_with_each_size_and_else_once_a_minute() {
    let mut world = World::new(2);
    world.wait = Some(0.0);
    let writes = (0..60).filter(|_| world.look().keep.is_some()).count();
    assert!((5..=7).contains(&writes), "{writes} in five minutes");
}

/// A fleet whose pipeline names a server that says this.
fn asking(workers: i32, wait: f64, fill: f64, desired: f64) -> World {
    let mut world = World::new(workers);
    world.pipeline = pipeline(&SCALED.replace('}', ", signal: {prometheus: main}}"));
    world.heard = Some(Numbers { wait: Ok(wait), fill: Ok(fill), desired: Some(Ok(desired)) });
    world
}

#[test]
fn what_prometheus_says_counts_instead_of_reports() {
    let mut world = asking(4, 0.3, 0.1, 10.0);
    // Ranks report that nobody waits.
    world.wait = Some(0.0);
    let sizes = world.looks(5);
    assert_eq!((sizes[0], sizes[4]), (4, 12), "{sizes:?}");
    let scaled = world.seen();
    let words = "Prometheus says that 10.0 workers would do; this is with headroom";
    let told = world.kept.as_ref().and_then(|map| map.data.as_ref()?.get(SIGNAL).cloned());
    assert_eq!((scaled.workers, told.as_deref()), (12, Some("main")));
    let mut again = asking(4, 0.3, 0.1, 10.0);
    again.looks(2);
    assert_eq!(again.look().reason.to_string(), words);
}

#[test]
fn a_query_in_vain_changes_nothing_and_then_the_fallback_counts() {
    for why in [
        Mute::Down,
        Mute::Late,
        Mute::Empty,
        Mute::NoNumber,
        Mute::Stale { age_ms: 60_000 },
        Mute::Large,
        Mute::Refused { status: 401 },
        Mute::unprepared("cannot read the file /t"),
        Mute::insecure("its certificate is not accepted"),
    ] {
        let mut world = asking(6, 0.0, 1.0, 4.0);
        let spec =
            "reports: {failureThreshold: 4, fallback: {behavior: CurrentReplicasIfHigher, replicas: 9}}";
        let lines = SCALED.replace('}', &format!(", signal: {{prometheus: main}}, {spec}}}"));
        world.pipeline = pipeline(&lines);
        world.looks(4);
        world.heard = Some(Numbers { fill: Err(why.clone()), ..world.heard.clone().unwrap() });
        // Windows are of two looks.
        assert_eq!(world.looks(6), [6; 6], "{why:?}");
        let reason = world.seen().reason;
        let words =
            format!("the query for fill was in vain: Prometheus {why}, for 3 windows: the size is frozen");
        assert_eq!((reason.label(), reason.to_string()), ("ReportsLost", words));
        assert_eq!(world.looks(2).last(), Some(&9), "{why:?}");
        assert_eq!(world.seen().reason.label(), "Fallback");
    }
}

#[test]
fn who_has_not_been_asked_yet_is_waited_for() {
    let mut world = asking(6, 0.0, 1.0, 4.0);
    let heard = world.heard.take();
    for _ in 0..3 {
        let scaled = world.look();
        assert_eq!((scaled.workers, scaled.fresh, scaled.reason), (6, false, Reason::Watching));
        assert_eq!(scaled.next, SOON);
    }
    world.heard = heard;
    assert!(world.look().fresh);
    // A first size is decided at once, or the Deployment would be looked at as somebody's who wanted one worker.
    let mut first = asking(0, 0.0, 1.0, 4.0);
    first.heard = None;
    let scaled = first.look();
    assert_eq!((scaled.workers, scaled.fresh, scaled.reason), (2, true, Reason::FirstSize));
}

#[test]
fn what_one_signal_taught_means_nothing_to_another() {
    let mut world = World::new(2);
    world.wait = Some(0.8);
    world.looks(9);
    assert_eq!(world.workers, 8);
    // Capacities in samples a second would make 1000 workers of 10, or one.
    let asked = asking(8, 0.3, 0.1, 10.0);
    (world.pipeline, world.heard) = (asked.pipeline, asked.heard);
    let sizes = world.looks(6);
    assert_eq!((sizes[0], sizes[5]), (8, 12), "{sizes:?}");
    // Nor to another leader, which finds what was kept.
    let kept = world.kept.clone();
    let mut other = World::new(12);
    (other.kept, other.wait) = (kept, Some(0.8));
    assert_eq!(other.look().reason, Reason::Watching);
    assert!(other.looks(8).iter().all(|size| *size == 12));
}

#[test]
fn reports_under_a_signal_were_kept_until_no_other_run_was_heard() {
    let mut world = asking(2, 0.0, 1.0, 1.0);
    world.wait = Some(0.8);
    // One more than are followed at once.
    for number in 0..65 {
        world.run = format!("r{number}");
        world.look();
    }
    let all = world.scalers.0.lock().unwrap();
    assert!(all.values().all(|scaler| scaler.taken.is_none()));
    drop(all);
    (world.pipeline, world.heard) = (pipeline(SCALED), None);
    world.run = "another".into();
    let sizes = world.looks(9);
    assert_eq!(sizes.last(), Some(&8), "{sizes:?}");
}
