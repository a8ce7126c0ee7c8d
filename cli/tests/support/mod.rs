//! Runs the built command on the quickstart's data.

#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails here")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

/// The quickstart's bucket, as `--embedded-s3` wants it.
pub fn bucket() -> String {
    format!("quickstart={}", example("bucket").display())
}

/// A file of the quickstart.
pub fn example(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/quickstart").join(path)
}

/// The command, with nothing from the environment that changes what it says.
pub fn feedmill() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_feedmill"));
    for name in
        ["RUST_LOG", "FEEDMILL_TOKEN_FILE", "FEEDMILL_CA_FILE", "FEEDMILL_TLS_CERT", "FEEDMILL_TLS_KEY"]
    {
        command.env_remove(name);
    }
    command.env("NO_COLOR", "1");
    command
}

/// Runs it to the end.
pub fn run(arguments: &[&str]) -> Output {
    feedmill().args(arguments).output().unwrap()
}

/// `local` on the quickstart: its exit code, its JSON and all that it said.
pub fn local(arguments: &[&str]) -> (Option<i32>, Value, String) {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("summary.json");
    let output = feedmill()
        .arg("local")
        .arg(example("pipeline.yaml"))
        .args(["--embedded-s3", &bucket(), "--json"])
        .arg(&json)
        .args(arguments)
        .output()
        .unwrap();
    let said = said(&output);
    let json = std::fs::read(&json).unwrap_or_default();
    (output.status.code(), serde_json::from_slice(&json).unwrap_or(Value::Null), said)
}

/// Both outputs, for messages of failed assertions.
pub fn said(output: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The quickstart's pipeline over files, with a change, in a folder of its own.
pub fn pipeline_over_files(from: &str, to: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let bucket = std::fs::canonicalize(example("bucket")).unwrap();
    let text = std::fs::read_to_string(example("pipeline.yaml")).unwrap();
    let text = text.replace("s3://quickstart/", &format!("file://{}/", bucket.display()));
    assert!(text.contains(from), "the example has no {from:?}");
    let path = folder.path().join("pipeline.yaml");
    std::fs::write(&path, text.replace(from, to)).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

/// A worker process; ends with the test.
pub struct Worker {
    child: Child,
    /// `http://127.0.0.1:PORT`.
    pub url: String,
}

impl Worker {
    /// Starts one and waits until it can be asked.
    pub fn start(pipeline: &str) -> Self {
        Self::start_with(pipeline, &[])
    }

    /// The same with more arguments; one that speaks TLS is not waited for.
    pub fn start_with(pipeline: &str, arguments: &[&str]) -> Self {
        let mut child = feedmill()
            .args(["worker", "--pipeline", pipeline, "--listen", "127.0.0.1:0", "--exit-with-stdin"])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let announced: Value = serde_json::from_str(&line).unwrap();
        let address = announced["listening"].as_str().unwrap();
        // One question after another: each takes as long as its answer, so this is no waiting by the clock.
        let scheme = announced["scheme"].as_str().unwrap();
        while scheme == "http" && !is_ready(address) {}
        Self { child, url: format!("{scheme}://{address}") }
    }
}

/// Whether `/readyz` answers 200; a worker that has gone fails the test.
fn is_ready(address: &str) -> bool {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET /readyz HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.starts_with("HTTP/1.1 200")
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
