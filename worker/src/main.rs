//! The worker as a program of its own.

use std::process::ExitCode;

use clap::Parser;
use feedmill_worker::{WorkerArgs, child_main, main as worker_main};

/// Freed memory goes back and forth between many threads; the system's allocator keeps too much of it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Serves batches of exact tensors made from JSONL records and their images.
#[derive(Parser)]
#[command(name = "feedmill-worker", version)]
struct Cli {
    #[command(flatten)]
    args: WorkerArgs,
}

fn main() -> ExitCode {
    if let Some(code) = child_main() {
        return code;
    }
    worker_main(&Cli::parse().args)
}
