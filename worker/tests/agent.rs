//! An agent among real processes: a worker behind it, readers of its node beside it. This file's test program starts
//! itself as a reader.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use feedmill_client::{Batch, BatchRequest, ClientError, ExpectedPlan, Fleet, FleetSettings, LocalWire};
use feedmill_protocol::http::{batch_path, problem_kind};
use feedmill_protocol::local::{Ask, AskedBatch, LOCAL_VERSION, MAX_SAY_BYTES, Say};
use feedmill_protocol::plan::{Plan, PlanDigest};
use feedmill_protocol::position::Range;
use feedmill_protocol::report::{RankReport, WorkerStatus};

use support::{document, golden, processor_folder};

const STREAM: &str = "train";

/// Tells the program that it is a reader, and where the agent is.
const ROLE: &str = "FEEDMILL_TEST_READER";

/// A process of ours that says in its first line where it listens.
struct Process {
    child: Child,
    address: String,
}

impl Process {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_feedmill-worker"))
            .args(arguments)
            .args(["--listen", "127.0.0.1:0", "--exit-with-stdin"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let said: serde_json::Value = serde_json::from_str(&line).unwrap();
        let mut process = Self { child, address: said["listening"].as_str().unwrap().to_owned() };
        while process.get("/readyz").0 != 200 {
            assert!(process.child.try_wait().unwrap().is_none(), "the process ended");
        }
        process
    }

    /// Status, head and body.
    fn get(&self, path: &str) -> (u16, String, Vec<u8>) {
        let mut socket = TcpStream::connect(&self.address).unwrap();
        write!(socket, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).unwrap();
        let split = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
        let head = String::from_utf8_lossy(&answer[..split]).into_owned();
        (head[9..12].parse().unwrap(), head, answer.split_off(split + 4))
    }

    fn status(&self) -> WorkerStatus {
        serde_json::from_slice(&self.get("/v1/status").2).unwrap()
    }

    fn metric(&self, name: &str) -> u64 {
        let text = String::from_utf8(self.get("/metrics").2).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse::<f64>().unwrap() as u64
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        drop(self.child.wait());
    }
}

/// A worker over the goldens, and what an agent needs to be started before it.
struct Node {
    worker: Process,
    folder: tempfile::TempDir,
    _processor: tempfile::TempDir,
}

impl Node {
    fn new() -> Self {
        let (processor, folder) = (processor_folder(), tempfile::tempdir().unwrap());
        let root = golden("");
        let streams = format!(
            "  - name: train\n    datasets: [{{name: golden, uri: \"file://{0}/manifests/llava.jsonl\", imageBaseUri: \
             \"file://{0}/\"}}]\n",
            root.display()
        );
        let uri = format!("file://{}/", processor.path().display());
        let pipeline = folder.path().join("pipeline.yaml");
        std::fs::write(&pipeline, document(&uri, ", minPixels: 4096, maxPixels: 32768", &streams)).unwrap();
        let worker = Process::start(&["--pipeline", pipeline.to_str().unwrap(), "--threads", "2"]);
        Self { worker, folder, _processor: processor }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("agent.sock")
    }

    fn agent(&self, arguments: &[&str]) -> Process {
        let (upstream, socket) = (format!("http://{}", self.worker.address), self.socket());
        let own = ["agent", "--upstream", &upstream, "--socket", socket.to_str().unwrap()];
        Process::start(&[&own, arguments].concat())
    }

    fn bytes_by_http(&self, range: Range) -> Vec<u8> {
        self.worker.get(&batch_path(STREAM, range, None)).2
    }
}

fn range(start: u64, end: u64) -> Range {
    Range::new(start, end).unwrap()
}

fn request(range: Range) -> BatchRequest {
    BatchRequest {
        stream: STREAM.into(),
        range,
        stop: None,
        need: Duration::ZERO,
        rank: 0,
        plan: ExpectedPlan::any(),
        deaths: 0,
    }
}

/// A reader in this process.
fn reader(socket: &Path) -> Fleet {
    let mut settings = FleetSettings::new("test-run", Vec::new());
    settings.agent = Some(socket.to_owned());
    settings.timeouts.agent = Duration::from_secs(2);
    settings.verify_hashes = true;
    Fleet::new(settings).unwrap()
}

async fn fetched(fleet: &Fleet, range: Range) -> Batch {
    fleet.fetch(&request(range)).await.unwrap()
}

/// The ranges that readers read.
fn ranges() -> Vec<Range> {
    (0..6).map(|number| range(4 * number, 4 * number + 4)).collect()
}

/// Starts a reader as a process of its own: it reads all ranges and holds the last batch until its standard input
/// ends.
fn reader_process(socket: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "as_reader", "--nocapture", "--test-threads=1"])
        .env(ROLE, socket)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// What a reader process says of a batch: a hash of its bytes.
fn said_by(reader: &mut BufReader<&mut std::process::ChildStdout>) -> Vec<String> {
    let lines = reader.lines().map(Result::unwrap);
    let lines = lines.filter_map(|line| Some(line.split_once("batch ")?.1.to_owned()));
    lines.take(ranges().len()).collect()
}

fn fingerprint(bytes: &[u8]) -> String {
    format!("{} {:032x}", bytes.len(), twox_hash::XxHash3_128::oneshot(bytes))
}

/// Does nothing, unless this process is a reader.
#[tokio::test]
async fn as_reader() {
    let Some(socket) = std::env::var_os(ROLE) else {
        return;
    };
    let fleet = reader(Path::new(&socket));
    let mut held = Vec::new();
    for range in ranges() {
        let batch = fetched(&fleet, range).await;
        println!("\nbatch {}", fingerprint(batch.bytes()));
        held.push(batch);
    }
    // On a thread of its own, so that the connection lives on.
    let closed = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    closed.await.unwrap().unwrap();
}

#[test]
fn eight_readers_cost_one_transfer_and_read_what_http_gives() {
    let node = Node::new();
    let agent = node.agent(&[]);
    let mut readers: Vec<Child> = (0..8).map(|_| reader_process(&node.socket())).collect();
    let said: Vec<Vec<String>> = readers
        .iter_mut()
        .map(|reader| said_by(&mut BufReader::new(reader.stdout.as_mut().unwrap())))
        .collect();
    let sent = node.worker.metric("feedmill_worker_sent_bytes_total");
    let by_http: Vec<Vec<u8>> = ranges().into_iter().map(|range| node.bytes_by_http(range)).collect();
    let expected: Vec<String> = by_http.iter().map(|bytes| fingerprint(bytes)).collect();
    for reader in &said {
        assert_eq!(*reader, expected);
    }
    let once: usize = by_http.iter().map(Vec::len).sum();
    assert_eq!(sent, once as u64, "the worker sent more than one copy");
    let status = agent.status().agent.unwrap();
    assert_eq!((status.readers, status.fetched), (8, ranges().len() as u64));
    // All eight hold the same bytes; memory is taken once.
    assert_eq!(status.lent_bytes, 8 * once as u64);
    assert_eq!(agent.metric("feedmill_agent_lent_bytes_total"), 8 * once as u64);
    for mut reader in readers.drain(..) {
        drop(reader.stdin.take());
        assert!(reader.wait().unwrap().success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_is_killed_gives_everything_back() {
    let node = Node::new();
    // One place, so that the next reader needs the one of the dead.
    let agent = node.agent(&["--readers", "1"]);
    let mut killed = reader_process(&node.socket());
    said_by(&mut BufReader::new(killed.stdout.as_mut().unwrap()));
    let status = agent.status().agent.unwrap();
    assert!(status.lent_bytes > 0 && status.readers == 1, "{status:?}");
    killed.kill().unwrap();
    killed.wait().unwrap();
    while agent.status().agent.unwrap().lent_bytes > 0 {}
    let fleet = reader(&node.socket());
    assert_eq!(fetched(&fleet, range(0, 4)).await.bytes(), node.bytes_by_http(range(0, 4)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_agent_is_a_typed_error_and_the_next_one_is_found() {
    let node = Node::new();
    let agent = node.agent(&[]);
    let fleet = reader(&node.socket());
    let held = fetched(&fleet, range(0, 4)).await;
    agent.kill();
    let error = fleet.fetch(&request(range(4, 8))).await.unwrap_err();
    assert!(matches!(&error, ClientError::Agent { socket, .. } if *socket == node.socket()), "{error}");
    let error = fleet.plan(STREAM).await.unwrap_err();
    assert!(matches!(error, ClientError::Agent { .. }), "{error}");
    // What was lent outlives whoever lent it.
    assert_eq!(held.bytes(), node.bytes_by_http(range(0, 4)));
    let agent = node.agent(&[]);
    assert_eq!(fetched(&fleet, range(4, 8)).await.bytes(), node.bytes_by_http(range(4, 8)));
    assert_eq!(fleet.agent_stats().unwrap().connections, 2);
    // The lease of the first agent means nothing to the second.
    let after = fetched(&fleet, range(8, 12)).await;
    drop(held);
    while agent.status().agent.unwrap().lent_bytes != after.bytes().len() as u64 {}
    assert_eq!(after.bytes(), node.bytes_by_http(range(8, 12)));
}

#[tokio::test]
async fn an_agent_that_is_not_there_is_an_error_and_no_reason_to_ask_workers() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = reader(&folder.path().join("absent.sock"));
    let error = fleet.fetch(&request(range(0, 4))).await.unwrap_err().to_string();
    assert!(error.contains("absent.sock") && error.contains("No such file"), "{error}");
}

/// A reader by hand, which can do what the client never does.
struct Raw {
    wire: LocalWire,
    next: u64,
}

impl Raw {
    async fn new(socket: &Path) -> (Self, Say) {
        let stream = tokio::net::UnixStream::connect(socket).await.unwrap();
        let mut raw = Self { wire: LocalWire::new(stream, MAX_SAY_BYTES, true), next: 0 };
        raw.wire.put(&Ask::Hello { version: LOCAL_VERSION, run: "raw".into() }, None);
        let said = raw.said().await.unwrap();
        (raw, said)
    }

    /// The next message, or None at the end.
    async fn said(&mut self) -> Option<Say> {
        loop {
            if let Some(say) = self.wire.message().unwrap() {
                return Some(say);
            }
            self.wire.turn().await.ok()?;
        }
    }

    fn ask(&mut self, range: Range) -> u64 {
        self.next += 1;
        let batch = AskedBatch {
            stream: STREAM.into(),
            range: range.to_string(),
            stop: None,
            need_ms: 0,
            rank: 0,
            plan: None,
            deaths: 0,
        };
        self.wire.put(&Ask::Batch { id: self.next, batch }, None);
        self.next
    }

    /// The answer to one ask, slabs apart.
    async fn answer(&mut self) -> Say {
        loop {
            match self.said().await.unwrap() {
                Say::Slab { .. } => {}
                other => return other,
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_never_releases_is_refused_and_starves_nobody() {
    let node = Node::new();
    // The smallest agent there is: a share of 1 MiB.
    let small = ["--memory", "128Mi", "--readers", "32", "--max-batch", "1Mi", "--release-seconds", "0"];
    let agent = node.agent(&small);
    let (mut hoarder, welcome) = Raw::new(&node.socket()).await;
    let Say::Welcome { share, .. } = welcome else { panic!("{welcome:?}") };
    assert_eq!(share, 1 << 20);
    let (mut leases, mut start) = (Vec::new(), 0);
    let problem = loop {
        hoarder.ask(range(start, start + 4));
        match hoarder.answer().await {
            Say::Batch { place, .. } => leases.push(place),
            Say::Refusal { problem, .. } => break problem,
            other => panic!("{other:?}"),
        }
        start += 4;
        assert!(start < 4000, "it may hold everything");
    };
    assert_eq!((problem.kind.as_str(), problem.status), (problem_kind::FULL, 503));
    assert!(problem.detail.contains(&format!("in {} batches", leases.len())), "{problem:?}");
    let held: u64 = leases.iter().map(|place| place.bytes).sum();
    assert!(held > share && held <= share + (1 << 20), "{held}");
    // Others go on, far beyond what the memory holds at once, in memory that stays as it was.
    let fleet = reader(&node.socket());
    for number in 0..40 {
        let range = range(4000 + 8 * number, 4000 + 8 * number + 8);
        assert_eq!(fetched(&fleet, range).await.bytes(), node.bytes_by_http(range));
    }
    // What is released makes room.
    hoarder.wire.put(&Ask::Release { lease: leases[0].lease }, None);
    hoarder.wire.put(&Ask::Release { lease: leases[0].lease }, None);
    hoarder.ask(range(0, 1));
    assert!(matches!(hoarder.answer().await, Say::Batch { .. }));
    assert!(agent.metric("feedmill_agent_refused_shares_total") > 0);
    let shared = std::fs::read_to_string(format!("/proc/{}/status", agent.child.id())).unwrap();
    let shared = shared.lines().find_map(|line| line.strip_prefix("RssShmem:")).unwrap();
    let kilobytes: u64 = shared.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kilobytes <= 128 << 10, "{kilobytes} kB of shared memory are resident");
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_kept_beyond_the_share_are_copied_out_and_never_stop_the_next() {
    let node = Node::new();
    let agent = node.agent(&["--memory", "128Mi", "--readers", "32", "--max-batch", "1Mi"]);
    let fleet = reader(&node.socket());
    let mut kept = Vec::new();
    for number in 0..24 {
        kept.push(fetched(&fleet, range(8 * number, 8 * number + 8)).await);
    }
    let bytes: u64 = kept.iter().map(|batch| batch.bytes().len() as u64).sum();
    let stats = fleet.agent_stats().unwrap();
    assert!(bytes > stats.share_bytes, "the test needs more data: {bytes}");
    assert!(
        stats.copied_out > 0 && stats.held_bytes > 0 && stats.held_bytes <= stats.share_bytes,
        "{stats:?}"
    );
    for batch in &kept {
        assert_eq!(batch.bytes(), node.bytes_by_http(batch.range()));
    }
    // A clone is the same loan: it goes back with the last.
    let clones = kept.clone();
    drop(kept);
    assert_eq!(fleet.agent_stats().unwrap().held_bytes, stats.held_bytes);
    drop(clones);
    assert_eq!(fleet.agent_stats().unwrap().held_bytes, 0);
    while agent.status().agent.unwrap().lent_bytes > 0 {}
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_the_workers_own() {
    let node = Node::new();
    let _agent = node.agent(&[]);
    let fleet = reader(&node.socket());
    let mut other = request(range(0, 4));
    other.stream = "absent".into();
    let error = fleet.fetch(&other).await.unwrap_err();
    assert_eq!(error.problem().unwrap().kind, problem_kind::NOT_FOUND, "{error}");
    let error = fleet.fetch(&request(range(0, 100_000))).await.unwrap_err();
    assert_eq!(error.problem().unwrap().kind, problem_kind::TOO_LARGE, "{error}");
    assert!(error.to_string().contains(&node.worker.address), "{error}");
    let theirs: PlanDigest = node.worker.status().streams[STREAM].plan.parse().unwrap();
    other = BatchRequest { plan: ExpectedPlan::from(Some(Plan::new().digest())), ..request(range(0, 4)) };
    let error = fleet.fetch(&other).await.unwrap_err();
    let ClientError::OtherPlan { workers, .. } = &error else { panic!("{error}") };
    assert_eq!(workers[0].plan, Some(theirs));
    assert!(matches!(fleet.plan("absent").await.unwrap_err(), ClientError::UnknownStream { .. }));
    let plan = fleet.plan(STREAM).await.unwrap();
    assert_eq!((plan.plan, plan.datasets.as_slice()), (theirs, &["golden".to_owned()][..]));
    assert!(plan.model.is_some() && plan.facts.digest() == theirs);
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_reach_the_worker() {
    let node = Node::new();
    let agent = node.agent(&[]);
    let report = RankReport {
        run: "test-run".into(),
        stream: STREAM.into(),
        plan: "sha256:0".into(),
        rank: 3,
        size: 8,
        process: String::new(),
        ready: 1,
        target: 2,
        waiting_ms: 3,
        wait_ms: 4,
        step_ms: 5,
        waited_ms: 0,
        computed_ms: 0,
        trained: 0,
        consumed: 6,
        sequence: 7,
        farewell: false,
        quickest_us: 0,
        quickest_samples: 0,
        begin: None,
    };
    reader(&node.socket()).report(&report).await.unwrap();
    for process in [&node.worker, &agent] {
        let reports = process.status().reports;
        assert_eq!(reports.iter().map(|kept| &kept.report).collect::<Vec<_>>(), [&report]);
    }
    let nonsense = RankReport { rank: 9, ..report };
    assert!(reader(&node.socket()).report(&nonsense).await.is_err());
}

#[test]
fn over_http_it_answers_as_a_worker_and_says_that_it_is_none() {
    let node = Node::new();
    let agent = node.agent(&[]);
    let etag = |head: &str| head.lines().find(|line| line.starts_with("etag")).map(ToOwned::to_owned);
    for path in ["0-4", "5-9?stop=7", "5-9?stop=9", "5-9"] {
        let path = format!("/v1/streams/{STREAM}/batches/{path}");
        let ((_, here, bytes), (_, there, expected)) = (agent.get(&path), node.worker.get(&path));
        assert!(bytes == expected && !bytes.is_empty(), "{path}: {here}");
        assert_eq!(etag(&here), etag(&there), "{path}");
    }
    // An end behind a range changes nothing in it: three different batches.
    assert_eq!(agent.metric("feedmill_agent_fetched_batches_total"), 3);
    let json = |process: &Process, path: &str| -> serde_json::Value {
        serde_json::from_slice(&process.get(path).2).unwrap()
    };
    let (here, there) = (json(&agent, "/v1/plan"), json(&node.worker, "/v1/plan"));
    assert_eq!(here["streams"], there["streams"]);
    assert!(here["agent"].is_object() && there["agent"].is_null());
    let status = agent.status();
    assert_eq!(status.streams, node.worker.status().streams);
    assert_eq!((status.cores, status.agent.unwrap().upstream_ready), (2, 1));
    for (path, code, part) in [
        ("/v1/bad", 404, "ask a worker: http://"),
        ("/v1/streams/train/batches/0-4?layout=hf", 400, "ask a worker: http://"),
        ("/v1/streams/train/batches/4-4", 400, "empty"),
        ("/v1/streams/train/batches/0-100000", 413, "too large"),
    ] {
        let (status, _, body) = agent.get(path);
        let body = String::from_utf8(body).unwrap();
        assert!(status == code && body.contains(part), "{path}: {status} {body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_on_the_socket_are_turned_away() {
    let node = Node::new();
    let _agent = node.agent(&["--readers", "1"]);
    let connect = || async { tokio::net::UnixStream::connect(node.socket()).await.unwrap() };
    let messages: [(&str, &str); 3] = [
        ("{\"ask\":\"hello\",\"version\":99,\"run\":\"x\"}", "version"),
        ("{\"ask\":\"plan\",\"id\":1}", "hello"),
        ("{\"ask\":\"dance\"}", ""),
    ];
    for (text, part) in messages {
        let mut raw = Raw { wire: LocalWire::new(connect().await, MAX_SAY_BYTES, true), next: 0 };
        raw.wire.put(&serde_json::from_str::<serde_json::Value>(text).unwrap(), None);
        match raw.said().await {
            Some(Say::Refusal { id: 0, problem, .. }) => {
                assert!(problem.detail.contains(part), "{problem:?}")
            }
            other => assert!(other.is_none() && part.is_empty(), "{text}: {other:?}"),
        }
        assert!(raw.said().await.is_none());
    }
    let (mut first, welcome) = Raw::new(&node.socket()).await;
    assert!(matches!(welcome, Say::Welcome { .. }));
    let (_, refused) = Raw::new(&node.socket()).await;
    assert!(
        matches!(&refused, Say::Refusal { problem, .. } if problem.detail.contains("--readers")),
        "{refused:?}"
    );
    // Ids are used once; a cancelled ask is forgotten.
    let id = first.ask(range(0, 4));
    first.wire.put(&Ask::Cancel { id }, None);
    first.wire.put(&Ask::Cancel { id: 999 }, None);
    first.wire.put(&Ask::Release { lease: 999 }, None);
    first.ask(range(0, 4));
    assert!(matches!(first.answer().await, Say::Batch { .. }));
    first.ask(range(4, 8));
    first.next -= 1;
    first.ask(range(4, 8));
    while first.said().await.is_some() {}
}

#[test]
fn a_second_agent_at_the_same_socket_is_refused_and_a_dead_ones_is_taken_over() {
    let node = Node::new();
    let first = node.agent(&[]);
    let (upstream, socket) = (format!("http://{}", node.worker.address), node.socket());
    let second = Command::new(env!("CARGO_BIN_EXE_feedmill-worker"))
        .args(["agent", "--upstream", &upstream, "--listen", "127.0.0.1:0", "--socket"])
        .arg(&socket)
        .output()
        .unwrap();
    assert!(!second.status.success());
    assert!(String::from_utf8_lossy(&second.stderr).contains("already"));
    first.kill();
    assert!(socket.exists());
    let third = node.agent(&["--socket-mode", "666"]);
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o666);
    drop(third);
    assert!(!socket.exists(), "an agent that ends in order removes its socket");
}

#[test]
fn the_command_line_says_what_is_missing() {
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_feedmill-worker")).args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (arguments, part) in [
        (&[][..], "--pipeline"),
        (&["--listen", "127.0.0.1:0"], "--pipeline"),
        (&["agent"], "--upstream"),
        (&["agent", "--upstream", "http://a", "--memory", "1Gi"], "--memory must be at least"),
    ] {
        let (code, text) = run(arguments);
        assert!(code != Some(0) && text.contains(part), "{arguments:?}: {text}");
    }
}
