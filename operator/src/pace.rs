//! Takes requests to the API server, lets no more than so many through in any second; the others wait for their turn.
//!
//! After a restart everything of every pipeline is applied once, and a full API server, or its fairness, would hold up others than this
//! operator. The lease has a client of its own, which waits for nobody.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use tokio::time::Instant;
use tower_service::Service;

/// The same client, whose requests wait for their turn.
#[must_use]
pub fn paced(client: Client, per_second: u16) -> Client {
    let namespace = client.default_namespace().to_owned();
    let turns = Arc::new(Mutex::new(Turns::new(per_second)));
    Client::new(Paced { client, turns }, namespace)
}

struct Paced {
    client: Client,
    turns: Arc<Mutex<Turns>>,
}

impl Service<Request<Body>> for Paced {
    type Response = Response<Body>;
    type Error = kube::Error;
    type Future = Pin<Box<dyn Future<Output = kube::Result<Response<Body>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<kube::Result<()>> {
        // Waiting is each request's own: one that is given up holds up nobody.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (client, turns) = (self.client.clone(), Arc::clone(&self.turns));
        Box::pin(async move {
            let turn = turns.lock().unwrap_or_else(PoisonError::into_inner).next(Instant::now());
            tokio::time::sleep_until(turn).await;
            client.send(request).await
        })
    }
}

/// When requests may go: evenly, but some at once after a pause, so that one pipeline's change does not wait.
#[derive(Debug)]
struct Turns {
    /// Between two requests, when there are many.
    apart: Duration,
    /// How much earlier one may go than evenly.
    ahead: Duration,
    /// When the next would go, evenly.
    even: Option<Instant>,
}

impl Turns {
    /// In any second a fifth of them goes at once, and the others evenly: together as many as are allowed.
    fn new(per_second: u16) -> Self {
        let per_second = u32::from(per_second.max(2));
        let at_once = (per_second / 5).max(1);
        let apart = Duration::from_secs(1) / (per_second - at_once);
        Self { apart, ahead: apart * (at_once - 1), even: None }
    }

    fn next(&mut self, now: Instant) -> Instant {
        let even = self.even.map_or(now, |even| even.max(now));
        self.even = Some(even + self.apart);
        now.max(even.checked_sub(self.ahead).unwrap_or(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn no_second_has_more_than_are_allowed() {
        let start = Instant::now();
        for per_second in [2, 5, 50, 1000] {
            let mut turns = Turns::new(per_second);
            let most = usize::from(per_second);
            let times: Vec<Duration> = (0..5 * most).map(|_| turns.next(start) - start).collect();
            for (number, time) in times.iter().enumerate() {
                let within =
                    times.iter().skip(number).take_while(|other| **other < *time + Duration::from_secs(1));
                assert!(within.count() <= most, "{per_second} from {number}");
            }
            // None is wasted either.
            assert!(times.last().unwrap().as_secs() <= 10, "{per_second}: {:?}", times.last());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_after_a_pause_wait_for_nothing() {
        let mut turns = Turns::new(50);
        let start = Instant::now();
        let at_once = |turns: &mut Turns, now: Instant| (0..20).filter(|_| turns.next(now) == now).count();
        assert_eq!(at_once(&mut turns, start), 10);
        assert_eq!(at_once(&mut turns, start), 0);
        assert_eq!(at_once(&mut turns, start + Duration::from_secs(10)), 10);
    }
}
