//! Takes a pipeline, gives what is in its data: what is bad, how long samples are, what is there twice.
//!
//! ```text
//!  worker's check ─► text of every record ─► requests announced ─► pictures ─► report ─► text | JSON | page
//!        └─► progress: a bar on a terminal, lines elsewhere
//! ```

/// Whether the requests that pictures need may be made.
mod announce;
/// The report as a page.
mod html;
/// How far it is.
mod progress;
/// The report as text.
mod text;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use feedmill_worker::check::{Check, CheckOptions, Pass, Pictures, Report, Selection};
use feedmill_worker::in_process::Options;
use feedmill_worker::settings::read_pipeline;

use crate::args::CheckArguments;
use crate::local::interrupt::Interrupt;
use crate::output::{print, tell};
use crate::scratch::Scratch;
use crate::storage::Storage;
use crate::usage::Usage;

/// More bad records than allowed.
const BAD: u8 = 1;

/// Runs `feedmill check`. Whatever keeps it from giving a report ends it with 2.
///
/// # Errors
/// Arguments or a pipeline that cannot be used, data that cannot be read.
pub async fn run(arguments: &CheckArguments) -> anyhow::Result<ExitCode> {
    checked(arguments).await.map_err(Usage::of)
}

async fn checked(arguments: &CheckArguments) -> anyhow::Result<ExitCode> {
    let pipeline = read_pipeline(&arguments.pipeline)?;
    if arguments.html.as_deref().is_some_and(is_stdout) {
        return Err(anyhow!("--html needs a file"));
    }
    for path in [&arguments.json, &arguments.html].into_iter().flatten().filter(|path| !is_stdout(path)) {
        // Better now than after an hour.
        std::fs::write(path, "").with_context(|| format!("cannot write {}", path.display()))?;
    }
    // From here on there is something to take away.
    let mut interrupt = Interrupt::new()?;
    let storage = Storage::start(&arguments.storage.embedded_s3).await?;
    let cache = Scratch::new("manifests").context("cannot make a folder for manifests")?;
    let machine = Options {
        threads: arguments.threads.map(|threads| threads as usize),
        cache_dir: Some(cache.path().to_owned()),
        s3_endpoint: storage.as_ref().map(Storage::endpoint),
        s3_credentials_dir: storage.as_ref().map(Storage::keys),
        sandbox: feedmill_worker::sandbox(),
    };
    let options = CheckOptions {
        pictures: match (arguments.decode, arguments.images) {
            (true, _) => Pictures::Decode,
            (false, true) => Pictures::Headers,
            (false, false) => Pictures::No,
        },
        selection: match (arguments.limit, arguments.sample) {
            (Some(most), _) => Selection::First(most.get()),
            (None, Some(most)) => Selection::Sample(most.get()),
            (None, None) => Selection::All,
        },
        duplicates: !arguments.no_duplicates,
        requests_in_flight: arguments.requests.map(|most| most as usize),
    };
    let opening =
        Check::open(&pipeline, options, machine, arguments.state.as_deref(), arguments.bad.as_deref());
    let mut check = tokio::select! {
        opened = opening => opened?,
        signal = interrupt.wait() => return Ok(signal.exit_code()),
    };
    if check.goes_on() {
        tell("going on where the check before was interrupted");
    }
    let stop = check.stop();
    // The pass ends in order, so that the state is whole.
    let watching = tokio::spawn(async move {
        let signal = interrupt.wait().await;
        stop.send_replace(true);
        signal
    });
    let passed = passes(arguments, options, &mut check).await;
    if matches!(passed, Ok(Pass::Stopped)) {
        // Only a signal stops it.
        let signal = watching.await.context("the signal is lost")?;
        tell(&interrupted(arguments.state.as_deref()));
        return Ok(signal.exit_code());
    }
    watching.abort();
    passed?;
    let (report, state) =
        tokio::task::spawn_blocking(move || check.report()).await.context("the report is lost")??;
    give(arguments, &report)?;
    // Not before: what could not be written can be had again at once.
    state.remove()?;
    let worst = report.streams.iter().map(|stream| stream.bad_share).fold(0.0, f64::max);
    Ok(if worst > arguments.max_bad { ExitCode::from(BAD) } else { ExitCode::SUCCESS })
}

async fn passes(
    arguments: &CheckArguments,
    options: CheckOptions,
    check: &mut Check,
) -> anyhow::Result<Pass> {
    let shown = progress::Shown::new(check.progress());
    if shown.during("text", check.read_text()).await? == Pass::Stopped {
        return Ok(Pass::Stopped);
    }
    if options.pictures == Pictures::No {
        return Ok(Pass::Whole);
    }
    announce::ask(&check.requests(), options.pictures, arguments)?;
    Ok(shown.during("pictures", check.read_pictures()).await?)
}

fn interrupted(state: Option<&Path>) -> String {
    match state {
        Some(path) => format!("interrupted; the same command goes on from {}", path.display()),
        None => "interrupted; with --state FILE it could go on where it was".into(),
    }
}

fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// Gives the report in every form that was asked for. What is printed comes first: a file that cannot be written must not lose it.
fn give(arguments: &CheckArguments, report: &Report) -> anyhow::Result<()> {
    let json = || anyhow::Ok(serde_json::to_string_pretty(report).context("the report is no JSON")? + "\n");
    match arguments.json.as_deref() {
        Some(path) if is_stdout(path) => print(&json()?)?,
        _ => print(&text::text(report))?,
    }
    let write = |path: &Path, text: String| {
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    let page = arguments.html.as_deref().map_or(Ok(()), |path| write(path, html::page(report)));
    if let Some(path) = arguments.json.as_deref().filter(|path| !is_stdout(path)) {
        write(path, json()?)?;
    }
    page
}
