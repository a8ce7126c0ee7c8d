//! Takes worker processes, gives what the ranks got from them; kills one if asked, replaces those that end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, bail};
use feedmill_client::{Endpoint, Fleet, FleetSettings, Meter, Puller, PullerSettings, StreamPlan};
use feedmill_protocol::pipeline::ValidatedPipeline;
use feedmill_protocol::ranks::RankLayout;
use tokio::sync::{Barrier, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::autoscale::Autoscale;
use super::bad::{self, BadRecord};
use super::interrupt::{Interrupt, Interruption};
use super::monitor::{self, Statuses, VIEW_EVERY, run_name};
use super::rank::{Board, RankError, RankRun, SharedBoard, lock};
use super::summary::{Facts, Killed};
use super::view::{RankReading, Rates, Reading, Screen, WorkerReading};
use super::workers::{Ended, Workers};
use crate::args::LocalArguments;
use crate::usage::Usage;
use crate::{clock, pipeline};

/// More workers than this ending by themselves is no bad luck.
const MAX_LOST: u64 = 3;

/// The worker that `--kill-worker` kills.
const VICTIM: usize = 0;

/// What a run is made of.
pub struct Drive<'a> {
    /// What was asked for.
    pub arguments: &'a LocalArguments,
    /// The pipeline.
    pub pipeline: &'a ValidatedPipeline,
    /// Global batch, ranks, micro batch.
    pub layout: RankLayout,
    /// When the workers were started.
    pub begun: Instant,
    /// Threads of each worker.
    pub threads: u32,
}

/// Everything that runs beside the loop; dropping it ends it.
struct Running {
    ranks: JoinSet<Result<(), RankError>>,
    beside: JoinSet<()>,
    fleets: Vec<Fleet>,
    meters: Vec<Meter>,
    board: SharedBoard,
    made: watch::Receiver<u64>,
    statuses: watch::Receiver<Statuses>,
    names: BTreeMap<Endpoint, String>,
}

/// What happened in a run beside the batches.
#[derive(Default)]
struct Events {
    killed: Option<Killed>,
    /// What the victim listed as bad before it was killed.
    bad_records: BTreeSet<BadRecord>,
    lost_workers: u64,
    interrupted: Option<Interruption>,
    failure: Option<String>,
    scaled: Option<Autoscale>,
}

impl Drive<'_> {
    /// Runs until all ranks are done; None when a signal came before the first of them began.
    ///
    /// # Errors
    /// Workers that do not start, or end again and again.
    pub async fn run(
        &self,
        workers: &mut Workers,
        screen: &mut Screen,
        interrupt: &mut Interrupt,
    ) -> anyhow::Result<Option<Facts>> {
        let begun = monitor::begin(workers, &self.arguments.stream, screen, interrupt).await?;
        let Some((monitor, plan)) = begun else { return Ok(None) };
        let stop = self.arguments.stop(self.layout, plan.samples_per_epoch).map_err(Usage::of)?;
        let steps = self.layout.steps_until(0, stop);
        if self.arguments.kill_worker && steps < 2 {
            return Err(Usage::of(anyhow::anyhow!("--kill-worker needs at least 2 steps; there is {steps}")));
        }
        screen.say(&self.announcement(&plan, stop, steps));
        let mut running = self.start(workers, monitor, &plan, stop, steps)?;
        let scale = self
            .arguments
            .autoscale
            .then(|| Autoscale::new(self.arguments, &plan, workers.endpoints().len()));
        let events = self.supervise(&mut running, workers, screen, interrupt, steps, scale).await?;
        screen.clear();
        Ok(Some(self.facts(&running, &plan, stop, steps, events)))
    }

    fn announcement(&self, plan: &StreamPlan, stop: u64, steps: u64) -> String {
        let (layout, arguments) = (self.layout, self.arguments);
        let filler = (steps * layout.global_batch()).saturating_sub(stop);
        format!(
            "pipeline {}, stream {}: {} samples in an epoch, plan {}\n\
             {} workers, {} for CPU work each; {} ranks; global batch {} = {} ranks x {} x micro batch {}; window {}\n\
             {steps} steps of {} ms and what they wait: {stop} positions, {filler} filler rows in the last step",
            self.pipeline.name,
            arguments.stream,
            plan.samples_per_epoch,
            plan.plan,
            arguments.workers,
            counted(self.threads, "thread"),
            layout.ranks(),
            layout.global_batch(),
            layout.ranks(),
            layout.micro_batches_per_step(),
            layout.micro_batch(),
            arguments.window,
            arguments.step_ms,
        )
    }

    fn start(
        &self,
        workers: &Workers,
        monitor: Fleet,
        plan: &StreamPlan,
        stop: u64,
        steps: u64,
    ) -> anyhow::Result<Running> {
        let layout = self.layout;
        let barrier = usize::try_from(layout.ranks()).context("more ranks than this machine can count")?;
        let barrier = Arc::new(Barrier::new(barrier));
        let board = Arc::new(Mutex::new(Board::new(stop, self.begun, clock::now())));
        let (made, made_seen) = watch::channel(0);
        let (statuses, statuses_seen) = watch::channel(Statuses::new());
        let made = Arc::new(made);
        let mut running = Running {
            ranks: JoinSet::new(),
            beside: JoinSet::new(),
            fleets: vec![monitor.clone()],
            meters: Vec::new(),
            board: Arc::clone(&board),
            made: made_seen,
            statuses: statuses_seen,
            names: workers.names().into_iter().collect(),
        };
        for rank in 0..layout.ranks() {
            // Its own fleet, as the processes of a training have them.
            let mut settings = FleetSettings::new(run_name("local"), workers.endpoints());
            settings.report_every = settings.report_every.map(|usual| self.arguments.every(5, usual));
            let fleet = Fleet::new(settings)?;
            let puller = Puller::new(
                fleet.clone(),
                PullerSettings {
                    stream: self.arguments.stream.clone(),
                    layout,
                    rank,
                    consumed: 0,
                    stop: Some(stop),
                    window: self.arguments.window as usize,
                    plan: Some(plan.plan),
                },
            )?;
            running.meters.push(puller.meter());
            running.fleets.push(fleet);
            let run = RankRun {
                puller,
                rank,
                layout,
                steps,
                step_time: self.step_time(),
                board: Arc::clone(&board),
                barrier: Arc::clone(&barrier),
                made: Arc::clone(&made),
            };
            running.ranks.spawn(run.run());
        }
        running.beside.spawn(monitor::poll(monitor, statuses, self.arguments.every(2, VIEW_EVERY)));
        Ok(running)
    }

    fn step_time(&self) -> Arc<dyn Fn(u64) -> Duration + Send + Sync> {
        let arguments = self.arguments.clone();
        Arc::new(move |step| arguments.step_time(step))
    }

    async fn supervise(
        &self,
        running: &mut Running,
        workers: &mut Workers,
        screen: &mut Screen,
        interrupt: &mut Interrupt,
        steps: u64,
        scale: Option<Autoscale>,
    ) -> anyhow::Result<Events> {
        let mut events = Events { scaled: scale, ..Events::default() };
        let mut rates = Rates::default();
        let began = clock::now();
        let kill_after = self.arguments.kill_worker.then_some(steps / 2);
        loop {
            tokio::select! {
                joined = running.ranks.join_next() => match joined {
                    None => return Ok(events),
                    Some(Ok(Ok(()))) => {}
                    Some(Ok(Err(error))) => {
                        // The others would wait for it for ever.
                        running.ranks.abort_all();
                        events.failure.get_or_insert(error.to_string());
                    }
                    Some(Err(error)) if error.is_cancelled() => {}
                    Some(Err(error)) => {
                        running.ranks.abort_all();
                        events.failure.get_or_insert(format!("a fault of ours: {error}"));
                    }
                },
                Ok(()) = running.made.changed(), if kill_after.is_some() && events.killed.is_none() => {
                    let made = *running.made.borrow_and_update();
                    if Some(made) >= kill_after && let Some((endpoint, worker)) = workers.names().into_iter().nth(VICTIM) {
                        // Nobody can ask it afterwards.
                        bad::ask(&[endpoint], &mut events.bad_records).await;
                        let mut board = lock(&running.board);
                        board.pace.mark = Some(made);
                        events.killed = Some(Killed { worker, step: made, moved_before: board.moved });
                        workers.kill(VICTIM);
                    }
                }
                ended = workers.next_end() => {
                    if workers.left(&ended.name) {
                        continue;
                    }
                    if events.killed.as_ref().is_none_or(|killed| killed.worker != ended.name) {
                        events.lost_workers += 1;
                        screen.say(&format!("worker {} ended ({}); starting another one", ended.name, ended.status));
                        give_up_after(&ended, events.lost_workers)?;
                    } else {
                        screen.say(&format!("worker {} killed; starting another one in its place", ended.name));
                    }
                    workers.replace(ended.index).await?;
                    running.lead_to(workers, workers.endpoints());
                }
                Ok(()) = running.statuses.changed() => {
                    let reading = running.reading(clock::now() - began, steps);
                    screen.draw(&rates.lines(reading));
                    if let Some(scale) = &mut events.scaled {
                        let statuses = running.statuses.borrow().clone();
                        let now = clock::now() - began;
                        scale.act(&statuses, workers, screen, now, Duration::ZERO, |workers, to| {
                            running.lead_to(workers, to);
                            Ok(())
                        })
                        .await?;
                    }
                }
                signal = interrupt.wait() => {
                    events.interrupted = Some(signal);
                    running.ranks.abort_all();
                    screen.say("ending");
                }
            }
        }
    }

    fn facts(&self, running: &Running, plan: &StreamPlan, stop: u64, steps: u64, events: Events) -> Facts {
        let board = lock(&running.board);
        let mut served: BTreeMap<String, u64> = BTreeMap::new();
        for (endpoint, batches) in &board.served {
            let name = running.names.get(endpoint).cloned().unwrap_or_else(|| endpoint.to_string());
            *served.entry(name).or_default() += batches;
        }
        let everybody = board.first_batch.len() as u64 == self.layout.ranks();
        Facts {
            pipeline: self.pipeline.name.clone(),
            stream: self.arguments.stream.clone(),
            plan: plan.plan.to_string(),
            samples_per_epoch: plan.samples_per_epoch,
            layout: self.layout,
            workers: self.arguments.workers,
            stop,
            steps,
            step_time: Duration::from_millis(self.arguments.step_ms),
            counts: board.ledger.counts().clone(),
            pace: board.pace.clone(),
            rows: board.rows,
            bytes: board.bytes,
            reference_bytes: board.reference_bytes,
            batches: board.batches,
            moved: board.moved,
            served,
            first_batch: board.first_batch.values().max().copied().filter(|_| everybody),
            datasets: pipeline::dataset_names(self.pipeline, &self.arguments.stream),
            bad_records: events.bad_records,
            killed: events.killed,
            lost_workers: events.lost_workers,
            scaled: events.scaled.map(Autoscale::summary),
            check: None,
            interrupted: events.interrupted,
            failure: events.failure,
        }
    }
}

/// `1 thread`, `2 threads`.
pub fn counted(count: u32, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn give_up_after(ended: &Ended, lost: u64) -> anyhow::Result<()> {
    if lost > MAX_LOST {
        bail!("{lost} workers have ended by themselves; the last one:\n{:#}", ended.unasked());
    }
    Ok(())
}

impl Running {
    /// Sends ranks to these workers from now on.
    fn lead_to(&mut self, workers: &Workers, endpoints: Vec<Endpoint>) {
        self.names.extend(workers.names());
        for fleet in &self.fleets {
            fleet.set_workers(endpoints.clone());
        }
    }

    fn reading(&mut self, at: Duration, steps: u64) -> Reading {
        let statuses = self.statuses.borrow_and_update();
        let workers = WorkerReading::of(&statuses, &self.names);
        let ranks = self.meters.iter().map(|meter| {
            let stats = meter.stats();
            RankReading { waited: stats.waited, ready: stats.ready, target: stats.target }
        });
        let board = lock(&self.board);
        Reading {
            at,
            rows: board.rows,
            bytes: board.bytes,
            bad: board.ledger.counts().bad_rows(),
            step: board.pace.steps,
            steps,
            workers,
            ranks: ranks.collect(),
        }
    }
}
