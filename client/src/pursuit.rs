//! Takes a range, gives its batch from whichever worker can make it: one is asked after another, and a second
//! one beside a first that is late.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use feedmill_protocol::placement;
use feedmill_protocol::plan::PlanDigest;
use feedmill_protocol::report::is_plain;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::attempt::Attempt;
use crate::batch::Batch;
use crate::chance;
use crate::choice::{self, Choice, Seen, Standing};
use crate::error::{Attempt as FailedAttempt, ClientError, Disagreement, SharedHistory, lock};
use crate::fault::{Fault, Verdict};
use crate::fleet::{BatchRequest, Fleet, Inner};
use crate::hedge;
use crate::member::Member;
use crate::settings::Endpoint;

/// A need is not told longer than this: no worker plans further ahead, and sums of times stay sums.
pub(crate) const LONGEST_NEED: Duration = Duration::from_secs(24 * 3600);

/// A worker that is waited for and from which nothing came for this long is asked for a word. Short, since the
/// question costs next to nothing; together with the wait for the answer it is [`crate::Timeouts::silence`].
const QUIET: Duration = Duration::from_millis(50);

/// After a second worker was wished for and there was none to ask, or no second request left.
const WISH_AGAIN: Duration = Duration::from_millis(100);

/// What a pursuit and whoever waits for it share.
#[derive(Clone, Default)]
pub(crate) struct Ticket {
    pub(crate) history: SharedHistory,
    wanted: Arc<Wanted>,
}

#[derive(Default)]
struct Wanted {
    since: Mutex<Option<Instant>>,
    told: Notify,
}

impl Ticket {
    /// The trainer waits for it from now on, whatever was expected.
    pub(crate) fn want(&self, now: Instant) {
        lock(&self.wanted.since).get_or_insert(now);
        self.wanted.told.notify_one();
    }

    fn is_wanted(&self) -> bool {
        lock(&self.wanted.since).is_some()
    }
}

impl Fleet {
    /// Asks for as long as it takes; whoever waits decides how long that is. The asker is one of `ranks`.
    pub(crate) async fn pursue(
        &self,
        request: &BatchRequest,
        ranks: u64,
        ticket: &Ticket,
    ) -> Result<Batch, ClientError> {
        if !is_plain(&request.stream) || request.stream.contains('/') {
            return Err(ClientError::Setting {
                name: "stream",
                reason: format!("{:?} is no stream's name", request.stream),
            });
        }
        lock(&self.inner.counts).ranges += 1;
        if let Some(agent) = &self.inner.agent {
            return agent.pursue(request, &ticket.history).await;
        }
        self.keep();
        lock(&self.inner.budget).asked();
        let begin = chance::now();
        let pursuit = Pursuit {
            inner: &self.inner,
            request,
            ranks,
            ticket,
            begin,
            needed_at: begin + request.need.min(LONGEST_NEED),
            deaths: request.deaths,
            running: Vec::new(),
            round: Round::default(),
            hedge_again: begin,
        };
        pursuit.run().await
    }
}

/// One range on its way.
struct Pursuit<'a> {
    inner: &'a Arc<Inner>,
    request: &'a BatchRequest,
    ranks: u64,
    ticket: &'a Ticket,
    begin: Instant,
    needed_at: Instant,
    deaths: u32,
    /// Whom it was asked of and who has not answered: at most two.
    running: Vec<Running<'a>>,
    round: Round,
    /// Before this no second worker is thought of.
    hedge_again: Instant,
}

struct Running<'a> {
    member: Arc<Member>,
    sent: Instant,
    answer: Pin<Box<dyn Future<Output = Answer> + Send + 'a>>,
}

type Answer = Result<Batch, (Option<u64>, Fault)>;

/// One pass over the workers; after it comes a pause.
#[derive(Default)]
struct Round {
    number: u32,
    tried: Vec<Endpoint>,
    reopened: bool,
    /// Workers whose batches this client cannot have: they do not admit it, or send a format that it does not know.
    no_use: usize,
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
        self.no_use = 0;
        self.resume_at = None;
    }
}

impl Pursuit<'_> {
    async fn run(mut self) -> Result<Batch, ClientError> {
        loop {
            let changed = self.inner.changed.notified();
            if !self.running.is_empty() {
                if let Some(batch) = self.wait().await? {
                    return Ok(batch);
                }
                continue;
            }
            let now = chance::now();
            let circle = self.circle(now);
            let mut earliest = None;
            match circle.choose(now) {
                Choice::Ask(index) => {
                    self.ask(&circle.members[index]);
                    continue;
                }
                Choice::NoneAgrees { all_live } => {
                    let since = *self.round.disagreed_since.get_or_insert(now);
                    if all_live || now - since >= self.inner.settings.timeouts.plan_grace {
                        return Err(disagreement(self.request, &circle.members));
                    }
                }
                Choice::Wait(pause_ends) => {
                    self.round.disagreed_since = None;
                    earliest = pause_ends;
                }
            }
            self.ticket.history.note(self.inner.sources_note());
            let timeouts = &self.inner.settings.timeouts;
            let resume_at = *self.round.resume_at.get_or_insert_with(|| match earliest {
                Some(earliest) => earliest,
                None => now + timeouts.backoff(self.round.number + 1, chance::jitter()),
            });
            if tokio::time::timeout_at(resume_at, changed).await.is_err() {
                self.round.next();
            }
        }
    }

    /// The workers that this rank asks, as they stand now; all of them, when none of those lives.
    fn circle(&self, now: Instant) -> Circle {
        let all: Vec<Arc<Member>> = {
            let members = lock(&self.inner.members);
            members.iter().filter(|member| !member.is_twin()).cloned().collect()
        };
        for member in &all {
            member.probe_when_due(now, &self.inner.changed);
        }
        let samples = self.request.range.len();
        let asked = placement::asked_by(self.request.rank, self.ranks, all.len());
        let mut circle = Circle {
            point: choice::point(self.request.range, self.ranks, all.len()),
            samples,
            members: Vec::with_capacity(asked.len()),
            seen: Vec::with_capacity(asked.len()),
        };
        for asked in &asked {
            if let Some(member) = all.get(asked.index) {
                circle.seen.push(self.see(member, asked.ranks, now));
                circle.members.push(Arc::clone(member));
            }
        }
        let away = |seen: &Seen| matches!(seen.standing, Standing::Down | Standing::Draining);
        if asked.len() < all.len() && circle.seen.iter().all(away) {
            circle.seen = all.iter().map(|member| self.see(member, self.ranks, now)).collect();
            circle.members = all;
        }
        let idle = self.inner.settings.timeouts.idle;
        let mut news = false;
        for member in &circle.members {
            news |= member.watch(|watch| watch.wanted(now, idle));
        }
        if news {
            self.inner.nudge.notify_one();
        }
        circle
    }

    /// A worker as it stands for this range.
    fn see(&self, member: &Arc<Member>, ranks: u64, now: Instant) -> Seen {
        let mut seen = member.seen(&self.request.stream, self.request.plan.get(), ranks, now);
        let tried = self.round.tried.contains(&member.endpoint)
            || self.running.iter().any(|running| running.member.endpoint == member.endpoint);
        seen.standing = match seen.standing {
            Standing::Ready if tried => Standing::Tried,
            Standing::Resting(until) if tried && until <= now => Standing::Tried,
            other => other,
        };
        seen
    }

    fn ask(&mut self, member: &Arc<Member>) {
        self.ticket.history.asking(&member.endpoint);
        lock(&self.inner.counts).requests += 1;
        let attempt = Attempt {
            settings: &self.inner.settings,
            request: self.request,
            needed_at: self.needed_at,
            deaths: self.deaths,
        };
        let asked = Arc::clone(member);
        self.running.push(Running {
            member: Arc::clone(member),
            sent: chance::now(),
            answer: Box::pin(async move { attempt.at(&asked).await }),
        });
    }

    /// Until somebody answers, or it is time for something else.
    async fn wait(&mut self) -> Result<Option<Batch>, ClientError> {
        let now = chance::now();
        let waited_for = self.ticket.is_wanted() || self.needed_at <= now;
        let Some(first) = self.running.first() else { return Ok(None) };
        let (first, sent) = (Arc::clone(&first.member), first.sent);
        let hedge_at = self.hedge_at(sent, waited_for);
        let doubt_at = (waited_for && self.inner.settings.load_every.is_some()).then(|| now + QUIET);
        let needed_at = (!waited_for).then_some(self.needed_at);
        let late = first.was_late.notified();
        tokio::select! {
            biased;
            (running, answer) = answered(&mut self.running) => return self.take(running, answer),
            () = self.ticket.wanted.told.notified(), if !waited_for => {}
            () = until(needed_at) => {}
            // Somebody else lost patience with it, and was right.
            () = late, if self.running.len() == 1 => self.hedge(),
            () = until(hedge_at) => self.hedge(),
            () = until(doubt_at) => {
                let now = chance::now();
                for running in &self.running {
                    let member = &running.member;
                    if member.watch(|watch| watch.is_in_doubt(now, QUIET) && watch.asks_load(now)) {
                        let patience = self.inner.settings.timeouts.silence.saturating_sub(QUIET);
                        member.ask_load(patience, &self.inner.changed);
                    }
                }
            }
        }
        Ok(None)
    }

    fn hedge_at(&self, sent: Instant, waited_for: bool) -> Option<Instant> {
        if self.running.len() > 1 || !self.inner.settings.hedge {
            return None;
        }
        let usual = lock(&self.inner.ready_times).median();
        Some(hedge::due(sent, self.needed_at, waited_for, usual)?.max(self.hedge_again))
    }

    /// Asks a second worker, where there is one and the budget allows it.
    fn hedge(&mut self) {
        let now = chance::now();
        self.hedge_again = now + WISH_AGAIN;
        if !self.inner.settings.hedge {
            return;
        }
        let circle = self.circle(now);
        if let Choice::Ask(index) = circle.choose(now)
            && lock(&self.inner.budget).take()
        {
            let member = &circle.members[index];
            tracing::debug!(worker = %member.endpoint, range = %self.request.range, "a late range is asked of a second worker");
            lock(&self.inner.counts).hedged += 1;
            self.ask(member);
        }
    }

    /// What came from one of those that were asked.
    fn take(&mut self, running: Running<'_>, answer: Answer) -> Result<Option<Batch>, ClientError> {
        let now = chance::now();
        let (connection, fault) = match answer {
            Ok(mut batch) => {
                batch.timings.total = now - self.begin;
                batch.timings.failures = self.round.failures;
                lock(&self.inner.ready_times).add(now - running.sent);
                // Who was asked earlier and is still at it has lost.
                if let Some(loser) = self.running.iter().find(|other| other.sent < running.sent) {
                    lock(&self.inner.counts).hedges_won += 1;
                    loser.member.lost_race(now);
                }
                return Ok(Some(batch));
            }
            Err(failed) => failed,
        };
        let member = running.member;
        if matches!(fault, Fault::Silent) {
            lock(&self.inner.counts).silenced += 1;
        }
        self.round.failures = self.round.failures.saturating_add(1);
        self.deaths = self.deaths.saturating_add(u32::from(fault.is_death()));
        tracing::debug!(worker = %member.endpoint, range = %self.request.range, reason = %fault, "attempt failed");
        self.ticket.history.push(FailedAttempt {
            worker: member.endpoint.clone(),
            after: now - self.begin,
            fault: fault.clone(),
        });
        self.follow(&member, connection, fault)?;
        Ok(None)
    }

    /// Draws the consequences of a fault.
    fn follow(&mut self, member: &Member, connection: Option<u64>, fault: Fault) -> Result<(), ClientError> {
        let (now, request) = (chance::now(), self.request);
        let verdict = fault.verdict();
        match verdict {
            Verdict::Fatal => {
                return Err(ClientError::refused(&request.stream, request.range, &member.endpoint, fault));
            }
            Verdict::Reopen => {
                if let Some(number) = connection {
                    member.bulk.discard(number);
                }
                // Once a round it may have been chance; then it counts as a failure.
                if !self.round.reopened {
                    self.round.reopened = true;
                    return Ok(());
                }
            }
            Verdict::Down => member.lost(connection, now, &fault),
            Verdict::AskAnother => member.failed(now),
            Verdict::Denied | Verdict::Unreadable => {
                member.failed(now);
                self.round.no_use += 1;
                let circle = self.circle(now);
                let lives = |seen: &&Seen| !matches!(seen.standing, Standing::Down | Standing::Draining);
                // One worker may have an old token file or certificate, or be newer; when no other one is left, it is ours.
                if self.round.no_use >= circle.seen.iter().filter(lives).count() {
                    let worker = &member.endpoint;
                    return Err(match verdict {
                        Verdict::Denied => {
                            ClientError::Denied { worker: worker.clone(), fault: Box::new(fault) }
                        }
                        _ => ClientError::refused(&request.stream, request.range, worker, fault),
                    });
                }
                tracing::warn!(worker = %member.endpoint, reason = %fault, "a worker is of no use to this client");
            }
            Verdict::Rest(pause) => member.asked_for_pause(now, pause),
            Verdict::Exclude => {
                if let (Some(expected), Some(connection), Fault::OtherPlan { theirs }) =
                    (request.plan.get(), connection, fault)
                {
                    member.refuses_plan(connection, &request.stream, expected, theirs);
                }
            }
        }
        self.round.tried.push(member.endpoint.clone());
        Ok(())
    }
}

/// Those who may be asked for one range.
struct Circle {
    point: u64,
    samples: u64,
    members: Vec<Arc<Member>>,
    seen: Vec<Seen>,
}

impl Circle {
    fn choose(&self, now: Instant) -> Choice {
        choice::choose(self.point, self.samples, &self.seen, now)
    }
}

/// The first that is done. Dropping this future stops none of them.
async fn answered<'a>(running: &mut Vec<Running<'a>>) -> (Running<'a>, Answer) {
    poll_fn(|context| {
        for index in 0..running.len() {
            if let Poll::Ready(answer) = running[index].answer.as_mut().poll(context) {
                return Poll::Ready((running.remove(index), answer));
            }
        }
        Poll::Pending
    })
    .await
}

/// Ends then; never, when there is no such moment.
async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

fn disagreement(request: &BatchRequest, members: &[Arc<Member>]) -> ClientError {
    let Some(expected): Option<PlanDigest> = request.plan.get() else {
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
