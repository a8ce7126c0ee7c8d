//! The size of a pipeline that the operator scales: looked at before anything is applied, kept with it, told afterwards.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Resource as _;

use super::{Context, Now, Observed};
use crate::apply::{Applier, ApplyError};
use crate::desired::{Names, metadata};
use crate::scale::{SIGNAL, STATE, Scaled, Sight};
use crate::size::count;
use crate::status::{self, Edge};
use crate::types::{DataPipeline, DataPipelineStatus};
use crate::validate::{Key, ValidatedPipeline};

impl Context {
    /// How many workers there should be, where the operator decides that.
    pub(super) fn scale(
        &self,
        pipeline: &mut ValidatedPipeline,
        observed: &Observed,
        now: Now,
    ) -> Option<Scaled> {
        let spec = pipeline.scaling.clone().filter(|_| !pipeline.size.suspended && !pipeline.paused);
        let Some(spec) = spec else {
            self.scalers.forget(&pipeline.key);
            return None;
        };
        let deployment = observed.deployment.as_deref();
        let wanted = deployment.and_then(|deployment| deployment.spec.as_ref()?.replicas);
        let ready = observed.pods.iter().filter(|pod| pod.serves()).count();
        let heard = pipeline.signal.as_ref().and_then(|server| self.queries.heard(&pipeline.key, server));
        let sight = Sight {
            wanted,
            ready: count(ready),
            rollout: deployment.is_some_and(status::is_replacing),
            answers: &observed.seen,
            agreed: observed.recorded.as_ref(),
            heard: heard.as_ref(),
            kept: observed.scaling.as_deref(),
        };
        let scaled = self.scalers.look(pipeline, &spec, &sight, now.instant, now.since_1970());
        if scaled.fresh {
            self.metrics.decided(&pipeline.key, scaled.reason.label());
        }
        pipeline.size.workers = scaled.workers;
        Some(scaled)
    }

    /// Each change of the size is told, with its reason, and a number that somebody wrote in vain.
    pub(super) async fn tell_size(&self, raw: &DataPipeline, before: &DataPipelineStatus, scaled: &Scaled) {
        if let Some(asked) = scaled.ignored {
            let note = format!(
                "spec.replicas is {asked} now, but in mode Internal the operator decides: {} workers; change the bounds of \
                 spec.autoscaling, or its mode to External or Manual",
                scaled.workers
            );
            let edge = Edge { warning: true, reason: "ReplicasIgnored".into(), note };
            self.tell(&raw.object_ref(&()), &Key::of(raw), edge).await;
        }
        let (from, to) = (before.desired_replicas, scaled.workers);
        if !scaled.fresh || from == to || before.observed_generation.is_none() {
            return;
        }
        let reason = if to > from { "ScaledUp" } else { "ScaledDown" };
        let note = format!("from {from} to {to} workers: {}", scaled.reason);
        let edge = Edge { warning: false, reason: reason.into(), note };
        self.tell(&raw.object_ref(&()), &Key::of(raw), edge).await;
    }

    /// What this decision leaves to the next is kept, for the case that another operator makes that one.
    pub(super) async fn keep_scaling(
        &self,
        pipeline: &ValidatedPipeline,
        applier: &Applier<'_>,
        scaled: &Scaled,
    ) -> Result<(), ApplyError> {
        let Some(state) = &scaled.keep else { return Ok(()) };
        let mut data = BTreeMap::from([(STATE.to_owned(), state.clone())]);
        data.extend(pipeline.signal.clone().map(|signal| (SIGNAL.to_owned(), signal)));
        let map = ConfigMap {
            metadata: metadata(pipeline, &Names::of(&pipeline.key.name).scaling),
            data: Some(data),
            ..ConfigMap::default()
        };
        applier.one(&map, &self.caches.maps).await?;
        self.scalers.kept(&pipeline.key);
        Ok(())
    }
}
