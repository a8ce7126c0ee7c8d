use std::collections::BTreeMap;

use feedmill_protocol::report::{KeptReport, StreamStatus, WorkerState};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;

/// A worker that serves one stream by this plan.
pub(crate) fn worker(plan: &str) -> WorkerStatus {
    WorkerStatus {
        worker: "w".into(),
        version: "0".into(),
        state: WorkerState::Ready,
        doing: None,
        cores: 1,
        streams: BTreeMap::from([(
            "train".into(),
            StreamStatus { plan: plan.into(), samples_per_epoch: 1000 },
        )]),
        work_ahead: 0,
        ready: 0,
        batches: 0,
        samples: 0,
        bytes_out: 0,
        bytes_in: 0,
        busy_ms: 0,
        bad: BTreeMap::new(),
        problems: Vec::new(),
        agent: None,
        reports: Vec::new(),
    }
}

/// A digest that a plan may have.
pub(crate) fn digest(number: u8) -> String {
    format!("sha256:{}", format!("{number:02x}").repeat(32))
}

fn report(rank: u32, sequence: u64, wait_ms: u64, ready: u32) -> KeptReport {
    let report = json!({
        "age_ms": 100, "run": "r", "stream": "train", "plan": "p", "rank": rank, "size": 8, "ready": ready, "target": 4,
        "waiting_ms": 0, "wait_ms": wait_ms, "step_ms": 1000, "consumed": 0, "sequence": sequence,
    });
    serde_json::from_value(report).unwrap()
}

/// What a ready worker said, or that it said nothing, when it was asked at once.
pub(crate) fn seen(at: Instant, answer: Result<WorkerStatus, ScrapeError>) -> Seen {
    Seen { round: at, at, ready: true, answer: answer.map(Arc::new), misses: 0 }
}

#[test]
fn of_each_rank_the_newest_report_counts() {
    let (mut one, mut two) = (worker("p"), worker("p"));
    one.reports = vec![report(0, 5, 20, 4), report(1, 5, 10, 3)];
    // An older report of rank 0 at a former home worker.
    two.reports = vec![report(0, 4, 900, 0)];
    let all = figures(&[&one, &two], &|_| true);
    assert_eq!(all, Figures { ranks: 2, wait_permille: Some(20), queue_fill_percent: Some(75) });
}

#[test]
fn each_stream_of_a_run_counts_its_own_reports() {
    let (mut one, mut two) = (worker("p"), worker("p"));
    two.streams.insert("text".into(), StreamStatus { plan: "p".into(), samples_per_epoch: 9 });
    one.reports = vec![report(0, 9, 10, 4)];
    // Of another stream, which began later.
    let mut text = report(0, 3, 700, 1);
    text.report.stream = "text".into();
    two.reports = vec![text];
    let all = figures(&[&one, &two], &|_| true);
    assert_eq!(all, Figures { ranks: 1, wait_permille: Some(700), queue_fill_percent: Some(25) });
}

#[test]
fn stale_foreign_and_nonsense_reports_do_not_count() {
    let mut one = worker("p");
    let mut stale = report(0, 1, 900, 0);
    stale.age_ms = STALE_MS + 1;
    let mut other_plan = report(1, 1, 900, 0);
    other_plan.report.plan = "q".into();
    let mut nonsense = report(2, 1, u64::MAX, u32::MAX);
    nonsense.report.step_ms = 1;
    let mut empty = report(3, 1, 0, 0);
    (empty.report.step_ms, empty.report.target) = (0, 0);
    one.reports = vec![stale, other_plan, nonsense, empty];
    let all = figures(&[&one], &|_| true);
    assert_eq!(all, Figures { ranks: 2, wait_permille: Some(1000), queue_fill_percent: Some(100) });
    assert_eq!(figures(&[&one], &|_| false), Figures::default());
}

#[test]
fn workers_that_ranks_report_to_are_asked_more_often() {
    #[expect(clippy::disallowed_methods, reason = "any instant will do")]
    let at = Instant::now();
    let seen = |status: WorkerStatus| seen(at, Ok(status));
    let missed = |misses: u8| Seen { misses, ..super::tests::seen(at, Err(ScrapeError::Timeout)) };
    let (mut home, mut starting) = (worker("p"), worker("p"));
    home.reports = vec![report(0, 1, 0, 4)];
    starting.streams.clear();
    let target = Target {
        key: Key { namespace: "n".into(), name: "p".into() },
        uid: "u".into(),
        address: [127, 0, 0, 1].into(),
        port: 1,
        tls: false,
        often: false,
        ready: true,
    };
    let scaled = Target { often: true, ..target.clone() };
    assert!(is_due(&scaled, Some(&seen(worker("p"))), at + OFTEN));
    assert!(!is_due(&scaled, Some(&missed(MOST_MISSES)), at + OFTEN));
    let cases = [
        (None, 0, true),
        (Some(seen(worker("p"))), 5, false),
        (Some(seen(worker("p"))), 30, true),
        (Some(seen(home)), 5, true),
        (Some(seen(starting)), 5, true),
        (Some(missed(0)), 4, false),
        (Some(missed(0)), 5, true),
        (Some(missed(MOST_MISSES - 1)), 5, true),
        // A fleet that cannot be reached is asked seldom, and a worker that has become ready at once.
        (Some(missed(MOST_MISSES)), 29, false),
        (Some(missed(MOST_MISSES)), 30, true),
        (Some(Seen { ready: false, ..missed(MOST_MISSES) }), 5, true),
    ];
    for (known, seconds, due) in cases {
        assert_eq!(
            is_due(&target, known.as_ref(), at + Duration::from_secs(seconds)),
            due,
            "{known:?} {seconds}"
        );
    }
}

/// A server that reads a request and sends these bytes.
async fn answering(bytes: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut request = [0; 1024];
        let _ = socket.read(&mut request).await;
        let _ = socket.write_all(&bytes).await;
    });
    address
}

fn http(status: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

#[tokio::test]
async fn a_bad_answer_is_one_missing_value() {
    let good = serde_json::to_string(&worker("p")).unwrap();
    let address = answering(http("200 OK", &good)).await;
    assert_eq!(ask(address, false).await.unwrap(), worker("p"));
    assert_eq!(ask(answering(http("302 Found", "")).await, false).await, Err(ScrapeError::Status(302)));
    for body in ["{}".to_owned(), " ".repeat(MAX_BYTES + 1)] {
        let answer = ask(answering(http("200 OK", &body)).await, false).await;
        assert!(matches!(answer, Err(ScrapeError::Body(_))), "{answer:?}");
    }
    assert!(matches!(ask(answering(b"no http".to_vec()).await, false).await, Err(ScrapeError::Connect(_))));
}

#[tokio::test]
async fn a_worker_that_speaks_tls_is_asked_whoever_signed_its_certificate() {
    let made = rcgen::generate_simple_self_signed(vec!["workers.data.svc".to_owned()]).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], made.signing_key.into())
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer = http("200 OK", &serde_json::to_string(&worker("p")).unwrap());
    tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        let mut socket = acceptor.accept(socket).await.unwrap();
        let mut request = [0; 1024];
        let length = socket.read(&mut request).await.unwrap();
        assert!(!String::from_utf8_lossy(&request[..length]).to_lowercase().contains("authorization"));
        socket.write_all(&answer).await.unwrap();
        socket.shutdown().await.unwrap();
    });
    assert_eq!(ask(address, true).await.unwrap(), worker("p"));
    // One that speaks none is a missing value.
    assert!(matches!(ask(answering(b"no tls".to_vec()).await, true).await, Err(ScrapeError::Connect(_))));
}

#[test]
fn one_answer_that_does_not_come_changes_nothing() {
    #[expect(clippy::disallowed_methods, reason = "any instant will do")]
    let at = Instant::now();
    let answers = Answers::default();
    let missed = || seen(at, Err(ScrapeError::Timeout));
    assert!(answers.keep("u", seen(at, Ok(worker("p")))));
    for _ in 0..2 {
        assert!(!answers.keep("u", missed()));
        assert!(answers.of("u").unwrap().answer.is_ok());
    }
    assert!(answers.keep("u", missed()));
    assert!(answers.of("u").unwrap().answer.is_err());
    assert!(answers.keep("u", seen(at, Ok(worker("p")))));
}

#[tokio::test]
async fn an_answer_is_dated_when_it_was_asked_for_and_due_again_by_its_round() {
    #[expect(clippy::disallowed_methods, reason = "any instant will do")]
    let round = Instant::now();
    let asked = round + Duration::from_secs(20);
    let address = answering(http("200 OK", &serde_json::to_string(&worker("p")).unwrap())).await;
    let target = Target {
        key: Key { namespace: "n".into(), name: "p".into() },
        uid: "u".into(),
        address: address.ip(),
        port: address.port(),
        tls: false,
        often: true,
        ready: true,
    };
    let answers = Arc::new(Answers::default());
    // It had to wait for its turn.
    let told = answers.round(vec![target.clone()], round, move || asked).await;
    assert_eq!(told, std::slice::from_ref(&target.key));
    let seen = answers.of("u").unwrap();
    assert_eq!((seen.at, seen.answer.is_ok()), (asked, true));
    assert!(is_due(&target, Some(&seen), round + OFTEN));
}
