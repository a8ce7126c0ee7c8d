//! Takes settings, runs until told to stop: a server for metrics, the lease, and once that is had watches, scrapes and the loop.

/// What others ask it.
mod health;
/// Everything that exists is known.
mod known;
/// Watches, a task for each kind.
mod watches;
/// Pipelines that are due, and who works on them.
mod work;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::{Client, Config};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::check::CheckArgs;
use crate::desired::{MANAGED_BY, MANAGER, PORT};
use crate::leader::Candidate;
use crate::metrics::Metrics;
use crate::observe::{
    Cache, Caches, WorkerPod, by_label, itself, trimmed, trimmed_map, trimmed_pipeline, trimmed_revision,
};
use crate::pace::paced;
use crate::queries::{Due, Queries, ROUND, Server};
use crate::reconcile::Context;
use crate::scrape::{Answers, Target};
use crate::settings::OperatorArgs;
use crate::types::DataPipeline;

pub use health::Unreadable;
use health::{Health, router};
use known::{PATIENCE, everything};
use watches::Watches;
use work::{Work, one, serve};

/// How often workers are looked at for being due.
const SCRAPE_ROUND: Duration = Duration::from_secs(5);
/// A connection on which nothing came for so long is dead: a watch ends after 290 s, and each other call within seconds.
const SILENCE: Duration = Duration::from_secs(300);

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

/// Looks whether an operator is at work.
///
/// # Errors
/// No connection to the API server can be set up; see [`check::CheckError`](crate::check::CheckError).
pub fn check(arguments: &CheckArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(async {
        let client = Client::try_from(config().await?).context("cannot make a client of the API server")?;
        let holder = crate::check::check(client, arguments).await?;
        tracing::info!(holder, "an operator is at work");
        Ok(())
    })
}

/// How the API server is reached.
async fn config() -> anyhow::Result<Config> {
    let mut config = Config::infer().await.context("no API server: run in a pod or give KUBECONFIG")?;
    // The queue tries again, later and with others in between; the lease tries again at once.
    config.default_retry = false;
    (config.read_timeout, config.reset_reader_on_write) = (Some(SILENCE), true);
    Ok(config)
}

async fn live(arguments: &OperatorArgs) -> anyhow::Result<()> {
    let config = config().await?;
    // A client of its own: no other call may hold up the lease.
    let of_lease = Client::try_from(config.clone()).context("cannot make a client of the API server")?;
    let client = Client::try_from(config).context("cannot make a client of the API server")?;
    let metrics = Arc::new(Metrics::new()?);
    let listener = TcpListener::bind(arguments.listen)
        .await
        .with_context(|| format!("cannot listen on {}; choose another with --listen", arguments.listen))?;
    let unreadable = Arc::new(Unreadable::default());
    let stop = told_to_stop()?;
    tokio::pin!(stop);
    let health = Health { metrics: Arc::clone(&metrics), unreadable: Arc::clone(&unreadable) };
    tokio::spawn(axum::serve(listener, router(Arc::new(health))).into_future());
    let mut candidate =
        Candidate::new(of_lease, &arguments.own_namespace, &arguments.lease, &arguments.identity);
    tracing::info!(
        identity = arguments.identity,
        worker_image = arguments.worker_image,
        "waiting for the lease"
    );
    let since = tokio::select! {
        since = candidate.acquire() => since,
        () = &mut stop => return Ok(()),
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
        () = &mut stop => Ok(()),
    };
    candidate.release().await;
    result
}

/// Ends at SIGTERM or SIGINT; both are listened for at once, whenever it is waited for.
fn told_to_stop() -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
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
    let queries = Arc::new(Queries::of(&arguments.prometheus)?);
    let client = paced(client, arguments.requests_per_second);
    let work = Arc::new(Work::default());
    let mut caches = Caches::default();
    let mut tasks = JoinSet::new();
    let mut watches =
        Watches { client: client.clone(), namespace: arguments.namespace.clone(), tasks: &mut tasks };
    let mine = format!("{MANAGED_BY}={MANAGER}");
    let mine = Some(mine.as_str());
    let of_itself = (Arc::clone(&work), Arc::clone(&caches.pipelines));
    watches.start(&caches.pipelines, None, itself, trimmed_pipeline, move |key| {
        of_itself.0.wake_pipeline(key, &of_itself.1)
    });
    let wake = {
        let work = Arc::clone(&work);
        move |key| work.wake(key)
    };
    watches.start(&caches.deployments, mine, by_label, trimmed, wake.clone());
    watches.start(&caches.services, mine, by_label, trimmed, wake.clone());
    watches.start(&caches.maps, mine, by_label, trimmed_map, wake.clone());
    watches.start(&caches.accounts, mine, by_label, trimmed, wake.clone());
    watches.start(&caches.budgets, mine, by_label, trimmed, wake.clone());
    watches.start(&caches.policies, mine, by_label, trimmed, wake.clone());
    watches.start(&caches.revisions, mine, by_label, trimmed_revision, wake.clone());
    watches.start::<Pod, _>(&caches.pods, mine, by_label, WorkerPod::from, wake);
    if !arguments.without_nodes {
        let nodes = Arc::default();
        watches.nodes(&nodes);
        caches.nodes = Some(nodes);
    }
    everything(&caches, unreadable, PATIENCE).await?;
    tracing::info!("everything that exists is known");
    let answers: Arc<Answers> = Arc::default();
    let (pods, pipelines) = (Arc::clone(&caches.pods), Arc::clone(&caches.pipelines));
    tasks.spawn(scrape(Arc::clone(&answers), pods, pipelines, Arc::clone(&work)));
    for server in queries.servers() {
        let (pipelines, metrics) = (Arc::clone(&caches.pipelines), Arc::clone(&metrics));
        tasks.spawn(ask(Arc::clone(&queries), Arc::clone(server), pipelines, metrics));
    }
    let context = Arc::new(Context::new(
        client,
        caches,
        answers,
        queries,
        arguments.installation(),
        Arc::clone(&metrics),
        &arguments.identity,
    ));
    let look = |key, failures| one(Arc::clone(&context), key, failures);
    tokio::select! {
        never = serve(&work, &metrics, usize::from(arguments.concurrency), look) => Ok(never),
        // Watches never end; one that did would leave its cache as it was, unseen.
        Some(ended) = tasks.join_next() => {
            Err(ended.err().map_or_else(|| anyhow::anyhow!("a watch ended"), anyhow::Error::new))
        }
    }
}

async fn scrape(
    answers: Arc<Answers>,
    pods: Arc<Cache<WorkerPod>>,
    pipelines: Arc<Cache<DataPipeline>>,
    work: Arc<Work>,
) {
    let mut rounds = tokio::time::interval(SCRAPE_ROUND);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let port = u16::try_from(PORT).unwrap_or_default();
    loop {
        // As it was scheduled: by when this task woke the one round would be a little less than a period after the other.
        let now = rounds.tick().await.into_std();
        let targets = pods.keys().into_iter().flat_map(|key| {
            let of = pods.all(&key).into_iter().filter(|pod| pod.stays());
            let pipeline = pipelines.get(&key, &key.name).and_then(Result::ok);
            let often = pipeline.is_some_and(|pipeline| pipeline.spec.is_scaled_by_reports());
            of.filter_map(move |pod| {
                let (key, uid, ready) = (key.clone(), pod.uid.clone(), pod.ready);
                Some(Target { key, uid, address: pod.address?, port, tls: pod.tls, often, ready })
            })
        });
        for key in answers.round(targets.collect(), now, clock).await {
            work.wake(key);
        }
    }
}

/// Asks one server for all pipelines that name it, for ever; one that is slow holds up no other.
async fn ask(
    queries: Arc<Queries>,
    server: Arc<Server>,
    pipelines: Arc<Cache<DataPipeline>>,
    metrics: Arc<Metrics>,
) {
    let mut rounds = tokio::time::interval(ROUND);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        let all = pipelines.keys().into_iter().filter_map(|key| {
            let pipeline = pipelines.get(&key, &key.name)?.ok()?;
            let spec = &pipeline.spec;
            let scaling = spec.autoscaling.as_ref().filter(|_| spec.is_scaled_here() && !spec.suspend)?;
            let named = scaling.signal.as_ref().is_some_and(|signal| signal.prometheus == server.name);
            let stale_after = u32::try_from(scaling.reports.stale_after_seconds).ok()?;
            named.then_some(Due { key, stale_after })
        });
        queries.round(&server, all.collect(), &metrics, clock, calendar).await;
    }
}

/// The calendar's time in milliseconds since 1970, by which servers date their answers.
fn calendar() -> u64 {
    u64::try_from(Timestamp::now().as_millisecond()).unwrap_or_default()
}

/// The runtime's clock, which tests can make virtual; the loop reads it and hands it on.
fn clock() -> Instant {
    tokio::time::Instant::now().into_std()
}
