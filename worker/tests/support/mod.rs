//! What the worker's tests share: pipelines over the goldens, a served worker, a plain HTTP/1.1 client.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use feedmill_access::{Guard, GuardFiles};
use feedmill_protocol::pipeline::{Pipeline, ValidatedPipeline};
use feedmill_testkit::TestKeys;
use feedmill_worker::app::{App, Machinery};
use feedmill_worker::serve::serve;
use feedmill_worker::settings::Settings;
use feedmill_worker::suspect::Sandbox;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The goldens.
pub fn golden(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(path).canonicalize().unwrap()
}

/// The golden checkpoint's files in a folder of their own, the tokenizer unpacked.
pub fn processor_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["chat_template.jinja", "preprocessor_config.json", "tokenizer_config.json"] {
        std::fs::copy(golden("tokenizer").join(name), folder.path().join(name)).unwrap();
    }
    let packed = std::fs::File::open(golden("tokenizer/tokenizer.json.gz")).unwrap();
    let mut unpacked = std::fs::File::create(folder.path().join("tokenizer.json")).unwrap();
    std::io::copy(&mut flate2::read::GzDecoder::new(packed), &mut unpacked).unwrap();
    folder
}

/// Reads a pipeline document.
pub fn pipeline(yaml: &str) -> ValidatedPipeline {
    serde_saphyr::from_str::<Pipeline>(yaml).unwrap().validate().unwrap()
}

/// A pipeline over manifests, in small budgets: `streams` is the YAML of the list of streams.
pub fn document(processor: &str, settings: &str, streams: &str) -> String {
    format!(
        "apiVersion: feedmill.dev/v1alpha1\nkind: DataPipeline\nmetadata: {{name: test}}\nspec:\n  \
         processor: {{uri: \"{processor}\"{settings}}}\n  \
         limits: {{maxImagePixels: 30000000, maxImageBytes: 32Mi, maxSampleBytes: 64Mi}}\n  \
         cache: {{sharedMemory: 128Mi, fetch: 160Mi, decode: 1Gi}}\n  streams:\n{streams}"
    )
}

/// Settings for a worker in this process.
pub fn settings() -> Settings {
    Settings {
        name: "test".into(),
        listen: ([127, 0, 0, 1], 0).into(),
        access: GuardFiles::default(),
        threads: 2,
        cache_dir: std::env::temp_dir(),
        s3_endpoint: None,
        s3_credentials: None,
        s3_ca_file: None,
        plan_dir: None,
        drain: Duration::from_secs(20),
        exit_with_stdin: false,
        sandbox: Sandbox::default(),
    }
}

/// Keys as a mounted secret has them.
pub fn credentials_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("access-key-id"), TestKeys::ACCESS_KEY_ID).unwrap();
    std::fs::write(folder.path().join("secret-access-key"), TestKeys::SECRET_ACCESS_KEY).unwrap();
    folder
}

/// A worker that serves in this process.
pub struct Served {
    pub app: Arc<App>,
    pub address: std::net::SocketAddr,
    pub stop: watch::Sender<bool>,
    pub server: JoinHandle<()>,
}

/// Loads a pipeline and serves it.
pub async fn served(pipeline: ValidatedPipeline, settings: &Settings) -> Served {
    let served = starting(pipeline, settings).await;
    let loaded = served.app.machinery.load(|_, _| {}).await.unwrap();
    served.app.ready(loaded);
    served
}

/// Serves a pipeline that is not loaded.
pub async fn starting(pipeline: ValidatedPipeline, settings: &Settings) -> Served {
    let app = Arc::new(
        App::new("test".into(), Machinery::new(pipeline, settings).unwrap())
            .guarded(Guard::new(settings.access.clone()).unwrap()),
    );
    let listener = TcpListener::bind(settings.listen).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = watch::channel(false);
    let server = tokio::spawn(serve(Arc::clone(&app), listener, stopped, settings.drain));
    Served { app, address, stop, server }
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no json: {self:?}"))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

impl Served {
    /// One request on a connection of its own.
    pub async fn request(&self, request: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut socket = TcpStream::connect(self.address).await.unwrap();
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!(
            "{request} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n",
            body.len()
        );
        socket.write_all(head.as_bytes()).await.unwrap();
        socket.write_all(body).await.unwrap();
        let mut bytes = Vec::new();
        socket.read_to_end(&mut bytes).await.unwrap();
        let split = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap_or(bytes.len() - 4);
        let head = String::from_utf8_lossy(&bytes[..split]).into_owned();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let mut body = bytes.split_off(split + 4);
        let answer = Answer { status, head, body: Vec::new() };
        if answer.header("transfer-encoding") == Some("chunked") {
            body = unchunked(&body);
        }
        Answer { body, ..answer }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.request(&format!("GET {path}"), &[], b"").await
    }
}

fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(end) = bytes.windows(2).position(|window| window == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).unwrap(), 16).unwrap();
        if size == 0 {
            break;
        }
        out.extend_from_slice(&bytes[end + 2..end + 2 + size]);
        bytes = &bytes[end + 2 + size + 2..];
    }
    out
}
