//! What is said of a pipeline: its status, when it says something new, and events on edges.

use std::sync::PoisonError;
use std::time::Instant;

use feedmill_protocol::report::WorkerStatus;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::runtime::events::{Event, EventType};
use kube::{Api, Resource as _};
use serde_json::json;

use super::{Context, Decided, LOOK_AGAIN, Now, Observed, ReconcileError};
use crate::desired::MANAGER;
use crate::queue::Outcome;
use crate::scrape::{Figures, figures};
use crate::spread;
use crate::status::{self, Edge, Facts, Obstacle, edges};
use crate::types::{DataPipeline, DataPipelineStatus};
use crate::validate::{Key, ValidatedPipeline};

/// What was written of a pipeline's status, for the time until the cache shows it.
#[derive(Clone, Debug)]
pub(super) struct Written {
    at: Instant,
    status: DataPipelineStatus,
    uid: String,
    /// What the API server made of it: one whose definition is older drops what that does not know.
    stored: Option<DataPipelineStatus>,
    /// The version that the object had by that.
    version: Option<u64>,
}

impl Written {
    /// Whether this is what an object says, as far as is known: the object is older, or nobody wrote another status since.
    fn stands(&self, object: &DataPipeline) -> bool {
        let is_of = object.metadata.uid.as_ref() == Some(&self.uid);
        let shows = version(object).zip(self.version).is_some_and(|(found, mine)| found >= mine);
        is_of && (!shows || object.status == self.stored)
    }
}

/// The version of an object. A number, wherever Kubernetes itself keeps it.
fn version(object: &DataPipeline) -> Option<u64> {
    object.metadata.resource_version.as_deref()?.parse().ok()
}

impl Context {
    /// What trainers report.
    fn figures(&self, pipeline: &ValidatedPipeline, observed: &Observed) -> Figures {
        let statuses: Vec<&WorkerStatus> = observed.workers().into_iter().map(|(_, status)| status).collect();
        figures(&statuses, &|stream| pipeline.trains(stream))
    }

    pub(super) fn status(
        &self,
        before: &DataPipelineStatus,
        pipeline: &ValidatedPipeline,
        observed: &Observed,
        decided: &Decided,
        obstacle: Option<&Obstacle>,
        now: Now,
    ) -> DataPipelineStatus {
        let figures = self.figures(pipeline, observed);
        self.metrics.trainers(&pipeline.key, Some(figures));
        let workers = observed.workers();
        let (pods, nodes) = (observed.pods(), observed.nodes());
        let labels = &self.installation.accelerator_labels;
        let facts = Facts {
            pipeline,
            pods: &observed.pods,
            deployment: observed.deployment.as_deref(),
            deployment_is_old: decided.unfinished || self.is_old(pipeline, observed),
            workers: &workers,
            silent: observed.silent(),
            agreed: decided.agreed.as_ref(),
            consistency: &decided.consistency,
            placement: spread::measure(&pipeline.placement, labels, &pods, nodes.as_deref()),
            figures,
            up_to_date: decided.choice.current,
            scaled: decided.scaled.as_ref(),
            changing: decided.ending && !pipeline.size.suspended,
            obstacle,
            unasked: observed.unasked,
        };
        status::status(before, &facts, now.calendar)
    }

    /// What was written last, while the cache is older or says the same; else what the cache says, as others may write too.
    pub(super) fn before(&self, key: &Key, raw: &DataPipeline) -> DataPipelineStatus {
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = written.get(key).filter(|written| written.stands(raw));
        mine.map_or_else(|| raw.status.clone().unwrap_or_default(), |written| written.status.clone())
    }

    pub(super) async fn write_status(
        &self,
        key: &Key,
        raw: &DataPipeline,
        before: &DataPipelineStatus,
        new: DataPipelineStatus,
        now: Now,
    ) -> Result<Outcome, ReconcileError> {
        self.metrics.conditions(key, &new.conditions);
        self.metrics.size(key, new.desired_replicas, new.ready_replicas);
        let last = {
            let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
            written
                .get(key)
                .filter(|written| Some(&written.uid) == raw.metadata.uid.as_ref())
                .map(|written| written.at)
        };
        match status::due(before, &new, last, now.instant) {
            None => return Ok(Outcome::Again(LOOK_AGAIN)),
            Some(wait) if !wait.is_zero() => return Ok(Outcome::Again(wait)),
            Some(_) => {}
        }
        let api: Api<DataPipeline> = Api::namespaced(self.client.clone(), &key.namespace);
        let body = json!({
            "apiVersion": DataPipeline::api_version(&()),
            "kind": DataPipeline::kind(&()),
            "metadata": {"name": key.name, "uid": raw.metadata.uid},
            "status": new,
        });
        self.metrics.written("DataPipeline");
        match api.patch_status(&key.name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&body)).await {
            Ok(made) => {
                let (uid, version) = (raw.metadata.uid.clone().unwrap_or_default(), version(&made));
                let written =
                    Written { at: now.instant, status: new.clone(), uid, stored: made.status, version };
                self.written.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), written);
            }
            // Gone, or another of the same name: the watch tells.
            Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => {
                return Ok(Outcome::Again(LOOK_AGAIN));
            }
            Err(error) => return Err(ReconcileError::Status(error)),
        }
        for edge in edges(&before.conditions, &new.conditions) {
            self.tell(&raw.object_ref(&()), key, edge).await;
        }
        Ok(Outcome::Again(LOOK_AGAIN))
    }

    /// Events are for people who look; nothing depends on them.
    pub(super) async fn tell(&self, about: &ObjectReference, key: &Key, edge: Edge) {
        tracing::info!(pipeline = %key, reason = edge.reason, "{}", edge.note);
        let event = Event {
            type_: if edge.warning { EventType::Warning } else { EventType::Normal },
            reason: edge.reason,
            note: Some(edge.note),
            action: "Reconcile".into(),
            secondary: None,
        };
        self.metrics.written("Event");
        if let Err(error) = self.recorder.publish(&event, about).await {
            tracing::debug!(error = %error, "an event could not be written");
        }
    }

    /// An object of another version: said in its own status, beside what stands there.
    pub(super) async fn undecodable(&self, key: &Key, error: &str, now: Now) -> Result<(), ReconcileError> {
        let kind = ApiResource::erase::<DataPipeline>(&());
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &key.namespace, &kind);
        let Some(found) = api.get_opt(&key.name).await.map_err(ReconcileError::Status)? else {
            return Ok(());
        };
        let stored = found.data.pointer("/status/conditions").cloned().unwrap_or_default();
        let before: Vec<Condition> = serde_json::from_value(stored).unwrap_or_default();
        let message = format!(
            "this operator cannot read the object: {error}; install the operator of its version, or correct it; its workers go on"
        );
        let generation = found.metadata.generation.unwrap_or_default();
        let mut conditions = status::Conditions::after(&before, generation, now.calendar);
        conditions.set("Ready", status::Truth::False, "Undecodable", &message);
        let after = conditions.done();
        self.metrics.trainers(key, None);
        self.metrics.conditions(key, &after);
        if before == after {
            return Ok(());
        }
        self.metrics.written("DataPipeline");
        let parameters = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
        let body = json!({"status": {"conditions": after}});
        api.patch_status(&key.name, &parameters, &Patch::Merge(&body))
            .await
            .map_err(ReconcileError::Status)?;
        for edge in edges(&before, &after) {
            self.tell(&found.object_ref(&kind), key, edge).await;
        }
        Ok(())
    }
}
