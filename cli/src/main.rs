//! The `feedmill` command.
//!
//! ```text
//!  args ─► local ─► worker processes, ranks, view, summary
//!     ├──► get    ──┐
//!     ├──► show   ──┤
//!     ├──► verify ──┴► target: a worker over http, or a pipeline in this process ─► table
//!     ├──► top: kubectl's answers ─► table
//!     ├──► check: every record of a pipeline's data sets ─► report
//!     └──► worker (what `local` starts)
//! ```
#![forbid(unsafe_code)]

/// The command line as it is typed.
mod args;
/// What is in the data, before it is trained on.
mod check;
/// Two plans held against each other.
mod diff;
/// One batch, described.
mod get;
/// A whole training's data on this machine.
mod local;
/// One sample, shown.
mod show;
/// Pipelines of a cluster, live.
mod top;
/// Samples, held against Hugging Face's processor.
mod verify;

/// The one place where a clock is read.
mod clock;
/// One request to a worker.
mod http;
/// What is printed.
mod output;
/// A pipeline's file.
mod pipeline;
/// Folders for temporary files.
mod scratch;
/// A step's positions.
mod step;
/// Folders served as S3.
mod storage;
/// Lines and numbers for people.
mod table;
/// Where batches come from.
mod target;
/// Errors that end the command with 2.
mod usage;

use std::future::Future;
use std::process::ExitCode;

use clap::Parser as _;
use tracing_subscriber::EnvFilter;

use args::{Arguments, Command};
use local::interrupt::until_interrupted;
use usage::Usage;

/// Freed memory goes back and forth between many threads; and a client that keeps the memory of frames halves its cost of receiving.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What is logged unless `RUST_LOG` says otherwise. Bad records are in the summary, and in what `show` says.
const LOG: &str = "warn,feedmill_worker::make=error,aws_config=error";

fn main() -> ExitCode {
    if let Some(code) = feedmill_worker::child_main() {
        return code;
    }
    match Arguments::parse().command {
        Command::Local(arguments) => on_runtime(local::run(&arguments)),
        Command::Get(arguments) => on_runtime(until_interrupted(succeeding(get::run(&arguments)))),
        Command::Check(arguments) => on_runtime(check::run(&arguments)),
        Command::Diff(arguments) => on_runtime(until_interrupted(diff::run(&arguments))),
        Command::Show(arguments) => on_runtime(until_interrupted(succeeding(show::run(&arguments)))),
        Command::Top(arguments) => on_runtime(succeeding(top::run(&arguments))),
        Command::Verify(arguments) => on_runtime(until_interrupted(verify::run(&arguments))),
        // It has a runtime and logs of its own.
        Command::Worker(arguments) => feedmill_worker::main(&arguments),
    }
}

async fn succeeding(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<ExitCode> {
    work.await.map(|()| ExitCode::SUCCESS)
}

/// Runs to the end and says what went wrong.
fn on_runtime(work: impl Future<Output = anyhow::Result<ExitCode>>) -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOG));
    // Whoever read standard error may be gone, and telling of that would panic in the middle of whatever logs.
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .log_internal_errors(false);
    log.without_time().init();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::tell(&format!("feedmill: cannot start threads: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(work);
    // What the S3 server reads from disk is read on threads that nobody waits for.
    runtime.shutdown_background();
    match result {
        Ok(code) => code,
        Err(error) => {
            output::tell(&format!("feedmill: {error:#}"));
            if error.is::<Usage>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}
