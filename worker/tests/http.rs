//! The HTTP interface of a served worker: what it answers, to sense and to nonsense.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use feedmill_protocol::bad::{BadClass, RowStatus};
use feedmill_protocol::frame::BatchView;
use support::{Served, document, golden, pipeline, processor_folder, served, settings, starting};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const SMALL: &str = ", minPixels: 4096, maxPixels: 32768";

fn stream(policy: &str, manifest: &str) -> String {
    let root = golden("");
    let root = root.display();
    format!(
        "  - name: {name}\n    shuffle: false\n    badSamples: {policy}\n    datasets: [{{name: golden, uri: \
         \"file://{root}/manifests/{manifest}\", imageBaseUri: \"file://{root}/\", recordFormat: Conversations}}]\n",
        name = policy.to_lowercase()
    )
}

/// A worker whose three streams read a manifest of good and faulty lines in turn, by each policy.
async fn worker() -> (Served, tempfile::TempDir) {
    let processor = processor_folder();
    let uri = format!("file://{}/", processor.path().display());
    let streams: String =
        ["Substitute", "ZeroLoss", "Fail"].map(|policy| stream(policy, "bad.jsonl")).concat();
    let document = document(&uri, SMALL, &streams) + "  serving: {maxRange: 8}\n";
    (served(pipeline(&document), &settings()).await, processor)
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_gets_a_problem_that_says_what_to_do() {
    let (worker, _files) = worker().await;
    let cases = [
        ("GET /v1/streams/nope/batches/0-4", 404, "no such stream"),
        ("GET /v1/streams/zeroloss/batches/4-0", 400, "empty"),
        ("GET /v1/streams/zeroloss/batches/0-99999999999999999999", 400, "START-END"),
        ("GET /v1/streams/zeroloss/batches/0-9", 413, "serving.maxRange"),
        ("GET /v1/streams/zeroloss/batches/0-4?layout=csv", 400, "compact or hf"),
        ("GET /v1/streams/zeroloss/batches/0-4?tensors=nope", 400, "sample_hash"),
        ("GET /v1/streams/zeroloss/batches/%00-4", 400, "START-END"),
        ("GET /v1/streams/zeroloss/samples/x", 400, "decimal"),
        ("GET /v1/streams/zeroloss/samples/9007199254740992", 404, "2^53"),
        ("GET /nope", 404, "/v1/plan"),
        ("POST /v1/streams/zeroloss/batches/0-4", 405, "method"),
        ("DELETE /v1/reports", 405, "method"),
    ];
    for (request, status, part) in cases {
        let answer = worker.request(request, &[], b"").await;
        assert_eq!(answer.status, status, "{request}: {answer:?}");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{request}");
        let problem = answer.json();
        assert_eq!(problem["status"], status);
        assert!(problem.to_string().contains(part), "{request}: {problem}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_plan_is_refused_and_the_right_one_served() {
    let (worker, _files) = worker().await;
    let plan = worker.get("/v1/plan").await.json();
    let digest = plan["streams"]["zeroloss"]["plan"].as_str().unwrap().to_owned();
    let other = plan["streams"]["substitute"]["plan"].as_str().unwrap().to_owned();
    assert_ne!(digest, other);
    let get = "GET /v1/streams/zeroloss/batches/0-2";
    let answer = worker.request(get, &[("feedmill-plan", &other)], b"").await;
    assert_eq!((answer.status, answer.header("feedmill-plan")), (409, Some(digest.as_str())));
    assert!(answer.json()["detail"].as_str().unwrap().contains(&digest));
    let answer = worker.request(get, &[("feedmill-plan", &digest)], b"").await;
    assert_eq!((answer.status, answer.header("feedmill-plan")), (200, Some(digest.as_str())));
    assert_eq!(BatchView::parse(&answer.body).unwrap().plan(), digest);
}

#[tokio::test(flavor = "multi_thread")]
async fn tags_are_strong_and_save_the_body() {
    let (worker, _files) = worker().await;
    let get = "GET /v1/streams/substitute/batches/0-4";
    let first = worker.request(get, &[], b"").await;
    let tag = first.header("etag").unwrap().to_owned();
    let second = worker.request(get, &[("if-none-match", &tag)], b"").await;
    assert_eq!((second.status, second.body.len()), (304, 0));
    let other = worker.request(&format!("{get}?stop=3"), &[("if-none-match", &tag)], b"").await;
    assert_eq!(other.status, 200);
    assert_ne!(other.header("etag").unwrap(), tag);
    let again = worker.request(get, &[], b"").await;
    assert_eq!(again.body, first.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn positions_from_the_stop_on_are_filler() {
    let (worker, _files) = worker().await;
    let answer = worker.get("/v1/streams/substitute/batches/4-8?stop=6").await;
    let batch = BatchView::parse(&answer.body).unwrap();
    let rows = batch.samples();
    assert!(rows[..2].iter().all(|row| row.status != RowStatus::Filler));
    for row in &rows[2..] {
        assert_eq!((row.status, row.sample_index, row.record_index), (RowStatus::Filler, -1, -1));
        assert_eq!((row.tokens.len(), row.loss_mask, row.grids.len()), (1, &[0u8][..], 0));
        assert_eq!(row.computed_hash(), row.hash);
    }
    let all = worker.get("/v1/streams/substitute/batches/4-8?stop=0").await;
    assert!(BatchView::parse(&all.body).unwrap().samples().iter().all(|r| r.status == RowStatus::Filler));
}

/// Good and faulty lines in turn: each policy does what it says, and says it.
#[tokio::test(flavor = "multi_thread")]
async fn each_policy_treats_bad_records_as_it_says() {
    let (worker, _files) = worker().await;
    let n = worker.get("/v1/plan").await.json()["streams"]["zeroloss"]["samples_per_epoch"].as_u64().unwrap();
    let mut bad = 0;
    for position in 0..n {
        let path = |stream: &str| format!("/v1/streams/{stream}/batches/{position}-{}", position + 1);
        let stub = worker.get(&path("zeroloss")).await;
        let stub = BatchView::parse(&stub.body).unwrap().samples()[0].clone();
        let substitute = worker.get(&path("substitute")).await;
        let substitute = BatchView::parse(&substitute.body).unwrap().samples()[0].clone();
        let fail = worker.get(&path("fail")).await;
        match stub.status {
            RowStatus::Ok => {
                assert_eq!((fail.status, substitute.status), (200, RowStatus::Ok));
                assert_eq!(substitute.hash, stub.hash);
            }
            RowStatus::ZeroLoss(class) => {
                bad += 1;
                assert_eq!((stub.record_index, stub.tokens.len()), (-1, 1));
                assert_eq!(substitute.status, RowStatus::Substituted(class));
                assert_eq!(substitute.sample_index, position as i64);
                assert_ne!(substitute.record_index, position as i64);
                assert_eq!(fail.status, 422, "{fail:?}");
                let problem = fail.json();
                assert_eq!(problem["dataset"], "golden");
                assert!(problem["line"].is_u64() && problem["remedy"].is_string(), "{problem}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(bad >= 15, "only {bad} bad records in the manifest of faults");
    let listed = worker.get("/v1/bad").await.json();
    assert!(listed["records"].as_array().unwrap().len() >= bad);
    let metrics = String::from_utf8(worker.get("/metrics").await.body).unwrap();
    assert!(metrics.contains("feedmill_worker_bad_records_total{dataset=\"golden\",class=\""), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sample_is_explained() {
    let (worker, _files) = worker().await;
    let good = worker.get("/v1/streams/substitute/samples/0").await.json();
    assert_eq!(good["status"], "ok");
    let text = good["sample"]["text"].as_array().unwrap();
    assert!(
        text.iter()
            .any(|run| run["supervised"] == true && run["text"].as_str().unwrap().contains("<|im_end|>"))
    );
    let bad = worker.get("/v1/streams/substitute/samples/1").await.json();
    assert_eq!(bad["status"], "substituted");
    let class = bad["rejected"][0]["class"].as_str().unwrap();
    assert!(BadClass::ALL.iter().any(|known| known.name() == class));
}

/// A row that is refused because none of 32 candidates can be used was shown as a row without loss.
#[tokio::test(flavor = "multi_thread")]
async fn a_position_without_any_usable_candidate_is_said_to_fail() {
    let (processor, folder) = (processor_folder(), tempfile::tempdir().unwrap());
    let line = r#"{"conversations": [{"from": "nobody", "value": "x"}]}"#;
    std::fs::write(folder.path().join("bad.jsonl"), [line; 5].join("\n")).unwrap();
    let streams = format!(
        "  - name: train\n    datasets: [{{name: bad, uri: \"file://{}/bad.jsonl\"}}]\n",
        folder.path().display()
    );
    let uri = format!("file://{}/", processor.path().display());
    let worker = served(pipeline(&document(&uri, SMALL, &streams)), &settings()).await;
    let batch = worker.get("/v1/streams/train/batches/3-4").await;
    assert_eq!(batch.status, 422);
    assert!(batch.json()["title"].as_str().unwrap().contains("32 candidates"), "{batch:?}");
    let shown = worker.get("/v1/streams/train/samples/3").await.json();
    assert_eq!((&shown["status"], shown["rejected"].as_array().unwrap().len()), (&"fails".into(), 33));
}

/// A sample that is too long under `tooLong: Fail` was shown as substituted while its batch was refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_sample_too_long_under_fail_is_shown_as_failing() {
    let (processor, folder) = (processor_folder(), tempfile::tempdir().unwrap());
    let line =
        r#"{"conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "one two three"}]}"#;
    std::fs::write(folder.path().join("long.jsonl"), line).unwrap();
    let streams = format!(
        "  - name: train\n    datasets: [{{name: long, uri: \"file://{}/long.jsonl\"}}]\n",
        folder.path().display()
    );
    let uri = format!("file://{}/", processor.path().display());
    let tight = format!("{SMALL}, maxTokens: 4, tooLong: Fail");
    let worker = served(pipeline(&document(&uri, &tight, &streams)), &settings()).await;
    let batch = worker.get("/v1/streams/train/batches/0-1").await;
    assert_eq!(batch.status, 422, "{batch:?}");
    let shown = worker.get("/v1/streams/train/samples/0").await.json();
    assert_eq!((&shown["status"], shown["rejected"].as_array().unwrap().len()), (&"fails".into(), 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_are_kept_by_sequence_and_nonsense_is_not() {
    let (worker, _files) = worker().await;
    let report = |rank: u32, sequence: u64, run: &str| {
        serde_json::json!({
            "run": run, "stream": "train", "plan": "sha256:00", "rank": rank, "size": 2, "ready": 1, "target": 4,
            "waiting_ms": 0, "wait_ms": 3, "step_ms": 100, "consumed": 8, "sequence": sequence,
        })
        .to_string()
    };
    for (body, status) in [
        (report(0, 5, "run-1"), 204),
        (report(0, 4, "run-1"), 204),
        (report(1, 1, "run-1"), 204),
        (report(2, 1, "run-1"), 400),
        (report(0, 1, "run 1\n"), 400),
        ("{}".into(), 400),
        (report(0, 1, &"x".repeat(5000)), 400),
        (r#"{"run":"r","ready":NaN}"#.into(), 400),
    ] {
        let answer = worker.request("POST /v1/reports", &[], body.as_bytes()).await;
        assert_eq!(answer.status, status, "{body}: {answer:?}");
    }
    let status = worker.get("/v1/status").await.json();
    let kept = status["reports"].as_array().unwrap();
    assert_eq!(kept.len(), 2);
    assert_eq!((&kept[0]["rank"], &kept[0]["sequence"]), (&0.into(), &5.into()));
    let status = worker.get("/v1/status?reports=no").await.json();
    assert_eq!((status["reports"].as_array().unwrap().len(), &status["state"]), (0, &"ready".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_that_do_not_begin_alike_are_told_and_farewells_heard() {
    let (worker, _files) = worker().await;
    let report = |rank: u32, consumed: u64, farewell: bool| {
        serde_json::json!({
            "run": "run-1", "stream": "train", "plan": "sha256:00", "rank": rank, "size": 2, "ready": 1, "target": 4,
            "waiting_ms": 0, "wait_ms": 0, "step_ms": 0, "consumed": consumed, "sequence": 1, "farewell": farewell,
            "begin": {"global_batch": 64, "micro_batch": 4, "consumed": consumed},
        })
        .to_string()
    };
    for (body, status) in [
        (report(0, 0, false), 204),
        (report(1, 512, false), 409),
        (report(1, 0, false), 204),
        (report(0, 0, true), 204),
    ] {
        let answer = worker.request("POST /v1/reports", &[], body.as_bytes()).await;
        assert_eq!(answer.status, status, "{body}: {answer:?}");
        if status == 409 {
            let problem = answer.json();
            assert_eq!(problem["type"], "feedmill:run-mismatch");
            let detail = problem["detail"].as_str().unwrap();
            assert!(detail.contains("from 512 samples") && detail.contains("from 0 samples"), "{detail}");
        }
    }
    let status = worker.get("/v1/status").await.json();
    let ranks: Vec<_> =
        status["reports"].as_array().unwrap().iter().map(|kept| kept["rank"].clone()).collect();
    assert_eq!(ranks, [1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_starts_or_drains_says_so() {
    let processor = processor_folder();
    let uri = format!("file://{}/", processor.path().display());
    let pipeline = pipeline(&document(&uri, SMALL, &stream("Fail", "llava.jsonl")));
    let worker = starting(pipeline, &settings()).await;
    assert_eq!(worker.get("/livez").await.status, 200);
    for path in ["/readyz", "/v1/plan", "/v1/streams/fail/batches/0-1"] {
        let answer = worker.get(path).await;
        assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{path}");
        assert_eq!(answer.json()["type"], "feedmill:not-ready");
    }
    let loaded = worker.app.machinery.load(|_, _| {}).await.unwrap();
    worker.app.ready(loaded);
    assert_eq!(worker.get("/readyz").await.status, 200);
    assert_eq!(worker.get("/v1/streams/fail/batches/0-1").await.status, 200);
    worker.app.drain();
    let answer = worker.get("/v1/streams/fail/batches/0-1").await;
    assert_eq!(answer.json()["type"], "feedmill:draining");
    worker.stop.send_replace(true);
    worker.server.await.unwrap();
}

/// A reader that takes nothing holds shared memory only until its deadline, 10 s and 1 s for each 10 MB.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_stops_reading_is_cut() {
    let processor = processor_folder();
    let uri = format!("file://{}/", processor.path().display());
    let folder = tempfile::tempdir().unwrap();
    // One picture of 6000 x 4000 pixels: 67 MB of patches would overflow every socket buffer.
    let record = r#"{"image": "images/huge_flat_6000x4000.png", "conversations": [{"from": "human", "value": "<image>?"}, {"from": "gpt", "value": "x"}]}"#;
    std::fs::write(folder.path().join("one.jsonl"), record).unwrap();
    let streams = format!(
        "  - name: train\n    datasets: [{{name: one, uri: \"file://{}/one.jsonl\", imageBaseUri: \"file://{}/\"}}]\n",
        folder.path().display(),
        golden("").display()
    );
    let document =
        document(&uri, ", maxTokens: 100000", &streams).replace("sharedMemory: 128Mi", "sharedMemory: 300Mi");
    let worker = served(pipeline(&document), &settings()).await;
    let mut stuck = TcpStream::connect(worker.address).await.unwrap();
    stuck.write_all(b"GET /v1/streams/train/batches/0-1 HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut first = [0; 4096];
    stuck.read_exact(&mut first).await.unwrap();
    assert!(worker.app.machinery.arena.stats().leased > 0);
    // Others are served meanwhile.
    assert_eq!(worker.get("/v1/streams/train/batches/0-1").await.status, 200);
    while worker.app.served.overdue.load(std::sync::atomic::Ordering::Relaxed) == 0
        || worker.app.machinery.arena.stats().leased > 0
    {
        assert_eq!(worker.get("/livez").await.status, 200);
    }
    let mut rest = Vec::new();
    let ended = stuck.read_to_end(&mut rest).await;
    assert!(ended.is_err() || rest.len() < 60_000_000, "the whole answer came");
}

/// Dropping a request takes it back.
#[tokio::test(flavor = "multi_thread")]
async fn a_forsaken_request_leaves_nothing() {
    let (worker, _files) = worker().await;
    for _ in 0..20 {
        let mut socket = TcpStream::connect(worker.address).await.unwrap();
        socket
            .write_all(b"GET /v1/streams/substitute/batches/0-8 HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .unwrap();
        drop(socket);
    }
    let engine = &worker.app.loaded.get().unwrap().engine;
    while engine.stats().ranges > 0 || worker.app.machinery.arena.stats().leased > 0 {
        assert_eq!(worker.get("/livez").await.status, 200);
    }
    assert_eq!(worker.get("/v1/streams/substitute/batches/0-8").await.status, 200);
}

/// Bytes that are no HTTP at all never stop the server.
#[tokio::test(flavor = "multi_thread")]
async fn garbage_on_the_port_costs_only_its_connection() {
    let (worker, _files) = worker().await;
    let long = vec![b'a'; 100_000];
    let garbage: [&[u8]; 6] = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        b"GET / HTTP/1.1\r\n: \r\n\r\n",
        b"GET /v1/streams/../../etc/passwd HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        b"\0\0\0\0",
        &long,
    ];
    for bytes in garbage {
        let mut socket = TcpStream::connect(worker.address).await.unwrap();
        // The server may close before everything is written.
        drop(socket.write_all(bytes).await);
        drop(socket.shutdown().await);
        let mut answer = Vec::new();
        drop(socket.read_to_end(&mut answer).await);
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{bytes:?}");
    }
    assert_eq!(worker.get("/livez").await.status, 200);
}
