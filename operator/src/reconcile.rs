//! Takes a pipeline's name, brings it a step nearer to what is wanted: observe → validate → desired → apply → status.
//!
//! | step | talks to the API server |
//! |---|---|
//! | observe | reads caches; one object that is not in them is asked for |
//! | validate | no |
//! | desired | no |
//! | apply | writes objects that differ, then marks and the number of workers |
//! | status | writes the status when it says something new, and events on edges |

/// How many workers, where the operator decides.
mod scaling;
/// What is said of a pipeline.
mod status;
/// What workers are made from.
mod templates;
/// How many there are, and where.
mod workers;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use feedmill_protocol::report::WorkerStatus;
use k8s_openapi::api::apps::v1::{ControllerRevision, Deployment};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::runtime::events::{Recorder, Reporter};

use self::status::Written;
use crate::apply::{ANSWER, Applied, Applier, ApplyError, Generations, STUBBORN, ours, ours_or_left};
use crate::desired::{Installation, Names, desired};
use crate::metrics::Metrics;
use crate::observe::{Caches, WorkerPod};
use crate::plan::{self, Agreed};
use crate::queue::Outcome;
use crate::scale::{Scaled, Scalers};
use crate::scrape::Answers;
use crate::spread::Moves;
use crate::status::invalid;
use crate::template;
use crate::validate::{Key, ValidatedPipeline, validate};

/// Nothing happens without an event; this finds what no event tells, such as another node.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// While something is waited for that no event tells.
const LOOK_SOON: Duration = Duration::from_secs(10);

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
    /// What was seen of pipelines that the operator scales.
    scalers: Scalers,
    written: Mutex<HashMap<Key, Written>>,
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
            scalers: Scalers::default(),
            written: Mutex::default(),
        }
    }

    /// Brings a pipeline a step nearer that has failed so often in a row.
    ///
    /// # Errors
    /// See [`ReconcileError`].
    pub async fn reconcile(&self, key: &Key, now: Instant, failures: u32) -> Result<Outcome, ReconcileError> {
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
        let mut pipeline = match validate(&raw) {
            Ok(pipeline) => pipeline,
            Err(errors) => {
                let generation = raw.metadata.generation.unwrap_or_default();
                let pods = self.caches.pods.all(key);
                let new = invalid(&before, &key.name, generation, &errors, &pods, Timestamp::now());
                self.metrics.trainers(key, None);
                return self.write_status(key, &raw, &before, new, now).await;
            }
        };
        let observed = self.observe(&pipeline);
        let scaled = self.scale(&mut pipeline, &observed, now);
        let mut decided = Decided { scaled, ..self.decide(&pipeline, &observed) };
        let acted = tokio::time::timeout(ANSWER, self.act(&pipeline, &observed, &decided)).await;
        let outcome = acted.unwrap_or(Err(ApplyError::Unanswered));
        let result = match outcome {
            Err(error) if error.is_ending() => return Ok(Outcome::Again(LOOK_AGAIN)),
            other => other,
        };
        // What was told goes on being told, also by an operator that begins anew.
        let is_told = before.conditions.iter().any(|condition| condition.reason == "ApplyFailed");
        let failures = failures.saturating_add(1).max(if is_told { STUBBORN } else { 0 });
        let obstacle = result.as_ref().err().and_then(|error| error.obstacle(failures));
        decided.unfinished = result.is_err();
        let seen = self.figures(&pipeline, &observed);
        self.metrics.trainers(key, Some(seen));
        let new = self.status(&before, &pipeline, &observed, &decided, seen, obstacle.as_ref());
        let written = self.write_status(key, &raw, &before, new, now).await?;
        result?;
        let written = match &decided.scaled {
            Some(scaled) => {
                self.tell_size(&raw, &before, scaled).await;
                written.within(scaled.next)
            }
            None => written,
        };
        // What a pod waits for is told after some time, without another event.
        let is_waiting = observed.pods.iter().any(|pod| pod.stays() && pod.waits_for.is_some());
        Ok(if is_waiting { written.within(LOOK_SOON) } else { written })
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
            scaling: ours(self.caches.maps.get(key, &names.scaling), &pipeline.uid),
            revisions: revisions.filter_map(|revision| ours(Some(Ok(revision)), &pipeline.uid)).collect(),
            pods,
            answers,
        }
    }

    /// Whether the Deployment that is seen is older than what was written last.
    fn is_old(&self, pipeline: &ValidatedPipeline, observed: &Observed) -> bool {
        let deployment = observed.deployment.as_deref();
        deployment.is_some_and(|found| self.generations.is_old(&pipeline.key, found))
    }

    /// Desired: what workers are made from, and whether any may be made now.
    fn decide(&self, pipeline: &ValidatedPipeline, observed: &Observed) -> Decided {
        let recorded = observed.plan.as_deref().map(Agreed::read);
        let (inputs, suspended) = (&pipeline.plan_inputs, pipeline.size.suspended);
        let pods: Vec<&WorkerPod> = observed.pods.iter().map(Arc::as_ref).collect();
        let is_old = self.is_old(pipeline, observed);
        let kept: Vec<&ControllerRevision> = observed.revisions.iter().map(Arc::as_ref).collect();
        let choice = template::choose(pipeline, &self.installation, &kept);
        let ending = plan::is_ending(inputs, suspended, observed.deployment.as_deref(), is_old, &pods);
        let (agreed, consistency) = if ending {
            (recorded, plan::Consistency::Unknown)
        } else {
            plan::decide(&pipeline.purposes, inputs, suspended, recorded, &observed.workers())
        };
        Decided { scaled: None, agreed, consistency, choice, ending, unfinished: false }
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
        let applier = Applier {
            client: &self.client,
            caches: &self.caches,
            applied: &self.applied,
            metrics: &self.metrics,
            generations: &self.generations,
            key: &pipeline.key,
            uid: &pipeline.uid,
        };
        if decided.ending {
            self.end(pipeline, observed).await?;
        } else {
            self.bring(pipeline, observed, decided, &applier).await?;
        }
        // Last: what is in its way holds up nothing else.
        match &decided.scaled {
            Some(scaled) => self.keep_scaling(pipeline, &applier, scaled).await,
            None => Ok(()),
        }
    }

    /// Makes what is wanted, and takes away what is not.
    async fn bring(
        &self,
        pipeline: &ValidatedPipeline,
        observed: &Observed,
        decided: &Decided,
        applier: &Applier<'_>,
    ) -> Result<(), ApplyError> {
        let choice = &decided.choice;
        let wanted = desired(pipeline, &self.installation, choice.model.clone(), decided.agreed.as_ref());
        self.keep_template(pipeline, choice).await?;
        applier.apply(&wanted, pipeline.size.suspended).await?;
        self.resize(pipeline, observed, pipeline.size.workers).await?;
        self.even_out(pipeline, observed).await?;
        for name in &choice.drop {
            applier.gone(name, &self.caches.revisions).await?;
        }
        self.clear(pipeline, observed, applier, choice, &wanted).await
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

    fn forget(&self, key: &Key) {
        self.applied.forget(key);
        self.generations.forget(key);
        self.scalers.forget(key);
        self.moves.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
        self.metrics.forget(key);
        self.written.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

/// Everything that exists of a pipeline.
struct Observed {
    deployment: Option<Arc<Deployment>>,
    plan: Option<Arc<ConfigMap>>,
    scaling: Option<Arc<ConfigMap>>,
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
    /// How the size was decided, where the operator decides.
    scaled: Option<Scaled>,
    /// What workers are made from.
    choice: template::Choice,
    /// Whether workers must be gone first, and are not.
    ending: bool,
    /// Whether something could not be written: what is seen is not what is wanted.
    unfinished: bool,
}
