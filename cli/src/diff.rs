//! Takes two plans, says in which facts they differ.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use feedmill_client::{Endpoint, Pass};
use feedmill_protocol::http::PATH_PLAN;
use feedmill_protocol::plan::Plan;
use serde_json::Value;

use crate::args::DiffArguments;
use crate::target::Target;
use crate::usage::Usage;
use crate::{http, output};

/// Runs `feedmill diff`: 0 when the plans are equal, 1 when they are not.
///
/// # Errors
/// A plan that cannot be had.
pub async fn run(arguments: &DiffArguments) -> anyhow::Result<ExitCode> {
    let pass = arguments.access.pass().map_err(Usage::of)?;
    let here = plan(&arguments.before, arguments, &pass).await.map_err(Usage::of)?;
    let there = plan(&arguments.after, arguments, &pass).await.map_err(Usage::of)?;
    let (text, differ) = describe(&here, &there);
    output::print(&text)?;
    Ok(if differ { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The facts of a pipeline, of a plan.json, of what a worker answers to /v1/plan, or of a worker.
async fn plan(source: &str, arguments: &DiffArguments, pass: &Pass) -> anyhow::Result<Plan> {
    let stream = arguments.stream.as_str();
    let bytes = if source.contains("://") {
        let endpoint: Endpoint = source.parse()?;
        http::get(&endpoint, pass, PATH_PLAN).await?.to_vec()
    } else {
        let bytes = std::fs::read(Path::new(source)).with_context(|| format!("cannot read {source}"))?;
        if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
            let plan = of_pipeline(source, arguments).await;
            return plan.with_context(|| format!("{source} is no JSON, so no plan.json"));
        }
        bytes
    };
    let value: Value = serde_json::from_slice(&bytes).with_context(|| format!("{source} is no JSON"))?;
    let entry = match value.get("streams").and_then(Value::as_object) {
        Some(streams) => streams.get(stream).with_context(|| {
            let known: Vec<&str> = streams.keys().map(String::as_str).collect();
            format!("{source} has no stream {stream:?}; it has: {}", known.join(", "))
        })?,
        None => &value,
    };
    let Some(facts) = entry.get("facts").filter(|facts| facts.is_object()) else {
        bail!(
            "{source} is no plan: it has no facts; a loader writes plan.json, a worker answers {PATH_PLAN}"
        );
    };
    let plan: Plan = serde_json::from_value(facts.clone()).with_context(|| format!("facts of {source}"))?;
    if let Some(digest) = entry.get("plan").and_then(Value::as_str)
        && digest != plan.digest().to_string()
    {
        bail!(
            "{source} says that its plan is {digest}, but its facts give {}; it was changed",
            plan.digest()
        );
    }
    Ok(plan)
}

/// The facts of a pipeline's stream, made from its data.
async fn of_pipeline(file: &str, arguments: &DiffArguments) -> anyhow::Result<Plan> {
    let DiffArguments { stream, storage, access, .. } = arguments;
    let facts = match Target::open(file, stream, storage, access).await? {
        Target::Pipeline(local) => local.worker().facts(stream),
        Target::Worker(..) => None,
    };
    let facts = facts.with_context(|| format!("it has no stream {stream:?}"))?;
    Ok(serde_json::from_value(facts)?)
}

fn describe(here: &Plan, there: &Plan) -> (String, bool) {
    let differences = here.differences(there);
    if differences.is_empty() {
        return (format!("the plans are equal: {}\n", here.digest()), false);
    }
    let mut text = String::new();
    for (fact, before, after) in &differences {
        text.push_str(&format!("{fact}\n"));
        for (sign, value) in [('-', before), ('+', after)] {
            let value = value.map_or("(not there)".to_owned(), ToString::to_string);
            text.push_str(&format!("  {sign} {value}\n"));
        }
    }
    let count = differences.len();
    let facts = if count == 1 { "fact" } else { "facts" };
    text.push_str(&format!("\nthe plans differ in {count} {facts}\n"));
    (text, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_named_with_both_values() {
        let mut here = Plan::new();
        here.set("stream.seed", 42);
        let mut there = here.clone();
        assert!(!describe(&here, &there).1);
        there.set("stream.seed", 43);
        there.set("processor.date", "2026-01-01");
        let (text, differ) = describe(&here, &there);
        assert!(differ);
        let expected = "processor.date\n  - (not there)\n  + \"2026-01-01\"\nstream.seed\n  - 42\n  + 43\n\n\
                        the plans differ in 2 facts\n";
        assert_eq!(text, expected);
    }
}
