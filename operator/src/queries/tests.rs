use std::sync::Mutex;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;
use crate::validate::tests::pipeline;

/// The calendar's time of these tests.
pub(super) const NOW: u64 = 1_700_000_000_000;

fn key() -> Key {
    Key { namespace: "team".into(), name: "qwen3vl-sft".into() }
}

pub(super) fn due() -> Due {
    Due { key: key(), stale_after: 15 }
}

fn given(url: &str) -> Server {
    let text = serde_json::json!({"url": url, "wait": "max(w{namespace=\"$namespace\"})", "fill": "f{p=~\"^$pipeline$\"}"});
    format!("main={text}").parse().unwrap()
}

pub(super) fn value(at_seconds: u64, value: &str) -> String {
    format!(
        r#"{{"status":"success","data":{{"resultType":"vector","result":[{{"metric":{{}},"value":[{at_seconds},"{value}"]}}]}}}}"#
    )
}

pub(super) fn http(status: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// What a server does with every request.
#[derive(Clone)]
enum Does {
    Send(Vec<u8>),
    Nothing,
}

/// A server, and the first lines of what it was asked.
async fn serving(does: Does) -> (Server, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let lines = Arc::clone(&asked);
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let (does, lines) = (does.clone(), Arc::clone(&lines));
            tokio::spawn(async move {
                let mut request = vec![0; 16 << 10];
                let length = socket.read(&mut request).await.unwrap();
                let text = String::from_utf8_lossy(&request[..length]).into_owned();
                lines.lock().unwrap().push(text.lines().next().unwrap_or_default().to_owned());
                match does {
                    Does::Send(bytes) => {
                        let _ = socket.write_all(&bytes).await;
                    }
                    // The other side gives up.
                    Does::Nothing => while socket.read(&mut request).await.is_ok_and(|length| length > 0) {},
                }
            });
        }
    });
    (given(&format!("http://{address}/prometheus/")), asked)
}

async fn said(does: Does) -> Numbers {
    numbers(&serving(does).await.0, &due(), || NOW).await
}

#[tokio::test]
async fn a_server_is_asked_for_the_pipeline_and_its_numbers_are_read() {
    let (server, asked) = serving(Does::Send(http("200 OK", &value(NOW / 1000, "0.25")))).await;
    let found = numbers(&server, &due(), || NOW).await;
    assert_eq!(found, Numbers { wait: Ok(0.25), fill: Ok(0.25), desired: None });
    let mut asked = asked.lock().unwrap().clone();
    asked.sort();
    let begin = "GET /prometheus/api/v1/query?timeout=2s&lookback_delta=15s&query=";
    assert_eq!(
        asked,
        [
            format!("{begin}f%7Bp%3D~%22%5Eqwen3vl-sft%24%22%7D HTTP/1.1"),
            format!("{begin}max%28w%7Bnamespace%3D%22team%22%7D%29 HTTP/1.1"),
        ]
    );
}

#[tokio::test]
async fn every_answer_that_is_none_says_what_is_wrong() {
    let empty = r#"{"status":"success","data":{"resultType":"vector","result":[]}}"#;
    let cases = [
        (http("200 OK", empty), Mute::Empty),
        (http("200 OK", &value(NOW / 1000, "NaN")), Mute::NoNumber),
        (http("200 OK", &value(NOW / 1000 - 60, "0.5")), Mute::Stale { age_ms: 60_000 }),
        (http("200 OK", &"x".repeat(MOST_BYTES + 1)), Mute::Large),
        (http("200 OK", "<html>"), Mute::Unreadable),
        (b"no http at all\r\n\r\n".to_vec(), Mute::Unreadable),
        (http("503 Service Unavailable", ""), Mute::Refused { status: 503 }),
        // Nothing is followed.
        (
            b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n".to_vec(),
            Mute::Refused { status: 302 },
        ),
        // It promises more than it sends.
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{".to_vec(), Mute::Down),
        (Vec::new(), Mute::Down),
    ];
    for (bytes, why) in cases {
        let found = said(Does::Send(bytes)).await;
        assert_eq!((found.wait, found.fill), (Err(why.clone()), Err(why)));
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_down() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = given(&format!("http://{}", listener.local_addr().unwrap()));
    drop(listener);
    assert_eq!(numbers(&nobody, &due(), || NOW).await.wait, Err(Mute::Down));
}

/// The clock runs on as soon as nothing else happens.
#[tokio::test(start_paused = true)]
async fn a_server_that_says_nothing_is_given_up() {
    assert_eq!(said(Does::Nothing).await.wait, Err(Mute::Late));
}

#[tokio::test]
async fn answers_are_kept_by_pipeline_counted_and_forgotten_with_it() {
    let (server, _) = serving(Does::Send(http("200 OK", &value(NOW / 1000, "0.5")))).await;
    let queries = Arc::new(Queries::of(&[server]).unwrap());
    let (server, metrics) = (Arc::clone(&queries.servers()[0]), Arc::new(Metrics::new().unwrap()));
    #[expect(clippy::disallowed_methods, reason = "any instant will do")]
    let at = Instant::now();
    queries.round(&server, vec![due()], &metrics, move || at, || NOW).await;
    let heard = queries.heard(&key(), "main").unwrap();
    assert_eq!(heard.numbers(at + OLD).wait, Ok(0.5));
    assert_eq!(heard.numbers(at + OLD + Duration::from_secs(1)).wait, Err(Mute::Late));
    // What another server said is not what this one says.
    assert_eq!(queries.heard(&key(), "other"), None);
    let counted = "feedmill_prometheus_queries_total{result=\"answered\",server=\"main\"} 2";
    assert!(metrics.text().unwrap().contains(counted));
    queries.round(&server, Vec::new(), &metrics, move || at, || NOW).await;
    assert_eq!(queries.heard(&key(), "main"), None);
}

#[test]
fn a_server_that_is_not_known_is_told_with_those_that_are() {
    let lines = "autoscaling: {mode: Internal, maxReplicas: 2, signal: {prometheus: main}}";
    let told = |queries: &Queries| {
        let errors = queries.known(pipeline(lines)).unwrap_err();
        errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    };
    let named = |name: &str| Server { name: name.into(), ..given("http://p") };
    assert!(Queries::of(&[named("main")]).unwrap().known(pipeline(lines)).is_ok());
    assert!(Queries::default().known(pipeline("")).is_ok());
    let none = told(&Queries::default());
    assert!(none.contains("spec.autoscaling.signal.prometheus") && none.contains("given none"), "{none}");
    let others = told(&Queries::of(&[named("a"), named("b")]).unwrap());
    assert!(
        others.ends_with("there is no server of the name main; the operator was given: a, b"),
        "{others}"
    );
    assert_eq!(Queries::of(&[named("a"), named("a")]).unwrap_err(), ServerError::Twice("a".into()));
}

#[test]
fn settings_that_are_none_are_refused() {
    let given = |url: &str| format!("main={{\"url\": \"{url}\", \"wait\": \"w\", \"fill\": \"f\"}}");
    for (url, port) in [
        ("http://p", 80),
        ("http://p:9090", 9090),
        ("http://10.0.0.1:9090/prometheus", 9090),
        ("http://[::1]:9090/", 9090),
        ("https://p", 443),
        ("https://p:80/x", 80),
    ] {
        assert_eq!(given(url).parse::<Server>().unwrap().port, port, "{url}");
    }
    assert_eq!(given("http://[::1]:9090").parse::<Server>().unwrap().host, "::1");
    for url in [
        "",
        "p:9090",
        "ftp://p",
        "https://u:p@p",
        "https://p/?a=b",
        "http://u:p@p",
        "http://p/?a=b",
        "http://p/#a",
        "/api",
        "http://",
    ] {
        assert_eq!(given(url).parse::<Server>().unwrap_err(), ServerError::Url(url.into()), "{url}");
    }
    let ok = r#"{"url": "http://p", "wait": "w", "fill": "f"}"#;
    for (text, word) in [
        (ok.to_owned(), "begin with a name"),
        (format!("={ok}"), "begin with a name"),
        (format!("Main={ok}"), "begin with a name"),
        (format!("{}={ok}", "a".repeat(64)), "begin with a name"),
        ("main=http://p".into(), "as JSON"),
        (format!("main={}", ok.replace("\"fill\"", "\"full\"")), "as JSON"),
        (format!("main={}", ok.replace("\"w\"", "\" \"")), "query wait"),
        (format!("main={}", ok.replace("\"f\"", &format!("\"{}\"", "f".repeat(5000)))), "query fill"),
        (format!("main={}", ok.replace('}', ", \"desired\": \"\"}")), "query desired"),
        (
            format!("main={}", ok.replace('}', ", \"token\": \"/t\"}")),
            "its token needs a url that begins with https://",
        ),
        (
            format!("main={}", ok.replace('}', ", \"ca\": \"/ca\"}")),
            "its ca needs a url that begins with https://",
        ),
        (
            format!("main={}", ok.replace('}', ", \"ca\": \"\"}")),
            "its ca must be the absolute path of a file",
        ),
        (
            format!("main={}", ok.replace('}', ", \"token\": \"\"}")),
            "its token must be the absolute path of a file",
        ),
        (
            format!("main={}", ok.replace("http:", "https:").replace('}', ", \"token\": \"secret.words\"}")),
            "its token must be the absolute path of a file",
        ),
        (format!("main={}", ok.replace('}', ", \"token\": true}")), "as JSON"),
    ] {
        let error = text.parse::<Server>().unwrap_err().to_string();
        assert!(error.contains(word) && !error.contains("secret.words"), "{text}: {error}");
    }
}
