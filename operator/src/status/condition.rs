//! One condition, kept over time.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

/// The longest message that Kubernetes keeps.
const MAX_MESSAGE: usize = 1024;

/// Whether something holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truth {
    /// It does.
    True,
    /// It does not.
    False,
    /// Nobody can say.
    Unknown,
}

impl Truth {
    fn name(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// New conditions after old ones: the time of a transition is that of the last change between true, false and unknown.
#[derive(Debug)]
pub struct Conditions {
    before: Vec<Condition>,
    generation: i64,
    now: Timestamp,
    new: Vec<Condition>,
}

impl Conditions {
    /// None yet, after these.
    #[must_use]
    pub fn after(before: &[Condition], generation: i64, now: Timestamp) -> Self {
        Self { before: before.to_vec(), generation, now, new: Vec::new() }
    }

    /// Whether it was said before how it stands with something. What is not spoken of anew stays so.
    #[must_use]
    pub fn had(&self, kind: &str) -> bool {
        self.before.iter().any(|condition| condition.type_ == kind)
    }

    /// Says how it stands with something.
    pub fn set(&mut self, kind: &str, truth: Truth, reason: &str, message: &str) {
        let old = self.before.iter().find(|condition| condition.type_ == kind);
        let since = old.filter(|condition| condition.status == truth.name());
        let since = since.map_or(Time(self.now), |condition| condition.last_transition_time.clone());
        self.new.retain(|condition| condition.type_ != kind);
        self.new.push(Condition {
            type_: kind.to_owned(),
            status: truth.name().to_owned(),
            reason: reason.to_owned(),
            message: message.chars().take(MAX_MESSAGE).collect(),
            observed_generation: Some(self.generation),
            last_transition_time: since,
        });
    }

    /// All of them, those that were not spoken of as they were.
    #[must_use]
    pub fn done(self) -> Vec<Condition> {
        let mut all = self.new;
        for old in self.before {
            if !all.iter().any(|condition| condition.type_ == old.type_) {
                all.push(old);
            }
        }
        all
    }
}

/// A change that people should hear of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Whether it is bad news.
    pub warning: bool,
    /// What happened, in one word.
    pub reason: String,
    /// What happened.
    pub note: String,
}

/// What is good news when it is true; of all others it is bad.
const GOOD: [&str; 6] =
    ["Ready", "SourceReady", "PlanConsistent", "UpToDate", "ScalingActive", "SpreadSatisfied"];
const BAD: [&str; 2] = ["Degraded", "ScalingLimited"];
/// What is neither; it comes with every start.
const EXPECTED: [&str; 9] = [
    "WorkersStarting",
    "PlanChanging",
    "Suspended",
    "ReadingData",
    "NoWorkerAnswers",
    "NoPlanYet",
    "NodesUnknown",
    "Manual",
    "Resting",
];

/// What changed between two statuses, once each: a condition that is true or false as before, for the same reason, is no news.
#[must_use]
pub fn edges(before: &[Condition], after: &[Condition]) -> Vec<Edge> {
    let mut edges: Vec<Edge> = Vec::new();
    for new in after {
        let good = GOOD.contains(&new.type_.as_str());
        if !good && !BAD.contains(&new.type_.as_str()) {
            continue;
        }
        let old = before.iter().find(|condition| condition.type_ == new.type_);
        let same = old.is_some_and(|old| (&old.status, &old.reason) == (&new.status, &new.reason));
        let fine = new.status == if good { "True" } else { "False" };
        // The first status of a pipeline is no news where it is well.
        let was_fine = old.is_none_or(|old| old.status == if good { "True" } else { "False" });
        let silent = same || (fine && was_fine) || (!fine && EXPECTED.contains(&new.reason.as_str()));
        if silent || edges.iter().any(|edge| edge.reason == new.reason) {
            continue;
        }
        let note = if new.message.is_empty() {
            format!("{} is {}", new.type_, new.status)
        } else {
            new.message.clone()
        };
        edges.push(Edge { warning: !fine, reason: new.reason.clone(), note });
    }
    edges
}
