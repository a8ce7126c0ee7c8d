//! Takes the Prometheus servers that the operator was given and the pipelines that name one, gives the numbers that their queries have.
//!
//! A pipeline names a server and never says an address or a query, so nobody who may write pipelines sends the operator anywhere. Each answer
//! is bounded in bytes and time, nothing is followed elsewhere, and what cannot be read is a number that is missing.

/// Whom to trust and what to show, over TLS.
mod secure;
/// A server and its queries.
mod server;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use feedmill_protocol::pipeline::FieldError;
use feedmill_scaler::prometheus::{MOST_BYTES, MOST_MS, Mute, Numbers, number};
use futures_util::StreamExt as _;
use futures_util::future::{OptionFuture, join3};
use http::{HeaderValue, header};
use http_body_util::{BodyExt as _, Empty, LengthLimitError, Limited};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::beside::beside;
use crate::metrics::Metrics;
use crate::validate::{Key, ValidatedPipeline};

pub use server::{Server, ServerError};

/// A server is asked for all its pipelines this often: once in a window.
pub const ROUND: Duration = Duration::from_secs(10);
/// Pipelines that one server is asked for at once, three queries each.
const AT_ONCE: usize = 16;
/// Two rounds and an answer: what is older was not asked for in time, because the server is too slow for all its pipelines.
const OLD: Duration = Duration::from_secs(25);

/// What was answered for one pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct Heard {
    /// Which server.
    server: String,
    /// When it was asked.
    at: Instant,
    numbers: Numbers,
}

impl Heard {
    /// The numbers, unless they are older than they can be.
    #[must_use]
    pub fn numbers(&self, now: Instant) -> Numbers {
        if now.saturating_duration_since(self.at) <= OLD {
            return self.numbers.clone();
        }
        let late = || Err(Mute::Late);
        Numbers { wait: late(), fill: late(), desired: self.numbers.desired.as_ref().map(|_| late()) }
    }

    #[cfg(test)]
    pub(crate) fn new(server: &str, at: Instant, numbers: Numbers) -> Self {
        Self { server: server.into(), at, numbers }
    }
}

/// A pipeline to ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// Which one.
    pub key: Key,
    /// Samples that were scraped longer ago do not count, in seconds.
    pub stale_after: u32,
}

/// The servers, and what they answered last.
#[derive(Debug, Default)]
pub struct Queries {
    servers: Vec<Arc<Server>>,
    heard: Mutex<HashMap<Key, Heard>>,
}

impl Queries {
    /// Of these servers.
    ///
    /// # Errors
    /// Two of one name.
    pub fn of(servers: &[Server]) -> Result<Self, ServerError> {
        let mut names = HashSet::new();
        if let Some(twice) = servers.iter().find(|server| !names.insert(&server.name)) {
            return Err(ServerError::Twice(twice.name.clone()));
        }
        Ok(Self { servers: servers.iter().cloned().map(Arc::new).collect(), heard: Mutex::default() })
    }

    /// The servers.
    #[must_use]
    pub fn servers(&self) -> &[Arc<Server>] {
        &self.servers
    }

    /// A pipeline whose server there is.
    ///
    /// # Errors
    /// It names one that the operator was not given.
    pub fn known(&self, pipeline: ValidatedPipeline) -> Result<ValidatedPipeline, Vec<FieldError>> {
        let Some(name) = &pipeline.signal else { return Ok(pipeline) };
        if self.servers.iter().any(|server| server.name == *name) {
            return Ok(pipeline);
        }
        let known: Vec<&str> = self.servers.iter().map(|server| server.name.as_str()).collect();
        let known = if known.is_empty() {
            "the operator was given none (operator.prometheus of its chart)".to_owned()
        } else {
            format!("the operator was given: {}", known.join(", "))
        };
        let reason = format!("there is no server of the name {name}; {known}");
        Err(vec![FieldError { field: "spec.autoscaling.signal.prometheus".into(), reason }])
    }

    /// What this server said of a pipeline last.
    #[must_use]
    pub fn heard(&self, key: &Key, server: &str) -> Option<Heard> {
        let all = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(key).filter(|heard| heard.server == server).cloned()
    }

    /// Asks one server for all these, and forgets all others of it. Both clocks are read when an answer is there: `calendar` in milliseconds
    /// since 1970.
    pub async fn round(
        self: &Arc<Self>,
        server: &Arc<Server>,
        all: Vec<Due>,
        metrics: &Arc<Metrics>,
        clock: impl Fn() -> Instant + Copy + Send + 'static,
        calendar: impl Fn() -> u64 + Copy + Send + Sync + 'static,
    ) {
        {
            let there: HashSet<&Key> = all.iter().map(|due| &due.key).collect();
            let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
            heard.retain(|key, heard| heard.server != server.name || there.contains(key));
        }
        let asked = all.into_iter().map(|due| {
            let (queries, server, metrics) = (Arc::clone(self), Arc::clone(server), Arc::clone(metrics));
            async move {
                let at = clock();
                let numbers = numbers(&server, &due, calendar).await;
                for result in [Some(&numbers.wait), Some(&numbers.fill), numbers.desired.as_ref()] {
                    let Some(result) = result else { continue };
                    metrics.queried(&server.name, result.as_ref().map_or_else(Mute::label, |_| "answered"));
                }
                let heard = Heard { server: server.name.clone(), at, numbers };
                queries.heard.lock().unwrap_or_else(PoisonError::into_inner).insert(due.key, heard);
            }
        });
        futures_util::stream::iter(asked).buffer_unordered(AT_ONCE).collect::<()>().await;
    }
}

/// All queries for one pipeline, beside each other.
async fn numbers(server: &Server, due: &Due, calendar: impl Fn() -> u64 + Copy + Sync) -> Numbers {
    let of = |query: &str| {
        let path = server.path(query, &due.key, due.stale_after);
        async move {
            let (status, body) = ask(server, &path).await?;
            number(status, &body, calendar(), u64::from(due.stale_after) * 1000)
        }
    };
    let desired: OptionFuture<_> = server.desired.as_deref().map(of).into();
    let (wait, fill, desired) = join3(of(&server.wait), of(&server.fill), desired).await;
    Numbers { wait, fill, desired }
}

/// Status and body of one answer.
async fn ask(server: &Server, path: &str) -> Result<(u16, Bytes), Mute> {
    let asked = async {
        // Before there is a connection: nobody is asked without what is needed.
        let files = match &server.secure {
            Some(secure) => Some(secure.read().await?),
            None => None,
        };
        let stream = TcpStream::connect((server.host.as_str(), server.port)).await.map_err(|_| Mute::Down)?;
        let Some((pass, token)) = files else { return exchange(stream, server, path, None).await };
        exchange(secure::secured(&pass, &server.host, stream).await?, server, path, token).await
    };
    tokio::time::timeout(Duration::from_millis(MOST_MS), asked).await.unwrap_or(Err(Mute::Late))
}

/// One request and its answer on a connection.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    server: &Server,
    path: &str,
    token: Option<HeaderValue>,
) -> Result<(u16, Bytes), Mute> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|_| Mute::Down)?;
    let answer = async {
        let mut request = http::Request::get(path)
            .header(header::HOST, &server.authority)
            .body(Empty::<Bytes>::new())
            .map_err(|_| Mute::Unreadable)?;
        request.headers_mut().extend(token.map(|token| (header::AUTHORIZATION, token)));
        let response = sender.send_request(request).await;
        let response =
            response.map_err(|error| if error.is_parse() { Mute::Unreadable } else { Mute::Down })?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), MOST_BYTES)
            .collect()
            .await
            .map_err(|error| if error.is::<LengthLimitError>() { Mute::Large } else { Mute::Down })?;
        Ok((status, body.to_bytes()))
    };
    beside(answer, connection).await
}

#[cfg(test)]
mod tests;
