//! Takes what workers say of their plans, gives the plan that is recorded and whether all agree. Pure.
//!
//! Workers of former streams must be gone before one of the new streams is made: both have the same name and would be asked in turn.
//!
//! The plan of the first workers that serve is recorded and mounted by all; one that computes another does not serve, or stops. So data
//! that changes under a running training is seen, and never mixed.

use std::collections::{BTreeMap, BTreeSet};

use feedmill_protocol::pipeline::spec::Purpose;
use feedmill_protocol::plan::PlanDigest;
use feedmill_protocol::report::{WorkerState, WorkerStatus};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;

use crate::desired::PLAN_INPUTS;
use crate::observe::WorkerPod;
use crate::validate::are_others;

/// A recorded plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// A hash of the part of the spec that it belongs to.
    pub inputs: String,
    /// The digest of each stream.
    pub digests: BTreeMap<String, String>,
}

impl Agreed {
    /// Reads a recorded plan.
    #[must_use]
    pub fn read(map: &ConfigMap) -> Self {
        Self {
            inputs: map.annotations().get(PLAN_INPUTS).cloned().unwrap_or_default(),
            digests: map.data.clone().unwrap_or_default(),
        }
    }
}

/// Whether workers agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// No worker has computed a plan yet.
    Unknown,
    /// All do, by the recorded plan.
    Agree,
    /// Some have another plan.
    Differ {
        /// The stream.
        stream: String,
        /// Those that differ, by name.
        workers: Vec<String>,
        /// What the first of them has.
        theirs: String,
        /// What is recorded, or what the others have.
        recorded: String,
    },
}

/// Whether workers must be gone first, and are not: all of a pipeline that is suspended, else those that read by other streams. A
/// Deployment that may still make such a worker counts like one.
#[must_use]
pub fn is_ending(
    inputs: &str,
    suspended: bool,
    deployment: Option<&Deployment>,
    deployment_is_old: bool,
    pods: &[&WorkerPod],
) -> bool {
    let makes_others = |deployment: &&Deployment| {
        let template = deployment.spec.as_ref().and_then(|spec| spec.template.metadata.as_ref());
        let theirs = template.and_then(|metadata| metadata.annotations.as_ref()?.get(PLAN_INPUTS));
        suspended || theirs.is_some_and(|theirs| are_others(theirs, inputs))
    };
    pods.iter().any(|pod| pod.stays() && (suspended || pod.reads_by_others(inputs)))
        || deployment
            .filter(makes_others)
            .is_some_and(|deployment| deployment_is_old || has_workers(deployment))
}

/// Whether a Deployment has workers or may be about to make one.
fn has_workers(deployment: &Deployment) -> bool {
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let Some(status) = &deployment.status else { return true };
    let is_seen = status.observed_generation >= deployment.metadata.generation;
    wanted != 0 || !is_seen || status.replicas.unwrap_or_default() != 0
}

/// Decides which plan stands recorded, and whether the workers agree with it. Workers are those that were made for these inputs,
/// the oldest first; `streams` are those of the spec, for which alone a worker's word counts.
#[must_use]
pub fn decide(
    streams: &[(String, Purpose)],
    inputs: &str,
    suspended: bool,
    recorded: Option<Agreed>,
    workers: &[(&str, &WorkerStatus)],
) -> (Option<Agreed>, Consistency) {
    if suspended {
        return (None, Consistency::Unknown);
    }
    let recorded = recorded
        .filter(|recorded| !are_others(&recorded.inputs, inputs) && !recorded.digests.is_empty())
        .map(|recorded| Agreed { inputs: inputs.to_owned(), ..recorded });
    let known: Vec<&(&str, &WorkerStatus)> =
        workers.iter().filter(|(_, status)| !status.streams.is_empty()).collect();
    let digests_of = |status: &WorkerStatus| -> Option<BTreeMap<String, String>> {
        let digest = |name: &str| {
            let plan = &status.streams.get(name)?.plan;
            plan.parse::<PlanDigest>().is_ok().then(|| (name.to_owned(), plan.clone()))
        };
        streams.iter().map(|(name, _)| digest(name)).collect()
    };
    if let Some(recorded) = recorded {
        let consistency = match other(&known, &recorded.digests) {
            Some(differ) => differ,
            None if known.is_empty() => Consistency::Unknown,
            None => Consistency::Agree,
        };
        return (Some(recorded), consistency);
    }
    let Some(digests) = of_most(&known, &digests_of) else { return (None, Consistency::Unknown) };
    // Also while others differ: nothing else would ever make them stop.
    let consistency = other(&known, &digests).unwrap_or(Consistency::Agree);
    (Some(Agreed { inputs: inputs.to_owned(), digests }), consistency)
}

/// The plan that most serving workers have, of several the one of the oldest.
fn of_most(
    workers: &[&(&str, &WorkerStatus)],
    digests_of: &dyn Fn(&WorkerStatus) -> Option<BTreeMap<String, String>>,
) -> Option<BTreeMap<String, String>> {
    let mut plans: Vec<(BTreeMap<String, String>, usize)> = Vec::new();
    for (_, status) in workers.iter().filter(|(_, status)| status.state == WorkerState::Ready) {
        let Some(plan) = digests_of(status) else { continue };
        match plans.iter_mut().find(|(known, _)| *known == plan) {
            Some((_, count)) => *count += 1,
            None => plans.push((plan, 1)),
        }
    }
    let most = plans.iter().map(|(_, count)| *count).max()?;
    plans.into_iter().find(|(_, count)| *count == most).map(|(plan, _)| plan)
}

/// The first stream in which somebody has another plan.
fn other(workers: &[&(&str, &WorkerStatus)], digests: &BTreeMap<String, String>) -> Option<Consistency> {
    digests.iter().find_map(|(stream, recorded)| {
        let differing: Vec<(&str, &str)> = workers
            .iter()
            .filter_map(|(name, status)| {
                let theirs = status.streams.get(stream)?.plan.as_str();
                (theirs != recorded).then_some((*name, theirs))
            })
            .collect();
        let (_, theirs) = *differing.first()?;
        let workers: BTreeSet<&str> = differing.iter().map(|(name, _)| *name).collect();
        Some(Consistency::Differ {
            stream: stream.clone(),
            workers: workers.into_iter().map(str::to_owned).collect(),
            theirs: theirs.to_owned(),
            recorded: recorded.clone(),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scrape::tests::{digest, worker};

    fn agreed(plan: u8) -> Agreed {
        Agreed { inputs: "i".into(), digests: BTreeMap::from([("train".into(), digest(plan))]) }
    }

    fn of(plan: u8) -> WorkerStatus {
        worker(&digest(plan))
    }

    fn decided(
        inputs: &str,
        suspended: bool,
        recorded: Option<Agreed>,
        workers: &[(&str, &WorkerStatus)],
    ) -> (Option<Agreed>, Consistency) {
        decide(&[("train".into(), Purpose::Train)], inputs, suspended, recorded, workers)
    }

    #[test]
    fn the_first_plan_is_recorded_and_stays() {
        let (one, two, other) = (of(1), of(1), of(2));
        let all: [(&str, &WorkerStatus); 2] = [("w1", &one), ("w2", &two)];
        assert_eq!(decided("i", false, None, &all), (Some(agreed(1)), Consistency::Agree));
        // Nobody has computed anything: what is recorded stays.
        assert_eq!(decided("i", false, Some(agreed(1)), &[]), (Some(agreed(1)), Consistency::Unknown));
        // Even when all workers are replaced by others with another plan.
        let (kept, consistency) = decided("i", false, Some(agreed(1)), &[("w3", &other)]);
        assert_eq!(kept, Some(agreed(1)));
        let Consistency::Differ { workers, theirs, recorded, .. } = consistency else { panic!() };
        assert_eq!((workers, theirs, recorded), (vec!["w3".to_owned()], digest(2), digest(1)));
    }

    #[test]
    fn first_workers_that_differ_do_not_serve_side_by_side_for_ever() {
        let (one, other) = (of(1), of(2));
        let differing = |workers: &[(&str, &WorkerStatus)]| {
            let (kept, consistency) = decided("i", false, None, workers);
            let Consistency::Differ { workers, .. } = consistency else { panic!() };
            (kept, workers)
        };
        // Of two the older one has its way, of three the two that agree.
        assert_eq!(differing(&[("w9", &one), ("w2", &other)]), (Some(agreed(1)), vec!["w2".to_owned()]));
        assert_eq!(
            differing(&[("w1", &one), ("w2", &other), ("w3", &other)]),
            (Some(agreed(2)), vec!["w1".to_owned()])
        );
    }

    #[test]
    fn a_suspended_pipeline_and_another_spec_forget_the_plan() {
        let one = of(1);
        assert_eq!(decided("i", true, Some(agreed(1)), &[("w1", &one)]).0, None);
        assert_eq!(decided("j", false, Some(agreed(1)), &[]).0, None);
        assert_eq!(decided("v2-i", false, Some(agreed(1)), &[]).0.unwrap().digests, agreed(1).digests);
        let renewed = decided("j", false, Some(agreed(3)), &[("w1", &one)]).0.unwrap();
        assert_eq!((renewed.inputs.as_str(), &renewed.digests["train"]), ("j", &digest(1)));
    }

    #[test]
    fn no_worker_of_new_streams_is_made_while_one_of_the_former_may_serve() {
        let pod = |inputs: &str| WorkerPod { plan_inputs: Some(inputs.into()), ..WorkerPod::default() };
        let (old, new, unknown) = (pod("i"), pod("j"), WorkerPod::default());
        let leaving = WorkerPod { leaving: true, ..pod("i") };
        let deployment = |inputs: &str, replicas: i32, seen: i64, there: i32| -> Deployment {
            serde_json::from_value(serde_json::json!({
                "metadata": {"generation": 2},
                "spec": {"replicas": replicas, "selector": {}, "template": {"metadata": {"annotations": {PLAN_INPUTS: inputs}}}},
                "status": {"observedGeneration": seen, "replicas": there},
            }))
            .unwrap()
        };
        let ends = |suspended, deployment: &Deployment, pods: &[&WorkerPod]| {
            is_ending("j", suspended, Some(deployment), false, pods)
        };
        // One of the former streams stays, whatever the Deployment makes by now.
        assert!(ends(false, &deployment("j", 2, 2, 2), &[&new, &old]));
        assert!(!ends(false, &deployment("j", 2, 2, 2), &[&new, &leaving, &unknown]));
        // None is seen, and one may come: it is wanted, its end was not noticed yet, or it is counted.
        assert!(ends(false, &deployment("i", 2, 2, 0), &[]));
        assert!(ends(false, &deployment("i", 0, 1, 0), &[]));
        assert!(ends(false, &deployment("i", 0, 2, 1), &[]));
        assert!(!ends(false, &deployment("i", 0, 2, 0), &[&leaving]));
        assert!(is_ending("j", false, Some(&deployment("i", 0, 2, 0)), true, &[]));
        // Suspended, all of them go.
        assert!(ends(true, &deployment("j", 0, 2, 0), &[&new]));
        assert!(ends(true, &deployment("j", 2, 2, 2), &[]));
        assert!(!ends(true, &deployment("j", 0, 2, 0), &[&leaving]));
        assert!(!is_ending("j", true, None, false, &[]));
        // Hashed by another operator they cannot be told apart, and nobody is stopped for that.
        let newer = pod("v2-i");
        assert!(!is_ending("v1-i", false, Some(&deployment("v2-i", 2, 2, 2)), false, &[&newer]));
        assert!(is_ending("v2-j", false, Some(&deployment("v2-i", 2, 2, 2)), false, &[&newer]));
    }

    #[test]
    fn a_worker_that_only_starts_or_talks_nonsense_decides_nothing() {
        let mut starting = of(1);
        starting.state = WorkerState::Starting;
        assert_eq!(decided("i", false, None, &[("w1", &starting)]), (None, Consistency::Unknown));
        let nonsense = worker("../../etc");
        assert_eq!(decided("i", false, None, &[("w1", &nonsense)]).0, None);
        let mut elsewhere = of(1);
        let stream = elsewhere.streams.remove("train").unwrap();
        elsewhere.streams.insert("a/b".into(), stream);
        assert_eq!(decided("i", false, None, &[("w1", &elsewhere)]).0, None);
    }
}
