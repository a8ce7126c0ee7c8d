//! Observe: everything that exists of a pipeline, taken once for each look.

use std::sync::Arc;

use feedmill_protocol::report::WorkerStatus;
use k8s_openapi::api::apps::v1::{ControllerRevision, Deployment};
use k8s_openapi::api::core::v1::ConfigMap;

use super::Context;
use crate::apply::{ours, ours_or_left};
use crate::desired::Names;
use crate::observe::{NodeFacts, WorkerPod};
use crate::plan::Agreed;
use crate::scrape::{ScrapeError, Seen};
use crate::validate::ValidatedPipeline;

/// Everything that exists of a pipeline.
pub(super) struct Observed {
    pub(super) deployment: Option<Arc<Deployment>>,
    /// The recorded plan.
    pub(super) recorded: Option<Agreed>,
    pub(super) scaling: Option<Arc<ConfigMap>>,
    pub(super) revisions: Vec<Arc<ControllerRevision>>,
    /// The oldest first: where workers differ its plan counts.
    pub(super) pods: Vec<Arc<WorkerPod>>,
    /// What the pods that stay said last, by their names.
    pub(super) seen: Vec<(String, Seen)>,
    /// Whether one that serves has not been asked yet.
    pub(super) unasked: bool,
    /// What those of them say that read by the present streams.
    answers: Vec<(String, Arc<WorkerStatus>)>,
    /// None where they cannot be read.
    nodes: Option<Vec<Arc<NodeFacts>>>,
}

impl Context {
    /// Observe: everything that exists of it.
    pub(super) fn observe(&self, pipeline: &ValidatedPipeline) -> Observed {
        let (key, names) = (&pipeline.key, Names::of(&pipeline.key.name));
        let mut pods = self.caches.pods.all(key);
        pods.sort_by(|a, b| (a.made, &a.name).cmp(&(b.made, &b.name)));
        let (mut seen, mut answers, mut unasked) = (Vec::new(), Vec::new(), false);
        for pod in pods.iter().filter(|pod| pod.stays()) {
            let Some(said) = self.answers.of(&pod.uid) else {
                unasked |= pod.serves();
                continue;
            };
            if let Ok(status) = &said.answer
                && !pod.reads_by_others(&pipeline.plan_inputs)
            {
                answers.push((pod.name.clone(), Arc::clone(status)));
            }
            seen.push((pod.name.clone(), said));
        }
        let revisions = self.caches.revisions.all(key).into_iter();
        let recorded = ours_or_left(self.caches.maps.get(key, &names.plan), &pipeline.uid);
        Observed {
            deployment: ours_or_left(self.caches.deployments.get(key, &names.worker), &pipeline.uid),
            recorded: recorded.as_deref().map(Agreed::read),
            scaling: ours(self.caches.maps.get(key, &names.scaling), &pipeline.uid),
            revisions: revisions.filter_map(|revision| ours(Some(Ok(revision)), &pipeline.uid)).collect(),
            pods,
            seen,
            unasked,
            answers,
            nodes: self.caches.nodes(),
        }
    }
}

impl Observed {
    /// What workers that stay say, the oldest first.
    pub(super) fn workers(&self) -> Vec<(&str, &WorkerStatus)> {
        self.answers.iter().map(|(pod, status)| (pod.as_str(), status.as_ref())).collect()
    }

    /// The first that was asked and says nothing, and why.
    pub(super) fn silent(&self) -> Option<(&str, &ScrapeError)> {
        self.seen.iter().find_map(|(pod, seen)| Some((pod.as_str(), seen.answer.as_ref().err()?)))
    }

    pub(super) fn pods(&self) -> Vec<&WorkerPod> {
        self.pods.iter().map(Arc::as_ref).collect()
    }

    pub(super) fn nodes(&self) -> Option<Vec<&NodeFacts>> {
        Some(self.nodes.as_ref()?.iter().map(Arc::as_ref).collect())
    }
}
