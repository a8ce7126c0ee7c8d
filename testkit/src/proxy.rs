//! Takes HTTP/1.1 requests, gives the upstream's answers, some of them broken as scripted.
//!
//! It works on bytes: a request goes upstream as it came, `host` included, so that signatures stay valid; each on a connection of its
//! own that ends with the answer. Answers are read whole before they are passed on: meant for test objects of a few megabytes.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// What goes wrong with one request.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// The connection is reset (RST) before anything is answered. The request does not reach the upstream.
    ResetBeforeHeaders,
    /// Headers and half of the body, then a reset.
    ResetMidBody,
    /// Headers with the true content-length and half of the body, then an orderly close.
    ShortBody,
    /// Nothing is answered until the client hangs up. The request does not reach the upstream.
    StallBeforeHeaders,
    /// Headers and half of the body, then nothing until the client hangs up.
    StallMidBody,
    /// Headers at once, the body at this rate, one byte at a time.
    Trickle {
        /// Bytes a second; at least 1.
        bytes_per_second: u32,
    },
    /// The last byte of the body is another one.
    WrongByte,
    /// The request goes upstream with a date an hour off.
    WrongDate,
    /// An S3 error instead of the answer. The request does not reach the upstream.
    S3Error {
        /// HTTP status.
        status: u16,
        /// S3 error code.
        code: &'static str,
    },
    /// An answer without an S3 error in it, as a load balancer gives it.
    Html {
        /// HTTP status.
        status: u16,
    },
}

impl Fault {
    /// 503 SlowDown.
    pub const SLOW_DOWN: Self = Self::S3Error { status: 503, code: "SlowDown" };
    /// 500 InternalError.
    pub const INTERNAL_ERROR: Self = Self::S3Error { status: 500, code: "InternalError" };
    /// 400 ExpiredToken.
    pub const EXPIRED_TOKEN: Self = Self::S3Error { status: 400, code: "ExpiredToken" };
    /// 403 RequestTimeTooSkewed.
    pub const CLOCK_SKEW: Self = Self::S3Error { status: 403, code: "RequestTimeTooSkewed" };
    /// 403 AccessDenied.
    pub const ACCESS_DENIED: Self = Self::S3Error { status: 403, code: "AccessDenied" };
    /// 404 NoSuchKey.
    pub const NO_SUCH_KEY: Self = Self::S3Error { status: 404, code: "NoSuchKey" };
}

/// A fault and the requests it befalls. The first rule that fits and has not run out is taken.
#[derive(Clone, Debug)]
pub struct Rule {
    fault: Fault,
    path_part: String,
    left: Option<u32>,
}

impl Rule {
    /// Befalls every request until told otherwise.
    #[must_use]
    pub fn always(fault: Fault) -> Self {
        Self { fault, path_part: String::new(), left: None }
    }

    /// Befalls the first `times` requests that fit.
    #[must_use]
    pub fn times(fault: Fault, times: u32) -> Self {
        Self { left: Some(times), ..Self::always(fault) }
    }

    /// Only requests whose target (path and query as on the wire) contains `part`.
    #[must_use]
    pub fn on_path(mut self, part: &str) -> Self {
        self.path_part = part.to_owned();
        self
    }
}

/// One request that arrived at the proxy.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenRequest {
    /// Such as `GET`.
    pub method: String,
    /// Path and query as on the wire.
    pub target: String,
    /// Head of the request as it came.
    pub head: String,
    /// What befell it.
    pub fault: Option<Fault>,
    /// Status of the upstream's answer, once there is one.
    pub status: Option<u16>,
}

/// A running proxy; stops when dropped.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    script: Arc<Mutex<Script>>,
    accepting: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Script {
    rules: Vec<Rule>,
    seen: Vec<SeenRequest>,
}

impl FaultProxy {
    /// Listens on a free port of 127.0.0.1 and passes requests to `upstream`.
    pub async fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let script = Arc::new(Mutex::new(Script::default()));
        let shared = Arc::clone(&script);
        let accepting = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let script = Arc::clone(&shared);
                connections.spawn(async move {
                    // A broken connection is what this is for.
                    let _ = serve(client, upstream, &script).await;
                });
                while connections.try_join_next().is_some() {}
            }
        });
        Self { address, script, accepting }
    }

    /// `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Address it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Adds a rule after those there are.
    pub fn add(&self, rule: Rule) {
        lock(&self.script).rules.push(rule);
    }

    /// Forgets all rules, so that everything passes.
    pub fn clear(&self) {
        lock(&self.script).rules.clear();
    }

    /// Every request so far, in order of arrival.
    #[must_use]
    pub fn seen(&self) -> Vec<SeenRequest> {
        lock(&self.script).seen.clone()
    }

    /// Number of requests so far whose target contains `part`.
    #[must_use]
    pub fn count(&self, part: &str) -> usize {
        lock(&self.script).seen.iter().filter(|request| request.target.contains(part)).count()
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

fn lock(script: &Mutex<Script>) -> MutexGuard<'_, Script> {
    script.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Script {
    /// The number of the request, and what befalls it.
    fn take(&mut self, head: &str) -> (usize, Option<Fault>) {
        let mut words = head.split(' ');
        let method = words.next().unwrap_or_default().to_owned();
        let target = words.next().unwrap_or_default().to_owned();
        let rule =
            self.rules.iter_mut().find(|rule| rule.left != Some(0) && target.contains(&rule.path_part));
        let fault = rule.map(|rule| {
            rule.left = rule.left.map(|left| left - 1);
            rule.fault.clone()
        });
        let head = head.to_owned();
        self.seen.push(SeenRequest { method, target, head, fault: fault.clone(), status: None });
        (self.seen.len() - 1, fault)
    }
}

async fn serve(mut client: TcpStream, upstream: SocketAddr, script: &Mutex<Script>) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut buffer = Vec::new();
    while let Some(head_length) = read_head(&mut client, &mut buffer).await? {
        let head = String::from_utf8_lossy(&buffer[..head_length]).into_owned();
        let request_length = head_length + content_length(&head);
        while buffer.len() < request_length {
            if client.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        }
        let request: Vec<u8> = buffer.drain(..request_length).collect();
        let (number, fault) = lock(script).take(&head);
        let mut answer = match &fault {
            Some(Fault::ResetBeforeHeaders) => {
                client.set_zero_linger()?;
                return Ok(());
            }
            Some(Fault::StallBeforeHeaders) => return stall(&mut client).await,
            Some(Fault::S3Error { status, code }) => {
                let text = format!(
                    "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>{code}</Code><Message>scripted</Message></Error>"
                );
                client.write_all(&answer_with(*status, "application/xml", &head, &text)).await?;
                continue;
            }
            Some(Fault::Html { status }) => {
                client.write_all(&answer_with(*status, "text/html", &head, "<html>scripted</html>")).await?;
                continue;
            }
            Some(Fault::WrongDate) => {
                let (head, body) = request.split_at(head_length);
                let head = an_hour_off(&String::from_utf8_lossy(head));
                ask(upstream, &[head.as_bytes(), body].concat(), head.len()).await?
            }
            _ => ask(upstream, &request, head_length).await?,
        };
        lock(script).seen[number].status = status(&answer);
        let body_at = find(&answer, b"\r\n\r\n").map_or(answer.len(), |at| at + 4);
        let half = body_at + (answer.len() - body_at) / 2;
        match fault {
            Some(Fault::WrongByte) => {
                if let [.., last] = &mut answer[body_at..] {
                    *last = !*last;
                }
                client.write_all(&answer).await?;
            }
            Some(Fault::ResetMidBody) => {
                client.write_all(&answer[..half]).await?;
                // A reset takes back what has not been delivered; on loopback the headers have been.
                client.set_zero_linger()?;
                return Ok(());
            }
            Some(Fault::ShortBody) => {
                client.write_all(&answer[..half]).await?;
                return client.shutdown().await;
            }
            Some(Fault::StallMidBody) => {
                client.write_all(&answer[..half]).await?;
                return stall(&mut client).await;
            }
            Some(Fault::Trickle { bytes_per_second }) => {
                client.write_all(&answer[..body_at]).await?;
                let pause = Duration::from_secs(1) / bytes_per_second.max(1);
                for byte in &answer[body_at..] {
                    client.write_all(std::slice::from_ref(byte)).await?;
                    tokio::time::sleep(pause).await;
                }
            }
            _ => client.write_all(&answer).await?,
        }
    }
    Ok(())
}

/// Reads until a whole head is in `buffer`; its length, or nothing when the client is gone.
async fn read_head(client: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<Option<usize>> {
    loop {
        if let Some(at) = find(buffer, b"\r\n\r\n") {
            return Ok(Some(at + 4));
        }
        if client.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}

/// Sends the request on a new connection and reads the answer to its end. Says `connection: close` upstream and not downstream.
async fn ask(upstream: SocketAddr, request: &[u8], head_length: usize) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(upstream).await?;
    stream.write_all(&request[..head_length - 2]).await?;
    stream.write_all(b"connection: close\r\n\r\n").await?;
    stream.write_all(&request[head_length..]).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    if let Some(at) = find(&answer, b"connection: close\r\n") {
        answer.drain(at..at + b"connection: close\r\n".len());
    }
    Ok(answer)
}

/// The head with `x-amz-date: YYYYMMDDTHHMMSSZ` an hour away on the same day, which the signature's scope names.
fn an_hour_off(head: &str) -> String {
    let name = "x-amz-date: ";
    let Some(at) = head.find(name).map(|at| at + name.len() + 9) else {
        return head.to_owned();
    };
    let hour: u32 = head[at..at + 2].parse().unwrap_or(0);
    let other = if hour == 0 { 1 } else { hour - 1 };
    format!("{}{other:02}{}", &head[..at], &head[at + 2..])
}

async fn stall(client: &mut TcpStream) -> io::Result<()> {
    let mut rest = [0; 1024];
    while client.read(&mut rest).await? > 0 {}
    Ok(())
}

fn answer_with(status: u16, kind: &str, request_head: &str, text: &str) -> Vec<u8> {
    let body = if request_head.starts_with("HEAD ") { "" } else { text };
    format!(
        "HTTP/1.1 {status} Scripted\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Of an answer: `HTTP/1.1 STATUS ...`.
fn status(answer: &[u8]) -> Option<u16> {
    std::str::from_utf8(answer.get(9..12)?).ok()?.parse().ok()
}

fn content_length(head: &str) -> usize {
    head.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse().ok())
        .unwrap_or(0)
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}
