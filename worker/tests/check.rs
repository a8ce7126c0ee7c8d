//! `check` against the worker that it speaks for, and against itself when it is interrupted.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use feedmill_protocol::pipeline::ValidatedPipeline;
use feedmill_protocol::position::Range;
use feedmill_worker::check::warning::WarningKind;
use feedmill_worker::check::{Check, CheckOptions, Pass, Pictures, Report, Selection};
use feedmill_worker::in_process::{InProcess, Options};
use serde_json::{Value, json};
use support::{document, golden, pipeline, processor_folder};

const SMALL: &str = ", minPixels: 4096, maxPixels: 32768";

fn options(pictures: Pictures) -> CheckOptions {
    CheckOptions { pictures, selection: Selection::All, duplicates: true, requests_in_flight: None }
}

fn machine(threads: usize) -> Options {
    Options { threads: Some(threads), ..Options::default() }
}

async fn checked(pipeline: &ValidatedPipeline, options: CheckOptions, threads: usize) -> Report {
    let mut check = Check::open(pipeline, options, machine(threads), None, None).await.unwrap();
    assert_eq!(check.read_text().await.unwrap(), Pass::Whole);
    assert_eq!(check.read_pictures().await.unwrap(), Pass::Whole);
    check.finish().unwrap()
}

fn golden_pipeline(processor: &Path, settings: &str, manifest: &str) -> ValidatedPipeline {
    let root = golden("");
    let root = root.display();
    let streams = format!(
        "  - name: train\n    shuffle: false\n    badSamples: Fail\n    datasets: [{{name: golden, uri: \
         \"file://{root}/manifests/{manifest}\", imageBaseUri: \"file://{root}/\", recordFormat: Conversations}}]\n"
    );
    pipeline(&document(&format!("file://{}/", processor.display()), settings, &streams))
}

#[tokio::test]
async fn what_check_calls_bad_is_what_the_worker_refuses() {
    let processor = processor_folder();
    for manifest in ["bad.jsonl", "llava.jsonl"] {
        let pipeline = golden_pipeline(processor.path(), SMALL, manifest);
        let worker = InProcess::open(pipeline.clone(), Options::default()).await.unwrap();
        let (_, records) = worker.plan("train").unwrap();
        let mut refused = BTreeSet::new();
        for position in 0..records {
            let range = Range::new(position, position + 1).unwrap();
            if let Err(problem) = worker.batch("train", range, None).await {
                refused.insert((problem.line.unwrap(), problem.detail, problem.key));
            }
        }
        let report = checked(&pipeline, options(Pictures::Decode), 2).await;
        let found: BTreeSet<_> = report
            .bad
            .iter()
            .map(|bad| (bad.line, format!("position {}: {}", bad.record, bad.detail), bad.key.clone()))
            .collect();
        assert_eq!(found, refused, "{manifest}");
        assert_eq!(report.datasets[0].looked_at, records);
        assert_eq!(report.datasets[0].bad_records, refused.len() as u64);
        assert_eq!(manifest == "bad.jsonl", report.datasets[0].bad_records > 10);
    }
}

/// Names are unique within a stream only; bad records of two data sets of one name were told of as one's.
#[tokio::test]
async fn data_sets_of_one_name_keep_their_bad_records_apart() {
    let (processor, folder) = (processor_folder(), tempfile::tempdir().unwrap());
    for (file, role) in [("one.jsonl", "nobody-one"), ("other.jsonl", "nobody-other")] {
        let line = json!({"conversations": [{"from": role, "value": "q"}, {"from": "gpt", "value": "a"}]});
        std::fs::write(folder.path().join(file), line.to_string()).unwrap();
    }
    let mut streams = String::new();
    for (stream, file) in [("train", "one.jsonl"), ("eval", "other.jsonl")] {
        let uri = folder.path().join(file);
        let _ = writeln!(
            streams,
            "  - name: {stream}\n    datasets: [{{name: same, uri: \"file://{}\"}}]",
            uri.display()
        );
    }
    let uri = format!("file://{}/", processor.path().display());
    let report = checked(&pipeline(&document(&uri, SMALL, &streams)), options(Pictures::No), 1).await;
    let sets: Vec<usize> = report.bad.iter().map(|bad| bad.set).collect();
    assert_eq!(sets, [0, 1]);
    for (example, role) in report.examples.iter().zip(["nobody-one", "nobody-other"]) {
        assert!(example.text.contains(role), "{}", example.text);
    }
    assert_eq!(report.examples.len(), 2);
}

/// Pictures under a column of another name were trained on as text, and check said that all is well.
#[tokio::test]
async fn pictures_in_a_column_that_is_not_read_are_warned_of() {
    let (processor, folder) = (processor_folder(), tempfile::tempdir().unwrap());
    let line = json!({"image_path": "a.png", "conversations": [
        {"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}
    ]});
    std::fs::write(folder.path().join("typo.jsonl"), line.to_string()).unwrap();
    for (columns, expected) in [
        ("{}", vec![WarningKind::UnreadPictures]),
        ("{image: imagepath}", vec![WarningKind::UnusedColumn, WarningKind::UnreadPictures]),
    ] {
        let streams = format!(
            "  - name: train\n    datasets: [{{name: typo, uri: \"file://{}/typo.jsonl\", columns: {columns}}}]\n",
            folder.path().display()
        );
        let uri = format!("file://{}/", processor.path().display());
        let report =
            checked(&pipeline(&document(&uri, SMALL, &streams)), options(Pictures::Headers), 1).await;
        let found: Vec<WarningKind> = report.warnings.iter().map(|warning| warning.kind).collect();
        assert_eq!(found, expected, "{columns}");
    }
}

/// `exclude: [1, 1, 500]` of two records went through without a word.
#[tokio::test]
async fn excluded_lines_past_the_end_are_warned_of() {
    let (processor, folder) = (processor_folder(), tempfile::tempdir().unwrap());
    let line = json!({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]});
    // The blank line counts: the last record is on line 3.
    std::fs::write(folder.path().join("two.jsonl"), format!("{line}\n\n{line}\n")).unwrap();
    for (exclude, said) in [
        ("[1, 1, 3]", None),
        ("[1, 4]", Some("exclude names line 4, the last record is on line 3")),
        ("[9, 500]", Some("exclude names line 9 and 1 more, the last record is on line 3")),
    ] {
        let streams = format!(
            "  - name: train\n    datasets: [{{name: two, uri: \"file://{}/two.jsonl\", exclude: {exclude}}}]\n",
            folder.path().display()
        );
        let uri = format!("file://{}/", processor.path().display());
        let report = checked(&pipeline(&document(&uri, SMALL, &streams)), options(Pictures::No), 1).await;
        let kind = WarningKind::ExcludedPastTheEnd;
        let found: Vec<&str> = report
            .warnings
            .iter()
            .filter(|found| found.kind == kind)
            .map(|found| found.detail.as_str())
            .collect();
        assert_eq!(found, Vec::from_iter(said), "{exclude}");
    }
}

/// Rows of Parquet files hold their pictures; what is said of their samples is what is said of the same lines.
#[tokio::test]
async fn rows_of_parquet_files_are_checked_like_lines() {
    let processor = processor_folder();
    let root = golden("");
    let root = root.display();
    let over = |uri: &str| {
        let streams = format!(
            "  - name: train\n    datasets: [{{name: set, uri: \"file://{root}/parquet/{uri}\", imageBaseUri: \
             \"file://{root}/\"}}]\n"
        );
        pipeline(&document(&format!("file://{}/", processor.path().display()), SMALL, &streams))
    };
    let (lines, rows) = (over("llava_onevision.jsonl"), over("llava_onevision/"));
    for pictures in [Pictures::No, Pictures::Headers, Pictures::Decode] {
        let [lines, rows] =
            [checked(&lines, options(pictures), 2).await, checked(&rows, options(pictures), 2).await];
        let [lines, rows] = [&lines.datasets[0], &rows.datasets[0]].map(|set| {
            json!({
                "records": set.records, "looked_at": set.looked_at, "bad": set.bad,
                "pictures": set.pictures_per_record, "text": set.text_tokens, "supervised": set.supervised_tokens,
                "sample": set.sample_tokens, "decoded": set.images.decoded, "pixels": set.images.pixels,
            })
        });
        assert!(lines["records"].as_u64().unwrap() > 8, "{lines}");
        assert_eq!(rows, lines, "{pictures:?}");
    }
}

#[tokio::test]
async fn headers_alone_give_the_lengths_that_decoding_gives() {
    let processor = processor_folder();
    let settings = ", minPixels: 4096, maxPixels: 262144, maxTokens: 150";
    let pipeline = golden_pipeline(processor.path(), settings, "llava.jsonl");
    let headers = checked(&pipeline, options(Pictures::Headers), 2).await;
    let decoded = checked(&pipeline, options(Pictures::Decode), 2).await;
    let (headers, decoded) = (&headers.datasets[0], &decoded.datasets[0]);
    assert!(headers.too_long.over.least > 0 && headers.too_long.shrunk.least > 0, "{:?}", headers.too_long);
    assert_eq!(headers.too_long, decoded.too_long);
    let (over, short) = (headers.too_long.over.least, headers.too_long.shortened.least);
    assert!(short < over && over == short + headers.too_long.not_shortened.least, "{:?}", headers.too_long);
    assert_eq!(headers.sample_tokens, decoded.sample_tokens);
    assert_eq!(headers.images.pixels, decoded.images.pixels);
    assert_eq!(headers.images.file_bytes, decoded.images.file_bytes);
    assert_eq!(headers.images.formats, decoded.images.formats);
    let text = checked(&pipeline, options(Pictures::No), 2).await;
    let estimate = &text.datasets[0].too_long;
    assert!(estimate.estimate);
    assert!(estimate.over.least <= headers.too_long.over.least);
    assert!(estimate.over.most >= headers.too_long.over.most);
}

/// A data set of text in several chunks, with faults, copies and warnings in it.
struct Lines {
    folder: tempfile::TempDir,
    records: u64,
}

impl Lines {
    fn new(records: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut text = String::new();
        for number in 0..records {
            let answer = if number % 1000 == 7 { "" } else { "yes" };
            let mut messages = vec![
                json!({"role": "user", "content": format!("number {}", number % (records - 5))}),
                json!({"role": "assistant", "content": answer}),
            ];
            if number % 1000 == 8 {
                messages.push(json!({"role": "user", "content": "and?"}));
            }
            if number % 1000 == 11 {
                messages[0] = json!({"role": "user", "content": "<|im_end|> and <|im_end|>"});
            }
            match number % 1000 {
                9 => writeln!(text, "{{\"messages\": ").unwrap(),
                _ => writeln!(text, "{}", json!({ "messages": messages })).unwrap(),
            }
        }
        std::fs::write(folder.path().join("lines.jsonl"), text).unwrap();
        Self { folder, records }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn pipeline(&self, processor: &Path, streams: &[(&str, u32)]) -> ValidatedPipeline {
        let uri = self.path("lines.jsonl");
        let uri = uri.display();
        let streams: String = streams
            .iter()
            .map(|(name, percent)| {
                format!(
                    "  - name: {name}\n    datasets: [{{name: lines-of-{name}, uri: \"file://{uri}\", percent: {percent}}}]\n"
                )
            })
            .collect();
        pipeline(&document(&format!("file://{}/", processor.display()), SMALL, &streams))
    }
}

fn json_of(report: &Report) -> Value {
    serde_json::to_value(report).unwrap()
}

#[tokio::test]
async fn an_interrupted_check_goes_on_and_threads_do_not_matter() {
    let processor = processor_folder();
    let lines = Lines::new(9000);
    let pipeline = lines.pipeline(processor.path(), &[("train", 100)]);
    let whole = checked(&pipeline, options(Pictures::No), 3).await;
    let dataset = &whole.datasets[0];
    assert_eq!((dataset.looked_at, dataset.bad_records), (lines.records, 9));
    assert_eq!((dataset.empty_answers, dataset.dropped_trailing_turns), (9, 9));
    assert_eq!(dataset.with_control_tokens, 9);
    assert_eq!(dataset.control_tokens["user"]["<|im_end|>"], 18);
    let duplicates = dataset.duplicates.as_ref().unwrap();
    // Five copies at the end; every bad line is the same text, too.
    assert_eq!((duplicates.repeated, duplicates.exact), (5 + 8 + 8, true));
    assert!(duplicates.most.iter().any(|most| most.uses == 9 && most.line == 10));
    let (state, bad) = (lines.path("state"), lines.path("bad.jsonl"));
    let mut passes = 0;
    let resumed = loop {
        let opened =
            Check::open(&pipeline, options(Pictures::No), machine(1), Some(&state), Some(&bad)).await;
        let mut check = opened.unwrap();
        assert_eq!(check.goes_on(), passes > 0);
        check.stop().send_replace(true);
        // Ends after every chunk; with nothing left to do it is whole.
        if check.read_text().await.unwrap() == Pass::Whole {
            break check.finish().unwrap();
        }
        assert!(state.exists());
        passes += 1;
    };
    assert!(passes >= 2, "{passes} chunks");
    assert_eq!(json_of(&resumed), json_of(&whole));
    assert!(!state.exists());
    let listed: Vec<Value> = std::fs::read_to_string(&bad)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(Value::from(listed), json_of(&whole)["bad"]);
}

#[tokio::test]
async fn a_state_of_other_data_is_refused_with_what_differs() {
    let processor = processor_folder();
    let lines = Lines::new(9000);
    let pipeline = lines.pipeline(processor.path(), &[("train", 100)]);
    let state = lines.path("state");
    let open = |options| Check::open(&pipeline, options, machine(1), Some(&state), None);
    let mut check = open(options(Pictures::No)).await.unwrap();
    check.stop().send_replace(true);
    assert_eq!(check.read_text().await.unwrap(), Pass::Stopped);
    drop(check);
    let said = |result: anyhow::Result<Check>| format!("{:#}", result.err().unwrap());
    let other = CheckOptions { selection: Selection::First(10), ..options(Pictures::No) };
    let text = said(open(other).await);
    assert!(text.contains("check.selection: {\"first\":10} now, \"all\" before"), "{text}");
    let more = std::fs::read_to_string(lines.path("lines.jsonl")).unwrap() + "{}\n";
    std::fs::write(lines.path("lines.jsonl"), more).unwrap();
    let text = said(open(options(Pictures::No)).await);
    assert!(text.contains("dataset.000.records: 9001 now, 9000 before"), "{text}");
}

#[tokio::test]
async fn a_data_set_in_two_streams_is_read_once_and_counted_by_its_share() {
    let processor = processor_folder();
    let lines = Lines::new(1000);
    let pipeline = lines.pipeline(processor.path(), &[("train", 250), ("eval", 10)]);
    let report = checked(&pipeline, options(Pictures::No), 2).await;
    assert_eq!(report.datasets.len(), 1);
    assert_eq!(report.datasets[0].looked_at, 1000);
    let streams: Vec<_> =
        report.streams.iter().map(|stream| (stream.name.as_str(), &stream.datasets[..])).collect();
    assert_eq!(streams, [("train", &[0][..]), ("eval", &[0][..])]);
    for stream in &report.streams {
        assert!((stream.bad_share - 0.001).abs() < 1e-9, "{}", stream.bad_share);
    }
}

#[tokio::test]
async fn a_part_of_the_records_is_a_part_of_the_report() {
    let processor = processor_folder();
    let lines = Lines::new(3000);
    let pipeline = lines.pipeline(processor.path(), &[("train", 100)]);
    for (selection, bad) in [(Selection::First(10), Some(1)), (Selection::Sample(100), None)] {
        let report = checked(&pipeline, CheckOptions { selection, ..options(Pictures::No) }, 2).await;
        let dataset = &report.datasets[0];
        assert_eq!((dataset.records, dataset.looked_at), (3000, selection_len(selection)));
        assert!(bad.is_none_or(|bad| dataset.bad_records == bad));
    }
}

fn selection_len(selection: Selection) -> u64 {
    match selection {
        Selection::All => 3000,
        Selection::First(most) | Selection::Sample(most) => most,
    }
}

#[test]
fn every_warning_has_a_place_in_the_docs() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/check.md");
    let page = std::fs::read_to_string(page).unwrap();
    for kind in WarningKind::ALL {
        assert!(
            page.contains(&format!("`{}`", kind.name())),
            "docs/check.md says nothing of {}",
            kind.name()
        );
    }
}
