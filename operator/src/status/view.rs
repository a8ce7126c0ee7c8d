//! Takes what was applied and seen, gives the conditions: each says what, where and what to do. Pure.

use feedmill_protocol::report::{CANNOT_READ, WorkerState};
use feedmill_scaler::{Limit, Reason};
use k8s_openapi::jiff::Timestamp;

use super::rollout::Rollout;
use super::{Conditions, Facts, Obstacle, Truth, is_undecided};
use crate::observe::{Trouble, TroubleKind, WorkerPod};
use crate::plan::Consistency;
use crate::spread;
use crate::types::AutoscalingMode;

/// What conditions are made of.
pub(super) struct View<'a> {
    pub(super) facts: &'a Facts<'a>,
    pub(super) serving: i32,
    pub(super) staying: &'a [&'a WorkerPod],
    pub(super) rollout: Rollout,
    pub(super) now: Timestamp,
}

/// So long it is told that a worker ended and serves again: it may have been back before anybody looked.
const ENDED_SECONDS: i64 = 300;

/// Volumes are there within seconds when what they need is.
const MOUNTING_SECONDS: i64 = 30;

impl View<'_> {
    /// Ready: whether as many workers serve as are wanted, and if not, the one thing that is most likely in the way.
    pub(super) fn ready(&self, conditions: &mut Conditions) {
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
            // As when a rollout does not get on.
            let but =
                self.worst().map(|(reason, message)| format!("; {reason}: {message}")).unwrap_or_default();
            (Truth::True, "WorkersServe", format!("{count}{but}"))
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
            return (trouble.kind.reason(), self.troubled(pod, trouble));
        }
        if let Some((reason, message)) = self.missing() {
            return (reason, message);
        }
        if let Some(message) = self.cannot_read() {
            return ("CannotReadData", message);
        }
        let mut doing = self.facts.workers.iter().filter(|(_, status)| status.state == WorkerState::Starting);
        match doing.find_map(|(pod, status)| Some(format!("{pod}: {}", status.doing.as_deref()?))) {
            Some(doing) => ("WorkersStarting", doing),
            None => ("WorkersStarting", "the others are being started".into()),
        }
    }

    /// A worker whose storage does not answer, or not well.
    fn cannot_read(&self) -> Option<String> {
        let mut starting =
            self.facts.workers.iter().filter(|(_, status)| status.state == WorkerState::Starting);
        let tries = starting.find_map(|(pod, status)| {
            Some((pod, status.doing.as_deref()?)).filter(|(_, doing)| doing.starts_with(CANNOT_READ))
        });
        tries.map(|(pod, doing)| format!("{pod}: {doing}"))
    }

    fn troubled(&self, pod: &WorkerPod, trouble: &Trouble) -> String {
        let remedy = match trouble.kind {
            TroubleKind::Image if self.facts.pipeline.worker.image.is_none() => {
                "correct worker.image of the operator's chart, give its pull secrets, or name another image in spec.worker.image"
            }
            kind => kind.remedy(),
        };
        format!("{}: {}; {remedy}", pod.name, trouble.words)
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

    /// The last worker that ended lately and serves again.
    fn ended(&self) -> Option<(&'static str, String)> {
        let ended = self.staying.iter().filter_map(|pod| Some((*pod, pod.ended.as_ref()?)));
        let lately = ended.filter(|(_, (_, at))| self.now.as_second().saturating_sub(*at) < ENDED_SECONDS);
        let (pod, (trouble, at)) = lately.max_by_key(|(pod, (_, at))| (*at, &pod.name))?;
        let at = Timestamp::from_second(*at).map_or_else(|_| String::new(), |at| format!(" at {at}"));
        let words = format!("{}{at}, and serves again", trouble.words);
        Some((trouble.kind.reason(), self.troubled(pod, &Trouble { kind: trouble.kind, words })))
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

    /// All but Ready.
    pub(super) fn others(&self, conditions: &mut Conditions) {
        self.progressing(conditions);
        self.degraded(conditions);
        self.suspended(conditions);
        self.source(conditions);
        self.plan_consistent(conditions);
        self.up_to_date(conditions);
        self.scaling(conditions);
        self.spread(conditions);
    }

    /// Progressing: whether workers are being made or replaced.
    fn progressing(&self, conditions: &mut Conditions) {
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
    }

    /// The worst that is wrong although workers may serve.
    fn worst(&self) -> Option<(&'static str, String)> {
        let of_pod =
            |(pod, trouble): (&WorkerPod, &Trouble)| (trouble.kind.reason(), self.troubled(pod, trouble));
        self.facts
            .obstacle
            .map(words)
            .or_else(|| self.trouble().map(of_pod))
            .or_else(|| Some(("PlanDiffers", self.plans_differ()?)))
            .or_else(|| self.missing())
            .or_else(|| Some(("CannotReadData", self.cannot_read()?)))
            .or_else(|| Some(("WorkerProblem", self.problems()?)))
            .or_else(|| self.ended())
    }

    /// Degraded: the worst that is wrong although workers may serve.
    fn degraded(&self, conditions: &mut Conditions) {
        match self.worst() {
            Some((reason, message)) => conditions.set("Degraded", Truth::True, reason, &message),
            None => conditions.set("Degraded", Truth::False, "AsExpected", ""),
        }
    }

    /// Suspended: whether there are to be no workers, and still are some.
    fn suspended(&self, conditions: &mut Conditions) {
        if self.facts.pipeline.size.suspended {
            let message = format!("{} workers are still ending", self.staying.len());
            let message = if self.staying.is_empty() { "no workers" } else { &message };
            conditions.set("Suspended", Truth::True, "Suspended", message);
        } else {
            conditions.set("Suspended", Truth::False, "NotSuspended", "");
        }
    }

    /// PlanConsistent: whether workers compute the plan that is recorded.
    fn plan_consistent(&self, conditions: &mut Conditions) {
        match self.facts.consistency {
            Consistency::Unknown if self.facts.unasked && conditions.had("PlanConsistent") => {}
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
    }

    /// UpToDate: whether workers are as this operator would make them.
    fn up_to_date(&self, conditions: &mut Conditions) {
        if self.facts.up_to_date {
            conditions.set("UpToDate", Truth::True, "TemplateCurrent", "");
        } else {
            let message = "this operator would make workers differently than they were made; they are kept until the spec changes, \
                           the pipeline is resumed, or the annotation feedmill.dev/restart-at is set";
            conditions.set("UpToDate", Truth::False, "TemplateKept", message);
        }
    }

    /// SpreadSatisfied: whether workers stand as evenly as was asked for.
    fn spread(&self, conditions: &mut Conditions) {
        let placement = self.facts.placement;
        match spread::satisfied(&self.facts.pipeline.placement, &placement) {
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

    /// ScalingActive: who decides, and whether that can be done. ScalingLimited: whether the bounds are in the way.
    fn scaling(&self, conditions: &mut Conditions) {
        let size = self.facts.pipeline.size;
        let wanted = size.workers;
        match (size.mode, self.facts.scaled) {
            (AutoscalingMode::Manual, _) => {
                conditions.set("ScalingActive", Truth::False, "Manual", "spec.replicas decides");
            }
            (AutoscalingMode::External, _) => {
                let message = "whoever writes spec.replicas decides, within the bounds of spec.autoscaling";
                conditions.set("ScalingActive", Truth::True, "External", message);
            }
            (AutoscalingMode::Internal, None) => {
                conditions.set(
                    "ScalingActive",
                    Truth::False,
                    "Resting",
                    "nothing is decided while the pipeline is suspended or paused",
                );
            }
            (AutoscalingMode::Internal, Some(scaled)) => {
                let blind = matches!(scaled.reason, Reason::Lost { .. } | Reason::Fallback { .. });
                let truth = if blind { Truth::False } else { Truth::True };
                let by = self.facts.pipeline.signal.as_ref();
                let by = by
                    .map(|server| format!(" (the Prometheus server {server} is asked)"))
                    .unwrap_or_default();
                let message = format!("{wanted} workers: {}{by}", scaled.reason);
                conditions.set("ScalingActive", truth, scaled.reason.label(), &message);
            }
        }
        let limit = self.facts.scaled.and_then(|scaled| scaled.limited_by);
        match (size.limited, limit) {
            (Some(asked), _) => {
                let message = format!("{asked} workers were asked for; spec.autoscaling allows {wanted}");
                let reason = if asked > wanted { "MaxReplicas" } else { "MinReplicas" };
                conditions.set("ScalingLimited", Truth::True, reason, &message);
            }
            (None, Some(Limit::Max)) => {
                let message =
                    format!("more than {wanted} workers would be wanted; raise spec.autoscaling.maxReplicas");
                conditions.set("ScalingLimited", Truth::True, "MaxReplicas", &message);
            }
            (None, _) if self.facts.scaled.is_some_and(is_undecided) && conditions.had("ScalingLimited") => {}
            // The least is what an idle fleet is to have, and a step goes on by itself.
            (None, _) => conditions.set("ScalingLimited", Truth::False, "WithinBounds", ""),
        }
    }

    /// SourceReady: whether workers could read manifests and processor.
    fn source(&self, conditions: &mut Conditions) {
        let workers = self.facts.workers;
        let read = workers.iter().any(|(_, status)| !status.streams.is_empty());
        let reading =
            workers.iter().find_map(|(pod, status)| Some(format!("{pod}: {}", status.doing.as_deref()?)));
        let reading = match self.cannot_read() {
            Some(message) => Some(("CannotReadData", message)),
            None => reading.map(|message| ("ReadingData", message)),
        };
        let crashed = self.trouble().filter(|(_, trouble)| trouble.kind == TroubleKind::Crashes);
        match (read, reading, crashed) {
            (false, None, None) if self.facts.unasked && conditions.had("SourceReady") => {}
            (true, _, _) => conditions.set("SourceReady", Truth::True, "DataRead", ""),
            (false, _, Some((pod, trouble))) => {
                conditions.set("SourceReady", Truth::False, "CannotReadData", &self.troubled(pod, trouble));
            }
            (false, Some((reason, message)), None) => {
                conditions.set("SourceReady", Truth::False, reason, &message);
            }
            (false, None, None) => {
                let why = self.facts.silent.map(|(pod, error)| format!("; {pod}: {error}"));
                let message = format!("no worker says what it has read{}", why.unwrap_or_default());
                conditions.set("SourceReady", Truth::Unknown, "NoWorkerAnswers", &message);
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

/// The reason of Ready while the API server refuses something; an operator that begins anew knows by it that this was told.
pub const APPLY_FAILED: &str = "ApplyFailed";

fn words(obstacle: &Obstacle) -> (&'static str, String) {
    match obstacle {
        Obstacle::NameConflict(what) => (
            "NameConflict",
            format!("{what} exists and is not this pipeline's; remove it or give the pipeline another name"),
        ),
        Obstacle::Refused(what) => (APPLY_FAILED, format!("the API server refuses: {what}")),
        Obstacle::Forbidden(what) => {
            ("Forbidden", format!("the operator may not: {what}; give its role that verb, as the chart does"))
        }
    }
}
