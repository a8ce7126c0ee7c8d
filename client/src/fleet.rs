//! The workers of a stream, and one range fetched from whichever of them can.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use feedmill_protocol::http::problem_kind;
use feedmill_protocol::plan::PlanDigest;
use feedmill_protocol::position::Range;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::attempt::Attempt;
use crate::batch::Batch;
use crate::chance;
use crate::choice::{self, Choice, Standing};
use crate::error::{Attempt as FailedAttempt, ClientError, Disagreement, SharedHistory, lock};
use crate::fault::{Fault, Verdict};
use crate::member::Member;
use crate::settings::{Endpoint, FleetSettings};

/// A need is not told longer than this: no worker plans further ahead, and sums of times stay sums.
const LONGEST_NEED: Duration = Duration::from_secs(24 * 3600);

/// A handle to the workers, shared by whoever pulls in this process. Cheap to clone. Connections are
/// opened when first needed, on the runtime of whoever needs them; any tokio runtime with I/O and time
/// will do, also one of a single thread.
#[derive(Clone)]
pub struct Fleet {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) settings: FleetSettings,
    /// Sorted by endpoint: the order that all ranks share.
    members: Mutex<Arc<[Arc<Member>]>>,
    /// A worker came back, or the list changed.
    changed: Arc<Notify>,
}

/// The plan that a trainer reads by: given, or fixed by the first batch that comes. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct ExpectedPlan(Arc<OnceLock<PlanDigest>>);

impl ExpectedPlan {
    /// Any plan, until the first batch fixes it.
    #[must_use]
    pub fn any() -> Self {
        Self::default()
    }

    /// The plan, once it is fixed.
    #[must_use]
    pub fn get(&self) -> Option<PlanDigest> {
        self.0.get().copied()
    }

    /// Fixes it, unless it is fixed already; gives what it is then.
    pub(crate) fn fix(&self, plan: PlanDigest) -> PlanDigest {
        *self.0.get_or_init(|| plan)
    }
}

impl From<Option<PlanDigest>> for ExpectedPlan {
    fn from(plan: Option<PlanDigest>) -> Self {
        let expected = Self::any();
        if let Some(plan) = plan {
            expected.fix(plan);
        }
        expected
    }
}

/// One range of one stream, asked for.
#[derive(Clone, Debug)]
pub struct BatchRequest {
    /// The stream.
    pub stream: String,
    /// The positions.
    pub range: Range,
    /// The trainer's end; rows at or past it are filler.
    pub stop: Option<u64>,
    /// How long until it is needed; zero = it is waited for now.
    pub need: Duration,
    /// The asker's rank in the run.
    pub rank: u64,
    /// The plan it must be made by.
    pub plan: ExpectedPlan,
    /// Workers known to have died under it before; 0 when nothing is known.
    pub deaths: u32,
}

impl Fleet {
    /// A fleet of these workers. Opens nothing yet.
    ///
    /// # Errors
    /// A run name that cannot stand in a header, bounds of zero.
    pub fn new(settings: FleetSettings) -> Result<Self, ClientError> {
        let setting = |name, reason: &str| ClientError::Setting { name, reason: reason.to_owned() };
        if !is_plain(&settings.run) {
            return Err(setting("run", "must have 1 to 128 characters out of letters, digits and ._:/@-"));
        }
        if settings.streams_per_connection == 0 {
            return Err(setting("streams_per_connection", "must be at least 1"));
        }
        if settings.timeouts.backoff_min.is_zero() {
            return Err(setting("timeouts.backoff_min", "must be above zero"));
        }
        let fleet = Self {
            inner: Arc::new(Inner {
                members: Mutex::new(Arc::new([])),
                changed: Arc::new(Notify::new()),
                settings,
            }),
        };
        fleet.set_workers(fleet.inner.settings.workers.clone());
        Ok(fleet)
    }

    /// The workers from now on. Those that stay keep their connections; requests outstanding at others
    /// are not cut off.
    pub fn set_workers(&self, mut workers: Vec<Endpoint>) {
        workers.sort_unstable();
        workers.dedup();
        let mut members = lock(&self.inner.members);
        *members = workers
            .into_iter()
            .map(|endpoint| {
                let known = members.iter().find(|member| member.endpoint == endpoint);
                known.cloned().unwrap_or_else(|| Arc::new(Member::new(endpoint, &self.inner.settings)))
            })
            .collect();
        drop(members);
        self.inner.changed.notify_waiters();
    }

    /// The workers, sorted.
    #[must_use]
    pub fn workers(&self) -> Vec<Endpoint> {
        let members = self.members();
        members.iter().map(|member| member.endpoint.clone()).collect()
    }

    pub(crate) fn members(&self) -> Arc<[Arc<Member>]> {
        Arc::clone(&lock(&self.inner.members))
    }

    /// One range from whichever worker can make it. Dropping the future takes the request back.
    ///
    /// # Errors
    /// A refusal that every worker would repeat, no worker with this plan, or nothing within
    /// `timeouts.total` after it was needed.
    pub async fn fetch(&self, request: &BatchRequest) -> Result<Batch, ClientError> {
        let history = SharedHistory::default();
        let pursuit = pin!(self.pursue(request, &history));
        self.patiently(&request.stream, request.range, request.need, &history, pursuit).await?
    }

    /// Waits for a pursuit, warns when it lasts, gives up when it lasts too long.
    pub(crate) async fn patiently<F: Future + Unpin>(
        &self,
        stream: &str,
        range: Range,
        need: Duration,
        history: &SharedHistory,
        mut pursuit: F,
    ) -> Result<F::Output, ClientError> {
        let timeouts = &self.inner.settings.timeouts;
        let need = need.min(LONGEST_NEED);
        let warning = timeouts.warning.min(timeouts.total);
        if let Ok(output) = tokio::time::timeout(need.saturating_add(warning), &mut pursuit).await {
            return Ok(output);
        }
        if warning < timeouts.total {
            tracing::warn!(stream, %range, waited = ?warning, history = %history.snapshot(), "still waiting for a batch");
            let rest = timeouts.total - warning;
            if let Ok(output) = tokio::time::timeout(rest, &mut pursuit).await {
                return Ok(output);
            }
        }
        Err(ClientError::TimedOut {
            stream: stream.to_owned(),
            range,
            waited: timeouts.total,
            history: history.snapshot(),
        })
    }

    /// Asks one worker after another, for as long as it takes; whoever waits decides how long that is.
    pub(crate) async fn pursue(
        &self,
        request: &BatchRequest,
        history: &SharedHistory,
    ) -> Result<Batch, ClientError> {
        if !is_plain(&request.stream) || request.stream.contains('/') {
            return Err(ClientError::Setting {
                name: "stream",
                reason: format!("{:?} is no stream's name", request.stream),
            });
        }
        let begin = chance::now();
        let mut round = Round::default();
        let mut deaths = request.deaths;
        loop {
            let mut changed = pin!(self.inner.changed.notified());
            changed.as_mut().enable();
            let now = chance::now();
            let members = self.members();
            for member in members.iter() {
                member.probe_when_due(now, &self.inner.changed);
            }
            let expected = request.plan.get();
            let standings: Vec<Standing> = members
                .iter()
                .map(|member| {
                    let standing = member.standing(&request.stream, expected);
                    let tried = round.tried.contains(&member.endpoint);
                    match standing {
                        Standing::Ready if tried => Standing::Tried,
                        Standing::Resting(until) if tried && until <= now => Standing::Tried,
                        other => other,
                    }
                })
                .collect();
            let mut earliest = None;
            match choice::choose(request.range, &standings, now) {
                Choice::Ask(index) => {
                    let member = &members[index];
                    history.asking(&member.endpoint);
                    let attempt = Attempt {
                        settings: &self.inner.settings,
                        request,
                        needed_at: begin + request.need.min(LONGEST_NEED),
                        deaths,
                    };
                    let (connection, fault) = match attempt.at(member).await {
                        Ok(mut batch) => {
                            batch.timings.total = chance::now() - begin;
                            batch.timings.failures = round.failures;
                            return Ok(batch);
                        }
                        Err(failed) => failed,
                    };
                    round.failures = round.failures.saturating_add(1);
                    deaths = deaths.saturating_add(u32::from(fault.is_death()));
                    tracing::debug!(worker = %member.endpoint, range = %request.range, reason = %fault, "attempt failed");
                    history.push(FailedAttempt {
                        worker: member.endpoint.clone(),
                        after: chance::now() - begin,
                        fault: fault.clone(),
                    });
                    self.follow(request, member, connection, fault, &mut round)?;
                    continue;
                }
                Choice::NoneAgrees { all_live } => {
                    let since = *round.disagreed_since.get_or_insert(now);
                    if all_live || now - since >= self.inner.settings.timeouts.plan_grace {
                        return Err(disagreement(request, &members, expected));
                    }
                }
                Choice::Wait(pause_ends) => {
                    round.disagreed_since = None;
                    earliest = pause_ends;
                }
            }
            let timeouts = &self.inner.settings.timeouts;
            let resume_at = *round.resume_at.get_or_insert_with(|| match earliest {
                Some(earliest) => earliest,
                None => now + timeouts.backoff(round.number + 1, chance::jitter()),
            });
            if tokio::time::timeout_at(resume_at, changed).await.is_err() {
                round.next();
            }
        }
    }

    /// Draws the consequences of a fault.
    fn follow(
        &self,
        request: &BatchRequest,
        member: &Member,
        connection: Option<u64>,
        fault: Fault,
        round: &mut Round,
    ) -> Result<(), ClientError> {
        let now = chance::now();
        match fault.verdict() {
            Verdict::Fatal => {
                if let Fault::Status { problem, .. } = &fault
                    && problem.kind == problem_kind::LETHAL_SAMPLE
                {
                    return Err(ClientError::LethalSample {
                        stream: request.stream.clone(),
                        range: request.range,
                        problem: problem.clone(),
                    });
                }
                return Err(ClientError::Refused {
                    stream: request.stream.clone(),
                    range: request.range,
                    worker: member.endpoint.clone(),
                    fault: Box::new(fault),
                });
            }
            Verdict::Reopen => {
                if let Some(number) = connection {
                    member.bulk.discard(number);
                }
                // Once a round it may have been chance; then it counts as a failure.
                if !round.reopened {
                    round.reopened = true;
                    return Ok(());
                }
            }
            Verdict::Down => member.lost(connection, now, &fault),
            Verdict::AskAnother => member.failed(now),
            Verdict::Rest(pause) => member.asked_for_pause(now, pause),
            Verdict::Exclude => {
                if let (Some(expected), Some(connection), Fault::OtherPlan { theirs }) =
                    (request.plan.get(), connection, fault)
                {
                    member.refuses_plan(connection, &request.stream, expected, theirs);
                }
            }
        }
        round.tried.push(member.endpoint.clone());
        Ok(())
    }
}

/// One pass over the workers; after it comes a pause.
#[derive(Default)]
struct Round {
    number: u32,
    tried: Vec<Endpoint>,
    reopened: bool,
    resume_at: Option<Instant>,
    /// These two run over all rounds.
    failures: u32,
    disagreed_since: Option<Instant>,
}

impl Round {
    fn next(&mut self) {
        self.number = self.number.saturating_add(1);
        self.tried.clear();
        self.reopened = false;
        self.resume_at = None;
    }
}

fn disagreement(
    request: &BatchRequest,
    members: &[Arc<Member>],
    expected: Option<PlanDigest>,
) -> ClientError {
    let Some(expected) = expected else {
        return ClientError::Setting {
            name: "plan",
            reason: "is not known, yet a worker disagreed with it".into(),
        };
    };
    let workers = members
        .iter()
        .filter_map(|member| {
            Some(Disagreement {
                worker: member.endpoint.clone(),
                plan: member.refused_plan(&request.stream, expected)?,
            })
        })
        .collect();
    ClientError::OtherPlan { stream: request.stream.clone(), range: request.range, expected, workers }
}

/// Names that may stand in paths, headers and labels; the same as in reports.
fn is_plain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/@-".contains(&byte);
    (1..=128).contains(&name.len()) && name.bytes().all(plain)
}
