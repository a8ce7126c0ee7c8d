//! How many workers there are, which of them go first, and where they stand.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{EvictParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::{Context, Observed};
use crate::apply::ApplyError;
use crate::desired::{Names, SIZE_MANAGER};
use crate::observe::pod::DELETION_COST;
use crate::size::{self, FIRST_TO_GO};
use crate::spread;
use crate::status;
use crate::validate::ValidatedPipeline;

/// Most pods that are marked in one look. Each that is seen to be marked wakes its pipeline for the others. Those of all pipelines that
/// are worked on at once take their turns within the time for one look.
const MARKS: usize = 100;

impl Context {
    /// The number of workers, and before it is lowered the marks of those that go.
    pub(super) async fn resize(
        &self,
        pipeline: &ValidatedPipeline,
        observed: &Observed,
        wanted: i32,
    ) -> Result<(), ApplyError> {
        let names = Names::of(&pipeline.key.name);
        // Just created: the watch wakes this pipeline again.
        let Some(deployment) = &observed.deployment else { return Ok(()) };
        let current = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
        let mut pods = observed.pods();
        // A Deployment divides what it takes away between its templates, whatever is marked.
        if wanted > 0 && wanted < current && size::has_two_templates(&pods) && !status::is_stuck(deployment) {
            return Ok(());
        }
        let mut step = size::step(current, wanted, &pods);
        // One that is gone is decided without: it would never be seen marked.
        let mut answered = BTreeMap::new();
        loop {
            let gone = self.mark(pipeline, &step, &mut answered).await?;
            if gone.is_empty() {
                break;
            }
            pods.retain(|pod| !gone.contains(&pod.name));
            step = size::step(current, wanted, &pods);
        }
        let Some(workers) = step.write else { return Ok(()) };
        let body = json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": names.worker, "uid": deployment.uid()},
            "spec": {"replicas": workers},
        });
        let (writes, body) = (self.writes(pipeline), Patch::Apply(&body));
        let (api, parameters) = (writes.api::<Deployment>(), PatchParams::apply(SIZE_MANAGER).force());
        let write = api.patch(&names.worker, &parameters, &body);
        if let Some(made) = writes.done("Deployment", &names.worker, &[], write).await? {
            self.generations.saw(&pipeline.key, &made);
        }
        tracing::info!(pipeline = %pipeline.key, from = current, to = workers, "the number of workers changes");
        Ok(())
    }

    /// Whether all workers are there, new and available, as far as is known.
    pub(super) fn is_whole(&self, pipeline: &ValidatedPipeline, observed: &Observed) -> bool {
        let deployment = observed.deployment.as_deref();
        deployment.is_some_and(|found| status::is_whole(found, pipeline.size.workers))
            && !self.is_old(pipeline, observed)
    }

    /// Marks those that go first and takes marks away, but for what was `answered` in this look. Gives those that are gone.
    async fn mark(
        &self,
        pipeline: &ValidatedPipeline,
        step: &size::Step,
        answered: &mut BTreeMap<String, Value>,
    ) -> Result<Vec<String>, ApplyError> {
        let marks = step.mark.iter().map(|name| (name, json!(FIRST_TO_GO.to_string())));
        let marks = marks.chain(step.unmark.iter().map(|name| (name, Value::Null)));
        let (writes, parameters) = (self.writes(pipeline), PatchParams::default());
        let api = writes.api::<Pod>();
        let mut gone = Vec::new();
        for (name, cost) in marks.take(MARKS) {
            if answered.get(name) == Some(&cost) {
                continue;
            }
            let patch = json!({"metadata": {"annotations": {DELETION_COST: cost}}});
            let patch = Patch::Merge(&patch);
            let write = api.patch(name, &parameters, &patch);
            if writes.done("Pod", name, &[404], write).await?.is_none() {
                gone.push(name.clone());
            } else {
                answered.insert(name.clone(), cost);
            }
        }
        Ok(gone)
    }

    /// Moves one worker of a fleet that is whole and unevenly spread, by the Eviction API and so under the disruption budget.
    pub(super) async fn even_out(
        &self,
        pipeline: &ValidatedPipeline,
        observed: &Observed,
    ) -> Result<(), ApplyError> {
        let Some(nodes) = observed.nodes().filter(|_| self.is_whole(pipeline, observed)) else {
            return Ok(());
        };
        let pods = observed.pods();
        let labels = &self.installation.accelerator_labels;
        let moved = {
            let mut moves = self.moves.lock().unwrap_or_else(PoisonError::into_inner);
            let moves = moves.entry(pipeline.key.clone()).or_default();
            spread::even_out(moves, &pipeline.placement, labels, pipeline.size.workers, &pods, &nodes)
        };
        let Some(pod) = moved else { return Ok(()) };
        let (writes, parameters) = (self.writes(pipeline), EvictParams::default());
        let api = writes.api::<Pod>();
        tracing::info!(pipeline = %pipeline.key, pod = pod.name, "a worker is moved, to spread them");
        // The disruption budget says not now, or it is gone.
        writes.done("Eviction", &pod.name, &[404, 429], api.evict(&pod.name, &parameters)).await.map(drop)
    }
}
