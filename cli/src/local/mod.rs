//! Takes a pipeline, gives a training's data on this machine: worker processes, ranks in lock step, and what came of it.
//!
//! ```text
//!  workers (processes) ─► rank 0..D (tasks): pull, check, compute, wait for each other ─► ledger, pace ─► summary
//!        ▲   drive: kills one, replaces those that end, draws the view, obeys Ctrl-C        └─► view
//!        │   serve: the same without ranks, for trainers that come by themselves
//!        ├─ autoscale: how many there should be, by what ranks report
//!        └─ check: the same positions from one undisturbed worker
//! ```

/// How many workers there should be.
mod autoscale;
/// The bad records that workers list.
mod bad;
/// The same positions a second time.
mod check;
/// Starts and watches everything until the ranks are done.
mod drive;
/// Ctrl-C and other ends.
pub mod interrupt;
/// Position by position: what came.
mod ledger;
/// The file that says where workers are.
mod list;
/// What workers say of themselves.
mod monitor;
/// Step by step: what was waited for.
mod pace;
/// One rank, and the board that all ranks write on.
mod rank;
/// Only the workers, for other trainers.
mod serve;
/// What came of it.
mod summary;
/// The picture of the last second.
mod view;
/// Worker processes.
mod workers;

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use feedmill_client::FleetSettings;
use feedmill_protocol::pipeline::ValidatedPipeline;

use crate::args::LocalArguments;
use crate::scratch::Scratch;
use crate::storage::Storage;
use crate::usage::Usage;
use crate::{clock, pipeline};
use bad::BadRecord;
use check::Again;
use drive::Drive;
use interrupt::Interrupt;
use ledger::Counts;
use list::WorkerList;
use serve::Serve;
use view::Screen;
use workers::{WorkerSettings, Workers};

/// Runs `feedmill local`.
///
/// # Errors
/// Arguments or a pipeline that cannot be used, workers that do not start.
pub async fn run(arguments: &LocalArguments) -> anyhow::Result<ExitCode> {
    let layout = arguments.layout().map_err(Usage::of)?;
    let pipeline = pipeline::read(&arguments.pipeline, &arguments.stream).map_err(Usage::of)?;
    check_arguments(arguments, &pipeline)?;
    let listed = match arguments.workers_file.as_deref() {
        // Better known now than when workers have started.
        Some(path) => Some(WorkerList::take(path).await?),
        None => None,
    };
    // From here on there is something to take away.
    let mut interrupt = Interrupt::new()?;
    let storage = Storage::start(&arguments.storage.embedded_s3).await.map_err(Usage::of)?;
    let scratch = Scratch::new("local").context("cannot make a folder for manifests")?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let settings = WorkerSettings {
        pipeline: arguments.pipeline.clone(),
        threads: arguments.threads(cores),
        cache: scratch.path().to_owned(),
        s3: storage.as_ref().map(|storage| (storage.endpoint(), storage.keys())),
        verbose: arguments.verbose,
    };
    let begun = clock::now();
    let mut workers = tokio::select! {
        started = Workers::start(settings.clone(), arguments.workers) => started?,
        signal = interrupt.wait() => return Ok(signal.exit_code()),
    };
    let mut screen = Screen::new();
    if arguments.serve {
        let list = match listed {
            Some(list) => list,
            None => WorkerList::take(&scratch.path().join("workers")).await?,
        };
        let mut serve = Serve { arguments, pipeline: &pipeline, list, threads: settings.threads };
        let served = serve.run(&mut workers, &mut screen, &mut interrupt).await;
        workers.stop().await;
        return served.map(|()| ExitCode::SUCCESS);
    }
    let drive = Drive { arguments, pipeline: &pipeline, layout, begun, threads: settings.threads };
    let driven = drive.run(&mut workers, &mut screen, &mut interrupt).await;
    let mut facts = match driven {
        Ok(Some(mut facts)) => {
            bad::ask(&workers.endpoints(), &mut facts.bad_records).await;
            workers.stop().await;
            facts
        }
        ended => {
            workers.stop().await;
            return ended.map(|_| interrupt.exit_code());
        }
    };
    if arguments.check && facts.interrupted.is_none() && facts.failure.is_none() {
        let again = Again {
            stream: facts.stream.clone(),
            plan: facts.plan.parse()?,
            stop: facts.stop,
            micro_batch: layout.micro_batch(),
            max_range: u64::from(pipeline.max_range),
        };
        screen.say("reading the same positions once more, from one worker that nobody disturbs");
        let settings = WorkerSettings {
            threads: u32::try_from(cores).unwrap_or(1),
            cache: scratch.path().join("check"),
            ..settings
        };
        match read_again(&again, settings, &mut interrupt, &mut facts.bad_records).await {
            Some(outcome) => facts.check = Some(outcome.map_err(|error| format!("{error:#}"))),
            None => facts.interrupted = interrupt.came(),
        }
    }
    screen.say(facts.text().trim_end());
    if let Some(path) = &arguments.json {
        let text = format!("{:#}\n", facts.json());
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(match (facts.kept(), facts.interrupted) {
        (false, _) => ExitCode::FAILURE,
        (true, Some(signal)) => signal.exit_code(),
        (true, None) => ExitCode::SUCCESS,
    })
}

fn check_arguments(arguments: &LocalArguments, pipeline: &ValidatedPipeline) -> anyhow::Result<()> {
    let most = u64::from(pipeline.max_range);
    // Trainers that come by themselves say their own.
    if !arguments.serve && arguments.micro_batch > most {
        let micro_batch = arguments.micro_batch;
        return Err(Usage::of(anyhow!(
            "--micro-batch {micro_batch} is more than a worker serves at once; lower it or raise spec.serving.maxRange, {most}"
        )));
    }
    if let Some(path) = &arguments.json {
        // Better now than after the run.
        std::fs::write(path, "")
            .map_err(|error| Usage::of(anyhow!("--json: cannot write {}: {error}", path.display())))?;
    }
    Ok(())
}

/// The second reading; None when a signal came.
async fn read_again(
    again: &Again,
    settings: WorkerSettings,
    interrupt: &mut Interrupt,
    bad_records: &mut BTreeSet<BadRecord>,
) -> Option<anyhow::Result<Counts>> {
    if let Err(error) = std::fs::create_dir(&settings.cache) {
        return Some(Err(anyhow!("cannot make the folder {}: {error}", settings.cache.display())));
    }
    let mut workers = match Workers::start(settings, 1).await {
        Ok(workers) => workers,
        Err(error) => return Some(Err(error)),
    };
    let fleet = FleetSettings::new(monitor::run_name("check"), workers.endpoints());
    let outcome = tokio::select! {
        counts = again.read(fleet) => Some(counts),
        ended = workers.next_end() => Some(Err(ended.unasked())),
        _ = interrupt.wait() => None,
    };
    bad::ask(&workers.endpoints(), bad_records).await;
    workers.stop().await;
    outcome
}
