//! Takes settings, runs until told to stop: a server for metrics, the lease, and once that is had watches, scrapes and the loop.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use axum::Router;
use axum::extract::State;
use axum::routing::get;
use futures_util::future::{BoxFuture, join, join_all};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use http::StatusCode;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::core::DeserializeGuard;
use kube::runtime::watcher;
use kube::{Api, Client, Config, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::apply::{trimmed, trimmed_map};
use crate::desired::{MANAGED_BY, MANAGER, PORT};
use crate::leader::Candidate;
use crate::metrics::Metrics;
use crate::observe::{Cache, NodeFacts, WorkerPod, by_label, itself, keep, nobody};
use crate::queue::{Outcome, Queue};
use crate::reconcile::{Caches, Context};
use crate::scrape::{Answers, Target};
use crate::settings::OperatorArgs;
use crate::types::DataPipeline;
use crate::validate::Key;

/// How often workers are looked at for being due.
const SCRAPE_ROUND: Duration = Duration::from_secs(5);
/// A connection on which nothing came for so long is dead: a watch ends after 290 s, and each other call within seconds.
const SILENCE: Duration = Duration::from_secs(300);
/// Listing all objects of a kind takes seconds, with tens of thousands too.
const PATIENCE: Patience = Patience {
    optional: Duration::from_secs(10),
    told: Duration::from_secs(30),
    given_up: Duration::from_secs(60),
};
/// All writes of one pipeline take a second; a request that is never answered must not keep it from being looked at again.
const LONGEST: Duration = Duration::from_secs(60);

/// How long is waited for everything that exists.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// For kinds without which most can be done.
    optional: Duration,
    /// Until it is told of.
    told: Duration,
    /// Until another operator may try.
    given_up: Duration,
}

/// Kinds that cannot be listed although nothing can be decided without, while the operator waits for them.
#[derive(Debug, Default)]
pub struct Unreadable(Mutex<Vec<&'static str>>);

impl Unreadable {
    fn set(&self, kinds: Vec<&'static str>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = kinds;
    }

    /// What to tell of them; none when there are none.
    fn text(&self) -> Option<String> {
        let kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner).join(", ");
        (!kinds.is_empty()).then(|| {
            format!("cannot list {kinds}; give the operator's role the verbs get, list and watch, as the chart does")
        })
    }
}

/// Runs the operator.
///
/// # Errors
/// No connection to the API server can be set up, an address is taken, the lease is lost.
pub fn main(arguments: &OperatorArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(live(arguments))
}

async fn live(arguments: &OperatorArgs) -> anyhow::Result<()> {
    let mut config = Config::infer().await.context("no API server: run in a pod or give KUBECONFIG")?;
    // The queue tries again, later and with others in between; the lease tries again at once.
    config.default_retry = false;
    (config.read_timeout, config.reset_reader_on_write) = (Some(SILENCE), true);
    // A client of its own: no other call may hold up the lease.
    let of_lease = Client::try_from(config.clone()).context("cannot make a client of the API server")?;
    let client = Client::try_from(config).context("cannot make a client of the API server")?;
    let metrics = Arc::new(Metrics::new()?);
    let listener = TcpListener::bind(arguments.listen)
        .await
        .with_context(|| format!("cannot listen on {}; choose another with --listen", arguments.listen))?;
    let unreadable = Arc::new(Unreadable::default());
    let health = Arc::new(Health {
        metrics: Arc::clone(&metrics),
        started: AtomicBool::new(false),
        unreadable: Arc::clone(&unreadable),
    });
    tokio::spawn(axum::serve(listener, router(Arc::clone(&health))).into_future());
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let mut candidate =
        Candidate::new(of_lease, &arguments.own_namespace, &arguments.lease, &arguments.identity);
    health.started.store(true, Ordering::Relaxed);
    tracing::info!(
        identity = arguments.identity,
        worker_image = arguments.worker_image,
        "waiting for the lease"
    );
    let since = tokio::select! {
        since = candidate.acquire() => since,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    tracing::info!("has the lease");
    metrics.leads();
    let result = tokio::select! {
        lost = candidate.hold(since) => match lost {
            Ok(never) => match never {},
            // What was begun ends with the process: nothing more may be written.
            Err(lost) => return Err(lost.into()),
        },
        ended = look_after(client, arguments, metrics, &unreadable) => match ended {
            Ok(never) => match never {},
            Err(error) => Err(error),
        },
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    candidate.release().await;
    result
}

struct Health {
    metrics: Arc<Metrics>,
    started: AtomicBool,
    unreadable: Arc<Unreadable>,
}

fn router(health: Arc<Health>) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route(
            "/readyz",
            get(|State(health): State<Arc<Health>>| async move {
                match health.unreadable.text() {
                    Some(text) => (StatusCode::SERVICE_UNAVAILABLE, text + "\n"),
                    None if health.started.load(Ordering::Relaxed) => (StatusCode::OK, "ready\n".into()),
                    None => (StatusCode::SERVICE_UNAVAILABLE, "starting\n".into()),
                }
            }),
        )
        .route(
            "/metrics",
            get(|State(health): State<Arc<Health>>| async move {
                health.metrics.text().map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
            }),
        )
        .with_state(health)
}

/// The queue, shared by watches and the loop.
#[derive(Default)]
struct Work {
    queue: Mutex<Queue>,
    changed: Notify,
    /// What was last seen of each pipeline itself, leaving out its status.
    seen: Mutex<HashMap<Key, String>>,
}

impl Work {
    fn wake(&self, key: Key) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).wake(key, clock());
        self.changed.notify_one();
    }

    /// The same for a change of a pipeline: a new spec or annotation is tried at once, whatever failed before.
    fn wake_pipeline(&self, key: Key, pipelines: &Cache<DataPipeline>) {
        let now = match pipelines.get(&key, &key.name) {
            None => String::new(),
            Some(Err(error)) => error.to_string(),
            Some(Ok(pipeline)) => {
                format!(
                    "{:?} {:?} {:?}",
                    pipeline.metadata.uid,
                    pipeline.metadata.generation,
                    pipeline.annotations()
                )
            }
        };
        let is_new = {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            let before =
                if now.is_empty() { seen.remove(&key) } else { seen.insert(key.clone(), now.clone()) };
            before.as_ref() != Some(&now)
        };
        if is_new {
            self.queue.lock().unwrap_or_else(PoisonError::into_inner).renew(key, clock());
            self.changed.notify_one();
        } else {
            self.wake(key);
        }
    }
}

/// Looks after all pipelines for ever, as the one that may: the caller has the lease.
///
/// # Errors
/// A kind of objects that cannot be listed, a task that ended: another start may do better, and whoever looks at pods sees it.
pub async fn look_after(
    client: Client,
    arguments: &OperatorArgs,
    metrics: Arc<Metrics>,
    unreadable: &Unreadable,
) -> anyhow::Result<Infallible> {
    let work = Arc::new(Work::default());
    let mut caches = Caches::default();
    let mut tasks = JoinSet::new();
    let mut watches = Watches {
        client: client.clone(),
        namespace: arguments.namespace.clone(),
        work: &work,
        tasks: &mut tasks,
    };
    let mine = format!("{MANAGED_BY}={MANAGER}");
    watches.pipelines(&caches.pipelines);
    watches.start(&caches.deployments, Some(&mine), by_label, trimmed);
    watches.start(&caches.services, Some(&mine), by_label, trimmed);
    watches.start(&caches.maps, Some(&mine), by_label, trimmed_map);
    watches.start(&caches.accounts, Some(&mine), by_label, trimmed);
    watches.start(&caches.budgets, Some(&mine), by_label, trimmed);
    watches.start(&caches.policies, Some(&mine), by_label, trimmed);
    watches.start(&caches.revisions, Some(&mine), by_label, trimmed);
    watches.start::<Pod, _>(&caches.pods, Some(&mine), by_label, WorkerPod::from);
    if !arguments.without_nodes {
        let nodes = Arc::default();
        watches.nodes(&nodes);
        caches.nodes = Some(nodes);
    }
    everything(&caches, unreadable, PATIENCE).await?;
    tracing::info!("everything that exists is known");
    let answers: Arc<Answers> = Arc::default();
    tasks.spawn(scrape(Arc::clone(&answers), Arc::clone(&caches.pods), Arc::clone(&work)));
    let context = Arc::new(Context::new(
        client,
        caches,
        answers,
        arguments.installation(),
        Arc::clone(&metrics),
        &arguments.identity,
    ));
    let look = |key| one(Arc::clone(&context), key);
    tokio::select! {
        never = serve(&work, &metrics, usize::from(arguments.concurrency), look) => Ok(never),
        // Watches never end; one that did would leave its cache as it was, unseen.
        Some(ended) = tasks.join_next() => {
            Err(ended.err().map_or_else(|| anyhow::anyhow!("a watch ended"), anyhow::Error::new))
        }
    }
}

/// Waits until everything that exists is known, of some kinds only as far as it may be read: each object of theirs is then asked for where
/// it is needed, and where that is not permitted either its pipeline says so.
async fn everything(caches: &Caches, unreadable: &Unreadable, patience: Patience) -> anyhow::Result<()> {
    let Caches {
        pipelines,
        deployments,
        services,
        maps,
        accounts,
        budgets,
        policies,
        revisions,
        pods,
        nodes,
    } = caches;
    let needed: [(&str, BoxFuture<'_, ()>); 5] = [
        ("datapipelines", Box::pin(pipelines.complete())),
        ("deployments", Box::pin(deployments.complete())),
        ("configmaps", Box::pin(maps.complete())),
        ("controllerrevisions", Box::pin(revisions.complete())),
        ("pods", Box::pin(pods.complete())),
    ];
    let optional: [BoxFuture<'_, ()>; 5] = [
        Box::pin(services.answered()),
        Box::pin(accounts.answered()),
        Box::pin(budgets.answered()),
        Box::pin(policies.answered()),
        Box::pin(async {
            if let Some(nodes) = nodes {
                nodes.answered().await;
            }
        }),
    ];
    let both = join(
        all_of(needed.into(), unreadable, patience),
        tokio::time::timeout(patience.optional, join_all(optional)),
    );
    both.await.0
}

/// Waits for each, tells of those that are missing, and gives up.
async fn all_of(
    needed: Vec<(&'static str, BoxFuture<'_, ()>)>,
    unreadable: &Unreadable,
    patience: Patience,
) -> anyhow::Result<()> {
    let mut missing: Vec<&str> = needed.iter().map(|(kind, _)| *kind).collect();
    let mut known: FuturesUnordered<_> =
        needed.into_iter().map(|(kind, known)| known.map(move |()| kind)).collect();
    let told = tokio::time::sleep(patience.told);
    let given_up = tokio::time::sleep(patience.given_up);
    tokio::pin!(told, given_up);
    let mut is_told = false;
    while !missing.is_empty() {
        tokio::select! {
            Some(kind) = known.next() => missing.retain(|other| *other != kind),
            () = &mut told, if !is_told => {
                is_told = true;
                unreadable.set(missing.clone());
                tracing::error!("{}", unreadable.text().unwrap_or_default());
            }
            () = &mut given_up => {
                unreadable.set(missing);
                anyhow::bail!(unreadable.text().unwrap_or_default());
            }
        }
        if is_told {
            unreadable.set(missing.clone());
        }
    }
    Ok(())
}

/// Works on pipelines that are due, a bounded number at once.
async fn serve<F>(work: &Work, metrics: &Metrics, most: usize, look: impl Fn(Key) -> F) -> Infallible
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
                keys.insert(running.spawn(look(key.clone())).id(), key);
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

async fn one(context: Arc<Context>, key: Key) -> Outcome {
    let start = clock();
    let result = within(LONGEST, context.reconcile(&key, start)).await;
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

async fn scrape(answers: Arc<Answers>, pods: Arc<Cache<WorkerPod>>, work: Arc<Work>) {
    let mut rounds = tokio::time::interval(SCRAPE_ROUND);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let port = u16::try_from(PORT).unwrap_or_default();
    loop {
        rounds.tick().await;
        let targets = pods.keys().into_iter().flat_map(|key| {
            let of = pods.all(&key).into_iter().filter(|pod| pod.stays());
            of.filter_map(move |pod| {
                Some(Target {
                    key: key.clone(),
                    uid: pod.uid.clone(),
                    address: pod.address?,
                    port,
                    tls: pod.tls,
                })
            })
        });
        for key in answers.round(targets.collect(), clock()).await {
            work.wake(key);
        }
    }
}

struct Watches<'a> {
    client: Client,
    namespace: Option<String>,
    work: &'a Arc<Work>,
    tasks: &'a mut JoinSet<()>,
}

impl Watches<'_> {
    /// Begins a watch.
    fn start<K, T>(
        &mut self,
        cache: &Arc<Cache<T>>,
        labels: Option<&str>,
        of: fn(&DeserializeGuard<K>) -> Option<Key>,
        keeping: fn(K) -> T,
    ) where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned
            + Send
            + Sync
            + 'static,
        T: Send + Sync + 'static,
    {
        let work = Arc::clone(self.work);
        self.start_waking(cache, labels, of, keeping, move |key| work.wake(key));
    }

    fn pipelines(&mut self, cache: &Arc<Cache<DataPipeline>>) {
        let (work, known) = (Arc::clone(self.work), Arc::clone(cache));
        self.start_waking(cache, None, itself, trimmed, move |key| work.wake_pipeline(key, &known));
    }

    fn start_waking<K, T>(
        &mut self,
        cache: &Arc<Cache<T>>,
        labels: Option<&str>,
        of: fn(&DeserializeGuard<K>) -> Option<Key>,
        keeping: fn(K) -> T,
        wake: impl Fn(Key) + Send + 'static,
    ) where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned
            + Send
            + Sync
            + 'static,
        T: Send + Sync + 'static,
    {
        let api: Api<DeserializeGuard<K>> = match &self.namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        };
        let config =
            watcher::Config { label_selector: labels.map(str::to_owned), ..watcher::Config::default() };
        self.tasks.spawn(keep(api, config, Arc::clone(cache), of, keeping, wake));
    }

    fn nodes(&mut self, cache: &Arc<Cache<NodeFacts>>) {
        let api: Api<DeserializeGuard<Node>> = Api::all(self.client.clone());
        self.tasks.spawn(keep(
            api,
            watcher::Config::default(),
            Arc::clone(cache),
            nobody,
            NodeFacts::from,
            |_| {},
        ));
    }
}

#[expect(clippy::disallowed_methods, reason = "the loop reads the clock and hands it on")]
fn clock() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn work_that_panics_leaves_its_pipeline_to_the_next_try() {
        let (work, metrics) = (Work::default(), Metrics::new().unwrap());
        work.wake(Key { namespace: "n".into(), name: "a".into() });
        let (again, tried_again) = oneshot::channel();
        let again = Arc::new(Mutex::new(Some(again)));
        let tries = Arc::new(AtomicUsize::new(0));
        let look = |_| {
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

    #[tokio::test]
    async fn a_kind_that_cannot_be_listed_is_named_and_waited_for_no_longer_than_a_while() {
        let unreadable = Unreadable::default();
        let needed: Vec<(&'static str, BoxFuture<'_, ()>)> = vec![
            ("pods", Box::pin(std::future::ready(()))),
            ("configmaps", Box::pin(std::future::pending())),
        ];
        let patience =
            Patience { optional: Duration::ZERO, told: Duration::ZERO, given_up: Duration::from_millis(1) };
        let ended = all_of(needed, &unreadable, patience).await.unwrap_err();
        assert_eq!(unreadable.text(), Some(ended.to_string()));
        assert!(ended.to_string().starts_with("cannot list configmaps;"), "{ended}");
        // It came, late.
        let needed: Vec<(&'static str, BoxFuture<'_, ()>)> = vec![("pods", Box::pin(std::future::ready(())))];
        unreadable.set(Vec::new());
        assert!(all_of(needed, &unreadable, patience).await.is_ok());
        assert_eq!(unreadable.text(), None);
    }
}
