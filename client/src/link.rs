//! One HTTP/2 connection to a worker, opened when needed and opened again when it has ended.

use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use feedmill_access::{Application, Pass};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::buffer::Buffer;
use crate::error::{lock, span};
use crate::fault::Fault;
use crate::settings::{Endpoint, Timeouts};

/// The receiver decides how long DATA frames are; 1 MiB instead of 16 KiB halves the CPU of both sides
/// (measured), longer ones gain nothing and are buffered whole.
const FRAME_BYTES: u32 = 1 << 20;
/// Small enough that what has come is still in the cache when it is copied on.
const STREAM_WINDOW: u32 = 4 << 20;
/// More than the streams outstanding times their window, so that no unread stream blocks another.
const CONNECTION_WINDOW: u32 = 64 << 20;

/// A connection that opens itself.
pub(crate) struct Link {
    endpoint: Endpoint,
    timeouts: Timeouts,
    pass: Pass,
    /// Held while a connection is being opened, so that many askers open one.
    gate: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    session: Option<Session>,
    opened: u64,
    failed: u64,
    last_fault: Option<Fault>,
}

/// An open connection.
#[derive(Clone)]
pub(crate) struct Session {
    number: u64,
    sender: SendRequest<Full<Bytes>>,
}

impl Link {
    pub(crate) fn new(endpoint: Endpoint, timeouts: Timeouts, pass: Pass) -> Self {
        Self { endpoint, timeouts, pass, gate: tokio::sync::Mutex::new(()), state: Mutex::default() }
    }

    /// The open connection, or a new one.
    pub(crate) async fn session(&self) -> Result<Session, Fault> {
        let failed_before = lock(&self.state).failed;
        if let Some(session) = self.current() {
            return Ok(session);
        }
        let _gate = self.gate.lock().await;
        if let Some(session) = self.current() {
            return Ok(session);
        }
        // Whoever stood at the gate during a failure shares it instead of failing once more each.
        let shared = {
            let state = lock(&self.state);
            state.last_fault.clone().filter(|_| state.failed != failed_before)
        };
        if let Some(fault) = shared {
            return Err(fault);
        }
        let opened = self.open().await;
        let mut state = lock(&self.state);
        match opened {
            Ok(sender) => {
                state.opened += 1;
                let session = Session { number: state.opened, sender };
                state.session = Some(session.clone());
                Ok(session)
            }
            Err(fault) => {
                state.failed += 1;
                state.last_fault = Some(fault.clone());
                Err(fault)
            }
        }
    }

    /// Forgets this connection, unless it has been replaced already. True when it was the current one.
    pub(crate) fn discard(&self, number: u64) -> bool {
        let mut state = lock(&self.state);
        let is_current = state.session.as_ref().is_some_and(|session| session.number == number);
        if is_current {
            state.session = None;
        }
        is_current
    }

    /// Lets go of the connection: it ends when its last request has.
    pub(crate) fn close(&self) {
        lock(&self.state).session = None;
    }

    /// True while this connection is the current one and not known to have ended.
    pub(crate) fn is_open(&self, number: u64) -> bool {
        self.current().is_some_and(|session| session.number == number)
    }

    fn current(&self) -> Option<Session> {
        let state = lock(&self.state);
        let session = state.session.as_ref()?;
        (!session.sender.is_closed()).then(|| session.clone())
    }

    async fn open(&self) -> Result<SendRequest<Full<Bytes>>, Fault> {
        let connect = async {
            let address = (self.endpoint.host(), self.endpoint.port());
            let socket =
                TcpStream::connect(address).await.map_err(|error| Fault::Connect(error.to_string()))?;
            // Without it a request waits for the acknowledgement of the one before.
            let _ = socket.set_nodelay(true);
            if self.endpoint.is_tls() {
                let name = self.endpoint.server_name();
                let secured = self.pass.secure(name, socket, Application::Http2).await?;
                self.handshake(secured).await
            } else {
                self.handshake(socket).await
            }
        };
        match tokio::time::timeout(self.timeouts.connect, connect).await {
            Ok(opened) => opened,
            Err(_) => {
                let limit = self.timeouts.connect;
                Err(Fault::Connect(format!("no connection within {}", span(limit))))
            }
        }
    }

    /// HTTP/2 on a socket, which is served by a task of its own from then on.
    async fn handshake<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        socket: S,
    ) -> Result<SendRequest<Full<Bytes>>, Fault> {
        let (sender, connection) = Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_frame_size(FRAME_BYTES)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .keep_alive_interval(self.timeouts.keep_alive_interval)
            .keep_alive_timeout(self.timeouts.keep_alive_timeout)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(socket))
            .await
            .map_err(|error| Fault::Connect(error.to_string()))?;
        let endpoint = self.endpoint.clone();
        tokio::spawn(async move {
            match connection.await {
                Ok(()) => tracing::debug!(worker = %endpoint, "connection ended"),
                Err(error) => tracing::debug!(worker = %endpoint, %error, "connection broke"),
            }
        });
        Ok(sender)
    }
}

impl Session {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Sends a request, waits for the head of its answer.
    pub(crate) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
        limit: Duration,
    ) -> Result<Response<Incoming>, Fault> {
        let answer = async {
            self.sender.ready().await?;
            self.sender.send_request(request).await
        };
        match tokio::time::timeout(limit, answer).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(Fault::NoHead(limit)),
        }
    }
}

/// Copies a body of exactly `length` bytes into one buffer, each DATA frame once; tells of each frame.
pub(crate) async fn read_exactly(
    mut body: Incoming,
    length: usize,
    stall: Duration,
    heard: impl Fn(),
) -> Result<Buffer, Fault> {
    let expected = length as u64;
    let mut bytes = Buffer::with_room(length).map_err(|_| Fault::NoMemory(expected))?;
    loop {
        let received = bytes.len() as u64;
        let frame = match tokio::time::timeout(stall, body.frame()).await {
            Ok(Some(frame)) => frame?,
            Ok(None) => break,
            Err(_) => return Err(Fault::Stalled { received, expected }),
        };
        heard();
        if let Ok(data) = frame.into_data() {
            let received = received + data.len() as u64;
            if received > expected {
                return Err(Fault::Length { received, expected });
            }
            bytes.extend(&data);
        }
    }
    match bytes.len() as u64 {
        received if received == expected => Ok(bytes),
        received => Err(Fault::Length { received, expected }),
    }
}

/// Reads a body of unknown length up to a bound; what lies beyond is an error or cut off.
pub(crate) async fn read_bounded(
    mut body: Incoming,
    bound: usize,
    stall: Duration,
) -> Result<(Vec<u8>, bool), Fault> {
    let mut bytes = Vec::new();
    loop {
        let received = bytes.len() as u64;
        let frame = match tokio::time::timeout(stall, body.frame()).await {
            Ok(Some(frame)) => frame?,
            Ok(None) => return Ok((bytes, true)),
            Err(_) => {
                return Err(Fault::Stalled { received, expected: received });
            }
        };
        if let Ok(data) = frame.into_data() {
            let room = bound - bytes.len();
            bytes.extend_from_slice(&data[..data.len().min(room)]);
            if data.len() > room {
                return Ok((bytes, false));
            }
        }
    }
}
