//! A record that kills the process that makes it, among real worker processes.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use feedmill_client::{
    BatchRequest, ClientError, Endpoint, ExpectedPlan, Fleet, FleetSettings, Puller, PullerSettings,
};
use feedmill_protocol::position::Range;
use feedmill_protocol::ranks::RankLayout;

fn golden(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(path).canonicalize().unwrap()
}

/// Data with one lethal picture: records of one picture each.
struct Data {
    folder: tempfile::TempDir,
}

/// Line of the lethal record, from 1.
const LETHAL_LINE: usize = 6;
const RECORDS: u64 = 16;

impl Data {
    fn new(order: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let processor = folder.path().join("processor");
        std::fs::create_dir(&processor).unwrap();
        for name in ["chat_template.jinja", "preprocessor_config.json", "tokenizer_config.json"] {
            std::fs::copy(golden("tokenizer").join(name), processor.join(name)).unwrap();
        }
        let packed = std::fs::File::open(golden("tokenizer/tokenizer.json.gz")).unwrap();
        let mut unpacked = std::fs::File::create(processor.join("tokenizer.json")).unwrap();
        std::io::copy(&mut flate2::read::GzDecoder::new(packed), &mut unpacked).unwrap();

        let picture = std::fs::read(golden("images/jpeg_gray.jpg")).unwrap();
        let mut records = String::new();
        for number in 0..RECORDS {
            let name = format!("{number}.jpg");
            let mut bytes = picture.clone();
            if number as usize + 1 == LETHAL_LINE {
                bytes.extend_from_slice(order.as_bytes());
            }
            std::fs::write(folder.path().join(&name), bytes).unwrap();
            let record = serde_json::json!({
                "id": number.to_string(),
                "image": name,
                "conversations": [
                    {"from": "human", "value": "<image>\nWhat is this?"},
                    {"from": "gpt", "value": format!("Picture {number}.")},
                ],
            });
            records += &format!("{record}\n");
        }
        std::fs::write(folder.path().join("records.jsonl"), records).unwrap();
        Self { folder }
    }

    /// The pipeline's file, with these lines excluded.
    fn pipeline(&self, exclude: &[usize]) -> PathBuf {
        let root = self.folder.path().display();
        let text = format!(
            "apiVersion: feedmill.dev/v1alpha1\nkind: DataPipeline\nmetadata: {{name: test}}\nspec:\n  \
             processor: {{uri: \"file://{root}/processor/\", minPixels: 4096, maxPixels: 32768}}\n  \
             limits: {{maxImagePixels: 30000000, maxImageBytes: 32Mi, maxSampleBytes: 64Mi}}\n  \
             cache: {{sharedMemory: 128Mi, fetch: 160Mi, decode: 1Gi}}\n  streams:\n  - name: train\n    \
             shuffle: false\n    datasets: [{{name: pictures, uri: \"file://{root}/records.jsonl\", \
             imageBaseUri: \"file://{root}/\", exclude: {exclude:?}}}]\n"
        );
        let path = self.folder.path().join(format!("pipeline-{}.yaml", exclude.len()));
        std::fs::write(&path, text).unwrap();
        path
    }
}

/// A worker process; ends with the test.
struct Worker {
    child: Child,
    address: SocketAddr,
}

impl Worker {
    fn start(program: &str, pipeline: &Path) -> Self {
        let mut child = Command::new(program)
            .arg("--pipeline")
            .arg(pipeline)
            .args(["--listen", "127.0.0.1:0", "--threads", "1", "--exit-with-stdin"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let said: serde_json::Value = serde_json::from_str(&line).unwrap();
        let mut worker = Self { child, address: said["listening"].as_str().unwrap().parse().unwrap() };
        // One question after another: each takes as long as its answer, so this is no waiting by the clock.
        while !worker.get("/readyz", 0).starts_with("HTTP/1.1 200") {
            assert!(worker.lives(), "the worker ended");
        }
        worker
    }

    fn lethal(pipeline: &Path) -> Self {
        Self::start(env!("CARGO_BIN_EXE_lethal-worker"), pipeline)
    }

    fn lives(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// An answer with its head, for people.
    fn get(&self, path: &str, deaths: u32) -> String {
        String::from_utf8_lossy(&self.bytes(path, deaths)).into_owned()
    }

    /// An answer with its head, as far as it comes.
    fn bytes(&self, path: &str, deaths: u32) -> Vec<u8> {
        let mut socket = TcpStream::connect(self.address).unwrap();
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: x\r\nfeedmill-deaths: {deaths}\r\nconnection: close\r\n\r\n"
        );
        socket.write_all(head.as_bytes()).unwrap();
        let mut answer = Vec::new();
        // A worker that dies resets the connection.
        let _ = socket.read_to_end(&mut answer);
        answer
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn fleet(workers: &[Worker]) -> Fleet {
    let endpoints: Vec<Endpoint> = workers.iter().map(|worker| Endpoint::from(worker.address)).collect();
    Fleet::new(FleetSettings::new("run", endpoints)).unwrap()
}

fn request(range: Range) -> BatchRequest {
    BatchRequest {
        stream: "train".into(),
        range,
        stop: None,
        need: std::time::Duration::ZERO,
        rank: 0,
        plan: ExpectedPlan::any(),
        deaths: 0,
    }
}

fn puller(fleet: &Fleet) -> Puller {
    let settings = PullerSettings {
        stream: "train".into(),
        layout: RankLayout::new(2, 1, 2).unwrap(),
        rank: 0,
        consumed: 0,
        stop: Some(RECORDS),
        window: 1,
        plan: None,
    };
    Puller::new(fleet.clone(), settings).unwrap()
}

/// The whole story: two of four workers die, the third names the record and lives, the rest of the stream comes,
/// and with the line excluded all of it does.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_kills_is_named_after_two_deaths_and_walks_no_further() {
    let data = Data::new("die now");
    let pipeline = data.pipeline(&[]);
    let mut workers: Vec<Worker> = (0..4).map(|_| Worker::lethal(&pipeline)).collect();
    let clients = fleet(&workers);
    let mut puller = puller(&clients);
    let lethal_range = Range::new(4, 6).unwrap();
    let mut batches = 0;
    let error = loop {
        match puller.next().await {
            Ok(Some(_)) => batches += 1,
            Ok(None) => panic!("the lethal record was made"),
            Err(error) => break error,
        }
    };
    assert_eq!(batches, 2, "what stands before it came");
    let text = error.to_string();
    let ClientError::LethalSample { range, problem, .. } = error else { panic!("{text}") };
    assert_eq!(range, lethal_range);
    assert_eq!((problem.status, problem.dataset.as_deref(), problem.line), (500, Some("pictures"), Some(6)));
    assert!(problem.key.as_ref().is_some_and(|key| key.ends_with("/5.jpg")), "{:?}", problem.key);
    for part in ["pictures", "line 6", "/5.jpg", "SIGABRT", "exclude", "accept_plan"] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    let alive =
        |workers: &mut Vec<Worker>| workers.iter_mut().filter_map(|w| w.lives().then_some(())).count();
    assert_eq!(alive(&mut workers), 2, "two died, the third had it made by a child");

    // Asked again, nobody dies any more; every other range comes.
    let again = puller.next().await.unwrap_err();
    assert!(matches!(again, ClientError::LethalSample { .. }), "{again}");
    for begin in (0..RECORDS).step_by(2).filter(|begin| *begin != lethal_range.start()) {
        let range = Range::new(begin, begin + 2).unwrap();
        assert_eq!(clients.fetch(&request(range)).await.unwrap().range(), range);
    }
    assert_eq!(alive(&mut workers), 2);
    drop(workers);

    let pipeline = data.pipeline(&[LETHAL_LINE]);
    let mut workers: Vec<Worker> = (0..2).map(|_| Worker::lethal(&pipeline)).collect();
    let clients = fleet(&workers);
    for begin in (0..RECORDS).step_by(2) {
        let batch = clients.fetch(&request(Range::new(begin, begin + 2).unwrap())).await.unwrap();
        assert_eq!(batch.view().unwrap().samples().len(), 2);
    }
    assert_eq!(alive(&mut workers), 2);
}

/// What is made in a child has the bytes that the worker itself makes.
#[test]
fn a_suspected_range_has_the_same_bytes_and_bad_pictures_the_same_fault() {
    let data = Data::new("");
    // Cut in the middle: bad, not lethal.
    let path = data.folder.path().join("3.jpg");
    let picture = std::fs::read(&path).unwrap();
    std::fs::write(&path, &picture[..picture.len() / 2]).unwrap();
    let pipeline = data.pipeline(&[]);
    let answers: Vec<(Vec<u8>, String)> = [0, 2]
        .into_iter()
        .map(|deaths| {
            let worker = Worker::lethal(&pipeline);
            let batch = worker.bytes("/v1/streams/train/batches/0-16", deaths);
            (batch, worker.get("/v1/bad", 0).split_once("\r\n\r\n").unwrap().1.to_owned())
        })
        .collect();
    assert!(answers[0].0.starts_with(b"HTTP/1.1 200"));
    let body = |answer: &[u8]| {
        let head = answer.windows(4).position(|end| end == b"\r\n\r\n").unwrap();
        answer[head + 4..].to_vec()
    };
    assert!(body(&answers[0].0).len() > 16 * 4096, "pictures are in it");
    assert!(body(&answers[0].0) == body(&answers[1].0), "other bytes");
    assert_eq!(answers[0].1, answers[1].1);
    assert!(answers[0].1.contains("image_corrupt"), "{}", answers[0].1);
}

/// A picture that takes more memory than it announced meets the child's limit.
#[test]
fn a_picture_that_takes_all_memory_is_stopped_by_the_limit_of_its_child() {
    let data = Data::new("take all memory");
    let mut worker = Worker::lethal(&data.pipeline(&[]));
    let answer = worker.get("/v1/streams/train/batches/4-6", 2);
    assert!(answer.starts_with("HTTP/1.1 500") && answer.contains("bytes of memory"), "{answer}");
    assert!(answer.contains("\"line\":6") && answer.contains("feedmill:lethal-sample"), "{answer}");
    assert!(worker.get("/v1/streams/train/batches/6-8", 0).starts_with("HTTP/1.1 200"));
    // Known by now, also to who has heard of no death.
    let answer = worker.get("/v1/streams/train/batches/5-6", 0);
    assert!(answer.contains("feedmill:lethal-sample"), "{answer}");
    assert!(worker.lives());
}

/// The most memory that a process has had, in bytes.
fn peak(process: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// Tables of Huffman codes are not announced by a lossless WebP's header; this file has 1.1 GB of them in 2.3 MB.
#[test]
fn a_lossless_webp_full_of_tables_takes_no_memory_of_the_worker() {
    let data = Data::new("");
    let path = data.folder.path().join("5.jpg");
    std::fs::write(path, feedmill_fuzz::hostile::webp_of_tables(16_384)).unwrap();
    let mut worker = Worker::lethal(&data.pipeline(&[]));
    assert!(worker.get("/v1/streams/train/batches/0-4", 0).starts_with("HTTP/1.1 200"));
    let before = peak(&worker.child);
    let answer = worker.get("/v1/streams/train/batches/4-6", 0);
    assert!(answer.starts_with("HTTP/1.1 500") && answer.contains("bytes of memory"), "{answer}");
    assert!(answer.contains("\"line\":6") && answer.contains("feedmill:lethal-sample"), "{answer}");
    let grown = peak(&worker.child) - before;
    assert!(grown < 64 << 20, "the worker took {grown} bytes");
    assert!(worker.lives());
}
