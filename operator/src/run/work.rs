//! Takes pipelines that something happened to, gives each to whoever works on it, a bounded number at once.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::clock;
use crate::metrics::Metrics;
use crate::observe::Cache;
use crate::queue::{Outcome, Queue};
use crate::reconcile::{Context, Now};
use crate::types::DataPipeline;
use crate::validate::{Key, PAUSE, RESTART_AT};

/// All writes of one pipeline take a second; a request that is never answered must not keep it from being looked at again.
const LONGEST: Duration = Duration::from_secs(60);

/// The queue, shared by watches and the loop.
#[derive(Default)]
pub(super) struct Work {
    queue: Mutex<Queue>,
    changed: Notify,
    /// What was last seen of each pipeline itself, of all that people ask for by it.
    seen: Mutex<HashMap<Key, Asked>>,
}

/// What people ask for by a pipeline: its identity, its spec's generation, and the annotations that are read; or why it cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Asked {
    By(Option<String>, Option<i64>, [Option<String>; 2]),
    Unreadable(Arc<str>),
}

impl Work {
    pub(super) fn wake(&self, key: Key) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).wake(key, clock());
        self.changed.notify_one();
    }

    /// The same for a change of a pipeline: a new spec or annotation is tried at once, whatever failed before.
    pub(super) fn wake_pipeline(&self, key: Key, pipelines: &Cache<DataPipeline>) {
        let now = pipelines.get(&key, &key.name).map(|kept| match kept {
            Err(error) => Asked::Unreadable(error),
            Ok(pipeline) => {
                let annotations = [PAUSE, RESTART_AT].map(|name| pipeline.annotations().get(name).cloned());
                Asked::By(pipeline.metadata.uid.clone(), pipeline.metadata.generation, annotations)
            }
        });
        let before = {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            match now.clone() {
                None => seen.remove(&key),
                Some(now) => seen.insert(key.clone(), now),
            }
        };
        // One that is gone is forgotten at once.
        if now.is_none() || before != now {
            self.queue.lock().unwrap_or_else(PoisonError::into_inner).renew(key, clock());
            self.changed.notify_one();
        } else {
            self.wake(key);
        }
    }
}

/// Works on pipelines that are due, a bounded number at once.
pub(super) async fn serve<F>(
    work: &Work,
    metrics: &Metrics,
    most: usize,
    look: impl Fn(Key, u32) -> F,
) -> Infallible
where
    F: Future<Output = Outcome> + Send + 'static,
{
    let mut running = JoinSet::new();
    let mut keys = HashMap::new();
    loop {
        let due = {
            let mut queue = work.queue.lock().unwrap_or_else(PoisonError::into_inner);
            while running.len() < most
                && let Some(key) = queue.next(clock())
            {
                let failures = queue.failures(&key);
                keys.insert(running.spawn(look(key.clone(), failures)).id(), key);
            }
            metrics.pipelines(queue.len());
            queue.next_due()
        };
        let pause = due.map_or(Duration::from_secs(60), |due| due.saturating_duration_since(clock()));
        let full = running.len() >= most;
        tokio::select! {
            Some(ended) = running.join_next_with_id(), if !running.is_empty() => {
                let (id, outcome) = ended.unwrap_or_else(|error| {
                    tracing::error!(error = %error, "work on a pipeline ended unexpectedly");
                    (error.id(), Outcome::Failed)
                });
                if let Some(key) = keys.remove(&id) {
                    let mut queue = work.queue.lock().unwrap_or_else(PoisonError::into_inner);
                    queue.done(&key, outcome, clock(), fastrand::f64());
                }
            }
            () = work.changed.notified(), if !full => {}
            () = tokio::time::sleep(pause), if !full => {}
        }
    }
}

/// One look at a pipeline that has failed so often in a row.
pub(super) async fn one(context: Arc<Context>, key: Key, failures: u32) -> Outcome {
    let start = clock();
    let result = within(
        LONGEST,
        context.reconcile(&key, Now { instant: start, calendar: Timestamp::now() }, failures),
    )
    .await;
    let seconds = clock().saturating_duration_since(start).as_secs_f64();
    match result {
        Ok(outcome) => {
            context.metrics.reconciled("ok", seconds);
            outcome
        }
        Err(error) => {
            context.metrics.reconciled("error", seconds);
            tracing::warn!(pipeline = %key, "{error:#}");
            Outcome::Failed
        }
    }
}

async fn within<T, E>(limit: Duration, work: impl Future<Output = Result<T, E>>) -> anyhow::Result<T>
where
    E: std::error::Error + Send + Sync + 'static,
{
    match tokio::time::timeout(limit, work).await {
        Ok(result) => Ok(result?),
        Err(_) => anyhow::bail!("the API server did not answer within {} s", limit.as_secs()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn work_that_panics_leaves_its_pipeline_to_the_next_try() {
        let (work, metrics) = (Work::default(), Metrics::new().unwrap());
        work.wake(Key { namespace: "n".into(), name: "a".into() });
        let (again, tried_again) = oneshot::channel();
        let again = Arc::new(Mutex::new(Some(again)));
        let tries = Arc::new(AtomicUsize::new(0));
        let look = |_, _| {
            let (again, tries) = (Arc::clone(&again), Arc::clone(&tries));
            async move {
                assert!(tries.fetch_add(1, Ordering::Relaxed) > 0, "the first one panics");
                again.lock().unwrap().take().unwrap().send(()).unwrap();
                std::future::pending::<Outcome>().await
            }
        };
        tokio::select! {
            never = serve(&work, &metrics, 1, look) => match never {},
            tried = tried_again => tried.unwrap(),
        }
        assert_eq!(tries.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn only_what_people_ask_for_ends_a_pause() {
        let (work, cache) = (Work::default(), Cache::default());
        let key = Key { namespace: "team".into(), name: "qwen3vl-sft".into() };
        // Whether it is due at once, after it has failed.
        let ends = |object: Option<Result<DataPipeline, &str>>| {
            let place = (key.namespace.clone(), key.name.clone());
            match object {
                Some(object) => {
                    drop(cache.put(Some(key.clone()), place, object.map(Arc::new).map_err(Arc::from)))
                }
                None => drop(cache.put(None, place, Err("gone".into()))),
            }
            work.wake_pipeline(key.clone(), &cache);
            let mut queue = work.queue.lock().unwrap();
            let is_due = queue.next(clock()).is_some();
            queue.done(&key, Outcome::Failed, clock(), 1.0);
            is_due
        };
        let mut object = crate::validate::tests::stored("");
        assert!(ends(Some(Ok(object.clone()))));
        object.status = Some(crate::types::DataPipelineStatus::default());
        assert!(!ends(Some(Ok(object.clone()))));
        object.metadata.generation = Some(4);
        assert!(ends(Some(Ok(object.clone()))));
        object.metadata.annotations = Some([("feedmill.dev/pause".to_owned(), String::new())].into());
        assert!(ends(Some(Ok(object.clone()))));
        // What other programs note there is nothing that was asked for.
        object
            .annotations_mut()
            .insert("kubectl.kubernetes.io/last-applied-configuration".into(), "{}".into());
        assert!(!ends(Some(Ok(object.clone()))));
        assert!(ends(Some(Err("no such field"))));
        assert!(!ends(Some(Err("no such field"))));
        assert!(ends(Some(Ok(object.clone()))));
        assert!(ends(None));
        assert!(ends(Some(Ok(object))));
    }

    #[tokio::test]
    async fn a_look_of_which_a_call_is_never_answered_ends_all_the_same() {
        let never = std::future::pending::<Result<(), std::fmt::Error>>();
        let error = within(Duration::ZERO, never).await.unwrap_err();
        assert!(error.to_string().contains("did not answer"));
    }
}
