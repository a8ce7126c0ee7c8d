//! Takes worker processes, gives trainers of this machine somewhere to read from: says where they are, replaces those that end, until
//! somebody ends it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use anyhow::{anyhow, bail};
use feedmill_client::{Endpoint, Fleet, StreamPlan};
use feedmill_protocol::pipeline::ValidatedPipeline;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::autoscale::Autoscale;
use super::drive::counted;
use super::interrupt::Interrupt;
use super::list::WorkerList;
use super::monitor::{self, Statuses, VIEW_EVERY};
use super::view::{Screen, WorkerReading, worker_lines};
use super::workers::{Ended, Workers};
use crate::args::LocalArguments;
use crate::clock;
use crate::usage::Usage;

/// More workers than this ending by themselves within [`SOON`] is no bad luck.
const MAX_LOST: usize = 3;

/// See [`MAX_LOST`].
const SOON: Duration = Duration::from_secs(60);

/// Whoever follows the list has read it again by then: loaders look every two seconds.
const READ_AGAIN: Duration = Duration::from_millis(2500);

/// What is served.
pub struct Serve<'a> {
    /// What was asked for.
    pub arguments: &'a LocalArguments,
    /// The pipeline.
    pub pipeline: &'a ValidatedPipeline,
    /// The file that says where workers are.
    pub list: WorkerList,
    /// Threads of each worker.
    pub threads: u32,
}

impl Serve<'_> {
    /// Serves until a signal comes.
    ///
    /// # Errors
    /// Workers that do not start, or end again and again; a list that cannot be written.
    pub async fn run(
        &mut self,
        workers: &mut Workers,
        screen: &mut Screen,
        interrupt: &mut Interrupt,
    ) -> anyhow::Result<()> {
        let begun = monitor::begin(workers, &self.arguments.stream, screen, interrupt).await?;
        let Some((fleet, plan)) = begun else { return Ok(()) };
        if let Some(lost) = self.list.write(&workers.endpoints())? {
            return Err(Usage::of(anyhow!("--workers-file: {lost}")));
        }
        screen.say(&self.announcement(workers, &plan));
        let served = self.serve(fleet, &plan, workers, screen, interrupt).await;
        // Whoever comes now hears that nobody is there, and asks no ports that may be others' by then.
        let emptied = self.list.write(&[]);
        let (view, scale) = served?;
        screen.clear();
        if let Some(lost) = emptied? {
            screen.say(&lost);
        }
        screen.say(&format!("served {} samples; ending", view.served()));
        if let Some(scale) = scale {
            screen.say(&format!("autoscale: {}", scale.summary()));
        }
        Ok(())
    }

    /// Until a signal comes: what was served then.
    async fn serve(
        &mut self,
        fleet: Fleet,
        plan: &StreamPlan,
        workers: &mut Workers,
        screen: &mut Screen,
        interrupt: &mut Interrupt,
    ) -> anyhow::Result<(View, Option<Autoscale>)> {
        let (said, mut statuses) = watch::channel(Statuses::new());
        let mut beside = JoinSet::new();
        beside.spawn(monitor::poll(fleet.clone(), said, self.arguments.every(2, VIEW_EVERY)));
        let list = &mut self.list;
        let mut lead = |to: Vec<Endpoint>| {
            let said = list.write(&to)?;
            fleet.set_workers(to);
            anyhow::Ok(said)
        };
        let mut scale =
            self.arguments.autoscale.then(|| Autoscale::new(self.arguments, plan, workers.endpoints().len()));
        let (mut view, mut lost, began) = (View::new(), Lost::default(), clock::now());
        loop {
            tokio::select! {
                ended = workers.next_end() => {
                    if workers.left(&ended.name) {
                        continue;
                    }
                    lost.one(&ended, clock::now())?;
                    workers.replace(ended.index).await?;
                    let endpoints = workers.endpoints();
                    let now = endpoints.get(ended.index).map(Endpoint::to_string).unwrap_or_default();
                    let lost_list = lead(endpoints)?;
                    screen.say(&format!("worker {} ended ({}); another one is at {now}", ended.name, ended.status));
                    lost_list.iter().for_each(|said| screen.say(said));
                }
                Ok(()) = statuses.changed() => {
                    let statuses = statuses.borrow_and_update().clone();
                    screen.draw_on_terminal(&view.lines(&statuses, &workers.names().into_iter().collect()));
                    if let Some(scale) = &mut scale {
                        let mut lost_list = None;
                        let lead = |_: &Workers, to: Vec<Endpoint>| {
                            lost_list = lead(to)?;
                            Ok(())
                        };
                        scale.act(&statuses, workers, screen, clock::now() - began, READ_AGAIN, lead).await?;
                        lost_list.iter().for_each(|said| screen.say(said));
                    }
                }
                _ = interrupt.wait() => return Ok((view, scale)),
            }
        }
    }

    fn announcement(&self, workers: &Workers, plan: &StreamPlan) -> String {
        let endpoints = workers.endpoints();
        let urls: Vec<String> = endpoints.iter().map(ToString::to_string).collect();
        format!(
            "pipeline {}, stream {}: {} samples in an epoch, plan {}\n\
             {}, {} for CPU work each, until Ctrl-C; a trainer reads by one of\n  \
             Loader(\"{}\", ...)\n  \
             Loader(\"file:{}\", ...)    which follows workers that come and go",
            self.pipeline.name,
            self.arguments.stream,
            plan.samples_per_epoch,
            plan.plan,
            counted(u32::try_from(urls.len()).unwrap_or(u32::MAX), "worker"),
            counted(self.threads, "thread"),
            urls.join(","),
            std::path::absolute(self.list.path()).unwrap_or_else(|_| self.list.path().to_owned()).display(),
        )
    }
}

/// Workers that ended lately.
#[derive(Default)]
struct Lost(VecDeque<Instant>);

impl Lost {
    fn one(&mut self, ended: &Ended, now: Instant) -> anyhow::Result<()> {
        self.0.push_back(now);
        while self.0.front().is_some_and(|&earlier| now.saturating_duration_since(earlier) > SOON) {
            self.0.pop_front();
        }
        if self.0.len() > MAX_LOST {
            let (lost, seconds) = (self.0.len(), SOON.as_secs());
            bail!(
                "{lost} workers have ended by themselves within {seconds} s; the last one:\n{:#}",
                ended.unasked()
            );
        }
        Ok(())
    }
}

/// What has been served, and how fast.
struct View {
    at: Instant,
    before: BTreeMap<String, WorkerReading>,
    /// By all workers, those that have ended too.
    seen: BTreeMap<String, u64>,
}

impl View {
    fn new() -> Self {
        Self { at: clock::now(), before: BTreeMap::new(), seen: BTreeMap::new() }
    }

    fn served(&self) -> u64 {
        self.seen.values().sum()
    }

    fn lines(&mut self, statuses: &Statuses, names: &BTreeMap<Endpoint, String>) -> Vec<String> {
        let now = clock::now();
        let span = (now - self.at).as_secs_f64().max(1e-3);
        let (workers, before) = (WorkerReading::of(statuses, names), self.served());
        for (name, worker) in &workers {
            let seen = self.seen.entry(name.clone()).or_default();
            *seen = worker.samples.max(*seen);
        }
        let ranks = statuses.iter().flat_map(|(_, status)| status).map(|status| status.reports.len());
        let mut lines = vec![format!(
            "{} samples served, {:.0} a second, to {} ranks",
            self.served(),
            (self.served() - before) as f64 / span,
            ranks.sum::<usize>(),
        )];
        lines.extend(worker_lines(&self.before, &workers, span));
        (self.at, self.before) = (now, workers);
        lines
    }
}
