//! The agent of this node: batches by reference, over a Unix socket.
//!
//! ```text
//! pursue, plan, report ─► connection (asks, answers, leases) ─► socket
//!         └─► unless_gone (an agent that stays away is an error, never a reason to ask workers)
//! ```
//!
//! A batch lies in the agent's memory until its last view is gone. A reader may hold a share of that memory; what
//! comes beyond it is copied out, so that keeping batches never stops the next ones.

/// One connection to an agent, and what it lends.
mod connection;
/// Messages and descriptors over a socket, for both ends.
mod wire;

use std::future::Future;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use feedmill_protocol::http::{PATH_PLAN, PATH_REPORTS};
use feedmill_protocol::local::Ask;
use feedmill_protocol::report::{RankReport, WorkerStatus};
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

use crate::batch::Batch;
use crate::chance;
use crate::control::{StreamPlan, stream_plan, worker_status};
use crate::error::{Attempt, ClientError, Disagreement, SharedHistory};
use crate::fault::{Fault, Verdict};
use crate::fleet::BatchRequest;
use crate::pursuit::LONGEST_NEED;
use crate::settings::{Endpoint, FleetSettings, Timeouts};
use connection::{Connection, Lending};
pub use wire::LocalWire;

/// An agent, connected when first needed and again whenever the connection is lost.
pub(crate) struct Agent {
    socket: PathBuf,
    run: String,
    timeouts: Timeouts,
    max_batch_bytes: u64,
    verify_hashes: bool,
    current: Mutex<Option<Arc<Connection>>>,
    reach: Arc<watch::Sender<Reach>>,
    lending: Arc<Lending>,
}

/// Whether the agent is there.
#[derive(Clone, Debug)]
pub(crate) enum Reach {
    /// As far as is known.
    There,
    /// It is not.
    Gone {
        /// Since when.
        since: Instant,
        /// What happened last.
        reason: String,
    },
}

/// How batches lent by an agent stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentStats {
    /// Bytes of the agent's memory that this process holds.
    pub held_bytes: u64,
    /// Bytes that it may hold; 0 before the first connection.
    pub share_bytes: u64,
    /// Batches that were copied out because too much was held.
    pub copied_out: u64,
    /// Connections made.
    pub connections: u64,
}

impl Agent {
    pub(crate) fn new(socket: PathBuf, settings: &FleetSettings) -> Self {
        Self {
            socket,
            run: settings.run.clone(),
            timeouts: settings.timeouts.clone(),
            max_batch_bytes: settings.max_batch_bytes,
            verify_hashes: settings.verify_hashes,
            current: Mutex::new(None),
            reach: Arc::new(watch::Sender::new(Reach::There)),
            lending: Arc::default(),
        }
    }

    pub(crate) fn stats(&self) -> AgentStats {
        self.lending.stats()
    }

    /// The connection, made anew when it is lost; waits as long as it takes.
    async fn connection(&self) -> Arc<Connection> {
        let mut current = self.current.lock().await;
        if let Some(connection) = current.as_ref().filter(|connection| !connection.is_closed()) {
            return Arc::clone(connection);
        }
        *current = None;
        let mut failures = 0u32;
        loop {
            let opened = Connection::open(&self.socket, &self.run, &self.lending, &self.reach);
            let reason = match tokio::time::timeout(self.timeouts.connect, opened).await {
                Ok(Ok(connection)) => {
                    self.reach.send_replace(Reach::There);
                    *current = Some(Arc::clone(&connection));
                    return connection;
                }
                Ok(Err(fault)) => fault.to_string(),
                Err(_) => Fault::NoHead(self.timeouts.connect).to_string(),
            };
            failures = failures.saturating_add(1);
            gone(&self.reach, reason);
            tokio::time::sleep(self.timeouts.backoff(failures, chance::jitter())).await;
        }
    }

    /// Waits, unless the agent stays away too long. Each call gives it the whole time anew.
    ///
    /// # Errors
    /// What was waited for, or [`ClientError::Agent`].
    pub(crate) async fn unless_gone<T>(
        &self,
        waited: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        let begin = chance::now();
        let mut waited = pin!(waited);
        let mut reach = self.reach.subscribe();
        loop {
            let seen = reach.borrow_and_update().clone();
            // One that was there, as far as was known, is asked first.
            let Reach::Gone { since, reason } = seen else {
                tokio::select! {
                    biased;
                    done = &mut waited => return done,
                    // The sender is ours.
                    _ = reach.changed() => continue,
                }
            };
            tokio::select! {
                biased;
                done = &mut waited => return done,
                _ = reach.changed() => {}
                () = tokio::time::sleep_until(since.max(begin) + self.timeouts.agent) => {
                    let away = chance::now() - since;
                    return Err(ClientError::Agent { socket: self.socket.clone(), away, reason });
                }
            }
        }
    }

    /// That the agent does not answer, for whoever has waited so long for it in vain.
    pub(crate) fn unreachable(&self, waited: Duration) -> Option<ClientError> {
        let never = self.lending.stats().connections == 0;
        let (away, reason) = match self.reach.borrow().clone() {
            Reach::Gone { reason, .. } if never => (waited, reason),
            Reach::Gone { since, reason } => (chance::now() - since, reason),
            Reach::There if never => (waited, "it does not answer the hello".to_owned()),
            Reach::There => return None,
        };
        Some(ClientError::Agent { socket: self.socket.clone(), away, reason })
    }

    /// Says in the history who is asked in the workers' stead.
    fn note(&self, history: &SharedHistory) {
        history.note(Some(format!("by way of the agent at {}", self.socket.display())));
    }

    /// Asks for one range, for as long as it takes; whoever waits decides how long that is.
    pub(crate) async fn pursue(
        &self,
        request: &BatchRequest,
        history: &SharedHistory,
    ) -> Result<Batch, ClientError> {
        self.note(history);
        let begin = chance::now();
        let needed_at = begin + request.need.min(LONGEST_NEED);
        let mut failures = 0u32;
        loop {
            let connection = self.connection().await;
            history.asking(connection.url());
            let asked = connection.batch(request, needed_at, self.max_batch_bytes, self.verify_hashes);
            let (worker, fault) = match asked.await {
                Ok(mut batch) => {
                    batch.timings.total = chance::now() - begin;
                    batch.timings.failures = failures;
                    return Ok(batch);
                }
                Err(failed) => failed,
            };
            failures = failures.saturating_add(1);
            tracing::debug!(%worker, range = %request.range, reason = %fault, "the agent gave no batch");
            let after = chance::now() - begin;
            history.push(Attempt { worker: worker.clone(), after, fault: fault.clone() });
            let pause = match fault.verdict() {
                // An agent is the only one to be asked.
                Verdict::Fatal | Verdict::Unreadable => {
                    return Err(ClientError::refused(&request.stream, request.range, &worker, fault));
                }
                Verdict::Exclude => {
                    let Fault::OtherPlan { theirs } = fault else { continue };
                    let Some(expected) = request.plan.get() else { continue };
                    return Err(ClientError::OtherPlan {
                        stream: request.stream.clone(),
                        range: request.range,
                        expected,
                        workers: vec![Disagreement { worker, plan: theirs }],
                    });
                }
                // The workers do not admit the agent.
                Verdict::Denied => return Err(ClientError::Denied { worker, fault: Box::new(fault) }),
                // Connecting anew has pauses of its own, unless it works and the connection breaks at once.
                Verdict::Down | Verdict::Reopen if failures < 2 => continue,
                Verdict::Rest(pause) => pause,
                Verdict::Down | Verdict::Reopen | Verdict::AskAnother => {
                    self.timeouts.backoff(failures, chance::jitter())
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// The plan of a stream, asked again while the agent has none.
    pub(crate) async fn plan(&self, stream: &str) -> Result<StreamPlan, ClientError> {
        let history = SharedHistory::default();
        self.note(&history);
        let begin = chance::now();
        let asked = self.unless_gone(async {
            let mut failures = 0u32;
            loop {
                let connection = self.connection().await;
                let url = connection.url();
                history.asking(url);
                let fault = match connection.document(|id| Ask::Plan { id }).await {
                    Ok(body) => return stream_plan(body.as_bytes(), url, stream),
                    Err(fault) => fault,
                };
                match fault.verdict() {
                    Verdict::Denied => {
                        return Err(ClientError::Denied { worker: url.clone(), fault: Box::new(fault) });
                    }
                    Verdict::Fatal => return Err(ClientError::control(url, PATH_PLAN, fault)),
                    _ => {}
                }
                history.push(Attempt { worker: url.clone(), after: chance::now() - begin, fault });
                failures = failures.saturating_add(1);
                tokio::time::sleep(self.timeouts.backoff(failures, chance::jitter())).await;
            }
        });
        let waited = self.timeouts.total;
        tokio::time::timeout(waited, asked).await.unwrap_or_else(|_| {
            let history = history.snapshot();
            Err(self.unreachable(waited).unwrap_or(ClientError::NoAnswer {
                path: PATH_PLAN,
                waited,
                history,
            }))
        })
    }

    /// What the agent says of itself.
    pub(crate) async fn status(&self) -> Vec<(Endpoint, Result<WorkerStatus, ClientError>)> {
        let asked = async {
            let connection = self.connection().await;
            let answer = connection.document(|id| Ask::Status { id }).await;
            (connection.url().clone(), worker_status(connection.url(), answer))
        };
        tokio::time::timeout(self.timeouts.control, asked).await.into_iter().collect()
    }

    /// Gives a rank's report to the agent, which passes it on.
    pub(crate) async fn report(&self, report: &RankReport) -> Result<(), ClientError> {
        let history = SharedHistory::default();
        self.note(&history);
        let begin = chance::now();
        let asked = async {
            let connection = self.connection().await;
            let worker = connection.url();
            history.asking(worker);
            match connection.document(|id| Ask::Report { id, report: report.clone() }).await {
                Ok(_) => Ok(()),
                Err(fault) => Err(match ClientError::run_mismatch(&report.run, worker, fault) {
                    Ok(mismatch) => Some(mismatch),
                    Err(fault) => {
                        let after = chance::now() - begin;
                        history.push(Attempt { worker: worker.clone(), after, fault });
                        None
                    }
                }),
            }
        };
        match tokio::time::timeout(self.timeouts.control, asked).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(Some(error))) => Err(error),
            Ok(Err(None)) | Err(_) => {
                let (waited, history) = (chance::now() - begin, history.snapshot());
                let unanswered = ClientError::NoAnswer { path: PATH_REPORTS, waited, history };
                Err(self.unreachable(waited).unwrap_or(unanswered))
            }
        }
    }
}

/// Notes that the agent is not there; the first moment of it stays.
fn gone(reach: &watch::Sender<Reach>, reason: String) {
    reach.send_modify(|reach| match reach {
        Reach::Gone { reason: last, .. } => *last = reason,
        Reach::There => *reach = Reach::Gone { since: chance::now(), reason },
    });
}
