//! What workers are made from: kept over upgrades of the operator, and taken away when none of them needs it.

use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::ResourceExt as _;
use kube::api::PostParams;

use super::{Context, Observed};
use crate::apply::{Applier, ApplyError};
use crate::desired::{Desired, MANAGER, Names, document_name, documents};
use crate::observe::pod::document;
use crate::template;
use crate::validate::ValidatedPipeline;

impl Context {
    pub(super) async fn keep_template(
        &self,
        pipeline: &ValidatedPipeline,
        choice: &template::Choice,
    ) -> Result<(), ApplyError> {
        let Some(revision) = &choice.keep else { return Ok(()) };
        let writes = self.writes(pipeline);
        let (api, parameters) = (
            writes.api::<ControllerRevision>(),
            PostParams { field_manager: Some(MANAGER.into()), ..PostParams::default() },
        );
        let write = api.create(&parameters, revision);
        // 409: kept a moment ago; the watch has not shown it yet.
        writes.done("ControllerRevision", &revision.name_any(), &[409], write).await.map(drop)
    }

    /// Takes away what only workers of former templates needed, once none of them is there or may come. A rollout that does not end keeps
    /// it: its old workers may start again at any time.
    pub(super) async fn clear(
        &self,
        pipeline: &ValidatedPipeline,
        observed: &Observed,
        applier: &Applier<'_>,
        choice: &template::Choice,
        wanted: &Desired,
    ) -> Result<(), ApplyError> {
        let (key, present) = (&pipeline.key, document_name(&pipeline.key.name, &choice.model.document));
        let is_whole = match observed.deployment.as_deref() {
            None => observed.pods.is_empty(),
            Some(deployment) => {
                let template = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
                self.is_whole(pipeline, observed) && template.and_then(document) == Some(&present)
            }
        };
        if !is_whole {
            return Ok(());
        }
        if wanted.service_account.is_none() {
            applier.gone(&Names::of(&key.name).worker, &self.caches.accounts).await?;
        }
        for map in self.caches.maps.all(key) {
            let name = map.name_any();
            let is_read =
                || observed.pods.iter().any(|pod| !pod.over && pod.document.as_deref() == Some(&name));
            if name.starts_with(&documents(&key.name)) && name != present && !is_read() {
                applier.gone(&name, &self.caches.maps).await?;
            }
        }
        Ok(())
    }
}
