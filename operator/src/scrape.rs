//! Takes addresses of workers, gives what they say of themselves.
//!
//! Each answer is bounded in bytes and time, nothing is followed elsewhere, and a worker that answers badly is one value that
//! is missing.

/// TLS to workers.
mod tls;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use feedmill_protocol::http::PATH_STATUS;
use feedmill_protocol::report::{WorkerStatus, newest};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::beside::beside;
use crate::size::count;
use crate::validate::Key;

/// The longest answer: some 800 ranks.
const MAX_BYTES: usize = 256 << 10;
/// The longest wait, for everything together: a worker in the same cluster answers in milliseconds.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Requests at once, over all pipelines.
const AT_ONCE: usize = 32;
/// Workers to which ranks report, and those not known yet, are asked this often.
const OFTEN: Duration = Duration::from_secs(5);
/// All others, and those that do not answer.
const SELDOM: Duration = Duration::from_secs(30);

/// Why a worker said nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScrapeError {
    /// No connection.
    #[error("it cannot be connected to: {0}")]
    Connect(String),
    /// Too slow.
    #[error("it did not answer within 2 s")]
    Timeout,
    /// Something else than 200.
    #[error("it answered {0}")]
    Status(u16),
    /// Something that is no status.
    #[error("its answer is no status: {0}")]
    Body(String),
}

/// What is known of one worker.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The round in which it was asked last.
    pub round: Instant,
    /// When it was asked: of many, some wait for their turn.
    pub at: Instant,
    /// Whether it was ready then.
    pub ready: bool,
    /// What it said.
    pub answer: Result<Arc<WorkerStatus>, ScrapeError>,
    /// How often in a row it has not answered since.
    pub misses: u8,
}

/// One that does not answer this often in a row says nothing any more; before, what it said last counts.
const MOST_MISSES: u8 = 3;

/// A worker to ask.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Its pipeline.
    pub key: Key,
    /// Its pod's identity.
    pub uid: String,
    /// Its address.
    pub address: IpAddr,
    /// Where it listens.
    pub port: u16,
    /// Whether it speaks TLS there.
    pub tls: bool,
    /// Whether it is asked often, whatever it said: the size of its fleet depends on it.
    pub often: bool,
    /// Whether it is ready, by its pod.
    pub ready: bool,
}

/// What all workers said last.
#[derive(Debug, Default)]
pub struct Answers(Mutex<HashMap<String, Seen>>);

impl Answers {
    /// What the worker of a pod said last.
    #[must_use]
    pub fn of(&self, uid: &str) -> Option<Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(uid).cloned()
    }

    fn keep(&self, uid: &str, mut seen: Seen) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Err(_), Some(before)) = (&seen.answer, all.get(uid)) {
            seen.misses = before.misses.saturating_add(1);
            if before.answer.is_ok() && seen.misses < MOST_MISSES {
                seen.answer = before.answer.clone();
            }
        }
        let new = seen.answer.is_ok() != all.get(uid).is_some_and(|before| before.answer.is_ok());
        let changed = match (all.get(uid).map(|before| &before.answer), &seen.answer) {
            (Some(Ok(before)), Ok(now)) => {
                (&before.streams, before.state, &before.problems, &before.doing)
                    != (&now.streams, now.state, &now.problems, &now.doing)
                    || before.reports.len() != now.reports.len()
            }
            _ => new,
        };
        all.insert(uid.to_owned(), seen);
        changed
    }

    /// Asks whom it is time to ask, and gives the pipelines of which something is new. Forgets pods that are gone.
    pub async fn round(
        self: &Arc<Self>,
        targets: Vec<Target>,
        now: Instant,
        clock: impl Fn() -> Instant + Copy + Send + 'static,
    ) -> Vec<Key> {
        let due: Vec<Target> = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let there: HashSet<&str> = targets.iter().map(|target| target.uid.as_str()).collect();
            all.retain(|uid, _| there.contains(uid.as_str()));
            targets.iter().filter(|target| is_due(target, all.get(&target.uid), now)).cloned().collect()
        };
        // Who waits for a place is a line in a list and no task yet: a task has 6 kB, and there are thousands of workers.
        let (mut due, mut tasks, mut keys) = (due.into_iter(), tokio::task::JoinSet::new(), BTreeSet::new());
        loop {
            while tasks.len() < AT_ONCE
                && let Some(target) = due.next()
            {
                let answers = Arc::clone(self);
                tasks.spawn(async move {
                    let at = clock();
                    let answer =
                        ask(SocketAddr::new(target.address, target.port), target.tls).await.map(Arc::new);
                    let seen = Seen { round: now, at, ready: target.ready, answer, misses: 0 };
                    answers.keep(&target.uid, seen).then_some(target.key)
                });
            }
            match tasks.join_next().await {
                // One that ended unexpectedly has nothing new.
                Some(ended) => keys.extend(ended.ok().flatten()),
                None => break,
            }
        }
        keys.into_iter().collect()
    }
}

fn is_due(target: &Target, seen: Option<&Seen>, now: Instant) -> bool {
    let Some(seen) = seen else { return true };
    let quiet =
        seen.answer.as_ref().is_ok_and(|status| status.reports.is_empty() && !status.streams.is_empty());
    // A fleet that cannot be reached must not hold up the others' reports, 2 s for each worker. One that has become ready since answers.
    let silent = seen.misses >= MOST_MISSES && seen.ready == target.ready;
    let pause = if silent || (quiet && !target.often) { SELDOM } else { OFTEN };
    now.saturating_duration_since(seen.round) >= pause
}

/// Asks one worker.
async fn ask(address: SocketAddr, tls: bool) -> Result<WorkerStatus, ScrapeError> {
    let asked = async {
        let stream = TcpStream::connect(address).await.map_err(cannot_connect)?;
        if !tls {
            return answer(address, stream).await;
        }
        answer(address, tls::secure(address.ip(), stream).await.map_err(cannot_connect)?).await
    };
    tokio::time::timeout(TIMEOUT, asked).await.map_err(|_| ScrapeError::Timeout)?
}

fn cannot_connect(error: impl std::fmt::Display) -> ScrapeError {
    ScrapeError::Connect(error.to_string())
}

async fn answer<S>(address: SocketAddr, stream: S) -> Result<WorkerStatus, ScrapeError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(cannot_connect)?;
    let answer = async {
        let request = http::Request::get(PATH_STATUS)
            .header(http::header::HOST, address.to_string())
            .body(Empty::<Bytes>::new())
            .map_err(cannot_connect)?;
        let response = sender.send_request(request).await.map_err(cannot_connect)?;
        if response.status() != http::StatusCode::OK {
            return Err(ScrapeError::Status(response.status().as_u16()));
        }
        let body = Limited::new(response.into_body(), MAX_BYTES)
            .collect()
            .await
            .map_err(|error| ScrapeError::Body(error.to_string()))?;
        serde_json::from_slice(&body.to_bytes()).map_err(|error| ScrapeError::Body(error.to_string()))
    };
    beside(answer, connection).await
}

/// What the ranks of all runs report, as one figure each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Ranks with a fresh report.
    pub ranks: i32,
    /// The largest share of its time that a rank waits, in thousandths.
    pub wait_permille: Option<i32>,
    /// The emptiest queue, in percent of what its rank wants in hand.
    pub queue_fill_percent: Option<i32>,
}

/// Reports older than this are stale, in milliseconds; they come every 2 s.
const STALE_MS: u64 = 15_000;

/// Merges what ranks report to several workers: of each run, stream and rank the newest report counts. Streams that are only evaluated are
/// left out, as are reports by another plan.
#[must_use]
pub fn figures(statuses: &[&WorkerStatus], training: &dyn Fn(&str) -> bool) -> Figures {
    let reports = statuses.iter().flat_map(|status| {
        status.reports.iter().filter(|kept| {
            let stream = status.streams.get(&kept.report.stream);
            kept.age_ms <= STALE_MS
                && training(&kept.report.stream)
                && stream.is_some_and(|stream| stream.plan == kept.report.plan)
        })
    });
    let newest = newest(reports);
    let ranks: BTreeSet<(&str, u32)> = newest.keys().map(|(run, _, rank)| (*run, *rank)).collect();
    let wait = newest.values().filter_map(|kept| kept.report.wait_permille()).max();
    let fill = newest.values().map(|kept| &kept.report).filter(|report| report.target > 0).map(|report| {
        let full = u64::from(report.ready.min(report.target)) * 100;
        i32::try_from(full / u64::from(report.target)).unwrap_or(100)
    });
    Figures {
        ranks: count(ranks.len()),
        wait_permille: wait.map(u32::cast_signed),
        queue_fill_percent: fill.min(),
    }
}

#[cfg(test)]
pub(crate) mod tests;
