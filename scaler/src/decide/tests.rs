use super::*;
use crate::prometheus::{Mute, Unanswered};
use crate::sight::Blind;
use crate::signals::{Fleet, Run, Workers};
use crate::spec::Reports;
use proptest::prelude::*;

const WINDOW: u64 = 10_000;
const START: u64 = 1_700_000_000_000;

/// One run of 8 ranks that uses `demand` samples/s; a busy worker makes 100.
fn signals(replicas: u32, demand: f64, wait: f64, fill: f64) -> Signals {
    Signals {
        fleet: Fleet { replicas: Some(replicas), ready: replicas, rollout: false },
        workers: Workers {
            asked: replicas,
            answered: replicas,
            served: 1000,
            pulled: true,
            capacity: Some(100.0),
            utilization: Some(0.9),
        },
        runs: vec![Run {
            name: "run".into(),
            ranks: 8,
            reporting: 8,
            contradicts: false,
            wait,
            mean_wait: wait / 2.0,
            fill,
            demand: Some(demand),
        }],
        ..Signals::default()
    }
}

/// What a fleet of 100 samples/s a worker would show.
fn answer(replicas: u32, demand: f64) -> Signals {
    let supply = 100.0 * f64::from(replicas);
    if supply < demand {
        signals(replicas, demand, 1.0 - supply / demand, 0.0)
    } else {
        signals(replicas, demand, 0.0, 1.0)
    }
}

/// A pipeline whose decisions are carried out at once.
struct Pipeline {
    spec: ScalingSpec,
    state: Option<State>,
    now: u64,
    replicas: u32,
}

impl Pipeline {
    fn new(replicas: u32) -> Self {
        Self { spec: ScalingSpec::default(), state: None, now: START, replicas }
    }

    /// Watched for one window already.
    fn running(replicas: u32, demand: f64) -> Self {
        let mut pipeline = Self::new(replicas);
        assert_eq!(pipeline.see(&answer(replicas, demand)).reason, Reason::Watching);
        pipeline
    }

    fn see(&mut self, signals: &Signals) -> Decision {
        self.now += WINDOW;
        let decision = decide(&self.spec, signals, self.state.as_ref(), self.now);
        self.state = Some(decision.state.clone());
        self.replicas = decision.replicas;
        decision
    }

    /// So many windows of the same; the last decision.
    fn live(&mut self, windows: usize, signals: impl Fn(u32) -> Signals) -> Decision {
        let mut last = self.see(&signals(self.replicas));
        for _ in 1..windows {
            last = self.see(&signals(self.replicas));
        }
        last
    }

    fn sizes(&mut self, windows: usize, signals: impl Fn(u32) -> Signals) -> Vec<u32> {
        (0..windows).map(|_| self.see(&signals(self.replicas)).replicas).collect()
    }
}

#[test]
fn hungry_ranks_are_fed_by_arithmetic_four_times_as_many_at_once() {
    let mut pipeline = Pipeline::running(1, 2000.0);
    // 1.15 * 2000 / (0.8 * 100) = 28.75
    assert_eq!(pipeline.sizes(4, |n| answer(n, 2000.0)), [4, 16, 29, 29]);
    let decision = pipeline.see(&answer(29, 2000.0));
    assert_eq!(decision.limited_by, None);
    assert_eq!(
        decision.reason.to_string(),
        "no change: ranks wait 0.0 % of their time, arithmetic needs 28.7"
    );
}

#[test]
fn a_step_that_bounds_stop_says_so() {
    let mut pipeline = Pipeline::running(1, 2000.0);
    let decision = pipeline.see(&answer(1, 2000.0));
    assert_eq!((decision.replicas, decision.limited_by), (4, Some(Limit::Step)));
    assert_eq!(
        decision.reason.to_string(),
        "trainings could use 2000 samples/s and a busy worker makes 100; this is with headroom"
    );
    pipeline.spec.max = 10;
    let decision = pipeline.see(&answer(4, 2000.0));
    assert_eq!((decision.replicas, decision.limited_by), (10, Some(Limit::Max)));
}

#[test]
fn arithmetic_without_waiting_must_hold_for_three_windows() {
    let mut pipeline = Pipeline::running(10, 500.0);
    // 90 % of what ten make; nobody waits yet.
    assert_eq!(pipeline.sizes(4, |n| signals(n, 900.0, 0.0, 1.0)), [10, 10, 13, 13]);
}

#[test]
fn ranks_that_wait_although_arithmetic_says_enough_get_a_quarter_more_after_three_windows() {
    let mut pipeline = Pipeline::running(8, 100.0);
    assert_eq!(pipeline.sizes(6, |n| signals(n, 100.0, 0.3, 0.1)), [8, 8, 10, 10, 10, 13]);
    let said = pipeline.state.clone().map(|state| state.reason.to_string());
    assert_eq!(
        said.as_deref(),
        Some("a rank waits 30 % of its time with its queue 10 % full, for 3 windows")
    );
}

#[test]
fn workers_that_wait_for_storage_make_less_than_their_busy_time_says() {
    let mut pipeline = Pipeline::running(4, 300.0);
    let limited = |n| {
        let mut signals = signals(n, 300.0, 0.5, 0.0);
        signals.workers.utilization = Some(0.25);
        signals
    };
    // Arithmetic by CPU says 4.3; they reach a quarter of it, so 17, but no more than twice as many at once.
    assert_eq!(pipeline.sizes(6, limited), [4, 4, 8, 8, 8, 16]);
}

#[test]
fn queues_that_are_full_let_waiting_ranks_be() {
    let mut pipeline = Pipeline::running(8, 100.0);
    assert_eq!(pipeline.sizes(10, |n| signals(n, 500.0, 0.3, 0.9)), [8; 10]);
}

#[test]
fn sated_fleets_shrink_by_a_tenth_every_five_minutes_down_to_arithmetic() {
    let mut pipeline = Pipeline::running(20, 1000.0);
    let sizes = pipeline.sizes(400, |n| answer(n, 1000.0));
    let mut steps = sizes.clone();
    steps.dedup();
    // 1000 / 80 = 12.5: the margin goes as well, by trying.
    assert_eq!(steps, [20, 18, 16, 14, 13]);
    assert_eq!(sizes.iter().position(|size| *size == 18), Some(29));
    assert!(sizes.iter().filter(|size| **size == 18).count() >= 30);
}

#[test]
fn a_smaller_size_that_makes_ranks_wait_is_taken_back_and_the_next_try_comes_later() {
    let mut pipeline = Pipeline::running(10, 300.0);
    // Ranks wait below 10 workers, whatever arithmetic says.
    let needs_ten = |n| if n < 10 { signals(n, 300.0, 0.1, 0.2) } else { signals(n, 300.0, 0.0, 1.0) };
    let sizes = pipeline.sizes(400, needs_ten);
    let tries: Vec<usize> =
        sizes.windows(2).enumerate().filter(|(_, pair)| pair[1] < pair[0]).map(|(at, _)| at).collect();
    assert!((2..=3).contains(&tries.len()), "{tries:?}");
    let tried: Vec<u32> = tries.iter().map(|at| sizes[at + 1]).collect();
    assert_eq!((tried[0], tried[1]), (5, 9), "what arithmetic says, then small steps");
    assert!(tries.iter().all(|at| sizes[at + 2] == 10), "each is taken back");
    let pauses: Vec<usize> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses.iter().all(|pause| *pause >= 60), "{pauses:?}");
    assert!(pauses.windows(2).all(|pair| pair[1] > pair[0]), "{pauses:?}");
}

/// A fleet that has tried until it has no margin left: 500 / 80 = 6.25.
fn without_margin() -> Pipeline {
    let mut pipeline = Pipeline::running(8, 500.0);
    assert_eq!(pipeline.live(200, |n| answer(n, 500.0)).replicas, 7);
    pipeline
}

#[test]
fn what_was_seen_to_be_enough_stays_enough() {
    let mut pipeline = without_margin();
    // With the whole margin arithmetic would have 7.2 and 8 of them; a little more is no reason to go back to that.
    assert!(pipeline.sizes(200, |n| answer(n, 520.0)).iter().all(|size| *size == 7));
    // Half as much again is another training, of which nothing was seen: 1.15 * 750 / 80 = 10.8.
    assert_eq!(pipeline.sizes(4, |n| signals(n, 750.0, 0.0, 1.0)), [7, 7, 11, 11]);
}

#[test]
fn ranks_that_wait_have_the_whole_margin_in_the_same_window() {
    let mut pipeline = without_margin();
    // 600 / 80 is within what there is; with the margin 8.6.
    assert_eq!(pipeline.see(&signals(7, 600.0, 0.1, 0.2)).replicas, 9);
}

#[test]
fn a_margin_that_was_needed_is_tried_again_only_later_and_later() {
    let mut pipeline = Pipeline::running(8, 500.0);
    let needs_eight = |n| if n < 8 { signals(n, 500.0, 0.1, 0.2) } else { signals(n, 500.0, 0.0, 1.0) };
    let sizes = pipeline.sizes(600, needs_eight);
    let tries: Vec<usize> =
        sizes.windows(2).enumerate().filter(|(_, pair)| pair[1] < pair[0]).map(|(at, _)| at).collect();
    assert!((3..=4).contains(&tries.len()), "{tries:?}");
    let pauses: Vec<usize> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses.windows(2).all(|pair| pair[1] >= 2 * pair[0] - 4), "{pauses:?}");
}

#[test]
fn a_training_that_changes_during_a_try_does_not_make_the_try_a_failed_one() {
    let mut pipeline = Pipeline::running(20, 1000.0);
    pipeline.live(35, |n| answer(n, 1000.0));
    assert_eq!(pipeline.replicas, 18);
    pipeline.live(10, |n| answer(n, 4000.0));
    let state = pipeline.state.clone().unwrap_or_default();
    assert_eq!((state.reverts, state.blamed), (0, None));
    // So when it is slow again, it does not take an hour of tenths.
    assert_eq!(pipeline.live(13, |n| answer(n, 1000.0)).replicas, 15);
}

#[test]
fn a_training_that_is_slow_and_quick_by_turns_is_seldom_followed_down() {
    let mut pipeline = Pipeline::running(60, 4000.0);
    let mut shrunk = Vec::new();
    for turn in 0..40 {
        let demand = if turn % 2 == 0 { 800.0 } else { 4000.0 };
        let sizes = pipeline.sizes(18, |n| answer(n, demand));
        if sizes.iter().any(|size| *size < 20) && demand < 1000.0 {
            shrunk.push(turn);
        }
    }
    // Twenty slow turns in two hours.
    assert!(!shrunk.is_empty() && shrunk.len() <= 5, "{shrunk:?}");
}

#[test]
fn a_try_ends_when_ranks_wait_whatever_lies_in_their_queues() {
    let mut pipeline = Pipeline::running(20, 1000.0);
    pipeline.live(35, |n| answer(n, 1000.0));
    assert_eq!(pipeline.replicas, 18);
    assert_eq!(pipeline.see(&signals(18, 1000.0, 0.04, 0.95)).replicas, 20);
}

#[test]
fn batches_that_come_out_of_order_do_not_hide_that_ranks_wait() {
    let mut pipeline = Pipeline::running(8, 500.0);
    assert_eq!(pipeline.sizes(3, |n| signals(n, 500.0, 0.1, 0.7)), [8, 8, 10]);
}

#[test]
fn pending_workers_count_as_capacity() {
    let mut pipeline = Pipeline::running(4, 100.0);
    let waiting = |n: u32| {
        let mut signals = signals(n, 100.0, 0.5, 0.0);
        signals.fleet.ready = 2;
        signals
    };
    let decision = pipeline.live(6, waiting);
    assert_eq!(decision.replicas, 4);
    assert_eq!(decision.reason.to_string(), "ranks are hungry, and 2 of the workers are still on their way");
    // Arithmetic knows what it wants, and counts those that are on their way.
    let hungry = |n: u32| Signals {
        fleet: Fleet { replicas: Some(n), ready: 2, rollout: false },
        ..signals(n, 1000.0, 0.5, 0.0)
    };
    assert_eq!(pipeline.sizes(3, hungry), [15, 15, 15]);
}

#[test]
fn a_full_cluster_stops_growth_and_recovers() {
    let mut pipeline = Pipeline::running(10, 2000.0);
    let full = |n: u32| {
        let mut signals = answer(10, 2000.0);
        signals.fleet = Fleet { replicas: Some(n), ready: n.min(10), rollout: false };
        signals
    };
    let decision = pipeline.live(60, full);
    assert_eq!(decision.replicas, 29);
    pipeline.spec.max = 1000;
    let worse = |n: u32| Signals { fleet: full(n).fleet, ..answer(10, 9000.0) };
    let decision = pipeline.live(10, worse);
    assert_eq!(decision.replicas, 29, "more would be pending, too");
    assert_eq!(
        decision.reason.to_string(),
        "19 of the workers are not ready and none has become so for 11 min; more would not help"
    );
    assert_eq!(pipeline.see(&answer(29, 9000.0)).replicas, 116);
}

#[test]
fn a_fleet_that_crashes_again_and_again_does_not_grow() {
    let mut pipeline = Pipeline::running(4, 300.0);
    let mut most = 0;
    for window in 0..200 {
        let mut signals = signals(pipeline.replicas, 300.0, 1.0, 0.0);
        // Now and then one is ready for a moment.
        signals.fleet.ready = u32::from(window % 3 == 0);
        signals.runs[0].demand = None;
        signals.workers.capacity = None;
        most = most.max(pipeline.see(&signals).replicas);
    }
    assert!(most <= 5, "{most}");
    let none = |n: u32| Signals {
        fleet: Fleet { replicas: Some(n), ready: 0, rollout: false },
        ..answer(1, 9000.0)
    };
    let decision = pipeline.live(5, none);
    assert_eq!((decision.replicas, decision.reason), (most, Reason::NoneReady));
}

#[test]
fn rollouts_hold_the_size_for_ten_minutes_at_most() {
    let mut pipeline = Pipeline::running(4, 2000.0);
    let rolling = |n: u32| {
        let mut signals = answer(n, 2000.0);
        signals.fleet.rollout = true;
        signals
    };
    let sizes = pipeline.sizes(70, rolling);
    assert_eq!(sizes[..60], [4; 60]);
    assert_eq!(sizes[60], 16, "{sizes:?}");
}

#[test]
fn workers_that_answer_and_nobody_pulls_for_half_an_hour_is_idle() {
    let mut pipeline = Pipeline::running(20, 1500.0);
    pipeline.live(3, |n| answer(n, 1500.0));
    let before = pipeline.replicas;
    let gone = |n: u32| Signals {
        runs: Vec::new(),
        workers: Workers { served: 0, utilization: None, capacity: None, ..answer(n, 1.0).workers },
        ..answer(n, 1.0)
    };
    let decision = pipeline.live(180, gone);
    assert_eq!(decision.replicas, before);
    assert_eq!(decision.reason.to_string(), "nobody has pulled for 29 min; idle after 30 min");
    let decision = pipeline.see(&gone(before));
    assert_eq!(
        (decision.replicas, decision.reason.to_string().as_str()),
        (1, "idle: nobody has pulled for 30 min")
    );
    assert_eq!(pipeline.sizes(2, gone), [1, 1]);
    // And back again, also under another name.
    let back = |n: u32| {
        let mut signals = answer(n, 1500.0);
        signals.runs[0].name = "other".into();
        signals
    };
    // At 16 nobody waits any more; the headroom comes when three windows agree.
    assert_eq!(pipeline.sizes(5, back), [4, 16, 16, 16, 22]);
}

#[test]
fn a_training_that_hangs_with_full_queues_is_idle_too() {
    let mut pipeline = Pipeline::running(20, 1500.0);
    let hangs = |n: u32| {
        let mut signals = signals(n, 0.0, 0.0, 1.0);
        signals.workers.served = 0;
        signals.runs[0].demand = None;
        signals
    };
    assert_eq!(pipeline.live(180, hangs).replicas, 20);
    assert_eq!(pipeline.live(2, hangs).replicas, 1);
}

/// What is lost, and the words for it.
fn losses() -> Vec<(&'static str, Signals, &'static str)> {
    let with = |change: fn(&mut Signals)| {
        let mut signals = answer(8, 300.0);
        change(&mut signals);
        signals
    };
    vec![
        ("no worker answers", with(|s| s.workers.answered = 0), "none of 8 workers answers"),
        (
            "all reports stop",
            with(|s| s.runs[0].reporting = 0),
            "run run has stopped reporting, and somebody still pulls",
        ),
        (
            "the run vanishes",
            with(|s| s.runs.clear()),
            "run run has stopped reporting, and somebody still pulls",
        ),
        ("30 % of ranks stop", with(|s| s.runs[0].reporting = 5), "only 5 of 8 ranks of run run report"),
        (
            "1 rank of 512",
            with(|s| (s.runs[0].ranks, s.runs[0].reporting) = (512, 1)),
            "only 1 of 512 ranks of run run report",
        ),
        ("NaN", with(|s| s.runs[0].wait = f64::NAN), "figures of run run make no sense"),
        ("negative", with(|s| s.runs[0].fill = -3.0), "figures of run run make no sense"),
        ("absurd", with(|s| s.runs[0].wait = 1e18), "figures of run run make no sense"),
        ("infinite", with(|s| s.runs[0].fill = f64::INFINITY), "figures of run run make no sense"),
        (
            "two trainings of one name",
            with(|s| s.runs[0].contradicts = true),
            "reports of run run contradict each other; do two trainings use one name",
        ),
    ]
}

#[test]
fn what_is_lost_freezes_the_size_and_after_two_minutes_the_fallback_counts() {
    for (name, lost, words) in losses() {
        let mut pipeline = Pipeline::running(8, 300.0);
        pipeline.live(2, |n| answer(n, 300.0));
        let frozen =
            |n: u32| Signals { fleet: Fleet { replicas: Some(n), ready: n, rollout: false }, ..lost.clone() };
        let decision = pipeline.live(11, frozen);
        assert_eq!(decision.replicas, 8, "{name}");
        assert_eq!(
            decision.reason.to_string(),
            format!("{words}, for 11 windows: the size is frozen"),
            "{name}"
        );
        pipeline.spec.reports.fallback = Fallback::CurrentReplicasIfHigher(16);
        let decision = pipeline.see(&frozen(8));
        assert_eq!(decision.replicas, 16, "{name}");
        assert_eq!(decision.reason.to_string(), format!("{words}, for 12 windows: the fallback"), "{name}");
        // For ever, and never less.
        assert_eq!(pipeline.live(500, frozen).replicas, 16, "{name}");
        let mut large = Pipeline::running(80, 300.0);
        large.spec.reports.fallback = Fallback::CurrentReplicasIfHigher(16);
        large.live(2, |n| answer(n, 300.0));
        assert!(large.sizes(100, frozen).iter().all(|size| *size == 80), "{name}");
        // Unless told otherwise.
        let mut small = Pipeline::running(8, 300.0);
        small.live(2, |n| answer(n, 300.0));
        assert!(small.sizes(100, frozen).iter().all(|size| *size == 8), "{name}");
    }
}

#[test]
fn demand_and_capacity_that_are_no_numbers_leave_what_was_known() {
    for nonsense in [f64::NAN, f64::INFINITY, -5.0, 0.0, 1e300] {
        let mut pipeline = Pipeline::running(10, 700.0);
        pipeline.live(2, |n| answer(n, 700.0));
        let sizes = pipeline.sizes(50, |n| {
            let mut signals = answer(n, 700.0);
            signals.runs[0].demand = Some(nonsense);
            signals.workers.capacity = Some(nonsense);
            signals
        });
        // 700 / 80 = 8.75
        assert!(sizes.iter().all(|size| (9..=11).contains(size)), "{nonsense}: {sizes:?}");
    }
}

#[test]
fn whoever_reports_before_anything_was_read_does_not_count() {
    let mut pipeline = Pipeline::running(2, 100.0);
    let spoofed = |n: u32| {
        let mut signals = answer(n, 90_000.0);
        signals.workers.pulled = false;
        signals
    };
    let decision = pipeline.live(30, spoofed);
    assert_eq!((decision.replicas, decision.reason), (2, Reason::FirstSize));
}

#[test]
fn the_first_size_counts_until_somebody_reports_and_is_never_smaller_than_what_is_there() {
    let mut pipeline = Pipeline::new(0);
    pipeline.spec.first = 6;
    let empty = Signals::default();
    assert_eq!(pipeline.see(&empty).replicas, 6);
    let nobody = |n: u32| Signals { runs: Vec::new(), ..answer(n, 0.0) };
    let decision = pipeline.live(600, nobody);
    assert_eq!((decision.replicas, decision.reason), (6, Reason::FirstSize));
    let mut larger = Pipeline::running(50, 0.0);
    assert_eq!(larger.live(10, nobody).replicas, 50);
}

#[test]
fn min_above_max_which_ratcheting_makes_leaves_max() {
    let mut pipeline = Pipeline::running(8, 300.0);
    (pipeline.spec.min, pipeline.spec.max) = (40, 12);
    let decision = pipeline.see(&answer(8, 300.0));
    assert_eq!((decision.replicas, decision.limited_by), (12, Some(Limit::Min)));
    (pipeline.spec.min, pipeline.spec.max) = (0, 0);
    assert_eq!(pipeline.see(&answer(12, 300.0)).replicas, 1);
}

#[test]
fn runs_that_share_a_pipeline_add_up() {
    let mut pipeline = Pipeline::running(4, 1000.0);
    let two = |n: u32| {
        let mut signals = signals(n, 600.0, 0.4, 0.0);
        let other = Run { name: "other".into(), demand: Some(400.0), wait: 0.0, ..signals.runs[0].clone() };
        signals.runs.push(other);
        signals
    };
    assert_eq!(pipeline.sizes(2, two), [15, 15]);
}

#[test]
fn a_run_that_ends_beside_another_one_does_not_freeze_for_ever() {
    let mut pipeline = Pipeline::running(15, 1000.0);
    let two = |n: u32, reporting: u32| {
        let mut signals = signals(n, 600.0, 0.0, 1.0);
        let other = Run { name: "other".into(), demand: Some(400.0), reporting, ..signals.runs[0].clone() };
        signals.runs.push(other);
        signals
    };
    pipeline.live(3, |n| two(n, 8));
    let sizes = pipeline.sizes(12 + 60, |n| two(n, 0));
    // Lost for 12 windows, and 12 more show how far it is too large.
    assert_eq!(sizes[..22], [15; 22], "as long as it may have been lost, nothing shrinks");
    assert!(sizes.last() < Some(&15), "{sizes:?}");
}

#[test]
fn windows_with_a_run_that_has_ended_are_not_counted_as_lost_ones() {
    let mut pipeline = Pipeline::running(15, 1000.0);
    let of_two = |n: u32, ended: u32| {
        let mut signals = signals(n, 600.0, 0.0, 1.0);
        let other = Run { name: "other".into(), reporting: ended, ..signals.runs[0].clone() };
        signals.runs.push(other);
        signals
    };
    pipeline.live(3, |n| of_two(n, 8));
    pipeline.live(20, |n| of_two(n, 0));
    let decision =
        pipeline.see(&Signals { workers: Workers { answered: 0, ..of_two(15, 0).workers }, ..of_two(15, 0) });
    assert!(matches!(decision.reason, Reason::Lost { windows: 1, .. }), "{:?}", decision.reason);
}

#[test]
fn another_process_goes_on_where_the_one_before_ended() {
    let mut one = Pipeline::running(20, 1000.0);
    let mut other = Pipeline::running(20, 1000.0);
    for window in 0..120 {
        let text = serde_json::to_string(&other.state).unwrap();
        assert!(text.len() < 4000, "{}", text.len());
        other.state = serde_json::from_str(&text).unwrap();
        let (left, right) =
            (one.see(&answer(one.replicas, 1000.0)), other.see(&answer(other.replicas, 1000.0)));
        assert_eq!(left, right, "window {window}");
    }
    // Without it, one window is only watched.
    other.state = None;
    assert_eq!(other.see(&answer(other.replicas, 9000.0)).reason, Reason::Watching);
}

#[test]
fn after_a_gap_and_after_a_clock_that_was_set_back_one_window_is_watched() {
    for jump in [3_600_000i64, -3_600_000, i64::MIN / 2] {
        let mut pipeline = Pipeline::running(20, 1000.0);
        pipeline.live(29, |n| answer(n, 1000.0));
        pipeline.now = pipeline.now.saturating_add_signed(jump);
        let decision = pipeline.see(&answer(20, 5000.0));
        assert_eq!((decision.replicas, decision.reason), (20, Reason::Watching), "{jump}");
        assert!(pipeline.see(&answer(20, 5000.0)).replicas > 20, "{jump}");
    }
}

#[test]
fn every_reason_has_a_label_and_a_sentence_of_one_line() {
    for (_, lost, _) in losses() {
        let mut pipeline = Pipeline::running(8, 300.0);
        let reason = pipeline.see(&lost).reason;
        assert!(!reason.to_string().contains('\n') && Reason::LABELS.contains(&reason.label()));
    }
}

#[test]
fn a_contradiction_is_named() {
    let why = Blind::Contradiction { run: "a".into() };
    assert!(Reason::Lost { why, windows: 1 }.to_string().contains("for 1 window:"));
}

fn any_figure() -> impl Strategy<Value = f64> {
    prop_oneof![
        8 => 0.0..1.0f64,
        2 => 0.0..100_000.0f64,
        1 => Just(f64::NAN),
        1 => Just(f64::INFINITY),
        1 => Just(-1.0),
        1 => any::<f64>(),
    ]
}

prop_compose! {
    fn any_run()(
        name in "[ab]", ranks in 0u32..600, reporting in 0u32..600, contradicts in proptest::bool::weighted(0.1),
        wait in any_figure(), fill in any_figure(), demand in proptest::option::of(any_figure()),
    ) -> Run {
        Run { name, ranks, reporting, contradicts, wait, mean_wait: wait, fill, demand }
    }
}

prop_compose! {
    fn any_signals()(
        ready in 0u32..300, rollout in any::<bool>(), asked in 0u32..300, answered in 0u32..300, served in 0u64..1000,
        pulled in any::<bool>(), capacity in proptest::option::of(any_figure()), utilization in proptest::option::of(any_figure()),
        runs in proptest::collection::vec(any_run(), 0..3), mute in proptest::bool::weighted(0.1),
    ) -> Signals {
        let unanswered = mute.then(|| Unanswered { query: "wait".into(), why: Mute::Down });
        Signals {
            fleet: Fleet { replicas: None, ready, rollout },
            workers: Workers { asked, answered, served, pulled, capacity, utilization },
            runs,
            unanswered,
            in_workers: served % 2 == 0,
        }
    }
}

prop_compose! {
    fn any_spec()(
        first in any::<u32>(), min in 0u32..50, max in 0u32..300, wait in any_figure(), fill in any_figure(),
        utilization in any_figure(), percent in 0u32..200, threshold in 0u32..20, fallback in any::<u32>(),
        hungry in 0u32..5, sated in 0u32..40,
    ) -> ScalingSpec {
        let plain = ScalingSpec::default();
        ScalingSpec {
            first, min, max,
            target: crate::spec::Target { wait, fill, utilization },
            reports: Reports {
                min_ranks_percent: percent, failure_threshold: threshold,
                fallback: Fallback::CurrentReplicasIfHigher(fallback), ..plain.reports
            },
            timing: crate::spec::Timing { hungry_windows: hungry, sated_windows: sated, ..plain.timing },
            ..plain
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_comes_the_size_stays_in_bounds_and_is_asked_for_twice_the_same(
        spec in any_spec(), replicas in any::<u32>(), all in proptest::collection::vec(any_signals(), 1..60),
    ) {
        let mut pipeline = Pipeline { spec, ..Pipeline::new(replicas) };
        let (min, max) = pipeline.spec.range();
        for mut signals in all {
            let before = pipeline.replicas;
            signals.fleet.replicas = Some(before);
            let decision = pipeline.see(&signals);
            prop_assert!((min..=max).contains(&decision.replicas) || decision.limited_by == Some(Limit::Step));
            prop_assert!(decision.replicas <= max);
            let step = before.max(1).saturating_mul(4).min(before.max(1).saturating_add(500));
            prop_assert!(decision.replicas <= step.max(min));
            let again = decide(&pipeline.spec, &signals, pipeline.state.as_ref(), pipeline.now + 1000);
            prop_assert_eq!(again.replicas, decision.replicas);
            prop_assert_eq!(&again.state, &decision.state);
            prop_assert!(Reason::LABELS.contains(&decision.reason.label()));
            let figures = decision.figures;
            for figure in [figures.wait, figures.fill, figures.demand, figures.capacity, figures.needed].into_iter().flatten() {
                prop_assert!(figure.is_finite());
            }
            let text = serde_json::to_string(&decision.state).unwrap();
            prop_assert_eq!(serde_json::from_str::<State>(&text).unwrap(), decision.state);
        }
    }

    #[test]
    fn never_down_on_missing_data(
        seen in 1usize..40, demand in 1.0..2000.0f64, losses_at in proptest::collection::vec(0usize..10, 1..200),
    ) {
        let mut pipeline = Pipeline::running(30, demand);
        pipeline.live(seen, |n| answer(n, demand));
        let cases = losses();
        let mut before = pipeline.replicas;
        for case in losses_at {
            let mut signals = cases[case].1.clone();
            signals.fleet = Fleet { replicas: Some(before), ready: before, rollout: false };
            let after = pipeline.see(&signals).replicas;
            prop_assert!(after >= before, "{}", cases[case].0);
            before = after;
        }
    }

    /// Demand and capacity off by up to 6 % each window, waits up to the target now and then.
    #[test]
    fn steady_noise_changes_the_size_at_most_once_in_ten_minutes(
        demand in 50.0..15_000.0f64,
        noise in proptest::collection::vec((-0.06..0.06f64, -0.06..0.06f64, 0.0..0.02f64, 0.85..1.0f64), 720),
    ) {
        let mut pipeline = Pipeline::running(1, demand);
        pipeline.spec.max = 1000;
        pipeline.live(40, |n| answer(n, demand));
        let mut changes = Vec::new();
        for (window, (more, faster, wait, fill)) in noise.into_iter().enumerate() {
            let before = pipeline.replicas;
            let mut signals = signals(before, demand * (1.0 + more), wait, fill);
            signals.workers.capacity = Some(100.0 * (1.0 + faster));
            if pipeline.see(&signals).replicas != before {
                changes.push(window);
            }
        }
        let close: Vec<_> = changes.windows(2).filter(|pair| pair[1] - pair[0] < 60).collect();
        prop_assert!(close.is_empty(), "{close:?} of {changes:?}");
    }
}
