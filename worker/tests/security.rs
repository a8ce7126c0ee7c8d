//! Who is served, and over what: tokens, TLS, names, and peers that only hold places.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use feedmill_access::{Application, GuardFiles, Pass, PassSettings, TlsFault};
use feedmill_testkit::certificates::{Authority, Certificate, Validity};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use support::{Answer, Served, document, golden, pipeline, processor_folder, settings, starting};

const OLD: &str = "old-token-0123456789abcdef";
const NEW: &str = "new-token-0123456789abcdef";

/// A worker that has not read its data: who is admitted is told 503, who is not 401.
async fn guarded(access: GuardFiles) -> (Served, tempfile::TempDir) {
    let processor = processor_folder();
    let uri = format!("file://{}/", processor.path().display());
    let streams = format!(
        "  - name: train\n    datasets: [{{name: golden, uri: \"file://{0}/manifests/llava.jsonl\", imageBaseUri: \
         \"file://{0}/\"}}]\n",
        golden("").display()
    );
    let document = document(&uri, ", minPixels: 4096, maxPixels: 32768", &streams);
    let settings = feedmill_worker::settings::Settings { access, ..settings() };
    (starting(pipeline(&document), &settings).await, processor)
}

fn tokens(folder: &tempfile::TempDir, content: &str) -> GuardFiles {
    let path = folder.path().join("tokens");
    std::fs::write(&path, content).unwrap();
    GuardFiles { tokens: Some(path), ..GuardFiles::default() }
}

fn tls(certificate: &Certificate) -> GuardFiles {
    let files = (certificate.certificate.clone(), certificate.key.clone());
    GuardFiles { certificate: Some(files), ..GuardFiles::default() }
}

async fn with_token(worker: &Served, request: &str, token: &str) -> Answer {
    worker.request(request, &[("authorization", &format!("Bearer {token}"))], b"").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_opens_everything_and_strangers_see_what_has_no_data() {
    let folder = tempfile::tempdir().unwrap();
    let (worker, _files) = guarded(tokens(&folder, &format!("{NEW}\r\n{OLD}\r\n"))).await;
    let open = [
        ("GET /livez", 200),
        ("HEAD /livez", 200),
        ("GET /readyz", 503),
        ("GET /metrics", 200),
        ("GET /v1/status", 200),
        ("GET /livez?token=x", 200),
        ("GET http://elsewhere.example/livez", 200),
        ("GET /", 200),
    ];
    for (request, status) in open {
        assert_eq!(worker.request(request, &[], b"").await.status, status, "{request}");
    }
    let closed = [
        ("GET /v1/plan", 503),
        ("HEAD /v1/plan", 503),
        ("GET /v1/bad", 503),
        ("GET /v1/streams/train/batches/0-1", 503),
        ("GET /v1/streams/train/samples/0", 503),
        ("GET /v1/streams/train/samples/0/images/0.png", 503),
        ("GET /v1/streams/train/find?id=x", 503),
        ("POST /v1/reports", 400),
        // What is open is open by its whole path and to readers only.
        ("POST /livez", 405),
        ("PUT /v1/status", 405),
        ("DELETE /", 405),
        ("OPTIONS /livez", 405),
        ("GET //livez", 404),
        ("GET /livez/", 404),
        ("GET /LIVEZ", 404),
        ("GET /livez/../v1/plan", 404),
        ("GET /livez/..%2fv1%2fplan", 404),
        ("GET /./livez", 404),
        ("GET /%6civez", 404),
        ("GET /livez%00", 404),
        ("GET /livez;/v1/plan", 404),
        ("GET /v1/status/../plan", 404),
        ("GET /v1/plan/livez", 404),
        ("GET /v1/plan?/livez", 503),
        ("GET http://elsewhere.example/v1/plan", 503),
        ("GET /nothing", 404),
    ];
    for (request, status) in closed {
        let refused = worker.request(request, &[], b"").await;
        assert_eq!(refused.status, 401, "{request}: {refused:?}");
        assert!(refused.header("www-authenticate").unwrap().starts_with("Bearer"), "{refused:?}");
        if !request.starts_with("HEAD") {
            let problem = refused.json();
            assert_eq!(problem["type"], "feedmill:denied", "{request}");
            assert!(problem["remedy"].as_str().unwrap().contains("--token-file"), "{problem}");
        }
        for token in [OLD, NEW] {
            let served = with_token(&worker, request, token).await;
            assert_eq!(served.status, status, "{request}: {served:?}");
        }
    }
    let refused = closed.len() as u64;
    assert_eq!(worker.app.guard.stats().denied, refused);
    let metrics = String::from_utf8(worker.get("/metrics").await.body).unwrap();
    let expected = format!("feedmill_worker_refused_requests_total {refused}\n");
    assert!(metrics.contains(&expected) && metrics.contains("feedmill_worker_tokens 2\n"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_but_a_whole_token_in_one_header_is_one() {
    let folder = tempfile::tempdir().unwrap();
    let (worker, _files) = guarded(tokens(&folder, &format!("# rotated in spring\n\n  {OLD}  \n"))).await;
    let bearer = |token: &str| format!("Bearer {token}");
    let (first, last) = (&OLD[..OLD.len() - 1], &OLD[1..]);
    let wrong: Vec<Vec<(&str, String)>> = vec![
        vec![],
        vec![("authorization", String::new())],
        vec![("authorization", "Bearer".into())],
        vec![("authorization", bearer(""))],
        vec![("authorization", bearer(NEW))],
        vec![("authorization", bearer(first))],
        vec![("authorization", bearer(last))],
        vec![("authorization", bearer(&format!("{OLD}{OLD}")))],
        vec![("authorization", bearer(&OLD.to_uppercase()))],
        vec![("authorization", bearer("# rotated in spring"))],
        vec![("authorization", format!("Basic {OLD}"))],
        vec![("authorization", OLD.into())],
        vec![("authorization", bearer(&format!("{OLD}, Bearer {OLD}")))],
        vec![("authorization", bearer(OLD)), ("authorization", bearer(OLD))],
        vec![("proxy-authorization", bearer(OLD))],
        vec![("x-authorization", bearer(OLD))],
        vec![("cookie", format!("token={OLD}"))],
    ];
    for headers in &wrong {
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let answer = worker.request("GET /v1/plan", &headers, b"").await;
        assert_eq!(answer.status, 401, "{headers:?}");
        let whole = format!("{} {}", answer.head, String::from_utf8_lossy(&answer.body));
        assert!(!whole.contains(&OLD[..12]) && !whole.contains(&NEW[..12]), "{whole}");
    }
    assert_eq!(worker.get(&format!("/v1/plan?token={OLD}&access_token={OLD}")).await.status, 401);
    for right in [bearer(OLD), format!("bearer {OLD}"), format!("BEARER   {OLD}")] {
        let answer = worker.request("GET /v1/plan", &[("authorization", &right)], b"").await;
        assert_eq!(answer.status, 503, "{right}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_change_while_it_serves_and_a_broken_file_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let files = tokens(&folder, OLD);
    let path = files.tokens.clone().unwrap();
    let (worker, _files) = guarded(files).await;
    assert_eq!(with_token(&worker, "GET /v1/plan", NEW).await.status, 401);
    // As Kubernetes changes a mounted secret: another file under the same name.
    let next = folder.path().join("next");
    std::fs::write(&next, format!("{NEW}\n{OLD}\n")).unwrap();
    std::fs::rename(&next, &path).unwrap();
    while with_token(&worker, "GET /v1/plan", NEW).await.status == 401 {}
    assert_eq!(with_token(&worker, "GET /v1/plan", OLD).await.status, 503);
    std::fs::write(&path, "").unwrap();
    while worker.app.guard.stats().failures == 0 {
        assert_eq!(with_token(&worker, "GET /v1/plan", NEW).await.status, 503);
    }
    std::fs::write(&path, NEW).unwrap();
    while with_token(&worker, "GET /v1/plan", OLD).await.status != 401 {}
    assert_eq!(with_token(&worker, "GET /v1/plan", NEW).await.status, 503);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_token_a_name_that_others_own_gets_nothing() {
    let (worker, _files) = guarded(GuardFiles { own_names_only: true, ..GuardFiles::default() }).await;
    for path in ["/", "/v1/plan", "/livez", "/metrics"] {
        let request = format!("GET http://evil.example:{}{path}", worker.address.port());
        let answer = worker.request(&request, &[], b"").await;
        assert_eq!((answer.status, &answer.json()["type"]), (403, &"feedmill:denied".into()), "{path}");
        let own = format!("GET http://localhost:{}{path}", worker.address.port());
        assert_ne!(worker.request(&own, &[], b"").await.status, 403, "{path}");
    }
}

fn trusting(authority: &Path) -> Pass {
    Pass::new(PassSettings { token: None, authorities: Some(authority.to_owned()) }).unwrap()
}

/// One request over TLS to the worker under a name.
async fn over_tls(worker: &Served, pass: &Pass, name: &str) -> Result<String, TlsFault> {
    let socket = TcpStream::connect(worker.address).await.unwrap();
    let mut secured = pass.secure(name, socket, Application::Http1).await?;
    secured.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    secured.read_to_end(&mut answer).await.unwrap();
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_certificate_that_proves_the_name_is_accepted() {
    let (ours, others) = (Authority::new(), Authority::new());
    let good = ["worker.test", "*.data.svc", "127.0.0.1"];
    let cases = [
        (ours.sign("good", &good, Validity::Now), "worker.test", None),
        (ours.sign("address", &good, Validity::Now), "127.0.0.1", None),
        (ours.sign("pattern", &good, Validity::Now), "w-3.data.svc", None),
        (ours.sign("other-name", &good, Validity::Now), "other.test", Some("other.test")),
        (ours.sign("deeper", &good, Validity::Now), "a.b.data.svc", Some("a.b.data.svc")),
        (ours.sign("other-address", &good, Validity::Now), "127.0.0.2", Some("127.0.0.2")),
        (ours.sign("past", &good, Validity::Past), "worker.test", Some("renew")),
        (ours.sign("future", &good, Validity::Future), "worker.test", Some("clock")),
        (others.sign("stranger", &good, Validity::Now), "worker.test", Some("none of the authorities")),
        (ours.self_signed("itself", &good), "worker.test", Some("--ca-file")),
    ];
    let pass = trusting(&ours.file());
    for (certificate, name, refused) in cases {
        let (worker, _files) = guarded(tls(&certificate)).await;
        match (over_tls(&worker, &pass, name).await, refused) {
            (Ok(answer), None) => assert!(answer.starts_with("HTTP/1.1 200"), "{certificate:?}: {answer}"),
            (Err(fault), Some(part)) => {
                assert!(matches!(fault, TlsFault::Certificate(_)) && fault.needs_a_person(), "{fault:?}");
                assert!(fault.to_string().contains(part), "{certificate:?}: {fault}");
            }
            (got, _) => panic!("{certificate:?} as {name}: {got:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_speaks_something_else_is_told_so() {
    let authority = Authority::new();
    let certificate = authority.sign("worker", &["localhost"], Validity::Now);
    let (worker, _files) = guarded(tls(&certificate)).await;
    let http2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    for said in [
        &b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"[..],
        http2,
        b"\0\0\0",
        b"\x16garbage",
        b"\x16\x03\x01\xff\xff",
    ] {
        let mut socket = TcpStream::connect(worker.address).await.unwrap();
        socket.write_all(said).await.unwrap();
        drop(socket.shutdown().await);
        let mut answer = Vec::new();
        // A socket that is closed with bytes unread is reset.
        drop(socket.read_to_end(&mut answer).await);
        let answer = String::from_utf8_lossy(&answer);
        assert!(!answer.contains("200"), "{answer}");
        assert!(said[0] == 22 || answer.contains("use https://"), "{said:?}: {answer:?}");
    }
    let trusted = trusting(&authority.file());
    assert!(over_tls(&worker, &trusted, "localhost").await.unwrap().starts_with("HTTP/1.1 200"));
    let (plain, _files) = guarded(GuardFiles::default()).await;
    let fault = over_tls(&plain, &trusted, "localhost").await.unwrap_err();
    assert!(matches!(fault, TlsFault::NoTls), "{fault:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_change_while_it_serves_and_half_of_a_pair_changes_nothing() {
    let authority = Authority::new();
    let certificate = authority.sign("worker", &["old.test"], Validity::Now);
    let next = authority.sign("next", &["new.test"], Validity::Now);
    let (worker, _files) = guarded(tls(&certificate)).await;
    let pass = trusting(&authority.file());
    assert!(over_tls(&worker, &pass, "old.test").await.is_ok());
    std::fs::copy(&next.certificate, &certificate.certificate).unwrap();
    while worker.app.guard.stats().failures == 0 {
        assert!(over_tls(&worker, &pass, "old.test").await.is_ok());
    }
    std::fs::copy(&next.key, &certificate.key).unwrap();
    while over_tls(&worker, &pass, "new.test").await.is_err() {}
    assert!(over_tls(&worker, &pass, "old.test").await.is_err());
    let stats = worker.app.guard.stats();
    assert_eq!((stats.changes, stats.failures), (1, 1));
}

/// Whoever connects and asks nothing, or only what is open to all, holds a place for ten seconds.
#[tokio::test(flavor = "multi_thread")]
async fn peers_that_ask_nothing_lose_their_places() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let certificate = authority.sign("worker", &["localhost"], Validity::Now);
    let (plain, _plain) = guarded(tokens(&folder, OLD)).await;
    let (secured, _secured) = guarded(tls(&certificate)).await;
    let http2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let stranger = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n";
    let refused = b"GET /v1/plan HTTP/1.1\r\nhost: x\r\n\r\n";
    let silent: [(&Served, &[u8]); 9] = [
        (&plain, b""),
        (&plain, b"P"),
        (&plain, b"GET / HTTP/1.1\r\nx: "),
        (&plain, http2),
        (&plain, stranger),
        (&plain, refused),
        (&secured, b""),
        (&secured, b"\x16\x03\x01\x02\x00"),
        (&secured, b"G"),
    ];
    let mut sockets = Vec::new();
    for (worker, said) in silent {
        let mut socket = TcpStream::connect(worker.address).await.unwrap();
        socket.write_all(said).await.unwrap();
        sockets.push(socket);
    }
    for mut socket in sockets {
        let mut rest = Vec::new();
        drop(socket.read_to_end(&mut rest).await);
    }
    let places = |worker: &Served| worker.app.served.connections.load(std::sync::atomic::Ordering::Relaxed);
    while places(&plain) + places(&secured) > 0 {
        tokio::task::yield_now().await;
    }
}

fn worker_process(arguments: &[&str], log: Stdio) -> std::process::Child {
    Command::new(env!("CARGO_BIN_EXE_feedmill-worker"))
        .args(["--exit-with-stdin", "--threads", "1"])
        .args(arguments)
        .env("RUST_LOG", "trace")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .unwrap()
}

fn pipeline_file(folder: &tempfile::TempDir) -> (String, tempfile::TempDir) {
    let processor = processor_folder();
    let uri = format!("file://{}/", processor.path().display());
    let streams = format!(
        "  - name: train\n    datasets: [{{name: golden, uri: \"file://{0}/manifests/llava.jsonl\", imageBaseUri: \
         \"file://{0}/\"}}]\n",
        golden("").display()
    );
    let path = folder.path().join("pipeline.yaml");
    std::fs::write(&path, document(&uri, ", minPixels: 4096, maxPixels: 32768", &streams)).unwrap();
    (path.to_str().unwrap().to_owned(), processor)
}

#[test]
fn a_worker_that_could_not_be_guarded_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let (pipeline, _processor) = pipeline_file(&folder);
    let file = |name: &str, content: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (empty, short) = (file("empty", "\r\n"), file("short", "secret-word\n"));
    let authority = Authority::new();
    let (one, other) = (
        authority.sign("one", &["a.test"], Validity::Now),
        authority.sign("other", &["a.test"], Validity::Now),
    );
    let (one, other, other_key) =
        (one.certificate.to_str().unwrap(), other.certificate.to_str().unwrap(), other.key.to_str().unwrap());
    let cases: [(&[&str], &[&str]); 8] = [
        (&["--listen", "0.0.0.0:0"], &["0.0.0.0:0", "--token-file", "--insecure-no-token"]),
        (&["--token-file", "/nowhere"], &["/nowhere"]),
        (&["--token-file", &empty], &[&empty, "no token"]),
        (&["--token-file", &short], &[&short, "line 1", "openssl rand"]),
        (&["--tls-cert", one], &["--tls-key"]),
        (&["--tls-cert", one, "--tls-key", other_key], &[one, other_key]),
        (&["--tls-cert", one, "--tls-key", other], &[other, "private key"]),
        (&["--tls-cert", &short, "--tls-key", other_key], &[&short, "certificate"]),
    ];
    for (arguments, parts) in cases {
        let words = [&["--pipeline", &pipeline], arguments].concat();
        let output = worker_process(&words, Stdio::piped()).wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}: {text}");
        for part in parts {
            assert!(text.contains(part), "{arguments:?}: {part} is not in {text}");
        }
        assert!(!text.contains("secret-word"), "{text}");
    }
}

/// Not even a log of everything, nor the list of processes, shows a token.
#[test]
fn a_token_is_nowhere_to_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let (pipeline, _processor) = pipeline_file(&folder);
    let tokens = folder.path().join("tokens");
    std::fs::write(&tokens, OLD).unwrap();
    let log = folder.path().join("log");
    let arguments =
        ["--pipeline", &pipeline, "--listen", "0.0.0.0:0", "--token-file", tokens.to_str().unwrap()];
    let mut worker = worker_process(&arguments, std::fs::File::create(&log).unwrap().into());
    let mut line = String::new();
    BufReader::new(worker.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let said: serde_json::Value = serde_json::from_str(&line).unwrap();
    let port = said["listening"].as_str().unwrap().rsplit_once(':').unwrap().1.to_owned();
    let ask = |token: &str| {
        let mut socket = std::net::TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
        let request = format!(
            "GET /v1/plan HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {token}\r\n\r\n"
        );
        socket.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        std::io::Read::read_to_end(&mut socket, &mut answer).unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    };
    assert!(ask(NEW).starts_with("HTTP/1.1 401"));
    let admitted = ask(OLD);
    assert!(!admitted.starts_with("HTTP/1.1 401"), "{admitted}");
    let arguments = std::fs::read(format!("/proc/{}/cmdline", worker.id())).unwrap();
    drop(worker.stdin.take());
    assert!(worker.wait().unwrap().success());
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(log.contains("a request is refused"), "{log}");
    for shown in [log, String::from_utf8_lossy(&arguments).into_owned(), line, admitted] {
        assert!(!shown.contains(&OLD[..12]) && !shown.contains(&NEW[..12]), "{shown}");
    }
}
