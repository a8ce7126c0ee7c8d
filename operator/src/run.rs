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
use futures_util::future::BoxFuture;
use http::StatusCode;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::core::DeserializeGuard;
use kube::runtime::watcher;
use kube::{Api, Client, Config, Resource};
use serde::de::DeserializeOwned;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinSet};

use crate::desired::{MANAGED_BY, MANAGER, PORT};
use crate::leader::Candidate;
use crate::metrics::Metrics;
use crate::observe::{Asks, Cache, NodeFacts, WorkerPod, asks_otherwise, by_label, itself, keep, nobody};
use crate::queue::{Outcome, Queue};
use crate::reconcile::{Caches, Context};
use crate::scrape::{Answers, Target};
use crate::settings::OperatorArgs;
use crate::validate::Key;

/// A connection on which nothing came for so long is dead: a watch ends after 290 s, and each other call within seconds.
const SILENCE: Duration = Duration::from_secs(300);
/// One look at a pipeline takes well under a second. Longer than this a call of it is not answered, and others wait for its place.
const LOOK: Duration = Duration::from_secs(60);
/// How often workers are looked at for being due.
const SCRAPE_ROUND: Duration = Duration::from_secs(5);
/// Nodes change by themselves every few seconds; only their labels and taints matter, seldom.
const WATCH_SECONDS: u32 = 290;

/// Why pipelines are looked after no more.
#[derive(Debug, thiserror::Error)]
pub enum Stopped {
    /// What is known would grow old without anybody noticing.
    #[error("a watch, or the asking of workers, ended: nothing new is seen any more")]
    Blind(#[source] Option<JoinError>),
}

/// How the API server is talked to: the queue decides when a call that failed is made again, not the client within it.
fn plain(config: Config) -> Config {
    Config { default_retry: false, read_timeout: Some(SILENCE), reset_reader_on_write: true, ..config }
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
    let config = Config::infer().await.context("no API server: run in a pod or give KUBECONFIG")?;
    // A client of its own: no other call may hold up the lease.
    let of_lease = Client::try_from(plain(config.clone())).context("the API server cannot be talked to")?;
    let client = Client::try_from(plain(config)).context("the API server cannot be talked to")?;
    let metrics = Arc::new(Metrics::new()?);
    let listener = TcpListener::bind(arguments.listen)
        .await
        .with_context(|| format!("cannot listen on {}; choose another with --listen", arguments.listen))?;
    let health = Arc::new(Health { metrics: Arc::clone(&metrics), started: AtomicBool::new(false) });
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
    tokio::select! {
        () = candidate.acquire() => {}
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    }
    tracing::info!("has the lease");
    metrics.leads();
    let result = tokio::select! {
        lost = candidate.hold() => match lost {
            Ok(never) => match never {},
            // What was begun ends with the process: nothing more may be written.
            Err(lost) => return Err(lost.into()),
        },
        stopped = look_after(client, arguments, metrics) => Err(stopped.into()),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    candidate.release().await;
    result
}

struct Health {
    metrics: Arc<Metrics>,
    started: AtomicBool,
}

fn router(health: Arc<Health>) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route(
            "/readyz",
            get(|State(health): State<Arc<Health>>| async move {
                if health.started.load(Ordering::Relaxed) {
                    (StatusCode::OK, "ready\n")
                } else {
                    (StatusCode::SERVICE_UNAVAILABLE, "starting\n")
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
}

impl Work {
    fn wake(&self, key: Key, changed: bool) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).wake(key, clock(), changed);
        self.changed.notify_one();
    }
}

/// Looks after all pipelines, as the one that may: the caller has the lease. Ends when it no longer can.
pub async fn look_after(client: Client, arguments: &OperatorArgs, metrics: Arc<Metrics>) -> Stopped {
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
    let mut complete = vec![
        watches.start(&caches.pipelines, None, itself, |pipeline| pipeline, Some(asks_otherwise)),
        watches.start(&caches.deployments, Some(&mine), by_label, |object| object, None),
        watches.start(&caches.services, Some(&mine), by_label, |object| object, None),
        watches.start(&caches.maps, Some(&mine), by_label, |object| object, None),
        watches.start(&caches.accounts, Some(&mine), by_label, |object| object, None),
        watches.start(&caches.budgets, Some(&mine), by_label, |object| object, None),
        watches.start(&caches.policies, Some(&mine), by_label, |object| object, None),
        watches.start(&caches.revisions, Some(&mine), by_label, |object| object, None),
        watches.start::<Pod, _>(&caches.pods, Some(&mine), by_label, WorkerPod::from, None),
    ];
    if !arguments.without_nodes {
        let nodes: Arc<Cache<NodeFacts>> = Arc::default();
        complete.push(watches.nodes(&nodes));
        caches.nodes = Some(nodes);
    }
    for cache in complete {
        cache.await;
    }
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
    let most = usize::from(arguments.concurrency);
    let look = |key| one(Arc::clone(&context), key);
    tokio::select! {
        never = serve(&work, &metrics, most, look) => match never {},
        ended = tasks.join_next() => Stopped::Blind(ended.and_then(Result::err)),
    }
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
                let (id, outcome) = match ended {
                    Ok(ended) => ended,
                    Err(error) => {
                        tracing::error!(error = %error, "work on a pipeline ended unexpectedly");
                        (error.id(), Outcome::Failed)
                    }
                };
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
    let result = within(LOOK, context.reconcile(&key, start)).await;
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
                Some(Target { key: key.clone(), uid: pod.uid.clone(), address: pod.address?, port, tls: pod.tls })
            })
        });
        for key in answers.round(targets.collect(), clock()).await {
            work.wake(key, false);
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
    /// Begins a watch; what is given back ends when the cache is complete.
    fn start<K, T>(
        &mut self,
        cache: &Arc<Cache<T>>,
        labels: Option<&str>,
        of: fn(&DeserializeGuard<K>) -> Option<Key>,
        keeping: fn(K) -> T,
        asks: Asks<T>,
    ) -> BoxFuture<'static, ()>
    where
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
        let work = Arc::clone(self.work);
        let wake = move |key, changed| work.wake(key, changed);
        self.tasks.spawn(keep(api, config, Arc::clone(cache), of, keeping, asks, wake));
        let cache = Arc::clone(cache);
        Box::pin(async move { cache.complete().await })
    }

    fn nodes(&mut self, cache: &Arc<Cache<NodeFacts>>) -> BoxFuture<'static, ()> {
        let api: Api<DeserializeGuard<Node>> = Api::all(self.client.clone());
        let config = watcher::Config::default().timeout(WATCH_SECONDS);
        self.tasks.spawn(keep(api, config, Arc::clone(cache), nobody, NodeFacts::from, None, |_, _| {}));
        let cache = Arc::clone(cache);
        Box::pin(async move { cache.complete().await })
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
        work.wake(Key { namespace: "n".into(), name: "a".into() }, true);
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

    #[tokio::test]
    async fn a_call_that_is_never_answered_ends_all_the_same() {
        let never = std::future::pending::<Result<(), std::fmt::Error>>();
        let error = within(Duration::ZERO, never).await.unwrap_err();
        assert!(error.to_string().contains("did not answer"));
    }
}
