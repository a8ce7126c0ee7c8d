//! One worker: its connections, and whether it is well.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use feedmill_protocol::http::PATH_LIVE;
use feedmill_protocol::plan::PlanDigest;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::Full;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::chance;
use crate::choice::Standing;
use crate::error::lock;
use crate::fault::Fault;
use crate::line::Line;
use crate::link::{self, Link};
use crate::settings::{Endpoint, FleetSettings, Timeouts};

/// The most bytes of an answer on a control connection.
const MAX_CONTROL_BYTES: usize = 16 << 20;

/// One worker as this process knows it.
pub(crate) struct Member {
    pub(crate) endpoint: Endpoint,
    /// Batches, and nothing else.
    pub(crate) bulk: Link,
    /// Small requests, which must not wait behind batches.
    control: Link,
    /// Places for requests that may be outstanding on the bulk connection.
    pub(crate) line: Arc<Line>,
    timeouts: Timeouts,
    health: Mutex<Health>,
    /// Streams and plans that this worker has refused, with its own plan.
    refused_plans: Mutex<Vec<RefusedPlan>>,
}

struct RefusedPlan {
    /// The refusal holds while this connection does: whoever listens there afterwards is asked anew.
    connection: u64,
    stream: String,
    expected: PlanDigest,
    theirs: Option<PlanDigest>,
}

/// Whether a worker is well: a synchronous state machine, time and chance are arguments.
#[derive(Debug, Default)]
struct Health {
    /// Failures since the last batch.
    failures: u32,
    state: HealthState,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum HealthState {
    #[default]
    Well,
    Resting {
        until: Instant,
    },
    Down {
        probe_at: Instant,
        probing: bool,
    },
}

impl Health {
    fn standing(&self) -> Standing {
        match self.state {
            HealthState::Well => Standing::Ready,
            HealthState::Resting { until } => Standing::Resting(until),
            HealthState::Down { .. } => Standing::Down,
        }
    }

    fn rest(&mut self, until: Instant) {
        self.state = match self.state {
            HealthState::Well => HealthState::Resting { until },
            HealthState::Resting { until: other } => HealthState::Resting { until: until.max(other) },
            down => down,
        };
    }

    /// True when it was not down before.
    fn down(&mut self, now: Instant, timeouts: &Timeouts, jitter: f64) -> bool {
        let news = !matches!(self.state, HealthState::Down { .. });
        if news {
            self.probe_later(now, timeouts, jitter);
        }
        news
    }

    fn probe_later(&mut self, now: Instant, timeouts: &Timeouts, jitter: f64) {
        self.failures = self.failures.saturating_add(1);
        self.state =
            HealthState::Down { probe_at: now + timeouts.backoff(self.failures, jitter), probing: false };
    }

    /// True when it is time for a probe, which the caller then makes.
    fn begin_probe(&mut self, now: Instant) -> bool {
        match self.state {
            HealthState::Down { probe_at, probing: false } if probe_at <= now => {
                self.state = HealthState::Down { probe_at, probing: true };
                true
            }
            _ => false,
        }
    }

    fn revived(&mut self) {
        if matches!(self.state, HealthState::Down { .. }) {
            self.state = HealthState::Well;
        }
    }
}

impl Member {
    pub(crate) fn new(endpoint: Endpoint, settings: &FleetSettings) -> Self {
        let timeouts = settings.timeouts.clone();
        Self {
            bulk: Link::new(endpoint.clone(), timeouts.clone()),
            control: Link::new(endpoint.clone(), timeouts.clone()),
            line: Line::new(settings.streams_per_connection),
            health: Mutex::default(),
            refused_plans: Mutex::default(),
            endpoint,
            timeouts,
        }
    }

    /// How it stands for a stream that is read by this plan.
    pub(crate) fn standing(&self, stream: &str, expected: Option<PlanDigest>) -> Standing {
        let health = lock(&self.health).standing();
        if health != Standing::Down
            && let Some(expected) = expected
            && self.refused_plan(stream, expected).is_some()
        {
            return Standing::Disagrees;
        }
        health
    }

    /// Its own plan, when it has refused this one.
    pub(crate) fn refused_plan(&self, stream: &str, expected: PlanDigest) -> Option<Option<PlanDigest>> {
        let mut refused = lock(&self.refused_plans);
        refused.retain(|refused| self.bulk.is_open(refused.connection));
        refused
            .iter()
            .find(|refused| refused.stream == stream && refused.expected == expected)
            .map(|refused| refused.theirs)
    }

    /// It gave a batch.
    pub(crate) fn succeeded(&self) {
        lock(&self.health).failures = 0;
    }

    /// It answered, but nothing of use.
    pub(crate) fn failed(&self, now: Instant) {
        let mut health = lock(&self.health);
        health.failures = health.failures.saturating_add(1);
        let pause = self.timeouts.backoff(health.failures, chance::jitter());
        health.rest(now + pause);
    }

    /// It asked for a pause. Spread over a quarter more, so that ranks do not come back in step.
    pub(crate) fn asked_for_pause(&self, now: Instant, pause: Duration) {
        let pause = pause.max(self.timeouts.backoff_min);
        let pause = pause.mul_f64(1.0 + chance::jitter() / 4.0);
        lock(&self.health).rest(now + pause);
    }

    /// The connection with this number, or the attempt to make one, broke.
    pub(crate) fn lost(&self, connection: Option<u64>, now: Instant, fault: &Fault) {
        let stale = connection.is_some_and(|number| !self.bulk.discard(number));
        if stale {
            return;
        }
        if lock(&self.health).down(now, &self.timeouts, chance::jitter()) {
            tracing::info!(worker = %self.endpoint, reason = %fault, "worker is down, others take over");
        }
    }

    /// It reads by another plan, as it said on this connection.
    pub(crate) fn refuses_plan(
        &self,
        connection: u64,
        stream: &str,
        expected: PlanDigest,
        theirs: Option<PlanDigest>,
    ) {
        let mut refused = lock(&self.refused_plans);
        if refused.iter().any(|known| known.stream == stream && known.expected == expected) {
            return;
        }
        let has = theirs.map_or("another one".to_owned(), |plan| plan.to_string());
        tracing::warn!(worker = %self.endpoint, stream, %expected, has, "worker has another plan and is left out");
        refused.push(RefusedPlan { connection, stream: stream.to_owned(), expected, theirs });
    }

    /// Looks after a worker that is down, when it is time, on a task of its own: ranges must not wait
    /// for a host that swallows packets. Wakes whoever waits when the worker answers.
    pub(crate) fn probe_when_due(self: &Arc<Self>, now: Instant, changed: &Arc<Notify>) {
        if !lock(&self.health).begin_probe(now) {
            return;
        }
        let (member, changed) = (Arc::clone(self), Arc::clone(changed));
        tokio::spawn(async move {
            match member.probe().await {
                Ok(()) => {
                    lock(&member.health).revived();
                    tracing::info!(worker = %member.endpoint, "worker answers again");
                    changed.notify_waiters();
                }
                Err(fault) => {
                    tracing::debug!(worker = %member.endpoint, reason = %fault, "worker is still down");
                    let now = chance::now();
                    lock(&member.health).probe_later(now, &member.timeouts, chance::jitter());
                }
            }
        });
    }

    /// Any answer to `/livez` on the bulk connection will do: a frozen process still accepts connections.
    async fn probe(&self) -> Result<(), Fault> {
        let limit = self.timeouts.control;
        let mut session = self.bulk.session().await?;
        let outcome = session.send(self.request(Method::GET, PATH_LIVE, Bytes::new())?, limit).await;
        match outcome {
            Ok(_) => Ok(()),
            Err(fault) => {
                self.bulk.discard(session.number());
                Err(fault)
            }
        }
    }

    /// A small request over the control connection, tried twice when the connection had ended.
    pub(crate) async fn control(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, HeaderMap, Vec<u8>), Fault> {
        let limit = self.timeouts.control;
        let exchange = async {
            let mut reopened = false;
            loop {
                let mut session = self.control.session().await?;
                let request = self.request(method.clone(), path, body.clone())?;
                match session.send(request, limit).await {
                    Ok(answer) => {
                        let (head, body) = answer.into_parts();
                        let (bytes, whole) = link::read_bounded(body, MAX_CONTROL_BYTES, limit).await?;
                        if !whole {
                            return Err(Fault::TooLong {
                                expected: bytes.len() as u64 + 1,
                                limit: MAX_CONTROL_BYTES as u64,
                            });
                        }
                        return Ok((head.status, head.headers, bytes));
                    }
                    Err(fault) => {
                        self.control.discard(session.number());
                        if reopened || !matches!(fault, Fault::Closed) {
                            return Err(fault);
                        }
                        reopened = true;
                    }
                }
            }
        };
        match tokio::time::timeout(limit, exchange).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Fault::NoHead(limit)),
        }
    }

    pub(crate) fn request(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, Fault> {
        Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.endpoint))
            .body(Full::new(body))
            .map_err(|error| Fault::Head(format!("request cannot be written: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_is_down_is_probed_once_at_a_time_and_ever_more_seldom() {
        let timeouts = Timeouts::default();
        let mut health = Health::default();
        let mut now = chance::now();
        assert!(!health.begin_probe(now));
        assert!(health.down(now, &timeouts, 1.0));
        assert!(!health.down(now, &timeouts, 1.0), "known already");
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let HealthState::Down { probe_at, .. } = health.state else { panic!("{health:?}") };
            pauses.push((probe_at - now).as_millis());
            assert!(!health.begin_probe(now));
            now = probe_at;
            assert!(health.begin_probe(now));
            assert!(!health.begin_probe(now), "one is under way");
            health.probe_later(now, &timeouts, 1.0);
        }
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1600, 2000, 2000]);
        health.rest(now);
        assert_eq!(health.standing(), Standing::Down);
        health.revived();
        assert_eq!(health.standing(), Standing::Ready);
    }

    #[test]
    fn the_longer_pause_counts() {
        let mut health = Health::default();
        let now = chance::now();
        let (soon, late) = (now + Duration::from_secs(1), now + Duration::from_secs(5));
        health.rest(late);
        health.rest(soon);
        assert_eq!(health.standing(), Standing::Resting(late));
        health.revived();
        assert_eq!(health.standing(), Standing::Resting(late));
    }
}
