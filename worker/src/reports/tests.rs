use super::*;

const SECOND: Duration = Duration::from_secs(1);

#[expect(clippy::disallowed_methods, reason = "any moment will do")]
fn moment() -> Instant {
    Instant::now()
}

fn report(rank: u32, sequence: u64) -> RankReport {
    RankReport {
        run: "run".into(),
        stream: "train".into(),
        plan: "sha256:0".into(),
        rank,
        size: 4,
        process: String::new(),
        ready: 0,
        target: 8,
        waiting_ms: 0,
        wait_ms: 0,
        step_ms: 0,
        waited_ms: 0,
        computed_ms: 0,
        trained: 0,
        quickest_us: 0,
        quickest_samples: 0,
        consumed: 0,
        sequence,
        farewell: false,
        begin: None,
    }
}

fn begins(rank: u32, consumed: u64) -> RankReport {
    let begin = RunBegin { global_batch: 64, micro_batch: 4, consumed, skips: None, end: None };
    RankReport { begin: Some(begin), consumed, ..report(rank, 1) }
}

fn of_stream(stream: &str, report: RankReport) -> RankReport {
    RankReport { stream: stream.into(), ..report }
}

#[test]
fn the_highest_sequence_wins_and_old_reports_are_forgotten() {
    let mut reports = Reports::default();
    let now = moment();
    for sequence in [1, 3, 2] {
        reports.keep(now + sequence as u32 * SECOND, report(0, sequence)).unwrap();
    }
    reports.keep(now + 5 * SECOND, of_stream("eval", report(0, 9))).unwrap();
    let listed = reports.list(now + 10 * SECOND);
    let seen: Vec<_> =
        listed.iter().map(|kept| (&*kept.report.stream, kept.report.sequence, kept.age_ms)).collect();
    assert_eq!(seen, [("eval", 9, 5_000), ("train", 3, 7_000)]);
    assert!(reports.list(now + 5 * SECOND + REPORT_LIFE).is_empty());
}

#[test]
fn a_rank_that_says_farewell_is_forgotten_at_once() {
    let mut reports = Reports::default();
    let now = moment();
    reports.keep(now, begins(0, 0)).unwrap();
    reports.keep(now, begins(1, 0)).unwrap();
    reports.keep(now, RankReport { farewell: true, ..report(0, 2) }).unwrap();
    let ranks: Vec<u32> = reports.list(now).iter().map(|kept| kept.report.rank).collect();
    assert_eq!(ranks, [1]);
    assert!(reports.keep(now, begins(2, 512)).is_err(), "the run goes on");
    reports.keep(now, RankReport { farewell: true, ..report(1, 2) }).unwrap();
    reports.keep(now, begins(2, 512)).unwrap();
}

#[test]
fn no_more_ranks_and_runs_than_there_is_room_for() {
    let mut reports = Reports::default();
    let now = moment();
    for rank in 0..MAX_REPORTS as u32 {
        reports.keep(now, RankReport { size: u32::MAX, ..report(rank, 1) }).unwrap();
    }
    let another = RankReport { size: u32::MAX, ..report(u32::MAX - 1, 1) };
    assert_eq!(reports.keep(now, another.clone()), Err(Refusal::NoRoom));
    let announced = RankReport { size: u32::MAX, ..begins(u32::MAX - 1, 0) };
    assert_eq!(reports.keep(now, announced), Err(Refusal::NoRoom));
    assert!(reports.runs.is_empty(), "a rank without room leaves nothing");
    reports.keep(now + REPORT_LIFE, another).unwrap();
    assert_eq!(reports.kept.len(), 1);

    let mut reports = Reports::default();
    let of_run = |number: usize| RankReport { run: format!("run-{number}"), ..begins(0, 0) };
    for number in 0..MAX_RUNS {
        reports.keep(now, of_run(number)).unwrap();
    }
    assert_eq!(reports.keep(now, of_run(MAX_RUNS)), Err(Refusal::NoRoom));
    reports.keep(now, of_run(3)).unwrap();
    reports.keep(now + REPORT_LIFE, of_run(MAX_RUNS)).unwrap();
    assert_eq!(reports.runs.len(), 1);
}

/// Each row: what the ranks announce one after another, and whether it is taken.
#[test]
fn ranks_that_begin_otherwise_than_the_first_are_refused() {
    let with = |rank, change: fn(&mut RunBegin)| {
        let mut report = begins(rank, 0);
        change(report.begin.as_mut().unwrap());
        report
    };
    let alone = |stream, rank| RankReport { size: 1, ..of_stream(stream, begins(rank, 0)) };
    let cases: Vec<(&str, Vec<(RankReport, bool)>)> = vec![
        ("all agree", vec![(begins(0, 0), true), (begins(1, 0), true), (begins(2, 0), true)]),
        ("begin", vec![(begins(0, 0), true), (begins(1, 256), false), (begins(2, 0), true)]),
        ("global batch", vec![(begins(0, 0), true), (with(1, |begin| begin.global_batch = 128), false)]),
        ("micro batch", vec![(begins(0, 0), true), (with(1, |begin| begin.micro_batch = 8), false)]),
        ("size", vec![(begins(0, 0), true), (RankReport { size: 8, ..begins(1, 0) }, false)]),
        ("stream", vec![(begins(0, 0), true), (of_stream("eval", begins(1, 0)), false)]),
        (
            "an evaluation beside the training",
            vec![
                (begins(0, 0), true),
                (begins(1, 0), true),
                (of_stream("eval", begins(0, 7)), true),
                (of_stream("eval", begins(1, 7)), true),
                (of_stream("eval", begins(1, 8)), true),
                (of_stream("eval", begins(0, 9)), false),
            ],
        ),
        (
            "one rank evaluates alone, and first",
            vec![(alone("eval", 0), true), (begins(0, 0), true), (begins(1, 0), true)],
        ),
        // After a crash the ranks come back from a checkpoint, in any order.
        (
            "a new start under an old name",
            vec![
                (begins(0, 0), true),
                (begins(1, 0), true),
                (begins(1, 256), true),
                (begins(0, 256), true),
                (begins(2, 0), false),
                (begins(2, 256), true),
            ],
        ),
    ];
    let now = moment();
    for (name, announced) in cases {
        let mut reports = Reports::default();
        for (number, (report, taken)) in announced.into_iter().enumerate() {
            let kept = reports.keep(now, report);
            assert_eq!(kept.is_ok(), taken, "{name}, number {number}: {kept:?}");
        }
    }
}

/// A rank that began with other skips or another end was taken: positions were read by nobody, or the others waited for it for ever.
#[test]
fn ranks_that_leave_other_positions_out_end_elsewhere_or_have_another_plan_are_refused() {
    let now = moment();
    let end = |position, last_step| Some(RunEnd { position, last_step });
    let with = |rank, skips: Option<&str>, end, plan: &str| {
        let mut report = RankReport { plan: plan.into(), ..begins(rank, 0) };
        let begin = report.begin.as_mut().unwrap();
        (begin.skips, begin.end) = (skips.map(str::to_owned), end);
        report
    };
    let (pad, drop) = (end(Some(64), LastStep::Pad), end(Some(64), LastStep::Drop));
    let first = || with(0, Some(""), pad, "sha256:a");
    for (second, words, alike) in [
        (
            with(1, Some("8-16"), pad, "sha256:a"),
            ["leaving positions 8-16 out", "leaving no position out"],
            ["plan", "to position"],
        ),
        (
            with(1, Some(""), end(None, LastStep::Drop), "sha256:a"),
            ["consumed on, without an end", "to position 64, the last step made full"],
            ["plan", "leaving"],
        ),
        (
            with(1, Some(""), drop, "sha256:a"),
            ["not full left out", "to position 64, the last step made full"],
            ["plan", "leaving"],
        ),
        (
            with(1, Some(""), pad, "sha256:b"),
            ["by plan sha256:b", "by plan sha256:a"],
            ["leaving", "to position"],
        ),
    ] {
        let mut reports = Reports::default();
        reports.keep(now, first()).unwrap();
        let detail = reports.keep(now, second).unwrap_err().problem().detail;
        let (newer, older) = detail.split_once(", but ").unwrap();
        assert!(newer.starts_with("rank 1 ") && newer.contains(words[0]), "{detail}");
        assert!(older.starts_with("rank 0 ") && older.contains(words[1]), "{detail}");
        assert!(alike.iter().all(|word| !detail.contains(word)), "what is alike is not said: {detail}");
        reports.keep(now, with(2, Some(""), pad, "sha256:a")).unwrap();
    }
    // What is left out of a last step does not matter where there is none.
    let mut reports = Reports::default();
    reports.keep(now, with(0, Some(""), end(None, LastStep::Drop), "sha256:a")).unwrap();
    reports.keep(now, with(1, Some(""), end(None, LastStep::Pad), "sha256:a")).unwrap();
}

#[test]
fn a_rank_of_an_older_version_agrees_with_all_and_hides_no_two_that_differ() {
    let now = moment();
    let mut reports = Reports::default();
    let with = |rank, skips: &str| {
        let mut report = begins(rank, 0);
        report.begin.as_mut().unwrap().skips = Some(skips.into());
        report
    };
    let older: RankReport = serde_json::from_value(serde_json::json!({
        "run": "run", "stream": "train", "plan": "unknown", "rank": 0, "size": 4, "ready": 0, "target": 8, "waiting_ms": 0, "wait_ms": 0,
        "step_ms": 0, "consumed": 0, "sequence": 1, "begin": {"global_batch": 64, "micro_batch": 4, "consumed": 0},
    }))
    .unwrap();
    reports.keep(now, older).unwrap();
    reports.keep(now, with(1, "8-16")).unwrap();
    let detail = reports.keep(now, with(2, "")).unwrap_err().to_string();
    assert!(detail.contains("rank 1 of 4") && detail.contains("8-16"), "{detail}");
    // And what a stranger says of it is checked.
    assert!(with(1, "8-16,+984:0123456789abcdef").check().is_ok());
    for nonsense in ["8-16\n".to_owned(), "8".repeat(2000)] {
        assert!(with(1, &nonsense).check().is_err());
    }
}

#[test]
fn a_refusal_names_both_sides() {
    let mut reports = Reports::default();
    let now = moment();
    reports.keep(now, begins(3, 51_200)).unwrap();
    let problem = reports.keep(now, begins(1, 0)).unwrap_err().problem();
    assert_eq!((problem.status, &*problem.kind), (409, problem_kind::RUN_MISMATCH));
    assert_eq!(
        problem.detail,
        "rank 1 of 4 reads stream \"train\" with global batch 64 and micro batch 4 from 0 samples consumed on, but \
         rank 3 of 4 reads stream \"train\" with global batch 64 and micro batch 4 from 51200 samples consumed on"
    );
    // Nobody is held against a run that has long ended.
    reports.keep(now + REPORT_LIFE, begins(1, 0)).unwrap();
}

/// Two nodes gave their local ranks as data-parallel ranks: half of the positions were read twice, the others by nobody, and nobody said so.
#[test]
fn a_rank_that_is_there_twice_is_told() {
    let mut reports = Reports::default();
    let begin = moment();
    let of = |process: &str, sequence| RankReport { process: process.into(), ..report(1, sequence) };
    let mut answers = |from: &[(u32, &str, u64)]| -> Vec<bool> {
        from.iter()
            .map(|&(second, process, sequence)| {
                reports.keep(begin + second * SECOND, of(process, sequence)).is_ok()
            })
            .collect()
    };
    // One that takes the place of another, also when the reports of both were late, is no second one; what it says counts at once.
    assert_eq!(answers(&[(0, "a", 8), (1, "b", 1), (1, "a", 9), (1, "b", 2), (3, "b", 3)]), [true; 5]);
    // Two that live are: both are told, again and again.
    assert_eq!(
        answers(&[(20, "a", 1), (21, "b", 4), (22, "a", 2), (23, "b", 5), (24, "a", 3), (25, "b", 6)]),
        [true, true, true, false, false, false]
    );
    // Not any more when one of them has ended.
    assert_eq!(answers(&[(27, "b", 7), (34, "b", 8), (36, "b", 9)]), [false, false, true]);
    let listed = reports.list(begin + 36 * SECOND);
    assert_eq!((&*listed[0].report.process, listed[0].report.sequence), ("b", 9));
}

#[test]
fn both_of_two_are_told_and_neither_when_they_begin_anew() {
    let mut reports = Reports::default();
    let now = moment();
    let of = |process: &str, report: RankReport| RankReport { process: process.into(), ..report };
    for process in ["a", "b", "a", "b"] {
        reports.keep(now, of(process, report(0, 1))).unwrap();
    }
    assert!(reports.keep(now, of("a", report(0, 2))).is_err());
    // It was told, and ended.
    reports.keep(now, of("a", RankReport { farewell: true, ..report(0, 3) })).unwrap();
    assert!(reports.keep(now, of("b", report(0, 2))).is_err());
    reports.keep(now, of("c", begins(0, 64))).unwrap();
    reports.keep(now, of("c", report(0, 2))).unwrap();
}

/// Their run lived on for ten minutes, and a start with other settings under its name was refused.
#[test]
fn nothing_is_left_of_two_that_have_both_said_farewell() {
    let mut reports = Reports::default();
    let now = moment();
    let of = |process: &str, report: RankReport| RankReport { process: process.into(), ..report };
    for (process, report) in
        [("a", begins(0, 0)), ("b", begins(0, 0)), ("a", report(0, 2)), ("b", report(0, 2))]
    {
        reports.keep(now, of(process, report)).unwrap();
    }
    reports.keep(now, of("a", report(0, 3))).unwrap();
    reports.keep(now, of("b", report(0, 3))).unwrap_err();
    let farewell = RankReport { farewell: true, ..report(0, 4) };
    reports.keep(now, of("a", farewell.clone())).unwrap();
    assert_eq!(reports.list(now).len(), 1);
    reports.keep(now, of("b", farewell)).unwrap();
    assert!(reports.list(now).is_empty());
    // Another rank begins otherwise, as the run is a new one.
    reports.keep(now, of("c", begins(1, 64))).unwrap();
}

#[test]
fn ranks_that_do_not_say_which_process_they_are_may_be_there_twice() {
    let mut reports = Reports::default();
    for sequence in 1..20 {
        reports.keep(moment(), report(0, sequence % 5)).unwrap();
    }
}

#[test]
fn the_farewell_of_a_process_forgets_not_the_one_that_took_its_place() {
    let mut reports = Reports::default();
    let now = moment();
    let of = |process: &str, farewell| RankReport { process: process.into(), farewell, ..report(1, 1) };
    for report in [of("a", false), of("b", false), of("a", true)] {
        reports.keep(now, report).unwrap();
    }
    assert_eq!(reports.list(now).len(), 1);
    reports.keep(now, of("b", true)).unwrap();
    assert!(reports.list(now).is_empty());
}

#[test]
fn a_rank_that_is_there_twice_is_named_with_both_processes() {
    let processes = ["n1/7/00000001".to_owned(), "n2/7/00000002".to_owned()];
    let problem = Refusal::Twice { rank: 3, size: 8, stream: "train".into(), processes }.problem();
    assert_eq!((problem.status, &*problem.kind), (409, problem_kind::RUN_MISMATCH));
    let text = format!("{problem:?}");
    assert!(text.contains("n1/7/00000001") && text.contains("n2/7/00000002"), "{text}");
}
