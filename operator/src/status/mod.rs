//! Takes what was applied and seen, gives the status: conditions that say what, where and what to do. Pure.

/// One condition, kept over time.
mod condition;
/// Where a Deployment is on its way.
mod rollout;
/// The conditions of a pipeline that can be read.
mod view;

use std::sync::Arc;
use std::time::{Duration, Instant};

use feedmill_protocol::pipeline::FieldError;
use feedmill_protocol::report::WorkerStatus;
use feedmill_scaler::Reason;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use crate::desired::selector_text;
use crate::observe::WorkerPod;
use crate::plan::{Agreed, Consistency};
use crate::scale::Scaled;
use crate::scrape::{Figures, ScrapeError};
use crate::size::count;
use crate::types::{DataPipelineStatus, PlacementStatus, ScalingStatus};
use crate::validate::ValidatedPipeline;

pub use condition::{Conditions, Edge, Truth, edges};
use rollout::{Rollout, rollout};
pub use rollout::{is_replacing, is_stuck, is_whole};
pub use view::APPLY_FAILED;
use view::View;

/// What stood in the way of applying.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// An object of that name belongs to somebody else.
    NameConflict(String),
    /// The API server refused something.
    Refused(String),
    /// Something was not permitted.
    Forbidden(String),
}

/// Everything the status of a pipeline that can be read is made of.
#[derive(Debug)]
pub struct Facts<'a> {
    /// The pipeline.
    pub pipeline: &'a ValidatedPipeline,
    /// Its pods.
    pub pods: &'a [Arc<WorkerPod>],
    /// Its Deployment, if there is one.
    pub deployment: Option<&'a Deployment>,
    /// Whether something was written since it looked so, or could not be written yet.
    pub deployment_is_old: bool,
    /// What its workers say, by pod.
    pub workers: &'a [(&'a str, &'a WorkerStatus)],
    /// One of those that say nothing, and why.
    pub silent: Option<(&'a str, &'a ScrapeError)>,
    /// The recorded plan.
    pub agreed: Option<&'a Agreed>,
    /// Whether all agree with it.
    pub consistency: &'a Consistency,
    /// Where workers run.
    pub placement: PlacementStatus,
    /// What trainers report.
    pub figures: Figures,
    /// Whether workers are made as this operator would make them now.
    pub up_to_date: bool,
    /// How the size was decided, where the operator decides.
    pub scaled: Option<&'a Scaled>,
    /// Whether workers of former streams end before new ones are made.
    pub changing: bool,
    /// What stood in the way.
    pub obstacle: Option<&'a Obstacle>,
    /// Whether a worker that serves has not been asked yet, as after an operator's start: what was said of all of them stands until then.
    pub unasked: bool,
}

/// The status of a pipeline whose fields contradict each other: nothing else about it changes.
#[must_use]
pub fn invalid(
    before: &DataPipelineStatus,
    name: &str,
    generation: i64,
    errors: &[FieldError],
    pods: &[Arc<WorkerPod>],
    now: Timestamp,
) -> DataPipelineStatus {
    let told: Vec<String> = errors.iter().take(5).map(ToString::to_string).collect();
    let more = errors.len().saturating_sub(told.len());
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    let message = format!("{}{more}; nothing is changed until this is corrected", told.join("; "));
    let mut conditions = Conditions::after(&before.conditions, generation, now);
    conditions.set("Ready", Truth::False, "InvalidSpec", &message);
    conditions.set("Degraded", Truth::True, "InvalidSpec", &message);
    DataPipelineStatus {
        observed_generation: Some(generation),
        selector: selector_text(name),
        // They can be counted without knowing what is wanted.
        replicas: count(pods.iter().filter(|pod| pod.stays()).count()),
        ready_replicas: count(pods.iter().filter(|pod| pod.serves()).count()),
        conditions: conditions.done(),
        ..before.clone()
    }
}

/// The largest whole number that JSON readers keep exactly.
const MOST_SAMPLES: u64 = (1 << 53) - 1;

/// The status of a pipeline.
#[must_use]
pub fn status(before: &DataPipelineStatus, facts: &Facts<'_>, now: Timestamp) -> DataPipelineStatus {
    let pipeline = facts.pipeline;
    let staying: Vec<&WorkerPod> = facts.pods.iter().map(Arc::as_ref).filter(|pod| pod.stays()).collect();
    let serving = count(staying.iter().filter(|pod| pod.ready).count());
    let mut conditions = Conditions::after(&before.conditions, pipeline.generation, now);
    let rollout = match rollout(facts.deployment, pipeline.size.workers) {
        Rollout::Done if facts.deployment_is_old => Rollout::Going,
        other => other,
    };
    let view = View { facts, serving, staying: &staying, rollout, now };
    view.ready(&mut conditions);
    view.others(&mut conditions);
    // Of streams that there are, in numbers that every JSON reader has: workers are not believed in everything.
    let samples = facts.workers.iter().flat_map(|(_, status)| &status.streams);
    let samples = samples.filter(|(name, _)| pipeline.purposes.iter().any(|(known, _)| known == *name));
    let samples = samples
        .map(|(name, stream)| (name.clone(), stream.samples_per_epoch.min(MOST_SAMPLES).cast_signed()));
    let samples: std::collections::BTreeMap<String, i64> = samples.collect();
    DataPipelineStatus {
        observed_generation: Some(pipeline.generation),
        selector: selector_text(&pipeline.key.name),
        replicas: count(staying.len()),
        desired_replicas: pipeline.size.workers,
        ready_replicas: serving,
        plan_digests: facts.agreed.map(|agreed| agreed.digests.clone()).unwrap_or_default(),
        // Of a fleet that does not answer just now the last known.
        samples_per_epoch: if samples.is_empty() && !pipeline.size.suspended {
            before.samples_per_epoch.clone()
        } else {
            samples
        },
        placement: Some(facts.placement),
        scaling: Some(scaling(before, facts, now)),
        conditions: conditions.done(),
    }
}

/// Whether this operator has not decided about the size, which another one has left.
fn is_undecided(scaled: &Scaled) -> bool {
    scaled.reason == Reason::Watching
}

/// What trainers report and what came of it.
fn scaling(before: &DataPipelineStatus, facts: &Facts<'_>, now: Timestamp) -> ScalingStatus {
    let old = before.scaling.clone().unwrap_or_default();
    // A first status is no change of the size.
    let changed =
        before.observed_generation.is_some() && before.desired_replicas != facts.pipeline.size.workers;
    let limited_by = match facts.scaled {
        Some(scaled) if is_undecided(scaled) => old.limited_by.clone(),
        Some(scaled) => scaled.limited_by.map(|limit| limit.label().to_owned()),
        None => None,
    };
    ScalingStatus {
        reason: facts.scaled.map(|scaled| scaled.reason.label().to_owned()),
        limited_by,
        last_scale_time: if changed { Some(Time(now)) } else { old.last_scale_time.clone() },
        previous_replicas: if changed { Some(before.desired_replicas) } else { old.previous_replicas },
        ..match before.scaling.clone().filter(|_| facts.unasked) {
            Some(before) => before,
            None => figures(before.scaling.as_ref(), facts.figures),
        }
    }
}

/// Figures that hardly moved stay as they were written.
fn figures(before: Option<&ScalingStatus>, now: Figures) -> ScalingStatus {
    let moved = |before: Option<i32>, now: Option<i32>, by: i32| match (before, now) {
        (Some(before), Some(now)) => before.abs_diff(now) >= by.unsigned_abs(),
        (before, now) => before != now,
    };
    let new = ScalingStatus {
        reporting_ranks: now.ranks,
        wait_permille: now.wait_permille,
        queue_fill_percent: now.queue_fill_percent,
        ..ScalingStatus::default()
    };
    match before {
        Some(before)
            if before.reporting_ranks == new.reporting_ranks
                && !moved(before.wait_permille, new.wait_permille, 50)
                && !moved(before.queue_fill_percent, new.queue_fill_percent, 5) =>
        {
            before.clone()
        }
        _ => new,
    }
}

/// Conditions and counts are written at once, but not more often than this.
const AT_ONCE: Duration = Duration::from_secs(5);
/// Words alone, such as how much has been read, are written at most this often.
const WORDS: Duration = Duration::from_secs(15);
/// Figures alone are written at most this often.
const FIGURES: Duration = Duration::from_secs(60);

/// When a status is to be written: none when it says nothing new, else the time to wait.
#[must_use]
pub fn due(
    before: &DataPipelineStatus,
    new: &DataPipelineStatus,
    written: Option<Instant>,
    now: Instant,
) -> Option<Duration> {
    if before == new {
        return None;
    }
    let rest = |status: &DataPipelineStatus| {
        let mut rest = DataPipelineStatus { scaling: None, ..status.clone() };
        // The sentence of a decision is made of figures: with others it says the same.
        let sentences = rest.conditions.iter_mut().filter(|condition| condition.type_ == "ScalingActive");
        sentences.for_each(|condition| condition.message.retain(|c| !c.is_ascii_digit() && c != '.'));
        rest
    };
    let wordless = |status: &DataPipelineStatus| {
        let mut rest = rest(status);
        rest.conditions.iter_mut().for_each(|condition| condition.message.clear());
        rest
    };
    let pause = match (rest(before) == rest(new), wordless(before) == wordless(new)) {
        (true, _) => FIGURES,
        (false, true) => WORDS,
        (false, false) => AT_ONCE,
    };
    Some(
        written
            .map_or(Duration::ZERO, |written| pause.saturating_sub(now.saturating_duration_since(written))),
    )
}

#[cfg(test)]
mod tests;
