//! The worker as a process: what it says when it cannot start, how it ends.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use support::{document, golden, processor_folder};

fn worker(pipeline: &str, arguments: &[&str]) -> (Child, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pipeline.yaml");
    std::fs::write(&file, pipeline).unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_feedmill-worker"))
        .arg("--pipeline")
        .arg(&file)
        .args(["--listen", "127.0.0.1:0", "--threads", "1"])
        .args(arguments)
        .env("RUST_LOG", "info")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    (child, folder)
}

fn good() -> (String, tempfile::TempDir) {
    let processor = processor_folder();
    let root = golden("");
    let streams = format!(
        "  - name: train\n    datasets: [{{name: golden, uri: \"file://{0}/manifests/llava.jsonl\", imageBaseUri: \
         \"file://{0}/\"}}]\n",
        root.display()
    );
    let uri = format!("file://{}/", processor.path().display());
    (document(&uri, ", minPixels: 4096, maxPixels: 32768", &streams), processor)
}

/// What a worker that cannot start says.
fn complaint(pipeline: &str) -> String {
    let (mut child, _folder) = worker(pipeline, &[]);
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(!child.wait().unwrap().success(), "{text}");
    text
}

/// Starts a worker and gives its address once it is ready.
fn ready(pipeline: &str, arguments: &[&str]) -> (Child, String, tempfile::TempDir) {
    let (mut child, folder) = worker(pipeline, arguments);
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let said: serde_json::Value = serde_json::from_str(&line).unwrap();
    let address = said["listening"].as_str().unwrap().to_owned();
    while !get(&address, "/readyz").starts_with("HTTP/1.1 200") {
        assert!(child.try_wait().unwrap().is_none(), "the worker ended");
    }
    (child, address, folder)
}

fn get(address: &str, path: &str) -> String {
    let mut socket = TcpStream::connect(address).unwrap();
    write!(socket, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn a_worker_with_another_plan_than_its_fleet_says_so_and_serves_once_the_fleet_has_its_plan() {
    let (good, _processor) = good();
    let plans = tempfile::tempdir().unwrap();
    std::fs::write(plans.path().join("train"), "sha256:00").unwrap();
    let (mut child, _folder) = worker(&good, &["--plan-dir", plans.path().to_str().unwrap()]);
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let said: serde_json::Value = serde_json::from_str(&line).unwrap();
    let address = said["listening"].as_str().unwrap().to_owned();
    let unready = loop {
        let answer = get(&address, "/readyz");
        assert!(child.try_wait().unwrap().is_none(), "the worker ended");
        if answer.contains("the fleet serves sha256:00") {
            break answer;
        }
    };
    assert!(unready.starts_with("HTTP/1.1 503"), "{unready}");
    assert!(get(&address, "/v1/streams/train/batches/0-1").starts_with("HTTP/1.1 503"));
    // What it computed is told to whoever looks after the fleet.
    let status = get(&address, "/v1/status");
    let body = status.split("\r\n\r\n").nth(1).unwrap();
    let status: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(status["state"], "starting");
    assert!(status["doing"].as_str().unwrap().contains("stream train"), "{status}");
    std::fs::write(plans.path().join("train"), status["streams"]["train"]["plan"].as_str().unwrap()).unwrap();
    while !get(&address, "/readyz").starts_with("HTTP/1.1 200") {
        assert!(child.try_wait().unwrap().is_none(), "the worker ended");
    }
    // One that serves already sees a plan that is agreed on later.
    std::fs::write(plans.path().join("train"), "sha256:00").unwrap();
    while !get(&address, "/readyz").contains("the fleet serves sha256:00") {
        assert!(child.try_wait().unwrap().is_none(), "the worker ended");
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_worker_that_served_before_its_fleet_agreed_on_another_plan_serves_no_more() {
    let (good, _processor) = good();
    let plans = tempfile::tempdir().unwrap();
    let (mut child, address, _folder) = ready(&good, &["--plan-dir", plans.path().to_str().unwrap()]);
    std::fs::write(plans.path().join("train"), "sha256:00").unwrap();
    let unready = loop {
        let answer = get(&address, "/readyz");
        assert!(child.try_wait().unwrap().is_none(), "the worker ended");
        if answer.contains("the fleet serves sha256:00") {
            break answer;
        }
    };
    assert!(unready.starts_with("HTTP/1.1 503"), "{unready}");
    assert!(get(&address, "/v1/streams/train/batches/0-1").starts_with("HTTP/1.1 503"));
    // The fleet was suspended, and agrees on nothing.
    std::fs::remove_file(plans.path().join("train")).unwrap();
    while !get(&address, "/readyz").starts_with("HTTP/1.1 200") {
        assert!(child.try_wait().unwrap().is_none(), "the worker ended");
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn what_cannot_start_says_which_setting() {
    let (good, _processor) = good();
    let cases = [
        ("decode: 1Gi", "decode: 64Mi", "limits.maxImagePixels"),
        ("/manifests/llava.jsonl", "/images/bad_zero.jpg", "has no records"),
        ("/manifests/llava.jsonl", "/smart_resize.csv", "whether its lines are json"),
        // It was "none of the first 1 records", however many rows there are.
        (
            "/manifests/llava.jsonl",
            "/parquet/types.parquet",
            "no shape of records has the columns of its Parquet files, which are ",
        ),
        ("fetch: 160Mi", "fetch: 1Mi", "spec.cache.fetch"),
        ("llava.jsonl", "absent.jsonl", "does not exist"),
        ("maxPixels: 32768", "maxPixels: 100", "spec.processor.minPixels"),
        ("/manifests/", "/images/", "does not exist"),
        ("name: golden", "name: golden, recordFormat: Conversation", "Conversation"),
    ];
    for (from, to, part) in cases {
        let changed = good.replace(from, to);
        assert_ne!(changed, good, "{from}");
        let text = complaint(&changed);
        assert!(text.contains(part), "{from} -> {to}: {text}");
    }
}

#[test]
fn memory_that_cannot_be_there_is_refused_or_granted_by_the_limit() {
    // A budget beyond any machine: where a memory limit is set it must be named, and never a crash.
    let (good, _processor) = good();
    let (mut child, _folder) =
        worker(&good.replace("sharedMemory: 128Mi", "sharedMemory: 4Ti"), &["--exit-with-stdin"]);
    drop(child.stdin.take());
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    let status = child.wait().unwrap();
    assert!(
        status.success() || text.contains("cache.sharedMemory") || text.contains("shared memory"),
        "{text}"
    );
}

#[test]
fn sigterm_drains_and_ends_well() {
    let (good, _processor) = good();
    let (mut child, address, _folder) = ready(&good, &[]);
    assert!(get(&address, "/v1/streams/train/batches/0-4").starts_with("HTTP/1.1 200"));
    // An idle connection must not hold the end up.
    let _idle = TcpStream::connect(&address).unwrap();
    let killed = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    assert!(child.wait().unwrap().success());
    assert!(TcpStream::connect(&address).is_err());
}

#[test]
fn a_worker_does_not_outlive_its_parents_pipe() {
    let (good, _processor) = good();
    let (mut child, _address, _folder) = ready(&good, &["--exit-with-stdin"]);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

/// The subscriber used to panic in a sample's task when standard error was gone, and the range waited for ever.
#[test]
fn a_log_that_nobody_reads_any_more_costs_no_sample() {
    let (good, _processor) = good();
    let bad = good
        .replace("llava.jsonl", "bad.jsonl")
        .replace("name: golden,", "name: golden, recordFormat: Conversations,");
    let (mut child, address, _folder) = ready(&bad, &["--exit-with-stdin"]);
    drop(child.stderr.take());
    for position in 0..8 {
        let answer = get(&address, &format!("/v1/streams/train/batches/{position}-{}", position + 1));
        assert!(answer.starts_with("HTTP/1.1 200"), "{position}: {answer}");
    }
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}
