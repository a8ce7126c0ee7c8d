//! Faults of storage: what they cost is time, never a byte.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use std::path::Path;
use std::sync::Arc;

use feedmill_protocol::bad::{BadClass, RowStatus};
use feedmill_protocol::frame::BatchView;
use feedmill_testkit::{EmbeddedS3, Fault, FaultProxy, Rule, TestKeys};
use support::{
    Answer, Served, credentials_folder, document, golden, pipeline, processor_folder, served, settings,
};

/// A bucket with the golden pictures and conversations, an S3 server over it, a proxy before it, a worker.
struct Bench {
    proxy: FaultProxy,
    worker: Served,
    _folders: Vec<tempfile::TempDir>,
    _s3: EmbeddedS3,
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

async fn bench(extra_record: &str) -> Bench {
    let (root, processor, keys) = (tempfile::tempdir().unwrap(), processor_folder(), credentials_folder());
    let bucket = root.path().join("golden");
    copy_folder(&golden("images"), &bucket.join("images"));
    copy_folder(processor.path(), &bucket.join("processor"));
    let mut manifest = std::fs::read_to_string(golden("manifests/llava.jsonl")).unwrap();
    manifest += extra_record;
    std::fs::write(bucket.join("llava.jsonl"), manifest).unwrap();
    let s3 = EmbeddedS3::start(root.path(), &TestKeys::keys()).await.unwrap();
    let proxy = FaultProxy::start(s3.address()).await;
    let streams =
        "  - name: train\n    seed: 7\n    datasets: [{name: llava, uri: \"s3://golden/llava.jsonl\"}]\n";
    let document = document("s3://golden/processor/", ", minPixels: 4096, maxPixels: 32768", streams);
    let mut settings = settings();
    settings.s3_endpoint = Some(proxy.endpoint());
    settings.s3_credentials = Some(keys.path().to_owned());
    let worker = served(pipeline(&document), &settings).await;
    Bench { proxy, worker, _folders: vec![root, processor, keys], _s3: s3 }
}

const BATCH: &str = "/v1/streams/train/batches/0-16";

/// The same range with nothing in the way, from another worker.
async fn undisturbed() -> Vec<u8> {
    let bench = bench("").await;
    let answer = bench.worker.get(BATCH).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body
}

async fn disturbed(rules: impl IntoIterator<Item = Rule>) -> (Bench, Answer) {
    let bench = bench("").await;
    for rule in rules {
        bench.proxy.add(rule.on_path("/images/"));
    }
    let answer = bench.worker.get(BATCH).await;
    (bench, answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_for_now_never_change_a_byte() {
    let expected = undisturbed().await;
    let faults = [
        vec![Rule::times(Fault::ResetBeforeHeaders, 9)],
        vec![Rule::times(Fault::ResetMidBody, 9)],
        vec![Rule::times(Fault::ShortBody, 9)],
        vec![Rule::times(Fault::INTERNAL_ERROR, 9)],
        vec![Rule::times(Fault::SLOW_DOWN, 40)],
        vec![Rule::times(Fault::EXPIRED_TOKEN, 9)],
        vec![Rule::times(Fault::CLOCK_SKEW, 9)],
        vec![Rule::times(Fault::Html { status: 502 }, 9)],
    ];
    for rules in faults {
        let what = format!("{rules:?}");
        let (bench, answer) = disturbed(rules).await;
        assert_eq!(answer.status, 200, "{what}: {answer:?}");
        assert_eq!(answer.body, expected, "{what}");
        let hit = bench.proxy.seen().iter().filter(|request| request.fault.is_some()).count();
        assert!(hit >= 9, "{what}: only {hit} requests were disturbed");
        let bad = bench.worker.get("/v1/bad").await.json();
        assert_eq!(bad["records"].as_array().unwrap().len(), 0, "{what}: {bad}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_access_is_loud_and_no_bad_record() {
    let (bench, answer) = disturbed([Rule::always(Fault::ACCESS_DENIED)]).await;
    assert_eq!(answer.status, 502, "{answer:?}");
    let problem = answer.json();
    assert_eq!(problem["type"], "feedmill:storage-denied");
    assert!(problem["detail"].as_str().unwrap().contains("AccessDenied"), "{problem}");
    assert!(problem["remedy"].is_string());
    assert_eq!(bench.worker.get("/v1/bad").await.json()["records"].as_array().unwrap().len(), 0);
    // Nothing is remembered of it: when access is back, so are the bytes.
    bench.proxy.clear();
    assert_eq!(bench.worker.get(BATCH).await.body, undisturbed().await);
}

/// One missing look is confirmed by a second one before the record is called bad.
#[tokio::test(flavor = "multi_thread")]
async fn a_picture_missing_once_is_looked_for_again() {
    let (bench, answer) = disturbed([Rule::times(Fault::NO_SUCH_KEY, 1)]).await;
    assert_eq!(answer.body, undisturbed().await);
    assert_eq!(bench.worker.get("/v1/bad").await.json()["records"].as_array().unwrap().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_picture_is_replaced_visibly_and_the_same_everywhere() {
    let record = r#"{"id": "gone", "image": "images/gone.jpg", "conversations": [{"from": "human", "value": "<image>?"}, {"from": "gpt", "value": "x"}]}"#;
    let (one, two) = (bench(record).await, bench(record).await);
    let mut found = None;
    for start in (0..72).step_by(8) {
        let path = format!("/v1/streams/train/batches/{start}-{}", start + 8);
        let (a, b) = tokio::join!(one.worker.get(&path), two.worker.get(&path));
        assert_eq!(a.body, b.body, "{path}");
        let batch = BatchView::parse(&a.body).unwrap();
        let status = RowStatus::Substituted(BadClass::ImageMissing);
        found = found.or(batch.samples().iter().find(|row| row.status == status).map(|row| row.record_index));
    }
    assert!(found.is_some_and(|record| record < 67), "{found:?}");
    let bad = one.worker.get("/v1/bad").await.json();
    assert_eq!(bad["records"][0]["line"], 68, "{bad}");
    assert!(bad["records"][0]["key"].as_str().unwrap().ends_with("images/gone.jpg"));
}

/// A hundred ranges at once through a slow store: bounded requests, every answer right.
#[tokio::test(flavor = "multi_thread")]
async fn many_ranges_share_what_is_fetched() {
    let bench = Arc::new(bench("").await);
    let asks: Vec<_> = (0..100u64)
        .map(|i| {
            let bench = Arc::clone(&bench);
            let start = i % 10 * 4;
            tokio::spawn(async move {
                (start, bench.worker.get(&format!("/v1/streams/train/batches/{start}-{}", start + 4)).await)
            })
        })
        .collect();
    let mut bodies = std::collections::HashMap::new();
    for ask in asks {
        let (start, answer) = ask.await.unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
        let body = bodies.entry(start).or_insert_with(|| answer.body.clone());
        assert_eq!(*body, answer.body);
    }
    // Forty samples with at most a few pictures each were fetched about once, not ten times.
    let fetched = bench.proxy.count("/images/");
    assert!(fetched < 160, "{fetched} requests for pictures of 40 samples");
}

/// A lost mount used to make bad records of every picture below it.
#[tokio::test(flavor = "multi_thread")]
async fn a_folder_of_images_that_vanishes_for_a_while_changes_no_byte() {
    let (folder, processor) = (tempfile::tempdir().unwrap(), processor_folder());
    copy_folder(&golden("images"), &folder.path().join("images"));
    let streams = format!(
        "  - name: train\n    datasets: [{{name: llava, uri: \"file://{}\", imageBaseUri: \"file://{}/\"}}]\n",
        golden("manifests/llava.jsonl").display(),
        folder.path().join("base").display()
    );
    let base = folder.path().join("base");
    std::fs::create_dir(&base).unwrap();
    std::fs::rename(folder.path().join("images"), base.join("images")).unwrap();
    let uri = format!("file://{}/", processor.path().display());
    let document = document(&uri, ", minPixels: 4096, maxPixels: 32768", &streams);
    let expected = served(pipeline(&document), &settings()).await.get(BATCH).await.body;
    let worker = Arc::new(served(pipeline(&document), &settings()).await);
    let away = folder.path().join("away");
    std::fs::rename(&base, &away).unwrap();
    let asking = Arc::clone(&worker);
    let asked = tokio::spawn(async move { asking.get(BATCH).await });
    // Pictures are looked for, twice, and not found.
    let stats = worker.app.machinery.stores.stats();
    while stats.missing.load(std::sync::atomic::Ordering::Relaxed) == 0 {
        assert_eq!(worker.get("/livez").await.status, 200);
    }
    std::fs::rename(&away, &base).unwrap();
    assert_eq!(asked.await.unwrap().body, expected);
    assert_eq!(worker.get("/v1/bad").await.json()["records"].as_array().unwrap().len(), 0);
}

/// A changed manifest used to be refused without a word in the log or the status, until somebody read an answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_that_changed_is_told_where_people_look() {
    let (folder, processor) = (tempfile::tempdir().unwrap(), processor_folder());
    let manifest = folder.path().join("llava.jsonl");
    std::fs::copy(golden("manifests/llava.jsonl"), &manifest).unwrap();
    let streams = format!(
        "  - name: train\n    datasets: [{{name: llava, uri: \"file://{}\", imageBaseUri: \"file://{}/\"}}]\n",
        manifest.display(),
        golden("").display()
    );
    let uri = format!("file://{}/", processor.path().display());
    let document = document(&uri, ", minPixels: 4096, maxPixels: 32768", &streams);
    let worker = served(pipeline(&document), &settings()).await;
    assert_eq!(worker.get("/v1/status").await.json().get("problems"), None);
    assert_eq!(worker.get("/readyz").await.body, b"ready\n");
    let text = std::fs::read(&manifest).unwrap();
    std::fs::write(&manifest, &text[1..]).unwrap();
    let answer = worker.get(BATCH).await;
    assert_eq!(answer.status, 502, "{answer:?}");
    let remedy = answer.json()["remedy"].as_str().unwrap().to_owned();
    // It was told twice what to do, in other words.
    let detail = answer.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.ends_with("llava.jsonl changed after it was opened"), "{detail}");
    let problem = worker.get("/v1/status").await.json()["problems"][0].as_str().unwrap().to_owned();
    assert!(problem.starts_with("stream train, data set llava: the manifest has changed"), "{problem}");
    assert!(problem.ends_with(&remedy), "{problem}");
    let ready = worker.get("/readyz").await;
    assert_eq!((ready.status, ready.body), (200, format!("ready\nproblem: {problem}\n").into_bytes()));
}

/// Each meeting with a missing picture used to cost a trainer two requests and a pause, one candidate after another.
#[tokio::test(flavor = "multi_thread")]
async fn missing_pictures_are_looked_for_twice_in_all_not_at_each_meeting() {
    let record = r#"{"image": "images/gone-N.jpg", "conversations": [{"from": "human", "value": "?"}, {"from": "gpt", "value": "x"}]}"#;
    // Three of four records cannot be used, so candidates are mostly missing too.
    let records: String = (0..200).map(|n| record.replace('N', &n.to_string()) + "\n").collect();
    let bench = bench(&records).await;
    for start in (0..256).step_by(16) {
        let answer = bench.worker.get(&format!("/v1/streams/train/batches/{start}-{}", start + 16)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let bad = bench.worker.get("/v1/bad").await.json();
    let records = bad["records"].as_array().unwrap();
    let met: u64 = records.iter().map(|record| record["times"].as_u64().unwrap()).sum();
    assert!(records.len() > 100 && met > 2 * records.len() as u64, "{met} meetings with {}", records.len());
    // Meetings at the same moment may look at the same time.
    let looks = bench.proxy.count("gone");
    assert!(looks < 3 * records.len(), "{looks} requests for {} pictures, met {met} times", records.len());
}

/// An uncompressed picture of `side` x `side` pixels in one colour, 3 bytes a pixel.
fn bitmap(side: u32, colour: u8) -> Vec<u8> {
    let row = (side * 3).next_multiple_of(4);
    let size = 54 + row * side;
    let mut bytes = b"BM".to_vec();
    for number in [size, 0, 54, 40, side, side, 1 | 24 << 16, 0, row * side, 2835, 2835, 0, 0] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.resize(size as usize, colour);
    bytes
}

/// Records used to take the budget of fetched bytes picture by picture: each held a part and waited for more.
#[tokio::test(flavor = "multi_thread")]
async fn records_of_many_pictures_do_not_hold_the_fetch_budget_against_each_other() {
    let (folder, processor) = (tempfile::tempdir().unwrap(), processor_folder());
    let mut manifest = String::new();
    for record in 0..32u32 {
        // Five pictures of 120 to 220 KB: a record and a half fill the whole budget.
        let pictures: Vec<String> = (0..5)
            .map(|picture| {
                let name = format!("{record}-{picture}.bmp");
                let side = 200 + (record * 7 + picture * 23) % 70;
                std::fs::write(folder.path().join(&name), bitmap(side, (record * 8) as u8)).unwrap();
                name
            })
            .collect();
        let turns = serde_json::json!([{"from": "human", "value": "?"}, {"from": "gpt", "value": "x"}]);
        manifest += &serde_json::json!({"image": pictures, "conversations": turns}).to_string();
        manifest += "\n";
    }
    std::fs::write(folder.path().join("records.jsonl"), manifest).unwrap();
    let streams = format!(
        "  - name: train\n    badSamples: Fail\n    datasets: [{{name: many, uri: \"file://{}/records.jsonl\"}}]\n",
        folder.path().display()
    );
    let uri = format!("file://{}/", processor.path().display());
    let document = document(&uri, ", minPixels: 4096, maxPixels: 32768", &streams)
        .replace("maxImageBytes: 32Mi, maxSampleBytes: 64Mi", "maxImageBytes: 256Ki, maxSampleBytes: 1200Ki")
        .replace("fetch: 160Mi", "fetch: 1200Ki");
    let worker = Arc::new(served(pipeline(&document), &settings()).await);
    let ask = |start: u64, need: &'static str| {
        let worker = Arc::clone(&worker);
        tokio::spawn(async move {
            let request = format!("GET /v1/streams/train/batches/{start}-{}", start + 8);
            worker.request(&request, &[("feedmill-need", need)], b"").await.status
        })
    };
    for round in 0..12 {
        // A range that is needed late holds what it can, then one comes that is needed now.
        let late = ask(round * 16, "60000");
        while worker.app.machinery.fetch.stats().waiting == 0 && !late.is_finished() {
            tokio::task::yield_now().await;
        }
        let soon = ask(round * 16 + 8, "0");
        assert_eq!((late.await.unwrap(), soon.await.unwrap()), (200, 200));
    }
    assert_eq!(worker.app.machinery.fetch.stats().used, 0);
}
