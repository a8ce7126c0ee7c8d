//! The operator as a program: arguments → settings → run.

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use feedmill_operator::check::CheckArgs;
use feedmill_operator::settings::OperatorArgs;
use tracing_subscriber::EnvFilter;

/// Takes DataPipelines, gives worker fleets on Kubernetes.
#[derive(Parser)]
#[command(name = "feedmill-operator", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Look after pipelines until told to stop
    Run(Box<OperatorArgs>),
    /// Wait until an operator is seen at work, as `helm test` does
    Check(CheckArgs),
    /// Print the CustomResourceDefinition
    Crd,
}

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    // Whoever read standard error may be gone, and telling of that would panic in the middle of whatever logs.
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .log_internal_errors(false)
        .init();
    let result = match Cli::parse().command {
        Command::Run(arguments) => feedmill_operator::run::main(&arguments),
        Command::Check(arguments) => feedmill_operator::run::check(&arguments),
        Command::Crd => print(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn print() -> anyhow::Result<()> {
    let text = feedmill_operator::crd::yaml()?;
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}
