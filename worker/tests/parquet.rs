//! Parquet data sets through a whole worker: the same samples as from the same records in JSON lines.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use std::sync::Arc;

use feedmill_protocol::bad::{BadClass, RowStatus};
use feedmill_protocol::frame::BatchView;
use feedmill_testkit::{EmbeddedS3, Fault, FaultProxy, Rule, TestKeys};
use feedmill_worker::in_process::{InProcess, Options};
use serde_json::Value;
use support::{Served, credentials_folder, document, golden, pipeline, processor_folder, served, settings};

const SMALL: &str = ", minPixels: 4096, maxPixels: 32768";

/// A worker over one data set; `dataset` is the rest of its YAML after the name.
async fn over(dataset: &str, change: impl Fn(String) -> String) -> (Served, tempfile::TempDir) {
    let processor = processor_folder();
    let uri = format!("file://{}/", processor.path().display());
    let root = golden("").display().to_string();
    let streams = format!(
        "  - name: train\n    seed: 3\n    datasets: [{{name: set, imageBaseUri: \"file://{root}/\", {dataset}}}]\n"
    );
    let document = change(document(&uri, SMALL, &streams.replace("ROOT", &root)));
    (served(pipeline(&document), &settings()).await, processor)
}

fn unchanged(document: String) -> String {
    document
}

/// Sample hash, record and status of each position.
async fn rows(worker: &Served, end: u64) -> Vec<([u8; 16], i64, RowStatus)> {
    let mut rows = Vec::new();
    for start in (0..end).step_by(8) {
        let answer = worker.get(&format!("/v1/streams/train/batches/{start}-{}", end.min(start + 8))).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let batch = BatchView::parse(&answer.body).unwrap();
        rows.extend(batch.samples().iter().map(|sample| {
            assert_eq!(sample.hash, sample.computed_hash());
            (sample.hash, sample.record_index, sample.status)
        }));
    }
    rows
}

async fn bad(worker: &Served) -> Value {
    worker.get("/v1/bad").await.json()
}

/// Two epochs and a bit, so that rows come from the cache and anew.
#[tokio::test(flavor = "multi_thread")]
async fn samples_are_those_of_the_same_records_in_json_lines() {
    let sets = [
        ("llava_onevision/", "llava_onevision", 25),
        ("the_cauldron.parquet", "the_cauldron", 20),
        ("finevision.parquet", "finevision", 17),
        ("chartqa.parquet", "chartqa", 13),
        ("docvqa.parquet", "docvqa", 13),
    ];
    for (files, twin, end) in sets {
        let (lines, _keep) = over(&format!("uri: \"file://ROOT/parquet/{twin}.jsonl\""), unchanged).await;
        let expected = rows(&lines, end).await;
        assert_eq!(bad(&lines).await["records"].as_array().unwrap().len(), 0, "{}", bad(&lines).await);
        let small = |document: String| {
            document.replace(
                "maxImageBytes: 32Mi, maxSampleBytes: 64Mi",
                "maxImageBytes: 64Ki, maxSampleBytes: 64Ki",
            )
        };
        let no_disk = |document: String| document.replace("fetch: 160Mi", "fetch: 160Mi, disk: 1");
        let changes: [&(dyn Fn(String) -> String + Sync); 3] = [&unchanged, &small, &no_disk];
        for change in changes {
            let (table, _keep) = over(&format!("uri: \"file://ROOT/parquet/{files}\""), change).await;
            assert_eq!(rows(&table, end).await, expected, "{files}");
            assert_eq!(bad(&table).await["records"].as_array().unwrap().len(), 0, "{}", bad(&table).await);
            assert_eq!(table.app.machinery.fetch.stats().used, 0);
        }
    }
}

/// A shard without rows, as filters leave them behind, was refused as lying outside of its file.
#[tokio::test(flavor = "multi_thread")]
async fn a_shard_without_rows_adds_none() {
    let folder = tempfile::tempdir().unwrap();
    let put = |from: &str, to: &str| {
        std::fs::copy(golden("parquet").join(from), folder.path().join(to)).unwrap();
    };
    put("llava_onevision/train-00000-of-00002.parquet", "a.parquet");
    put("llava_no_rows.parquet", "b.parquet");
    put("llava_onevision/train-00001-of-00002.parquet", "c.parquet");
    let (whole, _keep) = over("uri: \"file://ROOT/parquet/llava_onevision/\"", unchanged).await;
    let (parts, _keep) = over(&format!("uri: \"file://{}/\"", folder.path().display()), unchanged).await;
    assert_eq!(rows(&parts, 14).await, rows(&whole, 14).await);
}

/// A column that is named and not there trained on text alone, without a word.
#[tokio::test(flavor = "multi_thread")]
async fn a_named_column_that_the_files_do_not_have_is_refused() {
    let processor = processor_folder();
    let root = golden("").display().to_string();
    let streams = format!(
        "  - name: train\n    datasets: [{{name: set, uri: \"file://{root}/parquet/chartqa.parquet\", columns: \
         {{image: picture}}}}]\n"
    );
    let document = document(&format!("file://{}/", processor.path().display()), SMALL, &streams);
    let error = InProcess::open(pipeline(&document), Options::default()).await.err().unwrap();
    let text = format!("{error:#}");
    assert!(text.contains("picture") && text.contains("human_or_machine"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_plan_knows_the_files_and_not_where_they_lie() {
    let folder = tempfile::tempdir().unwrap();
    for shard in 0..2 {
        let name = format!("train-0000{shard}-of-00002.parquet");
        std::fs::copy(golden("parquet/llava_onevision").join(&name), folder.path().join(&name)).unwrap();
    }
    let plan = async |uri: &str| {
        let (worker, _keep) = over(&format!("uri: \"{uri}\""), unchanged).await;
        worker.get("/v1/plan?stream=train").await.json().to_string()
            + &worker.get("/v1/plan").await.json().to_string()
    };
    let here = plan("file://ROOT/parquet/llava_onevision/").await;
    assert!(here.contains("dataset.000.table"), "{here}");
    assert_eq!(here, plan(&format!("file://{}/train-*.parquet", folder.path().display())).await);
    assert_ne!(here, plan(&format!("file://{}/train-00000*.parquet", folder.path().display())).await);
}

/// People see the row and the file; the list of excluded rows counts through all files.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_page_and_an_excluded_row_are_bad_records_with_their_place() {
    let folder = tempfile::tempdir().unwrap();
    for shard in 0..2 {
        let name = format!("train-0000{shard}-of-00002.parquet");
        let mut bytes = std::fs::read(golden("parquet/llava_onevision").join(&name)).unwrap();
        if shard == 1 {
            // The first page's header.
            bytes[4..12].fill(0xFF);
        }
        std::fs::write(folder.path().join(&name), bytes).unwrap();
    }
    let dataset = format!("uri: \"file://{}/\", exclude: [2]", folder.path().display());
    let (worker, _keep) = over(&dataset, unchanged).await;
    let rows = rows(&worker, 33).await;
    let unreadable = rows.iter().filter(|row| row.2 == RowStatus::Substituted(BadClass::RecordUnreadable));
    assert!(unreadable.count() >= 9, "{rows:?}");
    assert!(rows.iter().any(|row| row.2 == RowStatus::Substituted(BadClass::Excluded)));
    let bad = bad(&worker).await;
    let records = bad["records"].as_array().unwrap();
    let find = |line: u64| records.iter().find(|record| record["line"] == line).unwrap();
    let key = |record: &Value| record["key"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
    assert_eq!(find(2)["class"], "excluded");
    assert_eq!(key(find(2)), "train-00000-of-00002.parquet");
    assert!(find(2)["key"].as_str().unwrap().starts_with("row 2 of file://"));
    assert_eq!(find(8)["class"], "record_unreadable");
    assert!(find(8)["key"].as_str().unwrap().starts_with("row 1 of file://"));
    assert_eq!(key(find(8)), "train-00001-of-00002.parquet");
    assert!(find(8)["detail"].as_str().unwrap().starts_with("column "), "{bad}");
}

/// Faults of storage cost time, never a byte, and a file that changes is an error, never other data.
#[tokio::test(flavor = "multi_thread")]
async fn faults_for_now_never_change_a_byte_and_a_changed_file_is_loud() {
    let (root, processor, keys) = (tempfile::tempdir().unwrap(), processor_folder(), credentials_folder());
    let bucket = root.path().join("golden");
    std::fs::create_dir_all(bucket.join("processor")).unwrap();
    for entry in std::fs::read_dir(processor.path()).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), bucket.join("processor").join(entry.file_name())).unwrap();
    }
    let file = bucket.join("train.parquet");
    std::fs::copy(golden("parquet/llava_onevision/train-00000-of-00002.parquet"), &file).unwrap();
    let s3 = EmbeddedS3::start(root.path(), &TestKeys::keys()).await.unwrap();
    let proxy = FaultProxy::start(s3.address()).await;
    let streams = "  - name: train\n    datasets: [{name: set, uri: \"s3://golden/train.parquet\"}]\n";
    // Nothing is kept on disk, so that every row is fetched.
    let document =
        document("s3://golden/processor/", SMALL, streams).replace("fetch: 160Mi", "fetch: 160Mi, disk: 1");
    let mut settings = settings();
    settings.s3_endpoint = Some(proxy.endpoint());
    settings.s3_credentials = Some(keys.path().to_owned());
    let quiet = served(pipeline(&document), &settings).await;
    let expected = rows(&quiet, 14).await;
    let worker = Arc::new(served(pipeline(&document), &settings).await);
    for fault in [Fault::ResetMidBody, Fault::ShortBody, Fault::SLOW_DOWN, Fault::EXPIRED_TOKEN] {
        proxy.add(Rule::times(fault, 9).on_path("train.parquet"));
    }
    assert_eq!(rows(&worker, 14).await, expected);
    assert_eq!(bad(&worker).await["records"].as_array().unwrap().len(), 0);
    let befell =
        |fault: &Fault| proxy.seen().iter().filter(|seen| seen.fault.as_ref() == Some(fault)).count();
    assert_eq!([befell(&Fault::ResetMidBody), befell(&Fault::ShortBody)], [9, 9]);
    proxy.clear();
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[500] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let answer = worker.get("/v1/streams/train/batches/100-104").await;
    assert_eq!(answer.status, 502, "{answer:?}");
    let problem = answer.json();
    assert!(problem["detail"].as_str().unwrap().contains("changed"), "{problem}");
    assert!(problem["remedy"].as_str().unwrap().contains("another name"), "{problem}");
    assert_eq!(bad(&worker).await["records"].as_array().unwrap().len(), 0);
}
