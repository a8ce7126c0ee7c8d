use std::path::Path;
use std::sync::Mutex;

use feedmill_testkit::certificates::{Authority, Certificate, Validity};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::{TLS12, TLS13};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::super::tests::{NOW, due, http, value};
use super::super::{Server, numbers};
use super::*;

const OLD: &str = "old.token.that.nobody.may.see";
const NEW: &str = "new.token.that.nobody.may.see";
const HERE: [&str; 1] = ["127.0.0.1"];

/// A server with a certificate that gives the same answer to all.
struct Asked {
    url: String,
    /// The requests that came.
    requests: Arc<Mutex<Vec<String>>>,
}

impl Asked {
    async fn new(
        certificate: &Certificate,
        version: &'static rustls::SupportedProtocolVersion,
        answer: Vec<u8>,
    ) -> Self {
        let chain =
            CertificateDer::pem_file_iter(&certificate.certificate).unwrap().map(Result::unwrap).collect();
        let key = PrivateKeyDer::from_pem_file(&certificate.key).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let (acceptor, answer, seen) = (acceptor.clone(), answer.clone(), Arc::clone(&seen));
                tokio::spawn(async move {
                    // Whoever does not trust it goes away.
                    let Ok(mut socket) = acceptor.accept(socket).await else { return };
                    let mut request = vec![0; 16 << 10];
                    let Ok(length @ 1..) = socket.read(&mut request).await else { return };
                    seen.lock().unwrap().push(String::from_utf8_lossy(&request[..length]).into_owned());
                    let _ = socket.write_all(&answer).await;
                    let _ = socket.shutdown().await;
                });
            }
        });
        Self { url, requests }
    }

    async fn good(certificate: &Certificate) -> Self {
        Self::new(certificate, &TLS13, http("200 OK", &value(NOW / 1000, "0.5"))).await
    }

    /// What stood in `authorization`, of each request.
    fn shown(&self) -> Vec<Option<String>> {
        let of = |request: &String| {
            let line = request.lines().find_map(|line| line.strip_prefix("authorization: "));
            line.map(str::to_owned)
        };
        self.requests.lock().unwrap().drain(..).map(|request| of(&request)).collect()
    }
}

fn server(url: &str, ca: Option<&Path>, token: Option<&Path>) -> Server {
    let mut given = json!({"url": url, "wait": "w", "fill": "f"});
    for (name, path) in [("ca", ca), ("token", token)] {
        if let Some(path) = path {
            given[name] = Value::from(path.to_str().unwrap());
        }
    }
    format!("main={given}").parse().unwrap()
}

/// What a query gave, and why not.
async fn said(server: &Server) -> Result<f64, Mute> {
    let found = numbers(server, &due(), || NOW).await;
    assert_eq!(found.wait, found.fill);
    found.wait
}

fn bearer(token: &str) -> Vec<Option<String>> {
    vec![Some(format!("Bearer {token}")); 2]
}

#[tokio::test]
async fn a_token_that_rotates_is_sent_as_it_stands_now() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let asked = Asked::good(&authority.sign("server", &HERE, Validity::Now)).await;
    let token = folder.path().join("token");
    let server = server(&asked.url, Some(&authority.file()), Some(&token));
    for (text, sent) in [(format!("{OLD}\n"), OLD), (NEW.to_owned(), NEW), ("short".to_owned(), "short")] {
        std::fs::write(&token, text).unwrap();
        assert_eq!(said(&server).await, Ok(0.5));
        assert_eq!(asked.shown(), bearer(sent));
    }
    for (text, words) in [
        (None, "No such file"),
        (Some(String::new()), "it is empty"),
        (Some(format!("Bearer {OLD}")), "a character that is not allowed"),
        (Some(OLD.repeat(1000)), "more than 4096 characters"),
    ] {
        match text {
            Some(text) => std::fs::write(&token, text).unwrap(),
            None => std::fs::remove_file(&token).unwrap(),
        }
        let why = said(&server).await.unwrap_err();
        let told = format!("{why} {why:?} {server:?}");
        assert!(matches!(why, Mute::Unprepared { .. }) && told.contains(token.to_str().unwrap()), "{told}");
        assert!(told.contains(words) && told.contains("see that the Secret of its token is there"), "{told}");
        assert!(!told.contains(OLD) && !told.contains(NEW), "{told}");
        // Nobody is asked without what should be shown.
        assert_eq!(asked.shown(), []);
    }
}

#[tokio::test]
async fn who_does_not_prove_its_name_gets_neither_a_query_nor_a_token() {
    let (ours, others, folder) = (Authority::new(), Authority::new(), tempfile::tempdir().unwrap());
    let (token, ca) = (folder.path().join("token"), ours.file());
    std::fs::write(&token, NEW).unwrap();
    let none = folder.path().join("none");
    for (certificate, ca, words) in [
        (
            others.sign("other", &HERE, Validity::Now),
            Some(&ca),
            "none of the authorities in the ca of operator.prometheus has signed it",
        ),
        (ours.self_signed("itself", &HERE), Some(&ca), "none of the authorities"),
        (
            ours.sign("name", &["prometheus.test"], Validity::Now),
            Some(&ca),
            "or give the server one for \"127.0.0.1\"",
        ),
        (ours.sign("past", &HERE, Validity::Past), Some(&ca), "renew the server's certificate"),
        (ours.sign("future", &HERE, Validity::Future), Some(&ca), "clock"),
        // This machine's own, be there any or not.
        (ours.sign("good", &HERE, Validity::Now), None, "the ca of operator.prometheus"),
        (
            ours.sign("fine", &HERE, Validity::Now),
            Some(&none),
            "see that the ConfigMap or Secret of its ca is there",
        ),
        (ours.sign("well", &HERE, Validity::Now), Some(&token), "has no certificate in PEM"),
    ] {
        let asked = Asked::good(&certificate).await;
        let why = said(&server(&asked.url, ca.map(PathBuf::as_path), Some(&token))).await.unwrap_err();
        assert!(matches!(why, Mute::Insecure { .. } | Mute::Unprepared { .. }), "{why:?}");
        let told = why.to_string();
        assert!(told.contains(words) && !told.contains(NEW), "{certificate:?}: {told}");
        assert_eq!(asked.shown(), [], "{told}");
    }
}

#[tokio::test]
async fn authorities_are_followed_and_a_broken_file_changes_nothing() {
    let (first, second, folder) = (Authority::new(), Authority::new(), tempfile::tempdir().unwrap());
    let ca = folder.path().join("ca.crt");
    let asked = Asked::good(&second.sign("server", &HERE, Validity::Now)).await;
    let server = server(&asked.url, Some(&ca), None);
    let put = |file: &Path| std::fs::copy(file, &ca).unwrap();
    assert!(matches!(said(&server).await, Err(Mute::Unprepared { .. })));
    put(&first.file());
    assert!(matches!(said(&server).await, Err(Mute::Insecure { .. })));
    put(&second.file());
    assert_eq!(said(&server).await, Ok(0.5));
    std::fs::write(&ca, "half of it").unwrap();
    assert_eq!(said(&server).await, Ok(0.5));
    put(&first.file());
    assert!(matches!(said(&server).await, Err(Mute::Insecure { .. })));
    assert_eq!(asked.shown(), vec![None; 4]);
}

#[tokio::test]
async fn a_server_that_speaks_only_tls_1_2_is_asked() {
    let authority = Authority::new();
    let certificate = authority.sign("server", &HERE, Validity::Now);
    let asked = Asked::new(&certificate, &TLS12, http("200 OK", &value(NOW / 1000, "0.5"))).await;
    assert_eq!(said(&server(&asked.url, Some(&authority.file()), None)).await, Ok(0.5));
}

#[tokio::test]
async fn a_token_that_is_refused_is_told_with_what_to_do_and_goes_nowhere_else() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let certificate = authority.sign("server", &HERE, Validity::Now);
    let token = folder.path().join("token");
    std::fs::write(&token, NEW).unwrap();
    let elsewhere = Asked::good(&certificate).await;
    let redirect = format!("302 Found\r\nlocation: {}", elsewhere.url);
    for (status, code, words) in [
        ("401 Unauthorized", 401, "it wants a token, or another one"),
        ("403 Forbidden", 403, "give the token's account the right to"),
        (&redirect, 302, "(HTTP 302)"),
    ] {
        let asked = Asked::new(&certificate, &TLS13, http(status, NEW)).await;
        let why = said(&server(&asked.url, Some(&authority.file()), Some(&token))).await.unwrap_err();
        assert_eq!(why, Mute::Refused { status: code });
        let told = why.to_string();
        assert!(told.contains(words) && !told.contains(NEW), "{told}");
        assert_eq!((asked.shown(), elsewhere.shown()), (bearer(NEW), vec![]));
    }
}

#[tokio::test]
async fn one_that_speaks_no_tls_is_told() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            let _ = socket.read(&mut request).await;
            let _ = socket.write_all(&http("400 Bad Request", "")).await;
        }
    });
    let told = said(&server(&url, Some(&Authority::new().file()), None)).await.unwrap_err().to_string();
    assert!(told.contains("cannot be asked over TLS: it speaks no TLS"), "{told}");
}
