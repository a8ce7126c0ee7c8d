//! Takes a Lease, gives the right to act: one of several operators has it at a time.
//!
//! A Lease is written by PUT with its resource version, so that of two who take it one fails. When it has run out is judged by
//! one's own clock from the time at which its last change was seen, never by what stands in it. Whoever loses it ends the process.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};

/// How long a Lease that is not renewed is honoured.
pub const DURATION: Duration = Duration::from_secs(15);
/// A holder that could not renew for this long gives up, before others may take over.
pub const DEADLINE: Duration = Duration::from_secs(10);
/// How long one look or one renewal may take: a connection that is dead must not keep others from being tried.
const CALL: Duration = Duration::from_secs(5);
/// How often it is renewed or looked at.
pub const RETRY: Duration = Duration::from_secs(2);

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// There is no Lease.
    Create,
    /// It is mine, given back, or has run out.
    Take,
    /// Somebody else has it.
    Wait,
}

/// What was seen of a Lease, and since when it has not changed.
#[derive(Clone, Debug, PartialEq)]
struct Sight {
    spec: LeaseSpec,
    since: Instant,
}

fn step(me: &str, lease: Option<&LeaseSpec>, sight: Option<&Sight>, now: Instant) -> Step {
    let Some(lease) = lease else { return Step::Create };
    let holder = lease.holder_identity.as_deref().unwrap_or_default();
    if holder.is_empty() || holder == me {
        return Step::Take;
    }
    match sight {
        Some(sight) if sight.spec == *lease && now.saturating_duration_since(sight.since) > lasts(lease) => {
            Step::Take
        }
        _ => Step::Wait,
    }
}

fn lasts(lease: &LeaseSpec) -> Duration {
    let seconds = lease.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    seconds.map_or(DURATION, Duration::from_secs)
}

/// How long to wait before the next look: not longer than until a lease that is not renewed runs out.
fn pause(sight: Option<&Sight>, now: Instant) -> Duration {
    let left = sight.map(|sight| (sight.since + lasts(&sight.spec)).saturating_duration_since(now));
    left.map_or(RETRY, |left| (left + Duration::from_millis(50)).min(RETRY))
}

/// A candidate for a Lease.
pub struct Candidate {
    api: Api<Lease>,
    name: String,
    me: String,
    sight: Option<Sight>,
    limit: Duration,
}

/// The right to act was lost.
#[derive(Debug, thiserror::Error)]
#[error("the lease {name} could not be renewed for {} s", DEADLINE.as_secs())]
pub struct Lost {
    name: String,
}

impl Candidate {
    /// A candidate under a name that no other has.
    #[must_use]
    pub fn new(client: Client, namespace: &str, name: &str, me: &str) -> Self {
        let api = Api::namespaced(client, namespace);
        Self { api, name: name.into(), me: me.into(), sight: None, limit: CALL }
    }

    /// Tries once to take or renew. False: somebody else has it.
    async fn attempt(
        &mut self,
        clock: &(dyn Fn() -> Instant + Sync),
        stamp: Timestamp,
    ) -> Result<bool, kube::Error> {
        let found = self.api.get_opt(&self.name).await?;
        // Dated when it is here: dated before, a slow answer would make a renewal look older than it is.
        let now = clock();
        let spec = found.as_ref().and_then(|lease| lease.spec.as_ref());
        match step(&self.me, spec, self.sight.as_ref(), now) {
            Step::Create => {
                let lease = Lease {
                    metadata: ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() },
                    spec: Some(self.held(None, stamp)),
                };
                accepted(self.api.create(&PostParams::default(), &lease).await)
            }
            Step::Take => {
                let Some(mut lease) = found else { return Ok(false) };
                lease.spec = Some(self.held(lease.spec.as_ref(), stamp));
                accepted(self.api.replace(&self.name, &PostParams::default(), &lease).await)
            }
            Step::Wait => {
                let spec = spec.cloned().unwrap_or_default();
                if self.sight.as_ref().is_none_or(|sight| sight.spec != spec) {
                    self.sight = Some(Sight { spec, since: now });
                }
                Ok(false)
            }
        }
    }

    fn held(&self, before: Option<&LeaseSpec>, stamp: Timestamp) -> LeaseSpec {
        let mine = before.filter(|before| before.holder_identity.as_deref() == Some(&self.me));
        let transitions = before.map_or(0, |before| {
            before.lease_transitions.unwrap_or_default().saturating_add(i32::from(mine.is_none()))
        });
        let acquired = mine.and_then(|mine| mine.acquire_time.clone());
        LeaseSpec {
            holder_identity: Some(self.me.clone()),
            lease_duration_seconds: Some(15),
            acquire_time: Some(acquired.unwrap_or(MicroTime(stamp))),
            renew_time: Some(MicroTime(stamp)),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }

    /// Waits until the right to act is had, and says since when at the latest it is.
    pub async fn acquire(&mut self) -> Instant {
        loop {
            let asked = clock();
            match tokio::time::timeout(self.limit, self.attempt(&clock, Timestamp::now())).await {
                Ok(Ok(true)) => return asked,
                Ok(Ok(false)) => {}
                Ok(Err(error)) => {
                    tracing::warn!(error = %error, "the lease cannot be read or written; trying again")
                }
                Err(_) => tracing::warn!("the API server does not answer about the lease; trying again"),
            }
            tokio::time::sleep(pause(self.sight.as_ref(), clock())).await;
        }
    }

    /// Renews for ever, what is had since then.
    ///
    /// # Errors
    /// It could not be renewed in time, or somebody else has it.
    pub async fn hold(&mut self, since: Instant) -> Result<std::convert::Infallible, Lost> {
        // Whoever else is seen from now on has taken it.
        self.sight = None;
        let mut renewed = since;
        loop {
            tokio::time::sleep(RETRY).await;
            let now = clock();
            let left = DEADLINE.saturating_sub(now.saturating_duration_since(renewed));
            match tokio::time::timeout(left.min(self.limit), self.attempt(&clock, Timestamp::now())).await {
                Ok(Ok(true)) => renewed = now,
                // Only somebody else's name in it makes it lost; another writer is met again in a moment.
                Ok(Ok(false)) if self.sight.is_none() => {
                    tracing::warn!("the lease was written by another meanwhile; trying again");
                }
                Ok(Ok(false)) => return Err(Lost { name: self.name.clone() }),
                Ok(Err(error)) => {
                    tracing::warn!(error = %error, "the lease could not be renewed; trying again")
                }
                Err(_) if left > self.limit => {
                    tracing::warn!("the API server does not answer about the lease; trying again")
                }
                Err(_) => return Err(Lost { name: self.name.clone() }),
            }
        }
    }

    /// Gives it back, so that another need not wait for it to run out.
    pub async fn release(&mut self) {
        let given = async {
            let Some(mut lease) = self.api.get_opt(&self.name).await? else { return Ok(()) };
            if let Some(spec) =
                lease.spec.as_mut().filter(|spec| spec.holder_identity.as_deref() == Some(&self.me))
            {
                spec.holder_identity = None;
                spec.lease_duration_seconds = Some(1);
                self.api.replace(&self.name, &PostParams::default(), &lease).await?;
            }
            Ok::<(), kube::Error>(())
        };
        match tokio::time::timeout(RETRY, given).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(error = %error, "the lease could not be given back; it runs out")
            }
            Err(_) => tracing::warn!("the lease could not be given back in time; it runs out"),
        }
    }
}

/// Another one was faster: no error.
fn accepted<T>(result: Result<T, kube::Error>) -> Result<bool, kube::Error> {
    match result {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}

/// Leases are judged by one's own clock: the runtime's, which tests can make virtual.
fn clock() -> Instant {
    tokio::time::Instant::now().into_std()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::extract::State;
    use axum::routing::get;
    use axum::{Json, Router};
    use http::StatusCode;
    use serde_json::{Value, json};

    use super::*;

    /// An API server with one Lease: what its answers take, how many requests it never answers, and what stands there.
    #[derive(Clone)]
    struct Server(Arc<Mutex<Inside>>);

    struct Inside {
        now: Instant,
        takes: Duration,
        unanswered: usize,
        lease: Value,
    }

    impl Server {
        async fn start(lease: &LeaseSpec) -> (Self, Client) {
            let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": "l", "namespace": "n", "resourceVersion": "1"}, "spec": lease});
            let inside = Inside { now: clock(), takes: Duration::ZERO, unanswered: 0, lease };
            let server = Self(Arc::new(Mutex::new(inside)));
            let path = "/apis/coordination.k8s.io/v1/namespaces/n/leases/l";
            let router = Router::new().route(path, get(read).put(write)).with_state(server.clone());
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
            tokio::spawn(axum::serve(listener, router).into_future());
            (server, Client::try_from(kube::Config::new(uri)).unwrap())
        }

        fn with<T>(&self, act: impl FnOnce(&mut Inside) -> T) -> T {
            act(&mut self.0.lock().unwrap())
        }
    }

    async fn read(State(server): State<Server>) -> Json<Value> {
        let is_answered = server.with(|inside| {
            inside.now += inside.takes;
            inside.unanswered = inside.unanswered.saturating_sub(1);
            inside.unanswered == 0
        });
        if !is_answered {
            std::future::pending::<()>().await;
        }
        Json(server.with(|inside| inside.lease.clone()))
    }

    async fn write(State(server): State<Server>, Json(new): Json<Value>) -> Result<Json<Value>, StatusCode> {
        server.with(|inside| {
            let version = |lease: &Value| lease["metadata"]["resourceVersion"].clone();
            if version(&new) != version(&inside.lease) {
                return Err(StatusCode::CONFLICT);
            }
            inside.lease = new;
            inside.lease["metadata"]["resourceVersion"] = "2".into();
            Ok(Json(inside.lease.clone()))
        })
    }

    #[tokio::test]
    async fn a_lease_that_was_renewed_just_before_a_slow_answer_is_not_taken_too_early() {
        let (server, client) = Server::start(&lease("other", 0)).await;
        let start = server.with(|inside| inside.now);
        let of_server = server.clone();
        let clock = move || of_server.with(|inside| inside.now);
        let at = |seconds: u64| server.with(|inside| inside.now = start + Duration::from_secs(seconds));
        let mut candidate = Candidate::new(client, "n", "l", "me");
        // Asked at 0, answered at 13: it may have been renewed at 12.9.
        server.with(|inside| inside.takes = Duration::from_secs(13));
        assert!(!candidate.attempt(&clock, Timestamp::now()).await.unwrap());
        server.with(|inside| inside.takes = Duration::ZERO);
        for (seconds, takes) in [(17, false), (28, false), (29, true)] {
            at(seconds);
            assert_eq!(candidate.attempt(&clock, Timestamp::now()).await.unwrap(), takes, "at {seconds} s");
        }
    }

    #[tokio::test]
    async fn an_answer_that_never_comes_does_not_keep_a_free_lease_from_being_taken() {
        let (server, client) = Server::start(&lease("", 0)).await;
        server.with(|inside| inside.unanswered = 2);
        let short = Duration::from_millis(200);
        let mut candidate = Candidate { limit: short, ..Candidate::new(client, "n", "l", "me") };
        candidate.acquire().await;
        assert_eq!(server.with(|inside| inside.lease["spec"]["holderIdentity"].clone()), "me");
        assert_eq!(server.with(|inside| inside.unanswered), 0);
    }

    fn lease(holder: &str, renewed: i64) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.into()),
            lease_duration_seconds: Some(15),
            renew_time: Some(MicroTime(Timestamp::from_second(renewed).unwrap())),
            ..LeaseSpec::default()
        }
    }

    #[test]
    fn a_lease_runs_out_by_ones_own_clock_only() {
        let start = clock();
        let other = lease("other", 0);
        let sight = Sight { spec: other.clone(), since: start };
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(step("me", None, None, start), Step::Create);
        assert_eq!(step("me", Some(&lease("me", 0)), None, start), Step::Take);
        assert_eq!(step("me", Some(&lease("", 0)), None, start), Step::Take);
        // However old the time in it, it is honoured from when it was first seen.
        assert_eq!(step("me", Some(&other), None, start), Step::Wait);
        assert_eq!(step("me", Some(&other), Some(&sight), after(15)), Step::Wait);
        assert_eq!(step("me", Some(&other), Some(&sight), after(16)), Step::Take);
        assert_eq!(step("me", Some(&lease("other", 10)), Some(&sight), after(16)), Step::Wait);
        assert_eq!([pause(None, start), pause(Some(&sight), after(3))], [RETRY, RETRY]);
        assert_eq!(pause(Some(&sight), after(14)), Duration::from_millis(1050));
    }
}
