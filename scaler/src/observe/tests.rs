use std::collections::BTreeMap;

use feedmill_protocol::report::{KeptReport, RankReport, WorkerState, WorkerStatus};

use super::*;
use crate::signals::{Run, Workers};

const PLAN: &str = "sha256:aa";
const STALE: u64 = 15_000;
const FLEET: Fleet = Fleet { replicas: Some(2), ready: 2, rollout: false };

/// A rank that waits and computes in turn: its totals after `ms`.
fn report(rank: u32, ms: u64, wait: f64) -> RankReport {
    let waited = (ms as f64 * wait) as u64;
    RankReport {
        run: "run".into(),
        stream: "train".into(),
        plan: PLAN.into(),
        rank,
        size: 4,
        process: String::new(),
        ready: 3,
        target: 4,
        waiting_ms: 0,
        wait_ms: 0,
        step_ms: 1000,
        waited_ms: waited,
        computed_ms: ms - waited,
        trained: ms / 1000 * 64,
        quickest_us: 0,
        quickest_samples: 0,
        consumed: ms / 1000 * 64,
        sequence: ms / 1000,
        farewell: false,
        begin: None,
    }
}

fn status(ms: u64, reports: Vec<RankReport>) -> WorkerStatus {
    WorkerStatus {
        worker: "w".into(),
        version: "0".into(),
        state: WorkerState::Ready,
        doing: None,
        cores: 4,
        streams: BTreeMap::new(),
        work_ahead: 8,
        ready: 0,
        batches: ms / 100,
        samples: ms / 10,
        bytes_out: 0,
        bytes_in: 0,
        busy_ms: ms * 2,
        bad: BTreeMap::new(),
        problems: Vec::new(),
        agent: None,
        reports: reports.into_iter().map(|report| KeptReport { age_ms: 500, report }).collect(),
    }
}

fn observer() -> Observer {
    Observer::new(vec![Stream { name: "train".into(), plan: PLAN.into() }], STALE)
}

/// Answers of the run's home and of another worker at `ms`, through `change`.
fn see(observer: &mut Observer, ms: u64, change: &dyn Fn(u64, &mut Vec<RankReport>)) {
    let mut reports = (0..4).map(|rank| report(rank, ms, 0.25)).collect();
    change(ms, &mut reports);
    let (home, other) = (status(ms, reports), status(ms, Vec::new()));
    observer.take(&[
        Scrape { worker: "a", at_ms: ms + 500, status: Some(&home) },
        Scrape { worker: "b", at_ms: ms + 500, status: Some(&other) },
    ]);
}

/// Two windows of two rounds each; what the second one shows.
fn second_window(change: &dyn Fn(u64, &mut Vec<RankReport>)) -> Signals {
    let mut observer = observer();
    for ms in [100_000, 105_000] {
        see(&mut observer, ms, change);
    }
    let _ = observer.window(FLEET, 106_000);
    for ms in [110_000, 115_000] {
        see(&mut observer, ms, change);
    }
    observer.window(FLEET, 116_000)
}

fn only(signals: &Signals) -> &Run {
    assert_eq!(signals.runs.len(), 1);
    &signals.runs[0]
}

#[test]
fn totals_become_wait_fill_need_and_capacity() {
    let signals = second_window(&|_, _| {});
    let run = only(&signals);
    assert_eq!((run.ranks, run.reporting, run.contradicts), (4, 4, false));
    assert!((run.wait - 0.25).abs() < 1e-6, "{run:?}");
    assert_eq!(run.fill, 1.0);
    // 64 samples in 750 ms.
    assert!((run.demand.unwrap() - 64.0 / 0.75).abs() < 0.01, "{run:?}");
    let Workers { asked, answered, served, pulled, capacity, utilization } = signals.workers;
    assert_eq!((asked, answered, served, pulled), (2, 2, 2000, true));
    // 100 samples/s, half of four cores busy.
    assert!((capacity.unwrap() - 200.0).abs() < 1e-6 && (utilization.unwrap() - 0.5).abs() < 1e-6);
}

#[test]
fn a_window_without_a_newer_report_is_none_without_waiting() {
    let mut observer = observer();
    for ms in [100_000, 105_000] {
        see(&mut observer, ms, &|_, _| {});
    }
    let _ = observer.window(FLEET, 106_000);
    // What the rank said last is asked for again, and still young enough to count.
    see(&mut observer, 105_000, &|_, _| {});
    let signals = observer.window(FLEET, 116_000);
    let run = only(&signals);
    assert_eq!(run.reporting, 4);
    assert!((run.wait - 0.25).abs() < 1e-6 && run.fill == 1.0, "{run:?}");
}

#[test]
fn the_rank_that_comes_last_says_how_long_a_step_takes() {
    // All others have waited for it in the collective, and count that as their own time.
    let signals = second_window(&|ms, reports| {
        for (rank, report) in reports.iter_mut().enumerate() {
            *report = super::tests::report(rank as u32, ms, if rank == 2 { 0.8 } else { 0.0 });
        }
    });
    let run = only(&signals);
    assert!((run.wait - 0.8).abs() < 1e-6);
    assert!((run.demand.unwrap() - 64.0 / 0.2).abs() < 0.01, "{run:?}");
}

#[test]
fn ranks_that_take_turns_in_being_last_do_not_look_busy() {
    // In each round another rank is the late one.
    let mut observer = observer();
    let mut totals = [(0u64, 0u64); 4];
    for round in 0..5u64 {
        for (rank, (waited, computed)) in totals.iter_mut().enumerate() {
            let wait = if round % 4 == rank as u64 { 4000 } else { 0 };
            *waited += wait;
            *computed += 5000 - wait;
        }
        let at = totals;
        see(&mut observer, 100_000 + 5000 * round, &move |_, reports| {
            for (report, (waited, computed)) in reports.iter_mut().zip(at) {
                (report.waited_ms, report.computed_ms) = (waited, computed);
            }
        });
    }
    let signals = observer.window(FLEET, 121_000);
    // 320 samples in a second of its own.
    assert!((only(&signals).demand.unwrap() - 320.0).abs() < 0.1, "{signals:?}");
}

#[test]
fn repeated_and_reordered_reports_change_nothing() {
    let plain = second_window(&|_, _| {});
    let doubled = second_window(&|ms, reports| {
        let again = reports.clone();
        reports.extend(again);
        // And one from before, as the home before this one still has it.
        reports.push(super::tests::report(1, ms - 5000, 0.25));
    });
    assert_eq!(plain, doubled);
}

#[test]
fn a_report_that_stays_the_same_grows_old_and_does_not_count() {
    let stuck = second_window(&|_, reports| reports[1] = super::tests::report(1, 95_000, 0.25));
    // Its age is that of its first sight, whatever the worker says of it.
    assert_eq!(only(&stuck).reporting, 3);
}

#[test]
fn steps_of_minutes_make_reports_last_longer() {
    let signals = second_window(&|_, reports| {
        let mut slow = super::tests::report(1, 95_000, 0.25);
        slow.step_ms = 40_000;
        reports[1] = slow;
    });
    assert_eq!(only(&signals).reporting, 4);
}

#[test]
fn another_plan_another_stream_and_impossible_ranks_do_not_count() {
    let spoilt: [fn(&mut RankReport); 5] = [
        |report| report.plan = "sha256:bb".into(),
        |report| report.plan = "unknown".into(),
        |report| report.stream = "eval".into(),
        |report| report.rank = report.size,
        |report| (report.rank, report.size) = (u32::MAX - 1, u32::MAX),
    ];
    for spoil in spoilt {
        let signals = second_window(&move |_, reports| reports.iter_mut().for_each(spoil));
        assert_eq!(signals.runs, []);
    }
}

#[test]
fn a_rank_that_claims_more_waiting_than_time_has_passed_does_not_count() {
    for absurd in [u64::MAX, 10_000_000] {
        let signals = second_window(&move |ms, reports| {
            if ms == 115_000 {
                reports[0].waited_ms = absurd;
            }
        });
        let run = only(&signals);
        assert_eq!((run.reporting, run.contradicts), (3, true), "one of four is more than a fifth");
        assert!((run.wait - 0.25).abs() < 1e-6);
    }
}

#[test]
fn reports_of_the_future_and_of_the_past_do_no_harm() {
    let mut observer = observer();
    for age_ms in [u64::MAX, FORGET_MS, 0] {
        let mut status = status(1000, vec![report(0, 1000, 0.0)]);
        status.reports[0].age_ms = age_ms;
        observer.take(&[Scrape { worker: "a", at_ms: 5000, status: Some(&status) }]);
    }
    // The clock of whoever asks was set back.
    let late = status(9000, vec![report(0, 9000, 0.0)]);
    observer.take(&[Scrape { worker: "a", at_ms: 10, status: Some(&late) }]);
    let signals = observer.window(FLEET, 20);
    let run = only(&signals);
    assert_eq!((run.reporting, run.wait), (0, 0.0));
    assert_eq!(run.demand, None);
}

#[test]
fn two_trainings_of_one_name_contradict_each_other() {
    // They differ in how far they are.
    let signals = second_window(&|ms, reports| {
        if ms % 10_000 == 0 {
            for report in reports {
                (report.waited_ms, report.computed_ms, report.trained) = (10, 500, 64);
            }
        }
    });
    assert!(only(&signals).contradicts);
    // They differ in size.
    let signals = second_window(&|_, reports| {
        let mut other = reports[3].clone();
        (other.rank, other.size) = (4, 8);
        reports.push(other);
    });
    assert!(only(&signals).contradicts);
}

#[test]
fn a_rank_that_starts_anew_under_its_old_name_counts_when_the_old_one_is_stale() {
    let mut observer = observer();
    see(&mut observer, 100_000, &|_, _| {});
    let anew = |ms: u64, reports: &mut Vec<RankReport>| {
        for report in reports {
            *report = super::tests::report(report.rank, ms - 110_000, 0.5);
        }
    };
    see(&mut observer, 112_000, &anew);
    assert_eq!(only(&observer.window(FLEET, 112_500)).reporting, 4, "the old ones are not stale yet");
    see(&mut observer, 120_000, &anew);
    see(&mut observer, 125_000, &anew);
    let signals = observer.window(FLEET, 126_000);
    let run = only(&signals);
    assert_eq!((run.reporting, run.contradicts), (4, false));
    assert!((run.wait - 0.5).abs() < 1e-6);
}

#[test]
fn one_of_512_ranks_is_one_of_512() {
    let signals = second_window(&|_, reports| {
        reports.truncate(1);
        reports[0].size = 512;
    });
    assert_eq!((only(&signals).ranks, only(&signals).reporting), (512, 1));
}

#[test]
fn a_worker_that_does_not_answer_is_one_missing_value_and_one_that_begins_anew_counts_from_there() {
    let mut observer = observer();
    for (ms, restarted) in [(1000, 1000), (6000, 6000), (11_000, 200), (16_000, 5200)] {
        let (good, anew) = (status(ms, Vec::new()), status(restarted, Vec::new()));
        observer.take(&[
            Scrape { worker: "a", at_ms: ms, status: Some(&good) },
            Scrape { worker: "b", at_ms: ms, status: Some(&anew) },
            Scrape { worker: "c", at_ms: ms, status: None },
        ]);
    }
    let workers = observer.window(FLEET, 16_000).workers;
    assert_eq!((workers.asked, workers.answered, workers.served), (3, 2, 1500 + 1000));
    assert!((workers.capacity.unwrap() - 200.0).abs() < 1e-6);
    // Those that are not asked any more are no workers.
    let good = status(21_000, Vec::new());
    observer.take(&[Scrape { worker: "a", at_ms: 21_000, status: Some(&good) }]);
    let workers = observer.window(FLEET, 21_000).workers;
    assert_eq!((workers.asked, workers.answered, workers.served), (1, 1, 500));
}

#[test]
fn memory_is_bounded_whatever_is_reported() {
    let mut observer = observer();
    for run in 0..1000 {
        let mut one = report(0, 5000, 0.0);
        one.run = format!("run-{run}");
        let status = status(5000, vec![one]);
        observer.take(&[Scrape { worker: &format!("w{run}"), at_ms: 5000, status: Some(&status) }]);
    }
    assert_eq!(observer.window(FLEET, 6000).runs.len(), MAX_RUNS);
    assert_eq!(observer.window(FLEET, 6000 + FORGET_MS).runs.len(), MAX_RUNS);
    assert_eq!(observer.window(FLEET, 6001 + FORGET_MS).runs.len(), 0);
}

#[test]
fn two_streams_of_one_run_are_followed_apart() {
    let text = Stream { name: "text".into(), plan: PLAN.into() };
    let mut both = Observer::new(vec![text, Stream { name: "train".into(), plan: PLAN.into() }], STALE);
    let (mut first, mut last) = (observer(), None);
    for ms in [100_000, 105_000, 110_000, 115_000] {
        // The other stream began later, so its sequence is lower, and its ranks wait more.
        let other = |rank| RankReport {
            stream: "text".into(),
            sequence: ms / 1000 - 90,
            ..super::tests::report(rank, ms - 90_000, 0.8)
        };
        let change =
            |_: u64, reports: &mut Vec<RankReport>| reports.splice(0..0, (0..4).map(other)).for_each(drop);
        see(&mut both, ms, &change);
        see(&mut first, ms, &|_, _| {});
        if ms % 10_000 == 5_000 {
            last = Some((both.window(FLEET, ms + 1000), first.window(FLEET, ms + 1000)));
        }
    }
    let (both, alone) = last.unwrap();
    let names: Vec<&str> = both.runs.iter().map(|run| run.name.as_str()).collect();
    assert_eq!(names, ["run/text", "run/train"]);
    let [text, train] = both.runs.as_slice() else { panic!() };
    assert_eq!((text.reporting, text.contradicts), (4, false));
    assert!((text.wait - 0.8).abs() < 0.01, "{text:?}");
    // As if there were no other stream.
    assert_eq!(Run { name: "run".into(), ..train.clone() }, alone.runs[0]);
}
