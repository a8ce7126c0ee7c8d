//! Takes what workers answer, gives how many there should be, in words: the scaler of a cluster, on processes.

use std::fmt;
use std::time::Duration;

use feedmill_client::{Endpoint, StreamPlan};
use feedmill_protocol::report::WorkerState;
use feedmill_scaler::signals::Fleet;
use feedmill_scaler::spec::Timing;
use feedmill_scaler::{Observer, ScalingSpec, Scrape, State, Stream, decide};
use serde::Serialize;

use super::monitor::Statuses;
use super::view::Screen;
use super::workers::Workers;
use crate::args::LocalArguments;
use crate::table::seconds;

/// What decided, and what came of it.
pub struct Autoscale {
    spec: ScalingSpec,
    observer: Observer,
    state: Option<State>,
    /// When the next window ends.
    next: Duration,
    summary: Scaled,
    /// Up to when worker-seconds have been counted.
    counted: Duration,
}

/// How the number of workers was decided.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scaled {
    /// Workers at the beginning.
    pub first: usize,
    /// Most at a time.
    pub most: usize,
    /// Workers at the end.
    pub last: usize,
    /// How often the fleet grew.
    pub grown: u32,
    /// How often it shrank.
    pub shrunk: u32,
    /// Seconds of all workers together.
    pub worker_seconds: f64,
    /// Why it was so many at the end.
    pub reason: String,
}

impl fmt::Display for Scaled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "from {} to {} workers, {} at most; grown {} times, shrunk {} times, {} of workers; in the end {}",
            self.first,
            self.last,
            self.most,
            self.grown,
            self.shrunk,
            seconds(self.worker_seconds),
            self.reason
        )
    }
}

impl Autoscale {
    /// For a stream that was just started on so many workers.
    pub fn new(arguments: &LocalArguments, plan: &StreamPlan, workers: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let cores = u32::try_from(cores).unwrap_or(u32::MAX).min(64);
        let spec = ScalingSpec {
            first: arguments.workers,
            min: arguments.min_workers,
            max: arguments.max_workers.unwrap_or(cores.max(arguments.min_workers)),
            timing: Timing { window_ms: arguments.scaling_window_ms, ..Timing::default() },
            ..ScalingSpec::default()
        };
        let stream = Stream { name: arguments.stream.clone(), plan: plan.plan.to_string() };
        let summary = Scaled {
            first: workers,
            most: workers,
            last: workers,
            grown: 0,
            shrunk: 0,
            worker_seconds: 0.0,
            reason: "nothing was decided".into(),
        };
        let window = Duration::from_millis(arguments.scaling_window_ms);
        Self {
            observer: Observer::new(vec![stream], spec.reports.stale_after_ms),
            spec,
            state: None,
            next: window,
            summary,
            counted: Duration::ZERO,
        }
    }

    /// One round of answers, `now` after the beginning. At a window's end: how many workers there should be, and a line about it when the
    /// size or its reason is another than before.
    fn look(
        &mut self,
        statuses: &Statuses,
        workers: usize,
        now: Duration,
    ) -> Option<(usize, Option<String>)> {
        let at_ms = milliseconds(now);
        let names: Vec<String> = statuses.iter().map(|(endpoint, _)| endpoint.to_string()).collect();
        let scrapes: Vec<Scrape<'_>> = names
            .iter()
            .zip(statuses)
            .map(|(worker, (_, status))| Scrape { worker, at_ms, status: status.as_ref() })
            .collect();
        self.observer.take(&scrapes);
        self.count(workers, now);
        if now < self.next {
            return None;
        }
        let window = Duration::from_millis(self.spec.timing.window_ms);
        self.next = now + window;
        let ready = statuses.iter().filter_map(|(_, status)| status.as_ref());
        let ready = ready.filter(|status| status.state == WorkerState::Ready).count().min(workers);
        let size = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let fleet = Fleet { replicas: Some(size(workers)), ready: size(ready), rollout: false };
        let signals = self.observer.window(fleet, at_ms);
        let before = self.state.as_ref().map(|state| state.reason.label());
        let decision = decide(&self.spec, &signals, self.state.as_ref(), at_ms);
        let wanted = decision.replicas as usize;
        let news = wanted != workers || before != Some(decision.reason.label());
        let said = if wanted == workers {
            format!("autoscale: {workers}: {}", decision.reason)
        } else {
            format!("autoscale: {workers} -> {wanted} workers: {}", decision.reason)
        };
        self.summary.grown += u32::from(wanted > workers);
        self.summary.shrunk += u32::from(wanted < workers);
        self.summary.most = self.summary.most.max(wanted);
        self.summary.last = wanted;
        self.summary.reason = decision.reason.to_string();
        self.state = Some(decision.state);
        Some((wanted, news.then_some(said)))
    }

    /// The same, and does what is decided. `lead` sends those who read to these workers, which they do after `read_again` at the latest; those
    /// that are to end are off every list before they do.
    ///
    /// # Errors
    /// As of [`Workers::add`] and `lead`.
    pub async fn act(
        &mut self,
        statuses: &Statuses,
        workers: &mut Workers,
        screen: &mut Screen,
        now: Duration,
        read_again: Duration,
        mut lead: impl FnMut(&Workers, Vec<Endpoint>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let endpoints = workers.endpoints();
        let Some((wanted, said)) = self.look(statuses, endpoints.len(), now) else { return Ok(()) };
        if let Some(said) = said {
            screen.say(&said);
        }
        if wanted > endpoints.len() {
            workers.add(u32::try_from(wanted - endpoints.len()).unwrap_or(u32::MAX)).await?;
            lead(workers, workers.endpoints())?;
        } else if wanted < endpoints.len() {
            lead(workers, endpoints.iter().take(wanted).cloned().collect())?;
            workers.retire(endpoints.len() - wanted, read_again);
        }
        Ok(())
    }

    fn count(&mut self, workers: usize, now: Duration) {
        self.summary.worker_seconds += now.saturating_sub(self.counted).as_secs_f64() * workers as f64;
        self.counted = self.counted.max(now);
    }

    /// What came of it.
    pub fn summary(self) -> Scaled {
        self.summary
    }
}

/// A clock that begins long before the run, so that nothing is older than it.
fn milliseconds(now: Duration) -> u64 {
    const EARLIER: Duration = Duration::from_secs(3600);
    u64::try_from((now + EARLIER).as_millis()).unwrap_or(u64::MAX)
}
