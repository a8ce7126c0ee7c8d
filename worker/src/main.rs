//! The worker as a program of its own.

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use feedmill_worker::agent::{self, AgentArgs};
use feedmill_worker::{WorkerArgs, child_main, main as worker_main};

/// Freed memory goes back and forth between many threads; the system's allocator keeps too much of it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Serves batches of exact tensors made from JSONL records and their images.
#[derive(Parser)]
#[command(
    name = "feedmill-worker",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Role>,
    #[command(flatten)]
    args: Option<WorkerArgs>,
}

/// What else this program can be.
#[derive(Subcommand)]
enum Role {
    /// Serves batches of other workers to this node's processes by reference
    Agent(AgentArgs),
}

fn main() -> ExitCode {
    if let Some(code) = child_main() {
        return code;
    }
    match Cli::parse() {
        Cli { command: Some(Role::Agent(args)), .. } => agent::main(&args),
        Cli { args: Some(args), .. } => worker_main(&args),
        // Arguments that a worker cannot do without are missing.
        Cli { .. } => Cli::command().error(ErrorKind::MissingRequiredArgument, "give --pipeline FILE").exit(),
    }
}
