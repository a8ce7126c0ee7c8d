//! Takes a pipeline's name, brings it a step nearer to what is wanted: observe → validate → desired → apply → status.
//!
//! | step | talks to the API server |
//! |---|---|
//! | observe | reads caches; one object that is not in them is asked for |
//! | validate | no |
//! | desired | no |
//! | apply | writes objects that differ, then marks and the number of workers |
//! | status | writes the status when it says something new, and events on edges |

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use feedmill_protocol::report::WorkerStatus;
use k8s_openapi::api::apps::v1::{ControllerRevision, Deployment};
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference, Pod, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DeleteParams, DynamicObject, EvictParams, Patch, PatchParams, PostParams};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Api, Client, Resource as _, ResourceExt as _};
use serde_json::json;

use crate::apply::{ANSWER, Applied, Applier, ApplyError, Generations, STUBBORN, ours, ours_or_left};
use crate::desired::{
    Desired, Installation, MANAGER, Names, SIZE_MANAGER, desired, document_name, documents,
};
use crate::metrics::Metrics;
use crate::observe::pod::{DELETION_COST, document};
use crate::observe::{Cache, NodeFacts, WorkerPod, nobodys};
use crate::plan::{self, Agreed};
use crate::queue::Outcome;
use crate::scrape::{Answers, Figures, figures};
use crate::size::{self, FIRST_TO_GO};
use crate::spread::{self, Moves};
use crate::status::{self, Edge, Facts, Obstacle, edges};
use crate::template;
use crate::types::{DataPipeline, DataPipelineStatus};
use crate::validate::{Key, ValidatedPipeline, validate};

/// Nothing happens without an event; this finds what no event tells, such as another node.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// While something is waited for that no event tells.
const LOOK_SOON: Duration = Duration::from_secs(10);

/// Most pods that are marked in one look. Each that is seen to be marked wakes its pipeline for the others.
const MARKS: usize = 200;

/// Everything that is known of the cluster.
#[derive(Default)]
pub struct Caches {
    /// Pipelines.
    pub pipelines: Arc<Cache<DataPipeline>>,
    /// Deployments of workers.
    pub deployments: Arc<Cache<Deployment>>,
    /// Services.
    pub services: Arc<Cache<Service>>,
    /// ConfigMaps.
    pub maps: Arc<Cache<ConfigMap>>,
    /// Service accounts.
    pub accounts: Arc<Cache<ServiceAccount>>,
    /// Disruption budgets.
    pub budgets: Arc<Cache<PodDisruptionBudget>>,
    /// Network policies.
    pub policies: Arc<Cache<NetworkPolicy>>,
    /// Kept templates.
    pub revisions: Arc<Cache<ControllerRevision>>,
    /// Pods of workers.
    pub pods: Arc<Cache<WorkerPod>>,
    /// Nodes; none where they may not be read.
    pub nodes: Option<Arc<Cache<NodeFacts>>>,
}

impl Caches {
    /// All nodes; none where they may not be read.
    fn nodes(&self) -> Option<Vec<Arc<NodeFacts>>> {
        Some(self.nodes.as_ref().filter(|nodes| nodes.is_complete())?.all(&nobodys()))
    }
}

/// What all pipelines share.
pub struct Context {
    /// The API.
    pub client: Client,
    /// What is known to exist.
    pub caches: Caches,
    /// What workers said last.
    pub answers: Arc<Answers>,
    /// What the operator was installed with.
    pub installation: Installation,
    /// What was applied last.
    pub applied: Applied,
    /// What Deployments have become by that.
    pub generations: Generations,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    recorder: Recorder,
    /// Which workers were moved to spread a fleet.
    moves: Mutex<HashMap<Key, Moves>>,
    /// How often in a row each has failed.
    failures: Mutex<HashMap<Key, u32>>,
    written: Mutex<HashMap<Key, Written>>,
}

/// What was written of a pipeline's status, for the time until the cache shows it.
#[derive(Clone, Debug)]
struct Written {
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

/// Why a pipeline could not be worked on. What people must repair stands in its status as well.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// Something could not be applied.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The status could not be written.
    #[error("cannot write the status")]
    Status(#[source] kube::Error),
}

impl Context {
    /// A context whose caches are empty.
    #[must_use]
    pub fn new(
        client: Client,
        caches: Caches,
        answers: Arc<Answers>,
        installation: Installation,
        metrics: Arc<Metrics>,
        identity: &str,
    ) -> Self {
        let reporter =
            Reporter { controller: "feedmill.dev/operator".into(), instance: Some(identity.into()) };
        Self {
            recorder: Recorder::new(client.clone(), reporter),
            client,
            caches,
            answers,
            installation,
            applied: Applied::default(),
            generations: Generations::default(),
            metrics,
            moves: Mutex::default(),
            failures: Mutex::default(),
            written: Mutex::default(),
        }
    }

    /// Brings a pipeline a step nearer.
    ///
    /// # Errors
    /// See [`ReconcileError`].
    pub async fn reconcile(&self, key: &Key, now: Instant) -> Result<Outcome, ReconcileError> {
        let raw = match self.caches.pipelines.get(key, &key.name) {
            None => {
                self.forget(key);
                return Ok(Outcome::Gone);
            }
            Some(Err(error)) => {
                self.undecodable(key, &error).await?;
                return Ok(Outcome::Again(LOOK_AGAIN));
            }
            Some(Ok(raw)) => raw,
        };
        if raw.metadata.deletion_timestamp.is_some() {
            return Ok(Outcome::Again(LOOK_AGAIN));
        }
        let before = self.before(key, &raw);
        let pipeline = match validate(&raw) {
            Ok(pipeline) => pipeline,
            Err(errors) => {
                let generation = raw.metadata.generation.unwrap_or_default();
                let pods = self.caches.pods.all(key);
                let new = status::invalid(&before, &key.name, generation, &errors, &pods, Timestamp::now());
                return self.write_status(key, &raw, &before, new, now).await;
            }
        };
        let observed = self.observe(&pipeline);
        let mut decided = self.decide(&pipeline, &observed);
        let acted = tokio::time::timeout(ANSWER, self.act(&pipeline, &observed, &decided)).await;
        let outcome = acted.unwrap_or(Err(ApplyError::Unanswered));
        let result = match outcome {
            Err(error) if error.is_ending() => return Ok(Outcome::Again(LOOK_AGAIN)),
            other => other,
        };
        let failures = self.failed(key, result.is_err());
        // What was told goes on being told, also by an operator that begins anew.
        let is_told = before.conditions.iter().any(|condition| condition.reason == "ApplyFailed");
        let failures = if is_told { failures.max(STUBBORN) } else { failures };
        let obstacle = result.as_ref().err().and_then(|error| error.obstacle(failures));
        decided.unfinished = result.is_err();
        let seen = self.figures(&pipeline, &observed);
        self.metrics.trainers(key, seen.wait_permille, seen.queue_fill_percent);
        let new = self.status(&before, &pipeline, &observed, &decided, seen, obstacle.as_ref());
        self.metrics.size(key, new.desired_replicas, new.ready_replicas);
        let written = self.write_status(key, &raw, &before, new, now).await?;
        result?;
        // What a pod waits for is told after some time, without another event.
        let is_waiting = observed.pods.iter().any(|pod| pod.stays() && pod.waits_for.is_some());
        Ok(match written {
            Outcome::Again(after) if is_waiting => Outcome::Again(after.min(LOOK_SOON)),
            written => written,
        })
    }

    /// How often in a row it has failed.
    fn failed(&self, key: &Key, has_failed: bool) -> u32 {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if !has_failed {
            failures.remove(key);
            return 0;
        }
        let count = failures.entry(key.clone()).or_default();
        *count = count.saturating_add(1);
        *count
    }

    /// Observe: everything that exists of it.
    fn observe(&self, pipeline: &ValidatedPipeline) -> Observed {
        let (key, names) = (&pipeline.key, Names::of(&pipeline.key.name));
        let mut pods = self.caches.pods.all(key);
        // The oldest first: where workers differ its plan counts.
        pods.sort_by(|a, b| (a.made, &a.name).cmp(&(b.made, &b.name)));
        let answers = pods
            .iter()
            .filter(|pod| pod.stays() && !pod.reads_by_others(&pipeline.plan_inputs))
            .filter_map(|pod| Some((pod.name.clone(), self.answers.of(&pod.uid)?.answer.ok()?)))
            .collect();
        let revisions = self.caches.revisions.all(key).into_iter();
        Observed {
            deployment: ours_or_left(self.caches.deployments.get(key, &names.worker), &pipeline.uid),
            plan: ours_or_left(self.caches.maps.get(key, &names.plan), &pipeline.uid),
            revisions: revisions.filter_map(|revision| ours(Some(Ok(revision)), &pipeline.uid)).collect(),
            pods,
            answers,
        }
    }

    /// Desired: what workers are made from, and whether any may be made now.
    fn decide(&self, pipeline: &ValidatedPipeline, observed: &Observed) -> Decided {
        let recorded = observed.plan.as_deref().map(Agreed::read);
        let (inputs, suspended) = (&pipeline.plan_inputs, pipeline.size.suspended);
        let pods: Vec<&WorkerPod> = observed.pods.iter().map(Arc::as_ref).collect();
        let deployment = observed.deployment.as_deref();
        let is_old = deployment.is_some_and(|found| self.generations.is_old(&pipeline.key, found));
        let kept: Vec<&ControllerRevision> = observed.revisions.iter().map(Arc::as_ref).collect();
        let choice = template::choose(pipeline, &self.installation, &kept);
        let ending = plan::is_ending(inputs, suspended, deployment, is_old, &pods);
        let (agreed, consistency) = if ending {
            (recorded, plan::Consistency::Unknown)
        } else {
            plan::decide(&pipeline.purposes, inputs, suspended, recorded, &observed.workers())
        };
        Decided { agreed, consistency, choice, ending, unfinished: false }
    }

    /// Apply.
    async fn act(
        &self,
        pipeline: &ValidatedPipeline,
        observed: &Observed,
        decided: &Decided,
    ) -> Result<(), ApplyError> {
        if pipeline.paused {
            return Ok(());
        }
        if decided.ending {
            return self.end(pipeline, observed).await;
        }
        let choice = &decided.choice;
        let wanted = desired(pipeline, &self.installation, choice.model.clone(), decided.agreed.as_ref());
        let applier = Applier {
            client: &self.client,
            caches: &self.caches,
            applied: &self.applied,
            metrics: &self.metrics,
            generations: &self.generations,
            key: &pipeline.key,
            uid: &pipeline.uid,
        };
        self.keep_template(pipeline, choice).await?;
        applier.apply(&wanted, pipeline.size.suspended).await?;
        self.resize(pipeline, observed, pipeline.size.workers).await?;
        self.even_out(pipeline, observed).await?;
        self.drop_templates(pipeline, choice).await?;
        self.clear(pipeline, observed, &applier, choice, &wanted).await
    }

    /// Takes all workers away and writes nothing else: what they were made from, and their plan, stay as long as one of them does.
    async fn end(&self, pipeline: &ValidatedPipeline, observed: &Observed) -> Result<(), ApplyError> {
        let name = Names::of(&pipeline.key.name).worker;
        let others = self.caches.deployments.get(&pipeline.key, &name);
        if others.is_some_and(|found| ours_or_left(Some(found), &pipeline.uid).is_none()) {
            return Err(ApplyError::NameConflict(format!("Deployment {name}")));
        }
        self.resize(pipeline, observed, 0).await
    }

    async fn keep_template(
        &self,
        pipeline: &ValidatedPipeline,
        choice: &template::Choice,
    ) -> Result<(), ApplyError> {
        let Some(revision) = &choice.keep else { return Ok(()) };
        let api: Api<ControllerRevision> = Api::namespaced(self.client.clone(), &pipeline.key.namespace);
        self.metrics.written("ControllerRevision");
        match api
            .create(&PostParams { field_manager: Some(MANAGER.into()), ..PostParams::default() }, revision)
            .await
        {
            Ok(_) => Ok(()),
            // Kept a moment ago; the watch has not shown it yet.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            Err(source) => {
                Err(ApplyError::Api { what: format!("ControllerRevision {}", revision.name_any()), source })
            }
        }
    }

    async fn drop_templates(
        &self,
        pipeline: &ValidatedPipeline,
        choice: &template::Choice,
    ) -> Result<(), ApplyError> {
        let api: Api<ControllerRevision> = Api::namespaced(self.client.clone(), &pipeline.key.namespace);
        for name in &choice.drop {
            self.metrics.written("ControllerRevision");
            match api.delete(name, &DeleteParams::background()).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(source) => {
                    return Err(ApplyError::Api { what: format!("ControllerRevision {name}"), source });
                }
            }
        }
        Ok(())
    }

    /// Takes away what only workers of former templates needed, once none of them is there or may come. A rollout that does not end keeps
    /// it: its old workers may start again at any time.
    async fn clear(
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
                status::is_whole(deployment, pipeline.size.workers)
                    && !self.generations.is_old(key, deployment)
                    && template.and_then(document) == Some(&present)
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

    /// The number of workers, and before it is lowered the marks of those that go.
    async fn resize(
        &self,
        pipeline: &ValidatedPipeline,
        observed: &Observed,
        wanted: i32,
    ) -> Result<(), ApplyError> {
        let names = Names::of(&pipeline.key.name);
        // Just created: the watch wakes this pipeline again.
        let Some(deployment) = &observed.deployment else { return Ok(()) };
        let current = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
        let mut pods: Vec<&WorkerPod> = observed.pods.iter().map(Arc::as_ref).collect();
        // A Deployment divides what it takes away between its templates, whatever is marked.
        if wanted > 0 && wanted < current && size::has_two_templates(&pods) && !status::is_stuck(deployment) {
            return Ok(());
        }
        let mut step = size::step(current, wanted, &pods);
        // One that is gone is decided without: it would never be seen marked.
        loop {
            let gone = self.mark(pipeline, &step).await?;
            if gone.is_empty() {
                break;
            }
            pods.retain(|pod| !gone.contains(&pod.name));
            step = size::step(current, wanted, &pods);
        }
        let Some(workers) = step.write else { return Ok(()) };
        let what = || format!("Deployment {}", names.worker);
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), &pipeline.key.namespace);
        let body = json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": names.worker, "uid": deployment.uid()},
            "spec": {"replicas": workers},
        });
        self.metrics.written("Deployment");
        let parameters = PatchParams::apply(SIZE_MANAGER).force();
        let made = api
            .patch(&names.worker, &parameters, &Patch::Apply(&body))
            .await
            .map_err(|source| ApplyError::Api { what: what(), source })?;
        self.generations.saw(&pipeline.key, &made);
        tracing::info!(pipeline = %pipeline.key, from = current, to = workers, "the number of workers changes");
        Ok(())
    }

    /// Whether all workers are there, new and available, as far as is known.
    fn is_whole(&self, pipeline: &ValidatedPipeline, observed: &Observed) -> bool {
        observed.deployment.as_ref().is_some_and(|deployment| {
            status::is_whole(deployment, pipeline.size.workers)
                && !self.generations.is_old(&pipeline.key, deployment)
        })
    }

    /// Marks those that go first and takes marks away. Gives those that are gone.
    async fn mark(&self, pipeline: &ValidatedPipeline, step: &size::Step) -> Result<Vec<String>, ApplyError> {
        let marks = step.mark.iter().map(|name| (name, json!(FIRST_TO_GO.to_string())));
        let marks = marks.chain(step.unmark.iter().map(|name| (name, serde_json::Value::Null)));
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pipeline.key.namespace);
        let mut gone = Vec::new();
        for (name, cost) in marks.take(MARKS) {
            let patch = json!({"metadata": {"annotations": {DELETION_COST: cost}}});
            self.metrics.written("Pod");
            match api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.code == 404 => gone.push(name.clone()),
                Err(source) => return Err(ApplyError::Api { what: format!("Pod {name}"), source }),
            }
        }
        Ok(gone)
    }

    /// Moves one worker of a fleet that is whole and unevenly spread, by the Eviction API and so under the disruption budget.
    async fn even_out(&self, pipeline: &ValidatedPipeline, observed: &Observed) -> Result<(), ApplyError> {
        let Some(nodes) = self.caches.nodes().filter(|_| self.is_whole(pipeline, observed)) else {
            return Ok(());
        };
        let pods = observed.pods.iter().map(Arc::as_ref);
        let nodes: Vec<&NodeFacts> = nodes.iter().map(Arc::as_ref).collect();
        let pods: Vec<&WorkerPod> = pods.collect();
        let labels = &self.installation.accelerator_labels;
        let Some(pod) = spread::to_move(&pipeline.placement, labels, &pods, &nodes) else { return Ok(()) };
        let may = {
            let mut moves = self.moves.lock().unwrap_or_else(PoisonError::into_inner);
            moves.entry(pipeline.key.clone()).or_default().may(&nodes)
        };
        if !may {
            return Ok(());
        }
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pipeline.key.namespace);
        self.metrics.written("Eviction");
        tracing::info!(pipeline = %pipeline.key, pod = pod.name, "a worker is moved, to spread them");
        match api.evict(&pod.name, &EvictParams::default()).await {
            Ok(_) => Ok(()),
            // The disruption budget says not now, or it is gone.
            Err(kube::Error::Api(status)) if status.code == 429 || status.code == 404 => Ok(()),
            Err(source) => Err(ApplyError::Api { what: format!("Eviction of pod {}", pod.name), source }),
        }
    }

    /// What trainers report.
    fn figures(&self, pipeline: &ValidatedPipeline, observed: &Observed) -> Figures {
        let statuses: Vec<&WorkerStatus> =
            observed.answers.iter().map(|(_, status)| status.as_ref()).collect();
        figures(&statuses, &|stream| pipeline.trains(stream))
    }

    fn status(
        &self,
        before: &DataPipelineStatus,
        pipeline: &ValidatedPipeline,
        observed: &Observed,
        decided: &Decided,
        seen: Figures,
        obstacle: Option<&Obstacle>,
    ) -> DataPipelineStatus {
        let workers = observed.workers();
        let pods: Vec<&WorkerPod> = observed.pods.iter().map(Arc::as_ref).collect();
        let nodes = self.caches.nodes();
        let nodes: Option<Vec<&NodeFacts>> =
            nodes.as_ref().map(|nodes| nodes.iter().map(Arc::as_ref).collect());
        let labels = &self.installation.accelerator_labels;
        let facts = Facts {
            pipeline,
            pods: &observed.pods,
            deployment: observed.deployment.as_deref(),
            deployment_is_old: decided.unfinished
                || observed
                    .deployment
                    .as_ref()
                    .is_some_and(|deployment| self.generations.is_old(&pipeline.key, deployment)),
            workers: &workers,
            agreed: decided.agreed.as_ref(),
            consistency: &decided.consistency,
            placement: spread::measure(&pipeline.placement, labels, &pods, nodes.as_deref()),
            figures: seen,
            up_to_date: decided.choice.current,
            changing: decided.ending && !pipeline.size.suspended,
            obstacle,
        };
        status::status(before, &facts, Timestamp::now())
    }

    /// What was written last, while the cache is older or says the same; else what the cache says, as others may write too.
    fn before(&self, key: &Key, raw: &DataPipeline) -> DataPipelineStatus {
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = written.get(key).filter(|written| written.stands(raw));
        mine.map_or_else(|| raw.status.clone().unwrap_or_default(), |written| written.status.clone())
    }

    async fn write_status(
        &self,
        key: &Key,
        raw: &DataPipeline,
        before: &DataPipelineStatus,
        new: DataPipelineStatus,
        now: Instant,
    ) -> Result<Outcome, ReconcileError> {
        let last = {
            let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
            written
                .get(key)
                .filter(|written| Some(&written.uid) == raw.metadata.uid.as_ref())
                .map(|written| written.at)
        };
        match status::due(before, &new, last, now) {
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
                let written = Written { at: now, status: new.clone(), uid, stored: made.status, version };
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
    async fn tell(&self, about: &ObjectReference, key: &Key, edge: Edge) {
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
    async fn undecodable(&self, key: &Key, error: &str) -> Result<(), ReconcileError> {
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
        let mut conditions = status::Conditions::after(&before, generation, Timestamp::now());
        conditions.set("Ready", status::Truth::False, "Undecodable", &message);
        let after = conditions.done();
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

    fn forget(&self, key: &Key) {
        self.applied.forget(key);
        self.generations.forget(key);
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
        self.moves.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
        self.metrics.forget(key);
        self.written.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

/// Everything that exists of a pipeline.
struct Observed {
    deployment: Option<Arc<Deployment>>,
    plan: Option<Arc<ConfigMap>>,
    revisions: Vec<Arc<ControllerRevision>>,
    pods: Vec<Arc<WorkerPod>>,
    /// What workers that stay say, the oldest first.
    answers: Vec<(String, Arc<WorkerStatus>)>,
}

impl Observed {
    fn workers(&self) -> Vec<(&str, &WorkerStatus)> {
        self.answers.iter().map(|(pod, status)| (pod.as_str(), status.as_ref())).collect()
    }
}

/// What was decided on the way.
struct Decided {
    agreed: Option<Agreed>,
    consistency: plan::Consistency,
    /// What workers are made from.
    choice: template::Choice,
    /// Whether workers must be gone first, and are not.
    ending: bool,
    /// Whether something could not be written: what is seen is not what is wanted.
    unfinished: bool,
}
