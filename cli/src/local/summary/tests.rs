use super::*;
use crate::local::ledger::{Ledger, Row};
use feedmill_protocol::bad::{BadClass, RowStatus};

fn row(position: u64) -> Row {
    Row {
        position,
        hash: [position as u8; 16],
        hash_holds: true,
        status: RowStatus::Ok,
        dataset: 0,
        record: 3,
        reference_bytes: 8000,
    }
}

fn counts(rows: &[Row], stop: u64, end: u64) -> Counts {
    let mut ledger = Ledger::new(stop);
    ledger.add(rows);
    ledger.seal(end);
    ledger.counts().clone()
}

/// Three steps of four, the last row filler.
fn facts() -> Facts {
    let mut rows: Vec<Row> = (0..12).map(row).collect();
    rows[5].status = RowStatus::Substituted(BadClass::ImageMissing);
    rows[11].status = RowStatus::Filler;
    let mut pace = Pace::default();
    pace.mark = Some(1);
    for (step, wait, whole) in [(0, 2000, 2100), (1, 10, 110), (2, 0, 100)] {
        pace.waited(step, Duration::from_millis(wait));
        pace.made(step, Duration::from_millis(whole));
    }
    Facts {
        pipeline: "p".into(),
        stream: "train".into(),
        plan: "sha256:ab".into(),
        samples_per_epoch: 11,
        layout: RankLayout::new(4, 2, 2).unwrap(),
        workers: 2,
        stop: 11,
        steps: 3,
        step_time: Duration::from_millis(100),
        counts: counts(&rows, 11, 12),
        pace,
        rows: 12,
        bytes: 12_000,
        reference_bytes: 96_000,
        batches: 6,
        moved: 3,
        served: [("w0".to_owned(), 4), ("w1".to_owned(), 2)].into(),
        first_batch: Some(Duration::from_millis(2300)),
        datasets: vec!["captions".into()],
        bad_records: BTreeSet::from([BadRecord {
            dataset: "captions".into(),
            line: 17,
            class: BadClass::ImageMissing,
            key: Some("s3://b/x.jpg".into()),
            detail: "no such object".into(),
        }]),
        killed: Some(Killed { worker: "w0".into(), step: 1, moved_before: 2 }),
        lost_workers: 0,
        scaled: None,
        check: None,
        interrupted: None,
        failure: None,
    }
}

#[test]
fn a_person_reads_what_happened() {
    let text = facts().text();
    for part in [
        "11 samples in 3 of 3 steps, 1.00 epochs of 11",
        "2.30 s until every rank had its first batch",
        "4.8 % of the time after the first step, 2.4 % for a rank by itself; the longest was 10 ms in step 1",
        // 12 rows in 0.1 + 0.21 s.
        "38.7 samples/s",
        "2 ranks that compute 100 ms a step could use 40.0 samples/s",
        "1.00 KB on the wire; the processor's fp32 tensors have 8.00 KB, 8.0 times as much",
        "6 batches: w0 4, w1 2",
        "worker w0 by SIGKILL in step 1",
        "1 batches were asked again",
        "ranks waited 10 ms",
        "1 of 11 (9.09 %)",
        "image_missing          another record stands in 1 (position 5: captions record 3)",
        "captions line 17: s3://b/x.jpg: no such object",
        "upload the object",
        "kept    every position came exactly once: 11 of 11",
        "kept    filler stands past the end and nowhere else: 1 rows",
    ] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    assert!(!text.contains("BROKEN"));
    assert!(facts().kept());
}

#[test]
fn each_promise_can_break_and_says_where() {
    type Change = fn(&mut Facts);
    let cases: [(Change, &str); 8] = [
        (|facts| facts.counts = counts(&[row(0), row(2)], 11, 12), "10 missing (1, 3, 4, 5, 6, ...)"),
        (|facts| facts.counts.twice = Faults { count: 1, first: vec![4] }, "1 came twice (4)"),
        (|facts| facts.counts.samples = 10, "10 of 11 came"),
        (|facts| facts.counts.wrong_hash = Faults { count: 2, first: vec![1, 2] }, "2 differ (1, 2)"),
        (|facts| facts.counts.misplaced_filler = Faults { count: 1, first: vec![3] }, "1 are not so (3)"),
        (
            |facts| facts.check = Some(Ok(counts(&[row(0)], 11, 1))),
            "is not that of one undisturbed worker: 1 hashes",
        ),
        (|facts| facts.check = Some(Err("gone".into())), "it could not be read: gone"),
        (|facts| facts.failure = Some("rank 1".into()), "every rank made every step: rank 1"),
    ];
    for (change, part) in cases {
        let mut facts = facts();
        change(&mut facts);
        assert!(!facts.kept(), "{part}");
        let text = facts.text();
        let broken = text.lines().find(|line| line.starts_with("BROKEN")).unwrap();
        assert!(broken.contains(part), "{part:?} is not in {broken:?}");
        assert_eq!(facts.json()["kept"], false);
    }
}

#[test]
fn a_chain_that_agrees_is_a_promise_kept() {
    let mut facts = facts();
    facts.check = Some(Ok(facts.counts.clone()));
    assert!(facts.kept());
    assert!(facts.text().contains("the chain of 11 hashes"));
    assert_eq!(facts.json()["check"]["chain"], facts.json()["chain"]);
}

#[test]
fn an_interrupted_run_promises_only_the_steps_it_made() {
    let mut facts = facts();
    facts.interrupted = Some(Interruption::Interrupt);
    facts.pace.steps = 1;
    facts.counts = counts(&[row(0), row(1), row(2), row(3)], 11, 4);
    assert!(facts.kept());
    let text = facts.text();
    assert!(text.contains("4 samples in 1 of 3 steps (stopped by a signal)"), "{text}");
    // Before the first step there is nothing to divide by.
    facts.pace = Pace::default();
    facts.counts = Counts::default();
    facts.first_batch = None;
    (facts.rows, facts.bytes, facts.reference_bytes, facts.batches) = (0, 0, 0, 0);
    assert!(facts.kept());
    assert!(!facts.text().contains("NaN") && !facts.text().contains("inf"), "{}", facts.text());
}

#[test]
fn the_json_has_the_figures() {
    let json = facts().json();
    assert_eq!(json["samples"], 11);
    assert_eq!(json["missing"]["count"], 0);
    assert_eq!(json["bytes_per_sample"], 1000.0);
    assert_eq!(json["reference_bytes_per_sample"], 8000.0);
    assert_eq!(json["bad"]["image_missing"]["replaced"], 1);
    assert_eq!(json["promises"].as_array().unwrap().len(), 3);
}

/// It printed that each promise was kept: 0 of 0.
#[test]
fn a_run_that_read_nothing_says_so_and_promises_nothing() {
    let mut facts = facts();
    (facts.counts, facts.pace, facts.rows) = (Counts::default(), Pace::default(), 0);
    facts.interrupted = Some(Interruption::Terminate);
    assert!(facts.kept());
    let text = facts.text();
    assert!(text.contains("nothing was read") && !text.contains("kept  "), "{text}");
    facts.failure = Some("no worker answers".into());
    assert!(facts.text().contains("BROKEN"), "{}", facts.text());
}
