//! Takes a pipeline's name, brings it a step nearer to what is wanted: observe → validate → desired → apply → status.
//!
//! | step | talks to the API server |
//! |---|---|
//! | observe | reads caches; one object that is not in them is asked for |
//! | validate | no |
//! | desired | no |
//! | apply | writes objects that differ, then marks and the number of workers |
//! | status | writes the status when it says something new, and events on edges |

/// What exists.
mod observed;
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

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::runtime::events::{Recorder, Reporter};

use self::observed::Observed;
use self::status::Written;
use crate::apply::{ANSWER, Applied, Applier, ApplyError, Generations, STUBBORN, ours_or_left};
use crate::desired::{Installation, Names, desired};
use crate::metrics::Metrics;
use crate::observe::Caches;
use crate::plan::{self, Agreed};
use crate::queries::Queries;
use crate::queue::Outcome;
use crate::scale::{Scaled, Scalers};
use crate::scrape::Answers;
use crate::spread::Moves;
use crate::status::{APPLY_FAILED, invalid};
use crate::template;
use crate::validate::{Key, ValidatedPipeline, validate};
use crate::writes::Writes;

/// Nothing happens without an event; this finds what no event tells, such as another node.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// While something is waited for that no event tells.
const LOOK_SOON: Duration = Duration::from_secs(10);

/// One moment, by both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// By the one that never goes back, for what is measured.
    pub instant: Instant,
    /// By the calendar, for what people and other operators read.
    pub calendar: Timestamp,
}

impl Now {
    /// Milliseconds since 1970.
    fn since_1970(self) -> u64 {
        u64::try_from(self.calendar.as_millisecond()).unwrap_or_default()
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
    /// Whom pipelines may name instead, and what was said there last.
    pub queries: Arc<Queries>,
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
        queries: Arc<Queries>,
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
            queries,
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
    pub async fn reconcile(&self, key: &Key, now: Now, failures: u32) -> Result<Outcome, ReconcileError> {
        let raw = match self.caches.pipelines.get(key, &key.name) {
            None => {
                self.forget(key);
                return Ok(Outcome::Gone);
            }
            Some(Err(error)) => {
                self.undecodable(key, &error, now).await?;
                return Ok(Outcome::Again(LOOK_AGAIN));
            }
            Some(Ok(raw)) => raw,
        };
        if raw.metadata.deletion_timestamp.is_some() {
            return Ok(Outcome::Again(LOOK_AGAIN));
        }
        let before = self.before(key, &raw);
        let mut pipeline = match validate(&raw).and_then(|pipeline| self.queries.known(pipeline)) {
            Ok(pipeline) => pipeline,
            Err(errors) => {
                let generation = raw.metadata.generation.unwrap_or_default();
                let pods = self.caches.pods.all(key);
                let new = invalid(&before, &key.name, generation, &errors, &pods, now.calendar);
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
        let is_told = before.conditions.iter().any(|condition| condition.reason == APPLY_FAILED);
        let failures = failures.saturating_add(1).max(if is_told { STUBBORN } else { 0 });
        let obstacle = result.as_ref().err().and_then(|error| error.obstacle(failures));
        decided.unfinished = result.is_err();
        let new = self.status(&before, &pipeline, &observed, &decided, obstacle.as_ref(), now);
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

    /// Whether the Deployment that is seen is older than what was written last.
    fn is_old(&self, pipeline: &ValidatedPipeline, observed: &Observed) -> bool {
        let deployment = observed.deployment.as_deref();
        deployment.is_some_and(|found| self.generations.is_old(&pipeline.key, found))
    }

    /// Desired: what workers are made from, and whether any may be made now.
    fn decide(&self, pipeline: &ValidatedPipeline, observed: &Observed) -> Decided {
        let recorded = observed.recorded.clone();
        let (inputs, suspended) = (&pipeline.plan_inputs, pipeline.size.suspended);
        let pods = observed.pods();
        let is_old = self.is_old(pipeline, observed);
        let kept: Vec<&ControllerRevision> = observed.revisions.iter().map(Arc::as_ref).collect();
        let lives = observed.deployment.is_some() && template::lives(&pods);
        let choice = template::choose(pipeline, &self.installation, &kept, lives);
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
            writes: self.writes(pipeline),
            caches: &self.caches,
            applied: &self.applied,
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

    /// Writes of a pipeline.
    fn writes<'a>(&'a self, pipeline: &'a ValidatedPipeline) -> Writes<'a> {
        Writes { client: &self.client, metrics: &self.metrics, namespace: &pipeline.key.namespace }
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
