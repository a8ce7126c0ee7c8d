//! Takes what was applied and seen, gives the status: conditions that say what, where and what to do. Pure.

/// One condition, kept over time.
mod condition;

use std::sync::Arc;
use std::time::{Duration, Instant};

use feedmill_protocol::pipeline::FieldError;
use feedmill_protocol::report::{WorkerState, WorkerStatus};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::jiff::Timestamp;

use crate::desired::selector_text;
use crate::observe::{Trouble, WorkerPod};
use crate::plan::{Agreed, Consistency};
use crate::scrape::Figures;
use crate::spread;
use crate::types::{AutoscalingMode, DataPipelineStatus, PlacementStatus, ScalingStatus};
use crate::validate::ValidatedPipeline;

pub use condition::{Conditions, Edge, Truth, edges};

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
    /// Whether workers of former streams end before new ones are made.
    pub changing: bool,
    /// What stood in the way.
    pub obstacle: Option<&'a Obstacle>,
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
        scaling: Some(figures(before.scaling, facts.figures)),
        conditions: conditions.done(),
    }
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// Figures that hardly moved stay as they were written.
fn figures(before: Option<ScalingStatus>, now: Figures) -> ScalingStatus {
    let moved = |before: Option<i32>, now: Option<i32>, by: i32| match (before, now) {
        (Some(before), Some(now)) => before.abs_diff(now) >= by.unsigned_abs(),
        (before, now) => before != now,
    };
    let new = ScalingStatus {
        reporting_ranks: now.ranks,
        wait_permille: now.wait_permille,
        queue_fill_percent: now.queue_fill_percent,
    };
    match before {
        Some(before)
            if before.reporting_ranks == new.reporting_ranks
                && !moved(before.wait_permille, new.wait_permille, 50)
                && !moved(before.queue_fill_percent, new.queue_fill_percent, 5) =>
        {
            before
        }
        _ => new,
    }
}

/// Where a Deployment is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rollout {
    /// Nothing there.
    Absent,
    /// Pods of another template, or another number of them.
    Going,
    /// As wanted.
    Done,
    /// No progress for its deadline.
    Stuck,
}

fn rollout(deployment: Option<&Deployment>, wanted: i32) -> Rollout {
    let Some(deployment) = deployment else { return Rollout::Absent };
    let (spec, status) = (deployment.spec.as_ref(), deployment.status.as_ref());
    let stuck = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten().any(|condition| {
        condition.type_ == "Progressing" && condition.reason.as_deref() == Some("ProgressDeadlineExceeded")
    });
    let number = |count: Option<i32>| count.unwrap_or_default();
    let seen = status.and_then(|status| status.observed_generation) == deployment.metadata.generation;
    let done = spec.and_then(|spec| spec.replicas) == Some(wanted)
        && status.is_some_and(|status| {
            number(status.replicas) == wanted
                && number(status.updated_replicas) == wanted
                && number(status.available_replicas) == wanted
        });
    match (seen, done, stuck) {
        (true, true, _) => Rollout::Done,
        (_, _, true) => Rollout::Stuck,
        _ => Rollout::Going,
    }
}

/// Whether a rollout makes no progress for its deadline.
#[must_use]
pub fn is_stuck(deployment: &Deployment) -> bool {
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or_default();
    rollout(Some(deployment), wanted) == Rollout::Stuck
}

/// Whether a Deployment has exactly these workers, all of them new and available.
#[must_use]
pub fn is_whole(deployment: &Deployment, wanted: i32) -> bool {
    rollout(Some(deployment), wanted) == Rollout::Done
}

struct View<'a> {
    facts: &'a Facts<'a>,
    serving: i32,
    staying: &'a [&'a WorkerPod],
    rollout: Rollout,
    now: Timestamp,
}

/// Volumes are there within seconds when what they need is.
const MOUNTING_SECONDS: i64 = 30;

impl View<'_> {
    /// Ready: whether as many workers serve as are wanted, and if not, the one thing that is most likely in the way.
    fn ready(&self, conditions: &mut Conditions) {
        let (facts, wanted) = (self.facts, self.facts.pipeline.size.workers);
        let count = format!("{} of {wanted} workers serve", self.serving);
        let (truth, reason, message) = if let Some(obstacle) = facts.obstacle {
            let (reason, message) = words(obstacle);
            (Truth::False, reason, message)
        } else if facts.pipeline.size.suspended {
            (Truth::False, "Suspended", "no workers, as spec.suspend says; set it to false to go on".into())
        } else if facts.pipeline.paused {
            let truth = if self.serving >= wanted { Truth::True } else { Truth::False };
            (
                truth,
                "Paused",
                format!("{count}; nothing is changed while the annotation feedmill.dev/pause stands"),
            )
        } else if facts.changing {
            (Truth::False, "PlanChanging", self.ending())
        } else if wanted == 0 {
            (Truth::True, "NoWorkersWanted", "spec.replicas is 0".into())
        } else if let Some(message) = self.serve_another_plan() {
            (Truth::False, "PlanDiffers", message)
        } else if self.serving >= wanted {
            (Truth::True, "WorkersServe", count)
        } else {
            let (reason, why) = self.why_not();
            (Truth::False, reason, format!("{count}: {why}"))
        };
        conditions.set("Ready", truth, reason, &message);
    }

    fn why_not(&self) -> (&'static str, String) {
        if let Some(message) = self.plans_differ() {
            return ("PlanDiffers", message);
        }
        if let Some((pod, trouble)) = self.trouble() {
            return (trouble.reason(), troubled(pod, trouble));
        }
        if let Some((reason, message)) = self.missing() {
            return (reason, message);
        }
        let doing = self.facts.workers.iter().find_map(|(pod, status)| {
            let doing = status.doing.as_deref().filter(|_| status.state == WorkerState::Starting)?;
            Some(format!("{pod} is {doing}"))
        });
        match doing {
            Some(doing) => ("WorkersStarting", doing),
            None => ("WorkersStarting", "the others are being started".into()),
        }
    }

    /// Whom new workers wait for.
    fn ending(&self) -> String {
        let inputs = &self.facts.pipeline.plan_inputs;
        let mut former = self.staying.iter().filter(|pod| pod.reads_by_others(inputs));
        let first = former.next().map(|pod| format!(" ({})", pod.name)).unwrap_or_default();
        format!(
            "streams, processor or limits are others; {} workers{first} are ending, and new ones are made when they are gone",
            self.staying.len()
        )
    }

    /// The worst that is wrong with a pod.
    fn trouble(&self) -> Option<(&WorkerPod, &Trouble)> {
        let troubled = self.staying.iter().filter_map(|pod| Some((*pod, pod.trouble.as_ref()?)));
        troubled.max_by(|(a_pod, a), (b_pod, b)| (a, &b_pod.name).cmp(&(b, &a_pod.name)))
    }

    /// What keeps pods from being made at all, or from having their volumes.
    fn missing(&self) -> Option<(&'static str, String)> {
        let status = self.facts.deployment.and_then(|deployment| deployment.status.as_ref());
        let conditions = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
        let refused = conditions
            .filter(|condition| condition.type_ == "ReplicaFailure" && condition.status == "True")
            .find_map(|condition| condition.message.as_deref());
        if let Some(words) = refused {
            let remedy = "lift the quota, or correct what the namespace's rules refuse";
            return Some(("PodsRefused", format!("workers cannot be made: {words}; {remedy}")));
        }
        self.staying.iter().find_map(|pod| {
            let (needs, since) = pod.waits_for.as_ref()?;
            if self.now.as_second().saturating_sub(*since) < MOUNTING_SECONDS {
                return None;
            }
            let message = format!(
                "{} has no volumes after {MOUNTING_SECONDS} s; is there {needs} in its namespace? `kubectl describe pod` says more",
                pod.name
            );
            Some(("WorkerCannotStart", message))
        })
    }

    fn plans_differ(&self) -> Option<String> {
        let Consistency::Differ { stream, workers, theirs, recorded } = self.facts.consistency else {
            return None;
        };
        let first = workers.first().map(String::as_str).unwrap_or_default();
        let more = if workers.len() > 1 { format!(" and {} more", workers.len() - 1) } else { String::new() };
        Some(format!(
            "{first}{more} computes plan {theirs} for stream {stream}, the others serve {recorded}: a manifest or the processor's \
             files were overwritten; restore them, or suspend the pipeline until no worker is left and resume it, to go on by the new plan"
        ))
    }

    /// Whether a worker serves that has another plan than is recorded: who asks gets either.
    fn serve_another_plan(&self) -> Option<String> {
        let Consistency::Differ { workers, .. } = self.facts.consistency else { return None };
        let serves = self.staying.iter().any(|pod| pod.ready && workers.contains(&pod.name));
        self.plans_differ().filter(|_| serves)
    }

    fn others(&self, conditions: &mut Conditions) {
        let (facts, pipeline) = (self.facts, self.facts.pipeline);
        let wanted = pipeline.size.workers;
        match self.rollout {
            _ if pipeline.paused => {
                conditions.set(
                    "Progressing",
                    Truth::False,
                    "Paused",
                    "nothing is changed while the annotation feedmill.dev/pause stands",
                );
            }
            _ if facts.changing => conditions.set("Progressing", Truth::True, "PlanChanging", &self.ending()),
            Rollout::Absent if wanted == 0 => {
                conditions.set("Progressing", Truth::False, "NoWorkersWanted", "")
            }
            Rollout::Absent => {
                conditions.set("Progressing", Truth::True, "Creating", "the workers are being created")
            }
            Rollout::Going => {
                let message = format!("{} pods, {} serve, {wanted} wanted", self.staying.len(), self.serving);
                conditions.set("Progressing", Truth::True, "RollingOut", &message);
            }
            Rollout::Done => conditions.set("Progressing", Truth::False, "Complete", ""),
            Rollout::Stuck => {
                let message = "no progress for 30 minutes; workers of the former template go on serving; correct the spec";
                conditions.set("Progressing", Truth::False, "ProgressDeadlineExceeded", message);
            }
        }
        match (facts.obstacle, self.trouble(), self.problems()) {
            (Some(obstacle), _, _) => {
                let (reason, message) = words(obstacle);
                conditions.set("Degraded", Truth::True, reason, &message);
            }
            (None, Some((pod, trouble)), _) => {
                conditions.set("Degraded", Truth::True, trouble.reason(), &troubled(pod, trouble));
            }
            (None, None, problem) => match (self.plans_differ(), self.missing(), problem) {
                (Some(message), _, _) => conditions.set("Degraded", Truth::True, "PlanDiffers", &message),
                (None, Some((reason, message)), _) => {
                    conditions.set("Degraded", Truth::True, reason, &message)
                }
                (None, None, Some(problem)) => {
                    conditions.set("Degraded", Truth::True, "WorkerProblem", &problem)
                }
                (None, None, None) => conditions.set("Degraded", Truth::False, "AsExpected", ""),
            },
        }
        if pipeline.size.suspended {
            let message = format!("{} workers are still ending", self.staying.len());
            let message = if self.staying.is_empty() { "no workers" } else { &message };
            conditions.set("Suspended", Truth::True, "Suspended", message);
        } else {
            conditions.set("Suspended", Truth::False, "NotSuspended", "");
        }
        self.source(conditions);
        match facts.consistency {
            Consistency::Unknown => {
                conditions.set("PlanConsistent", Truth::Unknown, "NoPlanYet", "no worker has computed a plan")
            }
            Consistency::Agree => conditions.set("PlanConsistent", Truth::True, "PlansAgree", ""),
            Consistency::Differ { .. } => {
                conditions.set(
                    "PlanConsistent",
                    Truth::False,
                    "PlanDiffers",
                    &self.plans_differ().unwrap_or_default(),
                );
            }
        }
        if facts.up_to_date {
            conditions.set("UpToDate", Truth::True, "TemplateCurrent", "");
        } else {
            let message = "this operator would make workers differently than they were made; they are kept until the spec changes, \
                           the pipeline is resumed, or the annotation feedmill.dev/restart-at is set";
            conditions.set("UpToDate", Truth::False, "TemplateKept", message);
        }
        match (pipeline.size.mode, pipeline.size.limited) {
            (AutoscalingMode::Manual, _) => {
                conditions.set("ScalingActive", Truth::False, "Manual", "spec.replicas decides");
            }
            (AutoscalingMode::External, _) => {
                let message = "whoever writes spec.replicas decides, within the bounds of spec.autoscaling";
                conditions.set("ScalingActive", Truth::True, "External", message);
            }
        }
        match pipeline.size.limited {
            Some(asked) => {
                let message = format!("{asked} workers were asked for; spec.autoscaling allows {wanted}");
                let reason = if asked > wanted { "MaxReplicas" } else { "MinReplicas" };
                conditions.set("ScalingLimited", Truth::True, reason, &message);
            }
            None => conditions.set("ScalingLimited", Truth::False, "WithinBounds", ""),
        }
        let placement = facts.placement;
        match spread::satisfied(&pipeline.placement, &placement) {
            Some(true) => conditions.set("SpreadSatisfied", Truth::True, "Spread", ""),
            Some(false) => {
                let message = format!(
                    "the fullest node has {} workers, the skew is {}; add nodes or room on those that have fewer, or raise \
                     spec.placement.spread.maxSkew",
                    placement.max_per_node,
                    placement.skew.map_or_else(|| "unknown".to_owned(), |skew| skew.to_string()),
                );
                conditions.set("SpreadSatisfied", Truth::False, "Skewed", &message);
            }
            None => {
                conditions.set(
                    "SpreadSatisfied",
                    Truth::Unknown,
                    "NodesUnknown",
                    "no node that takes workers can be read",
                );
            }
        }
    }

    /// SourceReady: whether workers could read manifests and processor.
    fn source(&self, conditions: &mut Conditions) {
        let workers = self.facts.workers;
        let read = workers.iter().any(|(_, status)| !status.streams.is_empty());
        let reading = workers.iter().find_map(|(pod, status)| Some((pod, status.doing.as_deref()?)));
        let crashed = self.trouble().filter(|(_, trouble)| matches!(trouble, Trouble::Crashes(_)));
        match (read, reading, crashed) {
            (true, _, _) => conditions.set("SourceReady", Truth::True, "DataRead", ""),
            (false, _, Some((pod, trouble))) => {
                conditions.set("SourceReady", Truth::False, "CannotReadData", &troubled(pod, trouble));
            }
            (false, Some((pod, doing)), None) => {
                conditions.set("SourceReady", Truth::False, "ReadingData", &format!("{pod} is {doing}"));
            }
            (false, None, None) => {
                conditions.set(
                    "SourceReady",
                    Truth::Unknown,
                    "NoWorkerAnswers",
                    "no worker says what it has read",
                );
            }
        }
    }

    /// What a worker says is wrong until a person acts.
    fn problems(&self) -> Option<String> {
        self.facts
            .workers
            .iter()
            .find_map(|(pod, status)| Some(format!("{pod}: {}", status.problems.first()?)))
    }
}

fn troubled(pod: &WorkerPod, trouble: &Trouble) -> String {
    format!("{}: {}; {}", pod.name, trouble.words(), trouble.remedy())
}

fn words(obstacle: &Obstacle) -> (&'static str, String) {
    match obstacle {
        Obstacle::NameConflict(what) => (
            "NameConflict",
            format!("{what} exists and is not this pipeline's; remove it or give the pipeline another name"),
        ),
        Obstacle::Refused(what) => ("ApplyFailed", format!("the API server refuses: {what}")),
        Obstacle::Forbidden(what) => {
            ("Forbidden", format!("the operator may not: {what}; give its role that verb, as the chart does"))
        }
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
    let rest = |status: &DataPipelineStatus| DataPipelineStatus { scaling: None, ..status.clone() };
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
