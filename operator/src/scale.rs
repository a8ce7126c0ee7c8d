//! Takes what workers answer, or what Prometheus does, gives how many there should be in mode Internal: one decision a window, by `feedmill_scaler`. Pure: both
//! clocks are arguments.
//!
//! What one decision leaves to the next is kept in a ConfigMap, so that another leader goes on where this one ended. The time by the
//! calendar is for that alone; ages of answers are measured by the clock that never goes back.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use feedmill_protocol::report::WorkerStatus;
use feedmill_scaler::signals::Fleet;
use feedmill_scaler::{
    Decision, Limit, Observer, Reason, ScalingSpec, Scrape, State, Stream, decide, prometheus,
};
use k8s_openapi::api::core::v1::ConfigMap;

use crate::plan::Agreed;
use crate::queries::Heard;
use crate::scrape::Seen;
use crate::validate::{Key, ValidatedPipeline};

/// Where the state stands in its ConfigMap.
pub const STATE: &str = "state";
/// Beside it the Prometheus server it was learnt from; absent when it was learnt from reports.
pub const SIGNAL: &str = "signal";
/// Whoever has just named a server is asked for within a round; a window that ends before is longer by so much.
const SOON: Duration = Duration::from_secs(1);
/// What was learnt is written at most this often while the size stays: another leader misses no more than it.
const KEEP_EVERY_MS: u64 = 60_000;

/// How a size was decided.
#[derive(Clone, Debug, PartialEq)]
pub struct Scaled {
    /// Workers that there should be.
    pub workers: i32,
    /// Why.
    pub reason: Reason,
    /// What kept the size from being another.
    pub limited_by: Option<Limit>,
    /// The number that was written into the spec since the last look, which decides nothing here.
    pub ignored: Option<i32>,
    /// Whether it was decided just now.
    pub fresh: bool,
    /// When the window ends.
    pub next: Duration,
    /// What is to be kept for the next decision, when it is time to write that.
    pub keep: Option<String>,
}

/// The fleet and what its workers said, at one moment.
#[derive(Debug)]
pub struct Sight<'a> {
    /// Workers that the Deployment is to have; none where there is no Deployment.
    pub wanted: Option<i32>,
    /// Workers that serve.
    pub ready: i32,
    /// Whether workers of one template are being replaced by those of another.
    pub rollout: bool,
    /// What each worker said last, by pod.
    pub answers: &'a [(String, Seen)],
    /// The plan that counts.
    pub agreed: Option<&'a Agreed>,
    /// What the Prometheus server said last that the pipeline names.
    pub heard: Option<&'a Heard>,
    /// What was kept.
    pub kept: Option<&'a ConfigMap>,
}

/// What has been seen of all pipelines that are scaled.
#[derive(Debug, Default)]
pub struct Scalers(Mutex<HashMap<Key, Scaler>>);

#[derive(Debug)]
struct Scaler {
    /// The pipeline's identity.
    uid: String,
    /// The number in its spec.
    asked: i32,
    /// The Prometheus server that counts instead of reports.
    signal: Option<String>,
    /// Which reports count; another plan or another limit of age begins anew.
    streams: Vec<Stream>,
    stale_after_ms: u64,
    observer: Observer,
    /// The newest answer that was looked at.
    taken: Option<Instant>,
    state: Option<State>,
    /// Whether this process has decided; what another one left may be older than the fleet.
    has_decided: bool,
    /// When the window ends.
    window_ends: Instant,
    limited_by: Option<Limit>,
    /// When the state that was written last was made, and the size in it.
    written: Option<(u64, u32)>,
}

impl Scalers {
    /// Looks at one pipeline; decides at the end of a window. `now_ms` is the calendar's, in milliseconds since 1970.
    pub fn look(
        &self,
        pipeline: &ValidatedPipeline,
        spec: &ScalingSpec,
        sight: &Sight<'_>,
        now: Instant,
        now_ms: u64,
    ) -> Scaled {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let window = Duration::from_millis(spec.timing.window_ms);
        let scaler = all
            .entry(pipeline.key.clone())
            .and_modify(|scaler| {
                if scaler.uid != pipeline.uid {
                    *scaler = Scaler::new(pipeline, sight.kept, now, window);
                }
            })
            .or_insert_with(|| Scaler::new(pipeline, sight.kept, now, window));
        scaler.ask(&pipeline.signal);
        // A fleet that was suspended goes on with as many as it had, where that is more: trainers that come back find what they left.
        let has_none = sight.wanted.is_none_or(|wanted| wanted == 0);
        let learnt = scaler.state.as_ref().filter(|_| has_none).map_or(0, |state| state.replicas);
        let spec = &ScalingSpec { first: spec.first.max(learnt), ..spec.clone() };
        scaler.listen_to(streams(pipeline, sight.agreed), spec.reports.stale_after_ms);
        scaler.take(sight, now, now_ms);
        let ends = scaler.window_ends <= now;
        // A first size needs no signal.
        let is_known = scaler.signal.is_none() || sight.heard.is_some();
        let fresh = ends && (is_known || has_none);
        if fresh {
            scaler.window_ends = now + window;
            scaler.decide(spec, sight, now, now_ms);
        } else if ends {
            scaler.window_ends = now + SOON;
        }
        let (replicas, reason) = match (&scaler.state, sight.wanted) {
            (Some(state), _) if scaler.has_decided => (state.replicas, state.reason.clone()),
            (_, Some(wanted)) if wanted > 0 => (u32::try_from(wanted).unwrap_or_default(), Reason::Watching),
            _ => (spec.first, Reason::FirstSize),
        };
        // The bounds may have changed since.
        let (min, max) = spec.range();
        let replicas = replicas.clamp(min, max);
        let workers = i32::try_from(replicas).unwrap_or(i32::MAX);
        let asked = pipeline.size.asked;
        let is_new = std::mem::replace(&mut scaler.asked, asked) != asked;
        Scaled {
            workers,
            ignored: (is_new && asked != workers).then_some(asked),
            reason,
            limited_by: scaler.limited_by,
            fresh,
            next: scaler.window_ends.saturating_duration_since(now),
            keep: scaler.due(),
        }
    }

    /// The state has been written.
    pub fn kept(&self, key: &Key) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(scaler) = all.get_mut(key) {
            scaler.written = scaler.state.as_ref().map(|state| (state.at_ms, state.replicas));
        }
    }

    /// A pipeline is gone, suspended, or scaled by somebody else.
    pub fn forget(&self, key: &Key) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

impl Scaler {
    fn new(pipeline: &ValidatedPipeline, kept: Option<&ConfigMap>, now: Instant, window: Duration) -> Self {
        let text = kept.and_then(|map| map.data.as_ref()?.get(STATE));
        // What cannot be read was written by another version; one window is watched instead.
        let state: Option<State> = text.and_then(|text| serde_json::from_str(text).ok());
        let of = kept.and_then(|map| map.data.as_ref()?.get(SIGNAL));
        let state = state.filter(|_| of == pipeline.signal.as_ref());
        Self {
            uid: pipeline.uid.clone(),
            asked: pipeline.size.asked,
            signal: pipeline.signal.clone(),
            streams: Vec::new(),
            stale_after_ms: 0,
            observer: Observer::default(),
            taken: None,
            written: state.as_ref().map(|state| (state.at_ms, state.replicas)),
            has_decided: false,
            // Who goes on watches one whole window; who begins, begins with a first size.
            window_ends: if state.is_some() { now + window } else { now },
            state,
            limited_by: None,
        }
    }

    /// What one signal taught means nothing to another, which may not even count in the same unit.
    fn ask(&mut self, signal: &Option<String>) {
        if self.signal != *signal {
            (self.signal, self.state, self.written) = (signal.clone(), None, None);
            (self.observer, self.taken) = (Observer::new(self.streams.clone(), self.stale_after_ms), None);
        }
    }

    fn listen_to(&mut self, streams: Vec<Stream>, stale_after_ms: u64) {
        if self.streams != streams || self.stale_after_ms != stale_after_ms {
            self.observer = Observer::new(streams.clone(), stale_after_ms);
            (self.streams, self.stale_after_ms, self.taken) = (streams, stale_after_ms, None);
        }
    }

    /// Takes a round of answers, if one of them is new and the size is decided by them: nobody else takes out of the observer what is
    /// put into it.
    fn take(&mut self, sight: &Sight<'_>, now: Instant, now_ms: u64) {
        if self.signal.is_some() {
            return;
        }
        let newest = sight.answers.iter().map(|(_, seen)| seen.at).max();
        if newest <= self.taken {
            return;
        }
        self.taken = newest;
        let mut answers: Vec<&(String, Seen)> = sight.answers.iter().collect();
        answers.sort_by(|(a, _), (b, _)| a.cmp(b));
        let scrapes: Vec<Scrape<'_>> = answers
            .into_iter()
            .map(|(worker, seen)| {
                let age = now.saturating_duration_since(seen.at).as_millis();
                let status: Option<&WorkerStatus> = seen.answer.as_deref().ok();
                Scrape {
                    worker,
                    at_ms: now_ms.saturating_sub(u64::try_from(age).unwrap_or(u64::MAX)),
                    status,
                }
            })
            .collect();
        self.observer.take(&scrapes);
    }

    fn decide(&mut self, spec: &ScalingSpec, sight: &Sight<'_>, now: Instant, now_ms: u64) {
        let count = |number: i32| u32::try_from(number).unwrap_or_default();
        let fleet = Fleet {
            // A fleet of none has yet to begin, as after a suspension.
            replicas: sight.wanted.map(count).filter(|wanted| *wanted > 0),
            ready: count(sight.ready),
            rollout: sight.rollout,
        };
        let signals = match sight.heard.filter(|_| self.signal.is_some()) {
            Some(heard) => prometheus::signals(spec, fleet, &heard.numbers(now)),
            None => self.observer.window(fleet, now_ms),
        };
        let Decision { limited_by, state, .. } = decide(spec, &signals, self.state.as_ref(), now_ms);
        (self.limited_by, self.state, self.has_decided) = (limited_by, Some(state), true);
    }

    /// What is to be written now, if anything.
    fn due(&self) -> Option<String> {
        let state = self.state.as_ref()?;
        let is_kept = self.written.is_some_and(|(at_ms, replicas)| {
            replicas == state.replicas && state.at_ms.abs_diff(at_ms) < KEEP_EVERY_MS
        });
        // Of numbers and names, so it always becomes JSON.
        if is_kept { None } else { serde_json::to_string(state).ok() }
    }
}

/// The streams whose ranks count, with their plans.
fn streams(pipeline: &ValidatedPipeline, agreed: Option<&Agreed>) -> Vec<Stream> {
    let digests = agreed.map(|agreed| &agreed.digests).into_iter().flatten();
    digests
        .filter(|(name, _)| pipeline.trains(name))
        .map(|(name, plan)| Stream { name: name.clone(), plan: plan.clone() })
        .collect()
}

#[cfg(test)]
mod tests;
