//! Simulates autoscaling and writes what came of it.
#![forbid(unsafe_code)]

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Parser;
use feedmill_sim::{against, goals, measure, page, throttle, trace};

/// Where the table is put in.
const BEGIN: &str = "<!-- made by make sim: begin -->";
const END: &str = "<!-- made by make sim: end -->";

/// Trainings, workers and autoscalers in virtual time
#[derive(Debug, Parser)]
struct Arguments {
    /// Every random number comes from one of these; the first one's traces are shown
    #[arg(long, value_delimiter = ',', default_values_t = [7, 1, 2, 3, 4])]
    seeds: Vec<u64>,
    /// Only traces whose name contains this
    #[arg(long, default_value = "")]
    trace: String,
    /// Says when ours and the oracle changed their minds
    #[arg(long)]
    changes: bool,
    /// Puts the tables into this page
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Writes a page with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Runs this feedmill program, with slow workers on the quickstart's data, and simulates the same; from the repository's folder
    #[arg(long, value_name = "PROGRAM", exclusive = true)]
    against_local: Option<PathBuf>,
    /// Lets the children of a process run for a part of the time, until standard input is closed
    #[arg(long, value_name = "PROCESS", exclusive = true, hide = true)]
    throttle: Option<u32>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if let Some(parent) = arguments.throttle {
        throttle::throttle(parent);
        return Ok(());
    }
    if let Some(program) = &arguments.against_local {
        return against::against_local(program);
    }
    let traces: Vec<_> =
        trace::all().into_iter().filter(|trace| trace.name.contains(&arguments.trace)).collect();
    let samples = measure::sample(&traces, &arguments.seeds);
    let verdict = goals::judge(&samples);
    if arguments.changes {
        for (trace, outcomes) in samples.iter().flat_map(|sample| &sample.all) {
            for outcome in outcomes.iter().take(2) {
                println!("{}, {}: {:?}", trace.name, outcome.policy, outcome.history.changes);
                println!("  {:?}", outcome.history.reasons);
            }
        }
    }
    let tables = page::markdown(&samples, &verdict);
    print!("{tables}");
    if let Some(path) = &arguments.markdown {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let parts = text.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
        let (before, after) =
            parts.with_context(|| format!("{} has no {BEGIN} and {END}", path.display()))?;
        std::fs::write(path, format!("{before}{BEGIN}\n\n{tables}\n{END}{after}"))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &arguments.html {
        std::fs::write(path, page::html(&samples, &verdict, "make sim"))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    println!("{}", page::json(&samples, &verdict));
    Ok(())
}
