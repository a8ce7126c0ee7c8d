//! Takes workers, gives what they say of themselves: a plan once they have one, and their status again and again.

use std::time::Duration;

use feedmill_client::{Endpoint, Fleet, FleetSettings, Pass, StreamPlan};
use feedmill_protocol::http::PATH_READY;
use feedmill_protocol::report::WorkerStatus;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use super::interrupt::Interrupt;
use super::view::Screen;
use super::workers::Workers;
use crate::{clock, http};

/// The view is redrawn so often.
pub const VIEW_EVERY: Duration = Duration::from_secs(1);

/// Reading manifests may take this long; a person can end it before.
const START: Duration = Duration::from_secs(24 * 3600);

/// What each worker last said of itself; None when it did not answer.
pub type Statuses = Vec<(Endpoint, Option<WorkerStatus>)>;

/// One name per start, as reports want it.
pub fn run_name(what: &str) -> String {
    format!("{what}-{}", std::process::id())
}

/// A fleet of workers that were just started, which is only asked about itself, and the plan of a stream as soon as one of them has read its
/// data. None when a signal came before.
///
/// # Errors
/// A worker that ends before; a stream that is not there.
pub async fn begin(
    workers: &mut Workers,
    stream: &str,
    screen: &mut Screen,
    interrupt: &mut Interrupt,
) -> anyhow::Result<Option<(Fleet, StreamPlan)>> {
    let endpoints = workers.endpoints();
    let fleet = fleet(endpoints.clone())?;
    let plan = tokio::select! {
        plan = ready(&fleet, stream, &endpoints, screen) => plan?,
        ended = workers.next_end() => return Err(ended.unasked()),
        _ = interrupt.wait() => return Ok(None),
    };
    Ok(Some((fleet, plan)))
}

fn fleet(workers: Vec<Endpoint>) -> anyhow::Result<Fleet> {
    let mut settings = FleetSettings::new(run_name("monitor"), workers);
    settings.timeouts.total = START;
    settings.timeouts.control = VIEW_EVERY;
    Ok(Fleet::new(settings)?)
}

/// Waits until a worker has read its manifests, and says meanwhile what it does.
async fn ready(
    monitor: &Fleet,
    stream: &str,
    workers: &[Endpoint],
    screen: &mut Screen,
) -> anyhow::Result<StreamPlan> {
    let plan = monitor.plan(stream);
    tokio::pin!(plan);
    let mut ticks = tokio::time::interval_at(clock::now() + VIEW_EVERY, VIEW_EVERY);
    // Whether a worker is ready is open to all.
    let nobody = Pass::default();
    let mut said = String::new();
    loop {
        tokio::select! {
            plan = &mut plan => return Ok(plan?),
            _ = ticks.tick() => {}
        }
        let Some(worker) = workers.first() else { continue };
        let doing = tokio::select! {
            plan = &mut plan => return Ok(plan?),
            answer = http::get(worker, &nobody, PATH_READY) => answer.err().map(|error| error.to_string()),
        };
        if let Some(doing) = doing.filter(|doing| *doing != said) {
            screen.draw(std::slice::from_ref(&doing));
            said = doing;
        }
    }
}

/// Asks all workers for their status, again and again.
pub async fn poll(monitor: Fleet, statuses: watch::Sender<Statuses>, every: Duration) {
    let mut ticks = tokio::time::interval_at(clock::now() + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let answers = monitor.status().await;
        statuses
            .send_replace(answers.into_iter().map(|(endpoint, status)| (endpoint, status.ok())).collect());
    }
}
